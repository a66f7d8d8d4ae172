"""Layers whose weights stay decoded: the cache for those who have memory to spare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _gpu
from ._plans import Plan, Product, is_sliced, joined, slices
from ._workspace import is_capturing, keep_in_graph

if TYPE_CHECKING:
    from ._store import Store


class Shelf:
    """The place of a group's decoded weights on one device. It holds them in one dtype at a time, the one used last.

    :param limit: bytes that they may take; what is wanted in a wider dtype is not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: tuple[torch.dtype, tuple[torch.Tensor, ...]] | None = None
        # Streams that torch was told of: it must not give the memory to others before they are done with it.
        self.known: set[int] = set()
        # The last capture whose graph keeps them.
        self.captured = 0

    def clear(self) -> None:
        """Drops what is there."""
        self.held = None
        self.known.clear()
        self.captured = 0

    @property
    def bytes(self) -> int:
        """Bytes of the weights that are there now."""
        held = self.held
        return 0 if held is None else sum(weight.nbytes for weight in held[1])


class CachedPlan(Plan):
    """Layers that are decoded once. What they compute is what they would from compressed weights, bit for bit.

    :param cut: whether a large weight is multiplied in slices of rows, as it is where it is decoded in slices.
    """

    def __init__(
        self, store: Store, names: tuple[str, ...], device: torch.device, dtype: torch.dtype, shelf: Shelf, cut: bool
    ) -> None:
        self.names = names
        self._store, self._device, self._dtype, self._shelf = store, device, dtype, shelf
        entry = store.entry(names[0])
        self._slices = list(slices(entry, dtype)) if cut and is_sliced(entry, dtype) else []
        # Faster than the public way, which makes an object for each call.
        self._stream = torch._C._cuda_getCurrentRawStream if device.type == "cuda" else None

    def weights(self) -> tuple[torch.Tensor, ...]:
        """The decoded weights, which stay valid."""
        held = self._shelf.held
        weights = held[1] if held is not None and held[0] is self._dtype else self._fill()
        if self._stream is not None:
            if self._stream(self._device.index) not in self._shelf.known:
                self._introduce(weights)
            if is_capturing():
                # They may be dropped while the graph is there, as when the model changes its dtype.
                self._shelf.captured = keep_in_graph(self._device, weights, self._shelf.captured)
        return weights

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight = self.weights()[place]
        if not self._slices:
            return product(x, weight, bias)
        parts = ((rows, weight[rows[0] : rows[1]]) for rows in self._slices)
        return joined(product, parts, self._slices[-1][1], x, bias)

    def apply_all(self, product: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
        return product(self.weights())

    def _fill(self) -> tuple[torch.Tensor, ...]:
        with self._store.lock:
            shelf = self._shelf
            if shelf.held is not None and shelf.held[0] is self._dtype:
                return shelf.held[1]
            # Those of another dtype go first, so that no two take memory at once. They can be on several shelves: what
            # is sliced in one dtype, and so is a plan of its own, need not be in another.
            self._store.clear_shelves(self.names, self._device)
            # They outlive the mode in which they are made.
            with torch.inference_mode(False), torch.no_grad():
                weights = decode_apart(self._store, self.names, self._device, self._dtype)
            if sum(weight.nbytes for weight in weights) <= shelf.limit:
                shelf.held = (self._dtype, weights)
            return weights

    def _introduce(self, weights: Sequence[torch.Tensor]) -> None:
        stream = torch.cuda.current_stream(self._device)
        for weight in weights:
            weight.record_stream(stream)
        if self._shelf.held is not None:
            self._shelf.known.add(stream.cuda_stream)


def decode_apart(
    store: Store, names: Sequence[str], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Weights in tensors of their own. On a GPU, compressed bytes are there only while they are decoded."""
    if device.type != "cuda":
        return tuple(store.rows(name, dtype, None).to(device) for name in names)
    decoder = _gpu.GpuDecoder(store.container, list(names), device)
    weights = tuple(decoder.decode(name, dtype) for name in names)
    # Waits, so that every stream finds them decoded.
    decoder.check()
    return weights
