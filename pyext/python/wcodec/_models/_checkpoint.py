"""Ordinary checkpoints: safetensors files, read a tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import _native, _quantized, _torch
from .._errors import FileMissingError, FormatError


class Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files, one file or shards, each read when it is asked for. Opening reads headers only.

    Which file has which tensor, and whether that fits together, is for the native module to say, as for every encoding.
    Weights that are quantized already, as FP8 or MXFP4, are read as values, without their scales.

    :param path: a folder, or a file.
    :param rest: whether the folder may have only what is not compressed of a model.
    :raises UnsupportedError: if weights are quantized in another way.
    """

    def __init__(self, path: Path, rest: bool = False) -> None:
        from safetensors import SafetensorError, safe_open

        if path.is_dir() and not any(path.glob("*.safetensors")) and not any(path.glob("*.safetensors.index.json")):
            raise FileMissingError(
                f"{path}: there is no .wcodec and no .safetensors file in it "
                "(name the folder of a model; convert .bin files to .safetensors first)",
                file=path,
            )
        self.path = path
        self.quantized = _quantized.of_checkpoint(path, rest)
        self._dtype = _torch.dtype_of(self.quantized.dtype)
        self._files: dict[str, Any] = {}
        opened: dict[str, Any] = {}
        for name, place in _native.checkpoint(path, rest)[0]:
            file = str(place)
            if file not in opened:
                try:
                    opened[file] = safe_open(file, framework="pt")
                except SafetensorError as error:
                    raise FormatError(
                        f"{file}: not a safetensors file: {error} (download it again)", file=file
                    ) from None
            self._files[name] = opened[file]
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

    def of_stack(self, key: str, index: int) -> torch.Tensor:
        """One matrix of a stack, read without the others."""
        quantized = self.quantized.tensors.get(key)
        return self.stored(key, index) if quantized is None else quantized.matrix(index, self.stored, self._dtype)

    def stored(self, name: str, index: int | None = None) -> torch.Tensor:
        """A tensor as the files have it, codes and scales among them; of its first dimension one entry."""
        found: torch.Tensor
        if index is None:
            found = self._files[name].get_tensor(name)
        else:
            found = self._files[name].get_slice(name)[index].contiguous()
        return found

    def rows(self, keys: tuple[str, ...]) -> torch.Tensor:
        """Tensors one below the other."""
        parts = [self[key] for key in keys]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Lazy(Mapping[str, torch.Tensor]):
    """Tensors to compress, read from a checkpoint when they are needed: no two are in memory at once."""

    def __init__(self, checkpoint: Checkpoint, keys: Mapping[str, tuple[str, ...]], stacks: Mapping[str, int]) -> None:
        self.checkpoint, self.stacks = checkpoint, stacks
        """Where they are read from; by name, which matrix of a stack one is."""
        self.keys_of = keys
        """By name, the tensors of the checkpoint that one is made of."""

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self.stacks:
            return self.checkpoint.of_stack(self.keys_of[name][0], self.stacks[name])
        return self.checkpoint.rows(self.keys_of[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_of)

    def __len__(self) -> int:
        return len(self.keys_of)
