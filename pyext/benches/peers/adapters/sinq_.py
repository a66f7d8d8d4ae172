"""SINQ: integers in groups, after scales of rows and columns that make both alike."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import torch

from ..catalogue import Variant
from .base import Ready, linears, put, total_bytes

# It patches transformers where it is not told otherwise.
os.environ["SINQ_AUTO_PATCH"] = "0"
# Loads texts for the calibrated variants, which are not measured; a package of a hundred megabytes.
sys.modules.setdefault("datasets", types.SimpleNamespace(load_dataset=None))  # type: ignore[arg-type]

from sinq.sinqlinear import SINQLinear, sinq_base_quant_config  # noqa: E402


def _tensors(found: Any) -> list[torch.Tensor]:
    """Those in a layer's description; scales that are quantized again are in tuples there."""
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    return [t for part in found for t in _tensors(part)] if isinstance(found, list | tuple) else []


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    config = sinq_base_quant_config(nbits=variant.options["bits"], group_size=variant.options["group"], method="sinq")
    layers: dict[str, Any] = {}
    for name, layer in linears(model).items():
        layers[name] = SINQLinear(layer, config, compute_dtype=torch.bfloat16, device=device)
        put(model, name, layers[name])
    stored = sum(total_bytes(_tensors([layer.W_q, layer.meta])) for layer in layers.values())
    return Ready(model, stored, lambda name: layers[name].dequantize())
