"""bitsandbytes: LLM.int8() and NF4, by its own layers."""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import torch
from torch import nn

from ..catalogue import Variant
from .base import NotThere, Ready, linears, put, total_bytes


def _four(layer: nn.Linear, device: str) -> nn.Module:
    new = bnb.nn.Linear4bit(
        layer.in_features, layer.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta"
    )
    weight = bnb.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=new)
    new.weight = weight.to(device)
    return new


def _eight(layer: nn.Linear, threshold: float, device: str) -> nn.Module:
    new = bnb.nn.Linear8bitLt(
        layer.in_features, layer.out_features, bias=False, has_fp16_weights=False, threshold=threshold, device="meta"
    )
    # It quantizes what comes from the CPU, and nothing else.
    weight = bnb.nn.Int8Params(layer.weight.data.cpu(), requires_grad=False, has_fp16_weights=False)
    new.weight = weight.to(device)
    if new.weight.dtype != torch.int8:
        raise NotThere("bitsandbytes left a weight as it was")
    return new


def _decoded_four(layer: Any) -> torch.Tensor:
    weight = layer.weight
    if getattr(weight.quant_state, "packing_format_for_cpu", False):
        # Packed anew for a CPU's kernel, from which only the kernel reads.
        from .base import multiplied

        return multiplied(layer, layer.in_features, "cpu")
    return bnb.functional.dequantize_4bit(weight.data, weight.quant_state)


def _decoded_eight(layer: Any) -> torch.Tensor:
    # The layer takes both from its weight when it first runs.
    rows = layer.weight.CB if layer.weight.CB is not None else layer.state.CB
    scales = layer.weight.SCB if layer.weight.SCB is not None else layer.state.SCB
    return rows.float() * (scales.float()[:, None] / 127)


def _bytes(layer: Any) -> int:
    """Bytes of a layer as checkpoints store it: state_dict() has scales and tables too."""
    return total_bytes(layer.state_dict().values())


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    four = variant.options["bits"] == 4
    stored = 0
    for name, layer in linears(model).items():
        new = _four(layer, device) if four else _eight(layer, variant.options["threshold"], device)
        put(model, name, new)
        stored += _bytes(new)
    decode = _decoded_four if four else _decoded_eight
    return Ready(model, stored, lambda name: decode(model.get_submodule(name)))
