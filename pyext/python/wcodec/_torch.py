"""The one module that touches torch. It is imported only where torch tensors come in or are asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._errors import InputError, UnsupportedError

if TYPE_CHECKING:
    import torch

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C64": "complex64",
}
_FROM_TORCH = {f"torch.{word}": name for name, word in _NAMES.items()}


def require() -> Any:
    """torch, or an error that says how to get it."""
    try:
        import torch
    except ImportError:
        raise UnsupportedError("torch is not installed (pip install torch, or ask for NumPy arrays)") from None
    return torch


def is_tensor(value: object) -> bool:
    """Whether the value is a torch tensor; never imports torch, for without it there is none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def name_of(tensor: torch.Tensor, name: str) -> str:
    """The safetensors name of a tensor's dtype; refuses what has no plain bytes."""
    dtype = _FROM_TORCH.get(str(tensor.dtype))
    if dtype is None:
        raise InputError(f"tensor '{name}': dtype {tensor.dtype} cannot be stored (convert it)", tensor=name)
    if tensor.layout != require().strided or tensor.is_quantized:
        raise InputError(f"tensor '{name}': only dense tensors can be stored (densify it first)", tensor=name)
    if tensor.device.type == "meta":
        raise InputError(f"tensor '{name}': it is on the meta device and has no data (load the weights)", tensor=name)
    return dtype


def identity(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Equal for two tensors that are the same elements of one storage; none for an empty one."""
    if tensor.numel() == 0:
        return None
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype))


def bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The tensor's elements, row-major, as bytes on the CPU; a copy only where that takes one."""
    torch = require()
    plain = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous().reshape(-1)
    if plain.is_complex():
        plain = torch.view_as_real(plain).reshape(-1)
    data: npt.NDArray[np.uint8] = plain.view(torch.uint8).numpy()
    return data


def from_bytes(data: npt.NDArray[np.uint8], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A CPU tensor over the bytes, without a copy."""
    torch = require()
    dtype = getattr(torch, _NAMES[name], None)
    if dtype is None:
        raise UnsupportedError(f"this torch has no dtype for {name} (install a newer torch)")
    if data.size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def cast(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor in the dtype of that safetensors name."""
    return tensor.to(getattr(require(), _NAMES[name]))
