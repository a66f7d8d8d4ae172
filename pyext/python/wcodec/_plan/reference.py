"""Quantizations that others use, in NumPy and from their definitions, to compare with.

NF4 and double quantization: T. Dettmers, A. Pagnoni, A. Holtzman and L. Zettlemoyer, QLoRA, 2023, arXiv:2305.14314; the
8-bit levels of its scales: T. Dettmers et al., 2021, arXiv:2110.02861. Both take the weights of a matrix in the order
of its rows, one for each output.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

BLOCK = 64
_SCALES = 256
"""Scales of blocks that share a scale of their own."""
NF4_BITS = 4 + 8 / BLOCK + 32 / (BLOCK * _SCALES)
"""Four bits a weight, 8 bits a block, and a float32 for 256 of these."""
INT4_BITS = 4 + 16 / BLOCK
"""Four bits a weight and 16 bits of scale a group. Its offset, of 4 bits more, is not counted, in its favour."""

# Quantiles of a normal distribution: seven below zero, zero, eight above.
_NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip


def nf4(weight: Floats) -> Floats:
    """A matrix quantized to NF4 in blocks of 64, whose scales are quantized as well.

    >>> x = np.zeros((1, 64), np.float32)
    >>> x[0, :3] = 2.0, -1.0, 0.3
    >>> [round(float(value), 4) for value in nf4(x)[0, :4]]
    [2.0, -1.0501, 0.3219, 0.0]
    """
    blocks = _blocks(weight, BLOCK)
    scales = _double_quantized(np.abs(blocks).max(1))[:, None]
    units = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    return _whole(_nearest(units, _NF4) * scales, weight)


def int4(weight: Floats) -> Floats:
    """A matrix quantized to 4-bit integers with a scale in float16 and an offset for each group of 64.

    >>> x = np.zeros((1, 64), np.float32)
    >>> x[0, :3] = 14.0, -1.0, 6.4
    >>> int4(x)[0, :4].tolist()
    [14.0, -1.0, 6.0, 0.0]
    """
    groups = _blocks(weight, BLOCK)
    # Zero is always among the levels.
    low, high = np.minimum(groups.min(1), 0)[:, None], np.maximum(groups.max(1), 0)[:, None]
    scales = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
    safe = np.where(scales > 0, scales, np.float32(1))
    offsets = np.rint(-low / safe)
    levels = np.clip(np.rint(groups / safe) + offsets, 0, 15) - offsets
    return _whole(levels * scales, weight)


def _double_quantized(scales: Floats) -> Floats:
    """Scales of blocks as they come back from 8 bits: less their mean, in units of the largest of 256."""
    mean = scales.mean(dtype=np.float32)
    groups = _blocks(scales - mean, _SCALES)
    largest = np.abs(groups).max(1)[:, None]
    units = np.divide(groups, largest, out=np.zeros_like(groups), where=largest > 0)
    restored = _whole(_nearest(units, _dynamic_levels()) * largest, scales) + mean
    return restored.astype(np.float32)


@cache
def _dynamic_levels() -> Floats:
    """The 256 levels with a dynamic exponent: of each decade below 1, twice as many as of the one below that."""
    levels = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2**decade + 1)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - 6)
        levels += [*middles, *-middles]
    return np.sort(np.array(levels, np.float32))


def _nearest(values: Floats, levels: Floats) -> Floats:
    """The nearest of ascending levels."""
    return levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, values)]


def _blocks(values: Floats, size: int) -> Floats:
    """The values in rows of ``size``, the last one filled up with zeros."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    return np.pad(flat, (0, -len(flat) % size)).reshape(-1, size)


def _whole(blocks: Floats, like: Floats) -> Floats:
    """Back from rows of blocks."""
    return blocks.reshape(-1)[: like.size].reshape(like.shape).astype(np.float32, copy=False)
