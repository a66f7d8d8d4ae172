"""Experts of a mixture that a GPU decodes several at a time, for many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .providers import ALIGN
from .providers_gpu import PreparedProvider

if TYPE_CHECKING:
    from .store import Store
    from .workspace import Space

# Bytes of a group's decoded weights, about. With half of it 128 experts of 768x2048 and 2,048 tokens took 4.4 ms (one
# H200), since the CPU takes longer for so many launches than the GPU, which works for 1.9 ms.
GROUP_BYTES = 128 << 20

Names = Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
"""For each expert, the tensors of its first matrix, one below the other, and those of its second."""


class ExpertGroup(PreparedProvider):
    """Experts that one launch decodes: into a tensor ``[experts, out, in]`` of their first matrices, and one of their
    second. The memory is what all weights are decoded into.

    :param experts: of one shape.
    """

    def __init__(self, store: Store, experts: Names, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype, self._count = dtype, len(experts)
        self._shapes = [_shape(store, matrix) for matrix in experts[0]]
        size = sum(self._bytes(shape) for shape in self._shapes)
        names = tuple(name for which in (0, 1) for expert in experts for name in expert[which])
        super().__init__(store, names, device, size)
        self._decoders = {name: store.decoder(name, device) for name in names}
        # For both matrices of each expert, stored tensors and their rows.
        self._parts = [
            [[(name, store.entry(name)) for name in expert[which]] for expert in experts] for which in (0, 1)
        ]
        # The owner of the memory while these experts are in it.
        self._token = object()
        # Kernels that multiply with experts are not a layer's.
        self._fused = [None]
        self._ready()

    def _bytes(self, shape: tuple[int, int]) -> int:
        return -(-self._count * shape[0] * shape[1] * self._dtype.itemsize // ALIGN) * ALIGN

    def _prepare(self, buffer: torch.Tensor) -> tuple[list[torch.Tensor], list[Any]]:
        views: list[torch.Tensor] = []
        targets: dict[Any, list[tuple[str, torch.Tensor]]] = {}
        offset = 0
        for shape, parts in zip(self._shapes, self._parts, strict=True):
            numbers = self._count * shape[0] * shape[1]
            flat = buffer[offset : offset + numbers * self._dtype.itemsize].view(self._dtype)
            views.append(flat.view(self._count, *shape))
            offset += self._bytes(shape)
            for matrix, tensors in zip(views[-1], parts, strict=True):
                begin = 0
                for name, entry in tensors:
                    end = begin + entry.shape[0]
                    targets.setdefault(self._decoders[name], []).append((entry.name, matrix[begin:end]))
                    begin = end
        return views, [decoder.prepare(own) for decoder, own in targets.items()]

    def decoded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both tensors, for whoever has the lock of the memory, and until something else is decoded into it."""
        space: Space = self._workspace.enter(self._size)
        first, second = (prepared := self._in(space)).views
        if space.owner is not self._token:
            space.owner = None
            for batch in prepared.batches:
                batch.launch()
            space.owner = self._token
        return first, second


def expert_groups(
    store: Store, experts: Names, device: torch.device, dtype: torch.dtype
) -> list[tuple[range, ExpertGroup]] | None:
    """Groups of consecutive experts, with their numbers, that take about :data:`GROUP_BYTES` each; None
    where experts are not all on the GPU, and decoded at each use, or have not one shape."""
    names = [name for expert in experts for matrix in expert for name in matrix]
    if device.type != "cuda" or store.residency_of(names, device) != "device" or store.is_cached(names, device):
        return None
    shapes = {tuple(_shape(store, matrix) for matrix in expert) for expert in experts}
    if len(shapes) != 1 or any(len(store.entry(name).shape) != 2 for name in names):
        return None
    each = sum(rows * width for rows, width in shapes.pop()) * dtype.itemsize
    count = max(GROUP_BYTES // each, 1)
    groups = [range(begin, min(begin + count, len(experts))) for begin in range(0, len(experts), count)]
    return [(group, ExpertGroup(store, experts[group.start : group.stop], device, dtype)) for group in groups]


def _shape(store: Store, matrix: Sequence[str]) -> tuple[int, int]:
    """Rows and columns of tensors one below the other."""
    shapes = [store.entry(name).shape for name in matrix]
    return sum(shape[0] for shape in shapes), shapes[0][-1]
