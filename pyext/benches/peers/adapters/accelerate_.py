"""accelerate's cpu_offload: weights in bf16 in the host's memory, sent layer by layer."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import cpu_offload

from ..catalogue import Variant
from .base import Ready, linears, tensor_bytes


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    layers = linears(model)
    stored = sum(tensor_bytes(layer.weight) for layer in layers.values())
    model = cpu_offload(model.to("cpu"), execution_device=torch.device(device))
    return Ready(model, stored, lambda name: layers[name].weight)
