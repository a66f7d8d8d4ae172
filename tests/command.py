"""Calls of the command within the tests' process, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    found: dict[str, Any] = json.loads(text)
    assert found["schema_version"] == 1 and found["command"] == command
    return found
