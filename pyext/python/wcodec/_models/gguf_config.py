"""Parts of a config that a GGUF file has and transformers does not read from it.

Widths of experts and the number of positions are among its metadata. Rotations of Llama 3.1 and later are not:
llama.cpp keeps what its conversion made of them, a factor for each frequency in ``rope_freqs.weight``. With the numbers
that all these models have in common the config is found again, or it is an error: a model that goes on without the
factors is another one, also on short texts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.errors import UnsupportedError
from .._file.gguf import GgufFile

_TENSOR = "rope_freqs.weight"
_LOW, _HIGH, _LENGTH = 1.0, 4.0, 8192
# The file has them in float32.
_NEAR = 1e-4


# Attributes of configs, by the ends of keys.
_LEFT_OUT = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "context_length": "n_positions",
}


def restore(file: GgufFile, config: Any) -> None:
    """Sets what transformers left out of a config.

    :raises UnsupportedError: if its rotations are of another kind than those of Llama 3.
    """
    for key, attribute in _LEFT_OUT.items():
        value = file.metadata.get(f"{file.architecture}.{key}", "")
        if value.isdigit() and hasattr(config, attribute):
            setattr(config, attribute, int(value))
    _rotations(file, config)


def _rotations(file: GgufFile, config: Any) -> None:
    if _TENSOR not in file:
        return
    factors = file.read(_TENSOR, "F32").view(np.float32)
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if np.allclose(factors, 1.0) or rope.get("rope_type", "default") != "default":
        return
    base, factor = float(rope.get("rope_theta") or 10_000.0), float(factors.max())
    if not np.allclose(factors, _llama3(base, factor, len(factors)), rtol=_NEAR):
        raise UnsupportedError(
            f"{file.path}: its rotations (rope_freqs.weight) are of a kind that transformers does not read from GGUF "
            "(take the checkpoint that it was made from)",
            file=file.path,
            tensor=_TENSOR,
            code="U309",
        )
    config.rope_parameters = {
        **rope, "rope_type": "llama3", "rope_theta": base, "factor": factor, "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH, "original_max_position_embeddings": _LENGTH,
    }  # fmt: skip


def _llama3(base: float, factor: float, count: int) -> npt.NDArray[np.float64]:
    """The divisors of frequencies."""
    out = np.ones(count)
    for i in range(count):
        wave = 2 * math.pi * base ** (i / count)
        if wave > _LENGTH / _LOW:
            out[i] = factor
        elif wave >= _LENGTH / _HIGH:
            smooth = (_LENGTH / wave - _LOW) / (_HIGH - _LOW)
            out[i] = 1 / ((1 - smooth) / factor + smooth)
    return out


__all__ = ["restore"]
