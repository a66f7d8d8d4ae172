"""Helpers that the plots share: axes, colours, stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core.errors import UnsupportedError
from .._native import safe

# Told apart by people with every kind of colour vision, after Okabe and Ito.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
GREY = COLORS[-1]
MIB = float(1 << 20)
_LONGEST_LABEL = 100


def caption(name: str) -> str:
    """A name as it stands in a picture: short, and with no dollar that begins a formula.

    >>> caption("price in $ or $"), len(caption("9" * 5000))
    ('price in \\\\$ or \\\\$', 100)
    """
    text = safe(name)
    if len(text) > _LONGEST_LABEL:
        text = f"{text[: _LONGEST_LABEL // 2 - 1]}…{text[-_LONGEST_LABEL // 2 :]}"
    return text.replace("$", r"\$")


def axes(ax: Any, size: tuple[float, float] = (6.4, 3.6)) -> Any:
    """The axes given, or new ones of that many inches."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise UnsupportedError("matplotlib is not installed (pip install matplotlib)", code="U203") from None
    if ax is not None:
        return ax
    return plt.subplots(figsize=size, layout="constrained")[1]


def quiet(ax: Any, grid: str = "both") -> Any:
    """Without the frame's upper and right lines, with a grid that stays behind."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, axis=grid, alpha=0.25)
    ax.set_axisbelow(True)
    return ax


def ink(ax: Any) -> Any:
    """The colour of the axes' text, which stands out from its background."""
    return ax.xaxis.label.get_color()


def stacks(
    ax: Any,
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    labels: Sequence[str],
    colors: Sequence[str] = COLORS,
) -> None:
    """One bar for each name, of parts side by side."""
    table = np.array(values, float)
    begin = np.zeros(len(names))
    for i, label in enumerate(labels):
        ax.barh(names, table[:, i], left=begin, color=colors[i % len(colors)], label=label)
        begin += table[:, i]
    ax.invert_yaxis()
    above(ax)


def above(ax: Any) -> None:
    """A legend above the axes, where it covers nothing; it grows to the left, over the place of the bars' names."""
    ax.legend(frameon=False, ncols=2, fontsize="small", loc="lower right", bbox_to_anchor=(1, 1))
