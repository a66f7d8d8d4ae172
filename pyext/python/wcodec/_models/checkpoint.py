"""Ordinary checkpoints: safetensors files, read a tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _native
from .._core.errors import FileMissingError, FormatError
from .._file import quantized as _quantized
from .._file.container import Container
from .._file.sources import Declared
from .._gpu import torch as _torch
from ..nn._layers.layer import contents


class Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files, one file or shards, each read when it is asked for. Opening reads headers only.

    Which file has which tensor, and whether that fits together, is for the native module to say, as for every encoding.
    Weights that are quantized already, as FP8 or MXFP4, are read as values, without their scales.

    :param path: a folder, or a file.
    :param rest: whether the folder may have only those tensors of a model that are not compressed.
    :param files: the folder's files to read, as transformers chose them; if several have a tensor, the last counts, as
        for transformers.
    :raises UnsupportedError: if weights are quantized in another way.
    """

    is_local = True
    """Whether its files are here, so that others can read them."""

    def __init__(self, path: Path, rest: bool = False, files: Sequence[Path] | None = None) -> None:
        from safetensors import SafetensorError, safe_open

        if (
            files is None
            and path.is_dir()
            and not any(path.glob("*.safetensors"))
            and not any(path.glob("*.safetensors.index.json"))
            and not any(path.glob("*.wcodec"))
        ):
            raise FileMissingError(
                f"{path}: there is no .wcodec and no .safetensors file in it "
                "(name the folder of a model; convert .bin files to .safetensors first)",
                file=path,
                code="O301",
            )
        self.path = path
        self.quantized = _quantized.of_checkpoint(path, rest)
        self._dtype = _torch.dtype_of(self.quantized.dtype)
        self._files: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        opened: dict[str, Any] = {}
        places = (pair for one in files or [path] for pair in _native.checkpoint(one, rest)[0])
        for name, place in places:
            file = str(place)
            if file not in opened:
                try:
                    opened[file] = safe_open(file, framework="pt")
                except SafetensorError as error:
                    raise FormatError(
                        f"{file}: not a safetensors file: {error} (download it again)", file=file, code="F104"
                    ) from None
            self._files[name], self._places[name] = opened[file], file
        self._opened = list(opened)
        self.files = [Path(file).name for file in opened]
        """Names of the files that are read."""
        self._names = {name: name for name in self.quantized.names(list(self._files))}

    def __getitem__(self, key: str) -> torch.Tensor:
        quantized = self.quantized.tensors.get(key)
        if quantized is not None:
            return quantized.values(self.stored(quantized.codes), self.stored(quantized.scales), self._dtype)
        return self.stored(self._names[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        quantized = self.quantized.tensors.get(key)
        return quantized.shape if quantized else tuple(self._files[key].get_slice(key).get_shape())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor of floats, in which transformers computes where no config says another."""
        names = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        stored_dtypes = (self._files[key].get_slice(key).get_dtype() for key in self._files)
        return next((names[name] for name in stored_dtypes if name in names), self._dtype)

    def is_float(self, key: str) -> bool:
        """Whether a tensor has elements that are rounded when it is encoded: of 16 or 32 bits."""
        return key in self.quantized.tensors or self._files[key].get_slice(key).get_dtype() in ("F32", "F16", "BF16")

    def dtype_name(self, key: str) -> str:
        """The dtype of a tensor's values, as safetensors files call it, without reading it."""
        if key in self.quantized.tensors:
            return self.quantized.dtype
        return str(self._files[self._names[key]].get_slice(self._names[key]).get_dtype())

    def same(self, key: str, other: str) -> bool:
        """Whether two tensors have the same values."""
        return self.shape(key) == self.shape(other) and torch.equal(self[key], self[other])

    def of_stack(self, key: str, index: int) -> torch.Tensor:
        """One matrix of a stack, read without the others."""
        quantized = self.quantized.tensors.get(key)
        return self.stored(key, index) if quantized is None else quantized.matrix(index, self.stored, self._dtype)

    def stored(self, name: str, index: int | None = None) -> torch.Tensor:
        """A tensor as the files have it, codes and scales among them; of its first dimension one entry."""
        tensor: torch.Tensor
        if index is None:
            tensor = self._files[name].get_tensor(name)
        else:
            tensor = self._files[name].get_slice(name)[index].contiguous()
        return tensor

    def rows(self, keys: tuple[str, ...]) -> torch.Tensor:
        """Tensors one below the other."""
        parts = [self[key] for key in keys]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Stored(Mapping[str, torch.Tensor]):
    """The tensors of a compressed model: those of its container, decoded, and those of a checkpoint that has the rest.

    The container's counts if both have one. What it has as codes is values here, and scales are not there.

    :raises UnsupportedError: if the container has weights that another method has quantized.
    """

    def __init__(self, container: Container, rest: Checkpoint | None = None) -> None:
        self.container, self._rest, self.path = container, rest, container.path
        self._quantized = _quantized.of_container(container)
        self._dtype = _torch.dtype_of(self._quantized.dtype)
        self.decoded = dict.fromkeys(self._quantized.names(list(container)))
        """Names of the container's tensors that models have."""
        self._names = dict.fromkeys([*self.decoded, *(rest or ())])

    def __getitem__(self, key: str) -> torch.Tensor:
        quantized = self._quantized.tensors.get(key)
        if quantized is not None:
            codes, scales = (self.container[name].torch() for name in (quantized.codes, quantized.scales))
            return quantized.values(codes, scales, self._dtype)
        return self.container[key].torch() if key in self.decoded or self._rest is None else self._rest[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def has_scales(self, *keys: str) -> bool:
        """Whether any of these says nothing by itself."""
        return any(key in self._quantized.tensors for key in keys)

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape, without decoding it."""
        quantized = self._quantized.tensors.get(key)
        if quantized is not None:
            return quantized.shape
        return self.container[key].shape if key in self.decoded or self._rest is None else self._rest.shape(key)

    def same(self, key: str, other: str) -> bool:
        """Whether two tensors have the same values: decoded only if they are not stored alike."""
        if key in self.container and other in self.container:
            one, two = self.container[key], self.container[other]
            if one.name == two.name or (contents(one) == contents(two) and not self.has_scales(key, other)):
                return True
        return self.shape(key) == self.shape(other) and torch.equal(self[key], self[other])


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is compressed by itself."""

    read: Callable[[], torch.Tensor]
    keys: tuple[str, ...]
    """The tensors of the checkpoint that it is made of."""
    index: int | None = None
    """Its place in a stack, where it is a matrix of one."""
    joined: bool = True
    """Whether it is these tensors, or matrices of them, one below the other."""


class Lazy(Declared):
    """Tensors to compress, read from a checkpoint when they are needed: no two are in memory at once."""

    def __init__(self, checkpoint: Checkpoint, parts: Mapping[str, LazyTensor]) -> None:
        self.checkpoint, self.parts = checkpoint, parts

    @property
    def keys_used(self) -> set[str]:
        """The tensors of the checkpoint that something is made of."""
        return {key for part in self.parts.values() for key in part.keys}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.parts[name].read()

    def declared(self, name: str) -> tuple[str, list[int]] | None:
        """Dtype and shape of a tensor that is one of the checkpoint's, or several of them one below the other."""
        part = self.parts[name]
        if not part.joined:
            return None
        shapes = [self.checkpoint.shape(key)[0 if part.index is None else 1 :] for key in part.keys]
        dtypes = {self.checkpoint.dtype_name(key) for key in part.keys}
        if len(dtypes) > 1 or (len(shapes) > 1 and len({(len(s), *s[1:]) for s in shapes}) > 1):
            return None
        rows = [] if len(shapes) == 1 else [sum(s[0] for s in shapes)]
        return dtypes.pop(), [*rows, *shapes[0][len(rows) :]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)
