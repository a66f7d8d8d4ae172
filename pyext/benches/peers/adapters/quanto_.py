"""Quanto: integers in groups, with a scale and a shift each."""

from __future__ import annotations

from typing import Any

from optimum import quanto

from ..catalogue import Variant
from .base import Ready, linears, tensor_bytes


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    names = list(linears(model))
    kind = {4: quanto.qint4, 2: quanto.qint2}[variant.options["bits"]]
    quanto.quantize(model, weights=kind, include=names)
    quanto.freeze(model)
    layers = {name: model.get_submodule(name) for name in names}
    sizes = sorted({int(layer.weight._group_size or 0) for layer in layers.values()})
    stored = sum(tensor_bytes(layer.weight) for layer in layers.values())
    return Ready(
        model, stored, lambda name: layers[name].weight.dequantize(), (f"groups of {', '.join(map(str, sizes))}",)
    )
