"""The tensors of a compressed folder that an engine's loaders are given, by the names that checkpoints have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ..._core import dtypes
from ..._core.errors import FileMissingError, InputError, UnsupportedError
from ..._core.foreign import read_json
from ..._file.container import Container, TensorEntry
from ..._file.quantized import kept_in
from ..._gpu import torch as _torch
from ..._models.checkpoint import Checkpoint
from ..._models.folder import container_of, has_all
from .deferred import Region, Source

# An expert of a stack, as compress_ names it.
_OF_STACK = re.compile(r"(.+)\.(0|[1-9][0-9]{0,8})", re.DOTALL)


class Weights:
    """The tensors of a folder's container, as :class:`Source` where they are compressed matrices; of a folder of an
    earlier version also those of its ``.safetensors`` file, which are read when they are asked for.

    It must live until layers have taken what they need.

    :param folder: as :func:`wcodec.save_pretrained` or ``wcodec encode FOLDER -o DIR/`` wrote it.
    """

    def __init__(self, folder: Path) -> None:
        file = container_of(folder)
        if file is None:
            raise FileMissingError(
                f"{folder}: its config says that the weights are compressed, and there is no .wcodec file "
                "(put it back, or save the model again)",
                file=folder,
                code="O302",
            )
        self.file = file
        self.container = Container.open(file)
        if kept_in(self.container).tensors:
            raise UnsupportedError(
                f"{file}: it keeps codes and scales of an FP8 checkpoint, which the plug-in of vLLM does not read "
                "(encode the checkpoint with int8 or --bits, or give vLLM the checkpoint itself)",
                file=file,
                code="U211",
            )
        # Earlier versions have what is not compressed in another file.
        is_complete = has_all(read_json(folder / "config.json")) or not any(folder.glob("*.safetensors"))
        self._rest = None if is_complete else Checkpoint(folder, rest=True)
        self._sources: dict[str, Source] = {}
        # For each source, the tensors that are its matrices.
        self._names: dict[Source, tuple[str, ...]] = {}
        stacks: dict[str, dict[int, str]] = {}
        for name in self.container:
            entry = self.container[name]
            if not is_compressed(entry):
                continue
            of_stack = _OF_STACK.fullmatch(name)
            if of_stack:
                stacks.setdefault(of_stack[1], {})[int(of_stack[2])] = name
            else:
                self._add(name, (name,), entry.shape)
        for name, members in stacks.items():
            self._add_stack(name, members)

    def _add(self, name: str, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
        def read(region: Region) -> torch.Tensor:
            parts = [self._data(*part) for part in _within(names, shape[-2], Region(region.rows, region.cols))]
            tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
            return tensor.t() if region.transposed else tensor

        made = self._sources[name] = Source(name, shape, _torch.dtype_of(self.container[names[0]].dtype), read)
        self._names[made] = names

    def _add_stack(self, name: str, members: dict[int, str]) -> None:
        entries = [self.container[members[i]] for i in sorted(members)]
        shape, dtype = entries[0].shape, entries[0].dtype
        for i in range(max(members) + 1):
            if i not in members:
                raise InputError(
                    f"{self.file}: '{name}' misses expert {i} (save the model again)", file=self.file, code="I507"
                )
        if any((entry.shape, entry.dtype) != (shape, dtype) for entry in entries):
            raise InputError(
                f"{self.file}: '{name}' has experts of several shapes (save the model again)",
                file=self.file,
                code="I507",
            )
        self._add(name, tuple(members[i] for i in sorted(members)), (len(members), *shape))

    def entry(self, name: str) -> TensorEntry:
        """The stored tensor of that name, a tied one resolved."""
        entry = self.container[name]
        return entry if entry.alias_of is None else self.container[entry.alias_of]

    def matrices(self, source: Source, region: Region) -> list[tuple[str, Region]]:
        """The stored matrices that a part of a source lies in, with what it is of each."""
        return _within(self._names[source], source.shape[-2], region)

    def _data(self, name: str, region: Region) -> torch.Tensor:
        """A part of a stored matrix, decoded by the CPU: no more of it than has to be."""
        entry = self.entry(name)
        rows = region.rows
        is_whole = rows == (0, entry.shape[0]) or not entry.cut
        decoded = entry.torch()[slice(*rows)] if is_whole else entry.torch_rows(*rows)
        return decoded[:, slice(*region.cols)]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors, those of a module behind each other."""
        names = {**dict.fromkeys(self._rest or ()), **dict.fromkeys(self._plain()), **dict.fromkeys(self._sources)}
        for name in sorted(names, key=_in_order):
            yield name, self._tensor(name)

    def by_checkpoint_names(self, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors by the names of the checkpoint that a model of transformers is saved as: a folder that
        :func:`wcodec.save_pretrained` wrote has those of the model's parameters."""
        from .names import as_saved

        renamed = as_saved(config, {name: tensor for name, tensor in self if isinstance(tensor, torch.Tensor)})
        for name in sorted(renamed, key=_in_order):
            yield name, renamed[name]

    def _plain(self) -> Iterator[str]:
        """Tensors of the container that are not compressed, or no matrices."""
        return (name for name in self.container if not is_compressed(self.container[name]))

    def _tensor(self, name: str) -> torch.Tensor:
        if name in self._sources:
            return self._sources[name].tensor
        if self._rest is not None and name in self._rest:
            return self._rest[name]
        return self.container[name].torch()


def _within(names: tuple[str, ...], rows: int, region: Region) -> list[tuple[str, Region]]:
    """The matrices that a region lies in, with its part of each; all have ``rows`` rows and lie one below the other."""
    begin, end = region.rows
    regions = []
    for place in range(begin // rows, -(-end // rows)):
        at = place * rows
        part = max(begin - at, 0), min(end - at, rows)
        regions.append((names[place], Region(part, region.cols, region.transposed)))
    return regions


def is_compressed(entry: TensorEntry) -> bool:
    """Whether a layer can compute with it as it is stored."""
    if len(entry.shape) != 2 or entry.count != 1 or 0 in entry.shape or entry.dtype not in dtypes.FLOATS:
        return False
    return entry.makes_symbols or entry.coder != "raw"


def _in_order(name: str) -> list[tuple[int, int | str]]:
    """Sorts numbers in names as numbers."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in name.split(".")]


def settings_of(record: Mapping[str, Any], only_given: bool = False) -> dict[str, Any]:
    """The settings of a folder's config, or the engine's, that say where compressed bytes are."""
    names = ("residency", "vram_budget", "cache")
    return {name: record.get(name) for name in names if name in record or not only_given}
