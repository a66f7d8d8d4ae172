"""OLMo 2 and 3, EXAONE 4: norms stand behind the halves only, and multiply with their weights in float32."""

from __future__ import annotations

from ..spec import BlockSpec, HalfSpec, NormSpec

_ROOT = """
input_dtype = x.dtype
x = x.to(torch.float32)
variance = x.pow(2).mean(-1, keepdim=True)
x = x * torch.rsqrt(variance + self.variance_epsilon)
"""
NORMS = (
    NormSpec(_ROOT + "return (self.weight * x).to(input_dtype)", product="float32"),
    NormSpec(_ROOT + "return (self.weight.to(torch.float32) * x).to(input_dtype)", product="float32"),
)
BLOCKS = (
    BlockSpec(
        attention=HalfSpec("self_attn", behind="post_attention_layernorm"),
        mlp=HalfSpec("mlp", behind="post_feedforward_layernorm"),
    ),
)
