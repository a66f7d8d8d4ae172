"""torchao: weight-only int8 in rows, and int4 in groups for the kernels that come with torch."""

from __future__ import annotations

from typing import Any

import torch
from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

from ..catalogue import Variant
from .base import NotThere, Ready, left_as_they_are, linears, multiplied, tensor_bytes


def _config(variant: Variant, device: str) -> Any:
    if variant.options["bits"] == 8:
        return Int8WeightOnlyConfig()
    group = variant.options["group"]
    if device != "cpu":
        return Int4WeightOnlyConfig(group_size=group, int4_packing_format="tile_packed_to_4d")
    try:
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    except ImportError:
        from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig
    return PrototypeInt4WeightOnlyConfig(group_size=group)


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    layers = linears(model)
    quantize_(model, _config(variant, device))
    left = left_as_they_are(model, layers)
    if len(left) == len(layers):
        raise NotThere("it quantized none of the layers")
    notes = []
    if left:
        group = variant.options["group"]
        notes.append(f"{len(left)} of {len(layers)} layers stay in 16 bits: their rows are no multiple of {group}")
    weights = [layers[name].weight for name in layers]
    padded = sum(w.qdata.numel() * w.qdata.element_size() for w in weights if hasattr(w, "qdata"))
    if variant.options["bits"] == 4 and padded * 2 > sum(w.numel() for w in weights if hasattr(w, "qdata")):
        notes.append("rows are padded to multiples of 1,024 columns")

    def decoded(name: str) -> torch.Tensor:
        layer = layers[name]
        if variant.options["bits"] == 8 and name not in left:
            return layer.weight.dequantize()
        return layer.weight if name in left else multiplied(layer, layer.in_features, device)

    return Ready(model, sum(tensor_bytes(w) for w in weights), decoded, tuple(notes))
