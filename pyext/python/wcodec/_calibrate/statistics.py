"""Statistics measured on a model: the sizes of each matrix' inputs, its sensitivity, and second moments of inputs."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.errors import InputError
from . import factor
from .factor import one_thread
from .file import description_of, load, save
from .kept import FeedbackCache
from .moments import Packed
from .records import SiteRecord, UnitRecord, power_of
from .shares import shares

if TYPE_CHECKING:
    from .._plot.reports import StatisticsPlots, StatisticsReportPlots

# An expert that fewer tokens were routed to is quantized by its weights alone.
RARE_TOKENS = 1000
# Columns of a block that one thread factors within some hundredths of a second.
_NARROW = 1024


@dataclass(frozen=True)
class StatisticsReport:
    """The data that statistics are based on."""

    tokens: dict[str, int]
    """Tokens that each tensor was multiplied with."""
    fallbacks: dict[str, str]
    """Tensors that are quantized by their weights alone, and why."""
    blocks: dict[str, int]
    """Tensors whose inputs are so wide that their second moments are in blocks, and columns of a block."""

    plot: ClassVar[Accessor[StatisticsReportPlots]] = Accessor(
        "wcodec._plot.reports:StatisticsReportPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.tokens()``.",
    )

    def __str__(self) -> str:
        lines = [f"statistics of {fmt.plural(len(self.tokens), 'tensor')}"]
        lines += [f"  by weights alone: {name}: {why}" for name, why in self.fallbacks.items()]
        lines += [f"  in blocks of {width} columns: {name}" for name, width in self.blocks.items()]
        return "\n".join(lines)


class Statistics:
    """The result of :func:`wcodec.collect_statistics`: kept, saved, and used again for other rates.

    Tensors have the names that a saved checkpoint has for them; those of the model's own parameters are known too.
    """

    def __init__(
        self,
        units: dict[str, UnitRecord],
        sites: dict[str, SiteRecord],
        moments: dict[str, list[Packed]],
        names: dict[str, tuple[str, ...]],
        rows: dict[str, torch.Tensor] | None = None,
        *,
        source: str,
        tokens: int,
        text_hash: str,
        model_hash: str,
    ) -> None:
        self.units, self.sites, self.names = units, sites, names
        self.path: str | None = None
        """The file that has them, once they were saved or loaded."""
        self._moments = moments
        # For each matrix the mean cost of a squared error of each output, ``float32 [rows]``. Files of earlier versions
        # do not say it.
        self._rows = rows or {}
        self._gradients = any(unit.fisher > 0 for unit in units.values())
        self._feedback = FeedbackCache()
        self.source = source
        """``mixed``, ``self``, ``text`` or ``token ids``."""
        self.tokens = tokens
        """Tokens that were looked at."""
        self.text_hash = text_hash
        """SHA-256 of their ids."""
        self.model_hash = model_hash
        """SHA-256 of the model's config, and of names and shapes of the tensors that these statistics are about."""

    plot: ClassVar[Accessor[StatisticsPlots]] = Accessor(
        "wcodec._plot.reports:StatisticsPlots",
        "Plots: ``statistics.plot()``, the same as ``statistics.plot.factors()`` and ``.tokens()``.",
    )

    @property
    def full(self) -> bool:
        """Whether there are second moments, which error feedback needs."""
        return any(site.width for site in self.sites.values())

    @property
    def gradients(self) -> bool:
        """Whether it is known how much each matrix matters, which steps go by."""
        return self._gradients

    @property
    def columns(self) -> bool:
        """Whether it is known how large inputs are, which factors of columns go by. Of files of earlier versions, those
        that are for steps only do not say it."""
        return bool(self.sites)

    @property
    def nbytes(self) -> int:
        """Bytes of the second moments; what else there is takes some hundred bytes for each tensor, and 4 for each of
        its inputs and outputs."""
        return sum(block.nbytes for site, blocks in self._moments.items() if self.sites[site].width for block in blocks)

    @property
    def report(self) -> StatisticsReport:
        """Tokens of each tensor, and which of them fall back to weights alone."""
        why_not = self._why_not if self.full or self.gradients else self._why_no_columns
        reasons = {name: why_not(unit) for name, unit in self.units.items()}
        blocks = {
            name: self.sites[unit.site].width
            for name, unit in self.units.items()
            if unit.site is not None and 0 < self.sites[unit.site].width < self.sites[unit.site].cols
        }
        return StatisticsReport(
            {name: unit.tokens for name, unit in self.units.items()},
            {name: why for name, why in reasons.items() if why is not None},
            blocks,
        )

    def factors(self) -> dict[str, float]:
        """Each tensor's step as a multiple of a common one: larger where an error matters less.

        The step of a row is this times the row's RMS times what the rate asks for. Their geometric mean over all
        weights is 1. A tensor that is not among them has 1.
        """
        costs = {name: self._cost(unit) for name, unit in self.units.items() if unit.fisher > 0}
        known_costs = {name: cost for name, cost in costs.items() if self._why_not(self.units[name]) is None}
        known, all_kinds = self._by_kind(known_costs), self._by_kind(costs)
        # A rare expert matters no more than the least of its layer that is known well. If all are rare, the mean of all
        # of them is still some evidence.
        rare = {
            kind: min(known[kind]) if kind in known else sum(every) / len(every) for kind, every in all_kinds.items()
        }
        usual = _geometric_mean((cost, self._size(name)) for name, cost in known_costs.items()) if known_costs else 1.0
        factors: dict[str, float] = {}
        for name, unit in self.units.items():
            cost = known_costs.get(name, rare.get(unit.kind, 0.0))
            if cost > 0:
                factors[name] = (cost / usual) ** (-0.5 * power_of(unit.expert))
        if not factors:
            return {}
        mean = _geometric_mean((value, self._size(name)) for name, value in factors.items())
        out = {name: factors[name] / mean if name in factors else 1.0 for name in self.units}
        for name, parts in self.names.items():
            out[name] = _geometric_mean((out[part], self._size(part)) for part in parts)
        return out

    def shares(self) -> dict[str, float]:
        """Each tensor's share of the quality loss that quantization causes, 0 to 1, the largest first: by the Fisher
        information, if all tensors are off by the same part of their size, as they are at a plain number of bits.
        :func:`wcodec.sensitivity` measures those that matter most."""
        return shares(self)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes them to a safetensors file, for :meth:`load`."""
        save(self, path, overwrite)
        self.path = os.path.abspath(path)

    @property
    def digest(self) -> str:
        """SHA-256 of all that was measured but the second moments themselves, which tells statistics apart."""
        text = json.dumps(description_of(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Statistics:
        """Reads what :meth:`save` wrote. Second moments stay in the file until they are needed. Files that an earlier
        version wrote for steps only say nothing of columns.

        :raises FormatError: if the file is another one, or contradicts itself.
        """
        statistics = Statistics(**load(path))
        statistics.path = os.path.abspath(path)
        return statistics

    def _size(self, name: str) -> int:
        unit = self.units[name]
        return unit.rows * unit.cols

    def _why_not(self, unit: UnitRecord) -> str | None:
        """Why a tensor falls back to its weights alone, if it does."""
        if unit.tokens == 0:
            return "no token reached it"
        if unit.expert and unit.tokens < RARE_TOKENS:
            return f"only {unit.tokens} tokens were routed to it"
        if self.gradients and not unit.fisher > 0:
            return "nothing depends on its output"
        return None

    @staticmethod
    def _why_no_columns(unit: UnitRecord) -> str | None:
        return "no token reached it" if unit.site is None else None

    def _cost(self, unit: UnitRecord) -> float:
        """The cost of a squared error of the rows' own size, for each weight and token."""
        left = 1.0 if unit.site is None else self.sites[unit.site].left
        # Rows that are looked up have no later column that makes up for an error.
        return (unit.sensitivity * left + unit.embedding) / (unit.rows * unit.cols * self.tokens)

    def _by_kind(self, costs: dict[str, float]) -> dict[str, list[float]]:
        by_kind: dict[str, list[float]] = {}
        for name, cost in costs.items():
            by_kind.setdefault(self.units[name].kind, []).append(cost)
        return by_kind

    def _only(self) -> str:
        """The use that these statistics are of, without second moments."""
        parts = [name for name, there in (("columns", self.columns), ("steps", self.gradients)) if there]
        return f"{' and '.join(parts) or 'nothing'} only"

    def _facts(self) -> list[tuple[str, str]]:
        report = self.report
        facts = [
            ("tensors", f"{len(self.units):,}"),
            ("tokens", f"{self.tokens:,} ({self.source})"),
            ("second moments", fmt.size(self.nbytes) if self.full else f"none: {self._only()}"),
        ]
        if report.fallbacks:
            facts.append(("by weights alone", f"{len(report.fallbacks):,}"))
        if report.blocks:
            facts.append(("in blocks", f"{len(report.blocks):,}"))
        return [*facts, ("text", self.text_hash[:16])]

    def __repr__(self) -> str:
        return f"Statistics({fmt.facts(self._facts())})"

    def _repr_html_(self) -> str:
        return fmt.html_block("Statistics", self._facts())


def moments_of(statistics: Statistics, site: str) -> list[Packed]:
    """The blocks of an input's second moments, as they are kept."""
    return statistics._moments[site]


def costs_of_rows(statistics: Statistics, name: str) -> tuple[torch.Tensor, int] | None:
    """The cost of a squared error of each row of a tensor, ``float32 [rows]``, and the number of tokens that it is the
    mean of; ``None`` where it is not known."""
    parts = _parts_of(statistics, name)
    if not parts or any(part not in statistics._rows for part in parts):
        return None
    tokens = min(statistics.units[part].tokens for part in parts)
    return torch.cat([statistics._rows[part] for part in parts]), tokens


def _parts_of(statistics: Statistics, name: str) -> list[str]:
    """Names of the matrices that a tensor is made of, one below the other; none if nothing is known of it."""
    return [part for part in statistics.names.get(name, (name,)) if part in statistics.units]


def _units_of(statistics: Statistics, name: str, shape: Iterable[int] | None) -> list[UnitRecord]:
    """The matrices that a tensor is made of, one below the other; none if nothing is known of it.

    :raises InputError: if the tensor has another shape.
    """
    parts = [statistics.units[part] for part in _parts_of(statistics, name)]
    known = [sum(part.rows for part in parts), parts[0].cols] if parts else None
    if known is not None and shape is not None and list(shape) != known:
        raise InputError(
            f"tensor '{name}': it has shape {list(shape)}, and the statistics are of {known} "
            "(collect them from this model)",
            tensor=name,
            code="I622",
        )
    return parts


def sizes_of(statistics: Statistics, name: str, shape: Iterable[int] | None = None) -> tuple[torch.Tensor, int] | None:
    """The mean squares of a tensor's inputs, ``float32 [cols]``, and how many tokens they are of; ``None`` where they
    are not known.

    :param shape: as for :func:`feedback_for`.
    """
    parts = _units_of(statistics, name, shape)
    if not parts or parts[0].site is None:
        return None
    site = parts[0].site
    return torch.cat([block.diagonal for block in moments_of(statistics, site)]), statistics.sites[site].tokens


def has_moments(statistics: Statistics, name: str) -> bool:
    """Whether there are second moments of a tensor's inputs that are to be used."""
    parts = _units_of(statistics, name, None)
    site = parts[0].site if parts else None
    known = site is not None and statistics.sites[site].width > 0
    return known and all(statistics._why_not(part) is None for part in parts)


def feedback_for(
    statistics: Statistics,
    name: str,
    *,
    trellis: bool,
    device: torch.device | str = "cpu",
    shape: Iterable[int] | None = None,
) -> factor.Feedback | None:
    """The statistics of a tensor's input for error feedback; ``None`` where only the weights are known.

    It takes two matrices of inputs x inputs, and a factorization. Those of the first inputs are kept for further calls,
    in up to an eighth of the free memory, and that of the last one.

    :param shape: outputs and inputs of the tensor, to be compared with those of the statistics.
    :raises InputError: if they differ.
    """
    parts = _units_of(statistics, name, shape)
    if not has_moments(statistics, name):
        return None
    site, place = str(parts[0].site), torch.device(device)

    def make() -> factor.Feedback:
        width = statistics.sites[site].width
        with one_thread(place, width <= _NARROW):
            moments = moments_of(statistics, site)
            blocks = [(width * i, block.dense(place)) for i, block in enumerate(moments)]
            return factor.feedback(blocks, own_order=trellis, tokens=statistics.sites[site].tokens)

    return statistics._feedback.get((site, trellis, place), place, make)


def fisher_power(statistics: Statistics, name: str) -> float:
    """The power of the Fisher information that the step of a tensor follows."""
    parts = _units_of(statistics, name, None)
    return power_of(bool(parts) and parts[0].expert)


def forget_feedback(statistics: Statistics) -> None:
    """Gives the memory of the feedback back that :func:`feedback_for` keeps."""
    statistics._feedback.clear()


def _geometric_mean(values: Iterable[tuple[float, int]]) -> float:
    pairs: list[tuple[float, Any]] = list(values)
    return math.exp(sum(math.log(value) * count for value, count in pairs) / sum(count for _, count in pairs))
