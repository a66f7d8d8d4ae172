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
# # 3. Replacing the layers of a model
#
# One call replaces all layers of a model of transformers by compressed ones. Its weights take less than half of the
# memory, and it answers as before. The model is SmolLM2-135M-Instruct in bfloat16 (`WCODEC_MODEL=folder` takes yours).

# %%
import copy

import wcodec

from common import DEVICE, GPU, OUT, TEXT, Answers, decoded_logits, load, questions, real_model

MODEL = real_model()
baseline = load(MODEL)
model = copy.deepcopy(baseline)
report = wcodec.compress_(model, progress=False)
answers = Answers({"bfloat16": baseline, "compressed": model}, MODEL)
answers

# %% [markdown]
# This notebook looks at everything that this changes: memory, text, quality, files, speed. You will see this:
#
# - The model computes exactly as with ordinary layers that hold the decoded weights, bit for bit.
# - Its weights take less than half of the memory of bfloat16.
# - Saving and loading keep the weights compressed all the way.
#
# It takes about a minute on two CPU cores. `baseline` stays as it is. `model` has the compressed layers.
#
# ## The report
#
# Each weight goes through two steps:
#
# 1. The **scheme** `int8`, the default, divides every row by its **scale**, the row's largest magnitude / 127, and rounds
#    to integers from -127 to 127, the **symbols**. This is the only step that loses anything.
# 2. The **coder** stores frequent symbols in few bits and rare ones in many. This is lossless. Symbols of trained weights
#    crowd around zero, so they take about 7 bits instead of 8.
#
# The report says which layers were replaced, which were not and why, and the bytes. **Ratio** is original bytes /
# stored bytes, where all stored bytes count: symbols, scales, tables, padding.

# %%
print(f"{report.bytes_before:,} -> {report.bytes_after:,} bytes, ratio {report.ratio:.3f}")
ax = report.plot.memory()

# %% [markdown]
# Every `nn.Linear` is now a `CompressedLinear`, and the embedding a `CompressedEmbedding`. Only the norms, a few
# kilobytes, are left as they were. int8 alone would give a ratio of just under 2; what is beyond that is the coder's.
#
# ## A compressed layer, looked at
#
# A `CompressedLinear` prints what it is: shape, dtype, scheme, coder, bytes. Its `weight` is decoded when it is read, so
# code that reads `layer.weight` keeps working. It is not a parameter, and it cannot be trained.

# %%
layer = model.model.layers[0].mlp.up_proj
original = baseline.model.layers[0].mlp.up_proj.weight
print(layer)
print("weight:", tuple(layer.weight.shape), layer.weight.dtype, layer.weight.device)
print("stored:", f"{layer.stored_bytes:,} of {layer.original_bytes:,} bytes")
print("entry: ", layer.entry)

# %% [markdown]
# `layer.entry` leads to what is stored: the symbols and the scales. The weight is their product, computed in float32
# and rounded to the model's dtype. Rounding to symbols moved no weight by more than half a step, where a step is the
# scale of the row.

# %%
import torch

symbols = torch.from_numpy(layer.entry.symbols()).float()
scales = torch.from_numpy(layer.entry.scales())
error = (original.detach().cpu().float() - symbols * scales).abs() / scales
print(f"largest error: {error.max():.3f} steps; mean {error.mean():.3f} steps")

# %% [markdown]
# A state dict holds the layer as compressed bytes: a small container in a tensor of uint8, under the key `wcodec`. So
# `torch.save(model.state_dict(), ...)` stays small as well. Copies work too: `copy.deepcopy` shares the compressed
# bytes, which never change, and `pickle` takes them along.

# %%
state = layer.state_dict()
for key, value in state.items():
    print(f"{key}: {value.dtype}, {value.nbytes:,} bytes; the weight: {layer.original_bytes:,}")

# %% [markdown]
# ## The same computation as with decoded weights
#
# Nothing is approximated when a compressed layer runs. It decodes its weight, and then calls the very product that
# `nn.Linear` calls. `wcodec.decompress_` turns compressed layers back into ordinary ones that hold the decoded
# weights. Both models give the same logits, in every bit, and so the same text. By default a GPU multiplies few tokens
# straight from the compressed bytes, which is faster and adds in another order. `logits` turns that off while it looks.

# %%
ids = torch.arange(1, 17, device=DEVICE)[None]


def logits(of: torch.nn.Module) -> torch.Tensor:
    return decoded_logits(of, ids)


plain = copy.deepcopy(model)
wcodec.decompress_(plain)
print(type(plain.model.layers[0].mlp.up_proj).__name__, torch.equal(logits(plain), logits(model)))

# %% [markdown]
# ## The difference from bfloat16
#
# Against the original weights there is a difference: int8 is not bfloat16. Greedy text shows it badly, because it may run
# apart at one close call between two tokens. `wcodec.evaluate` compares the predictions at every token of a text: how often
# both models hold the same token for the most likely one, and the **KL divergence** between the two distributions, in nats
# per token (0 if they are equal). Notebook [05](05_quality.ipynb) goes deeper.

# %%
options = {"tokenizer": MODEL, "max_tokens": 2048 if GPU else 512}
quality = wcodec.evaluate(model, TEXT, baseline=baseline, **options)
print(f"same top token {quality.top1_agreement:.1%}, mean KL {quality.kl_mean:.5f} nats/token")
ax = quality.plot.kl(what="int8")

# %% [markdown]
# ## Save and load
#
# `wcodec.save_pretrained` writes a model's folder. `model.wcodec` holds all weights, the few that were left as they
# were among them; `config.json` says that the method is `wcodec`, and `README.md` is a model card.

# %%
saved = OUT / "compressed"
wcodec.save_pretrained(model, saved)
for path in sorted(saved.iterdir()):
    print(f"{path.stat().st_size:>14,}  {path.name}")

# %% [markdown]
# There are two ways back, and both end in the same logits. `wcodec.load_model` is the shorter one. transformers' own
# `from_pretrained` finds wcodec where it is installed. In both, the weights are never there uncompressed as a whole.

# %%
loaded = wcodec.load_model(saved, device=DEVICE), load(saved)
[torch.equal(logits(one), logits(model)) for one in loaded]

# %% [markdown]
# ## Memory
#
# `wcodec.measure_vram` says what the bytes of a model are for. On a CPU, decoded weights are kept beside the compressed
# ones where memory allows, since decoding them for each token would take several times as long. `cache=0` keeps none. On a
# GPU nothing is kept, and the list has the memory that all models there decode into.

# %%
memory = wcodec.measure_vram(model)
for part in memory.parts:
    print(f"{part.bytes / 2**20:10,.2f} MiB  {part.name} ({part.device})")

# %% [markdown]
# ## Speed
#
# `wcodec.bench` measures tokens per second beside a baseline, in the same run, taking turns. **Prefill** is reading
# the prompt, **decode** (of tokens) is writing new ones. Here is the model with decoded weights kept, and without. Every
# number is from the run of this cell. [Measurements](../docs/measurements.md) has those of larger models on GPUs.

# %%
options = {"prompt_tokens": 16, "new_tokens": 8, "repeats": 2, "batch": 1}
lean = wcodec.load_model(saved, device=DEVICE, cache=0)
speeds = {"as it comes": wcodec.bench(model, baseline, **options)}
speeds["cache=0"] = wcodec.bench(lean, baseline, **options)
for name, speed in speeds.items():
    print(f"{name}: {speed.row(1).decode.median:.1f} tokens/s, {speed.ratio(1):.2f} of bfloat16's")

# %% [markdown]
# ## What you saw
#
# - One call, `wcodec.compress_`, replaced all linear layers and the embedding; the report accounts for every byte.
# - Compressed layers compute exactly what the decoded weights compute. The only difference from bfloat16 is the rounding
#   to int8.
# - `layer.weight`, state dicts, copies, `save_pretrained` and `from_pretrained` work as for other models.
#
# Next: [04 Residencies and streaming](04_residencies_and_streaming.ipynb) on where compressed bytes can be,
# [05 Quality](05_quality.ipynb), [06 Decode speed](06_decode_speed.ipynb). In the documentation:
# [residencies and memory](../docs/residencies-and-memory.md), [schemes and coders](../docs/schemes-and-coders.md).
#
# The last cell checks what the text says.

# %%
import pickle

from wcodec.nn import CompressedEmbedding, CompressedLinear

kinds = {type(module) for module in model.modules()}
assert torch.nn.Linear not in kinds and torch.nn.Embedding not in kinds
assert {CompressedLinear, CompressedEmbedding} <= kinds and all(s.vectors for s in report.skipped)
assert report.bytes_before == sum(p.nbytes for p in baseline.parameters()) and report.ratio > 2
assert torch.equal(layer.weight.cpu(), (symbols * scales).to(layer.dtype))
assert (error <= 0.501).all() and symbols.abs().max() <= 127
assert list(state) == ["wcodec"] and state["wcodec"].nbytes < layer.original_bytes / 2
for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), plain, *loaded):
    assert torch.equal(logits(twin), logits(model))
question = questions(MODEL)[0]
wcodec.nn.fuse_(model, False)
written = [wcodec.generate(m, question, MODEL, max_new_tokens=16).tokens for m in (plain, model)]
assert written[0] == written[1]
assert quality.kl_mean < 0.05 and quality.top1_agreement > 0.9
assert sum(path.stat().st_size for path in saved.glob("model.*")) < report.bytes_before / 2
stored = sum(part.bytes for part in memory.parts if part.name.startswith("compressed"))
assert GPU or stored == report.stored_bytes
