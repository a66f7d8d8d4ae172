"""Decoding alone, beside nvCOMP's ANS: runs the benchmark in Rust (codec/benches/gpu.rs), and takes what it wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from . import processes
from .environments import Unavailable

REPOSITORY = Path(__file__).resolve().parents[3]

CASES = ("TinyLlama block", "1 GB")
"""Parts of the names of what is decoded."""
COMMAND = ("cargo", "bench", "--quiet", "--package", "wcodec", "--bench", "gpu", "--")


def command(binary: str | None) -> list[str]:
    """The benchmark, as it was built before or by cargo."""
    if binary is not None:
        # A path is the user's, and the benchmark runs in another folder.
        return [os.path.abspath(binary)]
    if shutil.which("cargo") is None:
        raise Unavailable("cargo is not installed, and --nvcomp-bench names no benchmark that was built before")
    return list(COMMAND)


def run(folder: Path, binary: str | None, quick: bool, limit: float) -> dict[str, Any]:
    """Rows of all cases, of which device, and why nvCOMP is not among them, if it is not. After at most ``limit``
    seconds.

    :raises Unavailable: with the reason.
    """
    start = command(binary)
    rows: list[dict[str, Any]] = []
    device: Any = None
    folder.mkdir(parents=True, exist_ok=True)
    said = ""
    begin = time.monotonic()
    for case in CASES:
        out = (folder / f"decoding-{case.split()[0]}.json").resolve()
        out.unlink(missing_ok=True)
        try:
            done = processes.run(
                [*start, *(["--quick"] if quick else []), "--only", case],
                max(begin + limit - time.monotonic(), 0.0), folder=REPOSITORY,
                environment={"WCODEC_BENCH_OUT": str(out)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unavailable(f"stopped after {limit:.3g} s, the limit of decoding alone") from None
        except OSError as error:
            raise Unavailable(f"{start[0]}: {error}") from None
        if done.returncode or not out.exists():
            lines = [x for x in (done.stderr or done.stdout).splitlines() if x.strip()]
            raise Unavailable(lines[-1][:300] if lines else f"exit status {done.returncode}")
        said += done.stdout
        found = json.loads(out.read_text(encoding="utf-8"))
        device = found["device"]
        rows += found["results"]
    missing = next((x.strip() for x in said.splitlines() if x.startswith("without nvCOMP")), None)
    version = next((x.split()[1] for x in said.splitlines() if x.startswith("nvCOMP ")), None)
    return {"rows": rows, "device": device, "nvcomp": version, "reason": missing}
