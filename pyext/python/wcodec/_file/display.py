"""Displays of containers: text of a terminal's width, and HTML for notebooks."""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterator, KeysView
from typing import TYPE_CHECKING

from .._core import format as fmt
from .._core import tensor_info
from .._core.colors import SCALES, TITLES, between, part_of
from .._core.roles import HEADINGS, Cell, Grid, grid_of, label, role_rows, role_table, without_empty
from .._core.tensor_info import TABLE_DISPENSABLE, TABLE_HEADINGS, TABLE_LEFT
from .._core.terminal import pairs, shortened, table
from .._native import safe

if TYPE_CHECKING:
    from .container import Container

# Rows of a table in a terminal: the first ones and the last ones.
_ROLES = 12
_TENSORS = 8
_NAMES = 40
# A picture of more cells than this would make a notebook slow.
_CELLS = 4000
_ROWS = 40
_WIDTH, _HEIGHT, _LABELS = 560, 15, 200


def _columns() -> int:
    return shutil.get_terminal_size().columns


def _ends(count: int, most: int) -> tuple[list[int], list[int]]:
    """Places of the first and of the last ones, if there are too many."""
    if count <= most:
        return list(range(count)), []
    return list(range(most - most // 2)), list(range(count - most // 2, count))


def _with_gap(rows: list[tuple[str, ...]], most: int) -> list[tuple[str, ...]]:
    """The first and the last rows, and what is left out between them."""
    first, last = _ends(len(rows), most)
    if not last:
        return rows
    gap = (f"... {len(rows) - len(first) - len(last):,} more", *[""] * (len(rows[0]) - 1))
    return [*(rows[i] for i in first), gap, *(rows[i] for i in last)]


def text_of(container: Container) -> str:
    """The text for a terminal: facts, sums by role, the first and the last tensors in natural order."""
    facts = container._open.facts()
    names, most = facts.names(), _columns()
    order = facts.sorted(list(range(len(names))), "name")
    parts = [f"Container({shortened(safe(container.path or 'in memory'), max(most - 11, 20))})"]
    parts.append(pairs(container._facts()[1:], most))
    rows = role_rows(facts, order, container.stored_bytes)
    if len(rows) < len(names):
        parts.append(role_table(_with_gap(rows, _ROLES), most).text)
    if names:
        first, last = _ends(len(names), _TENSORS)
        lines = [tensor_info.table_row(container._entry(facts, order[i], names[order[i]])) for i in first]
        if last:
            lines.append((f"... {len(names) - len(first) - len(last):,} more", *[""] * (len(TABLE_HEADINGS) - 1)))
        lines += [tensor_info.table_row(container._entry(facts, order[i], names[order[i]])) for i in last]
        parts.append(table(TABLE_HEADINGS, lines, TABLE_LEFT, most=most, drop=TABLE_DISPENSABLE).text)
    return "\n\n".join(parts)


def html_of(container: Container) -> str:
    """The HTML for a notebook: bits by layer and role, facts, sums by role, and all tensors folded away."""
    facts = container._open.facts()
    names = facts.names()
    order = facts.sorted(list(range(len(names))), "name")
    grid = grid_of(facts)
    picture = svg(grid) if is_drawn(grid) else ""
    headings, rows = without_empty(HEADINGS, role_rows(facts, order, container.stored_bytes))
    roles = fmt.html_table(headings, rows) if len(rows) < len(names) else ""
    lines = (tensor_info.table_row(container._entry(facts, i, names[i])) for i in order)
    folded = fmt.html_folded(fmt.plural(len(rows), "role"), roles) if picture and roles else ""
    folded += fmt.html_folded(
        fmt.plural(len(names), "tensor"), fmt.html_table(TABLE_HEADINGS, lines, TABLE_LEFT, count=len(names))
    )
    return fmt.html_block("Container", container._facts(), picture or roles, after=folded)


def is_drawn(grid: Grid) -> bool:
    """Whether there is something to see, and not too much of it."""
    cells = sum(map(len, grid.rows.values()))
    return len(grid.layers) > 1 and 0 < cells <= _CELLS and len(grid.rows) + len(grid.others) <= _ROWS


def svg(grid: Grid) -> str:
    """Bits per weight by layer and role. Text has the notebook's own colour."""
    stops = SCALES["bits"]
    values = [cell.bits for cell in grid.cells() if cell.bits is not None]
    low, high = min(values), max(values)
    width = max(5.0, min(30.0, _WIDTH / len(grid.layers)))
    across = width * len(grid.layers)

    def rect(x: float, y: float, wide: float, cell: Cell) -> str:
        more = f" and {len(cell.names) - 1:,} more" if len(cell.names) > 1 else ""
        caption = f"{safe(cell.names[0])}{more}: {fmt.number(cell.bits)} bits/weight, {fmt.size(cell.stored)}"
        color = between(stops, part_of(cell.bits or 0.0, low, high))
        return (
            f'<rect x="{x:.1f}" y="{y}" width="{wide - 1:.1f}" height="{_HEIGHT - 1}" fill="{color}">'
            f"<title>{html.escape(caption)}</title></rect>"
        )

    def text(x: float, y: float, caption: str, anchor: str = "start") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(safe(caption))}</text>'

    parts: list[str] = []
    y = 2 * _HEIGHT + 4
    for role, cells in grid.rows.items():
        parts.append(text(_LABELS - 6, y + 11, shortened(label(role), 30), "end"))
        parts += [rect(_LABELS + width * i, y, width, cells[n]) for i, n in enumerate(grid.layers) if n in cells]
        y += _HEIGHT
    step = max(1, -(-18 // int(width)))
    for i in range(0, len(grid.layers), step):
        parts.append(text(_LABELS + width * (i + 0.5), y + 12, str(grid.layers[i]), "middle"))
    parts.append(text(_LABELS - 6, y + 12, "layer", "end"))
    y += _HEIGHT + 6
    for role, cell in grid.others.items():
        parts.append(text(_LABELS - 6, y + 11, shortened(label(role), 30), "end"))
        parts.append(rect(_LABELS, y, across, cell))
        y += _HEIGHT
    # The scale, above.
    shades = 24
    parts += [
        f'<rect x="{_LABELS + 5 * i}" y="{_HEIGHT + 1}" width="5.5" height="8" '
        f'fill="{between(stops, i / (shades - 1))}"/>'
        for i in range(shades)
    ]
    parts.append(text(_LABELS, _HEIGHT - 3, f"{TITLES['bits']}, by role and layer: {low:.2f} to {high:.2f}"))
    total = max(_LABELS + across, _LABELS + 340) + 6
    style = "font:11px sans-serif;fill:currentColor"
    return (
        f'<svg viewBox="0 0 {total:.0f} {y + 4}" width="{total:.0f}" height="{y + 4}" '
        f'style="display:block;max-width:100%" xmlns="http://www.w3.org/2000/svg">'
        f'<g style="{style}">{"".join(parts)}</g></svg>'
    )


class Names(KeysView[str]):
    """The names of a container's tensors, in its order: what ``keys()`` returns."""

    def __repr__(self) -> str:
        names = list(self)
        first, last = _ends(len(names), _NAMES)

        def lines() -> Iterator[str]:
            yield f"names of {fmt.plural(len(names), 'tensor')}:"
            yield from (safe(names[i]) for i in first)
            if last:
                yield f"... {len(names) - len(first) - len(last):,} more"
                yield from (safe(names[i]) for i in last)

        most = _columns()
        return "\n  ".join(shortened(line, most - 2) for line in lines())
