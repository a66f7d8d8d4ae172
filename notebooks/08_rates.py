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
# Scheme `rate` takes a number of bits per weight, and meets it: 4, 3.5 or 2.75, with everything counted that is stored
# for the weights. The picture is what fewer bits cost a model, beside NF4 and INT4: lower left is better.

# %%
import json
import math
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import wcodec
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

MODEL = os.environ.get(
    "WCODEC_MODEL", "../tests/data/doc-llama-3m"
)  # a checkpoint: the folder of a causal LM
TEXT = os.environ.get("WCODEC_TEXT", "../tests/data/doc-llama-3m/heldout.txt")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
folder = tempfile.TemporaryDirectory()  # all output goes here
logging.disable_progress_bar()
if Path(MODEL).name == "doc-llama-3m":
    torch.set_num_threads(1)  # so small a model leaves a second thread nothing but waiting

options = {"coder": "rans", "windows": 16 if GPU else 2, "device": DEVICE, "dtype": torch.float32}
report = wcodec.frontier(MODEL, TEXT, bits=(4, 3.5, 3), **options)
ax = report.plot.kl()

# %% [markdown]
# `frontier` quantizes all linear layers of the model in several ways, decodes what it encoded, and measures
# `KL(original || quantized)` on text that the model was not trained on: how far the predictions have moved, in nats per
# token ([notebook 5](05_quality.ipynb) explains it). After the figures, this notebook shows these:
#
# - One matrix at 4, 3 and 2 bits, and its distance from the bound of information theory.
# - The matrices that suffer, and how a calibration foresees it.
# - The gain by calibration at the same bits.
# - A budget in bytes: the package chooses where bits go.
#
# It takes less than a minute on a CPU. On a GPU the models run there.

# %%
report

# %% [markdown]
# NF4 takes 4.127 bits per weight, INT4 in groups of 64 4.25. Scheme `rate` has less damage with 4.0. The dotted line is
# NF4's damage: where it crosses the full line are the bits that scheme `rate` needs for the same. (On a CPU this is two
# windows of 512 tokens: enough to tell these apart, not for a third digit.)

# %%
nf4, int4 = report.row("NF4, blocks of 64"), report.row("INT4, groups of 64")
for bits in (4, 3.5, 3):
    plain, trellis = (report.row("weights alone", bits, trellis=t) for t in (False, True))
    assert abs(trellis.bits_stored / bits - 1) < 0.005  # what was asked for is what is stored
    assert trellis.kl < plain.kl
four, half, three = (report.row("weights alone", bits, trellis=True) for bits in (4, 3.5, 3))
assert four.kl < min(nf4.kl, int4.kl) and four.bits_stored < nf4.bits_stored
assert three.kl > 4 * four.kl

# The logarithm of KL is about a straight line between two points.
slope = math.log(half.kl / four.kl) / (four.bits_stored - half.bits_stored)
needed = four.bits_stored - math.log(nf4.kl / four.kl) / slope
print(f"at {four.bits_stored:.2f} bits {four.kl / nf4.kl:.2f} times NF4's KL")
print(f"NF4's KL at {needed:.2f} bits instead of {nf4.bits_stored:.3f}")
assert needed < nf4.bits_stored

# %% [markdown]
# ## One matrix at 4, 3 and 2 bits
#
# A symbol `q` stands for the weight `(q + 1/2) * scale`, with one scale for each row. The fewer bits, the larger the
# scale, and the fewer symbols there are. Frequent symbols take few bits, rare ones many: so the largest weight of a row
# costs some bits of its own, and does not make the step of its row larger. (Here without the trellis, in which symbols
# mean less by themselves.)

# %%
baseline = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).to(DEVICE).eval()
original = {name: weight.clone() for name, weight in baseline.state_dict().items()}
name = next(key for key in original if key.endswith("up_proj.weight"))
matrix = original[name].cpu()

fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
for bits, ax in zip((4, 3, 2), axes, strict=True):
    data, _ = wcodec.compress_to_bytes({name: matrix}, bits=bits, trellis=False)
    container = wcodec.open(data)
    symbols, scales = container[name].symbols(), container[name].scales()
    container.plot.symbols(name, ax=ax).set_title(f"{bits} bits", loc="left")
    ax.set_xlim(-17, 16)
    ax.set_ylim(top=1.25 * ax.get_ylim()[1])
    assert np.array_equal((symbols + np.float32(0.5)) * scales, container[name].numpy(np.float32))

# %% [markdown]
# How good is that? For normally distributed weights no code of *b* bits per weight can have an error below $2^{-b}$ of
# their size (root mean square): 6.02 dB for each bit. Rounding and an entropy coder stay 1.53 dB away from that at
# best. The **trellis** has levels twice as fine, of which each symbol allows every other one, and takes the best path
# through a row: 0.9 dB better. The bytes beside symbols cost the rest: scales are 16 bits a row, and rows are short
# here.

# %%
print("bits   error: plain  trellis   bound      dB from the bound: plain  trellis")
for bits in (4, 3, 2):
    error = {}
    for trellis in (False, True):
        data, _ = wcodec.compress_to_bytes({name: matrix}, bits=bits, trellis=trellis)
        entry = wcodec.open(data)[name]
        error[trellis] = entry.error  # of all weights, relative to their root mean square
        difference = entry.torch(torch.float32) - matrix
        measured = float(difference.norm() / matrix.norm())
        assert abs(measured / entry.error - 1) < 0.01
    bound = 2.0**-bits
    decibels = {trellis: 20 * math.log10(e / bound) for trellis, e in error.items()}
    print(
        f"{bits:4} {error[False]:14.4f} {error[True]:8.4f} {bound:7.4f} {decibels[False]:26.2f} {decibels[True]:8.2f}"
    )
    assert bound < error[True] < error[False]

# %% [markdown]
# ## Which matrices suffer
#
# An error does not matter equally everywhere. We quantize the model to 3 bits, and then put one decoded matrix at a
# time into the original: so the loss of this matrix alone is measured.
#
# `collect_statistics` foresees it, from some text that the model writes by itself, here 2,048 tokens. It finds for each
# matrix the **Fisher information**: how strongly predictions depend on its weights. Half of it, times the squared error,
# is about the divergence that the error causes.

# %%
statistics = wcodec.collect_statistics(baseline, windows=8, length=256)
print(statistics)

tokenizer = AutoTokenizer.from_pretrained(MODEL)
documents = Path(TEXT).read_text(encoding="utf-8").split("<|endoftext|>")[::9]
ids = tokenizer("<|endoftext|>".join(documents), verbose=False)["input_ids"]
window = torch.tensor([ids[:512], ids[2048:2560]][: 1 + GPU], device=DEVICE)


def predictions(model: torch.nn.Module) -> torch.Tensor:
    """Logarithms of probabilities of the next token."""
    with torch.inference_mode():
        return model(window).logits.float().log_softmax(-1)


p = predictions(baseline)
path = Path(folder.name, "three.wcodec")
wcodec.compress(MODEL, path, bits=3, progress=False)
alone, foreseen = {}, {}
with wcodec.open(path) as container:
    for key, unit in statistics.units.items():
        weight = baseline.get_parameter(key).data
        weight.copy_(container[key].torch(torch.float32))
        alone[key] = float((p.exp() * (p - predictions(baseline))).sum(-1).mean())
        weight.copy_(original[key])
        error = container[key].error
        foreseen[key] = error**2 * unit.sensitivity / (2 * statistics.tokens)

# %%
roles = list(dict.fromkeys(key.split(".")[-2] for key in alone))
fig, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
drawn = {"color": wcodec.COLORS["rate"], "linestyle": "", "markersize": 7, "alpha": 0.8}
for role, marker in zip(roles, "osD^v<>P*", strict=False):
    keys = [key for key in alone if key.split(".")[-2] == role]
    ax.plot([foreseen[k] for k in keys], [alone[k] for k in keys], marker, label=role, **drawn)
ax.axline((1e-3, 1e-3), (1e-2, 1e-2), ls=":", color=wcodec.COLORS["original"])
ax.set(xscale="log", yscale="log", xlabel="foreseen, nats per token", ylabel="measured")
ax.legend(frameon=False, fontsize="small")
plt.show()

# %%
order = sorted(alone, key=lambda key: -alone[key] / original[key].numel())
for key in (*order[:3], *order[-3:]):
    per = 1e6 * alone[key] / original[key].numel()
    print(f"{key:42} {alone[key]:.5f} nats, {per:.3f} for each million weights")

ratio = np.log([foreseen[key] / alone[key] for key in alone])
agreement = np.corrcoef(np.log(list(foreseen.values())), np.log(list(alone.values())))[0, 1]
print(
    f"correlation of the logarithms: {agreement:.2f}; off by a factor of {np.exp(ratio.std()):.2f}"
)
assert agreement > 0.8

# %% [markdown]
# ## What calibration adds
#
# Two things can be made of these statistics, at the same bits for the whole file:
#
# - **Steps** (`feedback=False`): matrices that matter more get smaller steps, so more bits, and others fewer.
# - **Error feedback** (the default): columns are rounded one after the other, and each makes up for the errors of those
#   before it, as far as their inputs go together. This is what takes time.
#
# All matrices are quantized here, embeddings too.

# %%
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).to(DEVICE).eval()


def damage(file: Path) -> wcodec.EvalReport:
    """The model with these weights beside the original."""
    weights = wcodec.load_file(file, "torch", dtype=torch.float32)
    model.load_state_dict(weights)
    return wcodec.evaluate(model, ids[: 16_384 if GPU else 2048], baseline=baseline, stride=512)


WAYS = {
    "weights alone": {"bits": 3},
    "weights alone, 1/4 bit more": {"bits": 3.25},
    "steps": {"bits": 3, "calibrate": statistics, "feedback": False},
    "steps and error feedback": {"bits": 3, "calibrate": statistics},
}
plain = {"trellis": GPU, "progress": False, "overwrite": True}  # a CPU would take twice the time
kl = {}
for way, options in WAYS.items():
    written = wcodec.compress(MODEL, path, **options, **plain)
    found = damage(path)
    kl[way] = found.kl_mean
    print(
        f"{way:28} {written.rate.bits_per_weight:.3f} bits   KL {found.kl_mean:.4f}   "
        f"perplexity {found.perplexity:.3f}   same top token {found.top1_agreement:.1%}"
    )

assert kl["steps and error feedback"] < kl["steps"] < kl["weights alone"]
per_bit = 4 * math.log(kl["weights alone"] / kl["weights alone, 1/4 bit more"])
worth = math.log(kl["weights alone"] / kl["steps and error feedback"]) / per_bit
print(f"calibration is worth {worth:.2f} bits of 3 here")

# %% [markdown]
# The bits went here: the last of these files, each matrix, beside the 3 bits of all.

# %%
ax = written.plot.heatmap("bits")
with wcodec.open(path) as container:
    bits = [container[key].bits_per_weight for key in alone]
assert max(bits) - min(bits) > 0.5

# %% [markdown]
# ## A budget
#
# Mostly it is not bits that are given, but room. `budget` takes the bytes of the whole file (or `"4.2 bits"`), and
# chooses. With a text, candidates are measured on it, and the best is taken; `quality="kl<=0.05"` asks the other way
# round. The plan is in the report, and in the file.

# %%
path = Path(folder.name, "budget.wcodec")
original_bytes = sum(file.stat().st_size for file in Path(MODEL).glob("*.safetensors"))
budget = original_bytes // 5
text = ids[: 16_384 if GPU else 1024]
written = wcodec.compress(MODEL, path, budget=budget, text=text, device=DEVICE, progress=False)
print(f"{path.stat().st_size:,} of {budget:,} bytes, {original_bytes:,} before")
assert 0.98 * budget < path.stat().st_size <= budget
written.plan

# %% [markdown]
# `measured roles` are steps by the last column, "KL alone": what tensors of one kind do to the model, measured, not
# foreseen. They are for those who have a text and no calibration; `calibrate=` adds the recipes of the section above to
# the candidates.

# %%
ax = written.plan.plot.bits()
best = min(written.plan.candidates, key=lambda candidate: candidate.kl)
assert best.taken and len(written.plan.candidates) > 1

with wcodec.open(path) as container:
    stored = json.loads(container.metadata["wcodec.plan"])
assert stored["recipe"] == written.plan.recipe.name

# %% [markdown]
# And what does a model write that has a fifth of its bytes? Such a file decodes, loads and runs as any other.

# %%
prompt = "The function returns"
found = damage(path)
print(
    f"KL {found.kl_mean:.4f}, perplexity {found.baseline_perplexity:.3f} -> {found.perplexity:.3f}"
)
for what, which in (("original", baseline), ("a fifth", model)):
    print(
        f"--- {what}\n{prompt}{wcodec.generate(which, prompt, tokenizer, max_new_tokens=40).text}"
    )
assert math.isfinite(found.perplexity) and 0 < found.kl_mean < 1

# %% [markdown]
# ## What you saw
#
# - Any number of bits is met to half a percent, and at 4 bits the damage is well below that of NF4 and INT4, which take
#   more.
# - Each bit less doubles the error of the weights, and multiplies the divergence by four or more.
# - Errors matter where the Fisher information says so. Calibration puts bits there, and needs no text of yours.
# - A budget in bytes is met from below, and the best of what was measured is taken.
#
# This model is small, and its rows are short. The same picture for yours: `WCODEC_MODEL=path WCODEC_TEXT=path`, or
# `wcodec frontier MODEL --text FILE --plot frontier.png` at a terminal. More on the choices: [schemes and
# coders](../docs/schemes-and-coders.md); all options: [the command line](../docs/command-line.md).
