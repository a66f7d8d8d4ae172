"""A rank's layers as operators of torch, so that a compiler sees one node where a layer decodes and computes.

An operator cannot take a layer, so it takes the layer's *marker*, a tensor of one element that is found again by its
address. A number or a name would be a constant of the compiled program: engines keep programs in files, and use that of
one layer for others that are alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..._core.errors import InputError

_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


# Operators are defined as torch's own are: the wrappers of ``torch.library.custom_op`` take microseconds at each call.
# They also see to it that results share no memory with inputs, which holds for all results below.
_library = torch.library.Library("wcodec", "FRAGMENT")


def _operator(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"wcodec::{name}", fake, lib=_library)
    return getattr(torch.ops.wcodec, name).default


def marker(layer: Any, dtype: torch.dtype, device: torch.device) -> torch.nn.Parameter:
    """A marker for a layer, which must keep it: the tensor that stands where its weight would be."""
    made = torch.nn.Parameter(torch.zeros(1, dtype=dtype, device=device), requires_grad=False)
    _layers[made.data_ptr()] = layer
    return made


def layer_of(marked: torch.Tensor) -> Any:
    """The layer of a marker."""
    layer = _layers.get(marked.data_ptr())
    if layer is None:
        raise InputError(
            "a compressed layer's weight was moved by the engine (do without its offloading; residency='host' in the "
            "folder's config.json keeps compressed weights in the host's memory)",
            code="I539",
        )
    return layer


def _linear(x: torch.Tensor, marked: torch.Tensor, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
    product: torch.Tensor = layer_of(marked).product(x, bias)
    return product


def _linear_fake(x: torch.Tensor, marked: torch.Tensor, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


def _embedding(ids: torch.Tensor, marked: torch.Tensor, width: int) -> torch.Tensor:
    rows: torch.Tensor = layer_of(marked).look_up(ids)
    return rows


def _embedding_fake(ids: torch.Tensor, marked: torch.Tensor, width: int) -> torch.Tensor:
    return marked.new_empty((*ids.shape, width))


def _experts(x: torch.Tensor, marked: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    mixed: torch.Tensor = layer_of(marked).mix(x, shares, ids)
    return mixed


def _experts_fake(x: torch.Tensor, marked: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


linear = _operator(
    "rank_linear", "(Tensor x, Tensor marked, Tensor? bias, int out_features) -> Tensor", _linear, _linear_fake
)
"""``linear(x, marked, bias, out_features)``: the output of the layer of that marker for ``x``."""

embedding = _operator("rank_embedding", "(Tensor ids, Tensor marked, int width) -> Tensor", _embedding, _embedding_fake)
"""``embedding(ids, marked, width)``: the rows that the layer of that marker has for ``ids``."""

experts = _operator(
    "rank_experts", "(Tensor x, Tensor marked, Tensor shares, Tensor ids) -> Tensor", _experts, _experts_fake
)
"""``experts(x, marked, shares, ids)``: the sum of what the experts ``ids`` make of each token, by their shares."""


def add(half: Any, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two results of a half's last layer, in tensors of one shape."""
    total, scaled = half.added(x, residual)
    # The operator promises a second tensor, which is not read where tokens are many.
    return total, torch.empty_like(total) if scaled is None else scaled


def _normed(x: torch.Tensor, scaled: torch.Tensor | None, marked: torch.Tensor, features: int) -> torch.Tensor:
    products: torch.Tensor = layer_of(marked).half.normed(x, scaled)
    return products


def _normed_fake(x: torch.Tensor, scaled: torch.Tensor | None, marked: torch.Tensor, features: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], features))


def _added(x: torch.Tensor, residual: torch.Tensor, marked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return add(layer_of(marked).half, x, residual)


def _added_fake(x: torch.Tensor, residual: torch.Tensor, marked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(residual), torch.empty_like(residual)


normed = _operator(
    "rank_normed", "(Tensor x, Tensor? scaled, Tensor marked, int features) -> Tensor", _normed, _normed_fake
)
"""``normed(x, scaled, marked, features)``: what the first layer of a half gives for the norm of ``x``."""

added = _operator("rank_added", "(Tensor x, Tensor residual, Tensor marked) -> (Tensor, Tensor)", _added, _added_fake)
"""``added(x, residual, marked)``: ``residual`` and what the last layer of a half makes of ``x``; and that times the
gain of the norm behind it."""
