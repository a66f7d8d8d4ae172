"""codec/benches/report.py, which turns what criterion left behind into a table and a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "codec/benches/report.py"
MIB = 1 << 20
# Name, what criterion says of its throughput, nanoseconds.
RESULTS: list[tuple[str, dict[str, int] | None, float]] = [
    ("decode/zstd", {"Bytes": MIB}, 1e6),
    ("decode/rans-pair/avx2", {"Bytes": MIB}, 5e5),
    ("encode/rans-pair", {"Bytes": MIB}, 2e6),
    # The inspector's benchmarks are in the same folder: nothing goes through them.
    ("screens/open", None, 7e6),
    ("screens/rows", {"Elements": 50}, 8e5),
    ("screens/bytes", {"Bytes": 50}, 8e5),
]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target folder after a run of the benchmarks."""
    facts: dict[str, Any] = {
        "versions": {"wcodec": "0", "zstd": "0"},
        "sizes": [
            {"name": "rans-pair", "bytes": MIB, "stored": MIB * 7 // 8, "entropy": 6.9, "over": 0.0145, "tile": 192}
        ],
        "benchmarks": [name for name, *_ in RESULTS if not name.startswith("screens/")],
    }
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/coders.json").write_text(json.dumps(facts))
    for name, throughput, nanoseconds in RESULTS:
        folder = tmp_path / "criterion" / name.replace("/", "_") / "new"
        folder.mkdir(parents=True)
        (folder / "benchmark.json").write_text(json.dumps({"full_id": name, "throughput": throughput}))
        interval = {"lower_bound": nanoseconds * 0.9, "upper_bound": nanoseconds * 1.1}
        estimate = {"point_estimate": nanoseconds, "confidence_interval": interval}
        estimates = {"median": estimate, "median_abs_dev": {"point_estimate": nanoseconds / 50}}
        (folder / "estimates.json").write_text(json.dumps(estimates))
    return tmp_path


def report(target: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Runs the script; what it said and wrote."""
    environment = {k: v for k, v in os.environ.items() if k != "CRITERION_HOME"} | {"CARGO_TARGET_DIR": str(target)}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, env=environment, check=False)
    written = target / "bench/cpu.json"
    return done, json.loads(written.read_text()) if written.exists() else {}


def test_results_without_bytes_are_of_other_benchmarks(target: Path) -> None:
    done, found = report(target)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert found["missing"] == []
    names = [(b["job"], b["name"], b["isa"]) for b in found["benchmarks"]]
    assert names == [("decode", "zstd", None), ("decode", "rans-pair", "avx2"), ("encode", "rans-pair", None)]
    rans = found["benchmarks"][1]
    assert rans["bytes"] == MIB and rans["gb_per_s"] == pytest.approx(MIB / 5e5) and rans["ratio_to_zstd"] == 2
    assert "decode rans-pair" in done.stdout and "screens" not in done.stdout


def test_what_the_run_lacks_is_named(target: Path) -> None:
    # One without bytes where there should be some, one of an earlier run.
    (target / "criterion/decode_zstd/new/benchmark.json").write_text('{"full_id": "decode/zstd", "throughput": null}')
    old = target / "criterion/encode_rans-pair/new/estimates.json"
    os.utime(old, (0, 0))
    done, found = report(target)
    assert done.returncode == 1 and found["missing"] == ["decode/zstd", "encode/rans-pair"]
    assert "decode/zstd, encode/rans-pair" in done.stderr
    assert found["benchmarks"][0]["ratio_to_zstd"] is None


def test_without_a_run_it_says_what_to_run(tmp_path: Path) -> None:
    done, _ = report(tmp_path)
    assert done.returncode == 1 and "cargo bench -p wcodec --bench coders" in done.stderr
