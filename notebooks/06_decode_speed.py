# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Decode speed: coders side by side
#
# Compressed weights are decoded every time a layer is called, so a coder is judged by two numbers: how small it makes
# the weights, and how fast it gives them back. Here is one matrix in three coders, beside plain zstd, on one core of this
# machine; and, where there is a GPU, on that (then the axis is logarithmic).

# %%
import wcodec

from common import GPU, OUT, SMALL, decode_speeds, heavy_tailed, plots

weights = heavy_tailed(ROWS := 4096, COLS := 2048)
rates = decode_speeds(weights)
fig, ax = plots(figsize=(7, 2.2))
colors = [wcodec.COLORS.get(name.split(",")[0], wcodec.COLORS["others"]) for name in rates]
ax.bar_label(ax.barh(list(rates), rates.values(), color=colors), fmt="%.2f", padding=4)
ax.invert_yaxis()
ax.set(xlabel="billion weights per second", xscale="log" if GPU else "linear")
ax.margins(x=0.12)

# %% [markdown]
# This notebook measures both, in one run:
#
# - Coders `rans`, `huffman`, `zstd` and `raw` beside plain zstd and a copy of memory, on the CPU.
# - The effect of instruction sets and threads, and of a speed on a token.
# - On a GPU: the same containers decoded there, in CUDA graphs, beside the device's own copies and nvCOMP.
#
# It takes about 20 seconds on two CPU cores. Speeds are those of the machine that runs it and of what else runs on
# it: compare rows with each other. Sizes are the same everywhere.

# %%
import os
import time
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import torch
import zstandard

MODEL = os.environ.get("WCODEC_MODEL", SMALL)  # .safetensors file or folder
sets, used = wcodec.instruction_sets()
print(f"{os.cpu_count()} cores; wcodec can use {', '.join(sets)}; it uses {used}")

# %% [markdown]
# ## What is decoded
#
# One matrix of 4,096 x 2,048 weights, the one above, drawn from Student's t distribution with 6 degrees of freedom, whose tails are
# like those of trained weights. `make bench` and `make bench-gpu` take the same shape and distribution. Scheme `int8`
# makes them symbols from -127 to 127, with one scale per row.
#
# How small can symbols become, if each is coded by itself? Their **order-0 entropy** is the limit: with `p` the share
# of each value, `sum of -p * log2(p)` bits per symbol. Whatever a coder takes beyond that is its overhead.

# %%
data, _ = wcodec.compress_to_bytes({"w": weights})
symbols = wcodec.open(data)["w"].symbols()


def entropy_of(values: np.ndarray) -> float:
    """Order-0 entropy in bits per symbol."""
    shares = np.bincount(values.view(np.uint8).ravel(), minlength=256) / values.size
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


entropy = entropy_of(symbols)
print(
    f"{symbols.size:,} symbols, {entropy:.3f} bits of entropy each; {symbols.nbytes / 2**20:.0f} MiB decoded"
)

# %% [markdown]
# `Encoder` codes int8 matrices as they are, so that scales are in nobody's way. A container's entry then counts
# everything that its matrix takes: coded data, raw bits, tables, offsets.
#
# **Layout** `byte` codes every symbol by itself; `pair` (the default) codes the high parts of two neighbours as one
# symbol and keeps sign and low bits raw, because they are noise. That halves the steps of a decoder.

# %%
CODERS = {
    "rans, pair": ("rans", "pair"),
    "rans, byte": ("rans", "byte"),
    "huffman, pair": ("huffman", "pair"),
    "huffman, byte": ("huffman", "byte"),
    "zstd": ("zstd", "byte"),
    "raw": ("raw", "byte"),
}
layers = {
    n: wcodec.Encoder(coder, layout=layout).encode_layer(symbols)[0]
    for n, (coder, layout) in CODERS.items()
}
entries = {name: next(iter(wcodec.open(layer).values())) for name, layer in layers.items()}
stored = {name: entry.stored_bytes for name, entry in entries.items()}

FRAME = 64 << 10
compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
plain = symbols.tobytes()
frames = [compressor.compress(plain[at : at + FRAME]) for at in range(0, len(plain), FRAME)]
stored["plain zstd"] = sum(map(len, frames))
over = {name: 100 * (8 * size / symbols.size / entropy - 1) for name, size in stored.items()}

assert all(np.array_equal(entry.symbols(), symbols) for entry in entries.values())
assert all(percent >= 0 for percent in over.values())  # nobody beats the entropy
assert over["rans, pair"] == min(over.values())

# %% [markdown]
# "plain zstd" is the package `zstandard` at level 3, frames of 64 KiB, as in `make bench`. Coder `zstd` writes frames
# that suit a GPU, smaller ones, which costs a little.
#
# ## Speed on one core
#
# Every row turns compressed bytes into a new array of 8 MiB. For fairness the candidates take turns: one call of
# each, then again, so that a busy moment of the machine hits all of them. We show medians, and the middle half of the
# calls as spread.
#
# A call includes the decoding, one thread, a check of the result's hash (wcodec only), allocation of the
# result, and Python's call. `raw` decodes nothing, so its row is what all that costs; it bounds the others.
# `np.copyto` copies 8 MiB between arrays that exist already. `make bench` measures the coders alone, in Rust, without
# allocation and hash.

# %%
Timings = dict[str, np.ndarray]


def take_turns(calls: dict[str, Callable[[], object]], rounds: int = 25) -> Timings:
    """Seconds of each call, in every round."""
    for call in calls.values():
        call()  # not counted: the first call finds nothing in caches
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return {name: np.array(values) for name, values in seconds.items()}


def speeds(seconds: np.ndarray) -> tuple[float, float, float]:
    """GB/s of decoded bytes: median, and the middle half."""
    middle, slow, fast = np.percentile(seconds, (50, 75, 25))
    return tuple(symbols.nbytes / s / 1e9 for s in (middle, slow, fast))


# %%
copied = np.empty_like(symbols)
calls = {name: lambda entry=entry: entry.symbols(threads=1) for name, entry in entries.items()}
calls["plain zstd"] = lambda: np.frombuffer(b"".join(map(decompressor.decompress, frames)), np.int8)
calls["copy of memory"] = lambda: np.copyto(copied, symbols)
assert np.array_equal(calls["plain zstd"]().reshape(ROWS, COLS), symbols)

timings = take_turns(calls)
reference = np.median(timings["plain zstd"])
print(f"{'':15} bits/weight   over entropy   GB/s decoded (middle half)   x plain zstd")
for name, seconds in timings.items():
    middle, slow, fast = speeds(seconds)
    size = (
        f"{8 * stored[name] / symbols.size:11.3f}   {over[name]:+10.2f} %"
        if name in stored
        else " " * 26
    )
    print(
        f"{name:15} {size}   {middle:9.2f} ({slow:.2f} to {fast:.2f}) {reference / np.median(seconds):16.2f}"
    )

# %% [markdown]
# In the picture, further to the left is smaller, and the left edge is the entropy; further up is faster. Bars are the
# middle half of the calls, hollow points have the layout `byte`. `raw`, which removes nothing, is the broken line: no
# coder can be faster in a call like this.


# %%
def color_of(name: str) -> str:
    """A coder's, whatever its layout."""
    return wcodec.COLORS.get(name.split(",")[0], wcodec.COLORS["others"])


found = {name: speeds(timings[name]) for name in over if name != "raw"}
fig, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
for name, (middle, slow, fast) in found.items():
    full = color_of(name) if "byte" not in name else "white"
    ax.plot([over[name]] * 2, [slow, fast], color=color_of(name))
    ax.plot(over[name], middle, "o", ms=9, color=color_of(name), mfc=full)
    shift = (9, 5) if "byte" in name else (9, -11)
    ax.annotate(name, (over[name], middle), shift, textcoords="offset points")
ax.axhline(speeds(timings["raw"])[0], color=wcodec.COLORS["original"], ls="--")
ax.set(xlim=(0, 2.7), ylim=(0, None), xlabel="size over entropy, %", ylabel="GB/s decoded")
plt.show()

# %% [markdown]
# ## Instruction sets
#
# A chunk of `rans` is 32 interleaved streams, which a vector unit decodes side by side: two vectors of AVX-512, four
# of AVX2. wcodec picks the best set that the processor has; the environment variable `WCODEC_ISA` forces another one,
# and so does `Decoder(isa=)`. Every set gives the same symbols; the scalar decoder is the reference that the others
# are tested against. Here hashes are not checked (`check=False`), but each call opens its container anew.

# %%
by_set = {}
for name in ("rans, pair", "rans, byte", "huffman, pair"):
    for isa in sets:
        decoder = wcodec.Decoder(isa=isa, threads=1, check=False)
        assert np.array_equal(decoder.decode_layer(layers[name])[0], symbols)
        by_set[name, isa] = lambda decoder=decoder, layer=layers[name]: decoder.decode_layer(layer)
by_set = take_turns(by_set, rounds=9)

fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
names = ["\n".join([*name.split(", "), isa]) for name, isa in by_set]
found = [speeds(seconds)[0] for seconds in by_set.values()]
bars = ax.bar(names, found, color=[color_of(name) for name, _ in by_set])
ax.bar_label(bars, fmt="%.2f", fontsize="small")
ax.margins(y=0.12)
ax.set(title="Instruction sets, one thread", ylabel="GB/s decoded")
plt.show()

# %% [markdown]
# `huffman` has one fast decoder, which AVX2 turns on; AVX-512 adds nothing to it.
#
# ## Threads
#
# Chunks are decoded independently, so cores share them. The rest of the call does not scale: allocation, and the hash
# over the whole result. A machine whose cores are busy shows less.

# %%
COUNTS = [1, 2, 4, 8, 16]
COUNTS = [n for n in COUNTS if n == 1 or n <= (os.cpu_count() or 1)]
threads = {
    (name, n): lambda entry=entries[name], n=n: entry.symbols(threads=n)
    for name in ("rans, pair", "huffman, pair", "zstd", "raw")
    for n in COUNTS
}
threads = take_turns(threads, rounds=15)
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name in dict.fromkeys(name for name, _ in threads):
    found = [speeds(threads[name, n])[0] for n in COUNTS]
    color = wcodec.COLORS["original"] if name == "raw" else color_of(name)
    ax.plot(COUNTS, found, "o-", color=color, label=name)
    each = zip(COUNTS, found, strict=True)
    print(f"{name:15}" + "".join(f"{n:4} threads: {value:6.2f} GB/s" for n, value in each))
ax.set_xticks(COUNTS)
ax.set(title="Threads", xlabel="threads", ylabel="GB/s decoded", ylim=(0, None))
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# ## What a speed means for a token
#
# To make one token, a model multiplies by every matrix once (of the embedding it needs one row). So at batch 1 a
# token needs at least
#
#     weights of all matrices / decoded weights per second
#
# and a batch, or a prompt of many tokens, shares that time. Decoded bytes of int8 are weights, so GB/s are billions
# of weights per second. For two models, by decoding alone, with all threads of this machine:

# %%
block = 2 * 2048 * 2048 + 2 * 256 * 2048 + 3 * 5632 * 2048  # q, o; k, v; gate, up, down
MODELS = {
    "TinyLlama-1.1B": 22 * block + 32000 * 2048,
    "Llama-2-7B": 32 * (4 * 4096 * 4096 + 3 * 11008 * 4096) + 32000 * 4096,
}
cases = {
    name: speeds(threads[name, COUNTS[-1]])[0] * 1e9
    for name in ("rans, pair", "huffman, pair", "zstd")
}
cases["rans on an H200 (docs)"] = 1392e9
for model, needed in MODELS.items():
    print(f"{model}: {needed / 1e9:.2f} billion weights for a token")
    for name, rate in cases.items():
        print(
            f"    {name:26} {1e3 * needed / rate:9.2f} ms to decode them, at most {rate / needed:8.1f} tokens/s"
        )

# %% [markdown]
# The last row of each is no measurement of this run: 1,392 billion weights per second is the figure of docs/measurements.md for 128 such
# matrices on one H200 (`make bench-gpu`). At that speed, decoding every weight of a model of a billion weights takes
# less than a millisecond. On a CPU, compressed layers save memory and cost speed; `cache=` keeps layers decoded where
# memory allows ([notebook 04](04_residencies_and_streaming.ipynb)).
#
# ## A real model: small matrices
#
# Large matrices show coders at their best. The model in this repository has rows of 192 and 512 weights, and matrices
# from 12,288 to 786,432 weights; a call costs some microseconds whatever the coder. Decoding all of it, tensor by
# tensor, one thread:

# %%
opened = {}
for name, (coder, layout) in CODERS.items():
    path = OUT / f"{coder}-{layout}.wcodec"
    wcodec.compress(MODEL, path, coder=coder, layout=layout, progress=False)
    opened[name] = wcodec.open(path)
quantized = {name: [e for e in c.stored if e.scheme == "int8"] for name, c in opened.items()}
whole = take_turns(
    {
        name: lambda found=found: [e.symbols(threads=1) for e in found]
        for name, found in quantized.items()
    },
    rounds=9,
)
elements = sum(e.elements for e in quantized["raw"])
print(f"{len(quantized['raw'])} matrices, {elements:,} weights")
for name, seconds in whole.items():
    rate = elements / np.median(seconds) / 1e9
    print(f"{name:15} {opened[name].bits_per_weight:6.3f} bits/weight   {rate:6.2f} G weights/s")

# The coder changes no symbol.
for found in quantized.values():
    for entry, same in zip(found, quantized["raw"], strict=True):
        assert entry.name == same.name and np.array_equal(entry.symbols(), same.symbols())

# %% [markdown]
# ## On a GPU
#
# `GpuDecoder` keeps containers compressed in the GPU's memory and decodes them there, to int8 or, in the same pass,
# times the scales to bf16. These points matter for measuring it:
#
# - **Many copies.** A GPU's cache holds tens of megabytes. 32 matrices, 256 MiB decoded, exceed it, as a model's
#   layers do.
# - **CUDA graphs.** A launch from Python takes longer than decoding a matrix. A graph replays all launches without
#   Python. `prepare` makes a `DecodeBatch`, whose names, addresses and launches are fixed, of one matrix or of many.
# - **Events.** torch's CUDA events measure on the GPU itself.
# - **Limits beside it.** A copy on the device says how many bytes per second there are to be had. Coder `zstd` is
#   decoded by NVIDIA's nvCOMP.

# %%
COPIES = 32


def in_graph(launches: list[Callable[[], object]], repeats: int = 15) -> float:
    """Milliseconds on the GPU, the median of several replays of a graph of these launches."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    found = []
    for _ in range(3 + repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return float(np.median(found[3:]))


def on_gpu(data: bytes, dtype: torch.dtype) -> tuple[float, float]:
    """Milliseconds for all matrices of a container: one after the other, and all as one batch."""
    container, decoder = wcodec.open(data), wcodec.GpuDecoder(data)
    outs = {name: torch.empty(ROWS, COLS, dtype=dtype, device="cuda") for name in container}
    alone = [decoder.prepare([(name, out)]) for name, out in outs.items()]
    together = decoder.prepare(list(outs.items()))
    times = in_graph([batch.launch for batch in alone]), in_graph([together.launch])
    decoder.check()  # waits, and raises if anything was damaged
    for name in ("w0", f"w{COPIES - 1}"):
        assert torch.equal(
            outs[name].cpu(), container[name].torch(dtype)
        )  # bit for bit what the CPU decodes
    return times


# %%
results = {}
if GPU:
    a, b = torch.zeros(2, 1 << 30, dtype=torch.int8, device="cuda")
    copy = 2 * a.nbytes / in_graph([lambda: b.copy_(a)]) / 1e6
    del a, b
    print(
        f"{torch.cuda.get_device_name()}: a copy on the device moves {copy:,.0f} GB/s, read and written"
    )
    rolled = {
        f"w{i}": np.roll(weights, i, axis=0) for i in range(COPIES)
    }  # memory of their own: they are not tied
    for name, (coder, layout) in CODERS.items():
        data, report = wcodec.compress_to_bytes(rolled, coder=coder, layout=layout)
        for dtype in (torch.int8, torch.bfloat16):
            try:
                each, once = on_gpu(data, dtype)
            except wcodec.DeviceError as error:  # nvCOMP is missing: the message says how to get it
                print(f"{name:15} {error}")
                break
            rates = [report.elements / ms / 1e6 for ms in (each, once)]
            results[name, dtype] = report.bits_per_weight, rates[1]
            row = f"{name:15} to {str(dtype)[6:]:9} {report.bits_per_weight:.3f} bits/weight   "
            row += f"{1e3 * each / COPIES:7.2f} us a matrix, {rates[0]:6,.0f} G weights/s; "
            print(row + f"as one batch {rates[1]:6,.0f} G weights/s")
else:
    print(
        "A GPU would decode the same matrices here, beside copies on the device and nvCOMP's zstd."
    )

# %% [markdown]
# A matrix by itself, and all of them as one batch, are two speeds: a small launch leaves part of a GPU idle. The
# picture shows the second one. Its dotted line is what a decoder would reach that does nothing but read compressed
# bytes and write weights, at the speed of a copy. Scales are counted in the bits.

# %%
if GPU:
    fig, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharex=True)
    for (name, dtype), (bits, rate) in results.items():
        ax = axes[int(dtype == torch.bfloat16)]
        ax.plot(
            bits, rate, "o", ms=9, color=color_of(name), mfc=None if "pair" in name else "white"
        )
        ax.annotate(name, (bits, rate), (8, -3), textcoords="offset points")
        limit = [copy / (b / 8 + dtype.itemsize) for b in (6.3, 8.7)]
        ax.plot((6.3, 8.7), limit, ":", color=wcodec.COLORS["copy"])
        ax.set(title=f"Decoding to {str(dtype)[6:]}", xlabel="bits/weight", ylabel="G weights/s")
    plt.show()
    # nvCOMP may be missing; nothing of CUDA is needed for the others.
    assert {name for name, _ in results} >= set(CODERS) - {"zstd"}

# %% [markdown]
# ## What you saw
#
# - `rans` with layout `pair` (the default) is the smallest, about 1 % over the entropy. With vector units it decodes
#   faster than the other coders that compress. `huffman` takes about 1 % more; on GPUs it is the faster one (docs/measurements.md,
#   "Measured").
# - Coders differ in bytes and speed only; every decoder gave the same symbols.
# - A call costs more than its decoding. Figures without allocation, hashes and Python are those of `make bench` (CPU)
#   and `make bench-gpu`; docs/measurements.md has a table of each.
#
# Next: [07_when_a_file_is_damaged](07_when_a_file_is_damaged.ipynb). More: [schemes and
# coders](../docs/schemes-and-coders.md), [residencies and memory](../docs/residencies-and-memory.md), [setting up a
# GPU](../docs/gpu-setup.md). Live timings of your own file: `wcodec-tui model.wcodec --tab timing`.
