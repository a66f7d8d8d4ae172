"""Models of checkpoints that are quantized already: from file to text, with values and with the codes themselves."""

from __future__ import annotations

import copy
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

import quantized_checkpoints as small  # noqa: E402
from wcodec._file import quantized  # noqa: E402
from wcodec._models.checkpoint import Stored  # noqa: E402
from wcodec.nn._layers.layer import contents  # noqa: E402
from wcodec.nn._weights.scaled import Scaled, ScaledDecoder  # noqa: E402
from wcodec.nn._weights.store import Store  # noqa: E402


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(small.IDS).logits


def text(model: Any) -> list[int]:
    return model.generate(small.IDS, max_new_tokens=6, do_sample=False)[0].tolist()


def layers(model: Any) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, wcodec.nn.CompressedLayer)]


@pytest.mark.parametrize("scheme", [None, "lossless"])
@pytest.mark.parametrize("kind", small.MODELS)
def test_from_a_checkpoint_to_text(kind: str, scheme: str | None, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    small.MODELS[kind](source)
    wcodec.compress(source, f"{out}/", scheme=scheme, progress=False)
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "wcodec"
    model = wcodec.load_model(out)
    assert len(layers(model)) > 8
    with wcodec.open(out) as container:
        # Scales are there beside their codes alone.
        scales = [name for name in container if "scale" in name]
        assert all(name.removesuffix("_scale_inv") in container for name in scales) and (scheme or not scales)
    given = wcodec.WCodecConfig(scheme=scheme)
    others = [
        transformers.AutoModelForCausalLM.from_pretrained(out),
        wcodec.load_model(source, scheme=scheme),
        transformers.AutoModelForCausalLM.from_pretrained(source, quantization_config=given),
    ]
    for other in others:
        assert torch.equal(logits(other), logits(model))
    theirs = small.dequantized(source)
    near = {"rtol": 0, "atol": 5e-3 if scheme else 5e-2}
    torch.testing.assert_close(logits(model).float(), logits(theirs).float(), **near)
    if scheme:
        assert text(model) == text(theirs)
    assert len(text(model)) == small.IDS.shape[1] + 6
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(wcodec.load_model(tmp_path / "again")), logits(model))


@pytest.mark.parametrize("scheme", ["lossless", "raw", "int8"])
@pytest.mark.parametrize("kind", ["llama", "gpt-oss"])
def test_files_run(kind: str, scheme: str, tmp_path: Path) -> None:
    tensors = small.MODELS[kind](tmp_path / "source")
    file = tmp_path / "model.wcodec"
    wcodec.compress(tmp_path / "source", file, scheme=scheme, progress=False)
    with wcodec.open(file) as container:
        assert ("quantization_config" in container.model["config"]) == (scheme != "int8")
        if scheme != "int8":
            assert set(container) == set(tensors)
            for name, tensor in tensors.items():
                found = container[name].torch()
                assert found.dtype == tensor.dtype
                assert torch.equal(found.view(torch.uint8), tensor.contiguous().view(torch.uint8)), name
    theirs, ours = small.dequantized(tmp_path / "source"), wcodec.load_model(file)
    near = {"rtol": 0, "atol": 5e-2 if scheme == "int8" else 0}
    torch.testing.assert_close(logits(ours).float(), logits(theirs).float(), **near)
    # Decoding such a file gives the checkpoint that it was.
    if scheme == "lossless":
        (tmp_path / "back").mkdir()
        (tmp_path / "back" / "config.json").write_text((tmp_path / "source" / "config.json").read_text())
        wcodec.decompress(file, tmp_path / "back" / "model.safetensors", progress=False)
        assert torch.equal(logits(small.dequantized(tmp_path / "back")), logits(theirs))


def test_kept_codes_are_smaller_and_layers_say_so(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "vocab_size": 64}
    small.fp8_llama(tmp_path / "source", block=128, **sizes)
    model = wcodec.load_model(tmp_path / "source", scheme="lossless")
    layer = model.model.layers[0].mlp.down_proj
    theirs = small.dequantized(tmp_path / "source")
    weight = theirs.model.layers[0].mlp.down_proj.weight
    assert layer.entry.dtype == "F8_E4M3" and layer.weight.dtype == torch.bfloat16
    assert torch.equal(layer.weight, weight) and torch.equal(layer.to_linear().weight, weight)
    # Codes of one byte, of which about six and a half bits are information, and a scale for each block.
    assert layer.original_bytes == 256 * 512 + 4 * 2 * 4
    assert 6 < 8 * layer.stored_bytes / (256 * 512) < 7.5
    for dtype in (torch.float32, torch.float16):
        model.to(dtype)
        scales = safetensors_torch.load_file(tmp_path / "source" / "model.safetensors")
        name = "model.layers.0.mlp.down_proj.weight"
        spread = scales[name + "_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
        assert torch.equal(layer.weight, (scales[name].float() * spread).to(dtype))


def test_copies_states_gradients_and_compiled_layers(tmp_path: Path) -> None:
    small.fp8_llama(tmp_path / "source")
    model = wcodec.load_model(tmp_path / "source", scheme="lossless", dtype="float32")
    want = logits(model)
    assert torch.equal(logits(copy.deepcopy(model)), want)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), want)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    other = wcodec.load_model(tmp_path / "source", scheme="lossless", dtype="float32")
    small.fp8_llama(tmp_path / "other", initializer_range=0.5)
    other = wcodec.load_model(tmp_path / "other", scheme="lossless", dtype="float32")
    assert not torch.equal(logits(other), want)
    other.load_state_dict(torch.load(stream))
    assert torch.equal(logits(other), want)
    layer = model.model.layers[0].self_attn.q_proj
    plain = layer.to_linear()
    grads = []
    for one in (layer, plain):
        x = torch.linspace(-1, 1, 128).view(2, 64).requires_grad_()
        one(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    wcodec.decompress_(model)
    assert not layers(model) and torch.equal(logits(model), want)


def test_slices_and_disk_have_the_scales_of_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.fp8_llama(tmp_path / "source")
    wcodec.compress(tmp_path / "source", f"{tmp_path / 'out'}/", scheme="lossless", progress=False)
    want = logits(wcodec.load_model(tmp_path / "out"))
    assert torch.equal(logits(wcodec.load_model(tmp_path / "out", residency="disk")), want)
    assert torch.equal(logits(wcodec.load_model(tmp_path / "out", cache="1MB")), want)
    # Weights that are multiplied with in slices of rows, which begin within blocks of scales.
    monkeypatch.setattr("wcodec.nn._weights.providers.SLICE_BYTES", 16 * 64 * 2)
    monkeypatch.setattr("wcodec.nn._weights.providers._TILE_ROWS", 16)
    sliced = wcodec.load_model(tmp_path / "out", cache=0)
    torch.testing.assert_close(logits(sliced), want, rtol=0, atol=1e-2)
    providers = layers(sliced)[0]._store._devices[torch.device("cpu")].providers.values()
    assert any(type(one).__name__ == "SlicedProvider" and len(one._slices) > 2 for one in providers)
    # The values themselves are the same.
    monkeypatch.setattr(quantized, "_AT_ONCE", 7 * 64)
    assert torch.equal(
        sliced.model.layers[0].mlp.up_proj.weight,
        small.dequantized(tmp_path / "source").model.layers[0].mlp.up_proj.weight,
    )


class Emulated:
    """A stand-in for a GPU's decoder: it decodes into the tensors that it is given, on the CPU."""

    device = torch.device("cpu")

    def __init__(self, container: wcodec.Container) -> None:
        self._container = container
        self.names = list(container)

    def info(self, name: str) -> Any:
        return self._container[name]

    def decode(self, name: str, dtype: Any, out: Any = None, rows: Any = None) -> Any:
        found = self._container[name].torch(dtype) if rows is None else self._container[name].torch_rows(*rows, dtype)
        return found if out is None else out.copy_(found)

    def prepare(self, targets: list[Any]) -> Any:
        container = self._container

        class Batch:
            slots = 0

            def launch(self) -> None:
                for name, out, *rows in targets:
                    entry = container[name]
                    assert out.dtype == (torch.float8_e4m3fn if entry.dtype == "F8_E4M3" else torch.bfloat16)
                    found = entry.torch() if not rows else entry.torch_rows(*rows[0])
                    out.view(torch.uint8).copy_(found.view(torch.uint8))

        return Batch()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(96, 64), (33, 35), (17, 1)])
def test_a_gpu_decodes_codes_into_the_memory_of_values(shape: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A few rows at once: those that are done must not touch codes of those that are not.
    monkeypatch.setattr(quantized, "_AT_ONCE", 2 * shape[1])
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    codes, scales = small.blocked(weight, 16)
    plain = torch.randn(32, 32).to(torch.bfloat16)
    given = {"a.weight": codes, "a.weight_scale_inv": scales, "b.weight": plain}
    record = json.dumps({"dtype": "bfloat16", "quantization_config": small.fp8_record(16)})
    data, _ = wcodec.compress_to_bytes(given, scheme="lossless", metadata={"wcodec.quantized": record})
    container = wcodec.open(data)
    store = Store(container)
    want = store.rows("a.weight", dtype, None)
    spread = scales.repeat_interleave(16, 0).repeat_interleave(16, 1)[: shape[0], : shape[1]]
    assert torch.equal(want, (codes.float() * spread).to(dtype))
    decoder = Scaled(container).decoder(Emulated(container))
    assert isinstance(decoder, ScaledDecoder) and decoder.can_fuse("a.weight") is not None
    for misaligned in (0, 1):
        memory = torch.zeros(weight.numel() + 8, dtype=dtype)
        out = memory[misaligned : weight.numel() + misaligned].view(shape)
        other = torch.zeros_like(plain)
        decoder.prepare([("a.weight", out), ("b.weight", other)]).launch()
        assert torch.equal(out, want) and torch.equal(other, plain) and not memory[weight.numel() + misaligned :].any()
    assert torch.equal(decoder.decode("a.weight", dtype), want)
    assert torch.equal(decoder.decode("a.weight", dtype, rows=(16, shape[0])), want[16:])
    assert torch.equal(decoder.decode("b.weight", torch.bfloat16, rows=(16, 32)), plain[16:])
    if shape[0] > 32:
        part = torch.zeros((shape[0] - 16, shape[1]), dtype=dtype)
        decoder.prepare([("a.weight", part, (16, shape[0]))]).launch()
        assert torch.equal(part, want[16:])


def test_ranks_and_engines_are_told(tmp_path: Path) -> None:
    from wcodec._models import parallel

    small.fp8_llama(tmp_path / "source")
    wcodec.compress(tmp_path / "source", f"{tmp_path / 'out'}/", scheme="lossless", progress=False)
    model = wcodec.load_model(tmp_path / "out")
    store = layers(model)[0]._store
    with pytest.raises(wcodec.UnsupportedError, match="not shared by ranks"):
        parallel._divide(model, store, [], None)  # type: ignore[arg-type]
    from wcodec._integrations.vllm.weights import Weights

    with pytest.raises(wcodec.UnsupportedError, match="which the plug-in of vLLM does not read"):
        Weights(tmp_path / "out")


def test_codes_alone_do_not_make_weights_the_same() -> None:
    codes, scales = small.blocked(torch.randn(64, 64, generator=torch.Generator().manual_seed(8)), 32)
    given = {"a.weight": codes, "a.weight_scale_inv": scales}
    for name, factor in (("b", 2), ("c", 1), ("d", 3)):
        given |= {f"{name}.weight": codes.clone(), f"{name}.weight_scale_inv": scales * factor}
    container = wcodec.open(wcodec.compress_to_bytes(given, scheme="lossless")[0])
    stored = Stored(container, None)
    assert list(stored) == ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert contents(container["b.weight"]) == contents(container["d.weight"])
    assert not stored.same("b.weight", "d.weight") and not stored.same("a.weight", "b.weight")
    assert stored.same("a.weight", "c.weight")


def test_what_is_no_layer_is_filled_in_or_refused(tmp_path: Path) -> None:
    made = small.MODELS["gpt-oss"](tmp_path / "source")
    assert any(name.endswith("_blocks") for name in made)
    given = wcodec.WCodecConfig(exclude="*experts*")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "source", quantization_config=given)
    theirs = small.dequantized(tmp_path / "source")
    experts, others = (m.model.layers[0].mlp.experts for m in (model, theirs))
    assert torch.equal(experts.gate_up_proj, others.gate_up_proj)
    small.MODELS["llama"](tmp_path / "fp8")
    with pytest.raises(wcodec.InputError, match="up_proj.weight'.* is quantized, and is no layer that is compressed"):
        given = wcodec.WCodecConfig(exclude="*up_proj*")
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "fp8", quantization_config=given)
