"""GLM-4: norms before and behind both halves, under names of its own."""

from __future__ import annotations

from ..spec import BlockSpec, HalfSpec

BLOCKS = (
    BlockSpec(
        attention=HalfSpec("self_attn", before="input_layernorm", behind="post_self_attn_layernorm"),
        mlp=HalfSpec("mlp", before="post_attention_layernorm", behind="post_mlp_layernorm"),
    ),
)
