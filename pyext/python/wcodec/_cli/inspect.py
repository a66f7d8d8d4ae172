"""``wcodec inspect``: what a container holds."""

from __future__ import annotations

import argparse
import fnmatch
import re
from collections.abc import Callable
from typing import Any

from .. import _format as fmt
from .._container import Container, TensorEntry
from .._reports import TABLE_HEADINGS, TABLE_LEFT, table_row
from .output import document


def natural(name: str) -> list[Any]:
    """Sorts ``layers.10`` after ``layers.9``.

    >>> sorted(["h.10.w", "h.9.w", "h.9.b"], key=natural)
    ['h.9.b', 'h.9.w', 'h.10.w']
    """
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", name)]


_KEYS: dict[str, Callable[[TensorEntry], Any]] = {
    "natural": lambda t: natural(t.name),
    "name": lambda t: t.name,
    "size": lambda t: -t.original_bytes,
    "stored": lambda t: -t.stored_bytes,
    "ratio": lambda t: -(t.ratio or 0),
    "bits": lambda t: -(t.bits_per_weight or 0),
}
SORTS = ("natural", "file", *list(_KEYS)[1:])


def run(arguments: argparse.Namespace) -> int:
    """Prints the table, or everything as JSON."""
    with Container.open(arguments.file, trusted=arguments.trust) as container:
        everything = container.stored
        shown = [t for t in everything if fnmatch.fnmatchcase(t.name, arguments.filter or "*")]
        if arguments.sort != "file":
            shown.sort(key=_KEYS[arguments.sort])
        if arguments.json:
            print(document("inspect", _record(container, everything, shown)))
            return 0
        print(fmt.text_table(TABLE_HEADINGS, map(table_row, shown), TABLE_LEFT))
        for alias, target in container.aliases.items():
            if fnmatch.fnmatchcase(alias, arguments.filter or "*"):
                print(f"{alias} is tied to {target}")
        print()
        if len(shown) < len(everything):
            print(f"{fmt.plural(len(shown), 'tensor')} of {len(everything):,} shown; totals are of the whole file")
        print(_totals(container, everything))
    return 0


def _sums(container: Container, tensors: list[TensorEntry]) -> dict[str, Any]:
    original, elements = sum(t.original_bytes for t in tensors), sum(t.elements for t in tensors)
    stored = container.stored_bytes
    return {
        "tensors": len(tensors),
        "aliases": len(container.aliases),
        "elements": elements,
        "original_bytes": original,
        "stored_bytes": stored,
        "overhead_bytes": stored - sum(t.stored_bytes for t in tensors),
        "ratio": fmt.ratio(original, stored),
        "bits_per_weight": fmt.bits(stored, elements),
    }


def _totals(container: Container, tensors: list[TensorEntry]) -> str:
    s = _sums(container, tensors)
    major, minor = container.version
    tied = f" ({s['aliases']:,} more tied)" if s["aliases"] else ""
    figures = f"ratio {fmt.number(s['ratio'])}, {fmt.number(s['bits_per_weight'])} bits/weight"
    return (
        f"{fmt.plural(s['tensors'], 'tensor')}{tied}, {s['elements']:,} weights: {fmt.size(s['original_bytes'])} -> "
        f"{fmt.size(s['stored_bytes'])}, {figures}\n"
        f"index, header and padding: {fmt.size(s['overhead_bytes'])}; "
        f"format {major}.{minor}, written by {container.writer}"
    )


def _record(container: Container, everything: list[TensorEntry], shown: list[TensorEntry]) -> dict[str, Any]:
    return {
        "path": container.path,
        "format_version": list(container.version),
        "writer": container.writer,
        "metadata": container.metadata,
        "model": container.model,
        "totals": _sums(container, everything),
        "aliases": container.aliases,
        "tensors": [t.to_dict() for t in shown],
    }
