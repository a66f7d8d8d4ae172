"""Calls of the command within the tests' process, and its JSON; files to be at work on, and what is in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wcodec import cli

Cli = Callable[..., tuple[int, str, str]]


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, and all that was printed since the last call."""
    try:
        status = cli.main([str(a) for a in arguments])
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def document(text: str, command: str) -> dict[str, Any]:
    # Python alone reads Infinity and NaN.
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    assert found["schema_version"] == 2 and found["command"] == command
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by their paths in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def flip(path: Path, at: int) -> None:
    """Changes a bit, as a disk does that errs: the system knows nothing of it."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 8]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def endless_model(path: Path) -> Path:
    """A sparse file: large enough to be at work for long, yet it takes no room on disk."""
    rows, cols, tensors = 8192, 8192, 64
    size = rows * cols * 4
    header = json.dumps({
        f"t{i}": {"dtype": "F32", "shape": [rows, cols], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(tensors)
    }).encode()  # fmt: skip
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + tensors * size)
    return path
