"""ik_llama.cpp: its types with a trellis, quantized and decoded by its own functions."""

from __future__ import annotations

from typing import Any

from ..catalogue import Variant
from .base import Ready
from .gguf_ import library, prepared


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    return prepared(library("ik_llama_cpp", "lib/libggml.so"), model, variant)
