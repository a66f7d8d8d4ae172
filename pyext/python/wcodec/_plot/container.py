"""Plots of a container: what each tensor costs, and what its scales and symbols are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import format as fmt
from .._core.colors import COLORS as MEANINGS
from .._core.errors import InputError
from .._core.options import count
from .._core.roles import role_of
from .accessor import Plots
from .draw import COLORS, GREY, above, axes, caption, ink, quiet

if TYPE_CHECKING:
    from .._file.container import Container, TensorEntry

# More bars than this cannot be read in one picture: then tensors of the same place in their blocks share one.
_BARS = 32
# Symbols that are counted at a time.
_AT_ONCE = 1 << 22
BINS = 60
# Scales that lie further apart than this are drawn on a logarithmic axis.
_WIDE = 20.0


@dataclass
class _Bar:
    """Tensors that are drawn as one bar."""

    label: str
    entries: list[TensorEntry]

    @property
    def stored(self) -> int:
        return sum(entry.stored_bytes for entry in self.entries)

    @property
    def original(self) -> int:
        return sum(entry.original_bytes for entry in self.entries)

    @property
    def ratio(self) -> float:
        return self.original / self.stored

    @property
    def coder(self) -> str:
        coders = list(dict.fromkeys(entry.coder for entry in self.entries))
        return coders[0] if len(coders) == 1 else "several"

    @property
    def bound(self) -> float | None:
        """The ratio if symbols took their entropy and nothing else were stored; none where that is not recorded."""
        bits = sum((entry.entropy or 0.0) * entry.elements for entry in self.entries)
        known = all(entry.entropy is not None for entry in self.entries)
        return 8 * self.original / bits if known and bits else None


class ContainerPlots(Plots):
    """Plots of a :class:`~wcodec.Container`."""

    _default = "heatmap"
    _shown: Container

    def heatmap(
        self,
        by: str = "bits",
        ax: Any = None,
        *,
        vectors: bool = False,
        device: Any = None,
        threads: int | None = None,
    ) -> Any:
        """Layers and roles as a heat map: a row for each role, a column for each layer. Tensors in no layer are as wide
        as all of them, below; those of one layer and role, such as experts, share a cell.

        Each measure has its own colours, in every picture and in notebooks: see where a model is large, where it
        suffers, and which layer is unlike the others.

        :param by: the figure that is shown: stored ``bits`` per weight; ``ratio``; ``error``, root mean square of
            decoded - source over that of the source, as files of scheme ``rate`` state it; ``share`` of the file's
            bytes in %; or ``speed``, decoded output in GB/s, for which all tensors are decoded.
        :param vectors: whether norms and biases are shown too, which have more bits than all others.
        :param device: the device that decodes for ``speed``: ``cpu`` (default), ``cuda`` or ``cuda:N``, there from
            compressed bytes in the GPU's memory.
        :param threads: for ``speed`` on the CPU (default: all cores).
        """
        from .heatmap import heatmap

        return heatmap(self._shown, by, ax, vectors=vectors, device=device, threads=threads)

    def ratio(self, ax: Any = None, *, top: int = _BARS) -> Any:
        """The ratio of each tensor, in the order of the file, everything that it stores counted.

        The broken line is the ratio of the whole file. A tick beside a bar is the bound: the ratio if the tensor's
        symbols took their order-0 entropy and nothing else were stored. If there are more than ``top`` tensors, those
        of the same place in their blocks (names that differ in numbers only) share a bar, and a thin line spans their
        ratios; if that leaves more than ``top`` bars, the smallest ones are added up.

        :param top: the most bars to draw, from 2 on.
        """
        most = count("top", top, 2) or _BARS
        entries = [entry for entry in self._shown.stored if entry.stored_bytes]
        if not entries:
            raise InputError(
                "the container has no tensor with data to draw (open one whose tensors are not all empty)",
                file=self._shown.path,
                code="I601",
            )
        bars = _bars(entries, most)
        ax = axes(ax, (7.2, 1.4 + 0.2 * len(bars)))
        places = np.arange(len(bars))
        coders = list(dict.fromkeys(bar.coder for bar in bars))
        for coder in coders:
            color = MEANINGS.get(coder, MEANINGS["compressed"] if coder == "several" else GREY)
            rows = [i for i, bar in enumerate(bars) if bar.coder == coder]
            ax.barh(places[rows], [bars[i].ratio for i in rows], color=color, height=0.75, label=caption(coder))
        spans = [(i, [e.ratio or 0.0 for e in bar.entries]) for i, bar in enumerate(bars) if len(bar.entries) > 1]
        if spans:
            where, ratios = zip(*spans, strict=True)
            ax.hlines(where, [min(r) for r in ratios], [max(r) for r in ratios], color=ink(ax), linewidth=1)
        bounds = [(i, bar.bound) for i, bar in enumerate(bars) if bar.bound is not None]
        if bounds:
            where, values = zip(*bounds, strict=True)
            ax.plot(values, where, "|", color=ink(ax), markersize=9, label="entropy of the symbols alone")
        file_ratio = self._shown.ratio
        if file_ratio is not None:
            ax.axvline(
                file_ratio, color=COLORS[5], linewidth=1.5, linestyle="--", label=f"whole file: {file_ratio:.3f}"
            )
        ax.set_yticks(places, [caption(bar.label) for bar in bars], fontsize="small")
        ax.set_ylim(len(bars) - 0.4, -0.6)
        ax.set_xlim(left=0)
        ax.set_xlabel("ratio, original bytes / stored bytes")
        above(ax)
        return quiet(ax, "x")

    def scales(self, name: str, ax: Any = None, *, bins: int = BINS) -> Any:
        """Histogram of a tensor's scales (scheme ``int8``): the weight that a symbol of 1 stands for.

        The axis is logarithmic where the scales lie far apart. Scales of 0, which rows of zeros have, are left out, and
        so are those that are not finite, as of a damaged file; the title says how many.
        """
        parts = count("bins", bins) or BINS
        entry = self._shown[name]
        all_scales = entry.scales().reshape(-1).astype(np.float64)
        finite = all_scales[np.isfinite(all_scales)]
        scales = finite[finite != 0] if finite.any() else finite
        if not scales.size:
            raise InputError(
                f"tensor '{name}' has no scales to draw (choose one that is not empty)", tensor=name, code="I601"
            )
        ax = axes(ax)
        low, high = float(scales.min()), float(scales.max())
        if low > 0 and high > _WIDE * low:
            edges = np.geomspace(low, high * 1.0001, parts + 1)
            ax.set_xscale("log")
        else:
            # Equal scales still get a bar.
            middle, half = (low + high) / 2, max((high - low) / 2, 0.01 * max(abs(low), abs(high))) or 1.0
            edges = np.linspace(middle - half * 1.0001, middle + half * 1.0001, parts + 1)
        ax.hist(scales, bins=edges, color=color_of(entry))
        median = float(np.median(scales))
        ax.axvline(median, color=COLORS[5], linewidth=1.5, label=f"median: {median:.3g}")
        ax.set_xlabel("scale, weight per step of a symbol")
        per = (entry.scale or "").split(" ")[0]
        rows = "columns" if entry.row_axis == 1 else "rows"
        ax.set_ylabel({"row": rows, "tensor": "tensors", "block": "blocks"}.get(per, "scales"))
        left_out = all_scales.size - scales.size
        more = f", {left_out} zero or not finite left out" if left_out else ""
        ax.set_title(f"{caption(name)}: {fmt.plural(all_scales.size, 'scale')}{more}", fontsize="medium", loc="left")
        ax.legend(frameon=False)
        return quiet(ax)

    def symbols(self, name: str, ax: Any = None, *, threads: int | None = None) -> Any:
        """Histogram of a tensor's symbols, with their order-0 entropy beside what is stored; decodes the tensor."""
        entry = self._shown[name]
        symbols = entry.symbols(threads=threads)
        if not symbols.size:
            raise InputError(
                f"tensor '{name}' has no symbols to draw (choose one that is not empty)", tensor=name, code="I601"
            )
        # In parts: it makes eight bytes of each.
        flat = symbols.reshape(-1).view(np.uint8)
        parts = np.array_split(flat, 1 + flat.size // _AT_ONCE)
        counts = np.sum([np.bincount(part, minlength=256) for part in parts], axis=0)
        shares = counts[counts > 0] / symbols.size
        # Plus zero: all symbols the same would give -0.
        entropy = float(-(shares * np.log2(shares)).sum()) + 0.0
        ax = axes(ax)
        values = np.arange(-128, 128)
        ax.bar(values, 100 * np.roll(counts, 128) / symbols.size, width=1.0, color=color_of(entry))
        ax.set_xlim(-129, 129)
        ax.set_xlabel("symbol")
        ax.set_ylabel("share of all symbols, %")
        ax.set_title(caption(name), fontsize="medium", loc="left")
        facts = f"entropy: {entropy:.3f} bits/symbol\nstored: {fmt.number(entry.bits_per_weight)} bits/weight"
        ax.text(0.98, 0.96, facts, transform=ax.transAxes, ha="right", va="top", fontsize="small")
        return quiet(ax)


def color_of(entry: TensorEntry) -> str:
    """That of the tensor's scheme."""
    return MEANINGS.get(entry.scheme, MEANINGS["compressed"])


def _bars(entries: Sequence[TensorEntry], top: int) -> list[_Bar]:
    """At most ``top`` bars, in the order of the file."""
    if len(entries) <= top:
        return [_Bar(entry.name, [entry]) for entry in entries]
    alike: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        alike.setdefault(role_of(entry.name), []).append(entry)
    bars = [_Bar(pattern, group) for pattern, group in alike.items()]
    for bar in bars:
        if len(bar.entries) > 1:
            bar.label += f"  ({len(bar.entries)})"
    if len(bars) <= top:
        return bars
    largest = {id(bar) for bar in sorted(bars, key=lambda bar: -bar.original)[: top - 1]}
    rest = [entry for bar in bars if id(bar) not in largest for entry in bar.entries]
    return [*(bar for bar in bars if id(bar) in largest), _Bar(f"{len(rest):,} others", rest)]
