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
# # 3. Replacing the layers of TinyLlama
#
# One call replaces all layers of a model of transformers by compressed ones. Its weights take less than half of the
# memory, and it writes as before.

# %%
import copy
import json
import math
import os
import pickle
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import transformers
import wcodec
from huggingface_hub import model_info, snapshot_download, try_to_load_from_cache
from transformers import AutoModelForCausalLM, LlamaConfig
from wcodec.nn import CompressedEmbedding, CompressedLinear

transformers.utils.logging.disable_progress_bar()
MODEL = os.environ.get(
    "WCODEC_MODEL", "../tests/data/doc-llama-3m"
)  # a checkpoint with trained weights
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
PROMPT = "The function returns"
folder = tempfile.TemporaryDirectory()  # all output goes here


def load(path: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    return model.to(DEVICE).eval().requires_grad_(False)


writer = load(MODEL)
small = copy.deepcopy(writer)
ax = wcodec.compress_(small, progress=False).plot.memory()
for what, which in (("bf16", writer), ("compressed", small)):
    found = wcodec.generate(which, PROMPT, tokenizer=MODEL, max_new_tokens=24)
    print(f"{what:>10}: {PROMPT}{found.text}")

# %% [markdown]
# This notebook looks at everything that this changes: memory, text, quality, files, speed. You will see this:
#
# - The model computes exactly as with ordinary layers that hold the decoded weights, bit for bit.
# - Its weights take well under half of the memory of bf16.
# - Saving and loading keep the weights compressed all the way.
#
# It takes less than a minute on a CPU with two cores. With a GPU it uses all of TinyLlama's layers, and shows the GPU's
# memory.
#
# ## The models
#
# The model to compress is [TinyLlama-1.1B-Chat](https://huggingface.co/TinyLlama/TinyLlama-1.1B-Chat-v1.0): 1.1
# billion parameters, 2.2 GB in bf16. Its real weights are used if they are in the cache of the Hugging Face Hub, or
# if there is a GPU and the Hub can be reached. The environment variable `WCODEC_TINYLLAMA` overrides this: `1`
# downloads them for a CPU too, `0` never uses them.
#
# Without them the notebook builds a model of the same configuration with random weights. They are drawn from
# Student's t distribution with 6 degrees of freedom, because trained weights have heavy tails and normal ones would
# compress less. On a CPU it is half as wide and gets 2 of the 22 decoder blocks, and a quarter of the tokens. Sizes and
# speeds of such a model mean something; its text does not. So whenever text is shown, it comes from the small trained model that is part
# of the repository.


# %%
REPOSITORY = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"


def real_tinyllama() -> str | None:
    """The folder with the real weights, if they may be used and can be had."""
    wanted = os.environ.get("WCODEC_TINYLLAMA")
    cached = isinstance(try_to_load_from_cache(REPOSITORY, "model.safetensors"), str)
    if wanted == "0" or not (cached or GPU or wanted == "1"):
        return None
    try:
        if not cached:
            model_info(
                REPOSITORY, timeout=5
            )  # fails at once where the Hub cannot be reached, or HF_HUB_OFFLINE=1
        files = ["*.json", "*.safetensors", "*.model"]
        return snapshot_download(REPOSITORY, allow_patterns=files, local_files_only=cached)
    except Exception as error:
        print(f"no real weights: {type(error).__name__}")
        return None


# %%
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
# `baseline` is TinyLlama, or the stand-in for it. `writer` is the model whose text is shown. Both stay as they are;
# the copies `model` and `small` get the compressed layers.

# %%
found = real_tinyllama()
if found:
    NAME = WRITER = "TinyLlama-1.1B-Chat, real weights"
    baseline = writer = load(found)
else:
    blocks = 22 if GPU else 2
    NAME = "TinyLlama's configuration" + ("" if GPU else ", 2 blocks of half the width")
    WRITER = f"{Path(MODEL).name}, trained weights"
    baseline = random_tinyllama(blocks)
for what, name, shown in (
    ("sizes and speeds", NAME, baseline),
    ("text and quality", WRITER, writer),
):
    print(f"{what}: {name}: {sum(p.numel() for p in shown.parameters()) / 1e6:,.1f} M parameters")

# %% [markdown]
# ## The baseline
#
# Before anything is replaced: how many bytes the parameters take, what the model predicts after a prompt of 16 tokens
# (the logits are kept, to compare with later), and what `writer` writes. `wcodec.generate` calls the model's own
# `generate`, greedily, and returns text, token ids and seconds.

# %%
ids = torch.arange(1, 17, device=DEVICE)[None]


@torch.inference_mode()
def logits(which: torch.nn.Module) -> torch.Tensor:
    return which(ids).logits


baseline_bytes = sum(p.nbytes for p in baseline.parameters())
baseline_memory = wcodec.measure_vram(baseline)
baseline_text = wcodec.generate(writer, PROMPT, max_new_tokens=40)
print(f"{NAME}: {baseline_bytes / 2**20:,.1f} MiB of parameters, {baseline.dtype}")
print(f"{WRITER}:\n  {baseline_text.prompt}{baseline_text.text}")
assert (
    baseline_memory.model_bytes >= baseline_bytes
)  # what measure_vram counts has the parameters in it

# %% [markdown]
# ## Compress
#
# `wcodec.compress_` replaces layers in place. The trailing underscore says so, as it does in torch. Each weight goes
# through two steps:
#
# 1. The **scheme** `int8` divides every row by its **scale**, the row's largest magnitude / 127, and rounds to
#    integers from -127 to 127, the **symbols**. This is the only step that loses anything.
# 2. The **coder** `rans` stores frequent symbols in few bits and rare ones in many. This is lossless. Symbols of
#    trained weights crowd around zero: in long rows with heavy tails they take about 6.5 bits instead of 8, in short
#    rows over 7.
#
# The report says which layers were replaced, which were not and why, and the bytes. **Ratio** is original bytes /
# stored bytes, where all stored bytes count: symbols, scales, tables, padding.

# %%
model = copy.deepcopy(baseline)
report = wcodec.compress_(model, scheme="int8", coder="rans", cache=0, progress=False)
print(f"{NAME}: {report.bytes_before:,} -> {report.bytes_after:,} bytes, ratio {report.ratio:.3f}")
report

# %% [markdown]
# Every `nn.Linear` is now a `CompressedLinear`, and the embedding a `CompressedEmbedding`. Only the norms, a few
# kilobytes, are left as they were. int8 alone would give a ratio of just under 2; what is beyond that is the coder's.

# %%
kinds = {type(module) for module in model.modules()}
assert torch.nn.Linear not in kinds and torch.nn.Embedding not in kinds
assert {CompressedLinear, CompressedEmbedding} <= kinds and all(s.vectors for s in report.skipped)
assert report.bytes_before == baseline_bytes and report.ratio > 2

fig, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
report.plot.memory(ax=ax)
fig.suptitle(f"Weights before and after: {NAME}", fontsize="medium")
plt.show()

# %% [markdown]
# ## A compressed layer, looked at
#
# A `CompressedLinear` prints what it is: shape, dtype, scheme, coder, bytes. Its `weight` is decoded anew at each
# read, so code that reads `layer.weight` keeps working; it is not a parameter, and it cannot be trained.

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
symbols = torch.from_numpy(layer.entry.symbols()).float()
scales = torch.from_numpy(layer.entry.scales())
assert torch.equal(layer.weight.cpu(), (symbols * scales).to(layer.dtype))

error = (original.cpu().float() - symbols * scales).abs()
assert (error <= 0.501 * scales).all() and symbols.abs().max() <= 127
print(
    f"largest error: {(error / scales).max():.3f} steps; mean {(error / scales).mean():.3f} steps"
)

# %% [markdown]
# A state dict holds the layer as compressed bytes: a small container in a tensor of uint8, under the key `wcodec`. So
# `torch.save(model.state_dict(), ...)` stays small as well. Copies work too: `copy.deepcopy` shares the compressed
# bytes, which never change, and `pickle` takes them along.

# %%
state = layer.state_dict()
for key, value in state.items():
    print(
        f"{key}: {value.dtype}, {value.nbytes:,} bytes; the weight in {layer.dtype}: {layer.original_bytes:,}"
    )
assert list(state) == ["wcodec"] and state["wcodec"].nbytes < layer.original_bytes / 2

small = model
if writer is not baseline:
    small = copy.deepcopy(writer)
    wcodec.compress_(small, progress=False)
for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
    assert torch.equal(logits(twin), logits(small))
del twin

# %% [markdown]
# ## The same computation as with decoded weights
#
# Nothing is approximated when a compressed layer runs. It decodes its weight, and then calls the very product that
# `nn.Linear` calls. `wcodec.decompress_` turns compressed layers back into ordinary ones that hold the decoded
# weights. Both models give the same logits, in every bit, and so the same text.

# %%
for name, compressed in ((NAME, model), (WRITER, small)):
    plain = copy.deepcopy(compressed)
    wcodec.decompress_(plain)
    assert type(plain.lm_head) is torch.nn.Linear
    assert torch.equal(logits(plain), logits(compressed))
    print(f"equal logits: {name}")

small_text = wcodec.generate(small, PROMPT, max_new_tokens=40)
assert small_text.tokens == wcodec.generate(plain, PROMPT, max_new_tokens=40).tokens
print(f"equal tokens: {WRITER}")
del plain

# %% [markdown]
# ## The difference from bf16
#
# Against the original weights there is a difference: int8 is not bf16. Greedy text shows it badly, because it may run
# apart at one close call between two tokens. `same` counts the tokens until then.

# %%
pairs = zip(baseline_text.tokens, small_text.tokens, strict=False)
same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(small_text.tokens))
print(f"{WRITER}: the first {same} of {len(baseline_text.tokens)} tokens are the same")
print(f"\nbf16:       {PROMPT}{baseline_text.text}\n\ncompressed: {PROMPT}{small_text.text}")

# %% [markdown]
# `wcodec.evaluate` compares the predictions at every token of a text: how often both models hold the same token for
# the most likely one, and the **KL divergence** between the two distributions, in nats per token (0 if they are
# equal). The text is one that the small model was not trained on. Notebook [05](05_quality.ipynb) goes deeper.

# %%
heldout = Path("../tests/data/doc-llama-3m/heldout.txt")
quality = wcodec.evaluate(small, heldout, baseline=writer, max_tokens=2048)
print(
    f"{WRITER}: same top token {100 * quality.top1_agreement:.1f} %, mean KL {quality.kl_mean:.5f} nats/token"
)
assert quality.kl_mean < 0.05 and quality.top1_agreement > 0.9

fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
quality.plot.kl(ax=ax, what="int8")
ax.set_title(f"Distance from bf16 at each token: {WRITER}", fontsize="medium")
plt.show()
quality

# %% [markdown]
# ## Save and load
#
# `wcodec.save_pretrained` writes a model's folder. `model.wcodec` holds all weights, the few that were left as they
# were among them; `config.json` says that the method is `wcodec`, and `README.md` is a model card.

# %%
saved = Path(folder.name, "tinyllama-compressed")
wcodec.save_pretrained(model, saved)
for path in sorted(saved.iterdir()):
    print(f"{path.stat().st_size:>14,}  {path.name}")
print(
    "\nquantization_config:", json.loads((saved / "config.json").read_text())["quantization_config"]
)
assert sum(path.stat().st_size for path in saved.glob("model.*")) < baseline_bytes / 2

# %% [markdown]
# There are two ways back, and both end in the same logits. `wcodec.load_model` is the shorter one. transformers' own
# `from_pretrained` works once wcodec is imported. In both, the weights are never there uncompressed.

# %%
loaded = wcodec.load_model(saved, device=DEVICE)
assert torch.equal(logits(loaded), logits(model))
loaded = AutoModelForCausalLM.from_pretrained(saved, device_map=DEVICE)
assert torch.equal(logits(loaded), logits(model))
assert isinstance(loaded.lm_head, CompressedLinear)
del loaded

# %% [markdown]
# ## Memory
#
# `wcodec.measure_vram` says what the bytes of a model are for. On a CPU the compressed weights and what was left make
# up the whole model; one decoder block at a time is decoded into memory that is given up for the next. On a GPU this
# memory is listed too, as shared scratch, because all models on the GPU decode into it.

# %%
memory = wcodec.measure_vram(model)
for part in memory.parts:
    print(f"{part.bytes / 2**20:10,.2f} MiB  {part.name} ({part.device})")
stored = sum(part.bytes for part in memory.parts if part.name.startswith("compressed"))
assert GPU or stored == report.stored_bytes
assert memory.model_bytes < baseline_memory.model_bytes

fig, ax = plt.subplots(figsize=(8, 2.2), layout="constrained")
memory.plot.parts(ax=ax)
fig.suptitle(f"Memory of the compressed model: {NAME}", fontsize="medium")
plt.show()

# %% [markdown]
# ## Speed
#
# `wcodec.bench` measures tokens per second beside a baseline, in the same run, taking turns. **Prefill** is reading
# the prompt, **decode** (of tokens) is writing new ones. On a CPU the weights are decoded anew for every token, and
# the compressed model is clearly slower: there it saves memory and costs time. On a GPU the difference is much
# smaller; [measurements](../docs/measurements.md) has the figures.
#
# Every number below is from the run of this cell, on your machine.

# %%
options = (
    {"prompt_tokens": 128, "new_tokens": 32, "repeats": 5}
    if GPU
    else {"prompt_tokens": 16, "new_tokens": 4}
)
speed = wcodec.bench(model, baseline, batch=1, **{"repeats": 2, **options}, profile=True)
print(f"{NAME}, {speed.device_name}")
print(speed.tables()[0])
assert {row.model for row in speed.rows} == {"model", "baseline"}

fig, axes = plt.subplots(1, 2, figsize=(10, 3.0), layout="constrained", width_ratios=(1, 2))
speed.plot.speed(ax=axes[0])
speed.plot.split(ax=axes[1])
fig.suptitle(f"Speed at batch 1, and where the time of one token goes: {NAME}", fontsize="medium")
plt.show()

# %% [markdown]
# ## On a GPU
#
# The compressed bytes of a model on a GPU can be in the GPU's memory (`residency="device"`, the default). They can also
# be offloaded to pinned memory of the host (`"host"`): then each block is copied while the one before it computes. The
# memory of a run is that of the weights, with all that decoding needs, and torch's peak beyond them.

# %%
if GPU:
    peak = {row.model: row.peak_bytes for row in speed.rows}
    table = {"bf16": (baseline_memory.model_bytes + peak["baseline"], 1.0)}
    table["device"] = (memory.model_bytes + peak["model"], speed.ratio(1))
    wanted = logits(model)
    del model
    streamed = wcodec.load_model(saved, device=DEVICE, residency="host")
    assert torch.equal(logits(streamed), wanted)
    run = wcodec.bench(streamed, baseline, batch=1, **options)
    table["host"] = (
        wcodec.measure_vram(streamed).model_bytes + run.row(1).peak_bytes,
        run.ratio(1),
    )
    for name, (taken, rate) in table.items():
        print(
            f"{name:>8}: {taken / 2**20:8,.0f} MiB of the GPU, {rate:.2f} of bf16's tokens/s in the same run"
        )
    assert table["host"][0] < table["device"][0] < table["bf16"][0]
else:
    print("no GPU: with one, this cell compares the memory and the speed of bf16, device and host")

# %% [markdown]
# ## What you saw
#
# - One call, `wcodec.compress_`, replaced all linear layers and the embedding; the report accounts for every byte.
# - Compressed layers compute exactly what the decoded weights compute. The only difference from bf16 is the rounding to
#   int8.
# - `layer.weight`, state dicts, copies, `save_pretrained` and `from_pretrained` work as for other models.
#
# Next: [04 Residencies and streaming](04_residencies_and_streaming.ipynb) on where compressed bytes can be,
# [05 Quality](05_quality.ipynb), [06 Decode speed](06_decode_speed.ipynb). In the documentation:
# [residencies and memory](../docs/residencies-and-memory.md), [schemes and coders](../docs/schemes-and-coders.md).

# %%
folder.cleanup()
