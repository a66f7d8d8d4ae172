"""Qwen 3 Next and 3.5: some layers have linear attention, which runs as it is, and many have mixtures for MLPs."""

from __future__ import annotations

from ..spec import BlockSpec, Choice, HalfSpec

_LINEAR = {"linear_attention": "linear_attn"}
BLOCKS = (
    BlockSpec(
        attention=HalfSpec("self_attn", before="input_layernorm"),
        mlp=HalfSpec("mlp", before="post_attention_layernorm", unpacks=True),
        choice=Choice("block_type", "full_attention", _LINEAR),
    ),
    BlockSpec(
        attention=HalfSpec("self_attn", before="input_layernorm"),
        mlp=HalfSpec("mlp", before="post_attention_layernorm"),
        choice=Choice("block_type", None, _LINEAR),
    ),
)
