"""Plots of one tensor of an open container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import format as fmt
from .._core.errors import InputError
from .._core.options import count
from .._gpu.decodable import CONVERTIBLE
from .accessor import Plots
from .container import BINS, ContainerPlots, color_of
from .draw import axes, caption, quiet

if TYPE_CHECKING:
    from .._file.container import TensorEntry

# Values that are counted at a time, in float32.
_AT_ONCE = 1 << 22


class EntryPlots(Plots):
    """Plots of a :class:`~wcodec.TensorEntry`."""

    _shown: TensorEntry

    def _default_kind(self) -> str:
        return "symbols" if self._shown.makes_symbols else "values"

    def symbols(self, ax: Any = None, *, threads: int | None = None) -> Any:
        """Histogram of the symbols, as :meth:`ContainerPlots.symbols` draws it (schemes ``int8`` and ``rate``)."""
        return ContainerPlots(self._shown._container).symbols(self._shown.name, ax, threads=threads)

    def scales(self, ax: Any = None, *, bins: int = BINS) -> Any:
        """Histogram of the scales, as :meth:`ContainerPlots.scales` draws it (schemes ``int8`` and ``rate``)."""
        return ContainerPlots(self._shown._container).scales(self._shown.name, ax, bins=bins)

    def values(self, ax: Any = None, *, bins: int = BINS, threads: int | None = None) -> Any:
        """Histogram of the decoded values, on a logarithmic axis, so that outliers are seen; decodes the tensor."""
        parts = count("bins", bins) or BINS
        entry = self._shown
        if entry.dtype not in CONVERTIBLE:
            raise InputError(
                f"tensor '{entry.name}': values of dtype {entry.dtype} are not drawn (choose a tensor of floats)",
                tensor=entry.name,
                code="I601",
            )
        flat = entry.numpy("float32", threads=threads).reshape(-1)
        finite = flat[np.isfinite(flat)]
        if not finite.size:
            raise InputError(
                f"tensor '{entry.name}' has no values to draw (choose one that is not empty)",
                tensor=entry.name,
                code="I601",
            )
        low, high = float(finite.min()), float(finite.max())
        if low == high:
            # Equal values still get a bar.
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        edges = np.linspace(low, high, parts + 1)
        pieces = np.array_split(finite, 1 + finite.size // _AT_ONCE)
        counts = np.sum([np.histogram(piece, edges)[0] for piece in pieces], axis=0)
        ax = axes(ax)
        ax.bar(edges[:-1], counts, np.diff(edges), align="edge", color=color_of(entry))
        ax.set_yscale("log")
        ax.set_xlabel("value")
        ax.set_ylabel("weights")
        ax.set_title(caption(entry.name), fontsize="medium", loc="left")
        rms = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64))))
        left_out = flat.size - finite.size
        facts = f"RMS: {rms:.3g}\nlargest: {max(abs(float(finite.min())), abs(float(finite.max()))):.3g}"
        facts += f"\nstored: {fmt.number(entry.bits_per_weight)} bits/weight"
        facts += f"\n{left_out:,} not finite left out" if left_out else ""
        ax.text(0.98, 0.96, facts, transform=ax.transAxes, ha="right", va="top", fontsize="small")
        return quiet(ax)
