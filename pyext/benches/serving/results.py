"""Figures of all steps: lines of JSON that processes add to, and the file that they become."""

from __future__ import annotations

import json
import os
import subprocess
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


def commit(repository: Path = REPOSITORY) -> str:
    """The commit that is measured; ``WCODEC_COMMIT`` names it where the repository's history is not there."""
    given = os.environ.get("WCODEC_COMMIT")
    if given:
        return given
    try:
        head = _git(repository, "rev-parse", "--short=12", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}, with changes" if changed else head


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def driver() -> str | None:
    """The version of the GPU's driver, if nvidia-smi tells it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None


def write(path: Path, about: Json, lines: list[Json]) -> None:
    """The whole report, replaced at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps({"schema": SCHEMA, **about, "results": lines}, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
