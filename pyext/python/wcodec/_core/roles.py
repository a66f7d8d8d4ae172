"""Roles, which tensors of all layers have in common, and the grid of layers and roles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import format as fmt
from .terminal import Table, table

if TYPE_CHECKING:
    from .._native import Facts
    from .tensor_info import TensorInfo

HEADINGS = ("role", "tensors", "scheme", "weights", "original", "stored", "of file", "ratio", "bits/weight", "error")
# A narrow terminal shows the others.
DISPENSABLE = ("error", "weights", "original", "scheme", "ratio", "tensors", "of file")
# So many columns are flush left in HTML; text has more numbers that way.
_LEFT = 1


def role_of(name: str) -> str:
    """The name with a star for each of its parts that is a number, as in ``wcodec plan`` and in the inspector.

    >>> role_of("model.layers.11.mlp.up_proj.weight"), role_of("conv1.weight")
    ('model.layers.*.mlp.up_proj.weight', 'conv1.weight')
    """
    return ".".join("*" if _is_number(part) else part for part in name.split("."))


def place_of(name: str) -> tuple[str, int | None, str]:
    """The place of a tensor: the stack of layers that it is in, the number of its layer, and its role there; without a
    layer, all of its name is the role.

    >>> place_of("model.layers.11.mlp.experts.3.w1.weight")
    ('model.layers', 11, 'mlp.experts.*.w1.weight')
    >>> place_of("lm_head.weight")
    ('', None, 'lm_head.weight')
    """
    parts = name.split(".")
    for i, part in enumerate(parts):
        if _is_number(part) and len(part) < 10:
            rest = parts[i + 1 :] or [*parts[:i], "*"]
            return ".".join(parts[:i]), int(part), role_of(".".join(rest))
    return "", None, name


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit()


@dataclass
class Cell:
    """Tensors of one layer that have the same role, such as experts: their sums."""

    names: list[str] = field(default_factory=list)
    elements: int = 0
    original: int = 0
    stored: int = 0
    seconds: float = 0.0
    _squares: float = 0.0
    _judged: int = 0

    def add(self, name: str, elements: int, original: int, stored: int, error: float | None) -> None:
        """Counts one more."""
        self.names.append(name)
        self.elements += elements
        self.original += original
        self.stored += stored
        if error is not None:
            self._squares += error * error * elements
            self._judged += elements

    @property
    def bits(self) -> float | None:
        """Stored bits per weight."""
        return fmt.bits(self.stored, self.elements)

    @property
    def ratio(self) -> float | None:
        """Original bytes per stored byte."""
        return fmt.ratio(self.original, self.stored)

    @property
    def error(self) -> float | None:
        """The stated errors, each as it counts."""
        return (self._squares / self._judged) ** 0.5 if self._judged else None


@dataclass
class Grid:
    """Tensors by layer and role."""

    layers: list[int]
    rows: dict[str, dict[int, Cell]]
    """Rows by role, in natural order: the cell of each layer."""
    others: dict[str, Cell]
    """Tensors in no layer."""

    @property
    def has_cells(self) -> bool:
        """Whether there is any."""
        return bool(self.rows or self.others)

    def cells(self) -> Iterable[Cell]:
        """All of them."""
        for row in self.rows.values():
            yield from row.values()
        yield from self.others.values()


# Name, dimensions, elements, bytes before encoding, stored bytes, and the error that is stated.
Figures = tuple[str, int, int, int, int, float | None]


def grid_of(facts: Facts, vectors: bool = False) -> Grid:
    """The grid of a file's tensors; vectors, such as norms and biases, are left out unless they are asked for."""
    names = facts.names()
    order = facts.sorted(list(range(len(names))), "name")
    figures = zip(order, facts.figures(order), strict=True)
    return grid_of_figures(((names[place], *rest) for place, rest in figures), vectors)


def grid_of_figures(tensors: Iterable[Figures], vectors: bool = False) -> Grid:
    """The grid of any tensors, in their order."""
    rows: dict[tuple[str, str], dict[int, Cell]] = {}
    others: dict[str, Cell] = {}
    for name, dimensions, elements, original, stored, error in tensors:
        if (dimensions < 2 and not vectors) or not elements:
            continue
        stack, layer, role = place_of(name)
        row = None if layer is None else rows.setdefault((stack, role), {})
        cell = others.setdefault(role, Cell()) if row is None or layer is None else row.setdefault(layer, Cell())
        cell.add(name, elements, original, stored, error)
    # The stack is named where there are several.
    several = len({stack for stack, _ in rows}) > 1
    labelled = {f"{stack}.*.{role}" if several else role: rows[stack, role] for stack, role in sorted(rows)}
    layers = sorted({layer for cells in labelled.values() for layer in cells})
    return Grid(layers, labelled, others)


def figures_of(infos: Iterable[TensorInfo]) -> list[Figures]:
    """The figures that a grid is made of."""
    return [(t.name, len(t.shape), t.elements, t.original_bytes, t.stored_bytes, t.error) for t in infos]


def label(role: str) -> str:
    """A role as it stands beside a picture: nearly all are weights.

    >>> label("mlp.up_proj.weight"), label("q_proj.bias")
    ('mlp.up_proj', 'q_proj.bias')
    """
    return role.removesuffix(".weight") or role


def role_rows(facts: Facts, places: Sequence[int], file_bytes: int) -> list[tuple[str, ...]]:
    """A line for each role of some tensors, the most stored bytes first."""
    return [
        (
            role,
            f"{count:,}",
            schemes,
            f"{elements:,}",
            fmt.size(original),
            fmt.size(stored),
            f"{100 * stored / file_bytes:.1f} %" if file_bytes else "-",
            fmt.number(fmt.ratio(original, stored)),
            fmt.number(fmt.bits(stored, elements)),
            fmt.number(error, 4),
        )
        for role, schemes, count, elements, original, stored, error in facts.roles(list(places))
    ]


def role_table(rows: Sequence[tuple[str, ...]], most: int | None = None, colors: bool = False) -> Table:
    """These lines as text; without errors where none is stated."""
    headings, rows = without_empty(HEADINGS, rows)
    drop = [name for name in DISPENSABLE if name in headings]
    return table(headings, rows, _LEFT, most=most, drop=drop, colors=colors)


def without_empty(
    headings: Sequence[str], rows: Sequence[tuple[str, ...]], column: str = "error"
) -> tuple[Sequence[str], Sequence[tuple[str, ...]]]:
    """A table without a column that has nothing in it."""
    at = headings.index(column)
    if any(row[at] != "-" for row in rows):
        return headings, rows
    return [*headings[:at], *headings[at + 1 :]], [(*row[:at], *row[at + 1 :]) for row in rows]
