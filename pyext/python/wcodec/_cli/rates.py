"""Checks of ``wcodec roundtrip`` for scheme ``rate``, with :mod:`._cli.reference`.

The encoder is free to choose levels and scales. Their values are not a matter of choice. With a trellis, the levels
have to be a path through it. The error has to be the one that the file states, and the bits as many as were asked for.
Every way to decode has to give the same values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._core.errors import InputError
from .._core.option_table import CODERS, TILED_CODERS
from .._core.options import decode_options
from .._core.reports import RateSummary
from .._file.container import TensorEntry
from . import reference

Array = npt.NDArray[Any]
#: A difference: a word for it, and the details.
Difference = tuple[str, str]

# FORMAT.md has no such bound; the encoder says that it meets targets to half a percent.
_OFF_TARGET = 0.005
# Weights from which on that is so: of fewer, what a table and the padding of odd shapes take makes jumps.
_FEW = 1 << 20
# A level whose number is this large is at the end of its range, with a trellis or without: then no step is finer.
_OUTERMOST = 124
# A bound in four digits is this near to what it is of; sums of squares in another order are as near as that.
_NEAR = 1.002
_ROUNDING = 1e-9


def coders(asked: list[str], trellis: bool | None) -> list[str]:
    """Those to try: of all that there are, the ones that scheme ``rate`` makes something of."""
    if set(asked) == set(CODERS):
        # Coder raw is left out: it stores 8 bits, whatever is asked for.
        return list(TILED_CODERS) if trellis else [c for c in asked if c != "raw"]
    wrong = [c for c in asked if c not in TILED_CODERS]
    if trellis and wrong:
        raise InputError(
            f"a trellis with coder {wrong[0]} (use --coder rans,huffman, or leave --trellis out)", code="I312"
        )
    return asked


class Judge:
    """Compares the tensors of a file with what they were made from, and remembers how far their levels reach."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._outermost = 0

    def check(
        self, entry: TensorEntry, source: reference.Checkpoint, restored: reference.Checkpoint
    ) -> Iterator[Difference]:
        """The differences found in a tensor."""
        view = reference.View(entry.count * entry.rows, entry.cols, entry.row_axis)
        kind = np.dtype(reference._BITS[entry.dtype])
        before, after = (view.of(file.data(entry.name).view(kind)) for file in (source, restored))
        levels = view.of(np.ascontiguousarray(entry.symbols(threads=self._threads)).reshape(-1))
        self._outermost = max(self._outermost, int(levels.max()), -1 - int(levels.min()))
        scales = _rows_of(entry)
        yield from _of_scales(scales, view)
        yield from _of_values(entry, view, levels, scales, after)
        if entry.planes[0].filter == "trellis":
            yield from _of_path(view, levels, entry.planes[0].tile or view.cols)
        yield from _of_error(entry, view, before, after)
        yield from _of_ways(entry, restored, self._threads)

    def target(self, bits: float, summary: RateSummary | None) -> Iterator[Difference]:
        """Whether the weights of a file that was checked take the bits that were asked for."""
        if summary is None or summary.weights < _FEW:
            return
        measured = summary.bits_per_weight
        too_few = measured < bits * (1 - _OFF_TARGET) and self._outermost < _OUTERMOST
        if too_few or measured > bits * (1 + _OFF_TARGET):
            yield "bits", f"{measured:.4f} bits per weight, not {bits:g}"


def _rows_of(entry: TensorEntry) -> Array:
    """Scales by row of the matrices."""
    scales = entry.scales()
    return np.ascontiguousarray(scales.T if entry.row_axis == 1 else scales).reshape(-1)


def _of_scales(scales: Array, view: reference.View) -> Iterator[Difference]:
    if scales.size != view.rows:
        yield "scales", f"{scales.size} for {view.rows} rows"
    wrong = ~np.isfinite(scales) | (scales < 0) | (scales.view(np.uint32) & 0xFFFF != 0)
    for row in np.flatnonzero(wrong)[:1]:
        yield "scales", f"{scales[row]} of row {row} is no bfloat16 from 0 on"


def _of_values(
    entry: TensorEntry, view: reference.View, levels: Array, scales: Array, decoded: Array
) -> Iterator[Difference]:
    row = 0
    for part, values in zip(view.slices(levels), view.slices(decoded), strict=True):
        want = reference.values_of_levels(part, scales[row : row + len(part), None], entry.dtype)
        for r, c in np.argwhere(want.view(values.dtype) != values)[:1]:
            yield "values", f"{values[r, c]} at row {row + r}, column {c}, not {want[r, c]}"
            return
        row += len(part)


def _of_path(view: reference.View, levels: Array, tile: int) -> Iterator[Difference]:
    row = 0
    for part in view.slices(levels):
        for r, c in np.argwhere(reference.off_the_path(part, tile))[:1]:
            yield "trellis", f"level {part[r, c]} at row {row + r}, column {c} is none that the path can be at"
            return
        row += len(part)


def _of_error(entry: TensorEntry, view: reference.View, before: Array, after: Array) -> Iterator[Difference]:
    measured = reference.relative_error(view.slices(before), view.slices(after), entry.dtype)
    stated = entry.error
    if stated is None or not measured <= stated * (1 + _ROUNDING) or stated > measured * _NEAR:
        yield "error", f"{measured:.6g} of the source's root mean square, and {stated} is stated"


def _of_ways(entry: TensorEntry, restored: reference.Checkpoint, threads: int | None) -> Iterator[Difference]:
    """Decodes with every instruction set, and by rows that begin and end anywhere."""
    expected, opened = restored.data(entry.name), entry._container._open

    def differs(words: Array, length: int, begin: int, what: str) -> Iterator[Difference]:
        actual = words.view(np.uint8)[:length]
        if not np.array_equal(actual, expected[begin : begin + length]):
            yield "bytes", f"{what} gives other bytes than decoding the file"

    for isa in _native.instruction_sets()[0]:
        yield from differs(*opened.read(entry._stored_name, None, decode_options(threads, isa)), 0, isa)
    rows = entry.shape[0]
    size, step = expected.size // rows, max(math.ceil(rows / 3), 1)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        actual = opened.read_rows(entry._stored_name, begin, end, None, decode_options(threads))
        yield from differs(*actual, begin * size, f"decoding rows {begin} to {end}")
