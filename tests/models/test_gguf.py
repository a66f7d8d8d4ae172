"""Models of GGUF files: the very weights that transformers makes of them, in folders that load as others do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf_models
import numpy as np
import pytest
import wcodec
from command import Cli
from gguf_files import gguf_bytes, numbers
from wcodec import UnsupportedError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

from wcodec._measure.loading import baseline_of  # noqa: E402
from wcodec.nn import CompressedLayer  # noqa: E402

TEXT = torch.arange(24).view(2, 12) * 11 % 200 + 3


def by_transformers(path: Path, dtype: Any = torch.bfloat16) -> Any:
    """The model as transformers loads it from the file."""
    options = {"gguf_file": path.name, "dtype": dtype}
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, **options).eval()


def ours(path: Path, dtype: Any = "auto") -> Any:
    from wcodec._models.original import original_model

    return original_model(path, dtype=dtype)[0]


@pytest.mark.parametrize("architecture", sorted(gguf_models.LAYOUTS))
@pytest.mark.parametrize("plain", [None, "F16"])
def test_weights_are_those_that_transformers_makes(architecture: str, plain: str | None, tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "m.gguf", architecture, tied=architecture != "qwen2", plain=plain)
    dtype = torch.bfloat16 if plain is None else torch.float16
    if plain is None and architecture in ("lfm2", "qwen35"):
        # transformers decodes blocks of these in bfloat16, each operation rounded.
        dtype = torch.float32
    found = ours(path, "auto" if dtype != torch.float32 else dtype)
    expected = by_transformers(path, dtype)
    assert type(found) is type(expected) and found.dtype == dtype
    theirs = expected.state_dict()
    assert found.state_dict().keys() == theirs.keys()
    for name, value in found.state_dict().items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
def test_a_folder_loads_and_keeps_every_bit(architecture: str, tmp_path: Path, run: Cli) -> None:
    path, folder = gguf_models.write(tmp_path / "m.gguf", architecture), tmp_path / "new"
    status, text, _ = run("encode", path, "-o", f"{folder}/", "--scheme", "lossless")
    assert status == 0 and "m.gguf is quantized already" in text
    model, expected = wcodec.load_model(folder), by_transformers(path)
    with torch.no_grad():
        assert torch.equal(model(TEXT).logits, expected(TEXT).logits)
        auto = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(auto(TEXT).logits, expected(TEXT).logits)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [type(expected).__name__] and config["dtype"] == "bfloat16"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert tokenizer("the sea")["input_ids"] == theirs("the sea")["input_ids"]
    assert model.generation_config.eos_token_id == 2
    with wcodec.open(folder / "model.wcodec") as container:
        assert container.metadata["general.name"] == f"small {architecture}"


def test_int8_is_near_and_a_file_is_compressed_in_memory(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "m.gguf", tied=False)
    report = wcodec.compress(path, f"{tmp_path / 'new'}/", progress=False)
    assert {t.scheme for t in report.tensors if len(t.shape) > 1} == {"int8"}
    expected = by_transformers(path)(TEXT).logits.float()
    for model in (wcodec.load_model(tmp_path / "new"), wcodec.load_model(path), wcodec.load_model(path, bits=7)):
        with torch.no_grad():
            error = (model(TEXT).logits.float() - expected).norm() / expected.norm()
        assert 0 < error < 0.1
    exact = wcodec.load_model(path, scheme="lossless", dtype="float32")
    with torch.no_grad():
        assert torch.equal(exact(TEXT).logits, by_transformers(path, torch.float32)(TEXT).logits)


def test_a_baseline_is_the_file_as_it_is(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "m.gguf")
    model = wcodec.load_model(path, bits=6)
    baseline = baseline_of(path, model)
    assert not any(isinstance(m, CompressedLayer) for m in baseline.modules())
    with torch.no_grad():
        assert torch.equal(baseline(TEXT).logits, by_transformers(path)(TEXT).logits)


def test_tokens_of_a_calibration_need_one(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "m.gguf")
    with pytest.raises(wcodec.InputError, match="calibration_tokens go with calibrate"):
        wcodec.load_model(path, bits=6, calibration_tokens=64)
    with pytest.raises(wcodec.InputError, match="calibration_tokens go with calibrate"):
        wcodec.compress(path, f"{tmp_path / 'new'}/", bits=6, calibration_tokens=64, progress=False)


def test_a_model_in_memory_is_calibrated_and_finds_its_tokenizer(
    tmp_path: Path, run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_models.write(tmp_path / "m.gguf")
    ids = torch.arange(600) * 7 % 300 + 3
    asked: list[tuple[Any, int]] = []

    def chosen_place(device: Any, needed: int = 0) -> Any:
        asked.append((device, needed))
        return torch.device("cpu")

    # On a GPU where there is one that has room for the model, as folders are.
    monkeypatch.setattr("wcodec._calibrate.amount.chosen_place", chosen_place)
    report = wcodec.compress(path, f"{tmp_path / 'new'}/", bits=4, calibrate=ids.tolist(), progress=False)
    assert {t.scheme for t in report.tensors if len(t.shape) > 1} == {"rate"}
    assert asked[0][0] is None and asked[0][1] >= 2 * sum(math.prod(t.shape) for t in report.tensors)
    status, text, error = run("generate", path, "--prompt", "the sea", "--max-new-tokens", "3", "--quiet")
    assert status == 0 and text.startswith("the sea"), error


def test_widths_are_the_file_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers takes those of experts and positions for what the first model of that kind had."""
    keys, layer, others = gguf_models.LAYOUTS["qwen3moe"]
    layer = {n: tuple(96 if d == gguf_models.EXPERT else d for d in s) for n, s in layer.items()}
    small = keys | {"expert_feed_forward_length": 96}, layer, others
    monkeypatch.setitem(gguf_models.LAYOUTS, "qwen3moe", small)
    model = ours(gguf_models.write(tmp_path / "m.gguf", "qwen3moe"))
    assert model.config.moe_intermediate_size == 96
    assert tuple(model.model.layers[1].mlp.experts.gate_up_proj.shape) == (4, 192, gguf_models.HIDDEN)
    keys, layer, others = gguf_models.LAYOUTS["gpt2"]
    others = others | {"position_embd.weight": (40, gguf_models.HIDDEN)}
    monkeypatch.setitem(gguf_models.LAYOUTS, "gpt2", (keys | {"context_length": 40}, layer, others))
    assert len(ours(gguf_models.write(tmp_path / "g.gguf", "gpt2")).transformer.wpe.weight) == 40


def factors(base: float = 10000.0, factor: float = 8.0) -> np.ndarray:
    """The factors that llama.cpp's conversion makes of the rotations of Llama 3.1."""
    out = []
    for i in range(0, gguf_models.HEAD, 2):
        wave = 2 * math.pi * base ** (i / gguf_models.HEAD)
        smooth = (8192 / wave - 1) / 3
        out.append(1 if wave < 2048 else factor if wave > 8192 else 1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def test_rotations_of_llama_3_are_found_again(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "m.gguf", more={"rope_freqs.weight": factors()})
    rope = ours(path).config.rope_parameters
    wanted = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192, "rope_theta": 10000.0}  # fmt: skip
    assert {key: rope[key] for key in wanted} == wanted
    plain = ours(gguf_models.write(path, more={"rope_freqs.weight": np.ones(8, np.float32)}))
    assert plain.config.rope_parameters["rope_type"] == "default"
    gguf_models.write(path, more={"rope_freqs.weight": factors() * np.float32(1.5)})
    with pytest.raises(UnsupportedError, match="its rotations"):
        ours(path)


def test_what_is_no_model_says_so(tmp_path: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = tmp_path / "m.gguf", f"{tmp_path / 'new'}/"
    path.write_bytes(gguf_bytes({"general.architecture": "nonesuch", "nonesuch.block_count": 1},
                                [numbers("w", np.ones((32, 32), np.float32))]))  # fmt: skip
    status, _, error = run("encode", path, "-o", out)
    assert status == 2 and "of architecture 'nonesuch'" in error and "ends with .wcodec" in error
    path.write_bytes(gguf_bytes({"general.architecture": "llama", "llama.block_count": 50_000},
                                [numbers("w", np.ones((32, 32), np.float32))]))  # fmt: skip
    status, _, error = run("encode", path, "-o", out)
    assert status == 2 and "it says 50000 layers, and there are 1 tensors" in error
    # A weight that is missing is named.
    gguf_models.write(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight"))
    status, _, error = run("encode", path, "-o", out)
    assert status == 2 and "model.layers.1.mlp.up_proj.weight" in error and not Path(out).exists()
    path.write_bytes(data)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else object())
    status, _, error = run("encode", path, "-o", out)
    assert status == 2 and "pip install gguf" in error
