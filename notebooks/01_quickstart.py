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
# # 1. Quickstart
#
# A chat model answers three questions: as it was published in bfloat16, and compressed to 4 and to 3 bits per weight.
# The model is SmolLM2-135M-Instruct. The environment variable `WCODEC_MODEL`, the folder of another Hugging Face
# checkpoint, shows yours.

# %%
import wcodec

from common import DEVICE, OUT, TEXT, Answers, load, real_model

MODEL = real_model()  # the folder of a checkpoint
models = {"original": load(MODEL)}
for bits in (4, 3):
    options = {"bits": bits, "calibrate": "columns", "optimize": "size"}
    models[f"{bits} bits"] = wcodec.load_model(MODEL, DEVICE, **options)
answers = Answers(models, MODEL)
answers

# %% [markdown]
# Each compressed model took one call. `calibrate="columns"` measures the inputs of each layer in one pass over texts of
# many kinds that wcodec has, and gives columns with large inputs finer steps. `optimize="size"` takes more time for better
# quality at the same size. On two CPU cores a call takes about 20 seconds. (The default, `"speed"`, has faster products on a
# GPU.) So small a model has little to spare: at 3 bits its answers suffer.
#
# The texts are *greedy*: always the most likely token. At a close call between two tokens the smallest change decides,
# and what follows is another text. So other words do not mean a worse answer. How far have the predictions moved? The
# **KL divergence** measures the distance between two predictions, in nats per token: zero means that they are the same.
# **Perplexity** is the exponential of the mean loss per token: lower is better.

# %%
qualities = {}
for name in ("4 bits", "3 bits"):
    options = {"baseline": models["original"], "tokenizer": MODEL, "max_tokens": 512}
    qualities[name] = found = wcodec.evaluate(models[name], TEXT, **options)
    print(f"{name}: perplexity {found.baseline_perplexity:.1f} -> {found.perplexity:.1f}, ", end="")
    print(f"KL {found.kl_mean:.3f}, the same most likely token at {found.top1_agreement:.0%}")

# %% [markdown]
# The rest of this notebook makes a file, looks inside, proves that it is right, and runs it.
#
# ## Two steps
#
# wcodec does two things with a weight matrix:
#
# 1. A **scheme** quantizes the weights: it turns them into small integers, the **symbols**, and a **scale** for each row.
#    This step loses precision. Scheme `rate` (`bits=4`) takes any number of bits. Scheme `int8`, the default, loses next
#    to nothing. Scheme `lossless` loses nothing at all.
# 2. A **coder** stores frequent symbols in few bits and rare ones in many. This step loses nothing. A symbol that occurs
#    with probability *p* takes about $-\log_2 p$ bits. The average over all symbols is their **entropy**.
#
# ## Compress into a file
#
# The report says what became of every tensor. **Ratio** is original bytes / stored bytes and **bits/weight** is 8 x stored
# bytes / weights. Both count everything in the file: symbols, scales, the coder's tables, and the index.

# %%
file = OUT / "model.wcodec"
report = wcodec.compress(MODEL, file, progress=False)
print(f"{report.original_bytes:,} -> {report.stored_bytes:,} bytes")
print(f"ratio {report.ratio:.3f}, {report.bits_per_weight:.2f} bits/weight")

# %% [markdown]
# ## Look inside
#
# A `.wcodec` file is a **container**. Opening it reads a header and the index, whatever the file's size. The open
# container is a mapping from names to tensors that have not been decoded yet. The picture shows the ratio of some
# tensors. Ticks show where it would be if symbols took their entropy and nothing else were stored. Plain int8 has ratio 2.

# %%
container = wcodec.open(file)
ax = container.plot.ratio(top=8)

# %% [markdown]
# An entry knows what its tensor costs. Its data are decoded when you ask for them: the symbols, the scales, or the
# weights, which are symbols times scales.

# %%
entry = max((e for e in container.stored if e.scheme == "int8"), key=lambda e: e.ratio)
symbols, scales, weights = entry.symbols(), entry.scales(), entry.numpy("float32")
print("symbols", symbols.dtype, symbols.shape, "from", symbols.min(), "to", symbols.max())
print("scales ", scales.dtype, scales.shape)
entry

# %% [markdown]
# ## Prove it
#
# `verify` decodes everything and compares every hash that the file has. With `against` it also quantizes the original
# again and compares symbols and scales with the decoded ones, bit for bit.

# %%
verdict = wcodec.verify(file, against=MODEL, progress=False)
verdict.ok

# %% [markdown]
# ## Load the tensors
#
# `load_file` is what safetensors' function of that name is: a dictionary of all tensors, as NumPy arrays or torch
# tensors. `device="cuda"` decodes on a GPU, to the same bits.

# %%
state = wcodec.load_file(file, framework="torch", device=DEVICE)
tensor = state[entry.name]
tensor.shape, tensor.dtype, tensor.device

# %% [markdown]
# ## A model that is loaded already
#
# `compress_` replaces the layers of a model, in place. Their weights stay entropy-coded in memory. On a GPU they are
# decoded when they are needed, and products of a few tokens are computed straight from the compressed bytes. On a CPU
# decoded weights are kept where memory allows (`cache=0` keeps none).

# %%
model = load(MODEL)
replaced = wcodec.compress_(model, progress=False)
ax = replaced.plot.memory()

# %% [markdown]
# ## Keep it
#
# `save_pretrained` writes a folder: all weights in one `.wcodec` file, the configuration, the tokenizer, and a card for the
# Hub. `load_model` builds the model from it, and never uncompresses it as a whole. It computes the same logits, bit for
# bit. So does `AutoModelForCausalLM.from_pretrained`.

# %%
wcodec.save_pretrained(models["4 bits"], OUT / "four")
loaded = wcodec.load_model(OUT / "four", DEVICE)
{path.name: path.stat().st_size for path in sorted((OUT / "four").iterdir())}

# %% [markdown]
# ## What you saw
#
# - `wcodec.load_model` runs a model at any number of bits, and `wcodec.save_pretrained` keeps it.
# - `wcodec.compress`, `wcodec.open` and `wcodec.verify` make, show and prove a file. `wcodec.load_file` gives its tensors.
# - Quantization changes the weights a little. Entropy coding does not change them at all.
#
# At a terminal it is `wcodec encode MODEL -o four/ --bits 4`, `wcodec verify four/` and `wcodec chat four/`.
#
# Next:
#
# - [What is inside the file, and why it cannot be much smaller](02_inside_a_container.ipynb)
# - [Replacing the layers of a model](03_replacing_layers.ipynb)
# - [Fewer bits, calibration and budgets](08_rates.ipynb)
# - [Schemes and coders: which to choose](../docs/schemes-and-coders.md)
#
# The last cell checks what the text says.

# %%
import numpy as np
import torch

sizes = answers.megabytes
assert sizes["4 bits"] < sizes["original"] / 3.5 and sizes["3 bits"] < sizes["4 bits"]
assert 0 < qualities["4 bits"].kl_mean < qualities["3 bits"].kl_mean < 1
assert (
    report.stored_bytes == file.stat().st_size < report.original_bytes / 1.9
)  # nothing is left out
assert np.array_equal(weights, symbols * scales) and abs(symbols.astype(int)).max() <= 127
assert verdict.ok and all(tensor.status == "ok" for tensor in verdict.tensors)
assert list(state) == list(container)
assert torch.equal(tensor.cpu(), torch.from_numpy(weights).to(tensor.dtype))  # rounded once
assert replaced.bytes_after < replaced.bytes_before / 1.9
ids = torch.arange(1, 33, device=DEVICE)[None]
with torch.inference_mode():
    assert torch.equal(loaded(ids).logits, models["4 bits"](ids).logits)
