"""Gemma 2 and 3: norms before and behind both halves, whose weights are stored without the 1 that they are around."""

from __future__ import annotations

from ..spec import BlockSpec, HalfSpec, NormSpec

NORMS = (
    NormSpec(
        """
output = self._norm(x.float())
output = output * (1.0 + self.weight.float())
return output.type_as(x)
""",
        offset=1.0,
        epsilon="eps",
        product="float32",
        methods={"_norm": "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)"},
    ),
)
BLOCKS = (
    BlockSpec(
        attention=HalfSpec("self_attn", before="input_layernorm", behind="post_attention_layernorm"),
        mlp=HalfSpec("mlp", before="pre_feedforward_layernorm", behind="post_feedforward_layernorm"),
    ),
)
