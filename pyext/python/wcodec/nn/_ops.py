"""The layers as operators of torch, so that ``torch.compile`` sees one node where a layer decodes and computes.

An operator cannot take a layer, so it takes the number of one. Nothing is decoded while a program is compiled.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from .._errors import InputError
from ._gradients import bias_gradient

_numbers = itertools.count(1)
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(layer: Any) -> int:
    """A number for the layer, as long as it lives."""
    number = next(_numbers)
    _layers[number] = layer
    return number


def _layer(number: int) -> Any:
    found = _layers.get(number)
    if found is None:
        raise InputError(f"there is no compressed layer {number} any more (compile the model again)")
    return found


def _linear(x: torch.Tensor, bias: torch.Tensor | None, layer: int, out_features: int) -> torch.Tensor:
    # The weight is decoded to the input's dtype: autocast was applied before, where the compiler sees it.
    if not torch.is_autocast_enabled(x.device.type):
        return _layer(layer)._product(x, bias)
    with torch.autocast(x.device.type, enabled=False):
        return _layer(layer)._product(x, bias)


def _linear_fake(x: torch.Tensor, bias: torch.Tensor | None, layer: int, out_features: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


def _linear_gradient(grad: torch.Tensor, layer: int, in_features: int) -> torch.Tensor:
    with torch.autocast(grad.device.type, enabled=False):
        found: torch.Tensor = _layer(layer)._input_gradient(grad, None)
        # An operator's result lies in memory as its fake says.
        return found.contiguous()


def _linear_gradient_fake(grad: torch.Tensor, layer: int, in_features: int) -> torch.Tensor:
    return grad.new_empty((*grad.shape[:-1], in_features))


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, _, layer, _ = inputs
    ctx.layer, ctx.in_features = layer, x.shape[-1]


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    of_x = linear_gradient(grad, ctx.layer, ctx.in_features) if ctx.needs_input_grad[0] else None
    of_bias = bias_gradient(grad) if ctx.needs_input_grad[1] else None
    return of_x, of_bias, None, None


def _embedding(ids: torch.Tensor, layer: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return _layer(layer)._look_up(ids)


def _embedding_fake(ids: torch.Tensor, layer: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return ids.new_empty((*ids.shape, width), dtype=dtype)


linear = torch.library.custom_op(
    "wcodec::linear",
    _linear,
    mutates_args=(),
    schema="(Tensor x, Tensor? bias, int layer, int out_features) -> Tensor",
)
"""``linear(x, bias, layer, out_features)``: what the linear layer of that number makes of ``x``."""
linear.register_fake(_linear_fake)

linear_gradient = torch.library.custom_op(
    "wcodec::linear_gradient",
    _linear_gradient,
    mutates_args=(),
    schema="(Tensor grad, int layer, int in_features) -> Tensor",
)
"""``linear_gradient(grad, layer, in_features)``: the gradient of that layer's input, from that of its output."""
linear_gradient.register_fake(_linear_gradient_fake)
linear.register_autograd(_linear_backward, setup_context=_linear_context)

embedding = torch.library.custom_op(
    "wcodec::embedding",
    _embedding,
    mutates_args=(),
    schema="(Tensor ids, int layer, int width, ScalarType dtype) -> Tensor",
)
"""``embedding(ids, layer, width, dtype)``: the rows that the embedding of that number has for ``ids``."""
embedding.register_fake(_embedding_fake)


def _linears(x: torch.Tensor, group: int, total: int) -> torch.Tensor:
    found: torch.Tensor = _layer(group).flat(x)
    return found


def _linears_fake(x: torch.Tensor, group: int, total: int) -> torch.Tensor:
    return x.new_empty(x.numel() // x.shape[-1] * total)


linears = torch.library.custom_op(
    "wcodec::linears", _linears, mutates_args=(), schema="(Tensor x, int group, int total) -> Tensor"
)
"""``linears(x, group, total)``: what the layers of the group of that number make of ``x``, one behind the other."""
linears.register_fake(_linears_fake)


def _half(number: int) -> Any:
    return ("attention", "mlp")[number]


def _normed(h: torch.Tensor, scaled: torch.Tensor | None, block: int, half: int, total: int) -> torch.Tensor:
    found: torch.Tensor = _layer(block).normed(_half(half), h, scaled)
    return found


def _normed_fake(h: torch.Tensor, scaled: torch.Tensor | None, block: int, half: int, total: int) -> torch.Tensor:
    return h.new_empty(h.numel() // h.shape[-1] * total)


normed = torch.library.custom_op(
    "wcodec::normed",
    _normed,
    mutates_args=(),
    schema="(Tensor h, Tensor? scaled, int block, int half, int total) -> Tensor",
)
"""``normed(h, scaled, block, half, total)``: what the first layers of a block's half make of the norm of ``h``."""
normed.register_fake(_normed_fake)


def _added(
    x: torch.Tensor, residual: torch.Tensor, block: int, half: int, scales: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y, scaled = _layer(block).added(_half(half), x, residual, scales)
    if scaled is None:
        # Nobody looks at it, whose norm is not what it was when this was compiled; its shape is promised.
        scaled = torch.empty_like(residual) if scales else x.new_empty(0)
    return y, scaled


def _added_fake(
    x: torch.Tensor, residual: torch.Tensor, block: int, half: int, scales: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(residual), torch.empty_like(residual) if scales else x.new_empty(0)


added = torch.library.custom_op(
    "wcodec::added",
    _added,
    mutates_args=(),
    schema="(Tensor x, Tensor residual, int block, int half, bool scales) -> (Tensor, Tensor)",
)
"""``added(x, residual, block, half, scales)``: ``residual`` and what a half's last layer makes of ``x``."""
added.register_fake(_added_fake)
