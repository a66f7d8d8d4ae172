"""Columns of weights whose levels an NVIDIA GPU chooses: the kernels, called on torch's tensors."""

from __future__ import annotations

import functools

import torch

from .. import _native

# The most columns of a call.
COLUMNS = _native.GpuQuantizer.COLUMNS
# The states of a trellis, and the numbers of prices: of magnitudes behind two places, and of symbols.
STATES = 4
PRICES = 2 + _native.MAGNITUDES
SYMBOL_PRICES = 260


@functools.cache
def _quantizer(ordinal: int) -> _native.GpuQuantizer:
    return _native.GpuQuantizer(ordinal)


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def _ordinal(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _address(tensor: torch.Tensor, shape: tuple[int, ...], x: torch.Tensor) -> int:
    """The address of ``float32`` numbers, which lie on the GPU of ``x`` and without gaps. Kernels check nothing."""
    fits = tensor.device == x.device and tensor.dtype is torch.float32 and tuple(tensor.shape) == shape
    if not fits or not tensor.is_contiguous():
        raise ValueError("tensors of other sizes, dtypes or devices (pass those of one matrix)")
    return tensor.data_ptr()


def _common(x: torch.Tensor, feed: torch.Tensor | None) -> dict[str, int]:
    """The weights and their numbers, and the shares of errors: rows without gaps in them, which lie a stride apart."""
    columns, rows = x.shape
    call = {"rows": rows, "columns": columns, "x": _address(x, (columns, rows), x), "feed": 0, "stride": 0}
    if feed is None:
        return call
    # The first of a row's shares stand for all: the rest lies between it and the next row.
    _address(feed[:1].reshape(-1), (columns,), x)
    if tuple(feed.shape) != (columns, columns) or (columns > 1 and feed.stride(1) != 1):
        raise ValueError("shares of other columns (pass those of one matrix)")
    return {**call, "feed": feed.data_ptr(), "stride": feed.stride(0)}


def round_columns(
    x: torch.Tensor, carry: torch.Tensor, feed: torch.Tensor, prices: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Symbols and errors of at most :data:`COLUMNS` columns, as :func:`wcodec._native.round_columns` has them.

    :param x: ``float32 [cols, rows]``, as all tensors on one GPU and without gaps.
    :param carry: what errors of earlier columns add, ``float32 [cols, rows]``.
    :param feed: the share of each error that each later column gets, ``float32 [cols, cols]``; a part of a larger
        matrix, if need be.
    :param prices: 130 of magnitudes, the first two never chosen; ``None`` to round to the nearest level.
    """
    levels, errors = torch.empty_like(x, dtype=torch.int8), torch.empty_like(x)
    call = {
        **_common(x, feed),
        "carry": _address(carry, tuple(x.shape), x),
        "prices": 0 if prices is None else _address(prices, (PRICES,), x),
        "levels": levels.data_ptr(),
        "errors": errors.data_ptr(),
    }
    _quantizer(_ordinal(x.device)).round(call, _stream(x.device))
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

    :param x: ``float32 [cols, rows]``, as all tensors on one GPU and without gaps.
    :param added: what errors add, by survivor, ``float32 [cols, 4, rows]``.
    :param column_weights: the cost of an error in each column, ``float32 [cols]``.
    :param feed: the share of each error that each later column gets, ``float32 [cols, cols]``; a part of a larger
        matrix, if need be.
    :param prices: 260 of symbols, from -128 on.
    :param costs: of survivors before these columns, ``float32 [4, rows]``.
    """
    columns, rows = x.shape
    symbols = torch.empty_like(added, dtype=torch.int8)
    origin, sums = torch.empty_like(costs, dtype=torch.int64), torch.empty_like(costs)
    call = {
        **_common(x, feed),
        "added": _address(added, (columns, STATES, rows), x),
        "weights": _address(column_weights, (columns,), x),
        "prices": _address(prices, (SYMBOL_PRICES,), x),
        "costs": _address(costs, (STATES, rows), x),
        "symbols": symbols.data_ptr(),
        "origin": origin.data_ptr(),
        "sums": sums.data_ptr(),
    }
    _quantizer(_ordinal(x.device)).trellis(call, _stream(x.device))
    return symbols, origin, sums
