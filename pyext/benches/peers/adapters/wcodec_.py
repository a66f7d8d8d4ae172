"""wcodec: compressed in place; streamed from the host's memory where the variant says so."""

from __future__ import annotations

from typing import Any

import wcodec

from ..catalogue import Variant
from .base import Ready


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    options = dict(variant.options)
    fuse = options.pop("fuse", False) and device != "cpu"
    # Products from compressed weights are for GPUs; on a CPU rans is smaller and faster.
    if device == "cpu":
        options.pop("coder", None)
        options.pop("table_bits", None)
    report = wcodec.compress_(model, embeddings=False, progress=False, fused=fuse, **options)
    notes = [f"coder {options.get('coder', 'rans')}"]
    if fuse:
        notes.append("products straight from compressed weights up to 16 tokens, whole blocks")
    return Ready(model, report.stored_bytes, lambda name: model.get_submodule(name).weight, tuple(notes))
