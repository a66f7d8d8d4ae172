"""The quality loss that errors in each matrix cause, by its Fisher information."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .statistics import Statistics


def estimated_kl(statistics: Statistics, errors: Mapping[str, float]) -> dict[str, float]:
    """The effect on predictions of errors in each tensor alone, in approximate nats per token of KL(original ||
    quantized).

    Half the Fisher information times the squared error, with errors of a matrix that know nothing of each other.

    :param errors: by tensor, the root mean square of errors over that of the weights. Those that statistics do not know
        are left out.
    """
    known = {**{name: (name,) for name in statistics.units}, **statistics.names}
    return {
        name: 0.5 * error**2 * sum(statistics.units[part].fisher for part in known[name]) / statistics.tokens
        for name, error in errors.items()
        if name in known
    }


def shares(statistics: Statistics) -> dict[str, float]:
    """Each tensor's share of the quality loss if all have the same relative error, the largest first."""
    kl_of_units = estimated_kl(statistics, dict.fromkeys(statistics.units, 1.0))
    total = sum(kl_of_units.values())
    ordered = sorted(kl_of_units.items(), key=lambda item: -item[1])
    return {name: kl / total if total else 0.0 for name, kl in ordered}
