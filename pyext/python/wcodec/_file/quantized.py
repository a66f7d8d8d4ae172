"""Weights that are quantized already, as FP8 or MXFP4: which tensors are codes and which their scales, and the values
that these make, the very ones that transformers makes of them.

Which tensors belong together is for the native module to say. The values are made here by torch, for layers and for
what is read into a model; those that are encoded from a file are made by the native module, and are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .._gpu import torch as _torch

if TYPE_CHECKING:
    import torch

    from .container import Container

# Values of the 16 codes of MXFP4.
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# Elements that become values at once: what is between codes and values takes four bytes for each.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Grid:
    """Matrices of FP8, and which of their elements share a scale."""

    count: int
    rows: int
    cols: int
    block_rows: int
    block_cols: int
    scale_cols: int
    """Scales of a row of blocks."""
    scales: int
    """Scales of a matrix; 0 where all matrices share one."""

    def of_one(self) -> Grid:
        """That of a matrix by itself."""
        return replace(self, count=1)


class QuantizedTensor(NamedTuple):
    """Codes with their scales.

    :param name: the name of their values.
    :param shape: that of the values.
    :param codes: the name of the codes.
    :param grid: nothing for MXFP4, whose values are stored with inputs as rows.
    """

    name: str
    shape: tuple[int, ...]
    codes: str
    scales: str
    grid: Grid | None

    def values(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """All values, of codes and scales as they are stored."""
        numbers = scale_numbers(scales).reshape(-1)
        if self.grid is None:
            return _mxfp4(codes, numbers, dtype)
        return fp8_values(codes, numbers, self.grid, dtype).reshape(self.shape)

    def matrix(self, index: int, read: Callable[[str, int | None], torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """Those of one matrix of a stack.

        :param read: a function that reads a stored tensor, or one entry of its first dimension.
        """
        grid = self.grid
        if grid is None:
            numbers = scale_numbers(read(self.scales, index)).reshape(-1)
            return _mxfp4(read(self.codes, index).unsqueeze(0), numbers, dtype)[0]
        numbers = scale_numbers(read(self.scales, index if grid.scales else None)).reshape(-1)
        return fp8_values(read(self.codes, index), numbers, grid.of_one(), dtype).reshape(self.shape[1:])


class Quantized(NamedTuple):
    """The quantized tensors of a checkpoint or a container; none by default.

    :param dtype: safetensors' name of the dtype of values: what the model computes in.
    :param tensors: by the name of their values.
    :param hidden: tensors that are no weights by themselves: codes of another name than their values, scales, and what
        is about activations.
    :param record: the metadata that a container with such codes has about them.
    """

    dtype: str
    tensors: Mapping[str, QuantizedTensor]
    hidden: frozenset[str]
    record: str

    def names(self, stored: list[str]) -> list[str]:
        """The names that there are to those who want values, for all names of what is stored."""
        by_codes = {tensor.codes: tensor.name for tensor in self.tensors.values()}
        return [by_codes.get(name, name) for name in stored if name in by_codes or name not in self.hidden]


NOTHING = Quantized("BF16", {}, frozenset(), "")


def of_checkpoint(path: str | os.PathLike[str], rest: bool = False) -> Quantized:
    """That of a file or a folder.

    :raises UnsupportedError: if weights are of a method that is not dequantized.
    :raises FormatError: if scales are missing, or do not fit their codes.
    """
    return _read(_native.quantized_checkpoint(path, rest))


def of_container(container: Container) -> Quantized:
    """That of a container; errors as for :func:`of_checkpoint`."""
    return _read(_native.quantized_container(container._open))


def kept_in(container: Container) -> Quantized:
    """That of a container whose metadata says that it has codes of layers."""
    return of_container(container) if _native.QUANTIZED_KEY in container.metadata else NOTHING


def _read(text: str | None) -> Quantized:
    if text is None:
        return NOTHING
    document: dict[str, Any] = json.loads(text)
    tensors = {}
    hidden = set(document["beside"])
    for record in document["tensors"]:
        grid = None if record["grid"] is None else Grid(*record["grid"])
        made = QuantizedTensor(record["name"], tuple(record["shape"]), record["codes"], record["scales"], grid)
        tensors[made.name] = made
        hidden.update((made.codes, made.scales))
    return Quantized(document["dtype"], tensors, frozenset(hidden - tensors.keys()), document["record"])


def scale_numbers(scales: torch.Tensor) -> torch.Tensor:
    """Scales as float32."""
    torch = _torch.require()
    exponents = getattr(torch, "float8_e8m0fnu", None)
    if scales.dtype != torch.uint8 and scales.dtype != exponents:
        return scales.to(torch.float32)
    codes = scales.view(torch.uint8).to(torch.int32)
    # Powers of 2 by their bits, since the smallest is one that functions may take for zero.
    numbers = torch.where(codes == 0, 1 << 22, codes << 23).to(torch.int32).view(torch.float32)
    if scales.dtype == exponents:
        numbers = torch.where(codes == 255, float("nan"), numbers)
    return numbers


def fp8_values(
    codes: torch.Tensor,
    scales: torch.Tensor,
    grid: Grid,
    dtype: torch.dtype,
    rows: tuple[int, int] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Codes times scales: products in float32, rounded once.

    :param scales: one behind the other, in float32 and on the device of the codes.
    :param rows: which rows of a single matrix the codes are; all if left out.
    :param out: the tensor for the values. It may have the codes in its own memory, at its end or, if there are no more
        than are done at once, anywhere.
    """
    torch = _torch.require()
    begin, end = rows or (0, grid.rows)
    codes = codes.reshape(grid.count, end - begin, grid.cols)
    if out is None:
        out = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    result = out.view(codes.shape)
    scales = scales.reshape(max(grid.count if grid.scales else 1, 1), -1, grid.scale_cols)
    step = max(_AT_ONCE // max(grid.cols, 1), 1)
    for matrix in range(grid.count):
        of = scales[matrix if grid.scales else 0]
        for first in range(begin, end, step):
            last = min(first + step, end)
            part = codes[matrix, first - begin : last - begin].to(torch.float32)
            part.mul_(_of_rows(of, grid, first, last))
            result[matrix, first - begin : last - begin].copy_(part)
    return out


def _of_rows(scales: torch.Tensor, grid: Grid, first: int, last: int) -> torch.Tensor:
    """The scales of these rows, as a matrix that multiplies them."""
    torch = _torch.require()
    if scales.shape[0] > 1:
        scales = scales[torch.arange(first, last, device=scales.device) // grid.block_rows]
    if grid.scale_cols == 1:
        return scales
    return scales.repeat_interleave(grid.block_cols, 1)[:, : grid.cols]


def _mxfp4(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    torch = _torch.require()
    count, outputs, groups, width = blocks.shape
    table = torch.tensor(_FP4, dtype=torch.float32, device=blocks.device)
    out = torch.empty((count, groups * 2 * width, outputs), dtype=dtype, device=blocks.device)
    scales = scales.reshape(count, outputs, groups, 1)
    step = max(_AT_ONCE // max(groups * 2 * width, 1), 1)
    for matrix in range(count):
        for first in range(0, outputs, step):
            part = blocks[matrix, first : first + step]
            pairs = torch.stack([table[(part & 15).long()], table[(part >> 4).long()]], -1)
            values = pairs.flatten(2) * scales[matrix, first : first + step]
            out[matrix, :, first : first + step] = values.flatten(1).t()
    return out


__all__ = [
    "NOTHING",
    "Grid",
    "Quantized",
    "QuantizedTensor",
    "fp8_values",
    "kept_in",
    "of_checkpoint",
    "of_container",
    "scale_numbers",
]
