"""Glyd's codec of bytes: every bit of a matrix comes back, and is compared."""

from __future__ import annotations

from typing import Any

import glyd
import torch

from ..catalogue import Variant
from .base import Ready, linears


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    layers = linears(model)
    stored = 0
    for name, layer in layers.items():
        data = layer.weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        packed = glyd.compress(data, level=variant.options["level"])
        if glyd.decompress(packed) != data:
            raise RuntimeError(f"{name}: other bytes come back")
        stored += len(packed)
    return Ready(model, stored, lambda name: layers[name].weight)
