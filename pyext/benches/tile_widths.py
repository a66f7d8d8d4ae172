#!/usr/bin/env python3
"""What tiles cost whose borders fall on a half, a quarter or an eighth of a matrix's columns.

    python pyext/benches/tile_widths.py --cpu --out cpu.json
        sizes; one thread, about two minutes
    python pyext/benches/tile_widths.py --gpu --out gpu.json
        speeds on one GPU; stops by itself (--budget, seconds)
    python pyext/benches/tile_widths.py --gpu --dry-run --out dry.json
        the same code on tiny shapes, the CPU in the GPU's place
    python pyext/benches/tile_widths.py --table cpu.json [gpu.json]
        the table in Markdown, and ranges
    python pyext/benches/tile_widths.py --table cpu.json gpu.json --fill docs/architecture.md
        puts the table into a page, between its markers

A tensor that is cut into k equal parts by columns has a border at every multiple of columns / k. Tiles have borders at
the multiples of their width W, so W has to divide columns / k, and is a multiple of 64.

Sizes: rows are drawn (Student-t with 6 degrees of freedom, or normal; a scale for each row; rounded to bf16), the
package quantizes them to int8, and what it stores at each width is counted: chunks, offsets, side plane, scales, table,
index. What grows with the rows is measured on --sample rows and multiplied up to the real number.

Speeds: each width is a container of the same tensors, as many as make a decoder block of some 32 M weights. One launch
decodes them all ("block"), or one each ("alone"), in a CUDA graph of many launches that takes turns between two copies
in memory and two outputs. Graphs of all widths are replayed in turns, in a new order each round; a ratio is of the
times of one round. "control" is today's width a second time: what it says is noise.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import wcodec

BLOCK, LANES_ROWS, MAX_TILE, LARGE = 64, 16, 1024, 32 << 20
CUTS = (2, 4, 8)
CODERS = ("rans", "huffman")
# Columns, rows, and whose layer it is. Where a number of columns is there twice, the rows decide which target today's
# rule has.
SHAPES = [
    (2048, 5632, "TinyLlama-1.1B gate, up"),
    (5632, 2048, "TinyLlama-1.1B down"),
    (4096, 4096, "Llama-3-8B q, o"),
    (4096, 14336, "Llama-3-8B gate, up"),
    (14336, 4096, "Llama-3-8B down"),
    (11008, 4096, "Llama-2-7B down"),
    (5120, 5120, "Llama-2-13B q, o"),
    (5120, 13824, "Llama-2-13B gate, up"),
    (13824, 5120, "Llama-2-13B down"),
    (896, 4864, "Qwen2.5-0.5B gate, up"),
    (4864, 896, "Qwen2.5-0.5B down"),
    (3072, 8192, "Llama-3.2-3B gate, up"),
    (8192, 3072, "Llama-3.2-3B down"),
    (8192, 28672, "Llama-3-70B gate, up"),
    (28672, 8192, "Llama-3-70B down"),
    (768, 3072, "GPT-2 size"),
]
BYTE_SHAPE = (4096, 4096)


# Geometry: no measuring here.


def default_tile(coder: str, rows: int, cols: int) -> int:
    """The rule of codec/src/coder/tile.rs. Both parts of this program compare it with what the package does."""
    target = 512 if rows * cols >= LARGE else 192 if coder == "rans" else 256
    blocks = max(1, -(-cols // BLOCK))
    tiles = -(-blocks * BLOCK // target)
    return -(-blocks // tiles) * BLOCK


def widths_for(cols: int, cut: int) -> list[int]:
    """Widths of tiles that have borders at all multiples of cols / cut."""
    if cols % (BLOCK * cut):
        return []
    blocks = cols // cut // BLOCK
    return [BLOCK * d for d in range(1, MAX_TILE // BLOCK + 1) if blocks % d == 0]


def all_widths(cols: int) -> list[int]:
    return sorted({w for cut in CUTS for w in widths_for(cols, cut)})


def nearest(widths: list[int], today: int) -> int:
    """The one whose ratio to today's is nearest to 1, the wider of two."""
    return min(widths, key=lambda w: (abs(np.log(w / today)), -w))


def uneven(cols: int, cut: int) -> list[int]:
    """Columns of parts that are as equal as blocks of 64 allow."""
    blocks = -(-cols // BLOCK)
    least, more = divmod(blocks, cut)
    parts = [(least + (i < more)) * BLOCK for i in range(cut)]
    parts[-1] -= blocks * BLOCK - cols
    return parts


def whole_tiles_imbalance(cols: int, cut: int, tile: int) -> float:
    """The largest part over the mean where parts are whole tiles of that width."""
    tiles = -(-cols // tile)
    return -(-tiles // cut) * tile * cut / cols


# Sizes.


def as_bf16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to bf16, still as float32: the package makes the same symbols and scales of them."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def drawn(rows: int, cols: int, law: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_t(6, (rows, cols)) if law == "t6" else rng.standard_normal((rows, cols))
    return as_bf16(0.02 * values * rng.lognormal(0, 0.3, (rows, 1)))


class Sizes:
    """Bytes that a matrix of symbols takes, `rows` of which are given and `real` of which there are."""

    def __init__(self, symbols: np.ndarray, real: int, coder: str, layout: str) -> None:
        self.symbols, self.real, self.coder, self.layout = symbols, real, coder, layout

    def of(self, arrays: list[np.ndarray], tile: list[int]) -> float:
        """Everything stored. Several arrays are parts of one matrix: one table and one set of scales are counted."""
        grows, table, index = 0, 0, 0
        for array, width in zip(arrays, tile, strict=True):
            data, report = wcodec.compress_to_bytes(
                {"w": array}, scheme="raw", coder=self.coder, layout=self.layout, tile=width, threads=1
            )
            info = report.tensors[0]
            if info.coder == "raw":
                # It would not be smaller.
                return float("nan")
            if info.tile != width or info.filter != "none" or info.layout != self.layout:
                raise SystemExit(f"{array.shape} at {width} is stored otherwise: {info}")
            if self.layout == "pair" and info.shift != 3:
                raise SystemExit(f"shift {info.shift} at {width}")
            here = {s.role: s.length for s in info.segments}
            table = max(table, here.pop("table"))
            grows += sum(here.values())
            # The header, and what follows the last segment. Gaps that align segments are up to 4 KiB by chance, and not
            # counted.
            index += 64 + len(data) - max(s.offset + s.length for s in info.segments)
        return (grows / self.symbols.shape[0] + 4) * self.real + table + index

    def whole(self, tile: int) -> float:
        return self.of([self.symbols], [tile])

    def stack(self, cut: int, tile: int) -> float:
        """As `cut` matrices, each with a narrow tile at its own end."""
        rows, cols = self.symbols.shape
        return self.of([np.ascontiguousarray(self.symbols.reshape(rows, cut, cols // cut).swapaxes(0, 1))], [tile])

    def padded(self, cols: int, tile: int) -> float:
        more = np.zeros((self.symbols.shape[0], cols - self.symbols.shape[1]), np.int8)
        return self.of([np.hstack([self.symbols, more])], [tile])


def sizes_of(cols: int, rows: int, what: str, coder: str, layout: str, law: str, weights: np.ndarray) -> dict:
    today = default_tile(coder, rows, cols)
    data, report = wcodec.compress_to_bytes({"w": weights}, coder=coder, layout=layout, tile=today, threads=1)
    with wcodec.open(data) as container:
        entry = container["w"]
        symbols, entropy = entry.symbols(), entry.entropy
    sizes = Sizes(symbols, rows, coder, layout)
    base = sizes.whole(today)
    small = Sizes(symbols, weights.shape[0], coder, layout).whole(today)
    stored = report.tensors[0].stored_bytes
    if not 0 < small - stored < 1000:  # That much is the index.
        raise SystemExit(f"counted {small} bytes, and the package says {stored}")

    def over(size: float) -> float | None:
        """Percent over today's; none where the package would store it raw."""
        return round(100 * (size / base - 1), 4) if math.isfinite(size) else None

    tried = sorted({*all_widths(cols), *(w for w in (64, 128, 256, 512) if w <= cols)})
    out = {
        "cols": cols, "rows": rows, "what": what, "coder": coder, "layout": layout, "law": law,
        "today": today, "entropy": entropy,
        "bits_today": round(8 * base / rows / cols, 4),
        "over": {w: over(sizes.whole(w)) for w in tried},
        "cuts": {},
    }  # fmt: skip
    # What one more tile in a strip costs: measured, as parts of unequal columns are not one tensor of today's format.
    each = out["over"][128] / (-(-cols // 128) - -(-cols // today))
    out["over_per_tile"] = round(each, 5)
    for cut in CUTS:
        widths = widths_for(cols, cut)
        entry = {"widths": widths, "whole_tiles_imbalance": round(whole_tiles_imbalance(cols, cut, today), 3)}
        if widths:
            own = default_tile(coder, rows, cols // cut)
            entry["stack"] = {"tile": own, "over": over(sizes.stack(cut, own))}
            same = min(today, cols // cut)
            entry["stack_today"] = {"tile": same, "over": over(sizes.stack(cut, same))}
        else:
            parts = uneven(cols, cut)
            entry["uneven"] = {
                "columns": sorted(set(parts)), "imbalance": round(max(parts) * cut / cols, 3),
                "over": round(each * (sum(-(-p // today) for p in parts) - -(-cols // today)), 4),
            }  # fmt: skip
            wide = -(-cols // (BLOCK * cut)) * BLOCK * cut
            entry["padded"] = {
                "cols": wide, "over": {w: over(sizes.padded(wide, w)) for w in widths_for(wide, cut)}
            }  # fmt: skip
        out["cuts"][cut] = entry
    return out


def rule_holds() -> None:
    """The rule above is the package's."""
    for coder in CODERS:
        for rows, cols in ((64, 2048), (3072, 768), (16, 896), (80, 11008), (1 << 13, 1 << 12)):
            zeros = np.zeros((rows, cols), np.int8)
            zeros[::3, ::2] = 1
            _, report = wcodec.compress_to_bytes({"w": zeros}, scheme="raw", coder=coder, threads=1)
            if report.tensors[0].tile != default_tile(coder, rows, cols):
                raise SystemExit(
                    f"{coder} {rows} x {cols}: tiles of {report.tensors[0].tile}, not {default_tile(coder, rows, cols)}"
                )


def real_sizes(folder: Path) -> list[dict]:
    """The down projections of the model in the repository: 512 columns. Whole tensors, so nothing is multiplied up."""
    with (folder / "model.safetensors").open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        out = []
        for name, about in header.items():
            if not name.endswith("down_proj.weight"):
                continue
            begin, end = about["data_offsets"]
            file.seek(8 + length + begin)
            raw = np.frombuffer(file.read(end - begin), np.uint16).reshape(about["shape"])
            weights = (raw.astype(np.uint32) << 16).view(np.float32)
            out += [sizes_of(512, weights.shape[0], name, coder, "pair", "real", weights) for coder in CODERS]
    return out


def cpu(args: argparse.Namespace) -> None:
    begin = time.perf_counter()
    rule_holds()
    result = {"what": "sizes", "wcodec": wcodec.__version__, "sample": args.sample, "shapes": []}
    for number, (cols, rows, what) in enumerate(SHAPES):
        laws = ["t6", "normal"] if (cols, rows) in (BYTE_SHAPE, (11008, 4096)) else ["t6"]
        for law in laws:
            weights = drawn(min(rows, args.sample), cols, law, number)
            layouts = ["pair", "byte"] if (cols, rows) == BYTE_SHAPE and law == "t6" else ["pair"]
            for layout in layouts:
                for coder in CODERS:
                    result["shapes"].append(sizes_of(cols, rows, what, coder, layout, law, weights))
        print(f"{time.perf_counter() - begin:6.1f} s  {cols} columns", file=sys.stderr)
    if args.model:
        result["real"] = real_sizes(Path(args.model))
    written(args.out, result)


# Speeds.


class Cuda:
    """The GPU that torch has as its current one."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.device)
        # What graphs collect before they begin is not to be all of Python.
        gc.collect()
        gc.freeze()

    def decoder(self, container: wcodec.Container):
        return wcodec.GpuDecoder(container, device=str(self.device), check=False)

    def graph(self, launches: list):
        for launch in launches[:4]:
            launch()
        self.wait()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for launch in launches:
                launch()
        return graph.replay

    def event(self):
        return self.torch.cuda.Event(enable_timing=True)

    def wait(self) -> None:
        self.torch.cuda.synchronize()


class Pretended:
    """The CPU in a GPU's place, for --dry-run: what is called is the same, what is measured means nothing."""

    name = "none (dry run)"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cpu")
        # The calls that Cuda makes, against the signatures of what is installed.
        inspect.signature(wcodec.GpuDecoder).bind(object(), device="cuda:0", check=False)
        inspect.signature(wcodec.GpuDecoder.prepare).bind(object(), [("w", object())])
        inspect.signature(wcodec.GpuDecoder.check).bind(object())
        inspect.signature(torch.cuda.graph).bind(object())

    def decoder(self, container: wcodec.Container):
        class Decoder:
            def prepare(self, targets):
                class Batch:
                    def launch(self) -> None:
                        for name, out in targets:
                            container[name].decode_into(out, threads=1)

                for name, out in targets:
                    assert out.is_contiguous() and tuple(out.shape) == container[name].shape
                return Batch()

            def check(self) -> None:
                pass

        return Decoder()

    def graph(self, launches: list):
        return lambda: [launch() for launch in launches]

    def event(self):
        class Event:
            def record(self) -> None:
                self.at = time.perf_counter()

            def elapsed_time(self, end) -> float:
                return 1000 * (end.at - self.at)

        return Event()

    def wait(self) -> None:
        pass


class Late(Exception):
    """There is no time left for this task."""


class Bench:
    def __init__(self, device, args: argparse.Namespace) -> None:
        self.device, self.torch, self.args = device, device.torch, args
        self.end = time.perf_counter() + args.budget
        # Weights of a launch, and of the launches of a graph.
        self.block, self.work = (5 << 16, 5 << 17) if args.dry_run else (32 << 20, 200 << 20)

    def left(self) -> None:
        if time.perf_counter() > self.end:
            raise Late

    def weights(self, rows: int, cols: int, count: int, seed: int) -> dict:
        """`count` different tensors of bf16 on the CPU."""
        torch = self.torch
        generator = torch.Generator(self.device.device).manual_seed(seed)

        def normal(*shape: int):
            return torch.randn(shape, generator=generator, device=self.device.device)

        out = {}
        for i in range(count):
            squares = torch.zeros(rows, cols, device=self.device.device)
            for _ in range(6):
                squares += normal(rows, cols).square_()
            values = normal(rows, cols) * (6 / squares).sqrt_() * torch.exp(0.3 * normal(rows, 1)) * 0.02
            out[f"w{i:02}"] = values.to(torch.bfloat16).cpu()
        return out

    def measure(
        self,
        cols: int,
        rows: int,
        coder: str,
        layout: str,
        widths: list[int],
        today: int,
        check_rule: bool,
        cut: int = 0,
    ) -> dict:
        """Times of every width, and their ratios to today's. With `cut` also of matrices that are that many matrices
        each ("own ends"): tiles of today's width, and a narrow one at the end of each part."""
        torch, device = self.torch, self.device
        count = min(24, max(1, round(self.block / (rows * cols))))
        weights = self.weights(rows, cols, count, cols + rows)
        kinds = {"bf16": torch.bfloat16, "int8": torch.int8}
        outs = {
            kind: [{n: torch.empty(rows, cols, dtype=dtype, device=device.device) for n in weights} for _ in range(2)]
            for kind, dtype in kinds.items()
        }  # fmt: skip
        order = [today, *(w for w in widths if w != today)]
        runs: dict[tuple[str, str], object] = {}
        per: dict[str, int] = {}
        held, bits, facts, data = [], {}, set(), None
        expected = None
        for width in [*order, *(["own ends"] if cut else []), "control"]:
            self.left()
            split, source = width == "own ends", weights

            def seen(tensor, split=split):
                return tensor.view(cut, rows, cols // cut) if split else tensor

            if width != "control":
                wanted = min(today, cols // cut) if split else width
                asked = None if check_rule and width == today else wanted
                if split:
                    source = {
                        n: w.view(rows, cut, cols // cut).transpose(0, 1).contiguous() for n, w in weights.items()
                    }
                data, report = wcodec.compress_to_bytes(
                    source, coder=coder, layout=layout, tile=asked, **({"threads": 1} if self.args.dry_run else {})
                )
                info = report.tensors[0]
                if info.tile != wanted or info.scheme != "int8" or info.coder != coder:
                    raise RuntimeError(
                        f"{rows} x {cols} {coder}: stored as {info.scheme} {info.coder} in tiles of {info.tile}, "
                        f"not {wanted}"
                    )
                facts.add((info.shift, info.filter))
                bits[str(width)] = round(8 * len(data) / (rows * cols * count), 4)
            else:
                data = held[0][0]
            container = wcodec.open(data)
            decoders = [device.decoder(container) for _ in range(2)]
            held.append((data, container, decoders))
            for kind in kinds:
                places = [{n: seen(out) for n, out in o.items()} for o in outs[kind]]
                whole = [d.prepare(list(o.items())) for d, o in zip(decoders, places, strict=True)]
                # What comes out is the same at every width.
                for batch, place in zip(whole, places, strict=True):
                    for out in place.values():
                        out.fill_(-77)
                    batch.launch()
                if kind == "bf16":
                    for decoder in decoders:
                        decoder.check()
                    # Parts have scales of their own, and so other values.
                    right = None if split else expected
                    if right is None:
                        right = {n: out.clone() for n, out in places[0].items()}
                        for name, out in right.items():
                            meant = source[name].to(device.device)
                            if not (out - meant).abs().max() <= 0.02 * meant.abs().max():
                                raise RuntimeError(
                                    f"{rows} x {cols} {coder}: tiles of {width} decode to something else"
                                )
                    if not split:
                        expected = right
                    for place in places:
                        if not all(torch.equal(out, right[n]) for n, out in place.items()):
                            raise RuntimeError(f"{rows} x {cols} {coder}: tiles of {width} decode to something else")
                launches = max(4, 2 * round(self.work / (2 * rows * cols * count)))
                per[f"block_{kind}"] = launches
                runs[str(width), f"block_{kind}"] = device.graph([whole[i % 2].launch for i in range(launches)])
                held.append(whole)
                if count > 1:
                    single = [
                        d.prepare([(n, o[n])]) for n in weights for d, o in zip(decoders, places, strict=True)
                    ]  # fmt: skip
                    launches = 4 if self.args.dry_run else max(len(single), 32)
                    per[f"alone_{kind}"] = launches
                    runs[str(width), f"alone_{kind}"] = device.graph(
                        [single[i % len(single)].launch for i in range(launches)]
                    )
                    held.append(single)
        if len(facts) != 1:
            raise RuntimeError(f"{rows} x {cols} {coder}: shifts and filters differ: {facts}")
        times = self.times(runs)
        out = {
            "cols": cols, "rows": rows, "coder": coder, "layout": layout, "today": today, "tensors": count,
            "launches": per, "bits": bits, "results": {},
        }  # fmt: skip
        for (width, measure), found in times.items():
            base = times[str(today), measure]
            ratios = sorted(b / f for b, f in zip(base, found, strict=True))
            us = sorted(1000 * f / per[measure] for f in found)
            quarter = len(us) // 4
            out["results"].setdefault(width, {})[measure] = {
                "us": round(statistics.median(us), 3),
                "us_quartiles": [round(us[quarter], 3), round(us[-1 - quarter], 3)],
                "speed": round(statistics.median(ratios), 4),
                "speed_quartiles": [round(ratios[quarter], 4), round(ratios[-1 - quarter], 4)],
            }  # fmt: skip
        return out

    def times(self, runs: dict) -> dict:
        """Milliseconds of every graph, round after round, each round in an order of its own."""
        device, keys = self.device, list(runs)
        chance = random.Random(1)
        found: dict = {key: [] for key in keys}
        for turn in range(-2, self.args.rounds):
            chance.shuffle(keys)
            events = []
            for key in keys:
                begin, end = device.event(), device.event()
                begin.record()
                runs[key]()
                end.record()
                events.append((key, begin, end))
            device.wait()
            for key, begin, end in events:
                if turn >= 0:
                    found[key].append(begin.elapsed_time(end))
        return found


def gpu_tasks(args: argparse.Namespace) -> list[dict]:
    """What is measured, the most wanted first."""
    shapes = [(c, r) for c, r, _ in SHAPES]
    if args.dry_run:
        shapes = [(1024, 64), (896, 64), (3072, 48)]
    first, then, last = [], [], []
    for cols, rows in shapes:
        # Of the largest, as many rows as keep today's rule the same.
        most = 64 << 20
        real = rows
        if rows * cols > 1.15 * most:
            rows = most // cols // 16 * 16
        for coder in CODERS:
            today = default_tile(coder, real, cols)
            widths = [w for w in all_widths(cols) if w <= 768]
            cut = max((k for k in CUTS if widths_for(cols, k)), default=0)
            whole = {
                "kind": "whole", "cut": cut, "cols": cols, "rows": rows, "real": real, "coder": coder,
                "widths": widths, "today": today,
            }  # fmt: skip
            first.append({**whole, "layout": "pair"})
            if cut:
                share = cols // cut
                own = default_tile(coder, real, share)
                inside = sorted({*(w for w in widths_for(cols, cut) if w <= 768), own})
                share_of_it = {"kind": "share", "of": cols, "cols": share, "widths": inside, "today": min(today, share)}
                then.append({**whole, **share_of_it, "layout": "pair"})
            if (cols, real) == BYTE_SHAPE or args.dry_run:
                last.append({**whole, "layout": "byte"})
    return [*first, *then, *last]


def gpu(args: argparse.Namespace) -> None:
    begin = time.perf_counter()
    device = Pretended() if args.dry_run else Cuda()
    bench = Bench(device, args)
    result = {
        "what": "speed", "wcodec": wcodec.__version__, "torch": device.torch.__version__, "device": device.name,
        "cores": os.cpu_count(), "rounds": args.rounds, "shapes": [], "skipped": [], "failed": [],
    }  # fmt: skip
    for task in gpu_tasks(args):
        label = {k: v for k, v in task.items() if k != "widths"}
        try:
            bench.left()
            # Rows were cut so that the rule gives the same: tiles are chosen by the package itself there.
            ruled = task["kind"] == "whole" and default_tile(task["coder"], task["rows"], task["cols"]) == task["today"]
            found = bench.measure(
                task["cols"], task["rows"], task["coder"], task["layout"], task["widths"], task["today"], ruled,
                task["cut"] if task["kind"] == "whole" else 0,
            )  # fmt: skip
            result["shapes"].append({**label, **found})
        except Late:
            result["skipped"].append(label)
        except Exception as error:
            # One shape that fails, as for want of memory, is not the end of the others.
            result["failed"].append({**label, "error": f"{type(error).__name__}: {error}"})
            print(f"failed: {label}: {error}", file=sys.stderr)
            if len(result["failed"]) > 3 and not result["shapes"]:
                raise
        gc.collect()
        result["seconds"] = round(time.perf_counter() - begin, 1)
        written(args.out, result)
        print(f"{result['seconds']:6.1f} s  {label}", file=sys.stderr)
    print(
        f"{len(result['shapes'])} measured, {len(result['skipped'])} skipped, {len(result['failed'])} failed",
        file=sys.stderr,
    )
    if result["failed"]:
        raise SystemExit(1)


# The table.


def picked(widths: list[int], size: dict, speed: dict | None) -> int:
    """Today's width if it is one of them; or the smallest in bytes of those within 2 % of the fastest; without speeds
    the nearest."""
    if size["today"] in widths:
        return size["today"]
    known = (
        {w: speed["results"][str(w)]["block_bf16"]["speed"] for w in widths if str(w) in speed["results"]}
        if speed
        else {}
    )
    if not known:
        return nearest(widths, size["today"])
    best = max(known.values())
    return min((w for w in known if known[w] >= 0.98 * best), key=lambda w: size["over"][str(w)])


def table(sizes: dict, speeds: dict | None) -> tuple[list[str], list[str]]:
    """Lines of Markdown, and of what holds for all shapes."""

    def speed_of(cols: int, rows: int, coder: str) -> dict | None:
        for s in speeds["shapes"] if speeds else []:
            if (s["kind"], s["cols"], s["real"], s["coder"], s["layout"]) == ("whole", cols, rows, coder, "pair"):
                return s
        return None

    def joined(cells: list[tuple[str, ...]]) -> str:
        return ", ".join(a if a == b else f"{a} / {b}" for a, b in zip(*cells, strict=True))

    spans: dict = {}

    def cell(width: str, over: float, speed: dict | None, *about: object) -> tuple[str, ...]:
        """Width, size and speed; adds them to the ranges."""
        spans.setdefault((*about, "size %"), []).append(over)
        for measure, found in (speed["results"].get(width, {}) if speed else {}).items():
            spans.setdefault((*about, measure), []).append(found["speed"])
        fast = f"{speed['results'][width]['block_bf16']['speed']:.2f}" if speed and width in speed["results"] else "GPU"
        return (width, f"{over:+.2f}", fast)

    by = {(s["cols"], s["rows"], s["coder"]): s for s in sizes["shapes"] if s["layout"] == "pair" and s["law"] == "t6"}
    lines = [
        "| columns (rows) | W today | 1/2: W, size, speed | 1/4: W, size, speed | 1/8: W, size, speed "
        "| own ends: cut, size, speed |",
        "|---|---|---|---|---|---|",
    ]
    same = []
    for cols, rows in sorted({(c, r) for c, r, _ in by}):
        found = {c: (by[cols, rows, c], speed_of(cols, rows, c)) for c in CODERS}
        row = [f"{cols:,} ({rows:,})", joined([(str(size["today"]),) for size, _ in found.values()])]
        changes = False
        for cut in CUTS:
            widths = widths_for(cols, cut)
            cells = []
            for coder, (size, speed) in found.items():
                if not widths:
                    continue
                width = picked(widths, size, speed)
                if width == size["today"]:
                    cells.append((str(width), "0", "1"))
                    continue
                changes = True
                cells.append(cell(str(width), size["over"][str(width)], speed, coder, f"W for 1/{cut}"))
            changes = changes or not widths
            row.append(joined(cells) if cells else "none")
        cut = max(k for k in CUTS if widths_for(cols, k))
        cells = []
        for coder, (size, speed) in found.items():
            for k in CUTS:
                if "stack_today" in size["cuts"][str(k)]:
                    spans.setdefault((coder, f"own ends 1/{k}", "size %"), []).append(
                        size["cuts"][str(k)]["stack_today"]["over"]
                    )
            over = size["cuts"][str(cut)]["stack_today"]["over"]
            cells.append((f"1/{cut}", *cell("own ends", over, speed, coder, "own ends, deepest cut")[1:]))
        row.append(joined(cells))
        if changes:
            lines.append("| " + " | ".join(row) + " |")
        else:
            same.append(f"{cols:,} ({rows:,})")
    facts = []
    for about, values in sorted(spans.items()):
        told = f"{min(values):.3f} to {max(values):.3f}, median {statistics.median(values):.3f} ({len(values)})"
        facts.append(f"{', '.join(about)}: {told}")
    facts.append(f"nothing changes: {'; '.join(same)}")
    for size in by.values():
        for cut, entry in size["cuts"].items():
            if "uneven" in entry:
                padded = f"padded to {entry['padded']['cols']}: {entry['padded']['over']}"
                facts.append(f"{size['cols']} / {cut}, {size['coder']}: uneven {entry['uneven']}; {padded}")
    for s in speeds["shapes"] if speeds else []:
        if s["kind"] == "whole":
            told = ", ".join(
                f"{w}: {r['block_bf16']['speed']:.2f} ({r['block_int8']['speed']:.2f})" for w, r in s["results"].items()
            )
            facts.append(
                f"{s['cols']} ({s['real']}) {s['coder']} {s['layout']}, to bf16 (to int8), over {s['today']}: {told}"
            )
    for s in speeds["shapes"] if speeds else []:
        if s["kind"] == "share":
            told = ", ".join(
                f"{w}: {r['block_bf16']['speed']:.2f} ({r['alone_bf16']['speed']:.2f} alone)" if "alone_bf16" in r else
                f"{w}: {r['block_bf16']['speed']:.2f}" for w, r in s["results"].items()
            )  # fmt: skip
            facts.append(f"share 1/{s['cut']} of {s['of']} x {s['rows']} rows, {s['coder']}, over {s['today']}: {told}")
    if speeds:
        noise = [abs(r["speed"] - 1) for s in speeds["shapes"] for r in s["results"]["control"].values()]
        facts.append(
            f"control: off by {statistics.median(noise):.4f} in the median, {max(noise):.4f} at most ({len(noise)})"
        )
        facts.append(
            f"skipped {len(speeds['skipped'])}, failed {len(speeds['failed'])}; "
            f"{speeds['device']}, torch {speeds['torch']}"
        )
    return lines, facts


def tabulate(args: argparse.Namespace) -> None:
    sizes = json.loads(Path(args.table[0]).read_text())
    speeds = json.loads(Path(args.table[1]).read_text()) if len(args.table) > 1 else None
    if sizes["what"] != "sizes" or (speeds and speeds["what"] != "speed"):
        raise SystemExit("--table takes the sizes first, and then the speeds")
    lines, facts = table(sizes, speeds)
    print("\n".join([*lines, "", *facts]))

    if args.fill:
        page = Path(args.fill)
        before, rest = page.read_text().split("<!-- widths -->\n", 1)
        _, after = rest.split("<!-- end of widths -->\n", 1)
        page.write_text(before + "<!-- widths -->\n" + "\n".join(lines) + "\n<!-- end of widths -->\n" + after)


def written(path: str | None, result: dict) -> None:
    if path is None:
        return
    other = Path(f"{path}.part")
    other.write_text(json.dumps(result, indent=1) + "\n")
    other.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cpu", action="store_true", help="measure sizes")
    what.add_argument("--gpu", action="store_true", help="measure speeds")
    what.add_argument("--table", nargs="+", metavar="JSON", help="sizes, and speeds if there are some")
    parser.add_argument("--out", metavar="FILE", help="where the JSON goes")
    parser.add_argument(
        "--sample", type=int, default=256, metavar="N", help="rows whose size is measured, a multiple of 16 (256)"
    )
    parser.add_argument("--model", metavar="FOLDER", help="doc-llama-3m, whose real tensors are measured too")
    parser.add_argument("--rounds", type=int, default=21, metavar="N", help="replays of each graph (21)")
    parser.add_argument(
        "--budget", type=float, default=150, metavar="S", help="seconds after which nothing new begins (150)"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --gpu: without one, on tiny shapes")
    parser.add_argument("--fill", metavar="PAGE", help="with --table: the page to put the table into")
    args = parser.parse_args()
    if args.sample % LANES_ROWS or args.sample <= 0:
        parser.error("--sample is a multiple of 16")
    if args.table and len(args.table) > 2:
        parser.error("--table takes one or two files")
    tabulate(args) if args.table else cpu(args) if args.cpu else gpu(args)


if __name__ == "__main__":
    main()
