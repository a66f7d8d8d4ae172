"""Cohere's Command models: attention and MLP both read one LayerNorm without bias, and are added to the residual."""

from __future__ import annotations

from ..spec import BlockSpec, HalfSpec, NormSpec

NORMS = (
    NormSpec(
        """
input_dtype = x.dtype
x = x.to(torch.float32)
mean = x.mean(-1, keepdim=True)
variance = (x - mean).pow(2).mean(-1, keepdim=True)
x = (x - mean) * torch.rsqrt(variance + self.variance_epsilon)
x = self.weight.to(torch.float32) * x
return x.to(input_dtype)
""",
        kind="layer",
        product="float32",
    ),
)
BLOCKS = (
    BlockSpec(
        attention=HalfSpec("self_attn", before="input_layernorm"),
        mlp=HalfSpec("mlp", before="input_layernorm"),
        parallel=True,
    ),
)
