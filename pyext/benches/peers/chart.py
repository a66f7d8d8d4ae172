"""The picture of a report: quality per bit, and speed beside memory (on a GPU) or bits (on a CPU)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text

from .catalogue import PEERS
from .report import BF16, Json, order, value
from .run_file import GIVEN

# One meaning for each colour; on white, which a dark page shows as well.
OURS, OTHERS, LINES = "#1f6feb", "#57606a", "#d0d7de"
COLORS = ("#9a6700", "#1a7f37", "#8250df", "#cf222e", "#57606a", "#bf3989", "#116329", "#953800")
MARKERS = {"": "o", "columns": "s", "text": "^"}
KNOWS = {"": ", weights alone", "columns": ", columns", "text": ", calibrated"}
# Positions of a name beside its point, the best first: offsets in points, and the side of the text at the point.
PLACES = (
    (7, -3, "left"), (-7, -3, "right"), (0, 7, "center"), (0, -13, "center"), (7, 6, "left"), (-7, 6, "right"),
    (7, -12, "left"), (-7, -12, "right"), (0, 17, "center"), (0, -23, "center"), (14, 15, "left"), (-14, 15, "right"),
    (14, -21, "left"), (-14, -21, "right"), (22, 26, "left"), (-22, 26, "right"), (22, -32, "left"),
    (-22, -32, "right"),
)  # fmt: skip

# Layers that a library left in 16 bits take a row far to the right, where there is nothing else.
MOST_BITS = 10


class Point(NamedTuple):
    x: float
    y: float
    name: str
    color: str
    hollow: bool = False
    """Another kind of figure than the axis says, which the line below the chart explains."""


def color_of(row: Json) -> str:
    return OURS if PEERS[row["peer"]].ours else OTHERS


def short(label: str) -> str:
    """A name that fits beside a point."""
    for long, shorter in (
        (", groups of ", " g"), ("bitsandbytes", "bnb"), ("accelerate ", ""), (" bits", ""), (", no trellis", " plain"),
    ):  # fmt: skip
        label = label.replace(long, shorter)
    return label


def scatter(ax: Axes, points: list[Point], beside: Text | None = None) -> list[Annotation]:
    """Points, and names where they meet neither another name, a point nor that text, if there is such a place."""
    for point in points:
        inner = "white" if point.hollow else point.color
        ax.plot(point.x, point.y, "o", color=point.color, markerfacecolor=inner, markersize=5, zorder=3)
    figure = ax.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    inside = ax.get_window_extent(renderer)
    dots = [ax.transData.transform((p.x, p.y)) for p in points]
    taken: list[Any] = [] if beside is None else [beside.get_window_extent(renderer)]
    out = []
    for (x, y, name, color, _), dot in zip(points, dots, strict=True):
        best: tuple[float, Annotation, Any] | None = None
        for dx, dy, side in PLACES:
            text = ax.annotate(
                name, (x, y), (dx, dy), textcoords="offset points", ha=side, color=color, fontsize=8,
                arrowprops={"arrowstyle": "-", "color": LINES, "lw": 0.7, "shrinkA": 0, "shrinkB": 2}
                if abs(dx) > 7 or abs(dy) > 13 else None,
            )  # fmt: skip
            box = Annotation.get_window_extent(text, renderer) if text.arrow_patch is None else _box(text, renderer)
            cost = 0.0
            cost += sum(_shared(box, other) for other in taken)
            cost += sum(40 for d in dots if d is not dot and box.padded(2).contains(*d))
            beyond = max(inside.x0 - box.x0, 0) + max(box.x1 - inside.x1, 0)
            cost += 50 * (beyond + max(inside.y0 - box.y0, 0) + max(box.y1 - inside.y1, 0))
            if best is None or cost < best[0]:
                if best is not None:
                    best[1].remove()
                best = cost, text, box
            else:
                text.remove()
            if cost == 0:
                break
        assert best is not None
        taken.append(best[2])
        out.append(best[1])
    return out


def _box(text: Annotation, renderer: Any) -> Any:
    """The box of the words alone: an annotation's own box includes its point."""
    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)


def _shared(one: Any, other: Any) -> float:
    """Area that two boxes have in common, in pixels."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(wide, 0.0) * max(high, 0.0)


def quality(report: Json) -> list[Point]:
    """Bits per weight against KL. A row without loss has no place on a logarithmic axis, and is named beside it."""
    out: list[Point] = []
    for row in order(report):
        bits, kl = value(row, "quality", "bits"), value(row, "quality", "kl")
        # An equal point stands for equal weights, and is drawn once.
        if bits is None or not kl or bits > MOST_BITS or (bits, kl) in [p[:2] for p in out]:
            continue
        out.append(Point(bits, kl, short(row["label"]), color_of(row)))
    return out


def aside(report: Json) -> str:
    """Names and bits of what loses nothing, and of what would only make the axis long."""
    exact: list[str] = []
    long: list[str] = []
    for row in order(report):
        bits, kl = value(row, "quality", "bits"), value(row, "quality", "kl")
        if kl is not None and (kl == 0 or bits > MOST_BITS):
            (long if kl else exact).append(f"{short(row['label'])} {bits:.1f} bits" + (f", KL {kl:.2g}" if kl else ""))
    parts = ["no loss:", *exact] if exact else []
    return "\n".join([*parts, *(["beyond the axis:", *long] if long else [])])


def speeds(report: Json) -> tuple[list[Point], str, str]:
    """Points, and what the axes are."""
    baseline = report["rows"].get(BF16, {"sections": {}})
    gpu = report["settings"]["device"] != "cpu"
    rate = "captured/1" if gpu and value(baseline, "captured/1", "tokens_per_s") else "eager/1"
    of = value(baseline, rate, "tokens_per_s")
    memory = value(baseline, "load", "peak_bytes")
    out = []
    for row in order(report):
        found = value(row, rate, "tokens_per_s")
        hollow = found is None and rate != "eager/1" and value(row, "eager/1", "tokens_per_s") is not None
        if hollow:
            # A peer that cannot be captured is shown by its eager speed, against bf16's eager speed.
            found = value(row, "eager/1", "tokens_per_s")
            beside = value(row, "eager/1", "bf16_tokens_per_s") or value(baseline, "eager/1", "tokens_per_s")
        else:
            beside = of if rate != "eager/1" else value(row, rate, "bf16_tokens_per_s") or of
        x = value(row, "load", "peak_bytes" if gpu else "bits")
        if found is None or x is None or not beside or (gpu and not memory):
            continue
        out.append(Point(x / memory if gpu else x, found / beside, short(row["label"]), color_of(row), hollow))
    how = "a captured decode step" if rate == "captured/1" else "eager"
    return out, "peak memory, of bf16's" if gpu else "bits per weight", f"tokens/s of bf16's, {how}, batch 1"


def curves(ax: Axes, rows: list[Json]) -> None:
    """Quality per bit on a real model, a line for each method and what it knows."""
    lines: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for row in rows:
        for given in GIVEN:
            kl = row["values"].get(f"kl_{given}" if given else "kl")
            if isinstance(kl, int | float) and kl > 0:
                point = row["values"]["bits"], kl, row["name"].removeprefix("GGUF ").removeprefix("ik_llama.cpp ")
                lines.setdefault((row["of"]["curve"], given), []).append(point)
    others = iter(COLORS)
    colors: dict[str, str] = {}
    for (curve, given), points in sorted(lines.items()):
        ours = curve.startswith("wcodec")
        color = OURS if ours else colors.setdefault(curve, "") or next(others)
        colors[curve] = color
        small = "trellis" in curve
        style = "-" if small or not ours else "--"
        ax.plot(
            [p[0] for p in points], [p[1] for p in points], style, marker=MARKERS[given], color=color, markersize=5,
            markerfacecolor=color if given or ours else "white",
            linewidth=1.6 if ours else 0.0 if "GGUF" in curve else 0.8,
            label=curve + (KNOWS[given] if ours else ", importance matrix" if given == "columns" else ""),
            zorder=4 if ours else 3,
        )  # fmt: skip
        if curve.startswith(("GGUF", "ik")) and given:
            for x, y, name in points:
                ax.annotate(name, (x, y), (4, 4), textcoords="offset points", fontsize=6, color=color)
    ax.set_yscale("log")
    ax.grid(True, color=LINES, linewidth=0.5)
    ax.set(xlabel="bits per weight, everything counted", ylabel="KL to the original, nats per token")
    ax.set_title("Quality per bit (SmolLM2-135M-Instruct, linear layers)", fontsize=10, loc="left")
    ax.legend(fontsize=7, loc="upper right")


def draw(report: Json, path: Path, known: list[Json] | None = None) -> None:
    """:param known: rows of quality on a real model, which have a panel of their own.

    :raises ValueError: if there is nothing to draw.
    """
    left, (right, across, up) = quality(report), speeds(report)
    panels = [name for name, points in (("quality", left if not known else known), ("speed", right)) if points]
    if not panels:
        raise ValueError("no row has figures that a chart could show")
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(6.6 * len(panels) + (2.4 if known else 0), 7.0 if known else 5.2),
        dpi=110,
        facecolor="white",
        squeeze=False,
    )
    for name, ax in zip(panels, axes[0], strict=True):
        ax.margins(0.14, 0.08)
        if name == "quality" and known:
            curves(ax, known)
            continue
        if name == "quality":
            ax.set_yscale("log")
            ax.set(xlabel="bits per weight, everything counted", ylabel="KL to the original, nats per token")
            ax.set_title("Quality per bit (the model in the repository)", fontsize=10, loc="left")
            points = left
        else:
            ax.axhline(1, color=LINES, zorder=0)
            ax.set(xlabel=across, ylabel=up)
            if max(p.y for p in right) > 5 * min(p.y for p in right):
                ax.set_yscale("log")
                ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
                ax.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")
            where = report["machine"].get("gpu") or report["machine"].get("cpu") or "this CPU"
            ax.set_title(f"Speed ({report['settings']['shapes']}, {where})", fontsize=10, loc="left")
            points = right
        for point in points:
            ax.plot(point.x, point.y, alpha=0)
        figure.tight_layout(w_pad=3)
        beside = None
        if name == "quality" and (text := aside(report)):
            beside = ax.text(
                0.99, 0.99, text, transform=ax.transAxes, ha="right", va="top", fontsize=8, color=OTHERS
            )  # fmt: skip
        scatter(ax, points, beside)
    if panels == ["quality"] and known:
        figure.tight_layout()
    legend = "" if known else "blue: wcodec; grey: others"
    if any(p.hollow for p in right):
        legend += "; hollow: cannot be captured, eager over bf16's eager"
    figure.text(0.005, 0.005, legend.removeprefix("; "), fontsize=8, color=OTHERS)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
