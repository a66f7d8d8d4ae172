"""The result type of adapters, and their helpers: replacing linear layers, counting bytes, decoding by multiplying."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Decoded = Callable[[str], torch.Tensor]


class NotThere(RuntimeError):
    """A library that cannot do what is asked here: a row with a reason, not a failure."""


@dataclass
class Ready:
    """A model that runs with stored layers."""

    model: Any
    stored_bytes: int
    """All that is stored for the weights of the linear layers: scales, zeros, tables and padding too."""
    decoded: Decoded
    """The weight of a layer, as the model multiplies with it, by the layer's name."""
    notes: tuple[str, ...] = ()
    runs: bool = True
    """Whether the model runs with what is stored; otherwise only sizes are known."""
    fell_back: str = ""
    """The part of the weights that another type than the row's has."""


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers by name, lm_head among them where it is no embedding too. The embedding stays in 16 bits for
    everybody."""
    embedding = getattr(getattr(model, "get_input_embeddings", lambda: None)(), "weight", None)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.weight is not embedding
    }


def weights_in(model: nn.Module) -> int:
    """Weights of the linear layers."""
    return sum(layer.in_features * layer.out_features for layer in linears(model).values())


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replaces the module of that name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, or of the tensors that one of a subclass is made of."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(tensor_bytes(getattr(tensor, name)) for name in names)
    return tensor.numel() * tensor.element_size()


def total_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of those that are tensors; one that several share counts once."""
    found = {id(t): t for t in tensors if isinstance(t, torch.Tensor)}
    return sum(map(tensor_bytes, found.values()))


def left_as_they_are(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Which of the layers a library has not quantized: their weights are still plain ones of 16 bits."""
    out = []
    for name in names:
        weight = getattr(model.get_submodule(name), "weight", None)
        if isinstance(weight, torch.Tensor) and not hasattr(weight, "__tensor_flatten__"):
            if weight.dtype in (torch.bfloat16, torch.float16) and type(weight) in (nn.Parameter, torch.Tensor):
                out.append(name)
    return out


def multiplied(layer: nn.Module, columns: int, device: str, at_once: int = 1024) -> torch.Tensor:
    """A layer's weight in bf16, found by multiplying the identity: what its own kernel decodes."""
    parts = []
    for low in range(0, columns, at_once):
        high = min(low + at_once, columns)
        one = torch.zeros(high - low, columns, dtype=torch.bfloat16, device=device)
        one[torch.arange(high - low), torch.arange(low, high)] = 1
        parts.append(layer(one))
    return torch.cat(parts).T
