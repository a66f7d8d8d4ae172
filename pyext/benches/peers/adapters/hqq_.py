"""HQQ: half-quadratic quantization, by its own layers or by the kernels that it hands them to."""

from __future__ import annotations

from typing import Any

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from hqq.utils.patching import prepare_for_inference

from ..catalogue import Variant
from .base import NotThere, Ready, linears, multiplied, put, total_bytes


def _tensors(layer: Any) -> list[Any]:
    """Those that a layer is stored as, whoever multiplies with them."""
    if isinstance(layer, HQQLinear):
        return [layer.W_q, *layer.meta.values()]
    plain = [*layer.parameters(), *layer.buffers()]
    # Not registered in the layers of other kernels.
    return plain + [v for v in vars(layer).values() if isinstance(v, torch.Tensor)]


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    config = BaseQuantizeConfig(nbits=variant.options.get("bits", 4), group_size=variant.options["group"], axis=1)
    layers = linears(model)
    columns = {name: layer.in_features for name, layer in layers.items()}
    for name, layer in layers.items():
        put(model, name, HQQLinear(layer, config, compute_dtype=torch.bfloat16, device=device))
    backend = variant.options.get("backend")
    stored = sum(total_bytes(_tensors(model.get_submodule(name))) for name in layers)
    if backend is not None:
        prepare_for_inference(model, backend=backend)
        # A backend that is not there changes nothing, without a word.
        if any(isinstance(model.get_submodule(name), HQQLinear) for name in layers):
            raise NotThere(f"HQQ did not hand its layers to {backend} (is it installed, and does it fit this HQQ?)")
        stored = sum(total_bytes(_tensors(model.get_submodule(name))) for name in layers)

    def decoded(name: str) -> torch.Tensor:
        layer = model.get_submodule(name)
        return layer.dequantize() if isinstance(layer, HQQLinear) else multiplied(layer, columns[name], device)

    return Ready(model, stored, decoded)
