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
# # 8. Rates: as many bits per weight as you ask for
#
# Scheme `rate` takes a number of bits per weight, and meets it, with everything counted that is stored for the weights. The
# picture is what fewer bits cost SmolLM2-135M-Instruct, beside NF4 and INT4: lower left is better.

# %%
import wcodec

from common import GPU, OUT, PEERS, Comparison, plots, real_model

both = Comparison(MODEL := real_model(), tokens=8192 if GPU else 512)
columns = wcodec.collect_statistics(both.original, MODEL, full=False, gradients=False)
ways = {"calibrated": (columns, (4, 3.5, 3)), "weights alone": (False, (4, 3))}
for way, (calibrate, sizes) in ways.items():
    [both.encoded(f"{way}, {bits}", bits=bits, calibrate=calibrate) for bits in sizes]
peers = [both.peer(name) for name in PEERS if name[:4] in ("INT4", "NF4 ")]
ax = both.plot()

# %% [markdown]
# All matrices of the model are quantized, the embedding too, which is the head as well. Then
# `KL(original || quantized)` says how far the predictions have moved, in nats per token ([notebook 5](05_quality.ipynb)
# explains it). The text is software documentation, and calibration did not see it.
#
# **Calibration** takes no text of yours: wcodec has some of many kinds, and one pass over it measures how large the inputs
# of each matrix are. Columns with large inputs get finer steps. For the folder of a causal language model it is the default,
# and `calibrate=False` leaves it out. Here it is measured once, for any number of bits.
#
# These are the bits that each way needs for the damage of NF4:

# %%
import math

nf4 = both.rows["NF4 groups of 64"]
needed = {}
for way in ways:
    four, three = both.rows[f"{way}, 4"], both.rows[f"{way}, 3"]
    slope = math.log(three.kl / four.kl) / (four.bits - three.bits)  # about a straight line
    needed[way] = four.bits - math.log(nf4.kl / four.kl) / slope
    print(f"{way}: NF4's damage at {needed[way]:.2f} bits instead of {nf4.bits:.2f}")

# %% [markdown]
# There is more to be had: a trellis (`optimize="size"`), and error feedback (`calibrate=True`), which takes minutes on a CPU.
# [Schemes and coders](../docs/schemes-and-coders.md) has what each of them does.
#
# ## One matrix at 4, 3 and 2 bits
#
# A symbol `q` stands for the weight `(q + 1/2) * scale`, with one scale for each row. The fewer bits, the larger the
# scale, and the fewer symbols there are. Frequent symbols take few bits, rare ones many: so the largest weight of a row
# costs some bits of its own, and does not make the step of its row larger.

# %%
name = next(key for key in both.weights if key.endswith("up_proj.weight"))
matrix = both.weights[name].cpu()
fig, axes = plots(columns=3, figsize=(11, 3.2))
for bits, ax in zip((4, 3, 2), axes, strict=True):
    container = wcodec.open(wcodec.compress_to_bytes({name: matrix}, bits=bits)[0])
    container.plot.symbols(name, ax=ax).set_title(f"{bits} bits", loc="left")
    ax.set_xlim(-17, 16)

# %% [markdown]
# How good is that? For normally distributed weights no code of *b* bits per weight can have an error below $2^{-b}$ of
# their size (root mean square): 6.02 dB for each bit. Rounding and an entropy coder stay 1.53 dB away from that at
# best. The **trellis** has levels twice as fine, of which each symbol allows every other one, and takes the best path
# through a row. The bytes beside symbols cost the rest: scales are 16 bits a row.

# %%
errors = {}
print("bits   error: plain  trellis   bound      dB from the bound: plain  trellis")
for bits in (4, 3, 2):
    for trellis in (False, True):
        data, _ = wcodec.compress_to_bytes({name: matrix}, bits=bits, trellis=trellis)
        errors[bits, trellis] = wcodec.open(data)[name].error  # relative to the weights' size
    pair = [errors[bits, trellis] for trellis in (False, True)]
    away = [20 * math.log10(error * 2**bits) for error in pair]
    print(
        f"{bits:4} {pair[0]:14.4f} {pair[1]:8.4f} {2.0**-bits:7.4f} {away[0]:26.2f} {away[1]:8.2f}"
    )

# %% [markdown]
# ## Which matrices suffer
#
# An error does not matter equally everywhere. `sensitivity` quantizes the model to 3 bits from the weights alone, and looks
# at one matrix at a time with all others exact. The **Fisher information**, from one pass with gradients over 512 tokens of
# the text, foresees what each does to the predictions. For the first ones that is measured, too.

# %%
suffering = wcodec.sensitivity(both.original, 3, text=both.ids[:512], measure=2, windows=1)
ax = suffering.plot()

# %%
suffering.top(5)

# %% [markdown]
# ## A budget
#
# Mostly it is not bits that are given, but room. `budget` takes the bytes of the whole file (or `"4.2 bits"`). With a
# text (`text=`), candidates are measured on it and the best is taken, and `quality="kl<=0.05"` asks the other way round.
# That takes minutes on a CPU, so
# here the Fisher information decides: it gives matrices that matter more the bits of others.

# %%
from pathlib import Path

file = OUT / "fifth.wcodec"
before = sum(path.stat().st_size for path in Path(MODEL).glob("*.safetensors"))
steps = {"calibrate": suffering.statistics, "feedback": False, "progress": False}
written = wcodec.compress(MODEL, file, budget=before // 5, **steps)
print(f"{file.stat().st_size:,} of {before // 5:,} bytes, {before:,} before")
ax = written.plot.heatmap("bits")

# %% [markdown]
# ## What you saw
#
# - Any number of bits is met, and at 4 bits the damage is well below that of NF4 and INT4, which take more.
# - Each bit less doubles the error of the weights, and multiplies the divergence.
# - Columns of large inputs need finer steps, and some matrices more bits. Calibration finds them, and needs no text of yours.
# - A budget in bytes is met from below.
#
# The same picture for your model: `WCODEC_MODEL=path WCODEC_TEXT=path`, or `wcodec frontier MODEL --text FILE --calibrate
# --plot frontier.png` at a terminal. More on the choices: [schemes and coders](../docs/schemes-and-coders.md); all options:
# [the command line](../docs/command-line.md).
#
# The last cell checks what the text says.

# %%
import numpy as np

found = both.rows
for way, (_, sizes) in ways.items():
    rows = [found[f"{way}, {bits}"] for bits in sizes]
    for bits, row in zip(sizes, rows, strict=True):
        assert abs(row.bits / bits - 1) < 0.02  # norms and index are in it
    assert all(more.kl < fewer.kl for more, fewer in zip(rows, rows[1:], strict=False))
assert found["calibrated, 4"].kl < min(row.kl for row in peers)
assert found["calibrated, 4"].bits < nf4.bits and needed["calibrated"] < nf4.bits
# Inputs of the small model have no channels that are much larger than others.
assert all(found[f"calibrated, {b}"].kl < 1.1 * found[f"weights alone, {b}"].kl for b in (4, 3))
for bits in (4, 3, 2):
    assert 2.0**-bits < errors[bits, True] < errors[bits, False]
symbols, scales = container[name].symbols(), container[name].scales()
assert np.array_equal((symbols + np.float32(0.5)) * scales, container[name].numpy(np.float32))
assert 0.98 * (before // 5) < file.stat().st_size <= before // 5
