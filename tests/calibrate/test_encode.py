"""Encoding by statistics, from every kind of source: the bits that are asked for, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wcodec
from command import Cli, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from small_models import checkpoint_of, collect, gpt2, llama  # noqa: E402
from wcodec._calibrate import factor, kept  # noqa: E402
from wcodec._calibrate.kept import FeedbackCache  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model."""
    return checkpoint_of(llama(), tmp_path_factory)


@pytest.fixture(scope="module")
def trained(model: Path) -> tuple[dict[str, Any], wcodec.Statistics]:
    """Some matrices of the model of the repository, and statistics of it."""
    original = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    statistics = wcodec.collect_statistics(original, data=model / "heldout.txt", windows=2, length=128)
    names = [f"model.layers.{i}.mlp.{part}_proj.weight" for i in (0, 3) for part in ("gate", "down")]
    return {name: original.get_parameter(name).detach() for name in sorted(names)}, statistics


# Bits and sources


@pytest.mark.parametrize("trellis", [False, True])
@pytest.mark.parametrize("feedback", [False, True])
def test_bits_are_met(trained: Any, trellis: bool, feedback: bool) -> None:
    weights, statistics = trained
    options = {"bits": 3.5, "trellis": trellis, "calibrate": statistics, "feedback": feedback}
    data, report = wcodec.compress_to_bytes(weights, **options)
    # Counted by a sample of rows, and there are few.
    assert report.rate is not None and report.rate.bits_per_weight == pytest.approx(3.5, rel=0.004)
    assert report.rate.tensors == len(weights) and data == wcodec.compress_to_bytes(weights, **options)[0]


def test_any_source_is_calibrated(trained: Any, tmp_path: Path) -> None:
    weights, statistics = trained
    options = {"bits": 4, "trellis": False, "calibrate": statistics}
    expected, _ = wcodec.compress_to_bytes(weights, **options)
    arrays = {name: tensor.numpy().copy() for name, tensor in weights.items()}
    for array in arrays.values():
        array.flags.writeable = False
    whole = wcodec.open(wcodec.compress_to_bytes(weights, scheme="lossless")[0])
    for source in (arrays, whole):
        assert wcodec.compress_to_bytes(source, **options)[0] == expected
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        wcodec.compress(path, tmp_path / "x.wcodec", overwrite=True, progress=False, **options)
        with wcodec.open(tmp_path / "x.wcodec") as found, wcodec.open(expected) as other:
            assert wcodec.compare(found, other).same


def test_what_is_not_quantized_counts_nothing(trained: Any) -> None:
    weights, statistics = trained
    others = {"ids": torch.arange(6).view(2, 3), "none": torch.zeros(0, 5), "norm": torch.ones(7)}
    options = {"bits": 4, "trellis": False, "calibrate": statistics}
    expected, found = (wcodec.compress_to_bytes(s, **options)[1] for s in (weights, {**others, **weights}))
    assert found.rate == expected.rate and len(found.tensors) == len(expected.tensors) + 3


def test_a_tied_tensor_counts_once(trained: Any) -> None:
    weights, statistics = trained
    first = "model.layers.0.mlp.gate_proj.weight"
    # Tensors that take other bits than those around them show what counts twice.
    options = {"bits": 4, "trellis": False, "calibrate": statistics}
    for feedback in (False, True):
        expected, found = (
            wcodec.compress_to_bytes(source, feedback=feedback, steps=dict.fromkeys(same, 0.2), **options)[1]
            for source, same in ((weights, [first]), ({**weights, "tied": weights[first]}, [first, "tied"]))
        )
        assert found.aliases == {"tied": first} and found.rate == expected.rate


def test_nothing_is_kept_when_all_is_encoded(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, statistics = trained
    forgotten: list[bool] = []

    def clear(cache: FeedbackCache) -> None:
        forgotten.append(bool(cache._kept))
        cleared(cache)

    cleared = FeedbackCache.clear
    monkeypatch.setattr(FeedbackCache, "clear", clear)
    options = {"bits": 4, "trellis": False, "calibrate": statistics}
    wcodec.compress_to_bytes(weights, **options)
    assert forgotten == [True] and not statistics._feedback._kept
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in weights.items()}
    with pytest.raises(wcodec.InputError, match="not finite"):
        wcodec.compress_to_bytes(broken, **options)
    assert forgotten == [True, True] and not statistics._feedback._kept


def test_feedback_is_kept_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def feedback() -> Any:
        made.append(torch.ones(8))
        block = factor.Block(0, 8, torch.eye(8), torch.eye(8))
        return factor.Feedback((block,), None, torch.ones(8))

    cpu, made = torch.device("cpu"), []
    size = 2 * 4 * 8 * 8
    monkeypatch.setattr(kept, "_free_bytes", lambda device: 8 * 2 * size)
    cache = FeedbackCache()
    for _ in range(3):
        for key in "aabbccdd":
            cache.get(key, cpu, feedback)
    # The first two stay, and the others are made once a pass each.
    assert len(made) == 2 + 3 * 2
    cache.clear()
    cache.get("a", cpu, feedback)
    assert len(made) == 9


def test_memory_that_torch_caches_has_room_for_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("mem_get_info", (100, 1000)), ("memory_reserved", 700), ("memory_allocated", 300)):
        monkeypatch.setattr(torch.cuda, name, lambda device, size=size: size)
    assert kept._free_bytes(torch.device("cuda", 0)) == 500


def test_what_is_refused(trained: Any) -> None:
    weights, statistics = trained
    steps_only = collect(llama(), full=False)
    cases: dict[str, dict[str, Any]] = {
        "goes with scheme='rate'": {"scheme": "int8"},
        "rules have bits of their own": {"rules": {"*": {"bits": 3}}},
        "are for steps only": {"calibrate": steps_only},
        "shares bits among tensors": {"bits_per_tensor": True},
        "of none of the tensors": {"calibrate": collect(gpt2())},
        "a mapping of tensors is none": {"calibrate": "self"},
        "no tensor to quantize": {"exclude": "*"},
        "to device 'tpu'": {"device": "tpu"},
    }
    for message, options in cases.items():
        with pytest.raises(wcodec.InputError, match=message):
            wcodec.compress_to_bytes(weights, **{"calibrate": statistics, "trellis": None, **options})


# Models that statistics are collected from


def test_a_config_that_fetches_code_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", lambda *a, **k: asked.append(a))
    monkeypatch.setattr("huggingface_hub.HfApi.repo_exists", lambda *a, **k: asked.append(a))
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "evil/kernel"}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for source in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(wcodec.InputError, match="asks for code from elsewhere"):
            wcodec.compress(source, tmp_path / "x.wcodec", bits=6, calibrate="self", progress=False)
    assert not asked and not (tmp_path / "x.wcodec").exists()


def test_command(folder: Path, tmp_path: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "s.safetensors"
    options = ("--windows", 2, "--length", 16, "--json")
    status, text, _ = run("calibrate", folder, "-o", out, *options)
    found = document(text, "calibrate")
    assert status == 0 and found["tokens"] == 32 and found["tensors"] == 16 and found["full"]
    assert wcodec.Statistics.load(out).tokens == 32
    # A misspelt path is not looked for where the command runs.
    monkeypatch.chdir(folder)
    for arguments, message in (
        (("nowhere", "-o", tmp_path / "n.safetensors"), "nowhere: there is no such folder or file"),
        ((folder, "-o", out), "exists"),
        ((folder, "-o", tmp_path / "n.safetensors", "--device", "tpu"), "'tpu'"),
    ):
        status, _, err = run("calibrate", *arguments, *options)
        assert status == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "n.safetensors").exists()
