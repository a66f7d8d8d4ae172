"""Functions of a library of ggml, called by ctypes: quantizing a matrix as its own programs do, and decoding it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .base import NotThere

Array = npt.NDArray[np.float32]

# Numbers of types in files.
TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ4_NL": 20, "IQ3_S": 21, "IQ2_S": 22, "IQ4_XS": 23, "IQ2_KT": 153,
    "IQ3_KT": 154, "IQ4_KT": 155,
}  # fmt: skip

# The type that a matrix gets whose rows are no whole blocks, as tensor_type_fallback of llama.cpp says
# (src/llama-quant.cpp), and for KT types the same place of ik_llama.cpp.
INSTEAD = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("IQ2_KT", "IQ3_KT", "IQ4_KT"), "IQ4_NL"),
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A matrix as a file has it."""

    type: str
    data: npt.NDArray[np.uint8]
    """A row of bytes for each row."""
    decoded: Array


class _Memory(ctypes.Structure):
    """The argument of ggml_init: room for descriptions of tensors."""

    _fields_ = (("size", ctypes.c_size_t), ("place", ctypes.c_void_p), ("no_allocation", ctypes.c_bool))


class Library:
    """A shared object with ggml in it."""

    def __init__(self, path: Path) -> None:
        # Symbols stay its own: others of these libraries have some of the same names.
        self._library = ctypes.CDLL(str(path))
        number, place = ctypes.c_int64, ctypes.c_void_p
        for name, result, arguments in (
            ("ggml_type_name", ctypes.c_char_p, (ctypes.c_int,)),
            ("ggml_blck_size", number, (ctypes.c_int,)),
            ("ggml_row_size", ctypes.c_size_t, (ctypes.c_int, number)),
            ("ggml_quantize_requires_imatrix", ctypes.c_bool, (ctypes.c_int,)),
            ("ggml_quantize_chunk", ctypes.c_size_t, (ctypes.c_int, place, place, number, number, number, place)),
        ):
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

        # Makes tables of 16-bit floats, without which ik_llama.cpp decodes types of 32 weights to zeros.
        self._library.ggml_init.restype, self._library.ggml_init.argtypes = place, (_Memory,)
        self._library.ggml_init(_Memory(1 << 16, None, True))

    def number(self, kind: str) -> int:
        """The number of a type; raises :class:`NotThere` where the library calls another type by it."""
        found = TYPES[kind]
        name = self._library.ggml_type_name(found) or b""
        if name.decode(errors="replace").lower() != kind.lower():
            raise NotThere(f"the library has {name!r} for {kind}")
        return found

    def fitting(self, kind: str, columns: int) -> str:
        """The type itself, or the one that takes its place where rows are no whole blocks."""
        if columns % self._library.ggml_blck_size(self.number(kind)) == 0:
            return kind
        if kind not in INSTEAD or columns % self._library.ggml_blck_size(self.number(INSTEAD[kind])):
            raise NotThere(f"rows of {columns} weights fit {kind} and nothing that takes its place")
        return INSTEAD[kind]

    def stored(self, kind: str, matrix: Array, importance: Array | None = None) -> Stored:
        """A matrix in a type, or in the one that takes its place.

        :param importance: of its columns.
        """
        rows, columns = matrix.shape
        kind = self.fitting(kind, columns)
        number = self.number(kind)
        if importance is None and self._library.ggml_quantize_requires_imatrix(number):
            raise NotThere(f"{kind} needs an importance matrix")
        if importance is not None and importance.shape != (columns,):
            raise ValueError(f"{columns} columns have importance of the shape {importance.shape}")
        matrix = np.ascontiguousarray(matrix, np.float32)
        known = None if importance is None else np.ascontiguousarray(importance, np.float32)
        data = np.zeros((rows, self._library.ggml_row_size(number, columns)), np.uint8)
        place = None if known is None else known.ctypes.data
        written = self._library.ggml_quantize_chunk(
            number, matrix.ctypes.data, data.ctypes.data, 0, rows, columns, place
        )
        if written != data.nbytes:
            raise ArithmeticError(f"{kind} took {written} bytes, and not {data.nbytes}")
        return Stored(kind, data, self._decoded(kind, data, columns))

    def _decoded(self, kind: str, data: npt.NDArray[np.uint8], columns: int) -> Array:
        # By rows: those of KT types begin with a scale.
        base, _, rest = kind.partition("_")
        name = f"dequantize_row_{base.lower()}_{rest if rest == 'K' else rest.lower()}"
        function = getattr(self._library, name)
        function.restype, function.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        out = np.empty((len(data), columns), np.float32)
        for row, into in zip(data, out, strict=True):
            function(row.ctypes.data, into.ctypes.data, columns)
        return out
