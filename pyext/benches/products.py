"""Products of a few vectors with compressed weights beside bf16's F.linear, in CUDA graphs: what linear layers take
when nothing lies between them.

    python pyext/benches/products.py [--bits none,4,3.1] [--layout pair|quad] [--table-bits 11] [--batch 1,8,16]
        [--models tinyllama,llama-8b] [--shapes 2048x2048,...] [--results FILE]

Weights are random with heavy tails (Student-t, 6 degrees of freedom), other ones for each layer. All layers of a model
are one graph, in the model's order: `separate` with a launch for each, `merged` with one for q, k and v and one for
gate and up (bf16: one matrix); llama-8b is a block of it, a quarter of a graph of four. A shape by itself is rotated
among so many copies that the GPU's cache does not hold them. Times are medians of replays that take turns with bf16's,
in microseconds; bits count all that is stored.

Each row has a second pair of times, ``between``: one small kernel of torch runs before each product, of bf16's and of
ours, as norms and attention do in an engine. Then a product begins when another kernel has ended, and nothing of it
is hidden behind the product before. The small kernels count in both times.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import runs
import torch
import torch.nn.functional as F
import wcodec

# Bytes of weights, as bf16, that no cache holds.
BEYOND_CACHE = 400 << 20

Layer = tuple[str, int, int]

UNITS = {
    "bits": "bits/weight",
    "bf16": "us",
    "ours": "us",
    "speed_of_bf16": "times bf16's speed",
    "bf16_between": "us, with a small kernel before each product",
    "ours_between": "us, with a small kernel before each product",
    "speed_of_bf16_between": "times bf16's speed, with a small kernel before each product",
}


def blocks(hidden: int, inner: int, keys: int, count: int) -> list[list[Layer]]:
    """The groups of layers that read one vector, of so many blocks of a Llama."""
    return [
        [(f"{i}.{name}", out, size) for name, out, size in group]
        for i in range(count)
        for group in (
            [("q", hidden, hidden), ("k", keys, hidden), ("v", keys, hidden)],
            [("o", hidden, hidden)],
            [("gate", inner, hidden), ("up", inner, hidden)],
            [("down", hidden, inner)],
        )
    ]


# Groups of layers, and by what a graph's time is divided.
MODELS: dict[str, tuple[list[list[Layer]], int]] = {
    "tinyllama": ([*blocks(2048, 5632, 256, 22), [("head", 32000, 2048)]], 1),
    "llama-8b": (blocks(4096, 14336, 1024, 4), 4),
}


def weights(layer: Layer, generator: torch.Generator) -> torch.Tensor:
    """Heavy tails."""
    shape = layer[1:]
    chi = sum(torch.randn(shape, generator=generator, device="cuda") ** 2 for _ in range(6))
    found: torch.Tensor = torch.randn(shape, generator=generator, device="cuda") * (6 / chi).sqrt() * 0.02
    return found.to(torch.bfloat16)


def copies(rows: int, columns: int, most: int = 64) -> int:
    """The number of copies of a matrix: so many that no cache holds them as bf16, but at most ``most``."""
    return min(max(BEYOND_CACHE // (2 * rows * columns), 2), most)


class Graph:
    """Some work as a CUDA graph. It keeps what ``run`` refers to, which is what the graph reads and writes."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        # The first run is in another stream, and waits for what makes its inputs here: until that is done, memory of
        # its results may still be read, since torch hands memory on in the order of one stream.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            run()

    def replay(self) -> None:
        self._graph.replay()


def microseconds(graphs: dict[str, Graph], rounds: int = 15) -> dict[str, list[float]]:
    """Times of each graph, replayed in turns, in ascending order."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds + 2):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn > 1:
                found[name].append(begin.elapsed_time(end) * 1000)
    return {name: sorted(times) for name, times in found.items()}


class Weights:
    """Layers as bf16 and compressed."""

    def __init__(self, groups: list[list[Layer]], options: dict[str, Any]) -> None:
        generator = torch.Generator(device="cuda").manual_seed(1)
        self.plain = {layer[0]: weights(layer, generator) for group in groups for layer in group}
        self.groups = groups
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.wcodec"
            wcodec.compress({k: v.cpu() for k, v in self.plain.items()}, path, progress=False, **options)
            self.bits = path.stat().st_size * 8 / sum(v.numel() for v in self.plain.values())
            self.decoder = wcodec.GpuDecoder(path)

    def graphs(self, batch: int, merged: bool) -> dict[str, Graph]:
        sets = self.groups if merged else [[layer] for group in self.groups for layer in group]
        x = {size: torch.randn((batch, size), device="cuda", dtype=torch.bfloat16) for g in sets for _, _, size in g}
        ones = torch.ones(1, device="cuda", dtype=torch.bfloat16)
        products = [(x[g[0][2]], self.decoder.products([(layer[0], None) for layer in g])) for g in sets]
        plain = [(x[g[0][2]], torch.cat([self.plain[layer[0]] for layer in g])) for g in sets]
        return {
            "bf16": Graph(lambda: [F.linear(v, w) for v, w in plain]),
            "ours": Graph(lambda: [p(v) for v, p in products]),
            "bf16_between": Graph(lambda: [F.linear(v.mul_(ones), w) for v, w in plain]),
            "ours_between": Graph(lambda: [p(v.mul_(ones)) for v, p in products]),
        }


def row(weights: Weights, batch: int, merged: bool, by: float) -> dict[str, Any]:
    times = microseconds(weights.graphs(batch, merged))
    middle = {name: median(found) / by for name, found in times.items()}
    spread = {name: [found[0] / by, found[-1] / by] for name, found in times.items()}
    return {
        "batch": batch,
        "merged": merged,
        "bits": weights.bits,
        **middle,
        "speed_of_bf16": middle["bf16"] / middle["ours"],
        "speed_of_bf16_between": middle["bf16_between"] / middle["ours_between"],
        "spread": spread,
    }


def named(found: dict[str, Any]) -> str:
    """The name of a row."""
    return f"{found['what']} {found['scheme']}, batch {found['batch']}{', merged' if found['merged'] else ''}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which models are measured, and how they are compressed."""
    parser.add_argument("--bits", default="none,4,3.1", help="bits a weight of scheme rate, or none for int8")
    parser.add_argument("--trellis", action="store_true", help="with a trellis")
    parser.add_argument("--table-bits", type=int, help="log2 of the slots of coder huffman's tables, with --bits")
    parser.add_argument("--layout", default="pair", help="pair or quad")
    parser.add_argument("--tile", type=int, help="columns of a tile; by the matrix's shape where absent")
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    runs.add_argument(parser)


def options_of(bits: str, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """A scheme's name, and how weights are compressed with it, but for the coder."""
    options: dict[str, Any] = {} if bits == "none" else {"bits": float(bits), "trellis": args.trellis}
    if args.table_bits is not None and (bits != "none" or args.layout == "quad"):
        options["table_bits"] = args.table_bits
    if args.tile is not None:
        options["tile"] = args.tile
    return "int8" if bits == "none" else f"rate {bits}", {"layout": args.layout, **options}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--coder", default="huffman")
    parser.add_argument("--batch", default="1,8,16", help="vectors")
    parser.add_argument("--shapes", default="", help="rows x columns, each by itself")
    args = parser.parse_args()
    report: list[dict[str, Any]] = []
    things: list[tuple[str, list[list[Layer]], float, tuple[bool, ...]]] = [
        (name, *MODELS[name], (False, True)) for name in args.models.split(",") if name
    ]
    for shape in filter(None, args.shapes.split(",")):
        rows, columns = map(int, shape.split("x"))
        count = copies(rows, columns)
        things.append((shape, [[(str(i), rows, columns)] for i in range(count)], count, (False,)))
    for bits in args.bits.split(","):
        scheme, options = options_of(bits, args)
        for name, groups, by, kinds in things:
            held = Weights(groups, {"coder": args.coder, **options})
            for batch in map(int, args.batch.split(",")):
                for merged in kinds:
                    found = row(held, batch, merged, by)
                    report.append({"what": name, "scheme": scheme, **found})
                    how = f"{found['bits']:5.2f} bits, batch {batch:2}, {'merged' if merged else 'separate':8}"
                    times = [
                        f"bf16 {found['bf16' + kind]:8.2f} us, ours {found['ours' + kind]:8.2f} us,"
                        f" {found['speed_of_bf16' + kind]:.2f}x"
                        for kind in ("", "_between")
                    ]
                    print(f"{name:12} {scheme:9} {how}: {times[0]}; between others {times[1]}", flush=True)
            held.decoder.check()
            del held
            torch.cuda.empty_cache()
    settings = f"layout {args.layout}, coder {args.coder}, {'a' if args.trellis else 'no'} trellis"
    subject = f"Products of compressed weights beside bf16's, {settings}"
    rows = [runs.row(named(found), found, UNITS) for found in report]
    runs.write(args.results, subject, UNITS, rows, mode="CUDA graphs")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
