"""Columns are calibrated where nothing is said and a model runs: in commands and functions alike."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wcodec
from command import Cli

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from small_models import checkpoint_of, gpt2  # noqa: E402
from small_models import wider_llama as llama  # noqa: E402
from wcodec._calibrate import by_default  # noqa: E402
from wcodec._calibrate import collect as _collect  # noqa: E402

ALONE = {"bits": 3, "calibrate": False, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model."""
    return checkpoint_of(llama(), tmp_path_factory)


def kind_of(file: Path | str) -> str | None:
    with wcodec.open(file) as container:
        found = container.metadata.get("wcodec.calibration")
    return None if found is None else json.loads(found)["kind"]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[int, str]]]:
    """Levels and lines that were logged since it was asked last."""
    caplog.set_level(logging.INFO, by_default.LOGGER)

    def since() -> list[tuple[int, str]]:
        found = [(r.levelno, r.getMessage()) for r in caplog.records if r.name == by_default.LOGGER]
        caplog.clear()
        return found

    return since


# In a terminal


def test_encode_calibrates_by_columns_where_nothing_is_said(
    run: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.wcodec"

    def said(*arguments: object, source: Path = folder) -> str:
        status, _, err = run("encode", source, "-o", out, "--overwrite", *arguments)
        assert status == 0, err
        return err

    by_itself = said("--bits", 3)
    assert "by columns" in by_itself and "--no-calibrate" in by_itself and kind_of(out) == "columns"
    # It is what --calibrate columns does.
    first = out.read_bytes()
    said("--bits", 3, "--calibrate", "columns")
    assert out.read_bytes() == first
    assert "by columns" in said("--scheme", "rate", "--device", "cpu") and kind_of(out) == "columns"
    for quiet in ("-q", "--json"):
        assert said("--bits", 3, quiet) == "" and out.read_bytes() == first
    for others in (("--bits", 5.5), (), ("--bits", 3, "--no-calibrate"), ("--scheme", "lossless")):
        assert "calibrat" not in said(*others), others
        assert kind_of(out) is None
    for others, why in (
        (("--bits", 3, "--rule", "*=5"), "rules have bits of their own"),
        (("--bits", 3, "--rule", "*=trellis"), "rules have bits of their own"),
        (("--bits", 3, "--bits-per-tensor"), "each tensor is to have the same bits"),
        (("--budget", "4 bits"), "plans are only where it is asked for"),
    ):
        err = said(*others)
        assert f"not calibrated: {why}" in err and err.count("\n") == 1, err
        assert kind_of(out) is None
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((folder / "model.safetensors").read_bytes())
    assert said("--bits", 3, source=alone) == ""
    assert "the folder of a whole model" in said("--bits", 3, source=folder / "model.safetensors")
    assert kind_of(out) is None
    # A model that does not run here is encoded all the same, and the reason is told, unless that is to be quiet.
    monkeypatch.setattr("wcodec.nn._weights.budget.host_memory", lambda: (1000, 1000))
    err = said("--bits", 3)
    assert "not calibrated: the model has" in err and "memory" in err and kind_of(out) is None
    assert said("--bits", 3, "-q") == "" and kind_of(out) is None
    monkeypatch.undo()
    config = json.loads((folder / "config.json").read_text())
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (strange / "config.json").write_text(json.dumps({**config, "model_type": "no-such-model"}))
    assert "not calibrated: " in said("--bits", 3, source=strange) and kind_of(out) is None
    logger = logging.getLogger(by_default.LOGGER)
    assert not logger.handlers and logger.level == logging.NOTSET and logger.propagate


# Checkpoints in Python


def test_a_folder_is_calibrated_as_the_command_does_it(
    run: Cli, folder: Path, tmp_path: Path, told: Callable[[], list[tuple[int, str]]]
) -> None:
    assert run("encode", folder, "-o", tmp_path / "cli.wcodec", "--bits", 3)[0] == 0
    expected = (tmp_path / "cli.wcodec").read_bytes()
    told()
    wcodec.encode(folder, tmp_path / "x.wcodec", bits=3, progress=False)
    (level, line), (_, read) = told()
    assert level == logging.INFO and line.startswith(f"calibrating {folder} by columns: this takes seconds (")
    assert "that it writes, as no tokenizer of it was found" in read
    assert (tmp_path / "x.wcodec").read_bytes() == expected == wcodec.compress_to_bytes(folder, bits=3)[0]
    wcodec.compress(folder, tmp_path / "y.wcodec", bits=3, calibrate="columns", progress=False)
    assert (tmp_path / "y.wcodec").read_bytes() == expected
    for name, options in (("one", {}), ("two", {"calibrate": "columns"}), ("three", {"calibrate": False})):
        wcodec.compress(folder, f"{tmp_path}/{name}/", bits=3, progress=False, **options)
    one, two, three = ((tmp_path / name / "model.wcodec").read_bytes() for name in ("one", "two", "three"))
    assert one == two != three and kind_of(tmp_path / "one") == "columns" and kind_of(tmp_path / "three") is None
    cards = [(tmp_path / name / "README.md").read_text() for name in ("one", "three")]
    assert "| calibrated |" in cards[0] and "| calibrated |" not in cards[1]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"scheme": "int8"}, {"bits": 5.1}, {"bits": 3, "calibrate": False},
        {"bits": 3, "rules": {"*norm*": "rate"}}, {"bits": 3, "rules": {"*q_proj*": {"bits": 5}}},
        {"bits": 3, "bits_per_tensor": True},
        {"scheme": "rate", "step": 0.5}, {"bits": 3, "steps": {"lm_head.weight": 2.0}}, {"budget": "4 bits"},
    ],
)  # fmt: skip
def test_no_model_runs_where_it_would_be_of_no_use(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(_collect, "collect_statistics", lambda *_, **__: pytest.fail("the model ran"))
    wcodec.compress(folder, tmp_path / "x.wcodec", progress=False, **options)
    assert kind_of(tmp_path / "x.wcodec") is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tile": 100}, "tile width 100"), ({"table_bits": 20}, "not 20"),
        ({"coder": "rans", "table_bits": 8}, "not 8"),
        ({"rules": {"*norm*": {"coder": "zstd"}}, "level": 99}, "level 99"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", [{"bits": 3}, {"bits": 3, "calibrate": True}, {"budget": "4 bits"}, {}])
def test_numbers_that_no_tensor_can_have_are_refused_before_a_model_runs(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    options: dict[str, Any],
    why: str,
) -> None:
    monkeypatch.setattr(_collect, "collect_statistics", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(wcodec.InputError, match=why) as error:
        wcodec.compress(folder, tmp_path / "x.wcodec", progress=False, **how, **options)
    assert error.value.code == "I313" and not list(tmp_path.iterdir())


def test_rules_without_bits_go_with_it(folder: Path, tmp_path: Path) -> None:
    rules = {"*q_proj*": "lossless", "*k_proj*": {"scheme": "raw"}, "*v_proj*": {"coder": "huffman"}}
    wcodec.compress(folder, tmp_path / "x.wcodec", bits=3, rules=rules, progress=False)
    assert kind_of(tmp_path / "x.wcodec") == "columns"


def _raise(error: BaseException) -> Any:
    def work(*_: Any, **__: Any) -> Any:
        raise error

    return work


@pytest.mark.parametrize(
    ("place", "stand_in", "why"),
    [
        ("wcodec._models.running.require_transformers", _raise(wcodec.UnsupportedError("not installed (install it)")),
         "not installed (install it) [U000]"),
        ("wcodec.nn._weights.budget.host_memory", lambda: (1000, 1000), "the model has 3"),
        ("wcodec._calibrate.encode.original_model", _raise(ValueError("first\nsecond")), "first"),
        ("wcodec._calibrate.encode.original_model", _raise(MemoryError()), "MemoryError"),
        ("wcodec._calibrate.encode.Chooser", _raise(wcodec.InputError("of none of the tensors")), "of none of"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_run_is_encoded_all_the_same(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[], list[tuple[int, str]]],
    place: str,
    stand_in: Any,
    why: str,
) -> None:
    alone = wcodec.compress_to_bytes(folder, **ALONE)[0]
    monkeypatch.setattr(place, stand_in)
    seen: list[int] = []
    wcodec.compress(folder, tmp_path / "x.wcodec", bits=3, progress=lambda _, done, total: seen.append(done))
    warnings = [line for level, line in told() if level == logging.WARNING]
    assert len(warnings) == 1 and warnings[0].startswith(f"not calibrated: {why}"), warnings
    assert warnings[0].endswith("; 3 bits lose much less with it")
    assert (tmp_path / "x.wcodec").read_bytes() == alone and seen == sorted(seen) and seen
    if "original_model" in place:
        # An error where it was asked for.
        with pytest.raises((ValueError, MemoryError)):
            wcodec.compress_to_bytes(folder, bits=3, calibrate="columns")


def test_the_progress_of_all_work_ends_once_and_stops_it(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = wcodec.compress(folder, tmp_path / "x.wcodec", bits=3, progress=lambda *args: seen.append(args))
    done = [d for _, d, _ in seen]
    assert seen[0][0] == "calibrating" and done == sorted(done) and done[-1] == report.original_bytes

    def stop(*_: Any) -> None:
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        wcodec.compress(folder, tmp_path / "y.wcodec", bits=3, progress=stop)
    assert not (tmp_path / "y.wcodec").exists()


def test_tensors_alone_are_no_model(folder: Path, tmp_path: Path, told: Callable[[], list[tuple[int, str]]]) -> None:
    tensors = {"w": torch.randn(64, 64)}
    wcodec.save_file(tensors, tmp_path / "x.wcodec", bits=3)
    assert told() == [(logging.INFO, "not calibrated: a mapping of tensors is no model that could run")]
    wcodec.save_file(tensors, tmp_path / "x.wcodec", bits=3, calibrate=False)
    wcodec.save_file(tensors, tmp_path / "x.wcodec")
    # Neither is a model of which the config says that it predicts something else.
    config = json.loads((folder / "config.json").read_text())
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForSequenceClassification"]}))
    wcodec.compress(other, tmp_path / "y.wcodec", bits=3, progress=False)
    assert told() == [] and kind_of(tmp_path / "y.wcodec") is None


# Models in memory


def encoded(model: Any) -> tuple[Any, list[Any]]:
    """The calibration that a compressed model states, and its symbols."""
    container = next(m._store.container for m in model.modules() if hasattr(m, "_store"))
    said = container.metadata.get("wcodec.calibration")
    return said, [entry.symbols().tolist() for entry in container.stored if entry.scheme == "rate"]


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_model_in_memory_is_calibrated(make: Callable[[], Any], told: Callable[[], list[tuple[int, str]]]) -> None:
    found = {}
    for name, options in (("default", {}), ("columns", {"calibrate": "columns"}), ("alone", {"calibrate": False})):
        model = make()
        model.requires_grad_(True)
        wcodec.compress_(model, bits=4, progress=False, **options)
        found[name] = encoded(model)
        assert any("calibrating this " in line for _, line in told()) == (name == "default")
    assert found["default"] == found["columns"] and json.loads(found["default"][0])["kind"] == "columns"
    assert found["alone"][0] is None


def _with(change: Callable[[Any], Any]) -> Callable[[], Any]:
    def make() -> Any:
        model = llama()
        return change(model) or model

    return make


class Own(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """A class whose passes do who knows what."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Sequential(torch.nn.Linear(64, 64)),
        lambda: transformers.LlamaModel(llama().config).eval(),
        lambda: Own(llama().config).eval(),
        _with(lambda model: model.train()),
        _with(lambda model: model.model.layers[1].register_forward_hook(lambda *_: pytest.fail("ran")) and None),
        _with(lambda model: setattr(model, "hf_quantizer", object())),
        _with(lambda model: setattr(model.config, "quantization_config", {"quant_method": "other"})),
        _with(lambda model: setattr(model, "_tp_size", 2)),
    ],
    ids=["no transformer", "no head", "another class", "training", "hooks", "quantizer", "quantized", "part"],
)  # fmt: skip
def test_other_models_in_memory_are_left_alone(make: Callable[[], Any]) -> None:
    model = make()
    assert by_default.chosen_in_memory(model, {"bits": 4}) is None
    assert by_default.chosen_in_memory(model, {"bits": 4, "calibrate": "columns"}) == "columns"


def test_a_model_in_memory_on_which_it_fails_is_compressed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[tuple[int, str]]]
) -> None:
    model = llama()
    monkeypatch.setattr(_collect, "collect_statistics", _raise(RuntimeError("out of memory")))
    assert wcodec.compress_(model, bits=4, progress=False).replaced
    assert told()[-1] == (logging.WARNING, "not calibrated: out of memory; 4 bits lose much less with it")


def test_models_that_are_read_tensor_by_tensor_are_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wcodec.compress(folder, f"{tmp_path}/small/", bits=4, progress=False)
    monkeypatch.setattr(_collect, "collect_statistics", lambda *_, **__: pytest.fail("the model ran"))
    config = wcodec.WCodecConfig(bits=4)
    loaded = [
        wcodec.load_model(folder, bits=4), wcodec.load_model(folder, bits=4, calibrate=False),
        transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config),
    ]  # fmt: skip
    first, *others = map(encoded, loaded)
    assert first[0] is None and all(other == first for other in others)
    # Nothing is asked of what is compressed already.
    wcodec.load_model(tmp_path / "small", calibrate=False)
    off = wcodec.WCodecConfig(calibrate=False)
    assert off.to_dict() == wcodec.WCodecConfig().to_dict()
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small", quantization_config=off)
