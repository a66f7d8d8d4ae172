"""Decoding alone, beside nvCOMP's ANS: runs the benchmark in Rust (codec/benches/gpu.rs), and takes what it wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .environments import Unavailable

REPOSITORY = Path(__file__).resolve().parents[3]

CASES = ("TinyLlama block", "1 GB")
"""Parts of the names of what is decoded."""
COMMAND = ("cargo", "bench", "--quiet", "--package", "wcodec", "--bench", "gpu", "--")


def command(binary: str | None) -> list[str]:
    """The benchmark, as it was built before or by cargo."""
    if binary is not None:
        return [binary]
    if shutil.which("cargo") is None:
        raise Unavailable("cargo is not installed, and --nvcomp-bench names no benchmark that was built before")
    return list(COMMAND)


def run(folder: Path, binary: str | None, quick: bool, limit: float) -> dict[str, Any]:
    """Rows of all cases, of which device, and why nvCOMP is not among them, if it is not.

    :raises Unavailable: with the reason.
    """
    start = command(binary)
    rows: list[dict[str, Any]] = []
    device: Any = None
    folder.mkdir(parents=True, exist_ok=True)
    said = ""
    for case in CASES:
        out = (folder / f"decoding-{case.split()[0]}.json").resolve()
        out.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                [*start, *(["--quick"] if quick else []), "--only", case], cwd=REPOSITORY, capture_output=True,
                text=True, errors="replace", timeout=limit, check=False, stdin=subprocess.DEVNULL,
                env={**os.environ, "WCODEC_BENCH_OUT": str(out)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unavailable(f"stopped after {limit:g} s, the limit of a row") from None
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
