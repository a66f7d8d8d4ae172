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
# # 5. Quality: what compression changes in a model's predictions
#
# A compressed model predicts slightly differently. The figures for `int8`, 4 and 3 bits per weight are the divergence
# of its predictions from those of the original.

# %%
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

MODEL = os.environ.get("WCODEC_MODEL", "../tests/data/doc-llama-3m")  # the folder of a causal LM
TEXT = os.environ.get("WCODEC_TEXT", "../tests/data/doc-llama-3m/heldout.txt")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TOKENS = 16_384 if GPU else 2_048
folder = tempfile.TemporaryDirectory()  # all output goes here
logging.disable_progress_bar()
if Path(MODEL).name == "doc-llama-3m":
    torch.set_num_threads(1)  # so small a model leaves a second thread nothing but waiting


def load(dtype: torch.dtype | str = torch.float32) -> torch.nn.Module:
    """The original model, computing in that dtype."""
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).to(DEVICE).eval()


baseline, first = load(), {}
for name, bits in (("int8", None), ("rate, 4 bits", 4), ("rate, 3 bits", 3)):
    quick = load()
    wcodec.compress_(quick, bits=bits, progress=False)
    first[name] = wcodec.evaluate(quick, TEXT, baseline=baseline, max_tokens=1024).kl_mean

fig, ax = plt.subplots(figsize=(7, 1.8), layout="constrained")
bars = ax.barh(list(first), first.values(), color=[wcodec.COLORS[name[:4]] for name in first])
ax.bar_label(bars, fmt="%.4f", padding=4)
ax.invert_yaxis()
ax.margins(x=0.12)
ax.set_xlabel("KL(original || compressed), nats per token")
plt.show()
assert first["int8"] < first["rate, 4 bits"] < first["rate, 3 bits"]

# %% [markdown]
# (Nats per token: explained below. 0.01 is 1 % less likely text.) This notebook measures where that comes from, and what
# each bit per weight buys:
#
# - Perplexity, Kullback-Leibler divergence and top-1 agreement, and what each of them can and cannot see.
# - Scales per row, per tensor and per block, beside plain 8-, 6- and 4-bit quantization, in one picture: quality per
#   bit. Scheme `rate` at 4 and 3 bits.
# - The precision of the key/value cache, and the text that the models write.
#
# It takes about half a minute on two CPU cores. On a GPU the models run there, more text is used, and the GPU's
# decoding is compared with the CPU's.
#
# ## Models and text
#
# The model of this repository is a small Llama (3.15 million parameters, bf16), trained on software documentation.
# The text is from `heldout.txt`, documents that it was not trained on; we take every ninth document, so that many
# kinds of text are in it.
#
# Both models compute in float32. Their weights are the same bf16 numbers as in the file, but sums and products round
# so finely that what we measure comes from the weights alone. The **baseline** keeps its weights; `model` gets others
# below.

# %%
original = load("auto").state_dict()  # the weights as they are stored
model = load()

tokenizer = AutoTokenizer.from_pretrained(MODEL)
documents = Path(TEXT).read_text(encoding="utf-8").split("<|endoftext|>")[::9]
ids = tokenizer("<|endoftext|>".join(documents), verbose=False)["input_ids"][:TOKENS]
print(
    f"{sum(w.numel() for w in original.values()):,} weights; {len(ids):,} tokens of {len(documents)} documents"
)

# %% [markdown]
# ## Compress, decode, compare
#
# `save_file` quantizes each matrix to int8 **symbols** with one float32 **scale** per row (the default), codes the
# symbols with a coder, here `rans`, and writes a **container**, a `.wcodec` file. `load_file` gives the weights back,
# which are symbols times scales. **bits/weight** is 8 x stored bytes / weights, with everything counted: scales,
# tables, index.

# %%
path = Path(folder.name, "model.wcodec")
written = wcodec.save_file(original, path)
model.load_state_dict(wcodec.load_file(path, "torch", dtype=torch.float32))
written


# %% [markdown]
# `evaluate` runs both models over the same text and compares what they predict at every token.


# %%
def measure(other: torch.nn.Module) -> wcodec.EvalReport:
    """The model's predictions on the text, against the baseline's."""
    return wcodec.evaluate(other, ids, baseline=baseline, stride=512)


per_row = measure(model)
per_row

# %% [markdown]
# - **Perplexity** is `exp(mean of -log p(next token))`: a perplexity of 10 means that the model is on average as
#   unsure as if it chose among 10 equally likely tokens.
# - **KL divergence**, `KL(baseline || model) = sum of p * (log p - log q)` over the whole vocabulary. `p` is the
#   baseline's prediction and `q` the model's. It is zero only if both predictions are the same.
# - **Same top token** (top-1 agreement) is how often both find the same token most likely.
#
# The logarithm is the natural one, so the unit is the **nat** (1 nat = 1.44 bits). 0.002 nats per token mean this: if
# the baseline wrote a text, the other model would find it `exp(0.002)` times, or 0.2 %, less likely for each of its
# tokens. Over 500 tokens that makes a factor of e. Or, as this package is about coding: an ideal coder that trusts the
# compressed model to predict the baseline's text needs 0.003 bits more for each token.
#
# None of this is hidden. Here is the first window of 512 tokens by hand, and it agrees with the report:

# %%
window = torch.tensor([ids[:512]], device=DEVICE)


def predictions(of: torch.nn.Module) -> torch.Tensor:
    """Logarithms of probabilities, [512, vocabulary]."""
    with torch.inference_mode():
        return of(window).logits[0].float().log_softmax(-1)


p, q = predictions(baseline), predictions(model)
by_hand = (p.exp() * (p - q)).sum(-1).cpu().numpy()
print(f"mean over these 512 tokens: {by_hand.mean():.6f} nats")

assert np.allclose(by_hand, per_row.token_kl[:512], rtol=1e-2, atol=1e-5)
# A divergence is never negative; that of a model from itself is zero. (Float32 sums may miss zero by a rounding error.)
assert per_row.kl_mean > 0 and per_row.token_kl.min() > -1e-5
itself = measure(baseline)
assert itself.kl_max == 0

# %% [markdown]
# The mean hides how uneven the tokens are. On the left, all of them, on a logarithmic axis. On the right, the one of
# the first 512 where the predictions are furthest apart: its most likely next tokens, in both models.

# %%
at = int(by_hand.argmax())
top = p[at].topk(8).indices.tolist()
names = [repr(tokenizer.decode([token]))[1:-1] for token in top]

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
per_row.plot.kl(ax=left, what="int8").set_title("int8 per row: KL of every token")
for offset, logs, label in ((-0.2, p, "original"), (0.2, q, "int8")):
    places, values = np.arange(8) + offset, logs[at, top].exp().cpu()
    right.bar(places, values, 0.4, label=label, color=wcodec.COLORS[label])
right.set_xticks(range(8), names, rotation=45, ha="right")
right.set(title=f"Token {at + 1}: KL {by_hand[at]:.4f} nats", ylabel="probability of the next")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What does not change anything: coders, and staying compressed
#
# Entropy coding is lossless. Quality is decided when weights become symbols; the **coder** (`rans`, `huffman`,
# `zstd`, `raw`) decides only how many bytes symbols take. So all coders give the same logits, bit for bit. So does a
# model whose layers stay compressed in memory and are decoded when they are called (`compress_`), and so do these
# layers once they are ordinary ones again (`decompress_`).

# %%
with torch.inference_mode():
    logits = model(window).logits
    for coder in ("rans", "huffman", "zstd", "raw"):
        bits = wcodec.save_file(original, path, coder=coder).bits_per_weight
        model.load_state_dict(wcodec.load_file(path, "torch", dtype=torch.float32))
        assert torch.equal(model(window).logits, logits)
        print(f"{coder:8} {bits:.3f} bits/weight, same logits")

    compressed = load()
    wcodec.compress_(compressed, progress=False)
    assert torch.equal(compressed(window).logits, logits)
    unpacked = load()
    wcodec.compress_(unpacked, coder="huffman", progress=False)
    wcodec.decompress_(unpacked)
    assert torch.equal(unpacked(window).logits, logits)

# %% [markdown]
# ## Scales per tensor, row and block
#
# A scale is the largest weight of its group over 127, so the rounding step follows the largest weight. Small groups
# have finer steps and cost more: a float32 scale for each block of 16 weights is 2 bits/weight by itself, and symbols
# that fill their range well leave the coder less to remove. One scale for a whole matrix costs nothing, rounds most
# weights coarsely, and leaves symbols that are mostly small, which code well.
#
# For each choice we also write the same symbols with coder `raw`, to see what coding saves.

# %%
CHOICES = {
    "int8 per tensor": {"scale": "tensor"},
    "int8 per row": {"scale": "row"},
    **{f"int8 blocks of {size}": {"scale": "block", "block": size} for size in (128, 64, 32, 16)},
}
coded, uncoded, reports, states = {}, {}, {}, {}
for name, options in CHOICES.items():
    uncoded[name] = wcodec.save_file(original, path, coder="raw", **options).bits_per_weight
    coded[name] = wcodec.save_file(original, path, **options).bits_per_weight
    states[name] = wcodec.load_file(path, "torch", dtype=torch.float32)
    model.load_state_dict(states[name])
    reports[name] = measure(model)


def error_of_mean(values: np.ndarray) -> float:
    """Standard error of a mean over tokens, as if these were independent."""
    return float(values.std() / math.sqrt(len(values)))


def table(bits: dict[str, float]) -> None:
    """Bits/weight and quality of each choice."""
    print(f"{'':20} bits/weight   KL, nats/token          99 %      same top token   perplexity")
    for name, value in bits.items():
        r = reports[name]
        kl = f"{r.kl_mean:.6f} +- {error_of_mean(r.token_kl):.6f}"
        print(
            f"{name:20} {value:11.3f}   {kl}  {r.kl_p99:8.5f}  {r.top1_agreement:14.2%}   {r.perplexity:.4f}"
        )


table(coded)
print(
    f"{'original, 16 bits':20} {16:11.3f}   {0:.6f} {'':24} {1:19.2%}   {per_row.baseline_perplexity:.4f}"
)

# %% [markdown]
# Every choice of blocks is closer to the original than one scale per tensor, and every choice takes fewer bits coded
# than not. The numbers behind `+-` are standard errors of the mean: differences well above them are real, on text
# like this.

# %%
for name in CHOICES:
    assert 0 < reports[name].kl_mean <= reports["int8 per tensor"].kl_mean
    assert coded[name] < uncoded[name]
assert reports["int8 blocks of 16"].kl_mean < reports["int8 per row"].kl_mean

# %% [markdown]
# Look at the last column: perplexities differ by a fraction of a percent. Perplexity looks at one token of the
# vocabulary, the one that came next. Rounding makes it likelier almost as often as less likely, so the mean of all
# these ups and downs is uncertain. KL looks at the whole prediction, and nothing in it cancels. That is why it tells
# such small changes apart on little text, and why this notebook's pictures show KL. For one scale per tensor:

# %%
coarse = reports["int8 per tensor"]
change = coarse.token_loss - itself.token_loss
for what, values in (("-log p(next token)", change), ("KL", coarse.token_kl)):
    mean, error = values.mean(dtype=np.float64), error_of_mean(values)
    print(
        f"{what:18} {mean:+.6f} +- {error:.6f} nats: {abs(mean) / error:.0f} standard errors from zero"
    )
print(f"the next token became likelier at {(change < 0).mean():.0%} of the tokens")
assert coarse.kl_mean / error_of_mean(coarse.token_kl) > abs(change.mean()) / error_of_mean(change)

# %% [markdown]
# ## Beside plain quantization
#
# Four peers, each a few lines of torch. They are **reference implementations for comparison**: round to nearest, the
# same matrices as above, no calibration, no coder, sizes by formula. Libraries that choose roundings by calibration
# data (GPTQ, AWQ) do better at 4 bits than these.
#
# - **INT8, INT6 and INT4 in groups of 64**: symmetric, one float16 scale per group, so 16/64 = 0.25 bits on top.
# - **NF4 in groups of 64**: the 16 levels of QLoRA's NormalFloat, one float16 scale per group.

# %%
NF4 = torch.tensor(
    [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0]
    + [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
)


def integers(weight: torch.Tensor, bits: int, group: int = 64) -> torch.Tensor:
    """Rounded to whole multiples of a step for each group, from -2^(bits-1) + 1 to 2^(bits-1) - 1."""
    groups = weight.float().reshape(-1, group)
    step = (
        (groups.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)).half().float().clamp_min(1e-7)
    )
    return ((groups / step).round().clamp(1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1) * step).reshape(
        weight.shape
    )


def normal_float(weight: torch.Tensor, group: int = 64) -> torch.Tensor:
    """Rounded to the nearest of 16 levels, times the largest weight of each group."""
    groups, levels = weight.float().reshape(-1, group), NF4.to(weight.device)
    most = groups.abs().amax(1, keepdim=True).half().float().clamp_min(1e-7)
    nearest = torch.bucketize(groups / most, (levels[1:] + levels[:-1]) / 2)
    return (levels[nearest] * most).reshape(weight.shape)


PEERS = {
    "INT8 groups of 64": (8, lambda w: integers(w, 8)),
    "INT6 groups of 64": (6, lambda w: integers(w, 6)),
    "INT4 groups of 64": (4, lambda w: integers(w, 4)),
    "NF4 groups of 64": (4, normal_float),
}
matrices = sum(t.elements for t in written.tensors if t.scheme == "int8")
others = written.elements - matrices  # norms, which stay in 16 bits
peers = {}
for name, (bits, quantize) in PEERS.items():
    model.load_state_dict(
        {key: quantize(w) if w.ndim == 2 else w.float() for key, w in original.items()}
    )
    peers[name] = (matrices * (bits + 16 / 64) + others * 16) / written.elements
    reports[name] = measure(model)
table(peers)

# %% [markdown]
# Two checks that the comparison is fair. The peers quantize the same matrices as wcodec. And wcodec's symbols hold no
# secret: `scale="tensor"` is plain rounding to nearest, and gives the same weights as one line of torch, bit for bit.

# %%
quantized = {t.name for t in written.tensors if t.scheme == "int8"} | set(written.aliases)
assert quantized == {key for key, w in original.items() if w.ndim == 2}

for key in quantized:
    weight = original[key].float().cpu()
    step = weight.abs().max() / 127
    assert torch.equal((weight / step).round() * step, states["int8 per tensor"][key])

# %% [markdown]
# One more figure for scale. A model usually computes in bf16, not in float32. That alone moves the predictions, with
# the original weights, by this much:

# %%
arithmetic = measure(load(torch.bfloat16))
print(f"original weights, computing in bf16: KL {arithmetic.kl_mean:.6f} nats/token")
assert arithmetic.kl_mean > 0

# %% [markdown]
# ### Quality per bit
#
# Lower left is better. Hollow circles are int8 symbols as they are, filled ones the same symbols coded: what the coder
# saves is a step to the left, and not upward, because coding costs no quality. The original has 16 bits and KL 0, which a
# logarithmic axis cannot show; the dotted line is what computing in bf16 does to it.

# %%
fig, ax = plt.subplots(figsize=(9, 5), layout="constrained")
for bits, what, full in ((uncoded, "int8", False), (coded, "int8", True), (peers, "others", True)):
    color, kls = wcodec.COLORS[what], [reports[name].kl_mean for name in bits]
    ax.plot(bits.values(), kls, "o", color=color, mfc=color if full else "none")
    for name, *place in zip(bits if full else (), bits.values(), kls, strict=False):
        shift, angle = ((4, 4), 35) if what == "int8" else ((-34, -12), 0)
        label = name.split(" groups")[0].removeprefix("int8 ")
        ax.annotate(label, place, shift, textcoords="offset points", rotation=angle)
ax.axhline(arithmetic.kl_mean, color=wcodec.COLORS["original"], ls=":")
ax.set(yscale="log", xlabel="bits/weight, everything counted", ylabel="KL, nats/token")
ax.margins(0.12)
plt.show()

# %% [markdown]
# The picture says this about the model:
#
# - One scale per tensor, coded, is the point to look at: below 7 bits per weight it has a fraction of INT6's
#   divergence for half a bit more. A coder makes small symbols cheap, so fine steps cost less than a fixed width
#   suggests.
# - Per row and per block, the scales fill the range of int8 so well that little is left to code: rows of this model
#   have 192 or 512 weights. Longer rows with heavy tails take about 6.5 bits (see [notebook
#   06](06_decode_speed.ipynb)).
# - 4-bit formats are much smaller and much further from the original. If 4 bits are what you can afford, scheme
#   `int8` is not for you: it keeps 8-bit quality and removes redundancy. The next section has a scheme that is.

# %%
tensor = reports["int8 per tensor"].kl_mean
assert coded["int8 per tensor"] < peers["INT8 groups of 64"]
assert all(tensor < reports[name].kl_mean for name in PEERS if name[:4] in ("INT6", "INT4", "NF4 "))

# %% [markdown]
# ### At 4 and 3 bits: scheme `rate`
#
# With few bits, coding changes which symbols are good. A fixed width of 4 bits has 16 levels, and places them so that
# none is wasted. With a coder there can be any number of levels, because rare ones cost little on average. So scheme
# `rate` has uniform levels, a step that follows the row's root mean square and not its largest weight, and meets any
# number of bits: `bits=4`. The matrices and the measurement are those above; bits count everything, norms and index
# too.

# %%
rates = {}
for bits in (4, 3.5, 3):
    name = f"rate, bits={bits:g}"
    rates[name] = wcodec.save_file(original, path, bits=bits).bits_per_weight
    states[name] = wcodec.load_file(path, "torch", dtype=torch.float32)
    model.load_state_dict(states[name])
    reports[name] = measure(model)
table(rates | {name: peers[name] for name in PEERS if name[:4] in ("INT4", "NF4 ")})

four = reports["rate, bits=4"].kl_mean
assert rates["rate, bits=4"] < min(peers.values())
assert all(four < reports[name].kl_mean for name in PEERS if name[:4] in ("INT4", "NF4 "))
assert four < reports["rate, bits=3.5"].kl_mean < reports["rate, bits=3"].kl_mean

# %% [markdown]
# With fewer bits than either of them, `rate` is much closer to the original than NF4 and INT4 in groups of 64. At 3
# bits the loss is plain to see. [Notebook 08](08_rates.ipynb) shows calibration on the model itself, and bits where
# they matter.

# %% [markdown]
# Here are the distributions. The axes are shared: from top to bottom, the whole cloud of tokens moves to the right,
# and the largest value with it.

# %%
shown = ("int8 blocks of 16", "int8 per row", "int8 per tensor", "NF4 groups of 64")
fig, axes = plt.subplots(len(shown), 1, figsize=(8, 8), sharex=True, layout="constrained")
for name, ax in zip(shown, axes, strict=True):
    what = "int8" if name in CHOICES else "others"
    reports[name].plot.kl(ax=ax, what=what).set_title(name, loc="left", fontsize=10)
    ax.set_xlim(1e-6, 10)
    if ax is not axes[-1]:
        ax.set_xlabel("")
fig.suptitle("KL of every token")
plt.show()

medians = [np.median(reports[name].token_kl) for name in shown]
assert medians == sorted(medians)

# %% [markdown]
# ## The key/value cache
#
# While a model generates, it keeps keys and values of all tokens so far. Their precision is a choice of its own,
# apart from the weights'. `compare_kv_cache` continues a prompt with a float32 cache, and feeds the same tokens to
# caches of other dtypes. Our compressed model computes in float32, so a 16-bit cache rounds what it keeps:

# %%
prompt = "The function returns"
caches = wcodec.compare_kv_cache(compressed, prompt, tokens=96, tokenizer=tokenizer)
caches

# %%
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
caches.plot.kl(ax=ax).set_title("A model that computes in float32, by the dtype of its cache")
ax.set_ylim(1e-9, 1e-2)  # what is below comes from rounding in the softmax, or is exactly zero
ax.legend(frameon=False, ncols=3, loc="upper left")
plt.show()

by_dtype = {result.dtype: result for result in caches.results}
assert by_dtype["float32"].identical
assert by_dtype["float32"].cache_bytes == 2 * by_dtype["float16"].cache_bytes
# float16 has 10 bits of mantissa, bfloat16 has 7.
assert by_dtype["float16"].kl_mean < by_dtype["bfloat16"].kl_mean < reports["int8 per row"].kl_mean

# %% [markdown]
# Even bfloat16 changes less here than rounding the weights to int8 does. A model that *computes* in bf16 has rounded
# keys and values before any cache sees them: keeping those in float32 takes twice the memory and changes no logit
# (`attention="model"` leaves attention in the model's dtype, so that storage alone is compared).

# %%
half = load(torch.bfloat16)
wcodec.compress_(half, progress=False)
storage = wcodec.compare_kv_cache(
    half, prompt, tokens=32, dtypes=("float32", "bfloat16"), tokenizer=tokenizer, attention="model"
)
print(storage.table())
assert all(result.identical for result in storage.results)

# %% [markdown]
# To use a cache of a chosen dtype yourself, open one with `with_kv_cache` and hand it to the model:

# %%
inputs = tokenizer(prompt, return_tensors="pt").to(DEVICE)
greedy = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
with wcodec.with_kv_cache(compressed, "float16") as cache:
    output = compressed.generate(**inputs, past_key_values=cache, **greedy)
print(tokenizer.decode(output[0]))

# %% [markdown]
# ## The text itself
#
# Greedy continuations of one prompt, which always take the most likely token. Where two of them are about equally
# likely, the smallest change decides, and everything after it is another text. So texts show what a difference looks
# like, and say little about how large it is: the order of "first tokens as the original" need not be the order of KL.


# %%
def text_of(weights: dict[str, torch.Tensor]) -> wcodec.Generation:
    """What the model writes with these weights."""
    model.load_state_dict(weights)
    return wcodec.generate(model, prompt, tokenizer, max_new_tokens=40)


nf4 = {key: normal_float(w) if w.ndim == 2 else w.float() for key, w in original.items()}
texts = {"original": wcodec.generate(baseline, prompt, tokenizer, max_new_tokens=40)}
texts |= {name: text_of(states[name]) for name in ("int8 per row", "int8 per tensor")}
texts["NF4 groups of 64"] = text_of(nf4)

for name, found in texts.items():
    equal = [a == b for a, b in zip(found.tokens, texts["original"].tokens, strict=False)]
    print(
        f"--- {name}: first {int(np.cumprod(equal).sum())} tokens as the original\n{prompt}{found.text}\n"
    )

# %% [markdown]
# The model with compressed layers writes what the model with the decoded weights writes: their logits are the same.

# %%
assert (
    wcodec.generate(compressed, prompt, tokenizer, max_new_tokens=40).tokens
    == texts["int8 per row"].tokens
)

# %% [markdown]
# ## On a GPU
#
# The GPU decodes the same weights as the CPU, bit for bit, so quality is measured once for both. Products round in
# another order there, so figures differ in their last digits.

# %%
if GPU:
    wcodec.save_file(original, path)
    on_cpu = wcodec.load_file(path, "torch", dtype=torch.float32)
    on_gpu = wcodec.load_file(path, dtype=torch.float32, device="cuda")
    assert all(torch.equal(on_gpu[key].cpu(), on_cpu[key]) for key in on_cpu)
    print(f"{len(on_cpu)} tensors decoded by the {torch.cuda.get_device_name()} equal the CPU's")
    layers = measure(half)
    print(
        f"compressed layers, computing in bf16: KL {layers.kl_mean:.6f}; original weights: {arithmetic.kl_mean:.6f}"
    )
else:
    print(
        "A GPU would show here that it decodes the same weights, and the quality of compressed layers in bf16."
    )

# %% [markdown]
# ## What you saw
#
# - KL divergence sees what perplexity cannot: differences of a thousandth of a nat, on a few thousand tokens.
# - Coders, layouts and compressed layers change no bit of any logit. Scales do: choose them by the picture above, for
#   your model (`WCODEC_MODEL=path WCODEC_TEXT=path` runs this notebook on it).
# - Scheme `rate` has less damage at 4 bits than formats of a fixed width that take more.
# - A key/value cache of float32 helps only a model that computes in float32.
#
# Next: [06_decode_speed](06_decode_speed.ipynb), how fast weights are decoded; [08_rates](08_rates.ipynb), fewer bits.
# More on the choices: [schemes and coders](../docs/schemes-and-coders.md). The same measurement at a terminal: `wcodec
# eval --help`.
