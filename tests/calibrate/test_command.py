"""Calibration in one command or argument: what it takes, how much text, its progress, and when it is advised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wcodec
from command import Cli, document
from wcodec._core.progress import Stages

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import outlier_channels  # noqa: E402
from small_models import checkpoint_of, collect, mixtral  # noqa: E402
from small_models import wider_llama as llama  # noqa: E402
from wcodec._calibrate import amount  # noqa: E402
from wcodec._calibrate import collect as _collect  # noqa: E402

CPU = torch.device("cpu")
FEW = {"calibration_tokens": 64, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model."""
    return checkpoint_of(llama(), tmp_path_factory)


# In Python


@pytest.mark.parametrize("name", ["out.wcodec", "out/"])
def test_true_is_the_models_own_text_without_a_tokenizer(folder: Path, tmp_path: Path, name: str) -> None:
    found = {}
    for calibrate in (True, "mixed", "self", False):
        options = FEW if calibrate else {"progress": False}
        place = f"{tmp_path}/{calibrate}-{name}"
        report = wcodec.compress(folder, place, bits=4, calibrate=calibrate, **options)
        file = Path(report.path or "")
        found[calibrate] = [wcodec.open(file)[t.name].symbols().tolist() for t in report.tensors if t.scheme == "rate"]
    assert found[True] == found["mixed"] == found["self"] != found[False]


def test_every_way_to_compress_takes_it(folder: Path) -> None:
    report = wcodec.compress_(llama(), bits=4, calibrate=True, **FEW)
    assert report.replaced
    loaded = wcodec.load_model(folder, bits=4, calibrate=True, calibration_tokens=64)
    config = wcodec.WCodecConfig(bits=4, calibrate=True, calibration_tokens=64)
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, other(ids).logits)


def test_columns_are_the_cheapest_calibration(folder: Path, tmp_path: Path, run: Cli) -> None:
    ran: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        collected = _collect.collect_statistics
        patch.setattr(_collect, "collect_statistics", lambda *a, **k: ran.append(k) or collected(*a, **k))
        wcodec.compress(folder, tmp_path / "x.wcodec", bits=4, calibrate="columns", **FEW)
        wcodec.compress(folder, f"{tmp_path}/folder/", bits=4, calibrate="columns", **FEW)
        wcodec.compress_(llama(), bits=4, calibrate="columns", **FEW)
        wcodec.load_model(folder, bits=4, calibrate="columns", calibration_tokens=64)
    assert len(ran) == 4 and all((k["full"], k["gradients"], k["tokens"]) == (False, False, 64) for k in ran)
    status, _, err = run("encode", folder, "-o", tmp_path / "y.wcodec", "--bits", 4, "--calibrate", "columns",
                         "--tokens", 64)  # fmt: skip
    assert status == 0 and "takes seconds" in err
    for name in ("x.wcodec", "y.wcodec", "folder/model.wcodec"):
        with wcodec.open(tmp_path / name) as container:
            said = json.loads(container.metadata["wcodec.calibration"])
            assert said["kind"] == "columns" and said["tokens"] == 64 and said["source"] == "self"
    with pytest.raises(wcodec.InputError, match="needs second moments"):
        wcodec.compress(folder, tmp_path / "z.wcodec", bits=4, calibrate="columns", feedback=True, **FEW)


def test_statistics_of_columns_alone(folder: Path, tmp_path: Path, run: Cli) -> None:
    kept = tmp_path / "columns.safetensors"
    status, text, _ = run("calibrate", folder, "-o", kept, "--columns-only", "--tokens", 64, "--json")
    found = document(text, "calibrate")
    assert status == 0 and not found["full"] and not found["gradients"] and found["columns"]
    status, shown, _ = run("calibrate", folder, "-o", kept, "--columns-only", "--tokens", 64, "--overwrite")
    assert status == 0 and "matter most" not in shown
    statistics = wcodec.Statistics.load(kept)
    assert statistics.tokens == 64 and not statistics.gradients
    wcodec.compress(folder, tmp_path / "x.wcodec", bits=4, calibrate=kept, progress=False)
    for arguments in (("--memory", "1GB"), ("--steps-only",)):
        status, _, err = run("calibrate", folder, "-o", kept, "--columns-only", "--overwrite", *arguments)
        assert status == 2 and "--columns-only" in err
    status, _, err = run("sensitivity", folder, "--bits", 4, "--statistics", kept)
    assert status == 2 and "not how much each tensor matters" in err


def test_experts_are_calibrated_into_a_folder(tmp_path: Path) -> None:
    """Their tensors are not those of the checkpoint, but the checkpoint's model runs."""
    mixtral().save_pretrained(tmp_path / "model")
    report = wcodec.compress(tmp_path / "model", f"{tmp_path}/out/", bits=4, calibrate=True, **FEW)
    assert report.rate is not None and report.rate.bits_per_weight > 3.9


def test_what_it_does_not_go_with_is_refused_before_the_model_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("wcodec._calibrate.encode.original_model", ran)
    for options, message in (
        ({"scheme": "int8"}, "goes with scheme='rate'"),
        ({"bits": 3, "rules": {"*": {"bits": 5}}}, "one number of bits for all"),
        ({"bits": 3, "bits_per_tensor": True}, "shares bits among tensors"),
    ):
        with pytest.raises(wcodec.InputError, match=message):
            wcodec.compress(folder, tmp_path / "x.wcodec", calibrate=True, progress=False, **options)
    with pytest.raises(wcodec.InputError, match="go with calibrate"):
        wcodec.compress(folder, tmp_path / "x.wcodec", bits=3, calibration_tokens=64, progress=False)
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_written_is_refused_before_the_model_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Cli
) -> None:
    out, there = tmp_path / "x.wcodec", f"{tmp_path}/there/"
    for place in (out, there):
        wcodec.compress(folder, place, scheme="lossless", progress=False)
    before = out.read_bytes()
    monkeypatch.setattr(_collect, "collect_statistics", lambda *_, **__: pytest.fail("the model ran"))
    weights = folder / "model.safetensors"
    for place, error, message in (
        (out, wcodec.OutputExistsError, "exists"), (there, wcodec.OutputExistsError, "exists"),
        (weights, wcodec.InputError, "one of the files that are read"), (tmp_path, wcodec.InputError, "is a folder"),
        (tmp_path / "none" / "x.wcodec", wcodec.FileMissingError, "check the path"),
    ):  # fmt: skip
        for calibrate in ("columns", True):
            with pytest.raises(error, match=message):
                wcodec.compress(folder, place, bits=3, calibrate=calibrate, progress=False)
    for options in (("--calibrate",), ("--calibrate", "columns"), ()):
        for place in (out, there):
            status, _, err = run("encode", folder, "-o", place, "--bits", 3, *options)
            assert status == 2 and "(use --overwrite to replace it) [O103]" in err, err
    assert out.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["there", "x.wcodec"]


def test_a_source_that_is_no_language_model(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for source, message in ((alone, "no config.json"), ({"w": torch.ones(32, 32)}, "a mapping of tensors is none")):
        with pytest.raises(wcodec.InputError, match=message):
            wcodec.compress(source, tmp_path / "x.wcodec", bits=3, calibrate=True, progress=False)
    config = json.loads((folder / "config.json").read_text())
    (alone / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForSequenceClassification"]}))
    with pytest.raises(wcodec.InputError, match="no causal language model"):
        wcodec.compress(alone, tmp_path / "x.wcodec", bits=3, calibrate=True, progress=False)


# Amounts of text


def test_large_models_see_fewer_tokens_on_a_cpu() -> None:
    counts = [amount.default_tokens(weights, CPU) for weights in (10**6, 135 * 10**6, 8 * 10**9)]
    assert counts == sorted(counts, reverse=True) and counts[0] == 32768 and counts[2] == 2048
    assert 2048 < counts[1] < 8192
    assert amount.default_tokens(8 * 10**9, torch.device("cuda")) == 32768


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"windows": 3, "length": 8}, 24),
        ({"tokens": 64}, 64),
        ({"tokens": 2048}, 2048),
        ({"tokens": 60, "length": 20}, 60),
        ({"tokens": 2}, 2),
        ({"length": 2}, 128),
    ],
)
def test_tokens_that_are_asked_for(options: dict[str, Any], expected: int) -> None:
    assert wcodec.collect_statistics(llama(), full=False, **options).tokens == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": 2, "tokens": 4}, "exclude each other"),
        ({"tokens": 1}, "at least 2"),
        ({"tokens": 0}, "tokens must be whole numbers"),
        ({"windows": 0}, "windows must be whole numbers"),
    ],
)
def test_amounts_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(wcodec.InputError, match=message):
        wcodec.collect_statistics(llama(), **options)


# Devices


def test_a_gpu_is_taken_where_there_is_one_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert amount.chosen_place("cpu") == CPU
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(amount.devices, "place", lambda device: CPU if str(device) == "cpu" else gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (10 << 30, 80 << 30))
    for device in (None, "auto"):
        assert amount.chosen_place(device, 7 << 30) == gpu
        assert amount.chosen_place(device, 8 << 30) == CPU
    assert amount.chosen_place("cpu", 1) == CPU and amount.chosen_place("cuda", 1 << 40) == gpu


def test_a_gpu_that_does_not_work_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: Any) -> None:
        raise wcodec.DeviceError("no driver (install one)")

    monkeypatch.setattr(amount.devices, "place", broken)
    assert amount.chosen_place(None) == CPU


# Progress


def test_progress_goes_to_its_end_once(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    statistics = tmp_path / "s.safetensors"
    collect(llama()).save(statistics)
    for calibrate, first in ((True, "calibrating"), (statistics, "finding steps")):
        seen.clear()
        tokens = 64 if calibrate is True else None
        report = wcodec.compress(
            folder, tmp_path / "x.wcodec", bits=4, calibrate=calibrate, calibration_tokens=tokens, overwrite=True,
            progress=lambda *args: seen.append(args),
        )  # fmt: skip
        done, totals = [d for _, d, _ in seen], {t for *_, t in seen}
        assert done == sorted(done) and totals == {report.original_bytes} == {done[-1]}
        assert seen[0][0] == first and 0 <= seen[0][1] < done[-1] and len(set(done)) > 10


def test_a_callback_stops_the_calibration(folder: Path, tmp_path: Path) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wcodec.compress(folder, tmp_path / "x.wcodec", bits=4, calibrate=True, progress=stop)
    assert not list(tmp_path.iterdir())


def test_stages_never_lead_back() -> None:
    seen: list[float] = []
    stages = Stages({"a": 1, "b": 1, "c": 2}, lambda what, part: seen.append(part))
    for stage, done, total in (("a", 1, 2), ("a", 1, 4), ("c", 0, 1), ("b", 1, 1), ("c", 1, 2), ("c", 3, 2)):
        stages.of(stage)(done, total)
    assert seen == [0.125, 0.125, 0.5, 0.5, 0.75, 1.0]


def test_seconds_are_those_of_the_whole_call(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 103.5])
    monkeypatch.setattr("wcodec._api.files.time.perf_counter", lambda: next(clock))
    report = wcodec.compress({"w": torch.ones(32, 64)}, tmp_path / "x.wcodec", progress=False)
    assert report.seconds == 3.5


# In a terminal


def test_encode_gives_columns_factors(run: Cli, tmp_path: Path) -> None:
    """The model's input channels differ. It takes seconds, and meets the bits that were asked for."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(Path(__file__).parents[1] / "data/doc-llama-3m")
    with outlier_channels.give_outliers(model):
        model.save_pretrained(tmp_path / "model")
    status, _, err = run(
        "encode", tmp_path / "model", "-o", tmp_path / "x.wcodec", "--bits", "3.5", "--calibrate", "columns",
        "--tokens", 512,
    )  # fmt: skip
    assert status == 0 and "this takes seconds" in err and "not calibrated" not in err
    with wcodec.open(tmp_path / "x.wcodec") as container:
        of_rate = [entry for entry in container.stored if entry.scheme == "rate"]
        bits = 8 * sum(e.stored_bytes for e in of_rate) / sum(e.elements for e in of_rate)
        assert abs(bits / 3.5 - 1) < 0.005
        assert all(e.columns for e in of_rate if "q_proj" in e.name or "up_proj" in e.name)
        assert not any(e.columns for e in of_rate if "embed" in e.name)


def test_encode_says_what_the_model_reads(run: Cli, folder: Path, tmp_path: Path) -> None:
    model, text = Path(__file__).parents[1] / "data/doc-llama-3m", tmp_path / "text.txt"
    text.write_text("some words " * 200)
    for source, arguments, line in (
        (model, ("columns",), "the model reads 64 tokens of many kinds of text\n"),
        (folder, ("columns",), "the model reads 64 tokens that it writes, as no tokenizer of it was found\n"),
        (model, (), "the model reads 192 tokens of many kinds of text and 64 tokens that it writes\n"),
        (model, ("self",), "the model reads 64 tokens that it writes\n"),
        (model, (text,), "the model reads 64 tokens\n"),
    ):
        status, _, err = run("encode", source, "-o", tmp_path / "x.wcodec", "--overwrite", "--bits", 3, "--calibrate",
                             *arguments, "--tokens", 256 if arguments == () else 64)  # fmt: skip
        assert status == 0 and err.endswith(line) and err.count("kinds") == line.count("kinds"), err
        assert (f"on {text}: " in err) == (text in arguments)


def test_encode_calibrates(run: Cli, folder: Path, tmp_path: Path) -> None:
    for name in ("a.wcodec", "a/"):
        status, out, err = run(
            "encode", folder, "-o", f"{tmp_path}/{name}", "--bits", "3", "--calibrate", "--tokens", 64
        )
        assert status == 0 and "quantized weights alone: 3.0" in out.replace("2.99", "3.0")
        assert "calibrating" in err and "not calibrated" not in err
    # The folder of a small model has no tokenizer, which the path of a text would need.
    statistics = tmp_path / "s.safetensors"
    assert run("calibrate", folder, "-o", statistics, "--tokens", 64)[0] == 0
    files = []
    for option in ("--calibrate", "--statistics"):
        files.append(tmp_path / f"{option}.wcodec")
        status, _, err = run("encode", folder, "-o", files[-1], "--bits", "3", option, statistics, "--device", "cpu")
        assert (status, err) == (0, "")
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--calibrate", "nowhere.txt"), "no such file"),
        (("--calibrate", "--statistics", "s"), "exclude each other"),
        (("--calibrate", "{folder}"), "is a folder"),
        (("--statistics", "{folder}/config.json"), "not a file of statistics"),
        (("--tokens", "5"), "--tokens has no effect"),
        (("--device", "cpu", "--no-calibrate"), "--device has no effect"),
        (("--calibrate", "--scheme", "int8"), "calibration goes with"),
    ],
)
def test_options_that_do_not_go_together(
    run: Cli, folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    given = [a.replace("{folder}", str(folder)) for a in arguments]
    bits = [] if "--scheme" in given else ["--bits", "3"]
    status, _, err = run("encode", folder, "-o", tmp_path / "x.wcodec", *bits, *given)
    assert status == 2 and message in err and not list(tmp_path.iterdir())


def test_calibrate_ends_with_the_layers_that_matter_most(run: Cli, folder: Path, tmp_path: Path) -> None:
    statistics = tmp_path / "s.safetensors"
    status, out, _ = run("calibrate", folder, "-o", statistics, "--tokens", 64)
    assert status == 0
    shares = wcodec.Statistics.load(statistics).shares()
    assert sum(shares.values()) == pytest.approx(1) and list(shares.values()) == sorted(shares.values(), reverse=True)
    lines = out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("layers that matter most"))
    rows = [line.split() for line in lines[begin + 1 : begin + 11]]
    assert [row[0] for row in rows] == [name.removesuffix(".weight") for name in shares][:10]
    assert rows[0][1] == f"{100 * next(iter(shares.values())):.1f}"
    assert f"--calibrate {statistics}" in lines[-1]


def test_texts_that_are_there_have_names(tmp_path: Path, run: Cli) -> None:
    model = Path(__file__).parents[1] / "data" / "doc-llama-3m"
    found = {}
    for name in ("mixed", "self", None):
        text = [] if name is None else ["--text", name]
        kept = tmp_path / f"{name}.safetensors"
        status, said, err = run("calibrate", model, "-o", kept, "--columns-only", "--tokens", 64, "--json", *text)
        assert status == 0, err
        found[name] = document(said, "calibrate")
    assert [found[name]["source"] for name in found] == ["mixed", "self", "mixed"]
    assert found["mixed"]["text_hash"] == found[None]["text_hash"] != found["self"]["text_hash"]
    status, _, err = run("calibrate", model, "-o", tmp_path / "x.safetensors", "--text", "no.txt")
    assert status != 0 and "no such file" in err
