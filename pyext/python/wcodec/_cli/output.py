"""What the subcommands print, and how."""

from __future__ import annotations

import json
import sys
from typing import Any

SCHEMA_VERSION = 1
"""Version of the JSON documents; it grows when a key changes its meaning or goes away, not when one is added."""


def document(command: str, body: dict[str, Any]) -> str:
    """A JSON document of a subcommand."""
    return json.dumps({"schema_version": SCHEMA_VERSION, "command": command, **body}, indent=2)


def show_progress(quiet: bool) -> bool:
    """A bar is for people who watch: not for a log file, and not when it was asked not to."""
    return not quiet and sys.stderr.isatty()
