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
# A compressed model predicts slightly differently. This is how far the predictions of SmolLM2-135M-Instruct move: with
# scheme `int8`, with scheme `rate` at 4 and 3 bits, and with formats of a fixed width. Lower left is better.

# %%
import wcodec

from common import GPU, OUT, PEERS, Answers, Comparison, load, plots, questions, real_model, worst

both = Comparison(MODEL := real_model(), tokens=8192 if GPU else 512)
columns = wcodec.collect_statistics(both.original, MODEL, full=False, gradients=False)
for bits in (4, 3):
    both.encoded(f"rate, {bits} bits", bits=bits, calibrate=columns)
for name in PEERS:
    both.peer(name)
both.encoded("int8")
ax = both.plot()

# %% [markdown]
# Each dot is the model with other weights, decoded from a file of wcodec, or rounded by a few lines of torch. **bits/weight**
# counts everything: scales, tables, index. All matrices are quantized, the embedding too, which is the head as well. Both
# models compute in float32, so that what is measured comes from the weights alone. The text is software documentation.
#
# The other formats are **reference implementations for comparison**: round to nearest in groups of 64, with one float16
# for each group. INT4 and INT6 have even levels, and NF4 has the 16 levels of QLoRA's NormalFloat. `rate` has uniform levels,
# as many as it takes: a coder makes rare ones cheap. Its columns have steps by how large inputs are
# ([notebook 8](08_rates.ipynb)).
#
# ## What is measured
#
# `evaluate` runs both models over the same text and compares what they predict at every token.

# %%
found = both.rows["int8"].found
found

# %% [markdown]
# - **Perplexity** is `exp(mean of -log p(next token))`: a perplexity of 10 means that the model is on average as
#   unsure as if it chose among 10 equally likely tokens.
# - **KL divergence**, `KL(baseline || model) = sum of p * (log p - log q)` over the whole vocabulary. `p` is the
#   baseline's prediction and `q` the model's. It is zero only if both predictions are the same.
# - **Same top token** (top-1 agreement) is how often both find the same token most likely.
#
# The logarithm is the natural one, so the unit is the **nat** (1 nat = 1.44 bits). A KL of 0.01 means this: if the baseline
# wrote a text, the other model would find it 1 % less likely for each of its tokens.
#
# None of this is hidden. Here are these tokens by hand, and they agree with the report:

# %%
p, q = both.logs(both.original), both.logs(both.model)
by_hand = (p.exp() * (p - q)).sum(-1).cpu().numpy()
print(f"mean over {len(by_hand)} tokens: {by_hand.mean():.6f} nats")

# %% [markdown]
# The mean hides how uneven the tokens are. On the left, all of them, on a logarithmic axis. On the right, the one where the
# predictions are furthest apart: its most likely next tokens, in both models.

# %%
fig, (left, right) = plots(columns=2, figsize=(11, 3.8))
found.plot.kl(ax=left, what="int8").set_title("int8: KL of every token")
at = worst(both, right)

# %% [markdown]
# Perplexity looks at one token of the vocabulary, the one that came next. Rounding makes it likelier almost as often as less
# likely, so the mean of all these ups and downs is uncertain. KL looks at the whole prediction, and nothing in it cancels.
# So it tells small changes apart on little text. For int8:

# %%
import math

change = found.token_loss - wcodec.evaluate(both.original, both.ids, stride=512).token_loss
for what, values in (("-log p(next token)", change), ("KL", found.token_kl)):
    mean, deviation = values.mean(dtype=float), values.std() / math.sqrt(len(values))
    print(
        f"{what:18} {mean:+.5f} +- {deviation:.5f} nats: {abs(mean) / deviation:.0f} standard errors"
    )
print(f"the next token became likelier at {(change < 0).mean():.0%} of the tokens")

# %% [markdown]
# ## What does not change anything: coders, and staying compressed
#
# Entropy coding is lossless. Quality is decided when weights become symbols; the **coder** decides only how many bytes
# symbols take. So all coders give the same logits, bit for bit. So does a model whose layers stay compressed in memory.

# %%
import torch

ids = torch.tensor([both.ids[:64]], device=both.model.device)
compressed = load(MODEL, torch.float32)
wcodec.compress_(compressed, progress=False)
with torch.inference_mode():
    wanted, equal = both.model(ids).logits, {}
    equal["compressed layers"] = torch.equal(compressed(ids).logits, wanted)
    for coder in ("rans", "zstd"):
        file = OUT / f"{coder}.wcodec"
        written = wcodec.compress(MODEL, file, coder=coder, progress=False)
        both.take(wcodec.load_file(file, "torch", dtype=torch.float32))
        equal[coder] = torch.equal(both.model(ids).logits, wanted)
        print(f"{coder}: {written.bits_per_weight:.3f} bits/weight, same logits: {equal[coder]}")

# %% [markdown]
# ## Scales per tensor, row and block
#
# A scale of `int8` is the largest weight of its group over 127, so the rounding step follows the largest weight. Small
# groups have finer steps and cost more: a float32 scale for each block of 32 weights is 1 bit/weight by itself, and symbols
# that fill their range well leave the coder less to remove. One scale for a whole matrix costs nothing, rounds most
# weights coarsely, and leaves symbols that are mostly small, which code well.

# %%
CHOICES = {
    "int8, tensor": {"scale": "tensor"},
    "int8, row": {"scale": "row"},
    "int8, blocks of 32": {"scale": "block", "block": 32},
}
scales = {name: both.encoded(name, **options) for name, options in CHOICES.items()}

# %% [markdown]
# ## The key/value cache
#
# While a model generates, it keeps keys and values of all tokens so far. Their precision is a choice of its own,
# apart from the weights'. `compare_kv_cache` continues a prompt with a float32 cache, and feeds the same tokens to
# caches of other dtypes. Our model computes in float32, so a 16-bit cache rounds what it keeps. A model that *computes* in
# bfloat16 has rounded keys and values before any cache sees them.

# %%
question = questions(MODEL)[0]
caches = wcodec.compare_kv_cache(compressed, question, tokens=32, tokenizer=both.tokenizer)
caches

# %% [markdown]
# ## The text itself
#
# Greedy answers take the most likely token. Where two of them are about equally likely, the smallest change decides, and
# everything after it is another text. So texts show what a difference looks like, and say little about how large it is.

# %%
Answers({"original": both.original, "int8": compressed}, MODEL)

# %% [markdown]
# ## What you saw
#
# - KL divergence sees what perplexity cannot: differences of a thousandth of a nat, on a few hundred tokens.
# - Coders, layouts and compressed layers change no bit of any logit. Scales and schemes do: choose them by the picture
#   above, for your model (`WCODEC_MODEL=path WCODEC_TEXT=path` runs this notebook on it).
# - Scheme `rate` has less damage at 4 bits than formats of a fixed width that take more.
# - A GPU decodes the same weights as the CPU, bit for bit, so quality is measured once for both.
#
# Next: [06_decode_speed](06_decode_speed.ipynb), how fast weights are decoded; [08_rates](08_rates.ipynb), fewer bits.
# More on the choices: [schemes and coders](../docs/schemes-and-coders.md). The same measurement at a terminal: `wcodec
# eval --help`.
#
# The last cell checks what the text says.

# %%
import numpy as np

kl = {name: row.kl for name, row in both.rows.items()}
assert 0 < kl["int8"] < kl["rate, 4 bits"] < kl["rate, 3 bits"]
four = both.rows["rate, 4 bits"]
for name in PEERS:
    assert four.bits < both.rows[name].bits and (name[:4] == "INT6" or four.kl < kl[name])
tokens = len(by_hand)
assert np.allclose(by_hand[: tokens - 1], found.token_kl[: tokens - 1], rtol=2e-2, atol=1e-4)
assert found.token_kl.min() > -1e-4  # sums in float32 may miss zero by a rounding error
standard = [abs(v.mean(dtype=float)) / v.std() for v in (found.token_kl, change)]
assert standard[0] > standard[1]
assert all(equal.values())
assert kl["int8, blocks of 32"] < kl["int8, row"] < kl["int8, tensor"]
assert scales["int8, tensor"].bits < scales["int8, row"].bits
by_dtype = {result.dtype: result for result in caches.results}
assert by_dtype["float32"].identical
assert by_dtype["float16"].kl_mean < by_dtype["bfloat16"].kl_mean
assert by_dtype["float32"].cache_bytes == 2 * by_dtype["float16"].cache_bytes
