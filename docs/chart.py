"""The chart of the front page, drawn from the tables of the documentation.

    python docs/chart.py [docs/images/chart.png]

Left: bits per weight against what the model loses (docs/schemes-and-coders.md, the model of this repository). Right:
memory against speed (docs/measurements.md, "Memory against speed").
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parent
OURS, LIGHTER, OTHERS = "#1f6feb", "#8ab4f8", "#57606a"


def cells(row: str) -> list[str]:
    return [cell.strip().replace("*", "") for cell in row.strip().strip("|").split("|")]


def quality() -> tuple[dict[str, list[tuple[float, float]]], dict[str, tuple[float, float]]]:
    """Of the first model: lines of (bits, KL over NF4's) with a trellis, and other formats of about 4 bits."""
    page = (DOCS / "schemes-and-coders.md").read_text(encoding="utf-8")
    found = re.search(r"\| \*\*Llama, 2\.4 M weights\*\* \((.*?)\).*\n((?:\| [a-z].*\n)+)", page)
    assert found, "the table of schemes-and-coders.md has changed"
    lines = {}
    for row in found[2].splitlines():
        name, *values = cells(row)
        if "rans" in name:
            lines[name.split(",")[0]] = [
                (bits, float(value.split("/")[1])) for bits, value in zip((4, 3.5, 3), values, strict=True)
            ]
    nf4 = re.search(r"NF4 \(.*?([\d.]+) bits\)", page)
    assert nf4
    int4 = re.search(r"INT4 .*?([\d.]+) bits: ([\d.]+)", found[1])
    assert int4
    return lines, {"NF4": (float(nf4[1]), 1.0), "INT4": (float(int4[1]), float(int4[2]))}


def speeds() -> list[tuple[str, float, float]]:
    """(what, memory, speed), of bf16's."""
    page = (DOCS / "measurements.md").read_text(encoding="utf-8")
    found = re.search(r"## Memory against speed\n(?:.*\n)*?((?:\|.*\n)+)", page)
    assert found, "the table of measurements.md has changed"
    rows = [cells(row) for row in found[1].splitlines()[2:]]
    return [(row[0].replace("`", ""), float(row[1]), float(row[2])) for row in rows]


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images/chart.png"
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.6, 3.9), dpi=110, facecolor="white")
    lines, others = quality()
    shown = {"error feedback": (OURS, "calibrated"), "weights alone": (LIGHTER, "from weights alone")}
    for name, (color, label) in shown.items():
        bits, kl = zip(*lines[name], strict=True)
        left.plot(bits, kl, "o-", color=color)
        below = name == "error feedback"
        left.annotate(
            f"rate, {label}", (bits[1], kl[1]), (-8, -10) if below else (8, 4), textcoords="offset points", color=color,
            ha="right" if below else "left",
        )  # fmt: skip
    for name, (bit, value) in others.items():
        left.plot(bit, value, "o", color=OTHERS)
        place = (7, 2 if name == "INT4" else -10)
        left.annotate(name, (bit, value), place, textcoords="offset points", color=OTHERS)
    left.set_yscale("log")
    left.set_yticks([0.3, 1, 3], ["0.3", "1", "3"])
    left.minorticks_off()
    left.set(xlabel="bits per weight, everything counted", ylabel="KL to the original, of NF4's", xlim=(2.6, 4.7))
    left.set_title("Quality per bit (the model in this repository)", fontsize=10, loc="left")
    right.axhline(1, color="#d0d7de", zorder=0)
    for what, memory, speed in speeds():
        color = OTHERS if what.startswith(("bf16", "accelerate")) else OURS
        right.plot(memory, speed, "o", color=color)
        # Beside the point, but where the next one is so near that names would meet.
        place, side = {
            "4 bits, fused": ((-7, -3), "right"), "4 bits, host": ((7, 4), "left"), "int8, host": ((7, -11), "left"),
            "bf16": ((-6, 7), "right"),
        }.get(what, ((7, -3), "left"))  # fmt: skip
        right.annotate(what, (memory, speed), place, textcoords="offset points", color=color, ha=side, fontsize=9)
    right.set(xlabel="memory, of bf16's", ylabel="tokens/s, of bf16's", xlim=(0, 1.05), ylim=(0, 1.55))
    right.set_title("A Llama of 1.1 B parameters on one H200", fontsize=10, loc="left")
    figure.tight_layout(w_pad=3)
    figure.savefig(path)
    print(path)


if __name__ == "__main__":
    main()
