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
# # 9. Fine-tuning: adapters beside compressed weights
#
# Gradients pass through compressed layers, and the weights stay as they are. So what is small and beside them can be
# trained: here LoRA's adapters, by PEFT, on a model of 4 bits per weight. (It needs `pip install peft`. On a GPU the models
# run there.)

# %%
import os
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import wcodec
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoTokenizer
from transformers.utils import logging

MODEL = os.environ.get("WCODEC_MODEL", "../tests/data/doc-llama-3m")  # the folder of a causal LM
TEXT = os.environ.get("WCODEC_TEXT", "../codec/FORMAT.md")  # what is learned
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, BATCH, STEPS, EVERY = 128, 4, 20, 4
folder = tempfile.TemporaryDirectory()  # all output goes here
logging.disable_progress_bar()
warnings.simplefilter("ignore", FutureWarning)  # libraries about each other
if Path(MODEL).name == "doc-llama-3m":
    torch.set_num_threads(1)  # so small a model leaves a second thread nothing but waiting

tokenizer = AutoTokenizer.from_pretrained(MODEL)
ids = torch.tensor(tokenizer(Path(TEXT).read_text(encoding="utf-8"), verbose=False).input_ids)
rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH).to(DEVICE)
unseen = rows[::10]
seen = rows[[i for i in range(len(rows)) if i % 10]]


def load():
    return wcodec.load_model(MODEL, scheme="rate", bits=4, device=DEVICE, dtype=torch.float32)


def loss_on(model, batch):
    model.eval()
    with torch.inference_mode():
        return model(batch, labels=batch, use_cache=False).loss.item()


def run(base):
    """Attaches an adapter and trains it; the model, the loss of each step, and the loss on what is not seen."""
    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    adapter = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapter, lr=2e-3)
    order = torch.randint(len(seen), (STEPS, BATCH))
    steps, judged = [], [(0, loss_on(model, unseen))]
    for step, chosen in enumerate(order, 1):
        model.train()
        batch = seen[chosen.to(DEVICE)]
        loss = model(batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(loss.item())
        if step % EVERY == 0:
            judged.append((step, loss_on(model, unseen)))
    return model, steps, judged


tuned, steps, judged = run(load())
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(range(1, STEPS + 1), steps, color=wcodec.COLORS["rate"], alpha=0.5, label="each step")
ax.plot(*zip(*judged, strict=True), "o-", color=wcodec.COLORS["rate"], label="on unseen text")
ax.set(xlabel="step", ylabel="loss, nats per token", title="LoRA on 4 bits per weight")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The model was trained on documentation of Python libraries. The text is the description of the file format in this
# repository, which it has not seen. Every tenth row of it is not learned from: the loss there says whether anything
# general was. An adapter of rank 8 is at each linear layer of the decoder blocks, attached as to any other model. The
# notebook goes on with
#
# - the same run on the dequantized model: the same losses;
# - what autograd keeps for the backward pass: no decoded weight;
# - the adapter saved, loaded, and merged.
#
# It takes less than a minute on a CPU.

# %%
print(f"{len(ids):,} tokens: {len(seen)} rows to learn from, {len(unseen)} to be judged by")
tuned.print_trainable_parameters()
assert len(seen) > 20 and judged[-1][1] < judged[0][1] - 0.1

# %% [markdown]
# ## Another model with the same weights
#
# The second model has ordinary layers, which hold the decoded weights of the compressed ones. Both compute in float32
# here.

# %%
compressed, dequantized = load(), load()
wcodec.decompress_(dequantized)


def size(model):
    layers = [m for m in model.modules() if isinstance(m, wcodec.nn.CompressedLayer)]
    stored = {layer.tensor: layer.stored_bytes for layer in layers}
    return sum(stored.values()) + sum(p.nbytes for p in model.parameters())


print(f"compressed {size(compressed):,} bytes, dequantized {size(dequantized):,}")
assert size(compressed) < size(dequantized) / 5

# %%
reference, reference_steps, reference_judged = run(dequantized)
for title, one, other in (("step", steps, reference_steps), ("unseen", judged, reference_judged)):
    print(f"{title:>8}: compressed {one[-1]}, dequantized {other[-1]}")

# %% [markdown]
# The two runs are the same: on a CPU each gradient of the compressed model is that of the dequantized one, bit for bit,
# so that after all these steps the losses still are. On a GPU they differ by roundings.

# %%
if DEVICE == "cpu":
    assert steps == reference_steps and judged == reference_judged
apart = max(abs(a - b) for a, b in zip(steps, reference_steps, strict=True))
print(f"largest difference of the losses: {apart}")
print(f"unseen text: {judged[0][1]:.3f} before, {judged[-1][1]:.3f} after")
assert apart < 0.1
assert judged[-1][1] < judged[0][1] - 0.1

# %% [markdown]
# ## What autograd keeps
#
# For the backward pass, a graph keeps tensors that the gradients are computed from. For an ordinary frozen layer that
# is its weight, which is there anyway. A compressed layer has no such weight: it would have to be stored for each
# layer, and is decoded again instead.

# %%


def kept(model):
    """Of what a forward pass keeps: matrices of the sizes of the model's weights."""
    layers = [
        m
        for m in model.modules()
        if hasattr(m, "in_features") and "lora" not in type(m).__name__.lower()
    ]
    shapes = {
        (m.in_features, m.out_features) for m in layers if min(m.in_features, m.out_features) > 8
    }
    shapes |= {shape[::-1] for shape in shapes}
    found = []

    def note(tensor):
        if tuple(tensor.shape) in shapes:
            found.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.train()(seen[:1], labels=seen[:1], use_cache=False)
    return sum(found)


print(f"compressed {kept(tuned):,} bytes of weights, dequantized {kept(reference):,}")
assert kept(tuned) == 0 < kept(reference)

# %% [markdown]
# ## The adapter
#
# It is saved alone, and is loaded on the model that it was trained on.

# %%
path = Path(folder.name, "adapter")
tuned.save_pretrained(path)
print(f"{(path / 'adapter_model.safetensors').stat().st_size:,} bytes")

before = loss_on(tuned, unseen)
base = tuned.unload()
again = PeftModel.from_pretrained(base, path)
assert loss_on(again, unseen) == before
with again.disable_adapter():
    assert loss_on(again, unseen) == judged[0][1]

# %% [markdown]
# Merging decodes the layers that have adapters, and leaves ordinary ones. All layers are compressed again after that,
# which rounds them again.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # each layer says how much larger it became
    merged = again.merge_and_unload()
print(f"merged: {size(merged):,} bytes, loss {loss_on(merged, unseen):.3f}")
wcodec.decompress_(merged)
wcodec.compress_(merged, scheme="rate", bits=4, progress=False)
print(f"compressed again: {size(merged):,} bytes, loss {loss_on(merged, unseen):.3f}")
assert size(merged) < size(dequantized) / 5
assert loss_on(merged, unseen) < judged[0][1] - 0.1

# %% [markdown]
# ## What you saw
#
# - Adapters train on a compressed model as on the dequantized one: on a CPU with the same losses, to the last bit.
# - Weights are decoded in the backward pass again, and autograd keeps none of them.
# - The adapter is a small file of its own, and can be merged.
#
# [Fine-tuning](../docs/fine-tuning.md) lists what else trains, what does not, and the memory that it takes.
