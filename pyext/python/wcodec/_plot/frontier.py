"""Plots of damage against bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._errors import InputError
from ._draw import COLORS, axes, ink, quiet

if TYPE_CHECKING:
    from .._plan import FrontierReport
    from .._plan._frontier_report import FrontierRow

# The colour of each recipe in every picture; a trellis has a full line, without it a dashed one.
_RECIPES = ("weights alone", "Fisher steps", "error feedback")
_SMALLEST_KL = 1e-9


class FrontierPlots:
    """Plots of a :class:`~wcodec.FrontierReport`."""

    def __init__(self, report: FrontierReport) -> None:
        self._report = report

    def kl(self, ax: Any = None, *, coder: str | None = None) -> Any:
        """``KL(original || quantized)`` on a logarithmic axis against the bits that are stored, a line for each recipe;
        references and ``int8`` are points.

        :param coder: of one coder only; if left out, that of the report's first row that has one.
        """
        coders = list(dict.fromkeys(row.coder for row in self._report.rows if row.coder is not None))
        chosen = coders[0] if coder is None and coders else coder
        if chosen not in coders:
            raise InputError(f"nothing was measured with coder {chosen!r} (pass it to frontier)")
        ax = axes(ax, (6.8, 4.4))
        lines: dict[tuple[str, bool], list[FrontierRow]] = {}
        for row in self._report.rows:
            if row.kind == "rate" and row.coder == chosen:
                lines.setdefault((row.recipe, row.trellis), []).append(row)
        for (recipe, trellis), rows in lines.items():
            rows.sort(key=lambda row: row.bits_stored)
            color = COLORS[_RECIPES.index(recipe) if recipe in _RECIPES else 3]
            label = f"{rows[0].label}, {chosen}"
            ax.plot(
                [row.bits_stored for row in rows], [max(row.kl, _SMALLEST_KL) for row in rows], color=color,
                marker="o" if trellis else "s", markersize=5, linestyle="-" if trellis else "--", label=label,
            )  # fmt: skip
        for row in self._report.rows:
            if row.kind == "reference" or row.kind == "int8" and row.coder == chosen:
                self._point(ax, row)
        ax.set_yscale("log")
        ax.set_xlabel("bits per weight, everything stored for it counted")
        ax.set_ylabel("KL(original || quantized), nats per token")
        ax.legend(frameon=False, fontsize="small", loc="upper right")
        return quiet(ax)

    @staticmethod
    def _point(ax: Any, row: FrontierRow) -> None:
        ax.plot([row.bits_stored], [max(row.kl, _SMALLEST_KL)], color=ink(ax), marker="D", markersize=6, linestyle="")
        name = row.label.partition(",")[0]
        left = row.kind == "int8"
        ax.annotate(name, (row.bits_stored, row.kl), (-8 if left else 8, 5), textcoords="offset points",
                    ha="right" if left else "left", fontsize="small")  # fmt: skip
