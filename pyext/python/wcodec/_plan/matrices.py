"""The weights of a model under the names that files have for them, and a model that has other ones for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._core.options import exactly
from .._file.container import Container
from .._models.checkpoint import Checkpoint
from .._models.choose import need_weights, nothing_to_compress
from .._models.find import find, key_of
from .._models.names import Match, match

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParameterSlice:
    """A tensor of a file: a parameter, or some rows of one expert's matrix in a stack."""

    name: str
    parameter: str
    expert: int | None = None
    rows: tuple[int, int] | None = None
    transposed: bool = False
    """Whether it has a row for each input."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its part of the parameter."""
        matrix = tensor if self.expert is None else tensor[self.expert]
        return matrix if self.rows is None else matrix[self.rows[0] : self.rows[1]]


class Matrices:
    """The matrices of a model's linear layers, experts and head, tied ones once.

    :param keys: names of the tensors of the checkpoint that the model was loaded from; if left out, they are named as
        in the model, and experts as :func:`wcodec.compress_` names them.
    :param shape_of: shapes of these tensors.
    :raises InputError: if there are none.
    """

    def __init__(
        self, model: Any, keys: Iterable[str] | None = None, shape_of: Callable[[str], Shape] | None = None
    ) -> None:
        self.model = model
        candidates, skipped = find(model, [], [], True)
        need_weights(candidates)
        linear = [c for c in candidates if not isinstance(c.module, torch.nn.Embedding)]
        if not linear:
            raise nothing_to_compress(type(model).__name__, model, skipped)
        names_of_layers = [name for c in linear for names in c.tensors for name in names]
        matching = match(model, names_of_layers if keys is None else keys)
        self.pieces: list[ParameterSlice] = []
        seen = set()
        for candidate in linear:
            for name, parameter in candidate.parameters.items():
                if key_of(parameter) not in seen:
                    seen.add(key_of(parameter))
                    self.pieces += _pieces(matching, name, parameter, shape_of, candidate.kind == "conv1d")

    @classmethod
    def of_folder(cls, model: Any, folder: Path | None) -> Matrices:
        """Those of a model by their names in the checkpoint that it was loaded from, if it was."""
        if folder is None:
            return cls(model)
        checkpoint = Checkpoint(folder)
        return cls(model, checkpoint, checkpoint.shape)

    @property
    def elements(self) -> int:
        """Number of weights."""
        return sum(self.tensor(piece).numel() for piece in self.pieces)

    @property
    def transpose(self) -> list[str]:
        """Patterns of those that have a row for each input, for :func:`wcodec.compress`."""
        return [exactly(piece.name) for piece in self.pieces if piece.transposed]

    def tensor(self, piece: ParameterSlice) -> torch.Tensor:
        """One of them, as the model has it now."""
        return piece.of(self.model.get_parameter(piece.parameter).detach())

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them, as a checkpoint has them."""
        return {piece.name: self.tensor(piece) for piece in self.pieces}

    @contextmanager
    def mapped(self, function: Callable[[Any], Any]) -> Iterator[None]:
        """The model with matrices that a function of NumPy makes of its own, outputs as rows."""

        def value(piece: ParameterSlice) -> torch.Tensor:
            tensor = self.tensor(piece).to("cpu", torch.float32)
            tensor = tensor.t() if piece.transposed else tensor
            made = torch.from_numpy(function(tensor.contiguous().numpy()))
            return made.t() if piece.transposed else made

        with replaced(self.model, self.pieces, value):
            yield


def pieces_of(model: Any, container: Container, schemes: Iterable[str] = ("rate", "int8")) -> list[ParameterSlice]:
    """The tensors of a container that are parameters of a model, of schemes that change them."""
    wanted = set(schemes)
    matching = match(model, list(container))
    pieces: list[ParameterSlice] = []
    for name, parameter in model.named_parameters():
        if name in matching.single or name in matching.experts:
            pieces += _pieces(matching, name, parameter, lambda key: container[key].shape, False)
    return [piece for piece in pieces if container[piece.name].scheme in wanted]


def _pieces(
    matching: Match, name: str, parameter: torch.Tensor, shape_of: Callable[[str], Shape] | None, transposed: bool
) -> list[ParameterSlice]:
    """The tensors of a file that a parameter consists of."""
    if name in matching.single:
        key = matching.single[name]
        if parameter.dim() == 3 and shape_of is None:
            return [ParameterSlice(key, name)]
        return [ParameterSlice(key, name, transposed=transposed)]
    out = []
    for i, keys in enumerate(matching.stack(name)):
        at = 0
        for key in keys:
            rows = parameter.shape[1] // len(keys) if shape_of is None else shape_of(key)[0]
            part = None if len(keys) == 1 else (at, at + rows)
            out.append(ParameterSlice(key, name, i, part))
            at += rows
    return out


@contextmanager
def replaced(
    model: Any, pieces: Iterable[ParameterSlice], value: Callable[[ParameterSlice], torch.Tensor]
) -> Iterator[None]:
    """A model some of whose weights are others, in copies of its parameters; the originals come back at the end."""
    by_parameter: dict[str, list[ParameterSlice]] = {}
    for piece in pieces:
        by_parameter.setdefault(piece.parameter, []).append(piece)
    originals: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    try:
        for name, parts in by_parameter.items():
            parameter = model.get_parameter(name)
            # A copy is not needed if all of it is replaced, but the pieces may be some experts only.
            copy = parameter.detach().clone()
            for piece in parts:
                place = piece.of(copy)
                place.copy_(value(piece).reshape(place.shape))
            originals.append((parameter, parameter.data))
            parameter.data = copy
        yield
    finally:
        for parameter, original in originals:
            parameter.data = original


def decoded(model: Any, container: Container, threads: int | None = None) -> Callable[[ParameterSlice], torch.Tensor]:
    """A function that decodes a piece from a container, in the dtype that the model computes in."""

    def value(piece: ParameterSlice) -> torch.Tensor:
        dtype = model.get_parameter(piece.parameter).dtype
        return container[piece.name].torch(dtype, threads=threads)

    return value
