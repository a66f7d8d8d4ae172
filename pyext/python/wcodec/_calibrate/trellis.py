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

import torch

from .. import _native
from .factor import Block
from .replay import replayed

# Columns in which survivors' targets are kept up to date one by one.
COLUMNS = 32
STATES = 4
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
    walk = _Walk(x.device, rows, _by_symbol(prices) * weight)
    edges = sorted({end for block in blocks for end in (block.begin, block.end)} | {0, cols})
    for begin in range(0, cols, tile):
        end = min(begin + tile, cols)
        walk.restart()
        # The sum that the errors of each survivor, and those of earlier tiles, add to the targets of this tile.
        added = x.new_zeros((end - begin, STATES, rows))
        if carry is not None:
            added += carry[begin:end, None]
        path = torch.empty((end - begin, STATES, rows), dtype=torch.int8, device=x.device)
        at = begin
        while at < end:
            stop = min(at + COLUMNS, end, next(edge for edge in edges if edge > at))
            block = next((b for b in blocks if b.begin <= at < b.end), None)
            here = slice(at - begin, stop - begin)
            feed = None if block is None else block.passed(at - block.begin, stop - block.begin)
            inner = None if feed is None or block is None else feed[:, at - block.begin : stop - block.begin]
            new, origin = walk.columns(x[at:stop], added[here], column_weights[at:stop], inner)
            follow = origin[None].expand(at - begin, -1, -1)
            path[: at - begin] = path[: at - begin].gather(1, follow)
            path[here] = new
            last = end if block is None else min(end, block.end)
            if feed is not None and block is not None and stop < last:
                errors = (x[at:stop, None] - 0.5 - new).reshape(stop - at, STATES * rows)
                rest = added[stop - begin : last - begin]
                moved = rest.gather(1, origin[None].expand(len(rest), -1, -1)).reshape(len(rest), -1)
                moved.addmm_(feed[:, stop - block.begin : last - block.begin].t(), errors)
                rest.copy_(moved.view_as(rest))
            at = stop
        levels[begin:end] = path.gather(1, walk.best()[None, None].expand(end - begin, 1, -1))[:, 0]
        block = next((b for b in blocks if b.begin < end < b.end), None)
        if carry is not None and block is not None:
            first = max(begin, block.begin)
            errors = x[first:end] - 0.5 - levels[first:end]
            feed = block.passed(first - block.begin, end - block.begin)[:, end - block.begin :]
            carry[end : block.end].addmm_(feed.t(), errors)
    return levels


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
        self.restart()

    def restart(self) -> None:
        """Begins at state 0."""
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
        """Goes on by some columns: the symbols ``float32 [cols, 4, rows]`` of each survivor there, and the state that
        it was in before them. Valid until the next call.

        :param added: the additions to the columns' targets, by survivor.
        :param feed: the additions of these columns' errors to each other's targets.
        """
        known = x.new_empty((0, 0)) if feed is None else feed
        path, origin, costs = replayed(
            _columns, x, added, column_weights, known, self._costs, self._prices, self._kinds
        )
        self._costs = costs.clone()
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
