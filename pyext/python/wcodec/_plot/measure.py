"""Plots of what was measured: quality, speed, memory, key/value caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.colors import COLORS as MEANINGS
from .._core.colors import ink_on
from .._core.errors import InputError
from .._core.options import choice
from .._core.roles import place_of
from .accessor import Plots
from .draw import COLORS, MIB, above, axes, caption, ink, quiet, stacks

if TYPE_CHECKING:
    from .._measure.reports import BenchReport, BenchRow, EvalReport, KvCacheReport, LayerPlace, MemoryReport

# A KL of zero has no place on a logarithmic axis: it, and what is rounding of float32 only, is drawn here.
_SMALLEST_KL = 1e-9
# The narrowest bars of a timeline in its width: at least a pixel each, or they would not be drawn.
_COLUMNS = 300
# Kinds of work, in the order in which a weight meets them: what they are called, and their colour in every picture.
_KINDS = {
    "copy": ("copy to the device", MEANINGS["copy"]),
    "decode": ("decode weights", MEANINGS["decode"]),
    "product": ("matrix products", MEANINGS["product"]),
    "other": ("other", MEANINGS["other work"]),
}
# Parts of a model's memory.
_PARTS = {
    "compressed layers": "compressed",
    "compressed embeddings": "compressed embedding",
    "compressed layers, read when needed": "disk",
    "ring for layers on disk": "copy",
    "ring for streamed layers": "copy",
    "decoded-layer cache": "cached",
    "decoded weights (shared scratch)": "decode",
    "weights as they are": "original",
    "buffers": "other work",
}
# Names of a layer's place in legends.
_WHERE = {
    "device": "on the GPU",
    "host": "streamed from the host",
    "disk": "read from disk",
    "auto": "settled on a GPU",
    "cached": "stays decoded",
    "compressed": "decoded for each token",
    "compressed embedding": "rows are looked up",
}
# The least width of a strip, as a part of the whole, in which a layer's number fits.
_NARROW = 0.013


class EvalPlots(Plots):
    """Plots of an :class:`~wcodec.EvalReport`."""

    _default = "kl"
    _shown: EvalReport

    def _default_kind(self) -> str:
        return "perplexity" if self._shown.token_kl is None else "kl"

    def kl(self, ax: Any = None, *, bins: int = 60, what: str = "compressed") -> Any:
        """Histogram of ``KL(baseline || model)`` over tokens, with mean and 99th percentile, on a logarithmic axis.

        :param what: the kind of the model, for its colour: a name in :data:`wcodec.COLORS`, such as ``int8`` or
            ``rate``.
        """
        choice("what", what, tuple(MEANINGS))
        report = self._shown
        if report.token_kl is None:
            raise InputError(
                "there is no KL divergence without a baseline (pass baseline=... to evaluate)", code="I601"
            )
        ax = axes(ax)
        values = np.maximum(report.token_kl, _SMALLEST_KL)
        low, high = float(values.min()), max(float(values.max()), _SMALLEST_KL * 10)
        ax.hist(values, bins=np.geomspace(low, high * 1.0001, bins + 1), color=MEANINGS[what])
        ax.set_xscale("log")
        for value, name, color in ((report.kl_mean, "mean", COLORS[1]), (report.kl_p99, "99 %", COLORS[5])):
            if value is not None and value > 0:
                ax.axvline(value, color=color, linewidth=1.5, label=f"{name}: {value:.3g}")
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False)
        ax.set_xlabel("KL(baseline || model), nats per token")
        ax.set_ylabel("tokens")
        return quiet(ax)

    def perplexity(self, ax: Any = None) -> Any:
        """Bars of the perplexities."""
        report = self._shown
        ax = axes(ax, (3.6, 3.6))
        bars = [("model", report.perplexity)]
        if report.baseline_perplexity is not None:
            bars.insert(0, ("baseline", report.baseline_perplexity))
        names, values = zip(*bars, strict=True)
        drawn = ax.bar(names, values, color=[MEANINGS["original"], MEANINGS["compressed"]][-len(bars) :], width=0.6)
        ax.bar_label(drawn, fmt="%.3f")
        ax.set_ylabel("perplexity (lower is better)")
        ax.margins(y=0.12)
        return quiet(ax)


class BenchPlots(Plots):
    """Plots of a :class:`~wcodec.BenchReport`."""

    _default = "speed"
    _shown: BenchReport

    def speed(self, ax: Any = None, *, what: str = "decode") -> Any:
        """Tokens per second by batch size, with the range of the repeats; ``what`` is ``decode`` or ``prefill``."""
        if what not in ("decode", "prefill"):
            raise InputError(f"there is no speed of {what!r} (use 'decode' or 'prefill')", code="I601")
        ax = axes(ax)

        def bar(row: BenchRow) -> tuple[float, float, float]:
            speed = getattr(row, what)
            return speed.median, speed.low, speed.high

        self._bars(ax, self._shown.rows, bar)
        ax.set_ylabel(f"{what}, tokens/s")
        return quiet(ax)

    def memory(self, ax: Any = None) -> Any:
        """Most memory of the GPU that a run took beyond the weights (cache, activations, scratch), by batch size."""
        rows = [row for row in self._shown.rows if row.peak_bytes is not None]
        if not rows:
            raise InputError("memory was not measured: a CPU has no peak of its own (run bench on a GPU)", code="I601")
        ax = axes(ax)

        def bar(row: BenchRow) -> tuple[float, float, float]:
            value = (row.peak_bytes or 0) / MIB
            return value, value, value

        self._bars(ax, rows, bar)
        ax.set_ylabel("peak beyond weights, MiB")
        return quiet(ax)

    @staticmethod
    def _bars(ax: Any, rows: Sequence[BenchRow], bar: Callable[[BenchRow], tuple[float, float, float]]) -> None:
        """A bar for each model at each batch size: its height, and the range of the repeats."""
        batches = list(dict.fromkeys(row.batch for row in rows))
        models = [m for m in ("baseline", "model") if any(row.model == m for row in rows)]
        width = 0.8 / len(models)
        for i, model in enumerate(models):
            middle, low, high = np.array([bar(row) for row in rows if row.model == model]).T
            places = np.arange(len(middle)) + (i - (len(models) - 1) / 2) * width
            ax.bar(
                places,
                middle,
                width * 0.92,
                color=MEANINGS["compressed" if model == "model" else "original"],
                label=model,
            )
            if (low < high).any():
                errors = [middle - low, high - middle]
                ax.errorbar(places, middle, yerr=errors, fmt="none", ecolor=ink(ax), capsize=3, linewidth=1)
        ax.set_xticks(range(len(batches)), [str(b) for b in batches])
        ax.set_xlim(-0.9, len(batches) - 0.1)
        ax.set_xlabel("batch, sequences")
        above(ax)

    def split(self, ax: Any = None) -> Any:
        """The split of a token's time: copies, decoding of weights, matrix products, the rest."""
        splits = self._shown.splits
        if not splits:
            raise InputError("the split of time was not measured (pass profile=True to bench)", code="I601")
        ax = axes(ax, (6.4, 1.4 + 0.5 * len(splits)))
        kinds = [kind for kind in _KINDS if any(getattr(s, kind) for s in splits)]
        values = [[1e3 * getattr(s, kind) for kind in kinds] for s in splits]
        labels, colors = ([_KINDS[kind][i] for kind in kinds] for i in (0, 1))
        stacks(ax, [s.model for s in splits], values, labels, colors)
        ax.set_xlabel(f"ms per token (batch {splits[0].batch}); copies may run beside the others")
        return quiet(ax)

    def layers(self, ax: Any = None, *, top: int = 20) -> Any:
        """The modules that take longest, by the median of a call."""
        layers = [t for t in self._shown.layers if t.model == "model"]
        if not layers:
            raise InputError("layers were not measured (pass profile=True to bench)", code="I601")
        slowest = sorted(layers, key=lambda t: -t.seconds)[:top][::-1]
        ax = axes(ax, (6.4, 1.0 + 0.22 * len(slowest)))
        ax.barh([caption(t.name) for t in slowest], [1e3 * t.seconds for t in slowest], color=COLORS[0])
        ax.set_xlabel("ms per call, median")
        ax.tick_params(axis="y", labelsize="small")
        return quiet(ax)

    def timeline(self, ax: Any = None, *, model: str = "model") -> Any:
        """The timeline of a token's copies, decoding of weights, matrix products and the rest, each in a lane.

        On a GPU copies run ahead beside the rest. The profiler slows things down, and what is too short to be
        seen is drawn wider; the figures at the right are exact sums.

        :param model: ``model`` or ``baseline``.
        """
        spans = [span for span in self._shown.spans if span.model == model]
        if not spans:
            raise InputError(
                f"no token of the {model} was followed (pass profile=True, and the {model}, to bench)", code="I601"
            )
        kinds = [kind for kind in _KINDS if any(span.kind == kind for span in spans)]
        end = 1e3 * max(span.begin + span.seconds for span in spans)
        ax = axes(ax, (7.2, 1.2 + 0.45 * len(kinds)))
        for place, kind in enumerate(kinds):
            spans_of_kind = [span for span in spans if span.kind == kind]
            took = 1e3 * sum(span.seconds for span in spans_of_kind)
            color = _KINDS[kind][1]
            bars = [(1e3 * span.begin, max(1e3 * span.seconds, end / _COLUMNS)) for span in spans_of_kind]
            ax.broken_barh(bars, (place - 0.35, 0.7), color=color, linewidth=0)
            ax.annotate(f"{took:.2f} ms", (1, place), (4, 0), xycoords=("axes fraction", "data"),
                        textcoords="offset points", va="center", fontsize="small")  # fmt: skip
        ax.set_yticks(range(len(kinds)), [_KINDS[kind][0] for kind in kinds])
        ax.set_ylim(len(kinds) - 0.5, -0.5)
        ax.set_xlim(0, end)
        ax.set_xlabel("ms from the begin of a token")
        return quiet(ax, "x")


class MemoryPlots(Plots):
    """Plots of a :class:`~wcodec._measure.MemoryReport`."""

    _default = "parts"
    _shown: MemoryReport

    def parts(self, ax: Any = None) -> Any:
        """The model's memory by purpose, in MiB, one bar for each device."""
        parts = self._shown.parts
        if not parts:
            raise InputError("no model was measured (pass it to measure_vram)", code="I601")
        devices = list(dict.fromkeys(part.device for part in parts))
        names = list(dict.fromkeys(part.name for part in parts))
        sizes = {(part.device, part.name): part.bytes / MIB for part in parts}
        ax = axes(ax, (6.4, 1.4 + 0.5 * len(devices)))
        colors = [MEANINGS[_PARTS.get(name, "compressed")] for name in names]
        stacks(ax, devices, [[sizes.get((device, name), 0.0) for name in names] for device in devices], names, colors)
        ax.set_xlabel("MiB")
        return quiet(ax)

    def layers(self, ax: Any = None, *, label: str = "") -> Any:
        """The place of each decoder block's compressed bytes while the model runs, and the blocks that stay decoded: a
        strip of blocks in their order, each as wide as its compressed bytes. Drawn into the same axes, models are below
        each other.

        :param label: the strip's name, beside it.
        """
        if not self._shown.layers:
            raise InputError(
                "there is no compressed layer to draw (pass a model that has some to measure_vram)", code="I601"
            )
        ax = axes(ax, (8.4, 2.2))
        # So many strips are there.
        row = len({patch.get_y() for patch in ax.patches})
        total = sum(layer.bytes for layer in self._shown.layers)
        blocks: dict[tuple[str, str], float] = {}
        for layer in self._shown.layers:
            number = place_of(layer.name)[1]
            key = layer.name.rpartition(".")[2] if number is None else str(number), _kind_of(layer, self._shown.device)
            blocks[key] = blocks.get(key, 0) + layer.bytes
        begin = 0.0
        for (name, kind), size in blocks.items():
            ax.barh(row, size / MIB, 0.8, begin / MIB, color=MEANINGS[kind], edgecolor="white", label=_WHERE[kind])
            if size > _NARROW * len(name) * total:
                middle = (begin + size / 2) / MIB
                ink_there = ink_on(MEANINGS[kind])
                ax.text(middle, row, caption(name), ha="center", va="center", fontsize="x-small", color=ink_there)
            begin += size
        ax.set_yticks(range(row + 1), [*(tick.get_text() for tick in ax.get_yticklabels()[:row]), caption(label)])
        ax.set_ylim(row + 0.6, -0.6)
        ax.set_xlabel("compressed bytes, MiB, in the model's order")
        handles, names = ax.get_legend_handles_labels()
        handle_of = dict(zip(reversed(names), reversed(handles), strict=True))
        beside = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
        ax.legend(handle_of.values(), handle_of, ncols=4, frameon=False, fontsize="small", **beside)
        return quiet(ax, "x")


def _kind_of(layer: LayerPlace, device: str) -> str:
    """The colour's name: on a CPU, where nothing is streamed, only what stays decoded makes a difference."""
    if layer.looked_up:
        return "compressed embedding"
    if layer.cached:
        return "cached"
    return layer.residency if device.startswith("cuda") or layer.residency != "device" else "compressed"


class KvCachePlots(Plots):
    """Plots of a :class:`~wcodec._measure.KvCacheReport`."""

    _default = "kl"
    _shown: KvCacheReport

    def kl(self, ax: Any = None) -> Any:
        """``KL(float32 || dtype)`` at each new token, one line for each dtype; the axis is logarithmic."""
        ax = axes(ax)
        for i, result in enumerate(self._shown.results):
            label = f"{result.dtype} (identical)" if result.identical else result.dtype
            values = np.maximum(result.token_kl, _SMALLEST_KL)
            ax.plot(np.arange(1, len(values) + 1), values, color=COLORS[i % len(COLORS)], linewidth=1, label=label)
        ax.set_yscale("log")
        ax.set_xlabel("new token")
        ax.set_ylabel("KL from a float32 cache, nats")
        ax.legend(frameon=False)
        return quiet(ax)
