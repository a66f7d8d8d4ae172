"""Checkpoints that are quantized already: as FP8 and MXFP4 they become the values that transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

import quantized_checkpoints as small  # noqa: E402
from wcodec._file import encode  # noqa: E402
from wcodec._models.checkpoint import Checkpoint  # noqa: E402
from wcodec._models.original import original_model  # noqa: E402

E8M0 = getattr(torch, "float8_e8m0fnu", None)


def same_bits(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def values_of(folder: Path) -> dict[str, Any]:
    """The values as both of our ways have them, which are the same: read into a model, and encoded from a file."""
    checkpoint = Checkpoint(folder)
    read = {name: checkpoint[name] for name in checkpoint}
    # Nothing but a rule that no tensor is quantized by: weights of int8 would be others.
    data, _ = wcodec.compress_to_bytes(read, scheme="lossless")
    from_file = wcodec.compress_to_bytes(folder)[0]
    again = wcodec.compress_to_bytes(read)[0]
    assert set(wcodec.open(from_file)) == set(wcodec.open(again)) == set(wcodec.open(data)) == set(read)
    for name, entry in wcodec.open(from_file).items():
        other = wcodec.open(again)[name]
        assert [s.hash for s in entry.segments] == [s.hash for s in other.segments], name
    return read


def sourced(tensors: dict[str, Any], folder: Path, record: Any = None, dtype: str = "bfloat16") -> Path:
    """A folder of these tensors alone, with a config that says no more than that."""
    folder.mkdir(exist_ok=True)
    config = {"dtype": dtype, **({} if record is None else {"quantization_config": record})}
    (folder / "config.json").write_text(json.dumps(config))
    safetensors_torch.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", small.MODELS)
def test_values_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    small.MODELS[kind](tmp_path / "source")
    theirs = dict(small.dequantized(tmp_path / "source").named_parameters())
    model, _ = original_model(tmp_path / "source", dtype="auto")
    ours = dict(model.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert same_bits(ours[name].detach(), value.detach()), name
    values_of(tmp_path / "source")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.uint8, E8M0])
def test_all_dtypes_of_scales_and_values(dtype: str, scales: Any, tmp_path: Path) -> None:
    if scales is None:
        pytest.skip("this torch has no float8_e8m0fnu")
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(5)) * 0.1
    codes, stored = small.blocked(weight, 32, scales)
    source = sourced({"a.weight": codes, "a.weight_scale_inv": stored}, tmp_path / "x", small.fp8_record(32), dtype)
    theirs = Fp8Dequantize(None)._dequantize_one(codes, stored, getattr(torch, dtype))
    found = values_of(source)
    assert list(found) == ["a.weight"] and same_bits(found["a.weight"], theirs)


def test_all_codes_and_the_extremes_of_scales(tmp_path: Path) -> None:
    # Every code of FP8 with the smallest, ordinary and largest scales, and no NaN, of which int8 has no symbol.
    codes = torch.arange(256, dtype=torch.uint8).repeat(16, 1).view(torch.float8_e4m3fn)
    finite = torch.where(codes.float().isnan(), 0.0, codes.float()).to(torch.float8_e4m3fn)
    scales = torch.logspace(-40, 30, 16).to(torch.bfloat16).view(16, 1)
    source = sourced({"a.weight": finite, "a.weight_scale": scales}, tmp_path / "x")
    assert same_bits(values_of(source)["a.weight"], (finite.float() * scales.float()).to(torch.bfloat16))
    scales[3] = 1.0
    source = sourced({"a.weight": codes, "a.weight_scale": scales}, tmp_path / "y")
    assert Checkpoint(source)["a.weight"].isnan().equal(codes.float().isnan())
    with pytest.raises(wcodec.InputError, match=r"tensor 'a.weight': NaN at .*127"):
        wcodec.compress_to_bytes(source)


def test_all_codes_and_scales_of_mxfp4(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.arange(256, dtype=torch.uint8).repeat(2 * 256 * 2 * 16 // 256).view(2, 256, 2, 16).clone()
    blocks += torch.arange(2 * 256 * 2, dtype=torch.int64).view(2, 256, 2, 1).to(torch.uint8)
    scales = torch.arange(2 * 256 * 2, dtype=torch.int64).view(2, 256, 2).remainder(255).to(torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales)
    given = {"e.down_proj_blocks": blocks, "e.down_proj_scales": scales}
    found = Checkpoint(sourced(given, tmp_path / "x", {"quant_method": "mxfp4"}))
    assert list(found) == ["e.down_proj"] and found.shape("e.down_proj") == (2, 64, 256)
    assert torch.equal(found["e.down_proj"], theirs)
    for expert in (0, 1):
        assert torch.equal(found.of_stack("e.down_proj", expert), theirs[expert])
    # Those that are infinite are none for int8, so smaller ones for what is encoded.
    given["e.down_proj_scales"] = scales.clamp(max=240)
    values_of(sourced(given, tmp_path / "y", {"quant_method": "mxfp4"}))


@pytest.mark.parametrize(
    ("shape", "scales", "block"),
    [
        ((200, 300), (2, 3), 128), ((130, 64), (2, 1), 128), ((7, 5), (1, 1), 128), ((100, 33), (4, 2), 32),
        ((96, 64), (), None), ((96, 64), (1,), None), ((96, 64), (96, 1), None), ((96, 64), (96,), None),
        ((3, 96, 64), (3, 3, 2), 32), ((3, 96, 64), (3, 96, 1), None), ((3, 96, 64), (3,), None),
        ((3, 96, 64), (3, 1, 64), None), ((3, 100, 33), (3, 4, 2), 32), ((3, 96, 64), (), None),
    ],
)  # fmt: skip
def test_forms_of_scales(shape: Any, scales: Any, block: Any, tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(6)
    codes = torch.randn(shape, generator=rng).to(torch.float8_e4m3fn)
    numbers = torch.rand(scales, generator=rng) + 0.5
    spread = numbers
    if len(scales) == 1 and len(shape) == 2:
        spread = numbers[:, None]
    elif len(scales) == 1 and len(shape) == 3:
        spread = numbers[:, None, None]
    elif block:
        spread = numbers.repeat_interleave(block, -2).repeat_interleave(block, -1)[..., : shape[-2], : shape[-1]]
    record = None if block is None else small.fp8_record(block)
    source = sourced({"a.proj": codes, "a.proj_scale": numbers}, tmp_path / "x", record)
    found = values_of(source)["a.proj"]
    assert same_bits(found, (codes.float() * spread).to(torch.bfloat16))
    if len(shape) == 3:
        checkpoint = Checkpoint(source)
        assert all(same_bits(checkpoint.of_stack("a.proj", i), found[i]) for i in range(shape[0]))


@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale", "scale_weight", "qscale_weight", "scale"])
def test_names_of_scales_and_what_is_about_activations(name: str, tmp_path: Path) -> None:
    codes, scale = small.by_tensor(torch.randn(64, 64))
    others = {"a.input_scale": torch.ones(()), "a.k_scale": torch.ones(1), "b.weight": torch.ones(64, 64)}
    source = sourced({"a.weight": codes, f"a.{name}": scale, **others}, tmp_path / "x")
    found = values_of(source)
    assert set(found) == {"a.weight", "b.weight"}
    assert same_bits(found["a.weight"], (codes.float() * scale).to(torch.bfloat16))


def test_scales_in_another_shard(tmp_path: Path) -> None:
    tensors = small.fp8_llama(tmp_path)
    whole = Checkpoint(tmp_path)
    values = {name: whole[name] for name in whole}
    shards = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    first, second = shards.values()
    for name, tensor in tensors.items():
        (second if name.endswith("scale_inv") else first)[name] = tensor
    for file, part in shards.items():
        safetensors_torch.save_file(part, tmp_path / file, {"format": "pt"})
    (tmp_path / "model.safetensors").unlink()
    places = {name: file for file, part in shards.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    found = values_of(tmp_path)
    assert found.keys() == values.keys() and all(same_bits(found[n], v) for n, v in values.items())


def test_missing_and_wrong_scales_are_named(tmp_path: Path) -> None:
    tensors = small.fp8_llama(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    for change, says in (
        (lambda t: t.pop(name + "_scale_inv"), "its scales '.*up_proj.weight_scale_inv' are not there"),
        (lambda t: t.update({name + "_scale_inv": torch.ones(2, 2)}), r"\[2, 2\], which does not fit \[96, 64\]"),
        (lambda t: t.update({name + "_scale_inv": torch.ones(3, 2, dtype=torch.int32)}), "I32"),
        (lambda t: t.update({name + "_zero_point": torch.ones(3, 2)}), "zero points"),
    ):
        changed = dict(tensors)
        change(changed)
        small.write(tmp_path, changed, None)
        ways: list[Any] = [
            lambda: wcodec.compress(tmp_path, tmp_path / "x.wcodec", progress=False),
            lambda: wcodec.compress(tmp_path, f"{tmp_path / 'out'}/", progress=False),
            lambda: wcodec.load_model(tmp_path),
        ]
        for way in ways:
            with pytest.raises(wcodec.FormatError, match=says) as caught:
                way()
            assert caught.value.tensor == name and "up_proj" in str(caught.value)
        # Bit for bit they are kept, whatever they are.
        data, _ = wcodec.compress_to_bytes(tmp_path, scheme="lossless")
        kept = wcodec.open(data)
        assert set(kept) == set(changed) and all(same_bits(kept[n].torch(), t) for n, t in changed.items())


def test_tensors_in_memory_are_the_same_source(tmp_path: Path) -> None:
    tensors = small.fp8_llama(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    made = encode.compress_in_memory({**tensors, "tied": tensors["lm_head.weight"]})
    again = encode.compress_in_memory(
        {**{name: checkpoint[name] for name in checkpoint}, "tied": checkpoint["lm_head.weight"]}
    )
    assert set(made) == set(again)
    assert all(same_bits(made[name].torch(), again[name].torch()) for name in made)
    # And what is kept in a container becomes values when it is encoded again.
    kept = wcodec.open(wcodec.compress_to_bytes(tmp_path, scheme="lossless")[0])
    again = encode.compress_in_memory(kept)
    assert not any(name.endswith("scale_inv") for name in again)
    assert all(same_bits(made[name].torch(), again[name].torch()) for name in again)


def test_verify_knows_codes_and_values(tmp_path: Path) -> None:
    small.mxfp4_gpt_oss(tmp_path)
    for scheme in ("int8", "lossless", "raw"):
        file = tmp_path / f"{scheme}.wcodec"
        wcodec.compress(tmp_path, file, scheme=scheme, progress=False)
        assert wcodec.verify(file, tmp_path, progress=False).ok
    other = tmp_path / "other"
    other.mkdir()
    tensors = safetensors_torch.load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.experts.down_proj_scales"] += 1
    safetensors_torch.save_file(tensors, other / "model.safetensors")
    (other / "config.json").write_text((tmp_path / "config.json").read_text())
    report = wcodec.verify(tmp_path / "int8.wcodec", other, progress=False)
    assert [t.name for t in report.tensors if t.status != "ok"] == ["model.layers.0.mlp.experts.down_proj"]


def test_plain_fp8_is_what_it_was(tmp_path: Path) -> None:
    # Files of FP8 without scales: their numbers are the weights.
    weights = {"a.weight": torch.randn(64, 64).to(torch.float8_e4m3fn), "b.weight": torch.randn(64, 64)}
    kept = encode.compress_in_memory(weights)
    assert kept["a.weight"].dtype == "F8_E4M3" and kept["b.weight"].scheme == "int8"


@pytest.mark.parametrize("kind", small.MODELS)
def test_the_format_says_how_codes_become_values(kind: str, tmp_path: Path) -> None:
    import format_quantized
    from format_reader import FormatReader

    small.MODELS[kind](tmp_path / "source")
    wcodec.compress(tmp_path / "source", tmp_path / "x.wcodec", scheme="lossless", progress=False)
    found = format_quantized.values(FormatReader(tmp_path / "x.wcodec"))
    checkpoint = Checkpoint(tmp_path / "source")
    assert found.keys() == checkpoint.quantized.tensors.keys() and found
    for name, value in found.items():
        assert torch.equal(torch.from_numpy(value.view("int16").copy()).view(torch.bfloat16), checkpoint[name]), name
