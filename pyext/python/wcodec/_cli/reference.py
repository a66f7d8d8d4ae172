"""Schemes ``int8`` and ``rate`` and the safetensors format once more, in plain NumPy.

``wcodec roundtrip`` judges the native code by this module, so it must not call it, nor share a line with it: it is
written from the format's text alone. Tensors are read through memory maps and worked on in slices of rows, so that
memory is bounded whatever the size of the model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.errors import FileMissingError, FormatError

Array = npt.NDArray[Any]

# Elements per slice: some tens of megabytes with all intermediate arrays.
_SLICE = 1 << 21
_SMALLEST_NORMAL = np.float32(2.0**-126)
_BITS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Checkpoint:
    """The tensors of a ``.safetensors`` file or of a folder of them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.tensors: dict[str, tuple[Path, str, tuple[int, ...], int, int]] = {}
        root = Path(path)
        if not root.exists():
            raise FileMissingError(f"{root}: there is no such file or folder (check the path)", file=root, code="O101")
        if not root.is_dir():
            self._add(root, {})
            return
        places: dict[str, str] = {}
        indexes = sorted(root.glob("*.safetensors.index.json"))
        if indexes:
            places = json.loads(indexes[0].read_text("utf-8"))["weight_map"]
            files = [root / name for name in sorted(set(places.values()))]
        else:
            files = sorted(root.glob("*.safetensors"))
        for file in files:
            self._add(file, places)

    def _add(self, file: Path, places: Mapping[str, str]) -> None:
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > file.stat().st_size:
                raise FormatError(
                    f"{file}: not a safetensors file (download it again; convert .bin and .pt files first)",
                    file=file,
                    code="F104",
                )
            header = json.loads(stream.read(length))
        for name, entry in header.items():
            if name != "__metadata__" and places.get(name, file.name) == file.name:
                begin, end = entry["data_offsets"]
                self.tensors[name] = (file, entry["dtype"], tuple(entry["shape"]), 8 + length + begin, end - begin)

    def dtype(self, name: str) -> str:
        """Its dtype, as safetensors names it."""
        return self.tensors[name][1]

    def shape(self, name: str) -> tuple[int, ...]:
        """Its dimensions."""
        return self.tensors[name][2]

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, mapped."""
        file, _, _, offset, length = self.tensors[name]
        if length == 0:
            return np.empty(0, np.uint8)
        return np.memmap(file, np.uint8, "r", offset, (length,))


@dataclass(frozen=True)
class View:
    """A view of a tensor as one tall matrix: the rows of all its matrices, one below the other."""

    rows: int
    cols: int
    row_axis: int

    def of(self, flat: Array) -> Array:
        """The matrix over row-major elements of the tensor, without a copy."""
        return flat.reshape(self.cols, self.rows).T if self.row_axis == 1 else flat.reshape(self.rows, self.cols)

    def slices(self, matrix: Array) -> Iterator[Array]:
        """The matrix, some rows at a time, contiguous."""
        step = max(1, _SLICE // max(1, self.cols))
        for row in range(0, self.rows, step):
            yield np.ascontiguousarray(matrix[row : row + step])


def to_f32(bits: Array, dtype: str) -> npt.NDArray[np.float32]:
    """Elements in float32: exact for each of the three float dtypes."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.astype(np.float32)


def round_to(values: npt.NDArray[np.float32], dtype: str) -> Array:
    """Finite float32 values rounded to nearest, ties to even; bf16 as bit patterns."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def scale_of(largest: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scales for the largest magnitudes."""
    scale = np.maximum(largest / np.float32(127), _SMALLEST_NORMAL)
    # 127 of them must not be infinite, where rounding has brought the quotient up.
    with np.errstate(over="ignore"):
        scale = np.where(np.isfinite(scale * np.float32(127)), scale, np.nextafter(scale, np.float32(0)))
    return np.where(largest == 0, np.float32(1), scale).astype(np.float32)


def row_scales(weights: npt.NDArray[np.float32], block: int) -> npt.NDArray[np.float32]:
    """One scale for every ``block`` columns of each row; the last block may be short."""
    starts = np.arange(0, weights.shape[1], block)
    return scale_of(np.maximum.reduceat(np.abs(weights), starts, axis=1))


def quantize(weights: npt.NDArray[np.float32], scales: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """Symbols, given a scale for each weight (or one that broadcasts)."""
    return np.clip(np.rint(weights / scales), -127, 127).astype(np.int8)


@dataclass(frozen=True)
class Slice:
    """The reference for some rows."""

    symbols: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    values: Array


def encode(data: npt.NDArray[np.uint8], dtype: str, view: View, scale: str, block: int) -> Iterator[Slice]:
    """Quantizes and dequantizes a tensor, some rows at a time. Scales of a whole tensor come with the first slice."""
    matrix = view.of(data.view(_BITS[dtype]))
    shared = None
    if scale == "tensor":
        parts = [np.abs(to_f32(part, dtype)).max() for part in view.slices(matrix)]
        shared = scale_of(np.array([max(parts)], np.float32))
    for i, part in enumerate(view.slices(matrix)):
        weights = to_f32(part, dtype)
        if shared is None:
            width = block if scale == "block" else view.cols
            scales = row_scales(weights, width)
            spread = np.repeat(scales, width, axis=1)[:, : view.cols]
        else:
            scales, spread = shared[: i == 0], shared
        symbols = quantize(weights, spread)
        yield Slice(symbols, scales, round_to(symbols.astype(np.float32) * spread, dtype))


def values_of_levels(levels: Array, scales: Array, dtype: str) -> Array:
    """Values of the levels of scheme ``rate``: float32 has ``level + 1/2`` times a scale exactly."""
    return round_to((levels.astype(np.float32) + np.float32(0.5)) * scales, dtype)


def off_the_path(levels: Array, tile: int) -> npt.NDArray[np.bool_]:
    """Marks levels that a trellis cannot reach, in rows of tiles of that width.

    The lowest bit of a level says which quantizer it is of: the parity of what the levels in every other column before
    it, from the tile's left edge on, have in the bit above.
    """
    off = np.zeros(levels.shape, np.bool_)
    for left in range(0, levels.shape[1], tile):
        part = levels[:, left : left + tile]
        quantizer = np.zeros((part.shape[0], part.shape[1] + 1), np.uint8)
        for first in (0, 1):
            quantizer[:, first + 1 :: 2] = np.bitwise_xor.accumulate((part[:, first::2] >> 1 & 1).astype(np.uint8), 1)
        off[:, left : left + tile] = quantizer[:, :-1] != part & 1
    return off


def relative_error(source: Iterator[Array], decoded: Iterator[Array], dtype: str) -> float:
    """Root mean square of decoded - source over that of the source, of elements given some at a time."""
    errors = squares = 0.0
    for before, after in zip(source, decoded, strict=True):
        weights = to_f32(before, dtype).astype(np.float64)
        errors += float(np.square(to_f32(after, dtype) - weights).sum())
        squares += float(np.square(weights).sum())
    return (errors / squares) ** 0.5 if errors else 0.0


class Digests:
    """Digests of symbols, scales and values of a tensor, fed slice by slice."""

    def __init__(self) -> None:
        self._hashes = {what: blake2b(digest_size=16) for what in ("symbols", "scales", "values")}

    def feed(self, what: str, part: Array) -> None:
        """Adds the next elements."""
        self._hashes[what].update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)

    def result(self) -> dict[str, bytes]:
        """The digests so far."""
        return {what: h.digest() for what, h in self._hashes.items()}


def digests(slices: Iterator[Slice]) -> dict[str, bytes]:
    """Digests of a whole reference."""
    out = Digests()
    for part in slices:
        for what in ("symbols", "scales", "values"):
            out.feed(what, getattr(part, what))
    return out.result()
