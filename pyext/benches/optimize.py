"""The cost of ``optimize="speed"`` beside ``"size"``: stored bits and KL at the same number of bits asked for, and the
bits that would give the same KL.

    python pyext/benches/optimize.py MODEL... [--text FILE] [--bits 5,4,3] [--windows 8] [--device cpu] [--results FILE]

A model is the folder of a checkpoint. Damage is measured as ``wcodec frontier`` does it, on windows of 512 tokens of
the second half of a text, ``heldout.txt`` in the model's folder if none is named; all matrices are encoded, embeddings
among them. Of ``int8`` both have the same symbols, so that only bits differ. Prints a table in Markdown; with
``--results`` every figure goes to a file, too.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import runs
import torch
from wcodec._core.option_table import PURPOSES
from wcodec._core.options import coder_for, has_trellis
from wcodec._models import running
from wcodec._models.original import original_model
from wcodec._plan import Recipe
from wcodec._plan.score import Judge
from wcodec._plan.trials import Trials

UNITS = {"bits": "bits/weight", "kl": "nats", "top1": "of tokens with the same first choice", "encode_seconds": "s"}


def measured(folder: Path, text: Path, rates: list[float], windows: int, device: str) -> list[dict[str, Any]]:
    """A row for each purpose and number of bits, ``int8`` first."""
    model, _ = original_model(folder, device, None, False)
    judge = Judge(model, running.token_ids(text, model, None), windows, lambda count: None)
    rows = []
    for purpose in PURPOSES:
        trials = Trials(folder, {"optimize": purpose}, device, model, judge, 0)
        coder, trellis = coder_for(purpose), has_trellis(purpose)
        for bits in (None, *rates):
            way = {"scheme": "int8"} if bits is None else {"scheme": "rate", "bits": bits, "trellis": trellis}
            begin = time.perf_counter()
            trial = trials.encode(Recipe("int8" if bits is None else f"{bits:g} bits", coder=coder, **way))
            seconds = time.perf_counter() - begin
            score = trials.measure(trial)
            assert score is not None
            rows.append({
                "model": folder.name, "optimize": purpose, "asked": bits, "bits": trial.bits, "kl": score.kl,
                "top1": score.top1_agreement, "encode_seconds": seconds, "windows": judge.windows,
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def bits_for(kl: float, curve: list[tuple[float, float]]) -> float | None:
    """Bits at which a curve of bits and KL has this KL, by a line through the logarithms; nothing of one point."""
    if len(curve) < 2:
        return None
    nearest = sorted(curve, key=lambda point: abs(math.log(point[1] / kl)))[:2]
    (a, first), (b, second) = nearest
    return a + (b - a) * math.log(first / kl) / math.log(first / second)


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each model and number of bits: both purposes beside each other."""
    lines = [
        "| model | asked | bits: speed, size | KL: speed, size | bits that size would need for speed's KL |",
        "|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        curve = [(r["bits"], r["kl"]) for r in own if r["optimize"] == "size" and r["asked"] is not None]
        for fast in (row for row in own if row["optimize"] == "speed"):
            small = next(r for r in own if r["optimize"] == "size" and r["asked"] == fast["asked"])
            same = small["bits"] if fast["asked"] is None else bits_for(fast["kl"], curve)
            asked = "`int8`" if fast["asked"] is None else format(fast["asked"], "g")
            equal = "-" if same is None else f"{same:.2f} ({same - fast['bits']:+.2f})"
            lines.append(
                f"| {model} | {asked} | {fast['bits']:.3f}, {small['bits']:.3f} "
                f"| {fast['kl']:.4f}, {small['kl']:.4f} | {equal} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measures each model, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--text", type=Path, metavar="FILE")
    parser.add_argument("--bits", default="5,4,3", metavar="LIST")
    parser.add_argument("--windows", type=int, default=8, metavar="N")
    parser.add_argument("--device", default="cpu")
    runs.add_argument(parser)
    a = parser.parse_args()
    rates = [float(text) for text in a.bits.split(",")]
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for folder in a.models:
            rows += measured(folder, a.text or folder / "heldout.txt", rates, a.windows, a.device)
    made = [runs.row(f"{row['model']} {row['asked'] or 'int8'}, {row['optimize']}", row, UNITS) for row in rows]
    runs.write(a.results, "optimize: bits and KL, weights alone", UNITS, made, on_cpu=a.device == "cpu")
    print(table(rows))


if __name__ == "__main__":
    main()
