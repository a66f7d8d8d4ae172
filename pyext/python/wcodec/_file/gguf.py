"""GGUF files, as llama.cpp writes them: what is in one, and what there is to say of encoding it. Needs no torch."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _native
from .._core import format as fmt
from .._core.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The dtype of what blocks are decoded to.
_VALUES = "BF16"


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file.

    :param kind: GGUF's name of its type, such as ``Q4_K``.
    :param dtype: the dtype, where elements are stored as numbers and not in blocks.
    :param decoded: whether its weights can be had as numbers.
    :param missing: the number of its bytes that the file lacks.
    """

    name: str
    kind: str
    dtype: str | None
    decoded: bool
    shape: tuple[int, ...]
    elements: int
    offset: int
    bytes: int
    missing: int


class GgufFile:
    """An open file. Opening reads the header only.

    :raises FormatError: if it is no such file, or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._open = _native.Gguf(self.path)
        records: list[dict[str, Any]] = json.loads(self._open.tensors())
        self.tensors = [GgufTensor(**{**record, "shape": tuple(record["shape"])}) for record in records]
        self.metadata = self._open.metadata()
        """Its metadata, each value as a short text."""
        self._places = {tensor.name: place for place, tensor in enumerate(self.tensors)}

    def __getitem__(self, name: str) -> GgufTensor:
        return self.tensors[self._places[name]]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model's architecture."""
        return self.metadata.get("general.architecture", "")

    @property
    def length(self) -> int:
        """Bytes of the file."""
        return self._open.length()

    @property
    def part(self) -> tuple[int, int] | None:
        """Which part of a split file it is, from 1 on, and of how many."""
        return self._open.part()

    @property
    def in_blocks(self) -> bool:
        """Whether weights of it are quantized."""
        return any(tensor.dtype is None for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """The dtype of its weights as numbers: bfloat16 if they are in blocks, otherwise the shorter one that it has,
        since norms are in float32 beside weights."""
        dtypes = {tensor.dtype for tensor in self.tensors}
        return next((dtype for dtype in (None, "BF16", "F16") if dtype in dtypes), "F32") or _VALUES

    @property
    def most(self) -> str:
        """The type that most weights have."""
        sums: Counter[str] = Counter()
        for tensor in self.tensors:
            sums[tensor.kind] += tensor.elements
        return sums.most_common(1)[0][0] if sums else "-"

    @property
    def bits_per_weight(self) -> float | None:
        """Bits for each weight of it, everything counted; nothing where there is none."""
        return fmt.bits(self.length, sum(tensor.elements for tensor in self.tensors))

    def read(self, name: str, dtype: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes: in ``dtype`` (F32, F16 or BF16) where it is stored in blocks, as they are otherwise."""
        place = self._places[name]
        words, length = self._open.read(place, 0, self.tensors[place].elements, dtype)
        data: npt.NDArray[np.uint8] = words.view("u1")[:length]
        return data

    def check(self) -> None:
        """Whether it is a whole file whose tensors can be read.

        :raises UnsupportedError: if it is a part of a split one, or has types that are not decoded.
        """
        if self.part is not None:
            number, count = self.part
            raise UnsupportedError(
                f"{self.path}: this is part {number} of {count} of a split GGUF file (put the parts together: "
                "llama-gguf-split --merge FIRST OUT.gguf)",
                file=self.path,
                code="U307",
            )
        other = next((tensor for tensor in self.tensors if not tensor.decoded), None)
        if other is not None:
            kind = f"GGUF's type {other.kind.removeprefix('type ')}"
            raise UnsupportedError(
                f"{self.path}: tensor '{other.name}': its weights are of {kind}, which is not decoded (take a file of "
                "another type, such as Q8_0 or Q4_K)",
                file=self.path,
                tensor=other.name,
                code="U308",
            )


def is_gguf(source: object) -> bool:
    """Whether a source is a path of a GGUF file, by its first bytes."""
    return isinstance(source, str | os.PathLike) and _native.Gguf.is_one(os.fspath(source))


def remark(source: object, stored: int) -> str | None:
    """A remark on encoding a file whose weights are quantized already; nothing on other sources.

    :param stored: bytes of what was made of it.
    """
    if not is_gguf(source):
        return None
    assert isinstance(source, str | os.PathLike)
    file = GgufFile(source)
    if not file.in_blocks:
        return None
    of = f"{file.most}, {fmt.number(file.bits_per_weight)} bits/weight, {fmt.size(file.length)}"
    text = (
        f"{file.path.name} is quantized already ({of}): quantizing it again adds to its error; the checkpoint that it "
        "was made from gives more quality for the same size"
    )
    return text if stored < file.length else f"{text}; this is larger than it, and not better"


__all__ = ["GgufFile", "GgufTensor", "is_gguf", "remark"]
