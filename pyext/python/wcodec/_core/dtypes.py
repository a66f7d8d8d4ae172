"""Dtypes: the names of safetensors and what NumPy makes of them.

NumPy itself has no bfloat16 and no 8-bit floats. The types of ``ml_dtypes`` are used if it is installed; without it
bf16 tensors become float32 (which holds every bf16 value exactly), and 8-bit floats are an error that says what to
install.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import FormatError, InputError, UnsupportedError
from .options import shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# As `numpy.dtype.str` is.
_NUMPY = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8", "C64": "<c8",
}  # fmt: skip
_FROM_NUMPY = {code: name for name, code in _NUMPY.items()}
_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
# Only these can be asked for when an int8 tensor is decoded; the scale arithmetic is defined for them.
FLOATS = ("F32", "F16", "BF16")


def ml_dtypes() -> ModuleType | None:
    """The optional package, if it is installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """NumPy's dtype of that name, or ``None`` where this installation has none."""
    import numpy as np

    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    module = ml_dtypes()
    kind = getattr(module, _ML_DTYPES.get(name, ""), None)
    return None if kind is None else np.dtype(kind)


def name_of(dtype: np.dtype[Any], tensor: str | None = None) -> str:
    """The safetensors name of a NumPy dtype, in either byte order."""
    name = _FROM_NUMPY.get(dtype.newbyteorder("<").str)
    if name is not None:
        return name
    for name, kind in _ML_DTYPES.items():
        if dtype.name == kind:
            return name
    where = f"tensor '{tensor}': " if tensor else ""
    raise InputError(
        f"{where}dtype {dtype} cannot be stored (convert the array, or leave it out)", tensor=tensor, code="I405"
    )


def requested(dtype: npt.DTypeLike | str, what: str = "numpy") -> str:
    """``BF16``, ``F16`` or ``F32`` for what a user asks to decode to."""
    name = str(dtype).rsplit(".", 1)[-1] if not isinstance(dtype, type) else dtype.__name__
    for candidate, words in {
        "F32": ("float32", "f32", "F32", "<f4"),
        "F16": ("float16", "f16", "F16", "half", "<f2"),
        "BF16": ("bfloat16", "bf16", "BF16"),
    }.items():
        if name in words:
            return candidate
    raise InputError(f"cannot decode to dtype {name} (use float32, float16 or bfloat16)", code="I423")


def widen_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bf16 bit patterns as float32: exact, NaN payloads included."""
    import numpy as np

    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def reshaped(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The elements in a shape that a file states. NumPy does not support every shape."""
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError):
        if math.prod(shape) != array.size:
            raise FormatError(
                f"{array.size} elements do not fill shape {shown(list(shape))} "
                "(encode the model again, or get the file again)",
                code="F409",
            ) from None
        raise no_such_shape("NumPy", shape) from None


def no_such_shape(library: str, shape: tuple[int, ...]) -> UnsupportedError:
    """Why a tensor that decodes cannot be had as an array: too many dimensions, or extents of more than 63 bits."""
    return UnsupportedError(
        f"{library} has no arrays of shape {shown(list(shape))} (decode the file to .safetensors, which has them)",
        code="U402",
    )


def view_bytes(data: npt.NDArray[np.uint8], name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Bytes of a tensor as an array; without a copy, except that bf16 without ``ml_dtypes`` becomes float32."""
    dtype = numpy_dtype(name)
    if dtype is not None:
        return reshaped(data.view(dtype), shape)
    if name == "BF16":
        return reshaped(widen_bf16(data.view("uint16")), shape)
    raise UnsupportedError(f"NumPy has no dtype for {name} (install ml_dtypes, or use torch)", code="U401")


def bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The array's elements, row-major and little-endian, as bytes; a copy only where that takes one."""
    import numpy as np

    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not np.little_endian):
        array = array.astype(array.dtype.newbyteorder("<"))
    # `reshape` first: a 0-d array cannot be viewed as another size of element.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
