"""Headers of checkpoints and GGUF files: names, types, shapes and bytes of tensors, none of which is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from .. import _native
from .._core import format as fmt
from .._core.errors import FileMissingError, InputError
from .gguf import GgufFile, is_gguf

# Bits of int8's symbols in a trained model, entropy-coded and with scales: 7.1 to 7.4 in those that were measured.
INT8_BITS = 7.2
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class SourceTensor:
    """A tensor as a header has it.

    :param dtype: safetensors' name of its dtype, or GGUF's of its type.
    :param is_weights: whether its elements are floating point or blocks of quantized ones.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    bytes: int
    is_weights: bool
    file: str

    @property
    def is_matrix(self) -> bool:
        """Whether encoding would quantize it."""
        return self.is_weights and len(self.shape) > 1

    @property
    def bits_per_weight(self) -> float | None:
        """Its bits for each element."""
        return fmt.bits(self.bytes, self.elements)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return {
            "name": self.name, "dtype": self.dtype, "shape": list(self.shape), "elements": self.elements,
            "stored_bytes": self.bytes, "bits_per_weight": self.bits_per_weight, "file": self.file,
        }  # fmt: skip


@dataclass(frozen=True)
class Headers:
    """The headers of a source.

    :param kind: ``safetensors`` or ``GGUF``.
    :param length: bytes of all files.
    :param remarks: further remarks, a sentence each.
    """

    place: str
    kind: str
    tensors: list[SourceTensor]
    length: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    def bytes_with(self, bits: float) -> int:
        """Bytes of all tensors if matrices had so many bits for each weight, and others stayed as they are."""
        return round(sum(t.elements * bits / 8 if t.is_matrix else t.bytes for t in self.tensors))


def of_path(path: str | os.PathLike[str]) -> Headers:
    """Those of a ``.safetensors`` or ``.gguf`` file, or of the folder of a checkpoint.

    :raises FormatError: if one is damaged.
    :raises InputError: if a folder has several GGUF files.
    """
    place = Path(path)
    if place.is_dir() and not _safetensors_in(place):
        place /= only(os.fspath(path), [p.name for p in place.glob("*.gguf")])
    if place.is_file() and is_gguf(place):
        return of_gguf(GgufFile(place), os.fspath(path))
    places = _native.checkpoint(place, False)[0]
    by_file: dict[str, list[str]] = {}
    for name, file in places:
        by_file.setdefault(os.fspath(file), []).append(name)
    tensors: list[SourceTensor] = []
    metadata: dict[str, str] = {}
    for file, names in by_file.items():
        record = _header(Path(file))
        metadata.update(record.pop("__metadata__", None) or {})
        tensors += [of_entry(name, record[name], Path(file).name) for name in names]
    length = sum(os.path.getsize(file) for file in by_file)
    return Headers(os.fspath(path), "safetensors", tensors, length, metadata)


def of_gguf(file: GgufFile, place: str, length: int | None = None) -> Headers:
    """Those of an open GGUF file.

    :param length: bytes of the whole file, where only its beginning is there.
    """
    name = Path(place).name
    remarks: list[str] = []
    if file.part is not None:
        remarks.append(f"it is part {file.part[0]} of {file.part[1]}: other tensors are in the others")
    missing = sum(tensor.missing for tensor in file.tensors) if length is None else 0
    if missing:
        remarks.append(f"it was cut off: {fmt.size(missing)} of its tensors are missing")
    unknown = sorted({tensor.kind for tensor in file.tensors if not tensor.decoded})
    if unknown:
        remarks.append(f"not decoded: {', '.join(unknown)}")
    tensors = [
        SourceTensor(t.name, t.kind, t.shape, t.elements, t.bytes, t.dtype is None or t.dtype in _FLOATS, name)
        for t in file.tensors
    ]
    return Headers(place, "GGUF", tensors, length or file.length, file.metadata, tuple(remarks))


def of_entry(name: str, entry: Mapping[str, Any], file: str) -> SourceTensor:
    """A tensor of a safetensors header."""
    begin, end = entry["data_offsets"]
    shape = tuple(int(n) for n in entry["shape"])
    dtype = str(entry["dtype"])
    is_weights = dtype in _FLOATS or dtype.startswith("F8")
    return SourceTensor(name, dtype, shape, prod(shape), end - begin, is_weights, file)


def only(place: str, names: Iterable[str]) -> str:
    """The one GGUF file of a place.

    :raises FileMissingError: if there is none.
    :raises InputError: if there are several.
    """
    ordered = sorted(names)
    if not ordered:
        raise FileMissingError(
            f"{place}: there is no .wcodec, .safetensors or .gguf file in it (check the path)", file=place, code="O301"
        )
    if len(ordered) > 1:
        more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
        listed = ", ".join(ordered[:5]) + more
        raise InputError(
            f"{place}: there are {len(ordered)} GGUF files: {listed} (name one of them: {place.rstrip('/')}/FILE)",
            file=place,
            code="I201",
        )
    return ordered[0]


def _safetensors_in(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors.index.json"))


def _header(file: Path) -> dict[str, Any]:
    """The header of a file that the native module has checked."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header: dict[str, Any] = json.loads(stream.read(length))
    return header


__all__ = ["INT8_BITS", "Headers", "SourceTensor", "of_entry", "of_gguf", "of_path", "only"]
