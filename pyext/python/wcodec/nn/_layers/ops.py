"""The layers as operators of torch, so that ``torch.compile`` sees one node where a layer decodes and computes.

An operator cannot take a layer, so it takes a tensor without elements whose shape says the number of one: torch
compiles one program for all tensors that differ in their shapes only, and so for all blocks that are alike, but another
for each number. Nothing is decoded while a program is compiled.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from ..._core.errors import InputError
from .gradients import bias_gradient

# Keys start so high that no other extent equals one of them: the compiler takes equal extents for one.
_FIRST = 1 << 40
_numbers = itertools.count(_FIRST)
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(layer: Any, device: Any = "cpu") -> torch.Tensor:
    """Gives operators what they know the layer by, as long as it lives; on the device where they run."""
    number = next(_numbers)
    _layers[number] = layer
    return torch.empty((0, number), device=device)


def moved(key: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The key of a layer that went to another device."""
    return key if key.device == device else torch.empty(key.shape, device=device)


def _layer(key: torch.Tensor) -> Any:
    number = key.shape[1]
    layer = _layers.get(number)
    if layer is None:
        raise InputError(
            f"there is no compressed layer {number - _FIRST} any more (compile the model again)", code="I542"
        )
    return layer


def _linear(x: torch.Tensor, bias: torch.Tensor | None, layer: torch.Tensor, out_features: int) -> torch.Tensor:
    # The weight is decoded to the input's dtype: autocast was applied before, where the compiler sees it.
    if not torch.is_autocast_enabled(x.device.type):
        return _layer(layer)._product(x, bias)
    with torch.autocast(x.device.type, enabled=False):
        return _layer(layer)._product(x, bias)


def _linear_fake(x: torch.Tensor, bias: torch.Tensor | None, layer: torch.Tensor, out_features: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


def _linear_gradient(grad: torch.Tensor, layer: torch.Tensor, in_features: int) -> torch.Tensor:
    with torch.autocast(grad.device.type, enabled=False):
        gradient: torch.Tensor = _layer(layer)._input_gradient(grad, None)
        # An operator's result lies in memory as its fake says.
        return gradient.contiguous()


def _linear_gradient_fake(grad: torch.Tensor, layer: torch.Tensor, in_features: int) -> torch.Tensor:
    return grad.new_empty((*grad.shape[:-1], in_features))


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, _, layer, _ = inputs
    ctx.save_for_backward(layer)
    ctx.in_features = x.shape[-1]


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    (layer,) = ctx.saved_tensors
    of_x = linear_gradient(grad, layer, ctx.in_features) if ctx.needs_input_grad[0] else None
    of_bias = bias_gradient(grad) if ctx.needs_input_grad[1] else None
    return of_x, of_bias, None, None


def _embedding(ids: torch.Tensor, layer: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    return _layer(layer)._look_up(ids)


def _embedding_fake(ids: torch.Tensor, layer: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    return ids.new_empty((*ids.shape, width), dtype=dtype)


linear = torch.library.custom_op(
    "wcodec::linear",
    _linear,
    mutates_args=(),
    schema="(Tensor x, Tensor? bias, Tensor layer, int out_features) -> Tensor",
)
"""``linear(x, bias, layer, out_features)``: the output of the linear layer of that key for ``x``."""
linear.register_fake(_linear_fake)

linear_gradient = torch.library.custom_op(
    "wcodec::linear_gradient",
    _linear_gradient,
    mutates_args=(),
    schema="(Tensor grad, Tensor layer, int in_features) -> Tensor",
)
"""``linear_gradient(grad, layer, in_features)``: the gradient of that layer's input, from that of its output."""
linear_gradient.register_fake(_linear_gradient_fake)
linear.register_autograd(_linear_backward, setup_context=_linear_context)

embedding = torch.library.custom_op(
    "wcodec::embedding",
    _embedding,
    mutates_args=(),
    schema="(Tensor ids, Tensor layer, int width, ScalarType dtype) -> Tensor",
)
"""``embedding(ids, layer, width, dtype)``: the rows that the embedding of that key has for ``ids``."""
embedding.register_fake(_embedding_fake)


def _weight(layer: torch.Tensor, place: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    weight: torch.Tensor = _layer(layer)._own_weight(dtype, place)
    return weight


def _weight_fake(layer: torch.Tensor, place: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return layer.new_empty(shape, dtype=dtype)


weight = torch.library.custom_op(
    "wcodec::weight",
    _weight,
    mutates_args=(),
    schema="(Tensor layer, int place, SymInt[] shape, ScalarType dtype) -> Tensor",
)
"""``weight(layer, place, shape, dtype)``: the decoded weight of that layer, which of several."""
weight.register_fake(_weight_fake)


def _linears(x: torch.Tensor, group: torch.Tensor, total: int) -> torch.Tensor:
    products: torch.Tensor = _layer(group).flat(x)
    return products


def _linears_fake(x: torch.Tensor, group: torch.Tensor, total: int) -> torch.Tensor:
    return x.new_empty(x.numel() // x.shape[-1] * total)


linears = torch.library.custom_op(
    "wcodec::linears", _linears, mutates_args=(), schema="(Tensor x, Tensor group, int total) -> Tensor"
)
"""``linears(x, group, total)``: the outputs of the layers of the group of that key for ``x``, one behind the other."""
linears.register_fake(_linears_fake)


def _half(number: int) -> Any:
    return ("attention", "mlp")[number]


def _normed(h: torch.Tensor, scaled: torch.Tensor | None, block: torch.Tensor, half: int, total: int) -> torch.Tensor:
    products: torch.Tensor = _layer(block).normed(_half(half), h, scaled)
    return products


def _normed_fake(
    h: torch.Tensor, scaled: torch.Tensor | None, block: torch.Tensor, half: int, total: int
) -> torch.Tensor:
    return h.new_empty(h.numel() // h.shape[-1] * total)


normed = torch.library.custom_op(
    "wcodec::normed",
    _normed,
    mutates_args=(),
    schema="(Tensor h, Tensor? scaled, Tensor block, int half, int total) -> Tensor",
)
"""``normed(h, scaled, block, half, total)``: outputs of the first layers of a block's half for the norm of ``h``."""
normed.register_fake(_normed_fake)


def _added(
    x: torch.Tensor, residual: torch.Tensor, block: torch.Tensor, half: int, scales: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y, scaled = _layer(block).added(_half(half), x, residual, scales)
    if scaled is None:
        # The next norm changed since this was compiled, so that its input is not read; but its shape was promised.
        scaled = torch.empty_like(residual) if scales else x.new_empty(0)
    return y, scaled


def _added_fake(
    x: torch.Tensor, residual: torch.Tensor, block: torch.Tensor, half: int, scales: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(residual), torch.empty_like(residual) if scales else x.new_empty(0)


added = torch.library.custom_op(
    "wcodec::added",
    _added,
    mutates_args=(),
    schema="(Tensor x, Tensor residual, Tensor block, int half, bool scales) -> (Tensor, Tensor)",
)
"""``added(x, residual, block, half, scales)``: ``residual`` and what a half's last layer makes of ``x``."""
added.register_fake(_added_fake)
