"""Readers of the tensors that a layer of a model is compressed from, out of an ordinary checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from .checkpoint import Checkpoint, LazyTensor
from .find import Candidate

if TYPE_CHECKING:
    from .names import Match


def layer_reads(candidate: Candidate, matching: Match, checkpoint: Checkpoint) -> dict[str, LazyTensor]:
    """The tensors that a layer is compressed from, by their names in the model: a weight, or each expert's matrices."""
    out: dict[str, LazyTensor] = {}
    for name, parameter in candidate.parameters.items():
        if candidate.kind != "experts":
            out[name] = read_whole(name, matching, checkpoint)
        else:
            out.update((f"{name}.{i}", part) for i, part in enumerate(_matrices(name, parameter, matching, checkpoint)))
    return out


def read_whole(name: str, matching: Match, checkpoint: Checkpoint) -> LazyTensor:
    """A whole parameter of a model."""
    joined = name in matching.single
    return LazyTensor(partial(matching.value, name, checkpoint.__getitem__), matching.keys(name), joined=joined)


def tensor(key: str, checkpoint: Checkpoint) -> LazyTensor:
    """A tensor of the checkpoint as it is."""
    return LazyTensor(partial(checkpoint.__getitem__, key), (key,))


def _matrices(name: str, parameter: torch.Tensor, matching: Match, checkpoint: Checkpoint) -> list[LazyTensor]:
    """The matrices of a stack."""
    count = int(parameter.shape[0])
    if name in matching.single:
        key = matching.single[name]
        return [LazyTensor(partial(checkpoint.of_stack, key, i), (key,), i) for i in range(count)]
    if name in matching.experts:
        stack = matching.experts[name]
        return [LazyTensor(partial(checkpoint.rows, stack[i]), stack[i]) for i in range(count)]
    held = _Held(partial(matching.value, name, checkpoint.__getitem__), count)
    return [LazyTensor(partial(held.matrix, i), matching.keys(name), joined=False) for i in range(count)]


class _Held:
    """A stack that can only be had as a whole, and whose matrices are taken one by one: it is kept until the last."""

    def __init__(self, read: Callable[[], torch.Tensor], count: int) -> None:
        self._read, self._count = read, count
        self._stack: torch.Tensor | None = None

    def matrix(self, index: int) -> torch.Tensor:
        """One of them."""
        if self._stack is None:
            self._stack = self._read()
        matrix = self._stack[index]
        if index == self._count - 1:
            # The others' memory goes with it.
            matrix, self._stack = matrix.clone(), None
        return matrix.contiguous()
