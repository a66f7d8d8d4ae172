"""A decode step of what a stranger gets who sets nothing, beside the best options chosen by hand and beside bf16.

    python pyext/benches/defaults.py [--results FILE] [--shapes tinyllama] [--layers N] [--bits none,4] [--repeats 9]

A model with random heavy-tailed weights is compressed by ``compress_`` with no option but the bits, saved, and loaded
by ``load_model(folder, device="cuda")``. The best options by hand are coder huffman, layout quad, no trellis, the
tables that the documentation names, and ``fuse_`` of whole blocks. Steps are CUDA graphs at batch 1; all take turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import runs
import torch
import wcodec
import wcodec.nn
from tinyllama_model import SHAPES, Steps, build, clean

# The logarithm of a table's slots that is fastest, by the bits per weight.
TABLES = {None: 12, 4.0: 12, 3.0: 10}
UNITS = {"tokens_per_s": "tokens/s", "speed_of_bf16": "of bf16's tokens/s", "stored": "bytes"}


def by_default(args: argparse.Namespace, bits: float | None) -> Any:
    """The model that a folder gives."""
    model = build(args.shapes, args.layers)
    wcodec.compress_(model, calibrate=False, progress=False, **({} if bits is None else {"bits": bits}))
    with tempfile.TemporaryDirectory() as folder:
        wcodec.save_pretrained(model, Path(folder) / "model")
        del model
        clean()
        return wcodec.load_model(Path(folder) / "model", device="cuda")


def by_hand(args: argparse.Namespace, bits: float | None) -> Any:
    """The model with each option chosen."""
    model = build(args.shapes, args.layers)
    rate = {} if bits is None else {"bits": bits, "trellis": False}
    options = {"coder": "huffman", "layout": "quad", "table_bits": TABLES.get(bits, 12)}
    wcodec.compress_(model, calibrate=False, progress=False, **rate, **options)
    wcodec.nn.fuse_(model)
    return model


def stored(model: Any) -> int:
    """Bytes of compressed weights."""
    return sum(m.stored_bytes for m in model.modules() if isinstance(m, wcodec.nn.CompressedLayer))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_argument(parser)
    parser.add_argument("--shapes", choices=SHAPES, default="tinyllama", help="of which model")
    parser.add_argument("--layers", type=int, help="so many, and not all")
    parser.add_argument("--bits", default="none,4", help="bits per weight, or none for int8")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    with torch.no_grad():
        rows = measured(args)
    named = ((f"{'int8' if row['bits'] is None else row['bits']} {row['model']}", row) for row in rows)
    made = [runs.row(name, row, UNITS) for name, row in named]
    subject = f"A captured decode step at batch 1, shapes of {args.shapes}"
    runs.write(args.results, subject, UNITS, made, mode="CUDA graphs")
    return 0


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each model and number of bits, which are printed, too."""
    rows: list[dict[str, Any]] = []
    baseline = build(args.shapes, args.layers)
    for bits in (None if b == "none" else float(b) for b in args.bits.split(",")):
        models = {"bf16": baseline, "default": by_default(args, bits), "by hand": by_hand(args, bits)}
        steps = {name: Steps(model, args.tokens) for name, model in models.items()}
        run: dict[str, Callable[[], torch.Tensor]] = {name: s.captured() for name, s in steps.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(args.repeats):
            for name, found in times.items():
                found.append(steps[name].seconds(run[name]))
        for name, found in times.items():
            row = {"bits": bits, "model": name, "tokens_per_s": args.tokens / median(found)}
            row |= {"speed_of_bf16": median(times["bf16"]) / median(found)}
            row |= {"spread": {"tokens_per_s": [args.tokens / max(found), args.tokens / min(found)]}}
            row |= {"stored": None if name == "bf16" else stored(models[name])}
            rows.append(row)
            print(json.dumps(row), flush=True)
        del models, steps, run
        clean()
    return rows


if __name__ == "__main__":
    sys.exit(main())
