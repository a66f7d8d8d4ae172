"""Phi-3, and GLM's MLP: q, k and v are one layer, and so are gates and values."""

from __future__ import annotations

from ..spec import AttentionSpec, BlockSpec, HalfSpec, MlpSpec

ATTENTIONS = (AttentionSpec(("qkv_proj",)),)
MLPS = (
    MlpSpec(
        """
up_states = self.gate_up_proj(x)
gate, up_states = up_states.chunk(2, dim=-1)
up_states = up_states * self.activation_fn(gate)
return self.down_proj(up_states)
""",
        ("gate_up_proj",),
        activation="activation_fn",
        packed=True,
    ),
)
BLOCKS = (
    BlockSpec(
        attention=HalfSpec("self_attn", before="input_layernorm", dropout="resid_attn_dropout"),
        mlp=HalfSpec("mlp", before="post_attention_layernorm", dropout="resid_mlp_dropout"),
    ),
)
