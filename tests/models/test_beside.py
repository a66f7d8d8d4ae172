"""Files saved beside a model's compressed weights: those of others, settings, and no more than loading finds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from command import Cli
from small_models import llama
from wcodec._models import beside

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
IDS = torch.arange(12)[None]

TAKEN = """
    preprocessor_config.json processor_config.json video_preprocessor_config.json audio_tokenizer_config.json
    tokenizer.json tokenizer_config.json vocab.json merges.txt tekken.json spm.model sentencepiece.bpe.model source.spm
    qwen.tiktoken bpe.codes dict.txt target_vocab.json vocab.bpe entity_vocab.json chat_template.jinja LICENSE.txt
    NOTICE
    additional_chat_templates/tools.jinja 1_Pooling/config.json modules.json speaker_embeddings/one.npy mel.npz
    custom_generate/generate.py README.md modeling_own.py
""".split()
LEFT = """
    pytorch_model.bin consolidated.00.pth original/params.json original/tokenizer.model model.onnx q4.gguf tf_model.h5
    flax_model.msgpack rust_model.ot optimizer.pt scheduler.pt trainer_state.json training_args.bin rng_state_0.pth
    checkpoint-5/config.json .gitattributes .git/config __pycache__/x.pyc runs/events.out.tfevents.1
    pytorch_model.bin.index.json tf_model.h5.index.json onnx/model.onnx other.safetensors
""".split()


def write(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}" if name.endswith(".json") else f"this is {name}")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    llama().save_pretrained(folder)
    write(folder, [*TAKEN, *LEFT])
    return folder


def encoded(source: Path, target: Path) -> None:
    wcodec.compress(source, f"{target}/", progress=False)


def loaded(source: Path, target: Path) -> None:
    wcodec.save_pretrained(wcodec.load_model(source), target)


def by_config(source: Path, target: Path) -> None:
    config = wcodec.WCodecConfig()
    transformers.AutoModelForCausalLM.from_pretrained(source, quantization_config=config).save_pretrained(target)


def replaced(source: Path, target: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    wcodec.compress_(model, progress=False)
    model.save_pretrained(target)


WAYS = [encoded, loaded, by_config, replaced]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)


@ways
def test_files_beside_the_weights_go_along(
    way: Callable[[Path, Path], None], source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (source / "words.txt").symlink_to(source / "dict.txt")
    (source / "nowhere.txt").symlink_to(source / "none")
    if hasattr(os, "mkfifo"):
        os.mkfifo(source / "pipe.txt")
    target = tmp_path / "target"
    with caplog.at_level("INFO", "wcodec"):
        way(source, target)
    there = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    own = {"model.wcodec", "config.json", "generation_config.json"}
    assert there == own | set(TAKEN) | {"words.txt"}
    assert (target / "dict.txt").read_text() == "this is dict.txt"
    assert not (target / "words.txt").is_symlink() and (target / "words.txt").read_text() == "this is dict.txt"
    # Other weights are named.
    assert "stay behind" in caplog.text and "consolidated.00.pth" in caplog.text and "tekken" not in caplog.text
    assert torch.equal(wcodec.load_model(target)(IDS).logits, wcodec.load_model(source)(IDS).logits)


def test_large_files_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ["picture.PNG", "table.txt", "small.png"])
    monkeypatch.setattr(beside, "_LARGEST", 300)
    monkeypatch.setattr(beside, "_LARGEST_DATA", 100)
    (tmp_path / "picture.PNG").write_bytes(bytes(200))
    (tmp_path / "table.txt").write_bytes(bytes(200))
    (tmp_path / "huge.txt").write_bytes(bytes(400))
    found = beside.beside(tmp_path)
    assert sorted(found.files) == ["small.png", "table.txt"] and found.left == ["huge.txt", "picture.PNG"]


def test_another_tokenizer_is_not_mixed_with_the_first(source: Path, tmp_path: Path) -> None:
    class Tokenizer:
        def save_pretrained(self, folder: Path) -> None:
            (Path(folder) / "tokenizer.json").write_text("mine")

    target = tmp_path / "target"
    wcodec.save_pretrained(wcodec.load_model(source), target, Tokenizer())
    assert (target / "tokenizer.json").read_text() == "mine"
    assert not any((target / n).exists() for n in ("vocab.json", "merges.txt", "spm.model", "tekken.json"))
    assert (target / "preprocessor_config.json").exists() and (target / "LICENSE.txt").exists()


@ways
def test_settings_of_generation_that_transformers_finds_invalid(
    way: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    llama().save_pretrained(source)
    settings = {"do_sample": False, "temperature": 0.6, "top_p": 0.9}
    (source / "generation_config.json").write_text(json.dumps(settings))
    way(source, target)
    assert settings.items() <= json.loads((target / "generation_config.json").read_text()).items()
    assert wcodec.load_model(target).generation_config.temperature == 0.6


def test_settings_that_were_changed_are_saved(tmp_path: Path) -> None:
    model = llama()
    wcodec.compress_(model, progress=False)
    model.generation_config.do_sample, model.generation_config.temperature = False, 0.3
    # transformers refuses to write these as they are.
    with pytest.raises(ValueError, match="temperature"):
        model.generation_config.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "saved")
    assert wcodec.load_model(tmp_path / "saved").generation_config.temperature == 0.3


# Models in others, and others in models


@pytest.mark.parametrize("wrapper", ["compiled", "parallel", "both", "blocks"])
def test_the_model_in_a_wrapper_is_saved(wrapper: str, tmp_path: Path) -> None:
    model = llama()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.2, 2)
    wcodec.compress_(model, progress=False)
    want = model(IDS).logits
    wrapped: Any = model
    if wrapper == "blocks":
        for i, block in enumerate(model.model.layers):
            model.model.layers[i] = torch.compile(block, backend="eager")
    if wrapper in ("compiled", "both"):
        wrapped = torch.compile(model, backend="eager")
    if wrapper in ("parallel", "both"):
        wrapped = torch.nn.DataParallel(wrapped)
    wcodec.save_pretrained(wrapped, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    for load in (wcodec.load_model, transformers.AutoModelForCausalLM.from_pretrained):
        assert torch.equal(load(tmp_path)(IDS).logits, want)


def test_wrappers_that_are_not_saved(tmp_path: Path) -> None:
    model = llama()
    model.model.layers[0] = torch.compile(model.model.layers[0], backend="eager")
    wcodec.compress_(model, progress=False)
    with pytest.raises(wcodec.InputError, match="compressed inside of what torch.compile wraps"):
        wcodec.save_pretrained(model, tmp_path / "out")

    class FullyShardedDataParallel(torch.nn.Module):
        pass

    with pytest.raises(wcodec.InputError, match="a FullyShardedDataParallel has parts of a model"):
        wcodec.save_pretrained(FullyShardedDataParallel(), tmp_path / "out")
    peft = pytest.importorskip("peft")
    model = llama()
    wcodec.compress_(model, progress=False)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(wcodec.InputError, match="has an adapter of peft"):
        wcodec.save_pretrained(adapted, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_that_the_class_does_not_make(tmp_path: Path) -> None:
    def head(model: Any) -> None:
        model.score = torch.nn.Linear(32, 2)

    def parameter(model: Any) -> None:
        model.model.scale = torch.nn.Parameter(torch.ones(3))

    def smaller(model: Any) -> None:
        model.lm_head = torch.nn.Linear(32, 8, bias=False)

    for change, words in (
        (head, "has no score"),
        (parameter, "has no model.scale"),
        (smaller, r"is \[8, 32\], and in"),
    ):
        for exclude in ("", "score*", "lm_head*"):
            model = llama()
            change(model)
            wcodec.compress_(model, exclude=exclude or (), progress=False)
            with pytest.raises(wcodec.InputError, match=words):
                wcodec.save_pretrained(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Scored(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """A class of somebody's own that makes its part."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.score = torch.nn.Linear(config.hidden_size, 2)
        self.post_init()


def test_parts_that_the_class_makes_are_saved(tmp_path: Path) -> None:
    model = Scored(llama().config)
    wcodec.compress_(model, progress=False)
    wcodec.save_pretrained(model, tmp_path)
    found = Scored.from_pretrained(tmp_path)
    x = torch.randn(1, 32)
    assert torch.equal(found.score(x), model.score(x))


@pytest.mark.parametrize("exclude", [(), ("*embed*", "lm_head*")], ids=["compressed", "as they are"])
def test_a_tied_tensor_is_stored_once(exclude: tuple[str, ...], tmp_path: Path) -> None:
    source = tmp_path / "source"
    llama(tie_word_embeddings=True).save_pretrained(source)
    tensors = safetensors.load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    safetensors.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    wcodec.compress(source, f"{tmp_path / 'out'}/", exclude=exclude, progress=False)
    names = list(wcodec.open(tmp_path / "out"))
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    found = wcodec.load_model(tmp_path / "out")
    auto = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(found(IDS).logits, auto(IDS).logits)


# Code that comes with a model

CODE = """
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
class OwnConfig(PreTrainedConfig):
    model_type = "own"
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(64, 64)
        self.post_init()
    def forward(self, x):
        return self.layer(x)
"""


def test_encoding_runs_code_that_is_trusted(tmp_path: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "modeling_own.py").write_text(CODE)
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config = {"model_type": "own", "architectures": ["OwnModel"], "dtype": "float32", "auto_map": names}
    (source / "config.json").write_text(json.dumps(config))
    tensors = {"layer.weight": torch.randn(64, 64), "layer.bias": torch.randn(64)}
    safetensors.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    status, _, err = run("encode", source, "-o", f"{tmp_path / 'refused'}/")
    assert status != 0 and "--trust-remote-code" in err
    assert run("encode", source, "-o", f"{tmp_path / 'a'}/", "-q", "--trust-remote-code")[0] == 0
    wcodec.compress(source, f"{tmp_path / 'b'}/", trust_remote_code=True, progress=False)
    wcodec.save_pretrained(wcodec.load_model(source, trust_remote_code=True), tmp_path / "c")
    x = torch.randn(2, 64)
    want = torch.nn.functional.linear(x, tensors["layer.weight"], tensors["layer.bias"])
    for name in "abc":
        # The code is in the folder itself.
        found = wcodec.load_model(tmp_path / name, trust_remote_code=True)
        assert (tmp_path / name / "modeling_own.py").read_text() == CODE
        assert torch.allclose(found(x), want, atol=0.2)
