"""The heat map of layers and roles."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.colors import MEASURES, NEUTRAL, SCALES, TITLES, between, ink_on, is_flat, part_of
from .._core.errors import InputError
from .._core.options import choice
from .._core.roles import Cell, Grid, grid_of, label
from .._gpu import devices
from .._gpu import torch as _torch
from .draw import axes, caption

if TYPE_CHECKING:
    from .._file.container import Container

# More layers than this leave no room for figures in cells.
_WRITTEN = 14
# A tensor that is decoded sooner than this is decoded a few times, and the fastest counts.
_SHORT_SECONDS = 0.05
_ROUNDS = 3
_LAUNCHES = 10
_SHADES = 256
# The largest value over the smallest that a logarithmic scale tells from it.
_DECADES = 1e3


def heatmap(
    container: Container,
    by: str,
    ax: Any,
    *,
    vectors: bool,
    device: Any,
    threads: int | None,
) -> Any:
    """Draws that of a container: see :meth:`~wcodec._plot.ContainerPlots.heatmap`."""
    choice("by", by, MEASURES)
    if by != "speed" and (device is not None or threads is not None):
        option = "threads" if device is None else "device"
        raise InputError(
            f"{option} goes with by='speed' only, for which tensors are decoded (leave it out)", code="I306"
        )
    grid = grid_of(container._open.facts(), vectors)
    if by == "speed":
        _measure(container, grid, device, threads)
    return of_grid(grid, by, ax, container.stored_bytes, container.path)


def of_grid(grid: Grid, by: str, ax: Any, file_bytes: int, path: str | None) -> Any:
    """Draws what a grid has of a measure."""
    if by == "error" and grid.has_cells and all(cell.error is None for cell in grid.cells()):
        raise InputError(
            "no errors are stated: scheme rate has them, and int8 and lossless have not "
            "(draw another measure, or compare with the original: wcodec verify --against)",
            file=path,
            code="I601",
        )
    return draw(grid, lambda cell: _value(cell, by, file_bytes), by, ax, path)


def draw(
    grid: Grid,
    value: Callable[[Cell], float | None],
    by: str,
    ax: Any,
    path: str | None = None,
    *,
    logarithmic: bool = False,
) -> Any:
    """Draws a number of each cell, on the scale that belongs to it.

    :param logarithmic: whether equal ratios are equally far from each other on it, down to a thousandth of the largest.
    """
    values = {id(cell): value(cell) for cell in grid.cells()}
    known = [cell_value for cell_value in values.values() if cell_value is not None]
    if not known:
        raise InputError(
            "there is no matrix to draw (take a model that has some, or pass vectors=True)", file=path, code="I601"
        )
    low, high = min(known), max(known)
    logarithmic = logarithmic and high > 0
    if logarithmic:
        low = max(low, high / _DECADES)
    stops = SCALES[by]

    def color(cell: Cell) -> str | None:
        cell_value = values[id(cell)]
        if cell_value is None:
            return None
        if logarithmic:
            return between(stops, part_of(math.log(max(cell_value, low)), math.log(low), math.log(high)))
        return between(stops, part_of(cell_value, low, high))

    ax = _cells(grid, color, lambda cell: _figure(values[id(cell)] or 0.0), ax)
    _scale(ax, by, low, high, logarithmic)
    return ax


def draw_kinds(grid: Grid, kind: Callable[[Cell], str], colors: dict[str, str], ax: Any) -> Any:
    """Draws what kind each cell is of, with a legend of those that there are."""
    if not grid.has_cells:
        raise InputError("there is no tensor to draw (take a file that has some)", code="I601")
    kinds = {id(cell): kind(cell) for cell in grid.cells()}
    ax = _cells(grid, lambda cell: colors.get(kinds[id(cell)], NEUTRAL), lambda cell: "", ax)
    from matplotlib.patches import Patch

    # The worst, which are named last, stand first.
    present = [name for name in reversed(colors) if name in kinds.values()]
    handles = [Patch(color=colors[name], label=name) for name in present]
    ax.legend(handles=handles, frameon=False, ncols=4, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1))
    return ax


def _value(cell: Cell, by: str, file_bytes: int) -> float | None:
    if by == "speed":
        return cell.original / cell.seconds / 1e9 if cell.seconds else None
    if by == "share":
        return 100 * cell.stored / file_bytes
    value: float | None = getattr(cell, by)
    return value


def _cells(grid: Grid, color: Callable[[Cell], str | None], figure: Callable[[Cell], str], ax: Any) -> Any:
    count = max(len(grid.layers), 1)
    rows = [*grid.rows, *grid.others]
    # A tensor in no layer is as wide as all layers, below them.
    gap = 0.4 if grid.rows and grid.others else 0.0
    ax = axes(ax, (2.9 + max(min(0.52 * count, 9.0), 3.6), 1.3 + 0.27 * (len(rows) + gap)))
    from matplotlib.patches import Rectangle

    places = np.arange(len(rows)) + np.where(np.arange(len(rows)) < len(grid.rows), 0.0, gap)

    def cell(x: float, wide: float, y: float, item: Cell) -> None:
        shade = color(item)
        if shade is None:
            return
        ax.add_patch(Rectangle((x + 0.03, y - 0.47), wide - 0.06, 0.94, facecolor=shade, linewidth=0))
        if count <= _WRITTEN:
            ax.text(x + wide / 2, y, figure(item), ha="center", va="center", color=ink_on(shade), fontsize="x-small")

    for place, cells in zip(places, grid.rows.values(), strict=False):
        for i, layer in enumerate(grid.layers):
            if layer in cells:
                cell(i - 0.5, 1.0, place, cells[layer])
    for place, other in zip(places[len(grid.rows) :], grid.others.values(), strict=True):
        cell(-0.5, count, place, other)
    ax.set_xlim(-0.5, count - 0.5)
    ax.set_ylim(float(places[-1]) + 0.6, -0.6)
    ax.set_yticks(places, [caption(label(role)) for role in rows], fontsize="small")
    shown = range(0, len(grid.layers), max(1, -(-count // 16)))
    ax.set_xticks(list(shown), [str(grid.layers[i]) for i in shown], fontsize="small")
    if grid.layers:
        ax.set_xlabel("layer")
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def _scale(ax: Any, by: str, low: float, high: float, logarithmic: bool = False) -> None:
    """The scale of colours, above."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    shades = [between(SCALES[by], i / (_SHADES - 1)) for i in range(_SHADES)]
    colors = LinearSegmentedColormap.from_list(by, shades)
    # Values that are nearly one have the colour of the middle.
    flat = is_flat(low, high)
    if flat:
        colors = LinearSegmentedColormap.from_list(by, [between(SCALES[by], 0.5)] * 2)
    kind = LogNorm if logarithmic else Normalize
    bounds = kind(low, high) if high > low else Normalize(low - 0.5, high + 0.5)
    bar = ax.figure.colorbar(ScalarMappable(bounds, colors), ax=ax, orientation="horizontal", location="top",
                             fraction=0.05, shrink=0.6, anchor=(0.0, 0.0), aspect=40)  # fmt: skip
    if low == high:
        bar.set_ticks([low], labels=[_figure(low)])
    elif logarithmic:
        ticks = [t for power in range(-9, 9) for t in (10.0**power, 3 * 10.0**power) if low <= t <= high] or [low, high]
        bar.set_ticks(ticks, labels=[f"{tick:g}" if tick not in (low, high) else _figure(tick) for tick in ticks])
        bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize="small", length=2)
    title = f"{TITLES[by]}: less than 5 % apart, so one colour" if flat and low < high else TITLES[by]
    bar.set_label(title, fontsize="medium", loc="left")


def _figure(value: float) -> str:
    """A value in as few characters as tell cells apart.

    >>> _figure(4.0123), _figure(0.01234), _figure(123.4), _figure(16.0)
    ('4.01', '0.012', '123', '16')
    """
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _measure(container: Container, grid: Grid, device: Any, threads: int | None) -> None:
    """Decodes every tensor, and adds up the seconds of each cell."""
    number = None if device is None else devices.parse(device)
    names = [name for cell in grid.cells() for name in cell.names]
    seconds = _on_cpu(container, names, threads) if number is None else _on_gpu(container, names, device)
    for cell in grid.cells():
        cell.seconds = sum(seconds[name] for name in cell.names)


def _on_cpu(container: Container, names: list[str], threads: int | None) -> dict[str, float]:
    # The first call starts threads.
    container[names[0]]._bytes(None, threads) if names else None
    seconds = {}
    for name in names:
        best = float("inf")
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            container[name]._bytes(None, threads)
            took = time.perf_counter() - begin
            best = min(best, took)
            if took > _SHORT_SECONDS:
                break
        seconds[name] = best
    return seconds


def _on_gpu(container: Container, names: list[str], device: Any) -> dict[str, float]:
    """Launches alone, from compressed bytes in the GPU's memory."""
    from .._gpu.decoder import GpuDecoder

    torch = _torch.require()
    decoder = GpuDecoder(container, names, device)
    seconds = {}
    for name in names:
        out = decoder.decode(name)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(out.device):
            begin.record()
            for _ in range(_LAUNCHES):
                decoder.decode(name, out=out)
            end.record()
            end.synchronize()
        seconds[name] = begin.elapsed_time(end) / 1e3 / _LAUNCHES
    decoder.check()
    return seconds
