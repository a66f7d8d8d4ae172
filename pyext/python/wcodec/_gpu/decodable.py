"""Dtypes that a stored tensor can be decoded to, and whether its rows can be decoded by themselves."""

from __future__ import annotations

import operator
from typing import Any

from .._core import dtypes
from .._core.errors import InputError
from .._core.tensor_info import TensorInfo
from . import torch as _torch

# Dtypes that a tensor of floats that is stored raw can be converted to, and from.
CONVERTIBLE = (*dtypes.FLOATS, "F64")


def decoded_dtype(info: TensorInfo, name: str) -> str:
    """The dtype to decode to, for a result of dtype ``name``: the same, or one to convert from."""
    if info.makes_symbols and name in (*dtypes.FLOATS, "I8"):
        return name
    if not info.makes_symbols and (name == info.dtype or (info.dtype in CONVERTIBLE and name in dtypes.FLOATS)):
        return info.dtype
    if info.makes_symbols:
        choices = "float32, float16, bfloat16 or, for its symbols, int8"
    else:
        choices = "float32, float16 or bfloat16" if info.dtype in CONVERTIBLE else f"its own, {info.dtype}"
    raise InputError(
        f"tensor '{info.name}': it does not decode to {name} (use {choices})", tensor=info.name, code="I423"
    )


def wanted_dtype(info: TensorInfo, dtype: Any) -> str:
    """The name of a dtype that a user asks for; its own if none is."""
    if dtype is None or str(dtype) == _torch.word_of(info.dtype):
        return info.dtype
    return "I8" if str(dtype) in ("torch.int8", "int8", "I8") else dtypes.requested(str(dtype))


def checked_rows(info: TensorInfo, rows: tuple[int, int]) -> tuple[int, int] | None:
    """Rows of a tensor's first dimension that a decoder can have by themselves; ``None`` for all."""

    def refuse(what: str, advice: str, *, code: str) -> InputError:
        return InputError(f"tensor '{info.name}': {what} ({advice})", code=code, tensor=info.name)

    begin, end = (operator.index(row) for row in rows)
    if not info.shape or not 0 <= begin <= end <= info.shape[0]:
        has = f"it has {info.shape[0]:,}" if info.shape else "a scalar has none"
        raise refuse(f"rows {begin} to {end}", has, code="I425")
    if (begin, end) == (0, info.shape[0]):
        return None
    if not info.cut:
        how = "transposed" if info.row_axis == 1 else "as it is, and not by rows"
        raise refuse(
            f"it is stored {how}, so that a GPU cannot decode some of its rows", "decode it as a whole", code="I432"
        )
    return begin, end


def shape_of(info: TensorInfo, rows: tuple[int, int] | None) -> tuple[int, ...]:
    """The shape of a tensor, or of some rows of it."""
    if rows is None:
        return info.shape
    checked_rows(info, rows)
    return (rows[1] - rows[0], *info.shape[1:])
