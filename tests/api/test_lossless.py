"""Scheme ``lossless`` through the package: every bit of every float, in checkpoints, layers and models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import wcodec
from safetensors.torch import load_file

MODEL = Path(__file__).parents[1] / "data" / "doc-llama-3m"
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2)
INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def weights(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Weights as trained ones are, with every kind of float among them."""
    generator = torch.Generator().manual_seed(seed)
    w = (torch.randn(shape, generator=generator) * 0.03).to(dtype)
    bits = w.view(INTS[dtype.itemsize]).reshape(-1)
    strange = torch.randint(-(2**31), 2**31 - 1, (bits.numel() // 50 + 4,), generator=generator)
    bits[: len(strange)] = strange.to(bits.dtype)
    return w


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(INTS[tensor.dtype.itemsize])


@pytest.mark.parametrize("coder", ("rans", "huffman", "zstd", "raw"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_comes_back(dtype: torch.dtype, coder: str) -> None:
    source = {"w": weights(dtype, (150, 192)), "conv": weights(dtype, (32, 16, 3, 3)), "norm": weights(dtype, (192,))}
    data, report = wcodec.compress_to_bytes(source, scheme="lossless", coder=coder)
    container = wcodec.open(data)
    for name, tensor in source.items():
        assert torch.equal(bits(container[name].torch()), bits(tensor)), name
        assert container[name].torch().dtype == tensor.dtype
    assert torch.equal(bits(container["w"].torch_rows(17, 40)), bits(source["w"][17:40]))
    if coder in ("rans", "huffman"):
        assert {t.name: t.scheme for t in report.tensors} == {"w": "lossless", "conv": "lossless", "norm": "raw"}


def test_transposed_weights_come_back() -> None:
    w = weights(torch.bfloat16, (192, 320))
    data, _ = wcodec.compress_to_bytes({"w": w}, scheme="lossless", transpose=["w"])
    entry = wcodec.open(data)["w"]
    assert entry.row_axis == 1 and entry.scheme == "lossless"
    assert torch.equal(bits(entry.torch()), bits(w))


def test_what_planes_hold_is_said() -> None:
    data, _ = wcodec.compress_to_bytes({"w": weights(torch.bfloat16, (64, 192))}, scheme="lossless")
    (plane,) = wcodec.open(data)["w"].planes
    assert (plane.layout, plane.shift, plane.bits) == ("split", 8, ((7, 8), (15, 1), (0, 7)))
    assert wcodec.open(data)["w"].to_dict()["planes"][0]["bits"] == [[7, 8], [15, 1], [0, 7]]


def test_symbols_and_other_dtypes() -> None:
    w = weights(torch.bfloat16, (64, 192))
    entry = wcodec.open(wcodec.compress_to_bytes({"w": w}, scheme="lossless")[0])["w"]
    with pytest.raises(wcodec.InputError, match="has no symbols"):
        entry.symbols()
    finite = torch.isfinite(w.float())
    assert torch.equal(entry.torch(dtype="float32")[finite], w.float()[finite])


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lossless") / "model.wcodec"
    wcodec.compress(MODEL, path, scheme="lossless", optimize="size")
    return path


def test_sizes_of_the_model(compressed: Path) -> None:
    tensors = [t for t in wcodec.open(compressed).values() if t.scheme == "lossless"]
    elements = sum(t.elements for t in tensors)
    assert len(tensors) == 30
    assert 8 * sum(t.stored_bytes for t in tensors) / elements < 10.67
    assert 10.564 < sum((t.entropy or 0) * t.elements for t in tensors) / elements < 10.565


def test_models_compute_what_the_original_does(compressed: Path) -> None:
    transformers = pytest.importorskip("transformers")
    original = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    tokens = torch.arange(1, 60)[None]
    want = original(tokens).logits
    text = original.generate(tokens, max_new_tokens=16, do_sample=False)
    loaded = wcodec.load_model(compressed, device="cpu", dtype="bfloat16")
    replaced = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    report = wcodec.compress_(replaced, scheme="lossless")
    assert "CompressedLinear" in str(report)
    for model in (loaded, replaced):
        assert torch.equal(model(tokens).logits, want)
        assert torch.equal(model.generate(tokens, max_new_tokens=16, do_sample=False), text)
    assert "scheme=lossless" in repr(loaded)


def test_saved_models_are_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    tokens = torch.arange(1, 60)[None]
    want = model(tokens).logits
    wcodec.compress_(model, scheme="lossless")
    wcodec.save_pretrained(model, tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(tokens).logits, want)


def test_the_commands(compressed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wcodec.cli import main

    assert main(["verify", str(compressed), "--against", str(MODEL), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["roundtrip", str(MODEL), "--scheme", "lossless", "--quiet", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {c["coder"] for c in report["combinations"]} == {"rans", "huffman", "zstd", "raw"}
    assert all(c["ok"] and c["scale"] is None for c in report["combinations"])
    out = tmp_path / "back.safetensors"
    assert main(["decode", str(compressed), "-o", str(out), "--quiet"]) == 0
    back, source = load_file(out), load_file(MODEL / "model.safetensors")
    assert set(back) == set(source)
    assert all(torch.equal(bits(back[name]), bits(source[name])) for name in source)


def test_a_changed_bit_is_found(compressed: Path, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    entry = wcodec.open(compressed)[name]
    for segment in entry.segments:
        damaged = bytearray(compressed.read_bytes())
        damaged[segment.offset + segment.length // 2] ^= 4
        path = tmp_path / "damaged.wcodec"
        path.write_bytes(damaged)
        with pytest.raises(wcodec.CorruptError, match=name):
            wcodec.open(path)[name].torch()
