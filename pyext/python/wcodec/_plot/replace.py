"""Plots of what replacing a model's layers did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import format as fmt
from .._core.colors import COLORS as MEANINGS
from .accessor import Plots
from .draw import COLORS, MIB, axes, quiet, stacks

if TYPE_CHECKING:
    from .._models.report import ReplaceReport


class ReplacePlots(Plots):
    """Plots of a :class:`~wcodec.ReplaceReport`."""

    _default = "memory"
    _shown: ReplaceReport

    def memory(self, ax: Any = None) -> Any:
        """Bytes of all the model's weights before and after, by the kind of layer; tied weights once.

        The report does not know the memory that decoding needs beside them: see :func:`wcodec.measure_vram`.
        """
        report = self._shown
        ax = axes(ax, (6.4, 2.4))
        before: dict[str, int] = {}
        after: dict[str, int] = {}
        for layer in report.replaced:
            if layer.tied_to is None:
                before[layer.kind] = before.get(layer.kind, 0) + layer.original_bytes
                after[layer.kind] = after.get(layer.kind, 0) + layer.stored_bytes
        left = "left as it was"
        before[left] = report.bytes_before - report.original_bytes
        after[left] = report.bytes_after - report.stored_bytes
        kinds = list(before)
        known = {"CompressedLinear": "compressed", "CompressedEmbedding": "compressed embedding", left: "original"}
        colors = [MEANINGS[known[k]] if k in known else COLORS[i % len(COLORS)] for i, k in enumerate(kinds, 1)]
        stacks(ax, ["before", "after"], [[part[k] / MIB for k in kinds] for part in (before, after)], kinds, colors)
        for place, total in enumerate((report.bytes_before, report.bytes_after)):
            ax.annotate(fmt.size(total), (total / MIB, place), (5, 0), textcoords="offset points", va="center")
        ax.margins(x=0.18)
        ax.set_xlabel("weights, MiB")
        return quiet(ax, "x")
