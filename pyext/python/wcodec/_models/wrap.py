"""Compressed layers in the places of a model's own ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .._file.container import Container
from ..nn import CompressedConv1D, CompressedEmbedding, CompressedExperts, CompressedLayer, CompressedLinear
from ..nn._layers.forms import form_of
from ..nn._weights.placement import Settings
from ..nn._weights.store import Store
from ..nn.linear import CompressedSumLinear
from ..nn.own import compressed_module
from . import methods
from .choose import Selection
from .find import Candidate
from .kinds import is_scaled

_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks"),
    *("_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)


def wrap(
    model: torch.nn.Module, selection: Selection, container: Container, settings: Settings, fused: bool, **place: Any
) -> tuple[Store, list[CompressedLayer]]:
    """Puts layers of a container in the places of those that were selected.

    :param place: the ``device`` of the layers, where it is not theirs.
    :returns: the store that they share, and the layers in the order of the selection.
    """
    store = Store(container, selection.groups, routed=selection.routed, **settings, fuses=bool(fused))
    layers = [compressed(candidate, store, **place) for candidate in selection.layers]
    swap(model, {candidate.module: layer for candidate, layer in zip(selection.layers, layers, strict=True)})
    store.serve(model)
    methods.mark(model)
    return store, layers


def compressed(candidate: Candidate, store: Store, **place: Any) -> CompressedLayer:
    """The layer of a store for a candidate."""
    module = candidate.module
    parameter = next(iter(candidate.parameters.values()))
    where = {"dtype": parameter.dtype, "device": parameter.device, **place}
    name = candidate.tensors[0][0]
    layer: CompressedLayer
    if candidate.kind == "experts" and candidate.known:
        layer = CompressedExperts(store, candidate.tensors, module, parts=candidate.parts, **where)
    elif candidate.kind in ("experts", "own"):
        layer = compressed_module(module, store, candidate.by_key, **where)
    elif candidate.kind == "embedding":
        size = (module.num_embeddings, module.embedding_dim)
        scaled = module if is_scaled(module) else None
        layer = CompressedEmbedding(store, name, *size, module.padding_idx, scaled=scaled, **where)
    else:
        shape = tuple(parameter.shape)
        inputs, outputs = shape if candidate.kind == "conv1d" else shape[::-1]
        layer = _linear_kind(candidate)(store, name, inputs, outputs, module.bias, **where)
        if candidate.kind == "linear":
            layer._of = type(module)
    keep_hooks(module, layer)
    if candidate.kind not in ("experts", "own"):
        keep_attributes(module, layer)
    layer.train(module.training)
    return layer


def _linear_kind(candidate: Candidate) -> type[CompressedLinear]:
    if candidate.kind == "conv1d":
        return CompressedConv1D
    return (
        CompressedSumLinear
        if form_of(type(candidate.module), candidate.module.bias is not None) == "sum"
        else CompressedLinear
    )


def keep_hooks(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Gives a module the hooks of the one whose place it takes: the same, so that who put them there can take them
    away."""
    for name in _HOOKS:
        if getattr(module, name, None):
            other.__dict__[name] = getattr(module, name)


def keep_attributes(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Gives it what code around a module has written to it, or its class, if that is one of its own."""
    if hasattr(module, "_hf_hook"):
        return
    for key, value in module.__dict__.items():
        known = key.startswith("_") or key in other.__dict__ or hasattr(type(other), key)
        if not known and key not in ("forward", "training", "tensor"):
            other.__dict__[key] = value


def swap(model: torch.nn.Module, new: Mapping[Any, torch.nn.Module]) -> None:
    """Puts modules in the places of others, wherever these are, with the biases that they shared with others."""
    made = {id(before): module for before, module in new.items()}
    # Modules that are replaced may have others in them, which their new ones have, too.
    for parent in dict.fromkeys([*model.modules(), *new.values()]):
        # Beside submodules, some classes hold and run them a second time, in a list or as a plain attribute.
        for key, value in list(parent.__dict__.items()):
            if (other := _held(value, made, set())) is not value:
                parent.__dict__[key] = other
    left = {id(p): p for p in model.parameters()}
    for before, module in new.items():
        bias, own_bias = before._parameters.get("bias"), module._parameters.get("bias")
        if bias is not None and own_bias is not None:
            module._parameters["bias"] = left.setdefault(id(bias), own_bias)


def _held(value: Any, new: Mapping[int, torch.nn.Module], seen: set[int]) -> Any:
    """A value with modules exchanged in it; lists and dicts are changed in place, since others may hold them, too."""
    if isinstance(value, torch.nn.Module):
        return new.get(id(value), value)
    if not isinstance(value, list | dict) and type(value) is not tuple or id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, tuple):
        made = tuple(_held(v, new, seen) for v in value)
        return made if any(a is not b for a, b in zip(made, value, strict=True)) else value
    for key, held in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if (other := _held(held, new, seen)) is not held:
            value[key] = other
    return value
