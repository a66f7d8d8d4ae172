"""All access to torch and its tensors. Torch is imported only where its tensors come in or are asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from .._core.dtypes import no_such_shape
from .._core.errors import DeviceError, InputError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from .._native import _OnDevice

T = TypeVar("T")

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
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
        raise UnsupportedError(
            "torch is not installed (pip install torch, or ask for NumPy arrays)", code="U201"
        ) from None
    return torch


def is_tensor(value: object) -> bool:
    """Whether the value is a torch tensor; never imports torch, for without it there is none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def name_of(tensor: torch.Tensor, name: str) -> str:
    """The safetensors name of a tensor's dtype; refuses what has no plain bytes."""
    _refuse_wrapper(tensor, name)
    dtype = _FROM_TORCH.get(str(tensor.dtype))
    if dtype is None:
        raise InputError(
            f"tensor '{name}': dtype {tensor.dtype} cannot be stored (convert it)", tensor=name, code="I405"
        )
    if tensor.layout != require().strided or tensor.is_quantized:
        raise InputError(
            f"tensor '{name}': only dense tensors can be stored (densify it first)", tensor=name, code="I406"
        )
    if tensor.device.type == "meta":
        raise InputError(
            f"tensor '{name}': it is on the meta device and has no data (load the weights)", tensor=name, code="I408"
        )
    return dtype


def _refuse_wrapper(tensor: torch.Tensor, name: str) -> None:
    """Refuses tensors that have their elements in other tensors, of which none is at an address of their own."""
    torch = require()
    kind = type(tensor)
    if getattr(kind, "_gives_elements", False):
        # A compressed weight, which decodes for whoever reads it.
        return
    if hasattr(tensor, "full_tensor"):
        advice = "gather it on every rank first: .full_tensor()"
    elif tensor.is_nested:
        advice = "pad it first: torch.nested.to_padded_tensor, or store its parts: .unbind()"
    elif isinstance(tensor, getattr(torch.nn.parameter, "UninitializedTensorMixin", ())):
        advice = "run the model once, which gives it a shape"
    elif kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        advice = "make a plain tensor of it first, as .dequantize() does where there is one"
    elif _is_transformed(torch, tensor):
        advice = "store the tensor that torch.func was called with"
    else:
        return
    what = "a nested tensor" if kind.__name__ in ("Tensor", "Parameter") and tensor.is_nested else f"a {kind.__name__}"
    raise InputError(f"tensor '{name}': {what} has its elements in other tensors ({advice})", tensor=name, code="I406")


def _is_transformed(torch: Any, tensor: torch.Tensor) -> bool:
    """Whether it is of a transformation of functions that is going on."""
    functorch = getattr(torch._C, "_functorch", None)
    asked = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return asked is not None and bool(asked(tensor))


def identity(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Equal for two tensors that are the same elements of one storage, seen in the same way; none where there are no
    elements, or none in memory."""
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return None
    # Lazy conjugation and negation: both change elements between memory and the tensor's values.
    seen = tensor.is_conj(), tensor.is_neg()
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype), *seen)


def on_device(tensor: torch.Tensor, name: str) -> _OnDevice | None:
    """The tensor's elements in a GPU's memory, row-major: the GPU's number, their address and bytes, torch's current
    stream, and the tensor that keeps them alive. ``None`` where only torch can read them."""
    torch = require()
    if tensor.device.type != "cuda" or torch.version.hip or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    _must_be_there(tensor, name)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    stream = torch.cuda.current_stream(plain.device).cuda_stream
    return plain.get_device(), plain.data_ptr(), plain.numel() * plain.element_size(), stream, plain


def _must_be_there(tensor: torch.Tensor, name: str) -> None:
    """Refuses a tensor whose memory was given back, as training with sharded weights does between steps."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    reach = (tensor.storage_offset() + last + 1) * tensor.element_size()
    if tensor.numel() and tensor.untyped_storage().nbytes() < reach:
        raise InputError(f"tensor '{name}': its memory was freed (gather the weights first)", tensor=name, code="I408")


def bytes_of(tensor: torch.Tensor, name: str) -> npt.NDArray[np.uint8]:
    """The tensor's elements, row-major, as bytes on the CPU; a copy only where that takes one."""
    torch = require()
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        _must_be_there(tensor, name)
    try:
        plain = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous().reshape(-1)
        if plain.is_complex():
            plain = torch.view_as_real(plain).reshape(-1)
        data: npt.NDArray[np.uint8] = plain.view(torch.uint8).numpy()
    except (TypeError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, getattr(torch, "OutOfMemoryError", ())) or type(tensor) is torch.Tensor:
            raise
        # Classes of others may refuse whatever they like.
        raise InputError(
            f"tensor '{name}': a {type(tensor).__name__} does not give its elements: {error} "
            "(make a plain tensor of it first)",
            tensor=name,
            code="I406",
        ) from None
    return data


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of that safetensors name."""
    dtype: torch.dtype | None = getattr(require(), _NAMES.get(name, name), None)
    if dtype is None:
        raise UnsupportedError(f"this torch has no dtype for {name} (install a newer torch)", code="U401")
    return dtype


def word_of(name: str) -> str:
    """Torch's spelling of the dtype of that safetensors name."""
    return f"torch.{_NAMES.get(name, name)}"


def from_bytes(data: npt.NDArray[np.uint8], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A CPU tensor over the bytes, without a copy."""
    torch = require()
    dtype = dtype_of(name)
    try:
        if data.size == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.from_numpy(data).view(dtype).reshape(shape)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        # Extents and products beyond its 64 bits, each in another way.
        raise no_such_shape("torch", shape) from None


def cast(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor in the dtype of that safetensors name."""
    return tensor.to(getattr(require(), _NAMES[name]))


def check_output(out: Any, tensor: str, shape: tuple[int, ...], device: torch.device | None = None) -> str:
    """The safetensors name of the dtype of an output that a tensor is to be decoded into, if that can be done."""

    def refuse(what: str, advice: str, *, code: str) -> InputError:
        return InputError(f"tensor '{tensor}': the output {what} ({advice})", code=code, tensor=tensor)

    if not is_tensor(out):
        raise refuse(f"is of type {type(out).__name__}", "pass a torch tensor", code="I431")
    if device is not None and out.device != device:
        raise refuse(f"is on {out.device}", f"pass a tensor on {device}", code="I431")
    if tuple(out.shape) != shape:
        raise refuse(f"has shape {list(out.shape)}", f"pass a tensor of shape {list(shape)}", code="I431")
    if out.layout != require().strided or not out.is_contiguous() or out.is_conj() or out.is_neg():
        raise refuse("is not contiguous", "decode into a contiguous tensor, and copy from that", code="I431")
    name = _FROM_TORCH.get(str(out.dtype))
    if name is None:
        raise refuse(f"has dtype {out.dtype}", "pass a tensor of the dtype to decode to", code="I431")
    return name


def overwrite(out: torch.Tensor, source: torch.Tensor) -> None:
    """Copies to a tensor, whatever autograd has to do with it."""
    torch = require()
    with torch.inference_mode(out.is_inference()), torch.no_grad():
        out.copy_(source)


def changed(out: torch.Tensor) -> None:
    """Tells autograd that a tensor's memory was written: a graph that saved it for its backward pass must notice."""
    increment = getattr(require().autograd.graph, "increment_version", None)
    if increment is not None and not out.is_inference():
        increment(out)


def with_spare(device: torch.device, take: Callable[[], T]) -> T:
    """The result of ``take``, which allocates memory of the GPU. If memory is short, torch's allocator releases what it
    only caches, and ``take`` is called again."""
    try:
        return take()
    except DeviceError:
        cuda = require().cuda
        spare = cuda.memory_reserved(device) - cuda.memory_allocated(device)
        if spare <= 0 or cuda.is_current_stream_capturing():
            raise
        cuda.empty_cache()
        return take()
