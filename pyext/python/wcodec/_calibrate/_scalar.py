"""Rounding with error feedback, a column after the other, all rows at once."""

from __future__ import annotations

import torch

from ._factor import Block
from ._tables import MAGNITUDES

# Columns whose errors are passed on one by one; beyond, a matrix product passes on those of all of them.
COLUMNS = 64
# Symbols stay within [-127, 126], of which the lossless forms of the format can take the sign away.
LARGEST = 126


def round_columns(x: torch.Tensor, blocks: tuple[Block, ...], prices: torch.Tensor, weight: float) -> torch.Tensor:
    """Symbols ``int8 [cols, rows]`` of weights in units of their row's step, ``float32 [cols, rows]`` in the order of
    rounding.

    :param blocks: those of the feedback; none to round each weight for itself.
    :param prices: bits of each magnitude, ``float32 [128]``.
    :param weight: what a bit costs, in squares of a step.
    """
    # Two places before the first, which nothing chooses.
    padded = torch.cat([prices.new_full((2,), torch.inf), prices[:MAGNITUDES]]) * weight if weight else prices
    if not blocks:
        out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        for begin in range(0, len(x), COLUMNS):
            out[begin : begin + COLUMNS] = _nearest(x[begin : begin + COLUMNS], padded, weight)
        return out
    levels = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    carry = torch.zeros_like(x)
    for block in blocks:
        for begin in range(block.begin, block.end, COLUMNS):
            end = min(begin + COLUMNS, block.end)
            feed = block.feed[begin - block.begin : end - block.begin]
            errors = torch.empty_like(x[begin:end])
            for j in range(begin, end):
                q = _nearest(x[j] + carry[j], padded, weight)
                levels[j] = q
                error = torch.sub(x[j], q + 0.5, out=errors[j - begin])
                if j + 1 < end:
                    carry[j + 1 : end].addr_(feed[j - begin, j + 1 - block.begin : end - block.begin], error)
            if end < block.end:
                carry[end : block.end].addmm_(feed[:, end - block.begin :].t(), errors)
    return levels


def _nearest(target: torch.Tensor, padded: torch.Tensor, weight: float) -> torch.Tensor:
    """The symbol of least error and bits: the nearest, or one of the next two towards 0."""
    size = target.abs()
    m = size.floor().clamp_(max=LARGEST)
    if weight:
        off = size - m - 0.5
        place = m.to(torch.int64)
        best = off.square() + padded[place + 2]
        for down in (1, 2):
            cost = (off + down).square() + padded[place + (2 - down)]
            better = cost < best
            best = torch.where(better, cost, best)
            m = torch.where(better, place - down, m) if down == 1 else torch.where(better, place - 2, m)
    return torch.where(target < 0, -1 - m, m).to(torch.int8)
