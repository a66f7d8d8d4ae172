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
import wcodec

from common import GPU, OUT, Tuning, plots

tuning = Tuning(steps=20)
tuned, steps, judged = tuning.run(tuning.load())
fig, ax = plots(figsize=(7, 3.2))
drawn = {"color": wcodec.COLORS["rate"]}
ax.plot(range(1, len(steps) + 1), steps, alpha=0.5, label="each step", **drawn)
ax.plot(*zip(*judged, strict=True), "o-", label="on unseen text", **drawn)
ax.set(xlabel="step", ylabel="loss, nats per token", title="LoRA on 4 bits per weight")
legend = ax.legend(frameon=False)

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
print(
    f"{len(tuning.ids):,} tokens: {len(tuning.seen)} rows to learn from, {len(tuning.unseen)} to be judged by"
)
tuned.print_trainable_parameters()

# %% [markdown]
# ## Another model with the same weights
#
# The second model has ordinary layers, which hold the decoded weights of the compressed ones. Both compute in float32
# here.

# %%
compressed, dequantized = tuning.load(), tuning.load()
wcodec.decompress_(dequantized)


def size(model):
    layers = [m for m in model.modules() if isinstance(m, wcodec.nn.CompressedLayer)]
    stored = {layer.tensor: layer.stored_bytes for layer in layers}
    return sum(stored.values()) + sum(p.nbytes for p in model.parameters())


print(f"compressed {size(compressed):,} bytes, dequantized {size(dequantized):,}")

# %%
reference, reference_steps, reference_judged = tuning.run(dequantized)
for title, one, other in (("step", steps, reference_steps), ("unseen", judged, reference_judged)):
    print(f"{title:>8}: compressed {one[-1]}, dequantized {other[-1]}")

# %% [markdown]
# The two runs are the same: on a CPU each gradient of the compressed model is that of the dequantized one, bit for bit,
# so that after all these steps the losses still are. On a GPU they differ by roundings.

# %%
apart = max(abs(a - b) for a, b in zip(steps, reference_steps, strict=True))
print(f"largest difference of the losses: {apart}")
print(f"unseen text: {judged[0][1]:.3f} before, {judged[-1][1]:.3f} after")

# %% [markdown]
# ## What autograd keeps
#
# For the backward pass, a graph keeps tensors that the gradients are computed from. For an ordinary frozen layer that
# is its weight, which is there anyway. A compressed layer has no such weight: it would have to be stored for each
# layer, and is decoded again instead.

# %%
import torch


def kept(model):
    """Bytes of matrices that a forward pass keeps, of the sizes of the model's weights."""
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

    row = tuning.seen[:1]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.train()(row, labels=row, use_cache=False)
    return sum(found)


of_tuned, of_reference = kept(tuned), kept(reference)
print(f"compressed {of_tuned:,} bytes of weights, dequantized {of_reference:,}")

# %% [markdown]
# ## The adapter
#
# It is saved alone, and is loaded on the model that it was trained on.

# %%
from peft import PeftModel

path = OUT / "adapter"
tuned.save_pretrained(path)
print(f"{(path / 'adapter_model.safetensors').stat().st_size:,} bytes")

before = tuning.loss(tuned)
base = tuned.unload()
again = PeftModel.from_pretrained(base, path)
loaded = tuning.loss(again)
with again.disable_adapter():
    alone = tuning.loss(again)

# %% [markdown]
# Merging decodes the layers that have adapters, and leaves ordinary ones. All layers are compressed again after that,
# which rounds them again.

# %%
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # each layer says how much larger it became
    merged = again.merge_and_unload()
print(f"merged: {size(merged):,} bytes, loss {tuning.loss(merged):.3f}")
wcodec.decompress_(merged)
wcodec.compress_(merged, scheme="rate", bits=4, progress=False)
print(f"compressed again: {size(merged):,} bytes, loss {tuning.loss(merged):.3f}")

# %% [markdown]
# ## What you saw
#
# - Adapters train on a compressed model as on the dequantized one: on a CPU with the same losses, to the last bit.
# - Weights are decoded in the backward pass again, and autograd keeps none of them.
# - The adapter is a small file of its own, and can be merged.
#
# [Fine-tuning](../docs/fine-tuning.md) lists what else trains, what does not, and the memory that it takes.
#
# The last cell checks what the text says.

# %%
assert len(tuning.seen) > 20 and judged[-1][1] < judged[0][1] - 0.1
assert size(compressed) < size(dequantized) / 5
assert GPU or (steps == reference_steps and judged == reference_judged)
assert apart < 0.1
assert judged[-1][1] < judged[0][1] - 0.1
assert of_tuned == 0 < of_reference
assert loaded == before and alone == judged[0][1]
assert size(merged) < size(dequantized) / 5
assert tuning.loss(merged) < judged[0][1] - 0.1
