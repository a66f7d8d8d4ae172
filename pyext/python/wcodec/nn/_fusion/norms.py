"""Norms by a kernel of their own, where launches cannot do them as prologue or epilogue: norms behind a layer, and
LayerNorms in front."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ... import _native
from ..._core import dtypes as _dtypes
from .._weights.workspace import is_capturing
from .launches import Norm

_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


@functools.cache
def _kernel(ordinal: int) -> _native.GpuNorms:
    return _native.GpuNorms(ordinal)


# Looked up at each call, which would otherwise take as long as the call.
_dtype_name = functools.cache(lambda dtype: _dtypes.requested(str(dtype)))


def run(
    x: torch.Tensor,
    norm: Norm,
    residual: torch.Tensor | None = None,
    multiplier: float = 1.0,
    after: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``residual + multiplier * norm(x)``, rounded once; and of that what the products behind the RMSNorm ``after``
    take, if there is one."""
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    ordinal: int = x.device.index
    stream = _current_stream(ordinal)
    if is_capturing():
        # A graph that is captured has their addresses, and lives as long as it likes.
        _native.gpu_keep(ordinal, stream, (norm.gain, None if after is None else after.gain))
    y = torch.empty_like(x)
    scaled = None if after is None else torch.empty_like(x)
    call = {
        "dtype": _dtype_name(x.dtype),
        "count": x.numel() // x.shape[-1],
        "cols": x.shape[-1],
        "x": x.data_ptr(),
        "y": y.data_ptr(),
        "kind": norm.kind,
        "epsilon": norm.epsilon,
        "gain": norm.gain.data_ptr(),
        "gain_offset": norm.offset,
        "scale": multiplier,
        "residual": 0 if residual is None else residual.data_ptr(),
        "scaled": 0 if scaled is None else scaled.data_ptr(),
        "next_gain": 0 if after is None else after.gain.data_ptr(),
        "next_offset": 0.0 if after is None else after.offset,
        "next_scale": 1.0 if after is None else after.scale,
    }
    _kernel(ordinal).run(call, stream)
    return y, scaled
