"""Granite: the outputs of both halves are multiplied by a number before they are added. Its embeddings, attention and
logits have numbers of their own, which are used outside of what is fused."""

from __future__ import annotations

from ..spec import BlockSpec, HalfSpec

_ATTENTION = HalfSpec("self_attn", before="input_layernorm", multiplier="residual_multiplier")
BLOCKS = tuple(
    BlockSpec(
        attention=_ATTENTION,
        mlp=HalfSpec(mlp, before="post_attention_layernorm", multiplier="residual_multiplier"),
    )
    # Mixtures of experts have another name for them.
    for mlp in ("mlp", "block_sparse_moe")
)
