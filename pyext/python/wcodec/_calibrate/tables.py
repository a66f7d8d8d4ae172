"""The cost of symbols: bits by the magnitude of a symbol, learned from those that were chosen before."""

from __future__ import annotations

import torch

from .. import _native

# Magnitudes of int8 symbols at halves: m of q >= 0 is q, of q < 0 is ~q.
MAGNITUDES = _native.MAGNITUDES
# The count of an unseen magnitude, which gives it a price at all: a high one, which keeps tables short.
_UNSEEN = 0.02
# The approximate bits of a table in a file for each magnitude that occurs.
_ENTRY_BITS = 12


def magnitudes(levels: torch.Tensor) -> torch.Tensor:
    """The magnitude m of each symbol q: the level is ``(q + 1/2)``, or ``-(m + 1/2)`` where q is negative."""
    return torch.bitwise_xor(levels, levels >> 7)


def histogram(levels: torch.Tensor, fine: bool) -> torch.Tensor:
    """Counts of each coded magnitude, ``int64 [128]``: half the magnitude for a trellis' fine symbols."""
    indices = magnitudes(levels) >> 1 if fine else magnitudes(levels)
    return torch.bincount(indices.reshape(-1).to(torch.int64), minlength=MAGNITUDES)


def prices(counts: torch.Tensor) -> torch.Tensor:
    """Bits of each magnitude, ``float32 [128]``, without those of the sign, which are always 1."""
    seen = counts.to(torch.float64) + _UNSEEN
    return torch.log2(seen.sum() / seen).to(torch.float32)


def rounded_prices(x: torch.Tensor, coarse: float) -> torch.Tensor:
    """The prices with which the search begins: those of plain rounding of weights in steps of ``coarse``."""
    plain = (x.abs() / coarse).floor_().clamp_(max=MAGNITUDES - 1)
    return prices(torch.bincount(plain.reshape(-1).to(torch.int64), minlength=MAGNITUDES))


def table_bits(counts: torch.Tensor) -> float:
    """Approximate bits of a table for symbols with these counts."""
    return _ENTRY_BITS * int((counts > 0).sum())


def entropy_bits(counts: torch.Tensor) -> float:
    """Bits of symbols that occur so often: their entropy and signs."""
    seen = counts[counts > 0].to(torch.float64)
    total = float(seen.sum())
    coded = float((seen * torch.log2(total / seen)).sum()) if total else 0.0
    return coded + total
