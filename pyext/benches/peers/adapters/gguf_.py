"""GGUF: the types that the package gguf quantizes, which it then decodes to bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants

from ..catalogue import Variant
from .base import Ready, linears


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    kind = GGMLQuantizationType[variant.options["type"]]
    layers = linears(model)
    stored = 0
    for layer in layers.values():
        data = quants.quantize(layer.weight.float().cpu().numpy().astype(np.float32), kind)
        stored += data.nbytes
        layer.weight.data.copy_(torch.from_numpy(quants.dequantize(data, kind)))
    return Ready(model, stored, lambda name: layers[name].weight)
