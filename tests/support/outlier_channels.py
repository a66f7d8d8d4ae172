"""A model with input channels that are far larger than others, as large models have; and what an encoding loses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_TIMES, _EVERY = 20.0, 24


@contextmanager
def give_outliers(model: Any) -> Iterator[None]:
    """Some channels of what norms make are larger, and the columns of weights that they meet smaller: the function of a
    model like Llama's is the same."""

    def scale(times: float) -> None:
        with torch.no_grad():
            for layer in model.model.layers:
                attention, mlp = layer.self_attn, layer.mlp
                for norm, products in (
                    (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                    (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
                ):
                    norm.weight[::_EVERY] *= times
                    for product in products:
                        product.weight[:, ::_EVERY] /= times

    scale(_TIMES)
    try:
        yield
    finally:
        scale(1 / _TIMES)


def divergence(model: Any, windows: torch.Tensor, changed: dict[str, torch.Tensor]) -> float:
    """KL(original || changed), nats per token."""
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in changed}
    with torch.no_grad():
        reference = torch.log_softmax(model(windows).logits, -1)
        try:
            for name, value in changed.items():
                parameters[name].copy_(value)
            found = torch.log_softmax(model(windows).logits, -1)
        finally:
            for name, value in before.items():
                parameters[name].copy_(value)
        return float((reference.exp() * (reference - found)).sum(-1).mean())
