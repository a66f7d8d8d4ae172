"""The target of a plan: a size, bits per weight, or a bound of quality loss."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .._core import format as fmt
from .._core.errors import InputError
from .._core.option_table import LEAST_BITS, MOST_BITS
from .._core.options import as_whole, shown, size

_BITS = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,12})?)\s*bits?\s*", re.IGNORECASE)
_QUALITY = re.compile(r"\s*kl\s*<=?\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]{1,3})?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """One of the three, the others ``None``."""

    bytes: int | None = None
    """The size of the whole file."""
    bits: float | None = None
    """Bits per weight of the tensors that are encoded."""
    kl: float | None = None
    """Mean of ``KL(original || compressed)``, nats per token."""

    def __str__(self) -> str:
        if self.bytes is not None:
            return f"{fmt.exact_size(self.bytes)} for the whole file"
        if self.bits is not None:
            return f"{self.bits:g} bits per weight of the encoded tensors"
        return f"KL of at most {self.kl:g} nats per token"


def target(budget: Any, quality: Any, bits: Any = None) -> Target:
    """The target that was asked for.

    >>> target("600MB", None).bytes, target("4.2 bits", None).bits, target(None, "kl<=0.02").kl
    (600000000, 4.2, 0.02)
    """
    if bits is not None:
        raise InputError(
            f"bits={shown(bits)} does not go with budget or quality, which choose the bits (leave one of them out)",
            code="I631",
        )
    if budget is not None and quality is not None:
        raise InputError(
            f"budget={shown(budget)} and quality={shown(quality)} exclude each other: one is met, and the other comes "
            "of it (leave one of them out)",
            code="I631",
        )
    if budget is None and quality is None:
        raise InputError("a plan needs a budget or a quality (pass budget='600MB' or quality='kl<=0.02')", code="I631")
    if quality is not None:
        match = _QUALITY.fullmatch(quality) if isinstance(quality, str) else None
        if match is None:
            raise InputError(f"quality must be a bound of KL, not {shown(quality)} (such as 'kl<=0.02')", code="I633")
        return Target(kl=float(match[1]))
    return _budget(budget)


def _budget(budget: Any) -> Target:
    match = _BITS.fullmatch(budget) if isinstance(budget, str) else None
    if match is not None:
        bits = float(match[1])
        if not LEAST_BITS <= bits <= MOST_BITS:
            raise InputError(
                f"a budget of {bits:g} bits per weight is not within scheme rate's range "
                f"(use {LEAST_BITS:g} to {MOST_BITS:g} bits, or a size of the whole file)",
                code="I632",
            )
        return Target(bits=bits)
    try:
        bytes_ = size("budget", budget, 1) if isinstance(budget, str) or as_whole(budget) is not None else None
    except InputError:
        bytes_ = None
    if bytes_ is None:
        raise InputError(
            f"budget must be a size or bits per weight, not {shown(budget)} (such as '600MB', '1.5GiB' or '4.2 bits')",
            code="I632",
        )
    return Target(bytes=bytes_)
