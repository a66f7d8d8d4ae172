"""Folders, files and checkpoints of models, and what is said when they do not fit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from wcodec.nn import CompressedLayer, CompressedLinear

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[3, 17, 256, 255, 5, 41]])


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model, compressed and saved."""
    folder = tmp_path_factory.mktemp("saved") / "doc"
    model = wcodec.load_model(Path(__file__).parents[1] / "data" / "doc-llama-3m")
    wcodec.save_pretrained(model, folder)
    return folder


def test_the_folder(saved: Path) -> None:
    names = {path.name for path in saved.iterdir()}
    own = {"model.wcodec", "config.json", "generation_config.json", "tokenizer.json"}
    # And what else is beside the weights of the original.
    assert names == own | {"README.md", "heldout.txt"}
    with wcodec.open(saved) as container:
        assert {entry.name.split(".")[-2] for entry in container.stored if entry.scheme == "raw"} == {
            "input_layernorm", "post_attention_layernorm", "norm"
        }  # fmt: skip
    config = json.loads((saved / "config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "wcodec", "file": "model.wcodec", "scheme": "int8", "coder": "huffman", "residency": "device"
    }  # fmt: skip
    assert wcodec.verify(saved / "model.wcodec", progress=False).ok


def test_saving_does_not_replace_by_itself(saved: Path, tmp_path: Path) -> None:
    model = wcodec.load_model(saved)
    wcodec.save_pretrained(model, tmp_path)
    with pytest.raises(wcodec.OutputExistsError, match="overwrite=True"):
        wcodec.save_pretrained(model, tmp_path)
    wcodec.save_pretrained(model, tmp_path, overwrite=True)
    assert (tmp_path / "model.wcodec").read_bytes() == (saved / "model.wcodec").read_bytes()
    assert model.config.name_or_path == str(saved)
    # A folder that a model runs from may be replaced by that model.
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    model = wcodec.load_model(copy)
    wanted = logits(model)
    wcodec.save_pretrained(model, copy, overwrite=True)
    assert torch.equal(logits(wcodec.load_model(copy)), wanted) and torch.equal(logits(model), wanted)


def settings_of(model: Any) -> dict[str, Any]:
    return dict(model.lm_head._store.settings)


def test_settings_are_saved(saved: Path, tmp_path: Path) -> None:
    settings = {"residency": "auto", "vram_budget": "3GB", "cache": "1.5MiB"}
    exact = {"residency": "auto", "vram_budget": 3_000_000_000, "ram_budget": None, "cache": 3 << 19}
    model = wcodec.WCodecModel.from_pretrained(saved, **settings)
    wanted = logits(wcodec.load_model(saved))
    assert settings_of(model) == exact and torch.equal(logits(model), wanted)
    model.save_pretrained(tmp_path / "a")
    said = json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]
    assert (said["residency"], said["vram_budget"], said["cache"]) == ("auto", "3GB", "1536KiB")
    # Both ways of loading take them, if no others are asked for.
    for loaded in (
        wcodec.load_model(tmp_path / "a"),
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a"),
    ):
        assert settings_of(loaded) == exact and torch.equal(logits(loaded), wanted)
        assert any(m.cached for m in loaded.modules() if isinstance(m, CompressedLayer))
    wcodec.save_pretrained(loaded, tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"] == said
    other = wcodec.load_model(tmp_path / "a", residency="host", cache=0)
    assert settings_of(other) == {"residency": "host", "vram_budget": None, "ram_budget": None, "cache": 0}
    assert settings_of(wcodec.load_model(tmp_path / "a", vram_budget=5))["vram_budget"] == 5
    compressed = wcodec.load_model(Path(__file__).parents[1] / "data" / "doc-llama-3m", **settings)
    assert settings_of(compressed) == exact and torch.equal(logits(compressed), wanted)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"residency": "tape"}, "device, host, disk or auto"), ({"cache": "much"}, "cache must be a size"),
     ({"residency": ["auto"]}, "device, host, disk or auto"),
     ({"residency": "auto", "vram_budget": -1}, "at least 1 bytes"),
     ({"cache": {"a": 1}}, "cache must be a size")],
)  # fmt: skip
def test_a_config_with_bad_settings(values: dict[str, Any], message: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(saved, folder)
    config = json.loads((folder / "config.json").read_text())
    edit(folder, quantization_config={**config["quantization_config"], **values})
    with pytest.raises(wcodec.FormatError, match=message):
        wcodec.load_model(folder)
    with pytest.raises(wcodec.InputError, match=message):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, "bfloat16", None])
def test_dtype(saved: Path, dtype: Any) -> None:
    model = wcodec.load_model(saved, dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype or torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {wanted}
    assert {m.dtype for m in model.modules() if isinstance(m, CompressedLayer)} == {wanted}
    assert logits(model).dtype == wanted and not model.training


def test_a_file_of_a_whole_checkpoint(model: Path, tmp_path: Path) -> None:
    wcodec.compress(model, tmp_path / "m.wcodec", progress=False, exclude="*norm*")
    wanted = logits(wcodec.load_model(model))
    # The config is in the file; beside it; or both in a folder.
    assert torch.equal(logits(wcodec.load_model(tmp_path / "m.wcodec")), wanted)
    shutil.copy(model / "config.json", tmp_path)
    assert torch.equal(logits(wcodec.load_model(tmp_path / "m.wcodec")), wanted)
    assert torch.equal(logits(wcodec.load_model(tmp_path)), wanted)
    shutil.copy(tmp_path / "m.wcodec", tmp_path / "n.wcodec")
    with pytest.raises(wcodec.InputError, match="2 .wcodec files"):
        wcodec.load_model(tmp_path)


def test_scheme_raw_is_the_original(model: Path) -> None:
    original = transformers.AutoModelForCausalLM.from_pretrained(model)
    loaded = wcodec.load_model(model, scheme="raw", coder="zstd")
    assert isinstance(loaded.lm_head, CompressedLinear) and torch.equal(logits(loaded), logits(original))


def test_include_exclude_and_embeddings(model: Path) -> None:
    loaded = wcodec.load_model(model, exclude="*.0.*", embeddings=False, coder="huffman")
    names = [name for name, m in loaded.named_modules() if isinstance(m, CompressedLayer)]
    assert len(names) == 3 * 7 + 1 and not any(".0." in name for name in names)
    assert type(loaded.model.embed_tokens) is torch.nn.Embedding and loaded.lm_head.coder == "huffman"
    logits(loaded)
    with pytest.raises(wcodec.InputError, match="nothing to compress"):
        wcodec.load_model(model, include="nothing")


def test_where_nothing_is_left_to_compress() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64))
    with pytest.raises(wcodec.InputError, match=r"0: among exclude \(change include, exclude or embeddings\)"):
        wcodec.compress_(layers, exclude="0", progress=False)
    with pytest.raises(wcodec.InputError, match=r"no linear layers.* \(wcodec.compress stores tensors of any kind"):
        wcodec.compress_(torch.nn.ReLU(), progress=False)
    report = wcodec.compress_(layers, progress=False)
    assert all(s.vectors for s in report.skipped)
    with pytest.raises(wcodec.InputError, match=r"compressed already \(decompress_ it first\)"):
        wcodec.compress_(layers, progress=False)


def edit(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("kind", ["compressed", "plain"])
def test_weights_of_another_model(kind: str, saved: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(saved if kind == "compressed" else model, folder)
    edit(folder, num_hidden_layers=5)
    with pytest.raises(wcodec.InputError, match=r"missing: model\.layers\.4\.\S+, .* and \d more"):
        wcodec.load_model(folder)
    edit(folder, num_hidden_layers=3)
    with pytest.raises(wcodec.InputError, match=r"extra: model\.layers\.3\."):
        wcodec.load_model(folder)
    edit(folder, num_hidden_layers=4, intermediate_size=500)
    with pytest.raises(wcodec.InputError, match=r"of another shape: model\.\S+ is \[512, 192\], not \[500, 192\]"):
        wcodec.load_model(folder)
    if kind == "compressed":
        with pytest.raises(wcodec.InputError, match="not that of this model"):
            transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_what_is_not_there(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(wcodec.FileMissingError, match="no such folder"):
        wcodec.load_model(tmp_path / "nothing")
    with pytest.raises(wcodec.InputError, match="config.json"):
        wcodec.load_model(tmp_path)
    shutil.copy(saved / "config.json", tmp_path)
    with pytest.raises(wcodec.FileMissingError, match="the config names this file"):
        wcodec.load_model(tmp_path)
    edit(tmp_path, quantization_config=None)
    with pytest.raises(wcodec.FileMissingError, match="no .wcodec and no .safetensors"):
        wcodec.load_model(tmp_path)
    with pytest.raises(wcodec.InputError, match="residency"):
        wcodec.load_model(saved, residency="tape")
    with pytest.raises(wcodec.InputError, match="vram_budget goes with residency 'auto', not with 'device'"):
        wcodec.load_model(saved, residency="device", vram_budget="3GB")
    with pytest.raises(wcodec.InputError, match="cache must be a size"):
        wcodec.load_model(tmp_path / "nothing", cache="3G")
    with pytest.raises(wcodec.InputError, match="compute in float32"):
        wcodec.load_model(saved, dtype=torch.int8)
    with pytest.raises(wcodec.InputError, match="cannot decode to device"):
        wcodec.load_model(saved, device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(saved: Path) -> None:
    with pytest.raises(wcodec.DeviceError):
        wcodec.load_model(saved, device="cuda")


def test_nothing_is_saved_of_plain_models(model: Path, tmp_path: Path) -> None:
    plain = transformers.AutoModelForCausalLM.from_pretrained(model)
    with pytest.raises(wcodec.InputError, match="compress_ first"):
        wcodec.save_pretrained(plain, tmp_path)
    with pytest.raises(wcodec.InputError, match="compress_ first"):
        wcodec.WCodecModel(plain)
    other = torch.nn.Sequential(torch.nn.Linear(64, 64))
    wcodec.compress_(other, progress=False)
    with pytest.raises(wcodec.InputError, match="no config"):
        wcodec.save_pretrained(other, tmp_path)


def test_transformers_alone(saved: Path, tmp_path: Path) -> None:
    """In a new process, where wcodec is imported before transformers, which it does not import."""
    code = f"""
import sys, wcodec
assert not {{"torch", "transformers", "accelerate"}} & set(sys.modules)
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(saved)!r})
assert type(model.lm_head).__name__ == "CompressedLinear", type(model.lm_head)
wcodec.register()
model.save_pretrained({str(tmp_path)!r})
model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})
assert type(model.lm_head).__name__ == "CompressedLinear", type(model.lm_head)
model.dequantize()
assert type(model.lm_head).__name__ == "Linear"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_mixture_encoded_from_its_checkpoint(tmp_path: Path) -> None:
    """Checkpoints have the matrices of experts one by one, which transformers puts together to stacks."""
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300, num_local_experts=4,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    wanted = logits(wcodec.load_model(tmp_path))
    report = wcodec.compress(tmp_path, tmp_path / "m.wcodec", progress=False, exclude=["*norm*", "*.gate.weight"])
    assert any("experts.3.w2" in t.name for t in report.tensors)
    model = wcodec.load_model(tmp_path)
    assert any(type(m).__name__ == "CompressedExperts" for m in model.modules())
    assert torch.equal(logits(model), wanted)
    wcodec.save_pretrained(model, tmp_path / "saved")
    assert torch.equal(logits(wcodec.load_model(tmp_path / "saved")), wanted)
