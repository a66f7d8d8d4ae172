"""Figures of all steps: lines of JSON that processes add to, and the file that they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]
SCHEMA = 1
REPOSITORY = Path(__file__).resolve().parents[3]


def add(path: Path, kind: str, **values: Any) -> None:
    """Adds a line, at once on disk: it stays when the process dies."""
    line = json.dumps({"kind": kind, **values})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read(path: Path) -> list[Json]:
    """All lines; one that a process had no time to finish is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def write(path: Path, about: Json, lines: list[Json]) -> None:
    """The whole report, replaced at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps({"schema": SCHEMA, **about, "results": lines}, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
