"""Throughput of reading compressed weights from disk: `residency="disk"` against a plain reader of the same bytes, in
the same run, both with a cold page cache.

    python pyext/benches/disk.py target/disk.wcodec --make 8GB --device cuda

prints a table; ``--results FILE`` writes the figures, too. The plain reader has as many threads and reads as large,
into memory that it does nothing with; the first reader changes from round to round. On a GPU the other one decodes
every block; its time ends when the last one is decoded. On a CPU decoding takes the time: there the table says how much
of reading hides behind it, beside decoding that reads when it needs to.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import runs
import wcodec
from wcodec._core.options import size

PAGE, PIECE, THREADS = 4096, 1 << 20, 16
UNITS = {"gb_per_s": "GB/s", "of_plain": "of the plain reader's speed"}


def make(path: Path, total: int) -> None:
    """A model of blocks of four matrices of 32 MiB as float16, of random weights, coded as they are, which is fast."""
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((4096, 4096)).astype(np.float16)
    blocks = max(total // (4 * 17 << 20), 2)
    names = [f"{i:04}.{part}" for i in range(blocks) for part in "abcd"]
    wcodec.save_file({name: np.roll(weight, i) for i, name in enumerate(names)}, path, coder="raw", overwrite=True)


def cold(path: Path) -> None:
    """Drops the file's pages from the cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain(path: Path, ranges: list[tuple[int, int]], direct: bool) -> float:
    """Seconds that threads need to read these bytes, whole pages of them."""
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    pieces = [
        (at, min(PIECE, -(-(begin + length) // PAGE) * PAGE - at))
        for begin, length in ranges
        for at in range(begin // PAGE * PAGE, begin + length, PIECE)
    ]
    pieces.reverse()
    file = os.open(path, flags)

    def read() -> None:
        buffer = mmap.mmap(-1, PIECE)
        while True:
            try:
                at, length = pieces.pop()
            except IndexError:
                return
            os.preadv(file, [memoryview(buffer)[:length]], at)

    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    begin = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    seconds = time.perf_counter() - begin
    os.close(file)
    return seconds


def blocks_of(container: Any) -> list[list[str]]:
    """Names of tensors by their block, in order: those that begin alike, up to the last number."""
    found: dict[str, list[str]] = {}
    for info in container.stored:
        found.setdefault(info.name.rpartition(".")[0] or info.name, []).append(info.name)
    return list(found.values())


def on_gpu(path: Path, ring: int, direct: bool) -> Callable[[], float]:
    import torch

    container = wcodec.open(path)
    decoder = wcodec.HostDecoder(path, from_disk=True, ring=ring, direct=direct)
    shapes = [[(name, container[name].shape) for name in names] for names in blocks_of(container)]
    elements = max(sum(int(np.prod(shape)) for _, shape in block) for block in shapes)
    memory = torch.empty(elements, dtype=torch.bfloat16, device="cuda")
    batches = []
    for block in shapes:
        at, targets = 0, []
        for name, shape in block:
            count = int(np.prod(shape))
            targets.append((name, memory[at : at + count].view(shape)))
            at += count
        batches.append(decoder.prepare(targets))

    def run() -> float:
        begin = time.perf_counter()
        for batch in batches[:4]:
            batch.prefetch()
        for i, batch in enumerate(batches):
            batch.launch()
            for later in batches[i + 1 : i + 5]:
                later.prefetch()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        decoder.check()
        return seconds

    return run


def on_cpu(path: Path, ring: int, direct: bool, ahead: bool) -> Callable[[], float]:
    container = wcodec.open(path)
    names = [name for block in blocks_of(container) for name in block]
    native = container._open
    if ahead:
        native.read_ahead(names, ring, direct, THREADS)
    reads = [native.reads(name, None) for name in names]

    def run() -> float:
        begin = time.perf_counter()
        for i, name in enumerate(names):
            native.want(reads[i : i + 16])
            container[name].torch("bfloat16")
        return time.perf_counter() - begin

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a .wcodec file, which is written first with --make")
    parser.add_argument("--make", metavar="SIZE", help="writes a file of about that size")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ring", default="96MiB", help="memory of the ring (default: 96MiB)")
    parser.add_argument("--repeats", type=int, default=6)
    runs.add_argument(parser)
    a = parser.parse_args()
    if a.make:
        make(a.file, size("make", a.make) or 0)
    container = wcodec.open(a.file)
    ranges = [(s.offset, s.length) for t in container.stored for s in t.segments if s.length and s.role != "table"]
    total, ring = sum(length for _, length in ranges), size("ring", a.ring) or 0
    rows: list[dict[str, Any]] = []
    print(f"{'reads':10} {'reader':24} {'GB/s':>7} {'of the plain reader':>20}")
    for direct in (True, False):
        if direct and not wcodec._native.reads_direct(a.file):
            print("direct     not on this file system")
            continue
        ways: dict[str, Callable[[], float]] = {"plain": lambda direct=direct: plain(a.file, ranges, direct)}
        if a.device == "cuda":
            ways["disk"] = on_gpu(a.file, ring, direct)
        else:
            ways["disk"] = on_cpu(a.file, ring, direct, True)
            ways["read when needed"] = on_cpu(a.file, ring, direct, False)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        # A disk may have a cache of its own, or lie in a network, and be faster for the second: this does not count.
        cold(a.file)
        plain(a.file, ranges, direct)
        for turn in range(a.repeats):
            # Side by side, as such disks have good and bad minutes, and in turns, as each finds what the last one left.
            order = list(ways) if turn % 2 == 0 else list(ways)[::-1]
            for name in order:
                cold(a.file)
                seconds[name].append(ways[name]())
        how = "direct" if direct else "buffered"
        for name, found in seconds.items():
            ratios = [p / s for p, s in zip(seconds["plain"], found, strict=True)]
            middle = statistics.median(ratios)
            speed = total / statistics.median(found) / 1e9
            values = {"gb_per_s": speed, "of_plain": middle, "spread": {"of_plain": [min(ratios), max(ratios)]}}
            rows.append(runs.row(f"{how}, {name}", {"file_bytes": total, "ring": ring, **values}, UNITS))
            spread = f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{how:10} {name:24} {speed:7.2f} {spread:>20}")
    subject = f"Reading compressed weights from disk with {THREADS} threads, cold cache"
    runs.write(a.results, subject, UNITS, rows, on_cpu=a.device == "cpu")


if __name__ == "__main__":
    main()
