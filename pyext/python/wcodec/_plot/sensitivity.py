"""Plots of which layers suffer most from fewer bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.colors import COLORS
from .._core.errors import InputError
from .._core.roles import grid_of_figures
from .accessor import Plots
from .draw import above, axes, caption, ink, quiet
from .heatmap import draw

if TYPE_CHECKING:
    from .._plan import SensitivityReport


class SensitivityPlots(Plots):
    """Plots of a :class:`~wcodec.SensitivityReport`."""

    _default = "heatmap"
    _shown: SensitivityReport

    def heatmap(self, ax: Any = None) -> Any:
        """Each tensor's share of the quality loss in percent, by layer and role, in colours of a logarithmic
        scale; the sum where several share a cell."""
        report = self._shown
        shares = {row.name: 100 * row.share for row in report.rows if row.share is not None}
        if not shares:
            raise InputError("the report has no layer to draw (take more than top(0))", code="I601")
        grid = grid_of_figures([(name, 2, 1, 1, 1, None) for name in shares])
        ax = draw(grid, lambda cell: sum(shares[name] for name in cell.names), "damage", ax, logarithmic=True)
        # The scale of colours stands where a title would.
        ax.set_xlabel(f"{ax.get_xlabel() or 'all layers'}; {report.bits:g} bits/weight, from weights alone")
        return ax

    def top(self, n: int = 20, ax: Any = None) -> Any:
        """The ``n`` layers that suffer most: the quality loss that is estimated as bars, and what was measured as
        points."""
        rows = self._shown.rows[:n]
        if not rows:
            raise InputError("the report has no layer to draw (take more than top(0))", code="I601")
        ax = axes(ax, (7.2, 1.3 + 0.26 * len(rows)))
        names = [caption(row.name.removesuffix(".weight")) for row in rows]
        ax.barh(names, [row.estimated_kl or 0.0 for row in rows], color=COLORS["rate"], label="estimated (Fisher)")
        measured = [(name, row.kl) for name, row in zip(names, rows, strict=True) if row.kl is not None]
        if measured:
            ax.plot([kl for _, kl in measured], [name for name, _ in measured], "D", color=ink(ax), markersize=5,
                    label="measured")  # fmt: skip
        ax.invert_yaxis()
        ax.tick_params(axis="y", labelsize="small")
        ax.set_xlabel(f"KL(original || quantized) of it alone at {self._shown.bits:g} bits, nats per token")
        above(ax)
        return quiet(ax, "x")
