"""Folders of the wrong kind, each named for what it is; adapters, and which weights of a folder are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from small_models import llama
from wcodec._file import folder_kinds

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
IDS = torch.arange(12)[None]

# Files by their names, JSON or anything, and words of the message.
FOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({}, "the folder is empty"),
    "adapter": (
        {"adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "b"}, "adapter_model.bin": ""},
        "an adapter (LORA) of b, not a model",
    ),
    "pipeline": ({"model_index.json": {"_class_name": "FluxPipeline"}, "unet/config.json": {}}, "FluxPipeline"),
    "part": ({"config.json": {"_class_name": "AutoencoderKL"}, "x.safetensors": ""}, "diffusers pipeline (Autoenc"),
    "part without a config": ({"diffusion_pytorch_model.fp16.safetensors": ""}, "part of a diffusers pipeline"),
    "scheduler": ({"scheduler_config.json": {}}, "part of a diffusers pipeline"),
    "sentence": ({"modules.json": [], "0_Transformer/config.json": {}, "1_Pooling/x": ""}, "is in '0_Transformer'"),
    "timm": ({"config.json": {"architecture": "vit"}, "model.safetensors": ""}, "a model of timm"),
    "gguf": ({"config.json": {"model_type": "llama"}, "q4.gguf": ""}, "'q4.gguf': a GGUF model"),
    "only gguf": ({"q4.gguf": "", "README.md": ""}, "'q4.gguf': a GGUF model"),
    "onnx": ({"config.json": {}, "onnx/model.onnx": "", "tokenizer.json": {}}, "'onnx/model.onnx': an ONNX model"),
    "tensorflow": ({"config.json": {}, "tf_model.h5": ""}, "weights of TensorFlow"),
    "flax": ({"config.json": {}, "flax_model.msgpack": ""}, "weights of Flax"),
    "rust": ({"config.json": {}, "rust_model.ot": ""}, "weights of rust-bert"),
    "pickles": ({"config.json": {}, "pytorch_model.bin": "", "optimizer.pt": ""}, "'pytorch_model.bin': pickled"),
    "shards of pickles": ({"config.json": {}, "pytorch_model-00001-of-00002.bin": ""}, "pickled weights of torch"),
    "pth": ({"params.json": {}, "consolidated.00.pth": ""}, "'consolidated.00.pth': pickled"),
    "mistral": ({"params.json": {}, "consolidated.safetensors": "", "tekken.json": {}}, "'params.json', of"),
    "openvino": ({"config.json": {}, "openvino_model.xml": "", "openvino_model.bin": ""}, "another runtime"),
    "ranks": ({"config.json": {}, "__0_0.distcp": "", ".metadata": ""}, "a distributed checkpoint"),
    "numpy": ({"weights.npz": ""}, "NumPy arrays"),
    "tokenizer": ({"tokenizer.json": {}, "tokenizer_config.json": {}}, "a tokenizer and no model"),
    "checkpoints": (
        {"checkpoint-9/config.json": {}, "checkpoint-10/config.json": {}, "x.txt": ""}, "in 'checkpoint-10', 'che"
    ),
}  # fmt: skip


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_of_other_kinds(kind: str, tmp_path: Path) -> None:
    files, words = FOLDERS[kind]
    folder = write(tmp_path / "folder", files)
    for read in (
        lambda: wcodec.load_model(folder),
        lambda: wcodec.compress(folder, f"{tmp_path / 'out'}/", progress=False),
    ):
        with pytest.raises(wcodec.InputError) as seen:
            read()
        text = seen.value.without_code()
        # One line that names the folder, says what it is and, in parentheses, what helps.
        assert text.startswith(f"{folder}: ") and words in text and text.endswith(")") and "\n" not in text
        assert seen.value.file == str(folder)
    assert not (tmp_path / "out").exists()
    # A folder without files that can be read as weights is refused for a file to write, too.
    if not any(name.endswith(".safetensors") for name in files):
        with pytest.raises(wcodec.InputError, match=r"\("):
            wcodec.compress(folder, tmp_path / "out.wcodec", progress=False)


def test_no_model_is_taken_for_another_kind(model: Path, tmp_path: Path) -> None:
    files = sorted(p.name for p in model.iterdir())
    more = ["modules.json", "1_Pooling", "pytorch_model.bin", "model.onnx", "tf_model.h5", "params.json", "tekken.json"]
    for names in (files, [*files, *more], ["config.json", "a.wcodec"], ["a.wcodec"]):
        assert folder_kinds.explain(tmp_path, sorted(names), lambda name: {}, lambda name: []) is None


def checkpoint(folder: Path) -> Any:
    made = llama()
    made.save_pretrained(folder)
    return made


def change(folder: Path, name: str, times: float) -> dict[str, torch.Tensor]:
    """Other weights of the same names."""
    tensors = {n: t * times for n, t in safetensors.load_file(folder / "model.safetensors").items()}
    safetensors.save_file(tensors, folder / name, {"format": "pt"})
    return tensors


def index(folder: Path, name: str, tensors: Any, shard: str) -> None:
    body = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
    (folder / name).write_text(json.dumps(body))


def beside_stale_index(folder: Path) -> None:
    index(folder, "model.safetensors.index.json", ["a"], "model-00001-of-00001.safetensors")


def beside_other_shards(folder: Path) -> None:
    tensors = change(folder, "model-00001-of-00001.safetensors", 2)
    index(folder, "model.safetensors.index.json", tensors, "model-00001-of-00001.safetensors")


def beside_a_variant(folder: Path) -> None:
    tensors = change(folder, "model.fp16.safetensors", 3)
    index(folder, "model.fp16.safetensors.index.json", tensors, "model.fp16.safetensors")


def beside_originals(folder: Path) -> None:
    change(folder, "consolidated.safetensors", 4)
    torch.save({}, folder / "pytorch_model.bin")


def named_by_the_config(folder: Path) -> None:
    change(folder, "own.safetensors", 0.5)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "own.safetensors"}))


def shards_beside_others(folder: Path) -> None:
    tensors = change(folder, "part.safetensors", 0.7)
    change(folder, "consolidated.safetensors", 4)
    (folder / "model.safetensors").unlink()
    # Tensors of layer 1 are not in the index, though they are in its shard.
    told = [n for n in tensors if "layers.1." not in n]
    index(folder, "model.safetensors.index.json", told, "part.safetensors")
    torch.save({}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    "what",
    [beside_stale_index, beside_other_shards, beside_a_variant, beside_originals, named_by_the_config,
     shards_beside_others],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_the_weights_that_transformers_reads(what: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    checkpoint(folder)
    what(folder)
    want = transformers.AutoModelForCausalLM.from_pretrained(folder)(IDS).logits
    assert torch.equal(wcodec.load_model(folder, scheme="lossless")(IDS).logits, want)
    want = wcodec.load_model(folder)(IDS).logits
    wcodec.compress(folder, f"{tmp_path / 'out'}/", progress=False)
    assert torch.equal(wcodec.load_model(tmp_path / "out")(IDS).logits, want)
    assert torch.equal(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")(IDS).logits, want)
    packed = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=wcodec.WCodecConfig())
    assert torch.equal(packed(IDS).logits, want)


def test_variants_that_transformers_is_asked_for(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    tensors = change(tmp_path, "model.v-00001-of-00002.safetensors", 2)
    half = sorted(tensors)[: len(tensors) // 2]
    for shard, names in (("1", half), ("2", set(tensors) - set(half))):
        part = {n: tensors[n] for n in names}
        safetensors.save_file(part, tmp_path / f"model.v-0000{shard}-of-00002.safetensors", {"format": "pt"})
    places = {n: f"model.v-0000{1 if n in half else 2}-of-00002.safetensors" for n in tensors}
    (tmp_path / "model.safetensors.index.v.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    given: dict[str, Any] = {"variant": "v"}
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **given)
    wcodec.compress_(model, progress=False)
    given["quantization_config"] = wcodec.WCodecConfig()
    packed = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **given)
    assert torch.equal(packed(IDS).logits, model(IDS).logits)


def test_weights_that_transformers_would_not_read(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert type(wcodec.load_model(tmp_path)).__name__ == "LlamaForCausalLM"
    torch.save({}, tmp_path / "pytorch_model.bin")
    for read in (wcodec.load_model, wcodec.compress_to_bytes):
        with pytest.raises(wcodec.InputError, match=r"reads 'pytorch_model.bin' of this folder, not 'weights.safetens"):
            read(tmp_path)


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """A model and an adapter of it in one folder."""
    peft = pytest.importorskip("peft")
    folder = tmp_path / "adapted"
    made = checkpoint(folder)
    config = peft.LoraConfig(r=2, lora_alpha=60, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft.get_peft_model(made, config).save_pretrained(folder)
    return folder


def test_an_adapter_in_the_folder_is_applied(adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = transformers.AutoModelForCausalLM.from_pretrained(adapted)(IDS).logits
    plain = tmp_path / "plain"
    shutil.copytree(adapted, plain, ignore=shutil.ignore_patterns("adapter*"))
    effect = (transformers.AutoModelForCausalLM.from_pretrained(plain)(IDS).logits - want).abs().max()
    out = tmp_path / "out"
    wcodec.compress(adapted, f"{out}/", progress=False)
    config = wcodec.WCodecConfig()
    made = wcodec.load_model(adapted)
    for found in (
        made,
        wcodec.load_model(out),
        transformers.AutoModelForCausalLM.from_pretrained(out),
        transformers.AutoModelForCausalLM.from_pretrained(adapted, quantization_config=config),
    ):
        assert (found(IDS).logits - want).abs().max() < effect / 10
        assert any(isinstance(m, wcodec.nn.CompressedLinear) for m in found.modules())
    # The model is not saved with half of an adapter in it.
    with pytest.raises(wcodec.InputError, match="has an adapter of peft, which is saved by itself"):
        wcodec.save_pretrained(made, tmp_path / "saved")
    # Its own method saves the adapter, as transformers has it.
    seen: list[Any] = []
    monkeypatch.setattr(transformers.LlamaForCausalLM, "save_pretrained", lambda self, place, **_: seen.append(place))
    made.save_pretrained(tmp_path / "saved")
    assert seen == [tmp_path / "saved"] and not (tmp_path / "saved").exists()
    # One file has no place for it.
    with pytest.raises(wcodec.InputError, match="an adapter .* beside the model, which one file"):
        wcodec.compress(adapted, tmp_path / "one.wcodec", progress=False)
    monkeypatch.setattr("wcodec._models.finish._has_peft", lambda: False)
    with pytest.raises(wcodec.UnsupportedError, match="peft is not installed"):
        wcodec.load_model(out)
