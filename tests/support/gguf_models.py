"""GGUF files of small untrained models, as llama.cpp's conversion would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf_files import Tensor, gguf_bytes, numbers

HIDDEN, FEED, HEADS, KV, LAYERS, VOCABULARY = 64, 96, 4, 2, 2, 320
HEAD = HIDDEN // HEADS
# transformers takes this width for granted.
EXPERTS, EXPERT = 4, 768
_LINES = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (KV * HEAD, HIDDEN), "attn_v": (KV * HEAD, HIDDEN),
          "attn_output": (HIDDEN, HIDDEN)}  # fmt: skip
_DENSE = {"ffn_gate": (FEED, HIDDEN), "ffn_up": (FEED, HIDDEN), "ffn_down": (HIDDEN, FEED)}
_ROUTED = {
    "ffn_gate_inp": (EXPERTS, HIDDEN), "ffn_gate_exps": (EXPERTS, EXPERT, HIDDEN),
    "ffn_up_exps": (EXPERTS, EXPERT, HIDDEN),
    "ffn_down_exps": (EXPERTS, HIDDEN, EXPERT),
}  # fmt: skip
_NORMS = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)}
_COMMON = {"block_count": LAYERS, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": FEED,
           "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.layer_norm_rms_epsilon": 1e-6,
           "rope.freq_base": 10000.0}  # fmt: skip
_QKV_BIAS = {"attn_q.bias": (HIDDEN,), "attn_k.bias": (KV * HEAD,), "attn_v.bias": (KV * HEAD,)}

LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "llama": ({}, _LINES | _DENSE | _NORMS, {}),
    "qwen2": ({}, _LINES | _DENSE | _NORMS | _QKV_BIAS, {}),
    "qwen3moe": (
        {"expert_count": EXPERTS, "expert_used_count": 2, "attention.key_length": HEAD,
         "expert_feed_forward_length": EXPERT},
        _LINES | _ROUTED | _NORMS | {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}, {},
    ),
    "gemma2": (
        {"attention.key_length": HEAD, "attention.sliding_window": 32},
        _LINES | _DENSE | _NORMS | {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}, {},
    ),
    "gpt2": (
        {"attention.layer_norm_epsilon": 1e-5, "context_length": 1024},
        {"attn_qkv": (3 * HIDDEN, HIDDEN), "attn_qkv.bias": (3 * HIDDEN,), "attn_output": (HIDDEN, HIDDEN),
         "attn_output.bias": (HIDDEN,), "ffn_up": (4 * HIDDEN, HIDDEN), "ffn_up.bias": (4 * HIDDEN,),
         "ffn_down": (HIDDEN, 4 * HIDDEN), "ffn_down.bias": (HIDDEN,), "attn_norm": (HIDDEN,),
         "attn_norm.bias": (HIDDEN,), "ffn_norm": (HIDDEN,), "ffn_norm.bias": (HIDDEN,)},
        {"position_embd.weight": (1024, HIDDEN), "output_norm.bias": (HIDDEN,)},
    ),
    "lfm2": (
        {"attention.head_count_kv": [0, KV], "shortconv.l_cache": 3},
        _DENSE | _NORMS,
        {"token_embd_norm.weight": (HIDDEN,), "blk.0.shortconv.conv.weight": (HIDDEN, 3),
         "blk.0.shortconv.in_proj.weight": (3 * HIDDEN, HIDDEN), "blk.0.shortconv.out_proj.weight": (HIDDEN, HIDDEN),
         **{f"blk.1.{n}.weight": s for n, s in _LINES.items()},
         "blk.1.attn_q_norm.weight": (HEAD,), "blk.1.attn_k_norm.weight": (HEAD,)},
    ),
    "qwen35": (
        {"attention.key_length": HEAD, "ssm.time_step_rank": 4, "full_attention_interval": 2, "ssm.conv_kernel": 4,
         "ssm.state_size": 8, "ssm.group_count": 2, "ssm.inner_size": 32, "rope.dimension_sections": [2, 1, 1, 0],
         "rope.dimension_count": 8},
        _DENSE | {"attn_norm": (HIDDEN,), "post_attention_norm": (HIDDEN,)},
        {"blk.0.attn_qkv.weight": (64, HIDDEN), "blk.0.attn_gate.weight": (32, HIDDEN),
         "blk.0.ssm_alpha.weight": (4, HIDDEN), "blk.0.ssm_beta.weight": (4, HIDDEN),
         "blk.0.ssm_conv1d.weight": (64, 4),
         "blk.0.ssm_norm.weight": (8,), "blk.0.ssm_out.weight": (HIDDEN, 32), "blk.0.ssm_a": (4,),
         "blk.0.ssm_dt.bias": (4,), "blk.1.attn_q.weight": (2 * HIDDEN, HIDDEN),
         "blk.1.attn_k.weight": (KV * HEAD, HIDDEN), "blk.1.attn_v.weight": (KV * HEAD, HIDDEN),
         "blk.1.attn_output.weight": (HIDDEN, HIDDEN), "blk.1.attn_q_norm.weight": (HEAD,),
         "blk.1.attn_k_norm.weight": (HEAD,)},
    ),
}  # fmt: skip
"""By architecture: keys of its own, tensors of a layer, and others."""


def q8_0(weights: np.ndarray) -> bytes:
    """Weights in blocks of Q8_0."""
    groups = weights.astype(np.float32).reshape(-1, 32)
    scales = (np.abs(groups).max(1, keepdims=True) / 127).astype(np.float16)
    steps = np.where(scales == 0, 1, scales).astype(np.float32)
    codes = np.clip(np.rint(groups / steps), -127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], 1).tobytes()


def _tokenizer() -> dict[str, Any]:
    """A tokenizer of bytes, as GPT-2 has it."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in shown]
    letters = {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(others)}}
    tokens = ["<unk>", "<s>", "</s>", *(letters[b] for b in range(256)), "th", "he"]
    tokens += [f"<{i}>" for i in range(len(tokens), VOCABULARY)]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i < 3 else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": ["t h", "h e"], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.padding_token_id": 0,
    }  # fmt: skip


def write(
    path: Path,
    architecture: str = "llama",
    tied: bool = True,
    plain: str | None = None,
    more: dict[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Path:
    """Writes a model.

    :param plain: ``F16`` or ``F32`` for weights that are stored as numbers.
    :param more: further tensors.
    """
    rng = np.random.default_rng(seed)
    keys, layer, others = LAYOUTS[architecture]
    metadata = {"general.architecture": architecture, "general.name": f"small {architecture}"}
    metadata |= {f"{architecture}.{key}": value for key, value in (_COMMON | keys).items()}
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,), **others}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{n}" if n.endswith("bias") else f"blk.{i}.{n}.weight": s for n, s in layer.items()}
    if not tied:
        shapes["output.weight"] = (VOCABULARY, HIDDEN)
    tensors = []
    for name, shape in shapes.items():
        weights = rng.normal(1.0 if "norm" in name else 0.0, 0.1, shape).astype(np.float32)
        if name.endswith("ssm_a"):
            # It is a negative exponential.
            weights = -np.exp(weights)
        # As llama.cpp does it, what is small stays in float32, and so does what chooses experts.
        if len(shape) == 1 or shape[-1] % 32 or "ffn_gate_inp" in name or plain == "F32":
            tensors.append(numbers(name, weights))
        elif plain == "F16":
            tensors.append(numbers(name, weights.astype(np.float16)))
        else:
            tensors.append(Tensor(name, "Q8_0", shape, q8_0(weights)))
    tensors += [numbers(name, array) for name, array in (more or {}).items()]
    path.write_bytes(gguf_bytes(metadata | _tokenizer(), tensors))
    return path
