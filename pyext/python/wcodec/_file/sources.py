"""Sources for compression: paths, and mappings from names to arrays, torch tensors or entries of a container."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._core import dtypes
from .._core.errors import InputError
from .._core.options import path_of, shown, text_of
from .._gpu import torch as _torch
from . import folder_kinds
from .container import Container, TensorEntry

if TYPE_CHECKING:
    import torch

    from .._native import _Declared, _OnDevice, _Source, _TensorSource

Tensors = Mapping[str, Any]
Source = str | os.PathLike[str] | Tensors


class Described(Mapping[str, Any]):
    """Tensors, and text that belongs to the whole."""

    metadata: Mapping[str, str]


class Declared(Mapping[str, Any]):
    """Tensors that are made when they are asked for, and of which it can be said before what they are."""

    def declared(self, name: str) -> tuple[str, list[int]] | None:
        """Dtype and shape of a tensor; ``None`` where only reading it tells."""
        return None


def native_source(source: Source) -> _Source:
    """The source in the form that the native module takes."""
    if isinstance(source, Mapping):
        return tensor_source(source)
    path = path_of(source)
    if os.path.isdir(path):
        folder_kinds.check_weights(Path(path))
    return path


def tensor_source(source: Tensors, metadata: Mapping[str, str] | None = None) -> _TensorSource:
    """A source from a mapping of tensors. The metadata of the mapping, such as a container's, are taken if none are
    given."""
    names = list(source)
    files: dict[str, None] = {}
    declared: list[_Declared] = []
    first_of: dict[tuple[Any, ...], str] = {}
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"names of tensors must be text and not empty, not {shown(name)}", code="I404")
        text_of("the name of a tensor", name)
        old = source.declared(name) if isinstance(source, Declared) else None
        if old is not None:
            declared.append((name, *old, None))
            continue
        value = source[name]
        dtype, shape, identity = _describe(name, value)
        files.update(dict.fromkeys(_files_of(value)))
        if not isinstance(value, TensorEntry) and source[name] is not value:
            # The mapping makes its arrays on demand: the next one may get this one's address without being tied to it.
            identity = None
        alias_of = None if identity is None else first_of.setdefault(identity, name)
        declared.append((name, dtype, shape, None if alias_of == name else alias_of))
    if metadata is None:
        metadata = source.metadata if isinstance(source, Container | Described) else {}

    def read(index: int, device: bool) -> npt.NDArray[np.uint8] | _OnDevice:
        name = names[index]
        value = source[name]
        old, new = declared[index][1:3], _describe(name, value)[:2]
        if new != old:
            raise InputError(
                f"tensor '{name}': it changed while it was read, from {old[0]} of shape {old[1]} to {new[0]} of "
                f"shape {new[1]} (pass arrays that stay as they are until the work is done)",
                tensor=name,
                code="I407",
            )
        return _bytes_of(name, value, device)

    return declared, read, dict(metadata), list(files)


def _describe(name: str, value: object) -> tuple[str, list[int], tuple[Any, ...] | None]:
    """Dtype, shape, and a key that is equal for tensors that share their data (none where nothing can)."""
    if _torch.is_tensor(value):
        tensor: Any = value
        return _torch.name_of(tensor, name), list(tensor.shape), _torch.identity(tensor)
    if isinstance(value, TensorEntry):
        return value.dtype, list(value.shape), (id(value._container), value._stored_name)
    if isinstance(value, np.generic):
        return dtypes.name_of(value.dtype, name), [], None
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            f"tensor '{name}': a masked array, whose mask would be lost (fill it first: .filled(0))",
            tensor=name,
            code="I406",
        )
    if isinstance(value, np.ndarray):
        return dtypes.name_of(value.dtype, name), list(value.shape), _identity(value)
    kind = type(value).__name__
    raise InputError(
        f"tensor '{name}': expected a NumPy array or a torch tensor, not {kind} (convert it with numpy.asarray)",
        tensor=name,
        code="I404",
    )


def torch_tensor(name: str, value: Any) -> torch.Tensor:
    """A tensor of a source as torch has it; a copy only where that takes one."""
    if _torch.is_tensor(value):
        tensor: torch.Tensor = value.detach()
        return tensor
    if isinstance(value, TensorEntry):
        return value.torch()
    dtype, shape, _ = _describe(name, value)
    data = dtypes.bytes_of(np.asarray(value))
    # torch has no tensors that cannot be written to.
    return _torch.from_bytes(data if data.flags.writeable else data.copy(), dtype, tuple(shape))


def _files_of(value: Any) -> Iterator[str]:
    """The files that a tensor is read from, as far as it says so."""
    if isinstance(value, TensorEntry):
        if value._container.path is not None:
            yield value._container.path
        return
    while isinstance(value, np.ndarray):
        name = getattr(value, "filename", None) if isinstance(value, np.memmap) else None
        if name is not None:
            yield path_of(name)
        value = value.base


def _identity(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    if array.size == 0:
        return None
    return ("numpy", array.ctypes.data, array.shape, array.strides, array.dtype.str, array.dtype.name)


def _bytes_of(name: str, value: Any, device: bool) -> npt.NDArray[np.uint8] | _OnDevice:
    """The bytes of a tensor or, with ``device``, where a GPU has them."""
    if _torch.is_tensor(value):
        return (_torch.on_device(value, name) if device else None) or _torch.bytes_of(value, name)
    if isinstance(value, TensorEntry):
        return value._bytes(None, None)
    return dtypes.bytes_of(np.asarray(value))
