"""Processes that end with all that they started: compilers, benchmarks and builds run in others, which ending only the
first would leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ends a process that leads a group of its own (start_new_session), and those that it started."""
    if process.poll() is None or os.name == "posix":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError, AttributeError):
            process.kill()
    process.wait()


def run(
    command: Sequence[str], limit: float, *, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command for at most ``limit`` seconds, and returns its output. No process of it remains, however this
    ends.

    :raises subprocess.TimeoutExpired: if it took longer.
    :raises OSError: if it cannot be started.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace",
        cwd=folder, env={**os.environ, **(environment or {})}, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            out, err = process.communicate(timeout=limit)
        finally:
            # Also after Ctrl-C, which goes to the group of this process and not to that one.
            kill(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)
