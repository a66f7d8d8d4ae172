"""Llama, Qwen 2 and 3, Mistral, and all that are written like them; of mixtures such as Mixtral the attention half."""

from __future__ import annotations

from ..spec import AttentionSpec, BlockSpec, HalfSpec, MlpSpec, NormSpec

NORMS = (
    NormSpec(
        """
input_dtype = x.dtype
x = x.to(torch.float32)
variance = x.pow(2).mean(-1, keepdim=True)
x = x * torch.rsqrt(variance + self.variance_epsilon)
return self.weight * x.to(input_dtype)
"""
    ),
)
ATTENTIONS = (AttentionSpec(("q_proj", "k_proj", "v_proj")),)
MLPS = (MlpSpec("return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))", ("gate_proj", "up_proj")),)
BLOCKS = (
    BlockSpec(
        attention=HalfSpec("self_attn", before="input_layernorm"),
        mlp=HalfSpec("mlp", before="post_attention_layernorm"),
    ),
)
