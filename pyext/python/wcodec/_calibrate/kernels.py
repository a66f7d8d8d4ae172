"""Columns of weights whose levels an NVIDIA GPU chooses: the kernels, called on torch's tensors."""

from __future__ import annotations

import functools

import torch

from .. import _native

# The most columns of a call.
COLUMNS = _native.GpuQuantizer.COLUMNS


@functools.cache
def _quantizer(ordinal: int) -> _native.GpuQuantizer:
    return _native.GpuQuantizer(ordinal)


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def _ordinal(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _shares(feed: torch.Tensor | None) -> tuple[torch.Tensor | None, dict[str, int]]:
    """Rows of shares without gaps in them, and their address and distance."""
    if feed is None:
        return None, {"feed": 0, "stride": 0}
    feed = feed if feed.stride(-1) == 1 else feed.contiguous()
    return feed, {"feed": feed.data_ptr(), "stride": feed.stride(0)}


def round_columns(
    x: torch.Tensor, carry: torch.Tensor, feed: torch.Tensor, prices: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Symbols and errors of at most :data:`COLUMNS` columns, as :func:`wcodec._native.round_columns` has them.

    :param x: ``float32 [cols, rows]``, as all tensors on one GPU.
    :param carry: what errors of earlier columns add, ``float32 [cols, rows]``.
    :param feed: the share of each error that each later column gets, ``float32 [cols, cols]``.
    :param prices: 130 of magnitudes, the first two never chosen; ``None`` to round to the nearest level.
    """
    x, carry = x.contiguous(), carry.contiguous()
    levels, errors = torch.empty_like(x, dtype=torch.int8), torch.empty_like(x)
    kept, shares = _shares(feed)
    call = {
        "rows": x.shape[1],
        "columns": x.shape[0],
        "x": x.data_ptr(),
        "carry": carry.data_ptr(),
        "prices": 0 if prices is None else prices.contiguous().data_ptr(),
        "levels": levels.data_ptr(),
        "errors": errors.data_ptr(),
        **shares,
    }
    _quantizer(_ordinal(x.device)).round(call, _stream(x.device))
    del kept
    return levels, errors


def extend(
    x: torch.Tensor,
    added: torch.Tensor,
    column_weights: torch.Tensor,
    feed: torch.Tensor | None,
    prices: torch.Tensor,
    costs: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Survivors of a trellis behind at most :data:`COLUMNS` columns: symbols ``int8 [cols, 4, rows]``, the states
    ``int64 [4, rows]`` that they come from, and their costs ``float32 [4, rows]``.

    :param x: ``float32 [cols, rows]``, as all tensors on one GPU.
    :param added: what errors add, by survivor, ``float32 [cols, 4, rows]``.
    :param column_weights: the cost of an error in each column, ``float32 [cols]``.
    :param feed: the share of each error that each later column gets, ``float32 [cols, cols]``.
    :param prices: 260 of symbols, from -128 on.
    :param costs: of survivors before these columns, ``float32 [4, rows]``.
    """
    x, added, weights = x.contiguous(), added.contiguous(), column_weights.contiguous()
    symbols = torch.empty_like(added, dtype=torch.int8)
    origin, sums = torch.empty_like(costs, dtype=torch.int64), torch.empty_like(costs)
    kept, shares = _shares(feed)
    call = {
        "rows": x.shape[1],
        "columns": x.shape[0],
        "x": x.data_ptr(),
        "added": added.data_ptr(),
        "weights": weights.data_ptr(),
        "prices": prices.data_ptr(),
        "costs": costs.data_ptr(),
        "symbols": symbols.data_ptr(),
        "origin": origin.data_ptr(),
        "sums": sums.data_ptr(),
        **shares,
    }
    _quantizer(_ordinal(x.device)).trellis(call, _stream(x.device))
    del kept
    return symbols, origin, sums
