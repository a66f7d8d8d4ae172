"""The original: nothing is changed."""

from __future__ import annotations

from typing import Any

from ..catalogue import Variant
from .base import Ready, linears, tensor_bytes


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    layers = linears(model)
    stored = sum(tensor_bytes(layer.weight) for layer in layers.values())
    return Ready(model, stored, lambda name: layers[name].weight)
