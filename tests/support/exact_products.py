"""Products of one vector, bit for bit: what kernels/cuda/single.h says, in NumPy.

Sums are of whole numbers, and what is done with them are operations of f32 that IEEE 754 defines: whatever multiplies
gives the same bits. A test that compares these needs no bound, and a wrong digit of one weight shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# The power of two whose multiples elements are rounded to has this many bits below the largest element.
TOP = 147


def f32(value: Any) -> Any:
    """Rounded once: what goes in is exact in f64."""
    return np.asarray(value, np.float64).astype(np.float32)


def fma(a: Any, b: float, c: Any) -> Any:
    """a b + c, rounded once: `b` is a power of two, and both are so near that f64 holds the sum."""
    return f32(np.float64(a) * b + np.float64(c))


def power_of(largest: np.float32) -> int:
    return int(min(TOP - (int(largest.view(np.uint32)) >> 23), 127))


def digits(x: np.ndarray, power: int) -> np.ndarray:
    """Digits of elements: one of 128ths, and three of a whole number to the base of 256, as rows."""
    scaled = x.astype(np.float64) * 2.0**power
    whole = np.rint(scaled).astype(np.int64)
    rest = np.rint((scaled - whole) * 128).astype(np.int64)
    low = (whole + 128 & 255) - 128
    middle = ((whole - low >> 8) + 128 & 255) - 128
    high = (whole - low >> 8) - middle >> 8
    return np.stack([rest, low, middle, high])


def level(sums: np.ndarray, halves: np.ndarray, power: int) -> np.ndarray:
    """Value of the sums of a tile's symbols with each digit; `halves` are the sums of the digits where levels are a
    half more than symbols."""
    twice = [f32(2 * s + h) for s, h in zip(sums, halves, strict=True)]
    low = fma(twice[1], 128, twice[0])
    high = fma(twice[3], 256, twice[2])
    both = fma(high, 32768, low)
    # Two factors, of which each is a number of f32.
    exponent = -8 - power
    first = exponent >> 1
    return f32(np.float64(f32(np.float64(both) * 2.0**first)) * 2.0 ** (exponent - first))


def one_vector(entry: Any, x: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray | None:
    """The product of a tensor of a container with a vector, as f32, before it is rounded to the vector's dtype; nothing
    where rows have several scales, which go into the sums of blocks.

    :param x: the elements, as f32.
    """
    plane = entry.planes[0]
    half = entry.scheme.startswith("rate")
    symbols = entry.symbols().astype(np.int64)
    symbols = symbols.reshape(-1, symbols.shape[-1])
    scales = np.asarray(entry.scales(), np.float32)
    rows, columns = symbols.shape
    if scales.size > rows:
        return None
    total = np.zeros(rows, np.float32)
    for begin in range(0, columns, plane.tile):
        end = min(begin + plane.tile, columns)
        power = power_of(np.abs(x[begin:end]).max().astype(np.float32))
        found = digits(x[begin:end], power)
        sums = found @ symbols[:, begin:end].T
        part = level(sums, found.sum(axis=1) if half else np.zeros(4, np.int64), power)
        total = f32(total.astype(np.float64) + part)
    result = f32(total.astype(np.float64) * scales.reshape(-1))
    return f32(result.astype(np.float64) + (0 if bias is None else bias))
