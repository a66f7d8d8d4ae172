"""Checkpoints that are quantized in ways that are not dequantized: every command says which, and what helps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import wcodec
from command import call

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

import quantized_checkpoints as small  # noqa: E402

F8 = torch.float8_e4m3fn


def ints(*shape: int, dtype: Any = torch.int32) -> Any:
    return torch.randint(0, 100, shape, dtype=dtype)


def halves(*shape: int) -> Any:
    return torch.rand(shape).half() + 0.1


# By what is quantized so: what its config says, the tensors of a module, and what is said of it.
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4},
        {"qweight": ints(8, 96), "qzeros": ints(2, 12), "scales": halves(2, 96), "g_idx": ints(64)},
        r"GPTQ \(4 bits\)",
        "GPTQ",
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4},
        {"qweight": ints(64, 12), "qzeros": ints(2, 12), "scales": halves(2, 96)},
        r"AWQ \(4 bits\)",
        "GPTQ or AWQ",
    ),
    "nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        {
            "weight": ints(3072, 1, dtype=torch.uint8),
            "weight.absmax": torch.rand(96),
            "weight.quant_map": torch.rand(16),
            "weight.quant_state.bitsandbytes__nf4": ints(80, dtype=torch.uint8),
        },
        r"bitsandbytes \(nf4\)",
        r"bitsandbytes \(4 bits\)",
    ),
    "int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"weight": ints(96, 64, dtype=torch.int8), "SCB": torch.rand(96)},
        r"bitsandbytes \(int8\)",
        r"bitsandbytes \(int8\)",
    ),
    "exl3": (
        {"quant_method": "exl3", "bits": 3.0},
        {"trellis": ints(4, 6, 48, dtype=torch.int16), "suh": halves(64), "svh": halves(96)},
        r"EXL3 \(3 bits\)",
        "EXL3",
    ),
    "hqq": (
        {"quant_method": "hqq"},
        {"W_q": ints(96, 32, dtype=torch.uint8), "scale": halves(96, 1), "zero": halves(96, 1)},
        "HQQ",
        "HQQ",
    ),
    "aqlm": (
        {"quant_method": "aqlm", "nbits_per_codebook": 16},
        {"codes": ints(96, 8, 1, dtype=torch.int16), "codebooks": halves(1, 64, 1, 8), "scales": halves(96, 1, 1, 1)},
        r"AQLM \(16 bits\)",
        "AQLM",
    ),
    "torchao": (
        {"quant_method": "torchao", "quant_type": {}},
        {"_weight_qdata": ints(96, 64, dtype=torch.int8), "_weight_scale": halves(96, 1)},
        "torchao",
        "torchao",
    ),
    "quanto": (
        {"quant_method": "quanto", "weights": "int8"},
        {"weight._data": ints(96, 64, dtype=torch.int8), "weight._scale": halves(96, 1)},
        "quanto",
        "quanto",
    ),
    "packed": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}},
        },
        {"weight_packed": ints(96, 8), "weight_scale": halves(96, 2), "weight_shape": torch.tensor([96, 64])},
        r"compressed-tensors \(pack-quantized\)",
        r"compressed-tensors \(pack-quantized\)",
    ),
    "int-quantized": (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
        },
        {"weight": ints(96, 64, dtype=torch.int8), "weight_scale": halves(96, 1)},
        r"compressed-tensors \(int-quantized\)",
        r"integers \(I8\)",
    ),
    "nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {
            "weight": ints(96, 32, dtype=torch.uint8),
            "weight_scale": torch.rand(96, 4).to(F8),
            "weight_scale_2": torch.rand(()),
        },
        r"ModelOpt \(NVFP4\)",
        "NVFP4",
    ),
    "gguf": ({"quant_method": "gguf"}, {"weight": ints(96, 34, dtype=torch.uint8)}, "GGUF", ""),
    "unheard-of": (
        {"quant_method": "unheard-of"},
        {"weight": ints(96, 8), "weight_scale": halves(96)},
        "'unheard-of'",
        r"integers \(I32\)",
    ),
}  # fmt: skip
SAID = "the weights are quantized already, with "


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A model's folder, and its tensors."""
    folder = tmp_path_factory.mktemp("llama")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small.SIZES)).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder, safetensors_torch.load_file(folder / "model.safetensors")


def made(
    kind: str, llama: tuple[Path, dict[str, Any]], folder: Path, config: bool = True
) -> tuple[Path, dict[str, Any]]:
    """A folder whose projections are quantized so."""
    record, parts, _, _ = METHODS[kind]
    folder.mkdir()
    tensors = {}
    for name, tensor in llama[1].items():
        if name.endswith("proj.weight"):
            tensors.update({name.removesuffix("weight") + part: value.clone() for part, value in parts.items()})
        else:
            tensors[name] = tensor
    (folder / "config.json").write_text((llama[0] / "config.json").read_text())
    small.write(folder, tensors, record if config else None)
    return folder, tensors


@pytest.mark.parametrize("kind", METHODS)
def test_files_are_refused_or_kept_bit_for_bit(kind: str, llama: Any, tmp_path: Path) -> None:
    _, _, by_config, by_tensors = METHODS[kind]
    folder, tensors = made(kind, llama, tmp_path / "a")
    sources: list[tuple[Any, str]] = [(folder, by_config), (folder / "model.safetensors", by_config)]
    if by_tensors:
        alone, _ = made(kind, llama, tmp_path / "b", config=False)
        (alone / "config.json").unlink()
        sources += [(alone, by_tensors), (alone / "model.safetensors", by_tensors), (tensors, by_tensors)]
    for source, says in sources:
        for options in ({}, {"bits": 4}, {"scheme": "lossless", "rules": {"lm_head.weight": "int8"}}):
            with pytest.raises(wcodec.UnsupportedError, match=SAID + says) as caught:
                wcodec.compress(source, tmp_path / "x.wcodec", progress=False, **options)
            assert "use the original checkpoint" in str(caught.value) and "lossless or raw" in str(caught.value)
            assert not (tmp_path / "x.wcodec").exists()
        for scheme in ("lossless", "raw"):
            with wcodec.open(wcodec.compress_to_bytes(source, scheme=scheme)[0]) as kept:
                assert set(kept) == set(tensors)
                for name, tensor in tensors.items():
                    found = kept[name].torch()
                    assert found.dtype == tensor.dtype and found.shape == tensor.shape
                    assert torch.equal(found.view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)), name


@pytest.mark.parametrize("kind", ["gptq", "nf4", "packed", "nvfp4", "unheard-of"])
def test_every_way_to_a_model_is_refused(kind: str, llama: Any, tmp_path: Path) -> None:
    folder, _ = made(kind, llama, tmp_path / "a")
    says = SAID + METHODS[kind][2]
    ways: dict[str, Any] = {
        "load_model": lambda: wcodec.load_model(folder),
        "load_model lossless": lambda: wcodec.load_model(folder, scheme="lossless"),
        "encode": lambda: wcodec.compress(folder, f"{tmp_path / 'out'}/", progress=False),
        "encode lossless": lambda: wcodec.compress(folder, f"{tmp_path / 'out'}/", scheme="lossless", progress=False),
        "plan": lambda: wcodec.plan(folder, budget="4 bits", progress=False),
        "calibrated": lambda: wcodec.compress(
            folder, tmp_path / "x.wcodec", bits=4, calibrate=[[1, 2, 3]], progress=False
        ),
        "frontier": lambda: wcodec.frontier(folder, text=torch.arange(80), progress=False),
        "WCodecConfig": lambda: transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=wcodec.WCodecConfig()
        ),
    }
    for way, work in ways.items():
        with pytest.raises(wcodec.UnsupportedError, match=says) as caught:
            work()
        assert re.search(r"\(use the original checkpoint, or dequantize this one with [^)]+\)?", str(caught.value)), way
        assert str(folder) in str(caught.value), way
    assert not (tmp_path / "out").exists()


def test_commands_are_refused(llama: Any, tmp_path: Path, capsys: Any) -> None:
    folder, _ = made("gptq", llama, tmp_path / "a")
    for arguments in (
        ("encode", folder, "-o", tmp_path / "x.wcodec"),
        ("encode", folder, "-o", f"{tmp_path / 'out'}/"),
        ("roundtrip", folder),
        ("calibrate", folder, "-o", tmp_path / "s.safetensors", "--text", __file__),
        ("eval", folder, "--text", __file__),
    ):
        status, _, err = call(capsys, *arguments)
        assert status and f"{SAID}GPTQ" in " ".join(err.split()), (arguments, err)


def test_a_config_that_is_not_true_any_more(llama: Any, tmp_path: Path) -> None:
    # FP8 weights were dequantized and saved without the config being changed: the weights are what they are.
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text((llama[0] / "config.json").read_text())
    small.write(folder, llama[1], small.fp8_record(128))
    model = wcodec.load_model(folder, scheme="lossless")
    plain = transformers.AutoModelForCausalLM.from_pretrained(llama[0])
    assert torch.equal(model(small.IDS).logits, plain(small.IDS).logits)
    wcodec.compress(folder, f"{tmp_path / 'out'}/", progress=False)
    small.write(folder, llama[1], {"quant_method": "gptq", "bits": 4})
    with pytest.raises(wcodec.UnsupportedError, match="remove quantization_config from config.json"):
        wcodec.load_model(folder)


def test_configs_of_the_source_stay_behind(tmp_path: Path) -> None:
    small.fp8_llama(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["compression_config"] = config.pop("quantization_config")
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    wcodec.compress(tmp_path / "a", f"{tmp_path / 'out'}/", progress=False)
    wcodec.load_model(tmp_path / "out").save_pretrained(tmp_path / "again")
    wcodec.save_pretrained(wcodec.load_model(tmp_path / "a"), tmp_path / "other")
    for folder in ("out", "again", "other"):
        found = json.loads((tmp_path / folder / "config.json").read_text())
        assert found["quantization_config"]["quant_method"] == "wcodec" and "compression_config" not in found


def test_codes_and_scales_are_skipped_together(tmp_path: Path) -> None:
    tensors = small.fp8_llama(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    for scheme in ("int8", "lossless"):
        kept = wcodec.open(wcodec.compress_to_bytes(tmp_path, scheme=scheme, skip=name)[0])
        assert not [found for found in kept if found.startswith(name)]
        assert "model.layers.1.mlp.up_proj.weight" in kept
    with pytest.raises(wcodec.InputError, match="it belongs to '.*up_proj.weight', which is not skipped"):
        wcodec.compress_to_bytes(tmp_path, scheme="lossless", skip=name + "_scale_inv")
    # By rules, some stay codes: with their scales, whatever else is done.
    rules = {"*.up_proj.weight": "lossless"}
    kept = wcodec.open(wcodec.compress_to_bytes(tmp_path, rules=rules)[0])
    assert torch.equal(kept[name].torch().view(torch.uint8), tensors[name].view(torch.uint8))
    assert torch.equal(kept[name + "_scale_inv"].torch(), tensors[name + "_scale_inv"])
    assert kept["model.layers.0.mlp.down_proj.weight"].scheme == "int8"
    assert "model.layers.0.mlp.down_proj.weight_scale_inv" not in kept
