"""Rounding with error feedback, a column after the other, all rows at once."""

from __future__ import annotations

import torch

from .. import _native
from . import kernels
from .factor import Block
from .tables import MAGNITUDES

# Columns whose errors are passed on one by one; beyond, a matrix product passes on those of all of them.
_COLUMNS = {"cpu": _native.ROUNDED_COLUMNS, "cuda": kernels.COLUMNS}


def round_columns(x: torch.Tensor, blocks: tuple[Block, ...], prices: torch.Tensor, weight: float) -> torch.Tensor:
    """Symbols ``int8 [cols, rows]`` of weights in units of their row's step, ``float32 [cols, rows]`` in the order of
    rounding.

    :param blocks: those of the feedback; none to round each weight for itself.
    :param prices: bits of each magnitude, ``float32 [128]``.
    :param weight: the cost of a bit, in squares of a step.
    """
    # Two places before the first, which nothing chooses.
    padded = torch.cat([prices.new_full((2,), torch.inf), prices[:MAGNITUDES]]) * weight if weight else prices
    columns = _COLUMNS.get(x.device.type, kernels.COLUMNS)
    if not blocks:
        out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        for begin in range(0, len(x), columns):
            out[begin : begin + columns] = _nearest(x[begin : begin + columns], padded, weight)
        return out
    levels = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    carry = torch.zeros_like(x)
    for block in blocks:
        for begin in range(block.begin, block.end, columns):
            end = min(begin + columns, block.end)
            feed = block.passed(begin - block.begin, end - block.begin)
            inner = feed[:, begin - block.begin : end - block.begin]
            symbols, errors = _columns(x[begin:end], carry[begin:end], inner, padded, weight)
            levels[begin:end] = symbols
            if end < block.end:
                carry[end : block.end].addmm_(feed[:, end - block.begin :].t(), errors)
    return levels


def _columns(
    x: torch.Tensor, carry: torch.Tensor, feed: torch.Tensor, prices: torch.Tensor, weight: float
) -> tuple[torch.Tensor, ...]:
    """Some columns: symbols, and errors, which those of the same columns have in their targets already."""
    if x.device.type == "cuda":
        return kernels.round_columns(x, carry, feed, prices if weight else None)
    if x.device.type != "cpu":
        return _by_steps(x, carry, feed, prices, weight)
    targets, passed, shares = (tensor.contiguous().view(-1).numpy() for tensor in (x, carry, feed))
    known = prices.numpy() if weight else None
    levels, errors = _native.round_columns(targets, passed, shares, known, len(x), torch.get_num_threads())
    return torch.from_numpy(levels).view(x.shape), torch.from_numpy(errors).view(x.shape)


def _by_steps(
    x: torch.Tensor, carry: torch.Tensor, feed: torch.Tensor, prices: torch.Tensor, weight: float
) -> tuple[torch.Tensor, ...]:
    """Small steps of torch, on devices of other makers; they take many times as long as kernels do."""
    levels = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    errors = torch.empty_like(x)
    for j in range(len(x)):
        q = _nearest(x[j] + carry[j], prices, weight)
        levels[j] = q
        error = torch.sub(x[j], q + 0.5, out=errors[j])
        if j + 1 < len(x):
            carry[j + 1 :].addr_(feed[j, j + 1 :], error)
    return levels, errors


def _nearest(target: torch.Tensor, padded: torch.Tensor, weight: float) -> torch.Tensor:
    """The symbol of least error and bits: the nearest, or one of the next two towards 0."""
    size = target.abs()
    m = size.floor().clamp_(max=_native.LARGEST_SYMBOL)
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
