"""GGUF: types of llama.cpp, quantized and decoded by llama.cpp's own functions."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from .. import real
from ..catalogue import Variant
from .base import Ready, linears
from .ggml import Library


def library(package: str, pattern: str) -> Library:
    """The shared object of a package, which is not imported itself."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"there is no package {package}")
    paths = sorted(Path(found.submodule_search_locations[0]).glob(pattern))
    if not paths:
        raise ImportError(f"{package} has no {pattern}")
    return Library(paths[0])


def prepared(library: Library, model: Any, variant: Variant) -> Ready:
    """The linear layers in a type."""
    kind = variant.options["type"]
    importance = real.importance(model) if variant.given else {}
    layers = linears(model)
    stored, others = 0, Counter[str]()
    decoded: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        found = library.stored(kind, layer.weight.detach().float().cpu().numpy(), importance.get(name))
        stored += found.data.nbytes
        decoded[name] = torch.from_numpy(found.decoded)
        if found.type != kind:
            others[found.type] += layer.weight.numel()
    total = sum(layer.weight.numel() for layer in layers.values())
    notes = [f"{100 * count / total:.0f} % as {other}" for other, count in others.items()]
    return Ready(model, stored, decoded.__getitem__, fell_back=", ".join(notes))


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    return prepared(library("xllamacpp", "*.so"), model, variant)
