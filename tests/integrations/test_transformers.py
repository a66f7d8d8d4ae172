"""transformers' own loading, compressing while it loads: every kind of model, what its methods say, what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from wcodec.nn import CompressedLayer

transformers = pytest.importorskip("transformers")
IDS = torch.arange(12)[None]
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {**SIZES, "vocab_size": 300}
PICTURES = {**SIZES, "image_size": 32, "patch_size": 8}


def both_ways(kind: str, config: str, inputs: dict[str, torch.Tensor], **sizes: Any) -> Any:
    """A model of two halves, with sizes of its own names."""
    halves = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 128))
    }
    return kind, config, {"d_model": 64, "vocab_size": 300, **halves, **sizes}, inputs


IN_AND_OUT = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
MODELS: dict[str, Any] = {
    "causal": ("MistralForCausalLM", "MistralConfig", {**TEXT, "num_key_value_heads": 2}, {"input_ids": IDS}),
    "experts": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**TEXT, "num_key_value_heads": 2, "num_local_experts": 4},
        {"input_ids": IDS},
    ),
    "masked": ("BertForMaskedLM", "BertConfig", TEXT, {"input_ids": IDS}),
    "classifier": ("BertForSequenceClassification", "BertConfig", {**TEXT, "num_labels": 5}, {"input_ids": IDS}),
    "sequences": both_ways("BartForConditionalGeneration", "BartConfig", IN_AND_OUT),
    "speech": both_ways(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {"input_features": torch.ones(1, 16, 100), "decoder_input_ids": IDS[:, :5]},
        num_mel_bins=16, max_source_positions=50, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    ),
    "vision": (
        "ViTForImageClassification",
        "ViTConfig",
        {**PICTURES, "num_labels": 7},
        {"pixel_values": torch.ones(1, 3, 32, 32)},
    ),
}  # fmt: skip


def made(kind: str) -> tuple[Any, dict[str, torch.Tensor]]:
    name, config, sizes, inputs = MODELS[kind]
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1, generator=generator)
    return model, inputs


def output(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode():
        return model(**inputs).logits


def layers(model: Any) -> list[CompressedLayer]:
    return [m for m in model.modules() if isinstance(m, CompressedLayer)]


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model(kind: str, tmp_path: Path) -> None:
    original, inputs = made(kind)
    original.save_pretrained(tmp_path / "original")
    cls = type(original)
    expected = wcodec.load_model(tmp_path / "original", coder="huffman")
    assert isinstance(expected, cls) and layers(expected)
    wanted = output(expected, inputs)
    near = output(original, inputs)
    assert 0 < (wanted - near).norm() < 0.05 * near.norm()
    loaded = cls.from_pretrained(tmp_path / "original", quantization_config=wcodec.WCodecConfig(coder="huffman"))
    assert len(layers(loaded)) == len(layers(expected)) and torch.equal(output(loaded, inputs), wanted)
    loaded.save_pretrained(tmp_path / "saved")
    for again in (cls.from_pretrained(tmp_path / "saved"), wcodec.load_model(tmp_path / "saved")):
        assert isinstance(again, cls) and torch.equal(output(again, inputs), wanted)
        # Tied weights and biases count once, as they do in the original.
        assert again.num_parameters() == original.num_parameters()
        assert again.num_parameters(exclude_embeddings=True) == original.num_parameters(exclude_embeddings=True)
        assert again.num_parameters(only_trainable=True) == 0
    assert loaded.get_memory_footprint() < 0.8 * original.get_memory_footprint()
    wcodec.decompress_(loaded)
    assert loaded.get_memory_footprint() == original.get_memory_footprint()
    assert torch.allclose(output(loaded, inputs), wanted, rtol=1e-4, atol=1e-4)


def test_the_footprint_is_what_is_stored(model: Path) -> None:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model, quantization_config=wcodec.WCodecConfig(bits=4, coder="rans"), dtype=torch.bfloat16
    )
    stored = {layer.entry.name: layer.stored_bytes for layer in layers(loaded)}
    norms = sum(p.nbytes for p in loaded.parameters())
    buffers = sum(b.nbytes for b in loaded.buffers())
    assert loaded.get_memory_footprint() == sum(stored.values()) + norms + buffers
    assert loaded.get_memory_footprint(return_buffers=False) == sum(stored.values()) + norms
    # Embedding and head are one weight in the model: 2,359,296 weights of layers and 786,432 of the embedding.
    assert sum(stored.values()) * 8 == pytest.approx(4 * 3_145_728, rel=0.003)


def test_it_is_what_compress_gives(model: Path) -> None:
    config = wcodec.WCodecConfig(
        bits=3.5, trellis=False, rules={"*.v_proj.*": {"bits": 5}}, exclude="*.mlp.down_proj", embeddings=False
    )
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, quantization_config=config)
    names = {name for name, m in loaded.named_modules() if isinstance(m, CompressedLayer)}
    assert len(names) == 4 * 6 + 1 and not any("down_proj" in n or "embed" in n for n in names)
    assert loaded.model.layers[0].self_attn.v_proj.entry.bits_per_weight > 4.5
    plain = transformers.AutoModelForCausalLM.from_pretrained(model)
    options = {"bits": 3.5, "trellis": False, "rules": {"*.v_proj.*": {"bits": 5}}}
    wcodec.compress_(plain, exclude="*.mlp.down_proj", embeddings=False, progress=False, **options)
    for name in names:
        assert torch.equal(loaded.get_submodule(name).weight, plain.get_submodule(name).weight), name


def test_shards_and_links_of_a_cache(model: Path, tmp_path: Path) -> None:
    original = transformers.AutoModelForCausalLM.from_pretrained(model)
    original.save_pretrained(tmp_path / "shards", max_shard_size="1MB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for i, path in enumerate(sorted((tmp_path / "shards").iterdir())):
        blob = tmp_path / f"blob-{i}"
        shutil.move(path, blob)
        (snapshot / path.name).symlink_to(blob)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(snapshot, quantization_config=wcodec.WCodecConfig())
    assert torch.equal(loaded(IDS).logits, wcodec.load_model(model)(IDS).logits)


def test_no_more_than_a_tensor_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are read one at a time, each once, and what has become a layer is not read by transformers again."""
    original, _ = made("causal")
    original.save_pretrained(tmp_path)
    from wcodec._models.checkpoint import Checkpoint

    read: list[str] = []
    before = Checkpoint.__getitem__

    def recorded(self: Checkpoint, key: str) -> torch.Tensor:
        read.append(key)
        return before(self, key)

    monkeypatch.setattr(Checkpoint, "__getitem__", recorded)
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=wcodec.WCodecConfig(), output_loading_info=True
    )
    names = {layer.entry.name for layer in layers(loaded)}
    assert set(read) == names
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]


def test_statistics_choose_the_levels(model: Path, tmp_path: Path) -> None:
    original = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    statistics = wcodec.collect_statistics(original, data=torch.arange(64), windows=1, length=64, full=False)
    statistics.save(tmp_path / "s.safetensors")
    chosen = {"bits": 4, "trellis": False, "feedback": False, "calibrate": str(tmp_path / "s.safetensors")}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, quantization_config=wcodec.WCodecConfig(**chosen))
    expected = wcodec.load_model(model, **chosen)
    assert torch.equal(loaded(IDS).logits, expected(IDS).logits)
    assert not torch.equal(loaded(IDS).logits, wcodec.load_model(model, bits=4, trellis=False)(IDS).logits)


# Other heads on the same layers


def test_a_new_head_is_left_to_transformers(model: Path) -> None:
    kind = transformers.AutoModelForSequenceClassification
    config = wcodec.WCodecConfig()
    loaded, info = kind.from_pretrained(model, quantization_config=config, num_labels=3, output_loading_info=True)
    assert set(info["missing_keys"]) == {"score.weight"} and isinstance(loaded.score, torch.nn.Linear)
    assert len(layers(loaded)) == 1 + 4 * 7 and bool(loaded.score.weight.isfinite().all())


def test_another_head_takes_the_layers_that_it_has(model: Path, tmp_path: Path) -> None:
    whole = transformers.AutoModelForCausalLM.from_pretrained(model, quantization_config=wcodec.WCodecConfig())
    whole.save_pretrained(tmp_path / "causal")
    with pytest.warns(UserWarning, match=r"a LlamaModel has no use for lm_head.weight"):
        base = transformers.AutoModel.from_pretrained(tmp_path / "causal")
    assert torch.equal(base(IDS).last_hidden_state, whole.model(IDS).last_hidden_state)
    with pytest.warns(UserWarning, match="has no use for lm_head.weight"):
        head = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "causal", num_labels=3)
    assert head(IDS).logits.shape == (1, 3) and head.score.weight.device.type == "cpu"
    # And the other way round.
    base.save_pretrained(tmp_path / "base")
    assert json.loads((tmp_path / "base/config.json").read_text())["architectures"] == ["LlamaModel"]
    again = transformers.AutoModel.from_pretrained(tmp_path / "base")
    assert torch.equal(again(IDS).last_hidden_state, base(IDS).last_hidden_state)


# The config


def test_the_config_says_what_was_chosen(model: Path) -> None:
    config = wcodec.WCodecConfig(bits=3, residency="host", exclude=["*.k_proj"], cache="1MB")
    assert config.to_dict() == {
        "quant_method": "wcodec", "bits": 3, "residency": "host", "cache": "1MB", "exclude": ["*.k_proj"],
    }  # fmt: skip
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, quantization_config=config)
    assert loaded.model.layers[0].mlp.up_proj._store.settings["residency"] == "host"
    assert loaded.config.quantization_config.to_dict() == config.to_dict()
    again = pickle.loads(pickle.dumps(config))
    assert again.to_dict() == config.to_dict() and "wcodec" in loaded.config.to_json_string()


def test_what_a_later_version_may_write_is_left_out(model: Path, tmp_path: Path) -> None:
    wcodec.save_pretrained(wcodec.load_model(model), tmp_path / "m")
    path = tmp_path / "m/config.json"
    record = json.loads(path.read_text())
    record["quantization_config"]["of_later"] = {"a": 1}
    path.write_text(json.dumps(record))
    assert layers(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bit": 4}, r"WCodecConfig has no keyword bit \(did you mean bits\?\)"),
        ({"skip": "*"}, "WCodecConfig has no keyword skip"),
        ({"bits": 0.5}, "bits"),
        ({"scheme": "int9"}, "int9"),
        ({"coder": "lz4"}, "lz4"),
        ({"residency": "disc"}, "disc"),
        ({"residency": "host", "vram_budget": "1GB"}, "goes with residency 'auto'"),
        ({"scale": "column"}, "column"),
    ],
)
def test_a_config_is_checked_before_anything_is_read(options: dict[str, Any], said: str) -> None:
    with pytest.raises(wcodec.InputError, match=said):
        wcodec.WCodecConfig(**options)


# Refusals


def in_bins(folder: Path, model: Any) -> dict[str, Any]:
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return {}


def of_another_shape(folder: Path, model: Any) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"intermediate_size": 128', '"intermediate_size": 192'))
    return {}


def an_expert_is_missing(folder: Path, model: Any) -> dict[str, Any]:
    from safetensors.torch import load_file, save_file

    mixture, _ = made("experts")
    mixture.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    left = {n: t for n, t in tensors.items() if "layers.1" not in n or "experts.2" not in n}
    assert len(left) < len(tensors)
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    return {}


def on_another_device(folder: Path, model: Any) -> dict[str, Any]:
    return {"device_map": {"model.embed_tokens": "cpu", "model": "mps", "lm_head": "mps"}}


def shared_by_ranks(folder: Path, model: Any) -> dict[str, Any]:
    from transformers.distributed import DistributedConfig

    config = transformers.AutoConfig.from_pretrained(folder)
    config.distributed_config = DistributedConfig()
    config.distributed_config.tp_size = 2
    return {"config": config}


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (in_bins, wcodec.InputError, "weights are compressed from .safetensors files"),
        (of_another_shape, wcodec.InputError, "of another shape"),
        (an_expert_is_missing, wcodec.InputError, "expert 2"),
        (on_another_device, wcodec.InputError, "cannot go to mps"),
        (shared_by_ranks, wcodec.UnsupportedError, "among ranks|each rank would compress"),
    ],
)
def test_what_is_refused(
    change: Callable[[Path, Any], dict[str, Any]], error: type[Exception], said: str, tmp_path: Path
) -> None:
    model, _ = made("causal")
    model.save_pretrained(tmp_path)
    options = change(tmp_path, model)
    with pytest.raises(error, match=said):
        transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, quantization_config=wcodec.WCodecConfig(), **options
        )
