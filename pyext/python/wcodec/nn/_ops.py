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
