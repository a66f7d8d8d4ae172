"""Paths of the filter ``trellis`` with error feedback, all rows at once.

This is dependent, or trellis-coded, quantization (M. W. Marcellin and T. R. Fischer, IEEE Trans. Communications 38(1),
1990), with four states as in the video standard VVC (H. Schwarz et al., Data Compression Conference 2019).

The Viterbi algorithm over four states, in each of which the best path so far (the *survivor*) knows its own errors: the
targets of the columns to come are other ones for each. This is per-survivor processing (R. Raheli, A. Polydoros and
C.-K. Tzou, IEEE Trans. Communications 43(2/3/4), 1995), exact within a tile. At a tile's right edge the best path is
chosen, for the trellis begins anew there, and its errors go on to all columns after it as a matrix product.

Symbols n stand for levels ``n + 1/2``. In a state of quantizer Q, bit b of a path goes with n of ``Q + 2 b`` modulo 4.
New state ``p + 2 m`` has two predecessors, ``2 p`` and ``2 p + 1``, so that tensors of states have the dimensions
[m, p] where a state is new, and [p, predecessor] where it is old: no gather is needed to follow a path.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import _native
from . import kernels
from .factor import Block

# Columns in which survivors' targets are kept up to date one by one.
COLUMNS = kernels.COLUMNS
STATES = kernels.STATES
# Symbols before they become twice as fine have magnitudes up to a limit: n is in [-126, 125].
_MOST = 2 * _native.LARGEST_TRELLIS_MAGNITUDE + 1
_LEAST = -_MOST - 1


def best_paths(
    x: torch.Tensor,
    blocks: tuple[Block, ...],
    column_weights: torch.Tensor,
    tile: int,
    prices: torch.Tensor,
    weight: float,
) -> torch.Tensor:
    """Symbols ``int8 [cols, rows]`` of weights in units of their row's fine step, ``float32 [cols, rows]``.

    :param blocks: those of the feedback; none where columns know nothing of each other.
    :param column_weights: the cost of an error in each column, ``float32 [cols]``.
    :param tile: columns after which the trellis begins anew.
    :param prices: bits of each magnitude m, where n is ``2 m`` or ``2 m + 1``.
    :param weight: the cost of a bit, in squares of a step.
    """
    cols, rows = x.shape
    levels = torch.empty((cols, rows), dtype=torch.int8, device=x.device)
    carry = torch.zeros_like(x) if blocks else None
    path = _path_at_once if x.device.type == "cpu" else _path_by_groups
    costs = _by_symbol(prices) * weight
    for begin in range(0, cols, tile):
        end = min(begin + tile, cols)
        added = None if carry is None else carry[begin:end]
        levels[begin:end] = path(x[begin:end], added, column_weights[begin:end], _within(blocks, begin, end), costs)
        block = next((b for b in blocks if b.begin < end < b.end), None)
        if carry is not None and block is not None:
            first = max(begin, block.begin)
            errors = x[first:end] - 0.5 - levels[first:end]
            feed = block.passed(first - block.begin, end - block.begin)[:, end - block.begin :]
            carry[end : block.end].addmm_(feed.t(), errors)
    return levels


def _within(blocks: tuple[Block, ...], begin: int, end: int) -> torch.Tensor | None:
    """The shares of errors in columns of a tile that later columns of the tile get; ``None`` without blocks."""
    if not blocks:
        return None
    feed = torch.zeros((end - begin, end - begin), device=blocks[0].feed.device)
    for block in blocks:
        first, last = max(block.begin, begin), min(block.end, end)
        if first < last:
            part = block.passed(first - block.begin, last - block.begin)
            feed[first - begin : last - begin, first - begin : last - begin] = part[
                :, first - block.begin : last - block.begin
            ]
    return feed


def _path_at_once(
    x: torch.Tensor,
    carry: torch.Tensor | None,
    column_weights: torch.Tensor,
    feed: torch.Tensor | None,
    costs: torch.Tensor,
) -> torch.Tensor:
    """The symbols of the best path of each row in a tile, on a CPU."""
    found = _native.trellis_columns(
        _flat(x),
        None if carry is None else _flat(carry),
        _flat(column_weights),
        None if feed is None else _flat(feed),
        _flat(costs),
        len(x),
        torch.get_num_threads(),
    )
    return torch.from_numpy(found).view(x.shape)


def _flat(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return tensor.contiguous().view(-1).numpy()


def _path_by_groups(
    x: torch.Tensor,
    carry: torch.Tensor | None,
    column_weights: torch.Tensor,
    feed: torch.Tensor | None,
    costs: torch.Tensor,
) -> torch.Tensor:
    """As :func:`_path_at_once`, in groups of columns, by kernels of ours where there are some, and by torch."""
    cols, rows = x.shape
    walk = (_KernelWalk if x.device.type == "cuda" else _Walk)(x.device, rows, costs)
    # The sum that the errors of each survivor, and those of earlier tiles, add to the targets of this tile.
    added = x.new_zeros((cols, STATES, rows))
    if carry is not None:
        added += carry[:, None]
    path = torch.empty((cols, STATES, rows), dtype=torch.int8, device=x.device)
    for at in range(0, cols, COLUMNS):
        stop = min(at + COLUMNS, cols)
        inner = None if feed is None else feed[at:stop, at:stop]
        new, origin = walk.columns(x[at:stop], added[at:stop], column_weights[at:stop], inner)
        path[:at] = path[:at].gather(1, origin[None].expand(at, -1, -1))
        path[at:stop] = new
        if feed is not None and stop < cols:
            errors = (x[at:stop, None] - 0.5 - new).reshape(stop - at, STATES * rows)
            rest = added[stop:]
            moved = rest.gather(1, origin[None].expand(len(rest), -1, -1)).reshape(len(rest), -1)
            moved.addmm_(feed[at:stop, stop:].t(), errors)
            rest.copy_(moved.view_as(rest))
    return path.gather(1, walk.best()[None, None].expand(cols, 1, -1))[:, 0]


def _by_symbol(prices: torch.Tensor) -> torch.Tensor:
    """Bits of each symbol n from -128 on."""
    n = torch.arange(-128, 132, device=prices.device)
    return prices[torch.where(n < 0, (-n - 1) >> 1, n >> 1).clamp_(max=len(prices) - 1)]


class _Walk:
    """The survivors of a trellis, which go on column by column."""

    def __init__(self, device: torch.device, rows: int, prices: torch.Tensor) -> None:
        self._rows, self._prices = rows, prices
        m, p, before = torch.meshgrid(*(torch.arange(2, device=device),) * 3, indexing="ij")
        # By [m, p, predecessor]: n modulo 4, and the smallest and largest (n - that) / 4 below the target.
        kind = (p + 2 * (m ^ before))[..., None].to(torch.float32)
        self._kinds = torch.stack([kind, torch.ceil((_LEAST - kind) / 4), torch.floor((_MOST - kind) / 4) - 1])
        # It begins at state 0.
        self._costs = self._prices.new_full((STATES, self._rows), torch.inf)
        self._costs[0] = 0

    def best(self) -> torch.Tensor:
        """The state of the best path of each row; of equal ones, the first."""
        best = self._costs[0]
        state = torch.zeros(self._rows, dtype=torch.int64, device=best.device)
        for i in range(1, STATES):
            state = torch.where(self._costs[i] < best, i, state)
            best = torch.minimum(self._costs[i], best)
        return state

    def columns(
        self, x: torch.Tensor, added: torch.Tensor, column_weights: torch.Tensor, feed: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Goes on by some columns: the symbols ``[cols, 4, rows]`` of each survivor there, and the state that it was in
        before them, ``int64 [4, rows]``.

        :param added: the additions to the columns' targets, by survivor.
        :param feed: the additions of these columns' errors to each other's targets.
        """
        known = x.new_empty((0, 0)) if feed is None else feed
        path, origin, self._costs = _columns(x, added, column_weights, known, self._costs, self._prices, self._kinds)
        return path, origin


class _KernelWalk(_Walk):
    """Survivors that kernels extend, on an NVIDIA GPU."""

    def columns(
        self, x: torch.Tensor, added: torch.Tensor, column_weights: torch.Tensor, feed: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        path, origin, self._costs = kernels.extend(x, added, column_weights, feed, self._prices, self._costs)
        return path, origin


def _columns(
    x: torch.Tensor,
    added: torch.Tensor,
    column_weights: torch.Tensor,
    feed: torch.Tensor,
    costs: torch.Tensor,
    prices: torch.Tensor,
    kinds: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Some columns: symbols of the survivors, the states that they come from, and their costs."""
    count, rows = x.shape
    # Data that each survivor carries: the state it comes from, its symbols, and its additions to later targets.
    states = torch.arange(STATES, device=x.device, dtype=torch.float32).view(1, STATES, 1)
    old = torch.cat([states.expand(1, STATES, rows), added])
    new = torch.empty_like(old)
    for j in range(count):
        second, symbols, costs = _step(x[j] + old[j + 1], costs, column_weights[j], prices, kinds)
        pair = old.view(count + 1, 1, 2, 2, rows)
        # At 0 and 1 exactly one of the two, and several times faster than a choice.
        torch.lerp(pair[:, :, :, 0], pair[:, :, :, 1], second, out=new.view(count + 1, 2, 2, rows))
        new[j + 1] = symbols
        if len(feed) and j + 1 < count:
            errors = (x[j] - 0.5) - symbols
            new[j + 2 :].view(-1, STATES * rows).addr_(feed[j, j + 1 :], errors.reshape(-1))
        old, new = new, old
    return old[1:], old[0].to(torch.int64), costs


def _step(
    target: torch.Tensor, costs: torch.Tensor, column_weight: torch.Tensor, prices: torch.Tensor, kinds: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One column: which predecessor each new state has, 0 or 1, ``float32 [2, 2, rows]``, its symbol, and its cost."""
    rows = target.shape[-1]
    kind, low, high = kinds[0], kinds[1], kinds[2]
    off = target.view(1, 2, 2, rows) - (kind + 0.5)
    k = torch.floor(off * 0.25).clamp_(low, high)
    off.sub_(k, alpha=4)
    n = torch.add(kind, k, alpha=4)
    place = n.to(torch.int64).add_(128)
    # The nearest level below the target that may follow, and the nearest above.
    below = torch.addcmul(prices[place], off, off * column_weight)
    off.sub_(4)
    above = torch.addcmul(prices[place.add_(4)], off, off * column_weight)
    n.add_((above < below).to(torch.float32), alpha=4)
    totals = torch.minimum(below, above).add_(costs.view(1, 2, 2, rows))
    first, last = totals[:, :, 0], totals[:, :, 1]
    second = (last < first).to(torch.float32)
    symbols = torch.lerp(n[:, :, 0], n[:, :, 1], second).view(STATES, rows)
    return second, symbols, torch.minimum(first, last).view(STATES, rows)
