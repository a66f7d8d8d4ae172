"""Ordinary checkpoints: safetensors files, read a tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _native
from .._errors import FileMissingError, FormatError


class Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files, one file or shards, each read when it is asked for. Opening reads headers only.

    Which file has which tensor, and whether that fits together, is for the native module to say, as for every encoding.

    :param path: a folder, or a file.
    :param rest: whether the folder may have only what is not compressed of a model.
    :param files: of the folder, those to read, as transformers chose them; of a tensor that several have, the last
        counts, as for transformers.
    """

    def __init__(self, path: Path, rest: bool = False, files: Sequence[Path] | None = None) -> None:
        from safetensors import SafetensorError, safe_open

        if (
            files is None
            and path.is_dir()
            and not any(path.glob("*.safetensors"))
            and not any(path.glob("*.safetensors.index.json"))
        ):
            raise FileMissingError(
                f"{path}: there is no .wcodec and no .safetensors file in it "
                "(name the folder of a model; convert .bin files to .safetensors first)",
                file=path,
            )
        self.path = path
        self._files: dict[str, Any] = {}
        opened: dict[str, Any] = {}
        found = (pair for one in files or [path] for pair in _native.checkpoint(one, rest)[0])
        for name, place in found:
            file = str(place)
            if file not in opened:
                try:
                    opened[file] = safe_open(file, framework="pt")
                except SafetensorError as error:
                    raise FormatError(
                        f"{file}: not a safetensors file: {error} (download it again)", file=file
                    ) from None
            self._files[name] = opened[file]
        self.files = [Path(file).name for file in opened]
        """Names of the files that are read."""

    def __getitem__(self, key: str) -> torch.Tensor:
        found: torch.Tensor = self._files[key].get_tensor(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return tuple(self._files[key].get_slice(key).get_shape())

    def of_stack(self, key: str, index: int) -> torch.Tensor:
        """One matrix of a stack, read without the others."""
        return self._files[key].get_slice(key)[index].contiguous()

    def rows(self, keys: tuple[str, ...]) -> torch.Tensor:
        """Tensors one below the other."""
        parts = [self[key] for key in keys]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Lazy(Mapping[str, torch.Tensor]):
    """Tensors to compress, read from a checkpoint when they are needed: no two are in memory at once."""

    def __init__(self, checkpoint: Checkpoint, keys: Mapping[str, tuple[str, ...]], stacks: Mapping[str, int]) -> None:
        self._checkpoint, self._stacks = checkpoint, stacks
        self.keys_of = keys
        """By name, the tensors of the checkpoint that one is made of."""

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._stacks:
            return self._checkpoint.of_stack(self.keys_of[name][0], self._stacks[name])
        return self._checkpoint.rows(self.keys_of[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_of)

    def __len__(self) -> int:
        return len(self.keys_of)
