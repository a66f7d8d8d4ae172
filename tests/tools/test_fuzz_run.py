"""codec/fuzz/run.py, which runs the fuzz targets and counts inputs: with a cargo that only says what libFuzzer does."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "codec/fuzz"
# Arguments of `cargo` go to a file; `cargo fuzz run` says what a run of libFuzzer would.
CARGO = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in
"+nightly --version") [ -n "$NIGHTLY" ] && echo cargo 1.91.0-nightly ;;
"fuzz --version") [ -z "$NO_FUZZ" ] && echo cargo-fuzz 0.13.2 ;;
*"fuzz run "*zstd*) cat "$SAID/crash" && exit 77 ;;
*"fuzz run "*legacy*) cat "$SAID/killed" && exit 1 ;;
*"fuzz run "*) cat "$SAID/done" ;;
esac
"""
DONE = """#2\tINITED cov: 100 ft: 101 corp: 1/1b exec/s: 0 rss: 100Mb
#65536\tpulse  cov: 900 ft: 1000 corp: 20/2Kb lim: 64 exec/s: 4096 rss: 200Mb
Done 123457 runs in 31 second(s)
stat::number_of_executed_units: 123457
stat::average_exec_per_sec:     3982
stat::new_units_added:          77
stat::slowest_unit_time_sec:    0
stat::peak_rss_mb:              245
"""
CRASH = """#2\tINITED cov: 100 ft: 101 corp: 1/1b exec/s: 0 rss: 100Mb
thread '<unnamed>' panicked at codec/src/x.rs:1:1:
==7== ERROR: libFuzzer: deadly signal
artifact_prefix='/x/artifacts/zstd/'; Test unit written to /x/artifacts/zstd/crash-0123
Base64: AA==
stat::number_of_executed_units: 512
stat::average_exec_per_sec:     256
"""
KILLED = "#2\tINITED cov: 1\n#4096\tpulse  cov: 900 ft: 1000 corp: 20/2Kb lim: 64 exec/s: 2048 rss: 200Mb\n"
HEAD = "| date | commit | target | inputs | inputs/s | findings |"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository with nothing but the script and its table."""
    fuzz = tmp_path / "codec/fuzz"
    fuzz.mkdir(parents=True)
    shutil.copy(FUZZ / "run.py", fuzz)
    text = (FUZZ / "runs.md").read_text()
    end = text.index(HEAD) + len(HEAD)
    (fuzz / "runs.md").write_text(text[: text.index("\n", end + 1) + 1])
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in [("cargo", CARGO), ("rustc", '#!/bin/sh\necho "rustc 1.89.0"\n')]:
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    for name, text in [("done", DONE), ("crash", CRASH), ("killed", KILLED)]:
        (tmp_path / name).write_text(text)
    return tmp_path


def run(place: Path, **settings: str) -> tuple[subprocess.CompletedProcess[str], list[str], list[str]]:
    """Runs the script; what it said, the new rows, the calls of cargo."""
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if k not in ("SECONDS", "RUNS", "TARGETS", "JOBS", "RUSTC_BOOTSTRAP")}
    environment = kept | {"PATH": path, "CALLS": str(place / "calls"), "SAID": str(place)} | settings
    script = place / "codec/fuzz/run.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    calls = place / "calls"
    rows = (place / "codec/fuzz/runs.md").read_text().partition(HEAD)[2].splitlines()[2:]
    return done, rows, calls.read_text().splitlines() if calls.exists() else []


def test_each_target_gets_a_row_with_what_libfuzzer_counted(place: Path) -> None:
    done, rows, calls = run(place, RUSTC_BOOTSTRAP="1", TARGETS="container, chunks", SECONDS="120", RUNS="9")
    assert done.returncode == 0, done.stderr
    assert "about 4 min" in done.stdout and "nothing found" in done.stdout
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[2:] for row in cells] == [[t, "123457", "3982", "0"] for t in ("container", "chunks")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row[0]) for row in cells)
    of_targets = [c for c in calls if c.startswith("fuzz run")]
    assert len(of_targets) == 2 and all("-max_total_time=120 -runs=9" in c for c in of_targets)
    # Seeds are written before.
    assert any("write_seeds" in c for c in calls[: calls.index(of_targets[0])])
    # Rows are added to those that are there.
    _, rows, _ = run(place, RUSTC_BOOTSTRAP="1", TARGETS="chunks")
    assert len(rows) == 3


def test_findings_are_counted_named_and_make_it_fail(place: Path) -> None:
    done, rows, _ = run(place, RUSTC_BOOTSTRAP="1", TARGETS="zstd legacy container", JOBS="2")
    assert done.returncode == 1
    assert [row.split("|")[3:] for row in rows] == [
        [" zstd ", " 512 ", " 256 ", " 1 ", ""],
        # Ended by somebody else: progress is all there is.
        [" legacy ", " 4096 ", " 2048 ", " 1 ", ""],
        [" container ", " 123457 ", " 3982 ", " 0 ", ""],
    ]
    assert "/x/artifacts/zstd/crash-0123" in done.stdout and "ended with status 1" in done.stdout
    assert (place / "codec/fuzz/logs/zstd.log").read_text() == CRASH


@pytest.mark.parametrize(
    "settings, words",
    [
        ({}, "rustup toolchain install nightly"),
        ({"NO_FUZZ": "1"}, "cargo install cargo-fuzz --locked"),
        ({"SECONDS": "soon"}, "SECONDS=soon"),
        ({"JOBS": "0"}, "JOBS=0"),
        ({"TARGETS": "none"}, "there is no target 'none'"),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(place: Path, settings: dict[str, str], words: str) -> None:
    done, rows, calls = run(place, **settings)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert rows == [] and not any("run" in c for c in calls)


def test_nightly_is_used_where_it_is_there_but_not_the_default(place: Path) -> None:
    _, _, calls = run(place, NIGHTLY="1", TARGETS="chunks")
    assert any(c.startswith("+nightly fuzz run") for c in calls)


def test_targets_are_those_of_the_crate() -> None:
    manifest = (FUZZ / "Cargo.toml").read_text()
    script = (FUZZ / "run.py").read_text()
    names = re.findall(r'\[\[bin\]\]\nname = "(\w+)"', manifest)
    listed = re.search(r"^TARGETS = \((.*)\)$", script, re.MULTILINE)
    assert listed and re.findall(r'"(\w+)"', listed[1]) == names
    # The crate is a workspace of its own, and still uses what the others use.
    root = (FUZZ.parents[1] / "Cargo.toml").read_text().partition("[workspace.dependencies]")[2]
    ours, theirs = versions(manifest.partition("[dependencies]")[2]), versions(root)
    shared = {name: version for name, version in ours.items() if name in theirs}
    assert len(shared) == 5 and shared == {name: theirs[name] for name in shared}


def versions(dependencies: str) -> dict[str, str]:
    return dict(re.findall(r'^([\w-]+) = (?:\{ version = )?"([\d.]+)"', dependencies, re.MULTILINE))
