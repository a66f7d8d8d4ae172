"""The process of one engine: stores matrices, multiplies with vectors, and measures bf16 beside it.

The matrices of a graph are other ones each, so many that the GPU's cache does not hold them. Graphs take turns; medians
count. ``between`` has one small kernel of torch before each product, of bf16's too, as an engine has norms there.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from ..environments import versions
from ..events import Writer
from ..turns import VARIABLE, Turns
from ..worker import RESTART, SHARED, healthy, machine, measure
from .catalogue import ENGINES, Variant, shape
from .engines import ENGINES as CALLS
from .engines import Multiply, Stored

MOST_COPIES = 16
FURTHEST = 0.5
"""The largest accepted distance of a product from bf16's, relative to its length: weights of 3 bits are nearer, and
a matrix that is multiplied in a wrong order is not."""


def together(results: Any) -> torch.Tensor:
    """The product of all vectors, which may have been multiplied in parts."""
    if isinstance(results, torch.Tensor):
        return results
    return torch.cat([together(part) if isinstance(part, list | tuple) else part for part in results])


def apart(multiply: Multiply, matrix: torch.Tensor, x: torch.Tensor) -> float:
    """The distance of a product from bf16's, relative to its length."""
    wanted = F.linear(x, matrix).float()
    found = together(multiply(x)).float().view_as(wanted)
    return float((found - wanted).norm() / wanted.norm())


def figures(times: dict[str, list[float]], ways: list[str], count: int) -> dict[str, Any]:
    """The fastest way's figures, and bf16's, for one matrix.

    >>> found = figures({"bf16": [4, 6, 8], "bf16 between": [8], "a": [2], "a between": [4], "b": [9]}, ["a", "b"], 2)
    >>> found["us"], found["bf16_us"], found["way"], found["between_us"], found["bf16_spread"]
    (1.0, 3.0, 'a', 2.0, [2.0, 4.0])
    """
    way = min(ways, key=lambda name: median(times[name]))
    out: dict[str, Any] = {"way": way}
    for name, prefix in ((way, ""), ("bf16", "bf16_")):
        for kind in ("", " between"):
            found = times[name + kind]
            key = f"{prefix}{kind.strip()}{'_' if kind else ''}"
            out[f"{key}us"] = median(found) / count
            out[f"{key}spread"] = [min(found) / count, max(found) / count]
    return out


def timed(stored: Stored, matrices: list[torch.Tensor], x: torch.Tensor, rounds: int) -> dict[str, Any]:
    """Microseconds a matrix."""
    from products import Graph, microseconds

    one = torch.ones(1, device=x.device, dtype=x.dtype)
    ways = {"bf16": [lambda v, m=m: F.linear(v, m) for m in matrices], **stored.ways}
    graphs = {}
    for name, functions in ways.items():
        graphs[name] = Graph(lambda fs=functions: [f(x) for f in fs])
        graphs[f"{name} between"] = Graph(lambda fs=functions: [f(x.mul_(one)) for f in fs])
    return figures(microseconds(graphs, rounds), list(stored.ways), len(matrices))


class Row:
    """A variant of an engine, whose sections are shapes."""

    def __init__(
        self, engine: str, variant: Variant, tokens: list[int], repeats: int, turns: Turns, device: str = "cuda"
    ) -> None:
        self._call, self._variant = CALLS[engine], variant
        self._tokens, self._repeats, self._turns, self._device = tokens, repeats, turns, device

    def run(self, section: str) -> dict[str, Any]:
        from products import copies, weights

        rows, columns = shape(section)
        generator = torch.Generator(device=self._device).manual_seed(1)
        names = range(copies(rows, columns, MOST_COPIES))
        with torch.inference_mode():
            matrices = [weights((str(i), rows, columns), generator) for i in names]
            stored = self._call(self._variant, matrices)
            out: dict[str, Any] = {"bits": stored.bits, "copies": len(matrices), "tokens": {}}
            for tokens in self._tokens:
                x = torch.randn((tokens, columns), device=self._device, dtype=torch.bfloat16, generator=generator)
                distance = max(apart(functions[0], matrices[0], x) for functions in stored.ways.values())
                if not distance < FURTHEST:
                    raise ArithmeticError(
                        f"its product with {tokens} vectors is {distance:.2g} of its length from bf16's"
                    )
                with self._turns.alone():
                    found = timed(stored, matrices, x, self._repeats)
                out["tokens"][str(tokens)] = {**found, "apart": distance}
        return out


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    tell = Writer(Path(job["events"])).tell
    engine, settings = ENGINES[job["peer"]], job["settings"]
    tell("start", versions=versions((*SHARED, *engine.peer.packages)))
    torch.cuda.init()
    tell("machine", **machine("cuda"))
    with Turns(os.environ.get(VARIABLE), tell) as turns:
        for name, todo in job["rows"].items():
            variant = next(v for v in engine.variants if v.name == name)
            tell("row", row=name)
            row = Row(job["peer"], variant, settings["matrix_tokens"], settings["matrix_repeats"], turns)
            if not measure(tell, name, todo, row.run, lambda: healthy("cuda")):
                os._exit(RESTART)
            torch.cuda.empty_cache()
    return 0
