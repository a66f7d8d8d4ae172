"""wcodec: compressed in place, and streamed from the host's memory where the variant says so; in a file for rows that
are there for their quality."""

from __future__ import annotations

from typing import Any

import torch
import wcodec

from .. import real
from ..catalogue import Variant
from .base import Ready, linears


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    options = dict(variant.options)
    if "given" in options:
        return _in_a_file(model, options.pop("given"), options)
    fuse = options.pop("fuse", False) and device != "cpu"
    # Products from compressed weights are for GPUs; on a CPU rans is smaller and faster.
    if device == "cpu":
        options.pop("coder", None)
        options.pop("table_bits", None)
    report = wcodec.compress_(model, embeddings=False, progress=False, fused=fuse, **{"calibrate": False, **options})
    notes = [f"coder {options.get('coder', 'rans')}"]
    if fuse:
        notes.append("products straight from compressed weights up to 16 tokens, whole blocks")
    return Ready(model, report.stored_bytes, lambda name: model.get_submodule(name).weight, tuple(notes))


def _in_a_file(model: Any, given: str, options: dict[str, Any]) -> Ready:
    statistics = real.own_statistics(model, given) if given else None
    weights = {f"{name}.weight": layer.weight.detach() for name, layer in linears(model).items()}
    data, _ = wcodec.compress_to_bytes(weights, calibrate=statistics, **options)
    container = wcodec.open(data)
    return Ready(model, len(data), lambda name: container[f"{name}.weight"].torch(torch.float32))
