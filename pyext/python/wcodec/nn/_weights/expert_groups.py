"""Experts of a mixture that a GPU decodes several at a time, for many tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .providers import ALIGN, decoded_bytes
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
    second. The memory is what all weights are decoded into, and is taken at the first use.

    :param experts: of one shape.
    :param decoders: the decoder of each tensor, by its stored name.
    """

    def __init__(
        self, store: Store, experts: Names, decoders: Mapping[str, Any], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._dtype, self._count = dtype, len(experts)
        self._shapes = [_shape(store, matrix) for matrix in experts[0]]
        size = sum(self._bytes(shape) for shape in self._shapes)
        names = tuple(name for which in (0, 1) for expert in experts for name in expert[which])
        super().__init__(store, names, device, size)
        self._decoders = decoders
        # For both matrices of each expert, the stored tensors.
        self._parts = [[[store.entry(name) for name in expert[which]] for expert in experts] for which in (0, 1)]
        # The owner of the memory while these experts are in it.
        self._token = object()

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
                for entry in tensors:
                    end = begin + entry.shape[0]
                    targets.setdefault(self._decoders[entry.name], []).append((entry.name, matrix[begin:end]))
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


def bytes_of_a_group(store: Store, experts: Names, dtype: torch.dtype) -> int:
    """Bytes that groups of these experts take decoded, at most: all of them, :data:`GROUP_BYTES`, or one that is
    larger."""
    each = [sum(decoded_bytes(store.entry(name), dtype) for matrix in expert for name in matrix) for expert in experts]
    # Both tensors of a group begin at multiples of ALIGN.
    return min(max(GROUP_BYTES, *each), sum(each)) + 2 * ALIGN


def expert_groups(
    store: Store, experts: Names, device: torch.device, dtype: torch.dtype
) -> list[tuple[range, ExpertGroup]] | None:
    """Groups of consecutive experts, with their numbers, that take about :data:`GROUP_BYTES` each; None
    where experts are not all on the GPU, and decoded at each use, or have not one shape."""
    names = [name for expert in experts for matrix in expert for name in matrix]
    if device.type != "cuda" or store.residency_of(names, device) != "device" or store.is_cached(names, device):
        return None
    if any(len(store.entry(name).shape) != 2 for name in names):
        return None
    widths = {(which, store.entry(name).shape[1]) for expert in experts for which in (0, 1) for name in expert[which]}
    shapes = {tuple(_shape(store, matrix) for matrix in expert) for expert in experts}
    if len(shapes) != 1 or len(widths) != 2:
        return None
    each = max(sum(rows * width for rows, width in shapes.pop()), 1) * dtype.itemsize
    count = max(GROUP_BYTES // each, 1)
    groups = [range(begin, min(begin + count, len(experts))) for begin in range(0, len(experts), count)]
    decoders = _decoders(store, [store.entry(name).name for name in names], device)
    return [(some, ExpertGroup(store, experts[some.start : some.stop], decoders, device, dtype)) for some in groups]


def _decoders(store: Store, stored: Sequence[str], device: torch.device) -> dict[str, Any]:
    """The decoder of each stored tensor. One has most of them, and is asked once for their names, which are many."""
    found: dict[str, Any] = {}
    for name in stored:
        if name not in found:
            decoder = store.decoder(name, device)
            found.update(dict.fromkeys(decoder.names, decoder))
    return found


def _shape(store: Store, matrix: Sequence[str]) -> tuple[int, int]:
    """Rows and columns of tensors one below the other."""
    shapes = [store.entry(name).shape for name in matrix]
    return sum(shape[0] for shape in shapes), shapes[0][-1]
