"""``wcodec compare``: what two containers have that is not the same."""

from __future__ import annotations

import argparse
from collections import Counter

from .. import _native
from .._core import format as fmt
from .._core.reports import COMPARISON_HEADINGS, ComparedTensor, comparison_row
from .._core.roles import role_of
from .._core.tensor_info import TensorInfo
from .._core.terminal import columns, has_colors
from .._file.container import Container
from .output import document, prose, put, say, show, tabulate

_ROLE_HEADINGS = ("role", "status", "tensors", "stored a", "stored b", "bits/weight a", "bits/weight b")
_ROLE_DISPENSABLE = ("bits/weight a", "stored a", "tensors")
# Roles say enough if more tensors differ.
_FEW = 12
_Facts = tuple[_native.Facts, _native.Facts]


def run(arguments: argparse.Namespace) -> int:
    """``wcodec compare``"""
    a = arguments
    with Container.open(a.a, trusted=a.trust) as first, Container.open(a.b, trusted=a.trust) as second:
        comparison = _native.compare(first._open, second._open)
        facts = first._open.facts(), second._open.facts()
        sizes = first.stored_bytes, second.stored_bytes
    same = comparison.same()
    if a.json:
        put(document("compare", {"a": a.a, "b": a.b, "same": same}), comparison.json())
        return 0 if same else 1
    rows = comparison.rows()
    different = [row for row in rows if row[1] != "same"]
    if a.all or different:
        _compared(rows if a.all else different, facts, comparison if a.all else None)
    count = len(rows) - len(different)
    if different and not a.all:
        prose(f"different: {fmt.plural(len(different), 'tensor')}; the same: {count:,} (--all lists all of them)")
    where = f": {fmt.plural(count, 'tensor')}" if same and not a.all else ""
    prose(f"stored: {fmt.size(sizes[0])} and {fmt.size(sizes[1])}")
    prose(f"same{where}" if same else "different", "good" if same else "bad")
    return 0 if same else 1


def _compared(
    differences: list[tuple[str, str, str, int | None, int | None]],
    facts: _Facts,
    comparison: _native.Comparison | None,
) -> None:
    """Sums by role, then a line for each tensor.

    :param comparison: the native comparison if it is of all of them; it makes the table for pipes.
    """
    sums: dict[str, _Side] = {}
    for name, status, _, *places in differences:
        side = sums.setdefault(role_of(name), _Side())
        side.statuses[status] += 1
        for i, place in enumerate(places):
            if place is not None:
                side.places[i].append(place)
    by_role = len(sums) < len(differences)
    if by_role:
        tabulate(_ROLE_HEADINGS, [(role, *side.cells(facts)) for role, side in sums.items()], 2, _ROLE_DISPENSABLE)
        say()
    most, colors = columns(), has_colors()
    if comparison is not None and most is None and not colors:
        show(comparison.table().rstrip("\n"))
        return
    rows = []
    for name, status, detail, *places in differences:
        a, b = (None if p is None else TensorInfo._at(f, p) for f, p in zip(facts, places, strict=True))
        rows.append(ComparedTensor(name, status, a, b, detail))
    if comparison is not None or not by_role or len(rows) <= _FEW:
        tabulate(COMPARISON_HEADINGS, map(comparison_row, rows), 2, ("bits/weight a", "bits/weight b", "stored a"))
    # Mostly all layers have the same, or all tensors.
    alike: dict[str, list[str]] = {}
    for row in rows:
        if row.detail:
            alike.setdefault(row.detail, []).append(row.name)
    for detail, names in alike.items():
        roles = {role_of(name) for name in names}
        what = names[0] if len(names) == 1 else fmt.plural(len(names), "tensor")
        prose(f"{f'{roles.pop()} ({len(names):,})' if len(names) > 1 and len(roles) == 1 else what}: {detail}")


class _Side:
    """Tensors of one role in two files."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.places: tuple[list[int], list[int]] = ([], [])

    def cells(self, facts: _Facts) -> tuple[str, ...]:
        """Their status, how many there are, and what they take."""
        stored, bits = [], []
        for side, places in zip(facts, self.places, strict=True):
            figures = side.figures(places)
            total = sum(figure[3] for figure in figures)
            stored.append(fmt.size(total) if figures else "-")
            bits.append(fmt.number(fmt.bits(total, sum(figure[1] for figure in figures))))
        alike = len(self.statuses) == 1
        status = next(iter(self.statuses)) if alike else ", ".join(f"{n:,} {s}" for s, n in self.statuses.items())
        return status, f"{self.statuses.total():,}", *stored, *bits
