"""Second moments of inputs: summed up in float32, kept as correlations in float16, half of the symmetric matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Inputs that are wider are cut into blocks, which know nothing of each other.
WIDEST = 16384
BLOCK = 8192
# Rows of the upper triangle that are kept as one rectangle.
_STRIP = 128


def block_width(cols: int, widest: int = WIDEST, block: int = BLOCK) -> int:
    """Columns of each block of an input so wide: all of them, or equal parts of at most ``block``, a multiple of 64."""
    if cols <= widest:
        return cols
    parts = -(-cols // block)
    return min(cols, -(-cols // (64 * parts)) * 64)


def packed_elements(size: int) -> int:
    """Numbers that are kept of a block of that many columns, without its diagonal.

    >>> packed_elements(128), packed_elements(256)
    (16384, 49152)
    """
    full_strips, rest = divmod(size, _STRIP)
    # Strips of 128 rows, of size, size - 128, ... columns, and a last one that is a square.
    return _STRIP * (full_strips * size - _STRIP * (full_strips * (full_strips - 1) // 2)) + rest * rest


@dataclass(frozen=True)
class Packed:
    """A block of second moments as it is kept."""

    diagonal: torch.Tensor
    """``float32 [n]``."""
    strips: torch.Tensor
    """Correlations from the diagonal on, strip by strip, ``float16``."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return int(self.diagonal.nbytes + self.strips.nbytes)

    def dense(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The symmetric matrix, ``float32 [n, n]``."""
        diagonal = self.diagonal.to(device)
        size = len(diagonal)
        out = torch.zeros((size, size), device=device)
        at = 0
        for begin in range(0, size, _STRIP):
            end = min(begin + _STRIP, size)
            count = (end - begin) * (size - begin)
            strip = self.strips[at : at + count].to(device, torch.float32).view(end - begin, size - begin)
            out[begin:end, begin:] = strip
            out[begin:, begin:end] = strip.t()
            at += count
        root = diagonal.sqrt()
        out.mul_(root).mul_(root[:, None])
        # The diagonal itself, exactly.
        out.diagonal().copy_(diagonal)
        return out


def pack(moments: torch.Tensor) -> Packed:
    """Packs a symmetric matrix. float16 has 11 bits of a correlation, far below the damping that is added later."""
    diagonal = moments.diagonal().clone()
    scale = torch.where(diagonal > 0, diagonal.rsqrt(), 0)
    strips = []
    for begin in range(0, len(moments), _STRIP):
        strip = moments[begin : begin + _STRIP, begin:] * scale[begin:] * scale[begin : begin + _STRIP, None]
        # Rounding may leave more than 1 for inputs close to zero.
        strips.append(strip.clamp_(-1, 1).to("cpu", torch.float16).reshape(-1))
    return Packed(diagonal.to("cpu"), torch.cat(strips))


def sizes(diagonal: torch.Tensor) -> Packed:
    """The diagonal alone: how large each input is."""
    return Packed(diagonal.to("cpu", torch.float32), torch.empty(0, dtype=torch.float16))


class Sums:
    """The sums of outer products of one input, block by block."""

    def __init__(self, cols: int, width: int, device: torch.device) -> None:
        self.cols, self.width = cols, width
        self._blocks = [torch.zeros((min(width, cols - begin),) * 2, device=device) for begin in range(0, cols, width)]

    @staticmethod
    def size(cols: int, width: int) -> int:
        """Bytes that the sums of an input take."""
        return sum(4 * min(width, cols - begin) ** 2 for begin in range(0, cols, width))

    def add(self, x: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Adds inputs ``float32 [tokens, cols]``, each so many times as ``weights`` says."""
        if weights is not None:
            x = x * weights.sqrt()[:, None]
        for place, block in enumerate(self._blocks):
            part = x[:, place * self.width : place * self.width + len(block)]
            block.addmm_(part.t(), part)

    def means(self, counted: float) -> list[tuple[int, torch.Tensor]]:
        """Second moments of inputs whose weights are that together, each block with its first column; the sums are gone
        then."""
        return [
            (place * self.width, block.div_(counted if counted > 0 else 1.0))
            for place, block in enumerate(self._blocks)
        ]
