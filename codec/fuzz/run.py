"""Runs the fuzz targets, reports their findings, and adds a row for each to `runs.md`. `make fuzz` calls it.

Settings are environment variables: SECONDS (of each target, 60), RUNS (inputs of each target, no limit), TARGETS (all),
JOBS (targets side by side, 1). A finding ends its target; the input is kept in `artifacts/`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TARGETS = ("container", "chunks", "rate", "zstd", "safetensors", "gguf", "legacy", "file")
# Inputs are small, so that many are tried: larger ones only repeat the same work.
LIBFUZZER = ("-max_len=4096", "-malloc_limit_mb=64", "-rss_limit_mb=2048", "-timeout=20", "-print_final_stats=1")
# Comparisons in the decoders' inner loops are not traced: that took a third of the time.
CARGO_FUZZ = ("--no-trace-compares",)
HEAD = "| date | commit | target | inputs | inputs/s | findings |\n|---|---|---|---:|---:|---:|\n"


class Stop(Exception):
    """A missing tool or wrong setting, with advice."""


@dataclass
class Outcome:
    """The outcome of a run of a target."""

    target: str
    inputs: int
    per_second: int
    findings: list[str]

    def row(self, day: str, commit: str) -> str:
        return f"| {day} | {commit} | {self.target} | {self.inputs} | {self.per_second} | {len(self.findings)} |\n"


def main() -> int:
    try:
        seconds, runs, jobs = number("SECONDS", 60), number("RUNS", -1), number("JOBS", 1)
        targets = chosen(os.environ.get("TARGETS", ""))
        cargo = toolchain()
    except Stop as e:
        print(f"make fuzz: {e}", file=sys.stderr)
        return 2
    limit = f"{seconds} s" + (f" or {runs} inputs" if runs >= 0 else "")
    minutes = max(1, -(-len(targets) // jobs) * seconds // 60)
    print(
        f"{', '.join(targets)}: {limit} each, {jobs} side by side; about {minutes} min once they are built", flush=True
    )
    build = subprocess.run([*cargo, "build", *CARGO_FUZZ], cwd=HERE.parent, check=False)
    if build.returncode != 0:
        return 2
    seeds = ("test", "--quiet", "--package", "wcodec", "--test", "fuzz", "--", "--ignored", "write_seeds")
    subprocess.run(["cargo", *seeds], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    logs = HERE / "logs"
    logs.mkdir(exist_ok=True)
    # Files in memory spare targets `safetensors` and `gguf` the wait for a disk.
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        begun = [pool.submit(run, cargo, t, seconds, runs, folder, logs / f"{t}.log") for t in targets]
        outcomes = [b.result() for b in begun]
    add_rows(HERE / "runs.md", [o.row(date.today().isoformat(), commit()) for o in outcomes])
    for o in outcomes:
        print(f"{o.target:<12}{o.inputs:>12} inputs{o.per_second:>8}/s  {'; '.join(o.findings) or 'nothing found'}")
    return 1 if any(o.findings for o in outcomes) else 0


def number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if text.isdecimal() and int(text) > 0 or text == str(default):
        return int(text)
    raise Stop(f"{name}={text} is not a number of 1 or more")


def chosen(text: str) -> list[str]:
    targets = text.replace(",", " ").split() or list(TARGETS)
    for target in targets:
        if target not in TARGETS:
            raise Stop(f"there is no target '{target}' (there are: {' '.join(TARGETS)})")
    return targets


def toolchain() -> list[str]:
    """The command prefix of all calls of cargo-fuzz."""

    def says(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE).stdout
        except (OSError, subprocess.CalledProcessError):
            return ""

    if not says("cargo", "fuzz", "--version"):
        raise Stop("cargo-fuzz is missing (cargo install cargo-fuzz --locked)")
    if "nightly" in says("rustc", "--version") or os.environ.get("RUSTC_BOOTSTRAP") == "1":
        return ["cargo", "fuzz"]
    if says("cargo", "+nightly", "--version"):
        return ["cargo", "+nightly", "fuzz"]
    raise Stop("a nightly toolchain is missing (rustup toolchain install nightly)")


def run(cargo: list[str], target: str, seconds: int, runs: int, folder: str, log: Path) -> Outcome:
    limits = [f"-max_total_time={seconds}", f"-runs={runs}"]
    environment = {
        **os.environ,
        "TMPDIR": folder,
        # Each target gets one core.
        "RAYON_NUM_THREADS": "1",
        "ASAN_OPTIONS": "malloc_context_size=4:" + os.environ.get("ASAN_OPTIONS", ""),
    }
    command = [*cargo, "run", *CARGO_FUZZ, target, "--", *LIBFUZZER, *limits]
    with log.open("w") as out:
        done = subprocess.run(command, cwd=HERE.parent, env=environment, stdout=out, stderr=out, check=False)
    return read_log(target, log.read_text(errors="replace"), done.returncode)


def read_log(target: str, log: str, status: int) -> Outcome:
    """Parses libFuzzer's final statistics or, if it ended too early for these, its last line of progress."""

    def last(pattern: str) -> int:
        found = re.findall(pattern, log, re.MULTILINE)
        return int(found[-1]) if found else 0

    inputs = last(r"^stat::number_of_executed_units:\s*(\d+)") or last(r"^#(\d+)\t")
    per_second = last(r"^stat::average_exec_per_sec:\s*(\d+)") or last(r"exec/s: (\d+)")
    findings = re.findall(r"Test unit written to (\S+)", log)
    if status != 0 and not findings:
        findings = [f"ended with status {status}: see codec/fuzz/logs/{target}.log"]
    return Outcome(target, inputs, per_second, findings)


def commit() -> str:
    """The commit, with a `+` if files other than `runs.md` have changed since."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "codec", "kernels", ":!codec/fuzz/runs.md")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def add_rows(path: Path, rows: list[str]) -> None:
    text = path.read_text()
    if HEAD not in text:
        raise SystemExit(f"{path} has lost the head of its table")
    path.write_text(text + "".join(rows))


if __name__ == "__main__":
    if shutil.which("cargo") is None:
        sys.exit("make fuzz: Rust is missing (https://rustup.rs)")
    sys.exit(main())
