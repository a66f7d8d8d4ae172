"""pyext/benches/runs.py: benchmarks write files of docs/results."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "pyext/benches"))

import runs  # noqa: E402
from peers import run_file as peers_file  # noqa: E402
from serving import run_file as serving_file  # noqa: E402

from .test_peers import made  # noqa: E402
from .test_serving import ABOUT, lines, lines_of_ranks  # noqa: E402

SCHEMA = json.loads((REPOSITORY / "docs/results/schema.json").read_text(encoding="utf-8"))
MODEL = REPOSITORY / "tests/data/doc-llama-3m"


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A file of the schema, and its rows' figures by name."""
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(found, SCHEMA)
    assert {quantity for row in found["rows"] for quantity in row["values"]} == set(found["units"])
    return found, {row["name"]: row["values"] for row in found["rows"]}


def test_examples_in_docstrings() -> None:
    found = doctest.testmod(runs)
    assert found.attempted and not found.failed


def test_a_file_says_what_was_measured_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WCODEC_COMMIT", "0123abcd")
    monkeypatch.setattr(sys, "argv", [str(REPOSITORY / "pyext/benches/products.py"), "--results", "x", "--bits", "4"])
    rows = [
        runs.row("a", {"us": 12.34567, "coder": "rans"}, {"us": "us"}),
        runs.row("b", {"coder": "rans"}, {"us": "us"}),
    ]
    units = {"us": "us", "never": "s"}
    runs.write(tmp_path / "new/run.json", "products", units, rows, mode="CUDA graphs", notes=["one"], card="a card")
    found, values = read(tmp_path / "new/run.json")
    assert values == {"a": {"us": 12.35}} and found["units"] == {"us": "us"} and found["notes"] == ["one"]
    assert found["command"] == "python pyext/benches/products.py --bits 4" and found["commit"] == "0123abcd"
    assert found["card"] == "a card" and found["machine"].endswith(" cores") and "wcodec " in found["engine"]
    runs.write(None, "nothing is asked for", units, rows)
    assert runs.figure([3.0, 1.0, 2.00049]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_the_commit_says_when_there_are_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WCODEC_COMMIT", raising=False)
    assert runs.commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "f").write_text("1")
    for arguments in (["init", "-q"], ["add", "f"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *arguments], check=True)
    clean = runs.commit(tmp_path)
    (tmp_path / "f").write_text("2")
    assert len(clean) == 12 and runs.commit(tmp_path) == f"{clean}, with changes"


@pytest.mark.parametrize(
    "name", ["calibration", "compress", "crossover", "defaults", "disk", "optimize", "plain", "products", "tinyllama"]
)
def test_benchmarks_take_the_option(name: str) -> None:
    script = REPOSITORY / f"pyext/benches/{name}.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True)
    assert "--results FILE" in done.stdout and "--json" not in done.stdout


def test_the_two_kinds_of_calibration_have_bits_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = importlib.import_module("calibration")
    encoded: list[tuple[Any, float]] = []
    tiny = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2}  # fmt: skip
    monkeypatch.setitem(calibration.SHAPES, "smollm2", tiny)
    monkeypatch.setattr(calibration.wcodec, "collect_statistics", lambda _, **o: "columns" if "full" in o else "full")
    monkeypatch.setattr(calibration.wcodec, "compress", lambda *_, **o: encoded.append((o["calibrate"], o["bits"])))
    for options in ([], ["--bits", "3"], ["--column-bits", "4.5"]):
        arguments = ["calibration.py", "--device", "cpu", "--results", str(tmp_path / "run.json"), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        calibration.main()
    assert encoded == [
        ("columns", 4.0),
        ("full", 3.5),
        ("columns", 4.0),
        ("full", 3.0),
        ("columns", 4.5),
        ("full", 3.5),
    ]
    assert list(read(tmp_path / "run.json")[1]) == ["smollm2, 4.5 bits by columns, 3.5 with error feedback"]


def test_rows_of_the_crossover(tmp_path: Path) -> None:
    crossover = importlib.import_module("crossover")
    times = {"1": [2.4, 11.9], "8": [4.7, 11.8]}
    measured = {"coder": "rans", "scheme": "rate", "options": {"bits": 4.0}, "rows": 256, "columns": 2048, "bits": 4.01}
    crossover.save(tmp_path / "run.json", [{**measured, "microseconds": times, "tokens": 8}])
    _, values = read(tmp_path / "run.json")
    figures = {"products_1": 2.4, "decoded_1": 11.9, "products_8": 4.7, "decoded_8": 11.8}
    assert values == {"rans bits 4.0 256x2048": {"bits": 4.01, **figures}}


def test_rows_of_peers_have_figures_and_reasons(tmp_path: Path) -> None:
    found = made(
        int8={"quality": {"bits": 7.669, "kl": 0.0016019}, "eager/1": {"tokens_per_s": 80, "bf16_tokens_per_s": 100}},
        lossless={"quality": {"bits": 10.62, "kl": 0}, "load": {"failed": "OutOfMemoryError: 7"}},
    )
    found["rows"]["wcodec/int8"]["skipped"] = None
    peers_file.write(tmp_path / "run.json", found)
    about, values = read(tmp_path / "run.json")
    assert values["wcodec int8"] == {"bits": 7.669, "kl": 0.001602, "eager_1": 80, "eager_1_of_bf16": 0.8}
    assert values["wcodec lossless"]["load"] == "OutOfMemoryError: 7" and values["wcodec lossless"]["kl"] == 0
    assert about["command"] == "python pyext/benches/peers" and about["card"] is None


def test_rows_of_served_models(tmp_path: Path) -> None:
    steps = [
        {"kind": "gpu-step", "model": "llama-8b", "scheme": scheme, "mode": "compiled", "ranks": 1,
         "limit": 24_000_000_000, "sequences": 8, "us": us, "own_us": 0.0}
        for scheme, us in (("bf16", 1444.0), ("int8", 1322.0))
    ]  # fmt: skip
    about = {**ABOUT, "command": "python pyext/benches/serving"}
    serving_file.write(tmp_path / "run.json", about, [*lines(), *steps, *lines_of_ranks()])
    found, values = read(tmp_path / "run.json")
    assert found["card"] == "a card"
    int8 = values["llama-8b int8 compiled 1 24000000000"]
    assert int8 == {"bits": 6.5, "speed_8": 900, "speed_prompt": 9000, "gpu_8": 1322}
    assert values["llama-70b 4.0 transformers 4"] == {"start": 30.4, "memory": 8_800_000_000, "speed_1": 14}
    assert len(found["rows"]) == 4 and found["units"]["gpu_8"] == "us of the GPU, 8 sequences"


def test_what_the_command_prints_is_recorded(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "wcodec.cli",
        "roundtrip",
        str(MODEL),
        "--coder",
        "rans",
        "--scale",
        "row",
        "--json",
    ]
    assert runs.main([str(tmp_path / "run.json"), "--subject", "sizes", "--", *command]) == 0
    found, values = read(tmp_path / "run.json")
    assert 7 < values["rans int8 row"]["bits_per_weight"] < 8 and found["card"] is None
    assert runs.main([str(tmp_path / "x.json"), "--subject", "x", "--", sys.executable, "-c", "exit(3)"]) == 3
    for wrong in (["--", sys.executable, "-c", "print(1)"], ["--", sys.executable, "-c", "print({})"], []):
        with pytest.raises(SystemExit):
            runs.main([str(tmp_path / "x.json"), "--subject", "x", *wrong])
    assert not (tmp_path / "x.json").exists()


def test_reports_of_commands_have_names_and_spread() -> None:
    speed = {"median": 18.5, "low": 17.0, "high": 19.0, "samples": [17.0, 18.5, 19.0]}
    bench = {"command": "bench", "rows": [{"model": "model", "batch": 8, "decode": speed, "decode_of_baseline": None}]}
    figures = {"decode": {"median": 18.5, "low": 17, "high": 19}}
    assert runs.printed(bench)[0] == [{"name": "model 8", "of": {"model": "model", "batch": 8}, "values": figures}]
    points = [
        {"recipe": "error feedback", "coder": "rans", "bits_asked": 4.0, "trellis": True, "kl": 0.1, "bits_stored": 4}
    ]
    [point] = runs.printed({"command": "frontier", "rows": points})[0]
    assert point["name"] == "error feedback rans 4.0 trellis" and point["values"] == {"kl": 0.1, "bits_stored": 4}


def test_reports_of_the_benchmarks_in_rust_are_recorded(tmp_path: Path) -> None:
    cpu = {
        "benchmarks": [{"job": "decode", "name": "rans-pair", "isa": "avx2", "gb_per_s": 2.08, "ratio_to_zstd": 1.35}],
        "sizes": [{"name": "rans-pair", "bytes": 8, "over": 0.0107}],
    }
    result = {"what": "huffman to int8", "case": "one 2048 x 2048", "unit": "us", "value": 5.5, "spread": 0.01}
    gpu = {"device": {"name": "a card"}, "results": [{**result, "more": {"launches": 9}}]}
    for report, name, figures in (
        (cpu, "decode rans-pair avx2", {"gb_per_s": 2.08, "ratio_to_zstd": 1.35}),
        (gpu, "one 2048 x 2048, huffman to int8", {"us": 5.5}),
    ):
        (tmp_path / "report.json").write_text(json.dumps(report))
        arguments = [str(tmp_path / "run.json"), "--subject", "x", "--report", str(tmp_path / "report.json")]
        assert runs.main(arguments) == 0
        found, values = read(tmp_path / "run.json")
        assert values[name] == figures
        assert (found["card"], found["command"]) == (
            (None, "make bench") if report is cpu else ("a card", "make bench-gpu")
        )
