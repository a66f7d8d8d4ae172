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
# # 4. Residencies and streaming
#
# Compressed weights have to be somewhere while a model runs, and some of them may stay decoded, where memory allows. The
# picture is the small model of this repository with more and more of that memory, block by block. Its predictions are
# the same bits each time.

# %%
import torch
import wcodec

from common import DEVICE, GPU, OUT, SMALL, decoded_logits

ax, seen = None, []
for size in (0, "1MB", "3MB", "6MB"):
    small = wcodec.load_model(SMALL, bits=4, cache=size, device=DEVICE)
    seen.append(decoded_logits(small, torch.arange(1, 17, device=DEVICE)[None]))
    ax = wcodec.measure_vram(small).plot.layers(ax, label=f"cache {size or 'none'}")

# %% [markdown]
# This notebook shows the choices, what each costs in memory and time, and that none of them changes a bit of the
# results:
#
# - `residency`: compressed bytes in the GPU's memory, in the host's, or some of each within a budget;
# - `cache`: memory in which some layers stay decoded, on a GPU or a CPU;
# - where the time of a token goes: copies, decoding of weights, products.
#
# It takes half a minute on a CPU with two cores, where it shows the cache and how settings are checked. With a GPU
# it measures every residency, and takes one or two minutes.

# %% [markdown]
# ## A model
#
# Sizes and speeds are what counts here, not text. So the model has the configuration of TinyLlama-1.1B and random
# weights with the heavy tails of trained ones (Student's t, 6 degrees of freedom), as in notebook
# [03](03_replacing_layers.ipynb). With a GPU it gets all 22 decoder blocks, on a CPU 3 of them, half as wide.


# %%
import json
import math

import matplotlib.pyplot as plt
from transformers import AutoModelForCausalLM, LlamaConfig
from wcodec.nn import CompressedLinear

MIB = 2**20


def student_t(shape: torch.Size, degrees: int = 6) -> torch.Tensor:
    """Heavy-tailed random numbers, by Bailey's variant of the Box-Muller transform."""
    u, v = torch.rand(2, *shape, device=DEVICE)
    return (degrees * (u.clamp(min=1e-7) ** (-2 / degrees) - 1)).sqrt() * torch.cos(2 * math.pi * v)


def random_tinyllama(blocks: int) -> torch.nn.Module:
    """A model of TinyLlama's configuration with random weights; on a CPU half as wide."""
    wide = 2048 if GPU else 1024
    config = LlamaConfig(
        vocab_size=32000 if GPU else 8000,
        hidden_size=wide,
        intermediate_size=wide * 11 // 4,
        num_hidden_layers=blocks,
        num_attention_heads=wide // 64,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    torch.manual_seed(1)
    with torch.device(DEVICE):
        model = (
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            .eval()
            .requires_grad_(False)
        )
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.copy_(0.02 * student_t(parameter.shape))
    return model


# %% [markdown]
# The model is compressed once and saved; from now on it is loaded with one setting or another. That is quick, because
# compressed bytes are taken as they are. `plain` is the model with ordinary layers that hold the decoded weights:
# what all others must agree with. `logits` has weights decoded first: by default a GPU multiplies few tokens straight
# from compressed bytes, and adds in another order.

# %%
NAME = "TinyLlama's configuration" + ("" if GPU else ", 3 blocks of half the width")
plain = random_tinyllama(22 if GPU else 3)
saved = OUT / "compressed"
bf16_bytes = wcodec.measure_vram(plain).model_bytes
report = wcodec.compress_(plain, progress=False)
wcodec.save_pretrained(plain, saved)
wcodec.decompress_(plain)
print(f"{NAME}: {report.bytes_before / MIB:,.0f} MiB -> {report.bytes_after / MIB:,.0f} MiB")


def load(**settings: object) -> torch.nn.Module:
    return wcodec.load_model(saved, device=DEVICE, **settings)


def logits(model: torch.nn.Module) -> torch.Tensor:
    return decoded_logits(model, torch.arange(1, 17, device=DEVICE)[None])


expected = logits(plain)
assert torch.equal(logits(load()), expected)

# %% [markdown]
# ## What the settings mean
#
# **Residency** is where the compressed bytes of a layer are while the model runs on a GPU:
#
# | setting | compressed bytes | a call of a decoder block |
# |---|---|---|
# | `residency="device"` | in the GPU's memory | decodes the block into memory that all blocks share, then computes |
# | `residency="host"` | in pinned memory of the host | the same, once its bytes came through a ring of buffers |
# | `residency="auto"` | as many blocks on the GPU as fit into `vram_budget`, the rest in the host | one or the other |
# | `cache="256MB"` | with any of these: some blocks are decoded once and stay decoded | computes |
#
# **Pinned** memory cannot be swapped out, so that the GPU copies from it by itself, beside its computations. With
# `host` the next blocks are on their way while one computes; this is **streaming**. The **ring** is the memory that
# they pass through; it has at most 96 MiB, however large the model is. Embeddings are always in the GPU's memory,
# because their rows are needed at random and at once.
#
# On a CPU the weights are decoded by the CPU, and there is nowhere to stream to: every residency is accepted, is kept
# with the model, and takes effect when the model goes to a GPU. `auto` is settled where the model is: here `host`.

# %%
for residency in ("device", "host", "auto"):
    model = load(residency=residency)
    assert torch.equal(logits(model), expected)
    embedding = model.model.embed_tokens
    print(
        f"{residency:>6}: lm_head is {model.lm_head.residency!r}, embed_tokens {embedding.residency!r}"
    )
    assert embedding.residency == "device"
    assert model.lm_head.residency == residency or residency == "auto"

# %% [markdown]
# The settings that a model was saved with are in its `config.json`, and are taken if `load_model` is told no others.

# %%
remembered = OUT / "remembered"
wcodec.save_pretrained(load(residency="auto", vram_budget="600MB"), remembered)
print(json.loads((remembered / "config.json").read_text())["quantization_config"])
again = wcodec.load_model(remembered)
assert again.lm_head.residency == "auto"
assert wcodec.load_model(remembered, residency="host").lm_head.residency == "host"

# %% [markdown]
# Settings that make no sense are refused at once, and the message says what to do.

# %%
for settings in (
    {"residency": "vram"},
    {"residency": "device", "vram_budget": "600MB"},
    {"cache": "a lot"},
):
    try:
        load(**settings)
    except wcodec.InputError as error:
        print(f"{settings}\n  {type(error).__name__}: {error}")
    else:
        raise AssertionError(settings)

# %% [markdown]
# ## Where the bytes are
#
# Every compressed layer says its `residency`, its `stored_bytes`, and whether it is `cached`. This draws the layers
# of a model in their order, those of a decoder block together, each as wide as its compressed bytes. On a CPU `auto` is
# not settled: it depends on the GPU.

# %%
models = {residency: load(residency=residency) for residency in ("device", "host", "auto")}
ax = None
for residency, model in models.items():
    ax = wcodec.measure_vram(model).plot.layers(ax, label=residency)
assert (
    sum(layer.bytes for layer in wcodec.measure_vram(models["host"]).layers) == report.stored_bytes
)

# %% [markdown]
# ## A cache of decoded layers
#
# Without a cache, every weight is decoded anew for every token, and the memory that decoding needs is that of one
# block. `cache="250MB"` lets the blocks stay decoded that save most time for each byte, as many as fit. It works on a
# GPU and on a CPU. Which they are is settled when the first weight is decoded; `layer.cached` says it.
#
# `wcodec.bench(..., profile=True)` follows some tokens with torch's profiler: the report's `splits` are their time by
# kinds of work. `layer.cached` alone says how much is decoded for each token: all linear layers that are not cached.

# %%
few, more, most = ("100MB", "250MB", "1GB") if GPU else ("25MB", "60MB", "1GB")
SIZES = {"none": 0, few: few, more: more, most: most}
RUN = {"batch": 1, "prompt_tokens": 8, "new_tokens": 3, "repeats": 1, "profile": True}
cached, benches, kept, left = {}, {}, {}, {}
for name, size in SIZES.items():
    cached[name] = model = load(cache=size)
    assert torch.equal(logits(model), expected)
    benches[name] = wcodec.bench(model, **RUN)
    kept[name] = (
        sum(p.bytes for p in wcodec.measure_vram(model).parts if p.name == "decoded-layer cache")
        / MIB
    )
    linear = [module for module in model.modules() if isinstance(module, CompressedLinear)]
    left[name] = sum(layer.original_bytes for layer in linear if not layer.cached) / MIB
    print(
        f"cache {name:>5}: {kept[name]:5.0f} MiB stay decoded, {left[name]:5.0f} MiB are decoded for each token"
    )

# %% [markdown]
# The logits are the same bits with every cache: decoded now or earlier, a weight is the same. The cache never takes
# more than it may, and what it holds need not be decoded again.

# %%
assert kept["none"] == 0 < kept[few]
assert all(kept[name] * MIB <= 1e6 * int(name[:-2]) for name in (few, more))
assert left["none"] > left[few] > left[more] > left[most]
assert all(kept[name] + left[name] == left["none"] for name in SIZES)
ax = None
for name, model in cached.items():
    ax = wcodec.measure_vram(model).plot.layers(ax, label=f"cache {name}")

# %% [markdown]
# Rows of the embedding are looked up, a few for each token; the table as a whole is never decoded, and never cached.
# The times below are of one short run: on a busy machine they wander.

# %%
fig, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for kind, label in (("decode", "decoding weights"), ("product", "matrix products")):
    times = [1e3 * getattr(benches[name].splits[0], kind) for name in SIZES]
    ax.plot([kept[name] for name in SIZES], times, "o-", color=wcodec.COLORS[kind], label=label)
ax.set(xlabel="weights that stay decoded, MiB", ylabel="ms per token", ylim=(0, None))
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Where the time goes
#
# The same reports draw where the time of a token goes. The split adds up the kinds of work, without a cache and with
# the largest one.

# %%
fig, axes = plt.subplots(2, 1, figsize=(8, 3.4), layout="constrained", sharex=True)
for ax, name in zip(axes, ("none", most), strict=True):
    benches[name].plot.split(ax=ax)
    ax.set_yticks([0], [f"cache {name}"])
axes[0].set_xlabel("")
axes[1].get_legend().remove()
fig.suptitle(f"Time of one token by kinds of work: {NAME}", fontsize="medium")
plt.show()

# %% [markdown]
# The timeline shows one token, with a lane for each kind of work. A block is decoded when its first layer is called,
# and then its products follow. `lm_head` comes last; as it is the largest layer, it is decoded in slices, so that it
# needs no more memory than a block. On a CPU nothing runs side by side.

# %%
fig, ax = plt.subplots(figsize=(9, 2.6), layout="constrained")
benches["none"].plot.timeline(ax=ax)
ax.set_title(f"One token, no cache: {NAME}", fontsize="medium")
plt.show()

# %% [markdown]
# By modules: on a CPU the first layer that is called in a block (`q_proj`) looks slow and the others do not, because
# it decodes all seven layers of the block. On a GPU at batch 1 the time between launches outweighs the work, and all
# blocks look alike.

# %%
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
benches["none"].plot.layers(ax=ax, top=12)
ax.set_title(f"The slowest modules, no cache: {NAME}", fontsize="medium")
plt.show()
assert {layer.name for layer in benches["none"].layers} >= {
    "lm_head",
    "model.embed_tokens",
    "model.norm",
}

# %% [markdown]
# ## All residencies on a GPU
#
# With a GPU, the model runs with each residency, taking turns with bf16, so that whatever else the machine does meets
# both. Memory is that of the model on the GPU, and torch's peak beyond that while it wrote tokens. The model's part is
# compressed bytes, the ring, the workspace for decoded weights, weights that stay decoded, and uncompressed ones. All
# logits are equal. `auto` keeps its promise: the model takes no more than the budget. The budget does not count
# activations and the cache of keys and values.

# %%
SETTINGS = {
    "device": {"residency": "device"},
    "device, cache 256 MB": {"residency": "device", "cache": "256MB"},
    "auto within 600 MB": {"residency": "auto", "vram_budget": 600_000_000},
    "auto within 450 MB": {"residency": "auto", "vram_budget": 450_000_000},
    "host": {"residency": "host"},
}
GPU_RUN = {"batch": 1, "prompt_tokens": 64, "new_tokens": 16, "repeats": 2}
placed, runs, needs = {}, {}, {}
if GPU:
    del models, cached, model
    for name, settings in SETTINGS.items():
        placed[name] = load(**settings)
        assert torch.equal(logits(placed[name]), expected)
        runs[name] = wcodec.bench(
            placed[name], plain, **GPU_RUN, profile=name in ("device", "host")
        )
        needs[name] = wcodec.measure_vram(placed[name]).model_bytes
        assert needs[name] <= settings.get("vram_budget", needs[name])
    assert needs["host"] < needs["auto within 600 MB"] < needs["device"] < bf16_bytes
else:
    print("no GPU: with one, this section measures memory and speed of each residency")

# %%
if GPU:
    table = {
        name: ((needs[name] + run.row(1).peak_bytes) / MIB, run.row(1).decode.median, run.ratio(1))
        for name, run in runs.items()
    }
    other = runs["device"].row(1, "baseline")
    table["bf16"] = ((bf16_bytes + other.peak_bytes) / MIB, other.decode.median, 1.0)
    for name, (taken, speed, ratio) in table.items():
        print(f"{name:>20}: {taken:6,.0f} MiB, {speed:5.1f} tokens/s, {ratio:.2f} of bf16's")

# %%
if GPU:
    fig, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.6), sharey=True, layout="constrained")
    kinds = {"bf16": "original", "device, cache 256 MB": "cached"}
    colors = [wcodec.COLORS[kinds.get(name, name.split()[0])] for name in table]
    taken, _, ratios = zip(*table.values(), strict=True)
    left.bar_label(left.barh(list(table), taken, color=colors), fmt="{:,.0f}", padding=3)
    right.bar_label(right.barh(list(table), ratios, color=colors), fmt="{:.2f}", padding=3)
    left.set(xlabel="memory of the GPU, MiB", xlim=(0, 1.2 * max(taken)))
    right.set(xlabel="speed, of bf16's in the same run", xlim=(0, 1.2 * max(ratios)))
    left.invert_yaxis()
    plt.show()

# %% [markdown]
# `auto` spreads the blocks that are streamed evenly over the model: while one that is on the GPU computes, one that
# is not can arrive.

# %%
if GPU:
    ax = None
    for name, model in placed.items():
        ax = wcodec.measure_vram(model).plot.layers(ax, label=name)
    mixed = wcodec.measure_vram(placed["auto within 600 MB"]).layers
    assert {layer.residency for layer in mixed} == {"device", "host"}

# %% [markdown]
# The timeline of `host` shows the streaming: copies run ahead, in a lane of their own, beside decoding and products.

# %%
if GPU:
    for name in ("device", "host"):
        fig, ax = plt.subplots(figsize=(9, 2.8), layout="constrained")
        runs[name].plot.timeline(ax=ax)
        ax.set_title(f"One token, {name}: {NAME}, {runs[name].device_name}", fontsize="medium")
        plt.show()
    assert any(span.kind == "copy" for span in runs["host"].spans)

# %% [markdown]
# A budget that is too small is refused, with the least that would do, before anything is sent to the GPU. On a CPU
# the budget is only noted: the error comes when the model goes to a GPU and decodes its first weight.

# %%
if GPU:
    try:
        load(residency="auto", vram_budget="100MB")
    except wcodec.InputError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise AssertionError("100 MB should be too small")
else:
    assert torch.equal(logits(load(residency="auto", vram_budget="100MB")), expected)
    print("no GPU: a budget of 100 MB is noted, and would be refused on one")

# %% [markdown]
# ## What you saw
#
# - `device` is the default. `host` takes the least memory of a GPU; `auto` fills a `vram_budget` and streams the
#   rest.
# - `cache` spends memory to save the time of decoding, on a GPU or a CPU.
# - None of them changes a bit of the results.
#
# Next: [05 Quality](05_quality.ipynb), [06 Decode speed](06_decode_speed.ipynb). In the documentation:
# [residencies and memory](../docs/residencies-and-memory.md) and [GPU set-up](../docs/gpu-setup.md).

# %%
assert all(torch.equal(seen[0], logits) for logits in seen)
