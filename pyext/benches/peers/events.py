"""Messages from the process of a peer to its parent: a line of JSON for each, in a file that both know.

A file, because libraries print where they like, and because what was written stays when a process dies.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Writer:
    """Adds events, each at once on disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def tell(self, what: str, **values: Any) -> None:
        self._file.write(json.dumps({"what": what, **values}) + "\n")
        self._file.flush()


class Reader:
    """Events that were added since the last look; a line that is not finished waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> list[Event]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
