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
# # 7. When a file is damaged
#
# Disks, copies and downloads go wrong. A compressed file must not turn one wrong byte into a wrong model that nobody
# notices. Here one bit of 3.1 million bytes is wrong: `verify` finds it, and says which tensor is damaged. All others are
# sound.
#
# The model is the small one in this repository; `WCODEC_MODEL` names another checkpoint (the notebook decodes it about
# sixty times, so take a small one).

# %%
import wcodec

from common import GPU, OUT, flipped, plots, small_model

good_file, bad_file = OUT / "good.wcodec", OUT / "bad.wcodec"
wcodec.compress(MODEL := small_model(), good_file, progress=False)
quantized = [entry for entry in wcodec.open(good_file).stored if entry.scheme == "int8"]
victim = quantized[len(quantized) // 2]  # any one
segment = next(s for s in victim.segments if s.role == "data")
place = segment.offset + segment.length // 2
bad_file.write_bytes(flipped(good_file.read_bytes(), place))
ax = wcodec.verify(bad_file, progress=False).plot.status()

# %% [markdown]
# You will damage this file in many places and see what is found, what stays readable, and how to get the weights back. It
# runs on a CPU in less than a minute. On a GPU it also shows what the GPU's decoder notices.
#
# ## What protects a file
#
# A file is a header of 64 bytes, segments (symbols, scales, tables) and an index. Each of them has a hash (XXH3, 64
# bits): the header's is in the header, the index's too, and the index has one of each segment and one of each decoded
# plane, that is of the symbols after decoding. Readers compare them before they trust anything. So the parts can be
# judged one by one, and one bad part does not spoil the others.
#
# ## One bit in one tensor
#
# Above, one bit in the middle of a tensor's coded symbols was flipped. `segments` says where these are.

# %%
good, data = wcodec.open(good_file), good_file.read_bytes()
expected = wcodec.load_file(good_file, framework="torch")
print(f"{victim.name}: symbols from byte {segment.offset:,}, flipped at {place:,} of {len(data):,}")
verdict = wcodec.verify(bad_file, progress=False)
verdict

# %% [markdown]
# `verify` decodes everything, and names the tensor and the segment that is damaged, with the byte at which it begins.

# %%
import textwrap

for problem in verdict.problems:
    said = textwrap.fill(problem.detail.replace(str(OUT), "..."), 96)
    print(f"{problem.name}: {problem.status}", said, sep="\n")

assert not verdict.ok

# %% [markdown]
# ## The others stay readable
#
# Opening the damaged file works, because header and index are sound. Every other tensor decodes to what it was, bit for
# bit. The damaged one raises a `CorruptError`, which has the place as attributes for programs: `file`, `tensor`,
# `offset`.

# %%
from pathlib import Path

import torch

bad = wcodec.open(bad_file)
intact = [name for name in bad if name != victim.name]
same = [name for name in intact if torch.equal(bad[name].torch(), expected[name])]
print(f"{len(same)} of {len(bad)} tensors decode to the same bits as before")

try:
    bad[victim.name].numpy()
except wcodec.CorruptError as error:
    caught = error
print(f"tensor {caught.tensor}, segment at byte {caught.offset:,} of {Path(caught.file).name}")

# %% [markdown]
# Functions that need all tensors refuse the file: there is no half-loaded result. (`wcodec.load_model` does not decode
# layers when it loads them. There the same error comes at the latest when the damaged layer is called for the first
# time.)

# %%
try:
    wcodec.load_file(bad_file)
    raise AssertionError("it was loaded")
except wcodec.CorruptError as error:
    print("load_file refuses: damage in", error.tensor)
    assert error.tensor == victim.name

# %% [markdown]
# ## Header, index, length
#
# Damage to the header or to the index concerns the whole file: without them nobody knows where the tensors are, so the
# file does not open. The same holds for a file that was cut off or appended to. (A file whose very first bytes, the
# magic, are wrong is not recognized as a container at all: that is a `FormatError`.)


# %%
def opening(content: bytes) -> str:
    """The error that opening these bytes raises, or "opened"."""
    try:
        wcodec.open(content)
    except (wcodec.CorruptError, wcodec.FormatError) as error:
        return f"{type(error).__name__}: {str(error).split(' (')[0]}"
    return "opened"


index_at, size = int.from_bytes(data[16:24], "little"), len(data)
for what, offset in (
    ("magic", 0),
    ("index offset", 16),
    ("file length", 40),
    ("index", index_at + 100),
):
    print(f"flipped in the {what:12} -> {opening(flipped(data, offset))}")
    assert opening(flipped(data, offset)) != "opened"

# %%
lengths = [0, 32, 64, 1000, size // 2, index_at, size - 1]
for length in lengths:
    print(f"first {length:>9,} bytes -> {opening(data[:length])}")
print(f"one byte more         -> {opening(data + b'!')}")

# %% [markdown]
# ## Bytes all over the file
#
# Now systematically: 64 single flips, in every kind of place. For each one we open the file, verify it, and decode
# every tensor. The question that matters is the last one: does any tensor decode, without an error, to something else
# than it should?


# %%
from collections import Counter

import numpy as np


def kind_of(offset: int) -> str:
    """The part of the file at an offset."""
    if offset < 64:
        return "header"
    if offset >= index_at:
        return "index"
    return next(
        (s.role for s, _ in segments if s.offset <= offset < s.offset + s.length), "padding"
    )


segments = [(s, e.name) for e in good.stored for s in e.segments]
rng = np.random.default_rng(7)
padding = [s.offset + s.length for s, _ in segments if kind_of(s.offset + s.length) == "padding"]
tables = [s.offset + 2 for s, _ in segments if s.role == "table"]
offsets = [*range(0, 64, 8), *rng.integers(index_at, size, 8), *padding[:4], *tables[:2]]
offsets += list(rng.integers(64, index_at, 64 - len(offsets)))
print(dict(Counter(map(kind_of, offsets))))

# %%
silent, rows = 0, []
for offset in map(int, offsets):
    bad_file.write_bytes(flipped(data, offset, 1 << int(rng.integers(8))))
    try:
        with wcodec.open(bad_file) as container:
            verdict = wcodec.verify(bad_file, progress=False)
            broken = {problem.name for problem in verdict.problems}
            for name in container:
                try:
                    silent += not torch.equal(container[name].torch(), expected[name])
                except wcodec.CorruptError as error:
                    assert error.tensor in broken
        found = "1 tensor" if len(broken) == 1 else f"{len(broken)} tensors"
        if verdict.damage and not broken:
            found = "the padding"
        rows.append((offset, kind_of(offset), found, verdict.ok))
    except (wcodec.CorruptError, wcodec.FormatError):
        rows.append((offset, kind_of(offset), "the whole file", False))

for (kind, found), count in sorted(Counter((kind, found) for _, kind, found, _ in rows).items()):
    print(f"{count:3} x flipped in {kind:8} -> damage to {found}")

# %% [markdown]
# Two lines of the table are worth knowing. In the small model's file, quantized tensors share **tables** of symbol
# frequencies, which makes the file smaller. So damage to the 512 bytes of a table concerns all tensors that use it. Any
# other flip in a segment concerns one tensor. Padding between segments holds nothing: the tensors are all right, and
# `verify` reports it nevertheless, in `damage`.
#
# The picture shows where the flips were, and what was found.

# %%
reports = ["1 tensor", "the padding", "the whole file"]
reports[1:1] = sorted({found for *_, found, _ in rows} - set(reports), key=len)
where = {}
for offset, kind, found, _ in rows:
    where.setdefault(kind, []).append((offset / 2**20, reports.index(found)))

fig, ax = plots(figsize=(8, 3))
drawn = {"color": wcodec.COLORS["damaged"], "markersize": 8, "alpha": 0.6, "linestyle": ""}
for (kind, points), marker in zip(where.items(), "osDv^P*X", strict=False):
    ax.plot(*zip(*points, strict=True), marker=marker, label=kind, **drawn)
ax.set_yticks(range(len(reports)), reports)
ax.set(xlabel="where in the file the bit was flipped, MiB", ylim=(-0.6, len(reports) - 0.4))
legend = ax.legend(title="flipped in", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))

# %% [markdown]
# ## A write that is interrupted
#
# A container is written to a temporary file in the same folder and gets its name when it is complete. The header comes
# last. If encoding stops half-way (here a progress callback raises; Ctrl-C does the same), nothing is left. If the
# process is killed, a hidden file `.wcodec-*.part` stays behind, which the next write to the folder removes, but never
# one with the name that you asked for.

# %%
target = OUT / "interrupted.wcodec"


def stop(tensor: str, done: int, total: int) -> None:
    if done > total // 2:
        raise KeyboardInterrupt


before = sorted(OUT.iterdir())
try:
    wcodec.compress(MODEL, target, progress=stop)
except KeyboardInterrupt:
    after = sorted(OUT.iterdir())
print("interrupted; the folder has", [path.name for path in after])

# %% [markdown]
# ## In a script
#
# `wcodec verify` exits with 0 if everything is in order, and with 1 if there is damage (or a difference from
# `--against`). It exits with 2 if the command could not do its work, for example because there is no such file.
# `--json` prints the details.

# %%
import subprocess
import sys

bad_file.write_bytes(flipped(data, place))
for path, expected_status in ((good_file, 0), (bad_file, 1), (target, 2)):
    command = [sys.executable, "-m", "wcodec", "verify", path.name, "--quiet"]
    run = subprocess.run(command, cwd=OUT, capture_output=True, text=True)
    print(f"wcodec verify {path.name}: exit status {run.returncode}")
    print((run.stdout + run.stderr)[:100].strip() or "(no output)", end="\n\n")
    assert run.returncode == expected_status

# %% [markdown]
# ## Getting the weights back
#
# The simplest cure is to encode the model again, or to copy the file again. If that is slow or the file is large, the
# intact part can be kept: `extract` copies tensors into a new container as they are stored, after comparing their
# hashes, without decoding or encoding them.

# %%
rescued_file = OUT / "rescued.wcodec"
rescued_file.write_bytes(wcodec.open(bad_file).extract(intact))

try:
    wcodec.open(bad_file).extract([victim.name])
    raise AssertionError("damage was extracted")
except wcodec.CorruptError as error:
    print("extract refuses", error.tensor)

# %% [markdown]
# The missing tensor comes from the checkpoint: encode it alone, by leaving all others out. Together they are the
# weights of the undamaged file, bit for bit, because encoding is deterministic.

# %%
encoded, _ = wcodec.compress_to_bytes(MODEL, skip=intact)
fresh = wcodec.open(encoded)
weights = wcodec.load_file(rescued_file, framework="torch") | {
    name: fresh[name].torch() for name in fresh
}

# %% [markdown]
# ## On a GPU
#
# `GpuDecoder` compares the hashes of segments before it sends them to the GPU, so the damage above is refused there in
# the same way. Bytes may also change later, in the GPU's memory. Kernels do not hash decoded data, but each chunk has
# to end in a valid state. The kernels check that, and `check()` raises if one did not. Here `check=False` leaves out
# the first comparison, to let damage through to the kernels.
#
# The ends of streams are a weaker test than a hash: they do not see the raw sign and low bits, and a changed symbol may
# end in a valid state. Damage in one tensor never reaches another one. On an H200 the cell says
# `chunk 0 does not decode on the GPU`, with the tensor and the place.
#
# The ends of streams are a weaker test than a hash: they do not see the raw sign and low bits, and a changed symbol may
# end in a valid state. Damage in one tensor never reaches another one. On an H200 the cell says:
#
#     check(): tensor 'model.layers.1.self_attn.v_proj.weight', byte 2255792: chunk 0 does not decode on the GPU (restore the
#     file, or encode the model again)

# %%
if GPU:
    # One byte in a thousand of the tensor's coded symbols.
    changed = np.frombuffer(data, np.uint8).copy()
    changed[segment.offset : segment.offset + segment.length : 1000] ^= 0x5A
    decoder = wcodec.GpuDecoder(changed.tobytes(), check=False)
    decoder.decode(victim.name)
    try:
        decoder.check()
        print("the kernels noticed nothing")
    except wcodec.CorruptError as error:
        print(f"check(): {error}")
        assert error.tensor == victim.name
    assert all(torch.equal(decoder.decode(name).cpu(), expected[name]) for name in intact)
    decoder.check()  # damage is reported once; the other tensors are sound
    assert wcodec.verify(good_file, device="cuda", progress=False).ok
else:
    print("On a GPU this cell would decode a damaged tensor there, and show what check() says.")

# %% [markdown]
# ## What you saw
#
# - Each part of a file has a hash. All 64 flips were found, and no tensor was ever decoded wrong without an error.
# - Damage to a tensor stays with that tensor, unless it hits a table that several share; header and index concern the
#   whole file.
# - Files appear when they are complete.
# - `wcodec verify` in a script: 0 in order, 1 damaged, 2 not done. `extract` keeps what is intact.
#
# Hashes guard against accidents, not against somebody who changes a file and its hashes on purpose. Such a file can
# hold other weights, but it cannot make a reader read or write where it should not: every length and offset is checked.
# For authenticity, use a signature or a cryptographic checksum of the whole file.
#
# More:
#
# - [Validation in scripts](../docs/scripted-validation.md) and [troubleshooting](../docs/troubleshooting.md)
# - [The format](../codec/FORMAT.md), section 10: what readers must refuse
# - [Back to the first notebook](01_quickstart.ipynb)
#
# The last cell checks what the text says.

# %%
assert same == intact
assert caught.tensor == victim.name and caught.file == str(bad_file)
assert caught.offset == segment.offset
assert opening(data) == "opened"
assert all(opening(data[:length]) != "opened" for length in lengths)
assert opening(data + b"!") != "opened"
assert len(rows) == 64
assert not any(ok for *_, ok in rows)  # each of the flips was found
assert all(
    found == "1 tensor"
    for _, kind, found, _ in rows
    if kind in ("data", "side", "scales", "offsets")
)
assert silent == 0  # and no tensor was decoded wrong without an error
assert after == before
assert wcodec.verify(rescued_file, progress=False).ok
assert list(fresh) == [victim.name]
assert weights.keys() == expected.keys()
assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
