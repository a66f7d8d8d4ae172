"""Plots of reports on files, plans, statistics and this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.colors import ATTENTION, BAD, GOOD, MEASURES, NEUTRAL
from .._core.errors import InputError
from .._core.options import choice
from .._core.roles import figures_of, grid_of_figures, label, role_of
from .accessor import Plots
from .draw import COLORS, MIB, above, axes, caption, ink, quiet
from .heatmap import draw, draw_kinds, of_grid

if TYPE_CHECKING:
    from .._api.doctor import DoctorReport
    from .._calibrate.statistics import Statistics, StatisticsReport
    from .._core.reports import Comparison, CompressionReport, VerifyReport
    from .._core.tensor_info import TensorInfo
    from .._models.ranks import RanksReport
    from .._plan import PlanReport

# From what is well to what is worst.
_VERDICTS = {"ok": GOOD, "unsupported": ATTENTION, "extra": ATTENTION, "missing": BAD, "differs": BAD, "damaged": BAD}
_COMPARED = {"same": GOOD, "only_a": ATTENTION, "only_b": ATTENTION, "differs": BAD}
_SMALLEST_KL = 1e-9
_REPORTED = tuple(measure for measure in MEASURES if measure != "speed")


class CompressionPlots(Plots):
    """Plots of a :class:`~wcodec.CompressionReport`."""

    _default = "heatmap"
    _shown: CompressionReport

    def heatmap(self, by: str = "bits", ax: Any = None, *, vectors: bool = False) -> Any:
        """Layers and roles as a heat map, as :meth:`~wcodec._plot.ContainerPlots.heatmap` draws it.

        :param by: ``bits``, ``ratio``, ``error`` or ``share``.
        """
        choice("by", by, _REPORTED)
        grid = grid_of_figures(figures_of(self._shown.tensors), vectors)
        return of_grid(grid, by, ax, self._shown.stored_bytes, self._shown.path)

    def sizes(self, ax: Any = None) -> Any:
        """Bytes of each role before and now, the largest first."""
        tensors = self._shown.tensors
        before, now = [t.original_bytes for t in tensors], [t.stored_bytes for t in tensors]
        return _pairs(ax, [(tensors, before, "original"), (tensors, now, "stored")])


class VerifyPlots(Plots):
    """Plots of a :class:`~wcodec.VerifyReport`."""

    _default = "status"
    _shown: VerifyReport

    def status(self, ax: Any = None) -> Any:
        """The verdict on each tensor, by layer and role: the worst one where several share a cell."""
        statuses = {t.name: t.status for t in self._shown.tensors}
        return draw_kinds(
            _grid(statuses), lambda cell: _worst((statuses[n] for n in cell.names), _VERDICTS), _VERDICTS, ax
        )

    def error(self, ax: Any = None) -> Any:
        """Root mean square of the differences from the original, by layer and role; the largest where several share a
        cell."""
        errors = {t.name: t.rms_error for t in self._shown.tensors if t.rms_error is not None}
        if not errors:
            raise InputError("nothing was compared with an original (pass against=... to verify)", code="I601")
        return draw(_grid(errors), lambda cell: max(errors[name] for name in cell.names), "rms", ax)


class ComparisonPlots(Plots):
    """Plots of a :class:`~wcodec.Comparison`."""

    _default = "status"
    _shown: Comparison

    def status(self, ax: Any = None) -> Any:
        """Equal and different tensors, by layer and role."""
        statuses = {t.name: t.status for t in self._shown.tensors}
        return draw_kinds(
            _grid(statuses), lambda cell: _worst((statuses[n] for n in cell.names), _COMPARED), _COMPARED, ax
        )

    def sizes(self, ax: Any = None) -> Any:
        """Stored bytes of each role in both files, the largest first."""
        sides = [[t for t in side if t is not None] for side in self._shown._sides()]
        return _pairs(
            ax, [(side, [t.stored_bytes for t in side], name) for side, name in zip(sides, "ab", strict=True)]
        )


class PlanPlots(Plots):
    """Plots of a :class:`~wcodec.PlanReport`."""

    _default = "bits"
    _shown: PlanReport

    def bits(self, ax: Any = None) -> Any:
        """Stored bits per weight of each role, those of the whole beside them."""
        rows = [row for row in self._shown.roles if row.bits is not None]
        if not rows:
            raise InputError("the plan has no tensor to draw (plan a model that has some)", code="I601")
        ax = axes(ax, (6.8, 1.3 + 0.26 * len(rows)))
        drawn = ax.barh([caption(label(row.name)) for row in rows], [row.bits or 0.0 for row in rows], color=COLORS[0])
        ax.bar_label(drawn, fmt="%.2f", padding=3, fontsize="small")
        ax.axvline(self._shown.bits, color=COLORS[5], linewidth=1.5, linestyle="--",
                   label=f"all that is encoded: {self._shown.bits:.3f}")  # fmt: skip
        ax.invert_yaxis()
        ax.tick_params(axis="y", labelsize="small")
        ax.margins(x=0.1)
        ax.set_xlabel("bits/weight, stored")
        above(ax)
        return quiet(ax, "x")

    def candidates(self, ax: Any = None) -> Any:
        """The candidates that were tried: the file's size against the quality loss. The one that was taken is
        marked."""
        tried = [c for c in self._shown.candidates if c.kl is not None]
        if not tried:
            raise InputError("damage was not measured (pass a text to plan)", code="I601")
        ax = axes(ax, (6.4, 4.0))
        for taken, color, marker in ((False, NEUTRAL, "o"), (True, GOOD, "D")):
            some_tried = [c for c in tried if c.taken == taken]
            if some_tried:
                sizes, losses = (
                    [c.file_bytes / MIB for c in some_tried],
                    [max(c.kl or 0.0, _SMALLEST_KL) for c in some_tried],
                )
                ax.plot(sizes, losses, marker, color=color, markersize=8, label="taken" if taken else "tried")
            for c in some_tried:
                ax.annotate(c.recipe, (c.file_bytes / MIB, max(c.kl or 0.0, _SMALLEST_KL)), (6, 4),
                            textcoords="offset points", fontsize="small")  # fmt: skip
        ax.set_yscale("log")
        ax.margins(0.2)
        ax.set_xlabel("file, MiB")
        ax.set_ylabel("KL(original || compressed), nats per token")
        ax.legend(frameon=False)
        return quiet(ax)


class StatisticsPlots(Plots):
    """Plots of :class:`~wcodec.Statistics`."""

    _default = "factors"
    _shown: Statistics

    def factors(self, ax: Any = None) -> Any:
        """The step that each tensor would have, as a multiple of what all would have, by layer and role: finer where an
        error matters more. The geometric mean where several share a cell."""
        factors = self._shown.factors()
        if not factors:
            raise InputError(
                "these statistics have no tensor to draw (collect them on a model that has some)", code="I601"
            )

        def mean(names: list[str]) -> float:
            return float(np.exp(np.mean([np.log(factors[name]) for name in names])))

        return draw(_grid(factors), lambda cell: mean(cell.names), "step", ax)

    def tokens(self, ax: Any = None) -> Any:
        """The picture of :meth:`StatisticsReportPlots.tokens`."""
        return StatisticsReportPlots(self._shown.report).tokens(ax)


class StatisticsReportPlots(Plots):
    """Plots of a :class:`~wcodec.StatisticsReport`."""

    _default = "tokens"
    _shown: StatisticsReport

    def tokens(self, ax: Any = None) -> Any:
        """Tokens that each tensor was multiplied with, by layer and role; the fewest where several share a cell, as
        experts do, of which some see few."""
        tokens = self._shown.tokens
        if not tokens:
            raise InputError(
                "these statistics have no tensor to draw (collect them on a model that has some)", code="I601"
            )
        return draw(_grid(tokens), lambda cell: float(min(tokens[name] for name in cell.names)), "tokens", ax)


class RanksPlots(Plots):
    """Plots of a :class:`~wcodec.RanksReport`."""

    _default = "memory"
    _shown: RanksReport

    def memory(self, ax: Any = None) -> Any:
        """Bytes of weights that the rank with most of them holds, for each number of ranks: its parts, what each rank
        has all of, and what is not compressed."""
        rows = self._shown.rows
        ax = axes(ax, (6.4, 1.4 + 0.4 * len(rows)))
        names = [f"{row.ranks} rank" + ("s" if row.ranks > 1 else "") for row in rows]
        before = np.zeros(len(rows))
        parts = (("parts", "shared", COLORS[0]), ("in each rank", "replicated", COLORS[1]))
        for name, field, color in (*parts, ("not compressed", "plain", COLORS[5])):
            sizes = np.array([getattr(row, field) / MIB for row in rows])
            ax.barh(names, sizes, left=before, color=color, label=name)
            before += sizes
        ax.invert_yaxis()
        ax.set_xlabel("weights of a rank, MiB")
        above(ax)
        return quiet(ax, "x")


class DoctorPlots(Plots):
    """Plots of a :class:`~wcodec.DoctorReport`."""

    _default = "checks"
    _shown: DoctorReport

    def checks(self, ax: Any = None) -> Any:
        """The checks that were made, and whether each feature works."""
        checks = self._shown.checks
        ax = axes(ax, (6.4, 0.6 + 0.35 * len(checks)))
        for place, check in enumerate(checks):
            ax.plot([0], [place], "o" if check.ok else "X", color=GOOD if check.ok else BAD, markersize=11)
            verdict = "works" if check.ok else "does not work"
            ax.text(0.25, place, f"{caption(check.name)}: {verdict}", va="center", color=ink(ax))
        ax.set_xlim(-0.3, 6)
        ax.set_ylim(len(checks) - 0.4, -0.6)
        ax.axis("off")
        return ax


def _grid(names: Iterable[str]) -> Any:
    """The grid of tensors of which only the names are known."""
    return grid_of_figures([(name, 2, 1, 1, 1, None) for name in names])


def _worst(statuses: Iterable[str], order: dict[str, str]) -> str:
    known = list(order)
    return max(statuses, key=lambda status: known.index(status) if status in known else -1)


def _pairs(ax: Any, sides: Sequence[tuple[Sequence[TensorInfo], Sequence[int], str]]) -> Any:
    """A bar for each side of each role, the largest role first."""
    sums: dict[str, list[int]] = {}
    for i, (tensors, sizes, _) in enumerate(sides):
        for tensor, size in zip(tensors, sizes, strict=True):
            sums.setdefault(role_of(tensor.name), [0] * len(sides))[i] += size
    if not sums:
        raise InputError("there is no tensor to draw (take a file that has some)", code="I601")
    roles = sorted(sums, key=lambda role: -max(sums[role]))[:24]
    ax = axes(ax, (6.8, 1.3 + 0.34 * len(roles)))
    places = np.arange(len(roles))
    for i, (_, _, name) in enumerate(sides):
        offset = (i - 0.5) * 0.38
        ax.barh(
            places + offset, [sums[role][i] / MIB for role in roles], 0.36, color=(NEUTRAL, COLORS[0])[i], label=name
        )
    ax.set_yticks(places, [caption(label(role)) for role in roles], fontsize="small")
    ax.invert_yaxis()
    ax.set_xlabel("MiB")
    above(ax)
    return quiet(ax, "x")
