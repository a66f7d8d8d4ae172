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
# A language model in a quarter of its memory, in one call; and it still writes. The model is the small one in this
# repository: Llama architecture, 3.15 million parameters in bf16. Set the environment variable `WCODEC_MODEL` to the
# folder of another Hugging Face checkpoint to see yours.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import wcodec
from transformers import AutoModelForCausalLM
from transformers.utils import logging

MODEL = os.environ.get("WCODEC_MODEL", "../tests/data/doc-llama-3m")  # the folder of a checkpoint
HELDOUT = "../tests/data/doc-llama-3m/heldout.txt"  # text that the small model was not trained on
GPU = torch.cuda.is_available()
folder = tempfile.TemporaryDirectory()  # all output goes here and is removed at the end
file = Path(folder.name, "model.wcodec")
logging.disable_progress_bar()
if Path(MODEL).name == "doc-llama-3m":
    torch.set_num_threads(1)  # so small a model leaves a second thread nothing but waiting
device = "cuda" if GPU else "cpu"
prompt = "The function returns"

model = AutoModelForCausalLM.from_pretrained(MODEL).to(device).eval()
replaced = wcodec.compress_(model, bits=4, progress=False)  # 4 bits for each weight
ax = replaced.plot.memory()
print(prompt + wcodec.generate(model, prompt, tokenizer=MODEL, max_new_tokens=40).text)

assert replaced.bytes_after < replaced.bytes_before / 3.9

# %% [markdown]
# Four bits change what a model predicts a little ([notebook 8](08_rates.ipynb) shows how little). Here you will take
# the scheme that changes next to nothing, `int8`: compress the model into one `.wcodec` file, look inside, prove that the
# file is right, and run the model with layers that stay compressed in memory. It takes about five minutes to read and
# less than one to run on a CPU. On a GPU the same cells also decode there.

# %% [markdown]
# ## What entropy coding is
#
# A file format that gives every value the same number of bits wastes space where some values are more frequent than
# others. An **entropy coder** gives a value that occurs with probability *p* about $-\log_2 p$ bits: frequent values
# get short codes, rare ones long codes. The average, $H = -\sum p \log_2 p$ bits, is the **entropy** of the values.
# No lossless code that codes each value by itself, with the same probabilities, needs fewer bits on average. (This
# is the *order-0* entropy: a value is not predicted from the ones before it.)
#
# wcodec does two things with a weight matrix:
#
# 1. the **scheme** `int8` quantizes each row: `scale = max|w| / 127`, `symbol = round(w / scale)`. This step loses
#    precision, as 8-bit quantization does;
# 2. a **coder** (`rans` by default) stores the symbols with about as many bits as their entropy. This step loses
#    nothing.

# %% [markdown]
# ## Compress
#
# One call. The report says what became of every tensor: matrices are quantized and coded, everything else (here the
# weights of the norms) is stored as it is. **Ratio** is original bytes / stored bytes and **bits/weight** is 8 x stored
# bytes / weights. Both count everything in the file: symbols, scales, the coder's tables (which symbol has which code),
# and the index (where each tensor is).

# %%
report = wcodec.compress(MODEL, file, progress=False)
report

# %%
print(f"{report.original_bytes:,} -> {report.stored_bytes:,} bytes")
print(f"ratio {report.ratio:.3f}, {report.bits_per_weight:.2f} bits/weight")

assert report.stored_bytes == file.stat().st_size  # nothing is left out of the figures
assert report.stored_bytes < report.original_bytes / 1.9

# %% [markdown]
# ## Look inside
#
# A `.wcodec` file is a **container**. Opening it reads a header and the index, whatever the file's size. The open
# container is a mapping from names to tensors that have not been decoded yet.

# %%
container = wcodec.open(file)
container

# %% [markdown]
# An entry knows what its tensor costs. Its data are decoded when you ask for them: the symbols, the scales, or the
# weights, which are symbols times scales.

# %%
entry = max((e for e in container.stored if e.scheme == "int8"), key=lambda e: e.ratio)
entry

# %%
symbols, scales = entry.symbols(), entry.scales()
weights = entry.numpy(np.float32)
print("symbols", symbols.dtype, symbols.shape, "from", symbols.min(), "to", symbols.max())
print("scales ", scales.dtype, scales.shape)

assert np.array_equal(weights, symbols * scales)
assert np.abs(symbols.astype(int)).max() <= 127

# %% [markdown]
# The picture shows the ratio of each tensor. The ticks show where it would be if the symbols took their entropy and
# nothing else were stored: the distance to the tick is the cost of scales, tables and chunk offsets. (A **chunk** is a
# piece of a tensor that is decoded independently; its offset says where it begins.)
#
# A ratio of 2 would be plain int8. The rows of this small model are short (192 or 512 weights). In a short row the
# largest weight is not much larger than the others, so its symbols use the whole range and hardly compress. Long rows
# with a few large weights, as in large models, compress better: see docs/measurements.md for a model of TinyLlama's
# shapes.

# %%
ax = container.plot.ratio()

# %% [markdown]
# ## Prove it
#
# `verify` decodes everything and compares every hash that the file has. With `against` it also quantizes the original
# again and compares symbols and scales with the decoded ones, bit for bit.

# %%
verdict = wcodec.verify(file, against=MODEL, progress=False)
verdict

# %%
assert verdict.ok
assert all(tensor.status == "ok" for tensor in verdict.tensors)

# %% [markdown]
# ## Load the tensors
#
# `load_file` is what safetensors' function of that name is: a dictionary of all tensors, as NumPy arrays or torch
# tensors. `device="cuda"` decodes on the GPU.

# %%
state = wcodec.load_file(file, framework="torch")
on_gpu = wcodec.load_file(file, device="cuda") if GPU else {}
for name, tensor in on_gpu.items():
    assert torch.equal(tensor.cpu(), state[name])  # the GPU decodes the same bits
if not GPU:
    print("On a GPU this cell would decode there as well, and compare all tensors bit for bit.")

assert list(state) == list(container)
tensor = state[entry.name]
assert torch.equal(tensor, torch.from_numpy(weights).to(tensor.dtype))  # rounded once

# %% [markdown]
# ## Run a model with compressed layers
#
# `compress_` replaces the layers of a model, in place. Their weights stay entropy-coded in memory, are decoded when
# they are needed, and are not kept afterwards.

# %%
original = AutoModelForCausalLM.from_pretrained(MODEL).to(device).eval()
model = AutoModelForCausalLM.from_pretrained(MODEL).to(device).eval()
replaced = wcodec.compress_(model, progress=False)
replaced

# %%
replaced.plot.memory()
assert replaced.bytes_after < replaced.bytes_before / 1.9

# %% [markdown]
# The model is used as before. Here the original and the compressed model continue the same prompt, greedily. The
# weights are not the same (they went through 8 bits), so the texts may part at some point.

# %%
for title, which in (("original", original), ("compressed", model)):
    written = wcodec.generate(which, prompt, tokenizer=MODEL, max_new_tokens=40)
    print(f"--- {title}\n{prompt}{written.text}\n")

# %% [markdown]
# How close are they? **Perplexity** is the exponential of the mean loss per token: lower is better. The **KL
# divergence** measures how far the predicted probabilities of the compressed model are from those of the original, in
# nats per token: zero means the same. The text is the beginning of `heldout.txt`, which is stored beside the small
# model. 2,000 tokens are enough to compare the two, not to judge the model.

# %%
quality = wcodec.evaluate(model, HELDOUT, baseline=original, tokenizer=MODEL, max_tokens=2000)
quality

# %%
print(f"perplexity {quality.baseline_perplexity:.3f} -> {quality.perplexity:.3f}")
print(f"the same token is the most likely one at {quality.top1_agreement:.1%} of the positions")

assert 0 <= quality.kl_mean < 0.05
assert quality.top1_agreement > 0.9

# %% [markdown]
# ## Keep it
#
# `save_pretrained` writes a folder: all weights in one `.wcodec` file, the few that are not
# compressed (norms) among them, the configuration and the tokenizer. `load_model` builds the model from
# it; the compressed layers are never uncompressed as a whole. It computes the same logits, bit for bit.

# %%
saved = Path(folder.name, "compressed")
wcodec.save_pretrained(model, saved)
loaded = wcodec.load_model(saved, device=device, progress=False)

ids = torch.arange(1, 33, device=device)[None]
with torch.inference_mode():
    assert torch.equal(loaded(ids).logits, model(ids).logits)
sorted(path.name for path in saved.iterdir())

# %% [markdown]
# ## What you saw
#
# - `wcodec.compress`, `wcodec.open` and `wcodec.verify` make, show and prove a file; `wcodec.load_file` gives its
#   tensors.
# - `wcodec.compress_` runs a model whose layers stay compressed; `wcodec.save_pretrained` and `wcodec.load_model` keep
#   it.
# - Quantization changes the weights a little. Entropy coding does not change them at all.
#
# Next:
#
# - [What is inside the file, and why it cannot be much smaller](02_inside_a_container.ipynb)
# - [Replacing the layers of a larger model](03_tinyllama_layer_replacement.ipynb)
# - [Schemes and coders: which to choose](../docs/schemes-and-coders.md)
