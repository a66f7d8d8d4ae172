"""Products of one vector with int8 that is not coded, by a kernel of the same structure, beside bf16's F.linear and
coded weights: how far these are from what they could be if decoding cost nothing.

    make target/selftest/made
    python pyext/benches/plain.py [--tiles 128,256,512] [and what products.py takes of models and compression]

The kernels are those of kernels/cuda/plain.cu: chunks as they are coded otherwise, of bytes; their launches are planned
as codec/src/gpu/plan/product.rs plans those of coded weights. Weights are those of products.py, quantized to int8 a
row; what the kernels give is compared with float64. All layers are one graph, a launch for each; times are medians of
replays that take turns, in microseconds. The fastest tile width is reported.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import products
import runs
import torch

ROOT = Path(__file__).resolve().parents[2]
ABI = (ROOT / "kernels/cuda/abi.h").read_text(encoding="utf-8")
STRIP, BLOCK = 16, 64
# As in product.rs: what shared memory is divided into begins behind the table, here one of 2^8 words that nobody reads.
TABLE_AT, TABLE, DIGITS, SCALED, RESERVED = 1024, 4 << 8, 4 * BLOCK, 32, 1024
MOST_WARPS, MOST_CHUNKS, MOST_EARLY, LEAST_EARLY, SOME_WARPS = 32, 80, 64, 3, 8


def structures() -> dict[str, Any]:
    """The structures of abi.h, by their names."""
    numbers = dict(re.findall(r"#define (\w+) (\d+)", ABI))
    kinds: dict[str, Any] = {
        "u8": ctypes.c_uint8,
        "u16": ctypes.c_uint16,
        "u32": ctypes.c_uint32,
        "u64": ctypes.c_uint64,
    }
    for name, body in re.findall(r"struct (\w+) \{\n(.*?)\n\};", ABI, re.DOTALL):
        fields = []
        for kind, field, count in re.findall(r"^  (\w+) (\w+)(?:\[(\w+)\])?;", body, re.MULTILINE):
            fields.append((field, kinds[kind] * int(numbers.get(count, count)) if count else kinds[kind]))
        kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return kinds


KINDS = structures()


def over(n: int, by: int) -> int:
    """The quotient, rounded up."""
    return (n + by - 1) // by


def up(n: int, to: int) -> int:
    return over(n, to) * to


def divisor(by: int) -> Any:
    shift = (by - 1).bit_length()
    return KINDS["Divisor"](over(1 << (31 + shift), by), shift)


@dataclass
class Launch:
    """The launch of one matrix's product, without addresses."""

    early: bool
    warps: int
    grid: int
    strips_per_block: int
    shared: int
    numbers: dict[str, int]


def plan(rows: int, columns: int, tile: int, device: Any) -> Launch:
    """Plans a launch as product.rs does for one vector and one matrix."""
    strips, tiles, blocks = rows // STRIP, columns // tile, tile // BLOCK
    processors = device.multi_processor_count
    few = 1 if strips <= 2 * processors else max(SOME_WARPS // tiles, 1)
    together = over(over(strips, few), processors)

    def per_block(at_a_time: int) -> int:
        return 1 if strips <= 2 * processors else over(strips, processors * at_a_time)

    def ways() -> Iterator[tuple[bool, int, int]]:
        if few * tiles <= MOST_WARPS and together * few * tiles <= MOST_EARLY:
            most = min(max(together, 2), MOST_WARPS // (few * tiles))
            yield from ((True, n, few) for n in range(most, min(together, LEAST_EARLY) - 1, -1))
        even = 2 * over(strips, 2 * processors) <= over(strips, processors)
        if even and strips * tiles <= processors * MOST_CHUNKS:
            yield False, 2, per_block(2)
        yield False, 1, per_block(1)

    for early, at_a_time, wanted in ways():
        limit = min(
            device.shared_memory_per_multiprocessor // at_a_time - RESERVED, device.shared_memory_per_block_optin
        )
        own_strips = max(min(wanted, limit // 3 // (tiles * STRIP * 4)), 1)
        own = own_strips * tiles
        most = MOST_WARPS if early else MOST_WARPS // at_a_time
        rounds = over(own, most)
        warps = max(min(up(over(own, rounds), 4), most, own), 1)
        buffers = 2 if rounds > 1 else 1
        while True:
            buffer = up(12 + blocks * 1024, 16)
            barriers = TABLE_AT + TABLE
            buffers_at = barriers + up(8 + 16 * warps, 16)
            sums = buffers_at + warps * buffers * buffer
            staging = sums + up(own * STRIP * 4, 16)
            rest = warps * blocks * 1024 if early else tiles * (blocks * DIGITS + SCALED)
            known = staging + rest
            end = known + ((warps + own_strips * STRIP) * 32 if early else 0)
            if end <= limit or (buffers, warps) == (1, 1):
                break
            if buffers == 2:
                buffers = 1
            else:
                warps -= 1
        if end > limit or (early and warps < own):
            continue
        least = over(strips, own_strips)
        grid = min(max(least, processors * at_a_time), strips)
        return Launch(
            early,
            warps,
            grid,
            strips // grid,
            end,
            {
                "barriers": barriers,
                "buffers": buffers_at,
                "buffer_bytes": buffer,
                "buffers_per_warp": buffers,
                "sums": sums,
                "staging": staging,
                "staged": blocks if early else 0,
                "known": known,
            },
        )
    raise ValueError(f"no room for {rows} x {columns} in tiles of {tile}")


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


class Kernels:
    """Those of plain.cu, by the driver."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        folder = Path(os.environ.get("WCODEC_SELFTEST", ROOT / "target/selftest"))
        # The driver loads into the context that is current, and torch makes that with its first tensor.
        torch.empty(1, device="cuda")
        target = 90 if torch.cuda.get_device_capability() >= (9, 0) else 80
        text = (folder / f"plain.sm_{target}.ptx").read_bytes()
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), text)
        self.functions = {}
        for early in (False, True):
            function = ctypes.c_void_p()
            name = b"plain_times_bf16" + (b"_early" if early else b"")
            self.call("cuModuleGetFunction", ctypes.byref(function), module, name)
            # Most bytes of dynamic shared memory, in blocks of threads.
            self.call(
                "cuFuncSetAttribute", function, 8, torch.cuda.get_device_properties().shared_memory_per_block_optin
            )
            self.functions[early] = function

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: error {status} of the driver")

    def launch(self, launch: Launch, params: Any) -> None:
        # Programmatic stream serialization, as product.rs launches.
        overlap = Attribute(6, b"", (ctypes.c_int * 16)(1))
        stream = torch.cuda.current_stream().cuda_stream
        threads = launch.warps * 32
        config = Config(launch.grid, 1, 1, threads, 1, 1, launch.shared, stream, ctypes.pointer(overlap), 1)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        self.call("cuLaunchKernelEx", ctypes.byref(config), self.functions[launch.early], pointers, None)


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale for each row, and int8."""
    scales = weight.float().abs().amax(dim=1) / 127
    return scales, (weight.float() / scales[:, None]).round().to(torch.int8)


class Plain:
    """A matrix as int8, in chunks of the order that the kernels read."""

    def __init__(self, weight: torch.Tensor, tile: int, device: Any) -> None:
        rows, columns = weight.shape
        self.weight = weight
        self.scales, symbols = quantized(weight)
        strips, tiles, blocks = rows // STRIP, columns // tile, tile // BLOCK
        # Strips, halves of their rows, rows; tiles, blocks, lanes of a row.
        parts = symbols.reshape(strips, 2, 8, tiles, blocks, 4, 16)
        self.data = parts.permute(0, 3, 4, 1, 2, 5, 6).contiguous()
        self.offsets = torch.arange(strips * tiles + 1, dtype=torch.int32, device=weight.device) * (blocks * 256)
        self.table = torch.zeros(TABLE // 4, dtype=torch.int32, device=weight.device)
        self.status = torch.full((1,), -1, dtype=torch.int32, device=weight.device)
        self.launch = plan(rows, columns, tile, device)
        output = KINDS["Output"](scales=self.scales.data_ptr(), scales_per_row=1, scale_columns=columns, scale_bytes=4)
        self.tiles = KINDS["Tiles"](
            data=self.data.data_ptr(),
            offsets=self.offsets.data_ptr(),
            table=self.table.data_ptr(),
            status=self.status.data_ptr(),
            output=output,
            data_units=self.data.numel() // 4,
            chunk_end=strips * tiles,
            max_chunk=blocks * 1024,
            strips=strips,
            rows=rows,
            cols=columns,
            tiles=tiles,
            blocks=blocks,
            last_blocks=blocks,
            bits=8,
            block_end=self.launch.grid,
            by_tiles=divisor(tiles),
            by_strips=divisor(strips),
            shared_end=strips * tiles,
        )

    def product(self, x: torch.Tensor) -> tuple[torch.Tensor, Callable[[Kernels], None]]:
        """The result, and what computes it."""
        rows = self.scales.numel()
        y = torch.full((rows,), float("nan"), dtype=x.dtype, device=x.device)
        params = KINDS["ProductBatch"](
            count=1, vectors=1, x=x.data_ptr(), x_stride=x.numel(), y=y.data_ptr(), vector=1, **self.launch.numbers
        )
        # Levels are the symbols themselves: half of each element is taken away again, which one vector's kernels skip.
        params.items[0] = KINDS["ProductItem"](
            tiles=self.tiles, stride=rows, strips=self.launch.strips_per_block, minus=0xBF00BF00
        )
        return y, lambda kernels: kernels.launch(self.launch, params)

    def check(self, x: torch.Tensor, y: torch.Tensor) -> None:
        # Anew: what the kernels were given is compared, too.
        scales, symbols = quantized(self.weight)
        want = symbols.double() @ x.double() * scales.double()
        error = float((y.double() - want).norm() / want.norm())
        if not error < 2.0**-8:
            rows = y.isnan().nonzero().flatten().tolist()
            raise RuntimeError(
                f"{list(symbols.shape)}: relative error {error} of what kernels give; {len(rows)} rows are not "
                f"numbers, {rows[:8]} first, and the first chunk that was refused is {int(self.status)}"
            )


def plain_graph(
    layers: dict[str, torch.Tensor], x: dict[int, torch.Tensor], tile: int, kernels: Kernels
) -> products.Graph:
    """A CUDA graph of the products of all layers."""
    device = torch.cuda.get_device_properties()
    matrices = [Plain(weight, tile, device) for weight in layers.values()]
    works = [matrix.product(x[matrix.weight.shape[1]]) for matrix in matrices]

    def run() -> None:
        for _, launch in works:
            launch(kernels)

    graph = products.Graph(run)
    graph.replay()
    for matrix, (y, _) in zip(matrices, works, strict=True):
        matrix.check(x[matrix.weight.shape[1]], y)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    products.add_arguments(parser)
    parser.add_argument("--tiles", default="128,256,512", help="widths of the plain kernel's tiles")
    args = parser.parse_args()
    kernels = Kernels()
    report = []
    for model in args.models.split(","):
        groups, by = products.MODELS[model]
        for bits in args.bits.split(","):
            named, options = products.options_of(bits, args)
            held = products.Weights(groups, {"coder": "huffman", **options})
            x = {w.shape[1]: torch.randn(w.shape[1], device="cuda", dtype=torch.bfloat16) for w in held.plain.values()}
            graphs = held.graphs(1, merged=False)
            for tile in map(int, args.tiles.split(",")):
                graphs[f"plain {tile}"] = plain_graph(held.plain, x, tile, kernels)
            times = {name: [t / by for t in found] for name, found in products.microseconds(graphs).items()}
            middle = {name: median(found) for name, found in times.items()}
            fastest = min((name for name in middle if name.startswith("plain")), key=middle.__getitem__)
            row = {
                "what": model,
                "scheme": named,
                "bits": held.bits,
                "times": middle,
                "spread": {name: [found[0], found[-1]] for name, found in times.items()},
                "fastest_plain": fastest,
                "of_plain": middle["ours"] / middle[fastest],
            }
            report.append(row)
            print(
                f"{model:10} {named:9} {held.bits:5.2f} bits: bf16 {middle['bf16']:8.2f} us, ours "
                f"{middle['ours']:8.2f} us, {fastest} {middle[fastest]:8.2f} us, ours over it {row['of_plain']:.2f}",
                flush=True,
            )
            held.decoder.check()
            del graphs, held
            torch.cuda.empty_cache()
    rows = [{**row, **row["times"], "name": f"{row['what']} {row['scheme']}"} for row in report]
    tiles = {f"plain {tile}": "us" for tile in args.tiles.split(",")}
    units = {"bits": "bits/weight", "bf16": "us", "ours": "us", **tiles, "of_plain": "of the fastest plain kernel"}
    made = [runs.row(row.pop("name"), row, units) for row in rows]
    subject = "Products beside a kernel that reads plain int8, one token"
    runs.write(args.results, subject, units, made, mode="CUDA graphs")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
