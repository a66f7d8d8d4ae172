"""Plots of reports, with matplotlib.

Every function takes ``ax``, the axes to draw into, makes new ones if it is left out, and returns them. Text, ticks and
background are matplotlib's: they follow its style, such as ``plt.style.use("dark_background")``. The colours of the
data are of middle lightness, and read well on light and on dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from ._reports import BenchReport, EvalReport, KvCacheReport, MemoryReport

# Told apart by people with every kind of colour vision, after Okabe and Ito.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
# A KL of exactly zero has no place on a logarithmic axis: smaller ones are drawn here.
_SMALLEST_KL = 1e-12
_MIB = float(1 << 20)


def _axes(ax: Any, size: tuple[float, float] = (6.4, 3.6)) -> Any:
    """The axes given, or new ones."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise UnsupportedError("matplotlib is not installed (pip install matplotlib, or wcodec[plot])") from None
    if ax is not None:
        return ax
    return plt.subplots(figsize=size, layout="constrained")[1]


def _quiet(ax: Any) -> Any:
    """Without the frame's upper and right lines, with a grid that stays behind."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, alpha=0.25)
    ax.set_axisbelow(True)
    return ax


class EvalPlots:
    """Plots of an :class:`~wcodec.EvalReport`."""

    def __init__(self, report: EvalReport) -> None:
        self._report = report

    def kl(self, ax: Any = None, *, bins: int = 60) -> Any:
        """Histogram of ``KL(baseline || model)`` over tokens, with mean and 99th percentile, on a logarithmic axis."""
        report = self._report
        if report.token_kl is None:
            raise InputError("there is no KL divergence without a baseline (pass baseline=... to evaluate)")
        ax = _axes(ax)
        values = np.maximum(report.token_kl, _SMALLEST_KL)
        low, high = float(values.min()), max(float(values.max()), _SMALLEST_KL * 10)
        ax.hist(values, bins=np.geomspace(low, high * 1.0001, bins + 1), color=COLORS[0])
        ax.set_xscale("log")
        for value, name, color in ((report.kl_mean, "mean", COLORS[1]), (report.kl_p99, "99 %", COLORS[5])):
            if value is not None and value > 0:
                ax.axvline(value, color=color, linewidth=1.5, label=f"{name}: {value:.3g}")
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False)
        ax.set_xlabel("KL(baseline || model), nats per token")
        ax.set_ylabel("tokens")
        return _quiet(ax)

    def perplexity(self, ax: Any = None) -> Any:
        """Bars of the perplexities."""
        report = self._report
        ax = _axes(ax, (3.6, 3.6))
        bars = [("model", report.perplexity)]
        if report.baseline_perplexity is not None:
            bars.insert(0, ("baseline", report.baseline_perplexity))
        names, values = zip(*bars, strict=True)
        drawn = ax.bar(names, values, color=[COLORS[6], COLORS[0]][-len(bars) :], width=0.6)
        ax.bar_label(drawn, fmt="%.3f")
        ax.set_ylabel("perplexity (lower is better)")
        ax.margins(y=0.12)
        return _quiet(ax)


class BenchPlots:
    """Plots of a :class:`~wcodec.BenchReport`."""

    def __init__(self, report: BenchReport) -> None:
        self._report = report

    def speed(self, ax: Any = None, *, what: str = "decode") -> Any:
        """Tokens per second by batch size, with the range of the repeats; ``what`` is ``decode`` or ``prefill``."""
        if what not in ("decode", "prefill"):
            raise InputError(f"there is no speed of {what!r} (use 'decode' or 'prefill')")
        ax = _axes(ax)
        rows = self._report.rows
        batches = list(dict.fromkeys(row.batch for row in rows))
        models = [m for m in ("baseline", "model") if any(row.model == m for row in rows)]
        width = 0.8 / len(models)
        for i, model in enumerate(models):
            speeds = [getattr(row, what) for row in rows if row.model == model]
            places = np.arange(len(speeds)) + (i - (len(models) - 1) / 2) * width
            middle = np.array([s.median for s in speeds])
            errors = [middle - [s.low for s in speeds], [s.high for s in speeds] - middle]
            color = COLORS[0] if model == "model" else COLORS[6]
            ax.bar(places, middle, width * 0.92, color=color, label=model)
            ax.errorbar(places, middle, yerr=errors, fmt="none", ecolor=_ink(ax), capsize=3, linewidth=1)
        ax.set_xticks(range(len(batches)), [str(b) for b in batches])
        ax.set_xlabel("batch, sequences")
        ax.set_ylabel(f"{what}, tokens/s")
        ax.legend(frameon=False)
        return _quiet(ax)

    def split(self, ax: Any = None) -> Any:
        """Where the time of a token goes: copies, decoding of weights, matrix products, the rest."""
        splits = self._report.splits
        if not splits:
            raise InputError("the split of time was not measured (pass profile=True to bench)")
        ax = _axes(ax, (6.4, 1.4 + 0.5 * len(splits)))
        parts = ("copy", "decode", "product", "other")
        labels = ("copy to the device", "decode weights", "matrix products", "other")
        _stacks(ax, [s.model for s in splits], [[1e3 * getattr(s, p) for p in parts] for s in splits], labels)
        ax.set_xlabel(f"ms per token (batch {splits[0].batch}); copies may run beside the others")
        return _quiet(ax)

    def layers(self, ax: Any = None, *, top: int = 20) -> Any:
        """The modules that take longest, by the median of a call."""
        layers = [t for t in self._report.layers if t.model == "model"]
        if not layers:
            raise InputError("layers were not measured (pass profile=True to bench)")
        chosen = sorted(layers, key=lambda t: -t.seconds)[:top][::-1]
        ax = _axes(ax, (6.4, 1.0 + 0.22 * len(chosen)))
        ax.barh([t.name for t in chosen], [1e3 * t.seconds for t in chosen], color=COLORS[0])
        ax.set_xlabel("ms per call, median")
        ax.tick_params(axis="y", labelsize="small")
        return _quiet(ax)


class MemoryPlots:
    """Plots of a :class:`~wcodec._measure.MemoryReport`."""

    def __init__(self, report: MemoryReport) -> None:
        self._report = report

    def parts(self, ax: Any = None) -> Any:
        """What the model's memory is for, in MiB, one bar for each device."""
        parts = self._report.parts
        if not parts:
            raise InputError("no model was measured (pass it to measure_vram)")
        devices = list(dict.fromkeys(part.device for part in parts))
        names = list(dict.fromkeys(part.name for part in parts))
        sizes = {(part.device, part.name): part.bytes / _MIB for part in parts}
        ax = _axes(ax, (6.4, 1.4 + 0.5 * len(devices)))
        _stacks(ax, devices, [[sizes.get((device, name), 0.0) for name in names] for device in devices], names)
        ax.set_xlabel("MiB")
        return _quiet(ax)


class KvCachePlots:
    """Plots of a :class:`~wcodec._measure.KvCacheReport`."""

    def __init__(self, report: KvCacheReport) -> None:
        self._report = report

    def kl(self, ax: Any = None) -> Any:
        """``KL(float32 || dtype)`` at each new token, one line for each dtype; the axis is logarithmic."""
        ax = _axes(ax)
        for i, result in enumerate(self._report.results):
            label = f"{result.dtype} (identical)" if result.identical else result.dtype
            values = np.maximum(result.token_kl, _SMALLEST_KL)
            ax.plot(np.arange(1, len(values) + 1), values, color=COLORS[i % len(COLORS)], linewidth=1, label=label)
        ax.set_yscale("log")
        ax.set_xlabel("new token")
        ax.set_ylabel("KL from a float32 cache, nats")
        ax.legend(frameon=False)
        return _quiet(ax)


def _stacks(ax: Any, names: Sequence[str], values: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """One bar for each name, of parts side by side."""
    table = np.array(values, float)
    begin = np.zeros(len(names))
    for i, label in enumerate(labels):
        ax.barh(names, table[:, i], left=begin, color=COLORS[i % len(COLORS)], label=label)
        begin += table[:, i]
    ax.invert_yaxis()
    ax.legend(frameon=False, ncols=2, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1))


def _ink(ax: Any) -> Any:
    """The colour of the axes' text, which stands out from its background."""
    return ax.xaxis.label.get_color()
