"""Plots of rate-distortion curves: quality loss against bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.colors import COLORS
from .._core.errors import InputError
from .accessor import Plots
from .draw import GREY, axes, quiet

if TYPE_CHECKING:
    from .._plan import FrontierReport
    from .._plan.frontier_report import FrontierRow

# A trellis has a full line, without it a dashed one.
_RECIPES = {"weights alone": "rate", "Fisher steps": "rate, steps", "error feedback": "rate, calibrated"}
_POINTS = ("D", "^", "v", "P", "X")
_SMALLEST_KL = 1e-9
# int8 has so many bits that it would leave the others no room: beyond this it is named and not drawn.
_FAR = 1.5


class FrontierPlots(Plots):
    """Plots of a :class:`~wcodec.FrontierReport`."""

    _default = "kl"
    _shown: FrontierReport

    def kl(self, ax: Any = None, *, coder: str | None = None) -> Any:
        """``KL(original || quantized)`` on a logarithmic axis against the bits that are stored: a line for each recipe,
        and a point for each reference. ``int8`` is only named where the lines end far from it.

        :param coder: the only coder to draw; if left out, that of the report's first row that has one.
        """
        coders = list(dict.fromkeys(row.coder for row in self._shown.rows if row.coder is not None))
        shown_coder = coders[0] if coder is None and coders else coder
        if shown_coder not in coders:
            raise InputError(f"nothing was measured with coder {shown_coder!r} (pass it to frontier)", code="I601")
        ax = axes(ax, (6.8, 4.4))
        lines: dict[tuple[str, bool], list[FrontierRow]] = {}
        for row in self._shown.rows:
            if row.kind == "rate" and row.coder == shown_coder:
                lines.setdefault((row.recipe, row.trellis), []).append(row)
        for (recipe, trellis), rows in lines.items():
            rows.sort(key=lambda row: row.bits_stored)
            color = COLORS[_RECIPES.get(recipe, "compressed")]
            ax.plot(
                [row.bits_stored for row in rows], [max(row.kl, _SMALLEST_KL) for row in rows], color=color,
                marker="o" if trellis else "s", markersize=5, linestyle="-" if trellis else "--", label=rows[0].label,
            )  # fmt: skip
        points = [row for row in self._shown.rows if row.kind == "reference"]
        farthest = max(row.bits_stored for rows in [points, *lines.values()] for row in rows)
        for row in self._shown.rows:
            if row.kind == "int8" and row.coder == shown_coder:
                if row.bits_stored < farthest + _FAR:
                    points.append(row)
                else:
                    text = f"int8, not drawn: {row.bits_stored:.2f} bits, {row.kl:.2g} nats per token"
                    ax.set_title(text, loc="right", fontsize="small")
        for row, marker in zip(points, _POINTS, strict=False):
            color = COLORS["int8" if row.kind == "int8" else "others"]
            text = f"{row.recipe}: {row.bits_stored:.2f} bits"
            ax.plot([row.bits_stored], [max(row.kl, _SMALLEST_KL)], marker, color=color, markersize=7, label=text)
        if points and points[0].kl > 0:
            # The dotted line shows the distance of each curve from the first reference at the same quality loss.
            ax.axhline(points[0].kl, color=GREY, linewidth=1, linestyle=":", zorder=0)
        ax.set_yscale("log")
        ax.set_xlabel(f"bits per weight, everything stored for it counted (coder {shown_coder})")
        ax.set_ylabel("KL(original || quantized), nats per token")
        ax.legend(frameon=False, fontsize="small", loc="upper right")
        return quiet(ax)
