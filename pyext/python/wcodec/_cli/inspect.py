"""``wcodec inspect``: what a container holds."""

from __future__ import annotations

import argparse
import fnmatch
import re
from typing import Any

from .. import _format as fmt
from .._container import Container
from .._metadata import lines as plan_facts
from .._metadata import plan_of, quality_of
from .._native import Facts, safe
from .output import document, put, say

# Tensors of a document that are written at once: so few that memory is used again.
_PART = 4096


def run(arguments: argparse.Namespace) -> int:
    """Prints the table, or everything as JSON."""
    matches = re.compile(fnmatch.translate(arguments.filter or "*")).match
    with Container.open(arguments.file, trusted=arguments.trust) as container:
        # There may be a hundred thousand tensors: what is done with each is native.
        facts = container._open.facts()
        count = facts.totals()[0]
        if arguments.filter is None:
            shown = list(range(count))
        else:
            shown = [place for place, name in enumerate(facts.names()) if matches(name)]
        if arguments.sort != "file":
            shown = facts.sorted(shown, arguments.sort)
        if arguments.json:
            parts = (part for i in range(0, len(shown), _PART) for part in facts.json(shown[i : i + _PART]))
            put(document("inspect", _record(container, facts)), parts)
            return 0
        lines = [facts.table(shown).rstrip("\n")]
        lines += [
            f"{safe(alias)} is tied to {safe(target)}" for alias, target in container.aliases.items() if matches(alias)
        ]
        lines.append("")
        lines += [safe(f"{name}: {fact}") for name, fact in plan_facts(container.metadata)]
        if len(shown) < count:
            lines.append(f"{fmt.plural(len(shown), 'tensor')} of {count:,} shown; totals are of the whole file")
        say("\n".join([*lines, _totals(container, facts)]))
    return 0


def _sums(container: Container, facts: Facts) -> dict[str, Any]:
    tensors, elements, original, in_tensors = facts.totals()
    stored = container.stored_bytes
    return {
        "tensors": tensors,
        "aliases": len(container.aliases),
        "elements": elements,
        "original_bytes": original,
        "stored_bytes": stored,
        "overhead_bytes": stored - in_tensors,
        "ratio": fmt.ratio(original, stored),
        "bits_per_weight": fmt.bits(stored, elements),
    }


def _totals(container: Container, facts: Facts) -> str:
    s = _sums(container, facts)
    major, minor = container.version
    tied = f" ({s['aliases']:,} more tied)" if s["aliases"] else ""
    figures = f"ratio {fmt.number(s['ratio'])}, {fmt.number(s['bits_per_weight'])} bits/weight"
    return (
        f"{fmt.plural(s['tensors'], 'tensor')}{tied}, {s['elements']:,} weights: {fmt.size(s['original_bytes'])} -> "
        f"{fmt.size(s['stored_bytes'])}, {figures}\n"
        f"index, header and padding: {fmt.size(s['overhead_bytes'])}; "
        f"format {major}.{minor}, written by {safe(container.writer)}"
    )


def _record(container: Container, facts: Facts) -> dict[str, Any]:
    return {
        "path": container.path,
        "format_version": list(container.version),
        "writer": container.writer,
        "metadata": container.metadata,
        "plan": plan_of(container.metadata),
        "quality": quality_of(container.metadata),
        "model": container.model,
        "totals": _sums(container, facts),
        "aliases": container.aliases,
    }
