"""Layers whose weights stay decoded: the cache for those who have memory to spare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._gpu import decoder as _gpu_decoder
from .providers import ALIGN, Product, WeightProvider, decoded_bytes, is_sliced, joined, slices, weak
from .workspace import is_capturing, keep_in_graph, memory

if TYPE_CHECKING:
    from .store import Store


class DecodedWeights:
    """Decoded weights that are kept, in one dtype."""

    def __init__(self, dtype: torch.dtype, weights: tuple[torch.Tensor, ...]) -> None:
        self.dtype, self.weights = dtype, weights
        # The last capture whose graph keeps them.
        self.captured = 0


class CacheEntry:
    """A group's decoded weights on one device, if they are kept. It holds them in one dtype at a time, the one used
    last.

    :param limit: bytes that they may take; what is wanted in a wider dtype is not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Replaced as a whole, so that threads need no lock to read it.
        self.held: DecodedWeights | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the weights that are there now."""
        held = self.held
        return 0 if held is None else sum(weight.nbytes for weight in held.weights)


class CachedProvider(WeightProvider):
    """Layers that are decoded once. Their results are those from compressed weights, bit for bit.

    :param cut: whether a large weight is multiplied in slices of rows, as it is where it is decoded in slices.
    """

    def __init__(
        self,
        store: Store,
        names: tuple[str, ...],
        device: torch.device,
        dtype: torch.dtype,
        cache_entry: CacheEntry,
        cut: bool,
    ) -> None:
        self.names = names
        self._store, self._device, self._dtype, self._cache_entry = weak(store), device, dtype, cache_entry
        entry = store.entry(names[0])
        self._slices = list(slices(entry, dtype)) if cut and is_sliced(entry, dtype) else []
        self._gpu = device.type == "cuda"

    def weights(self) -> tuple[torch.Tensor, ...]:
        """The decoded weights, which stay valid as long as somebody has them."""
        held = self._cache_entry.held
        if held is None or held.dtype is not self._dtype:
            held = self._fill()
        if self._gpu and is_capturing():
            # They may be dropped while the graph is there, as when the model changes its dtype.
            held.captured = keep_in_graph(self._device, held.weights, held.captured)
        return held.weights

    def held(self, name: str) -> torch.Tensor | None:
        """A weight, if it is there decoded."""
        held = self._cache_entry.held
        return None if held is None or held.dtype is not self._dtype else held.weights[self.names.index(name)]

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight = self.weights()[place]
        if not self._slices:
            return product(x, weight, bias)
        parts = ((rows, weight[rows[0] : rows[1]]) for rows in self._slices)
        return joined(product, parts, self._slices[-1][1], x, bias)

    def apply_all(self, product: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
        return product(self.weights())

    def _fill(self) -> DecodedWeights:
        with self._store.lock:
            cache_entry = self._cache_entry
            if cache_entry.held is not None and cache_entry.held.dtype is self._dtype:
                return cache_entry.held
            # Weights of another dtype go first, so that no two take memory at once. They can be in several cache
            # entries: a weight that is sliced in one dtype, and so is a provider of its own, need not be sliced in
            # another.
            self._store.clear_cache_entries(self.names, self._device)
            size = sum(decoded_bytes(self._store.entry(name), self._dtype) for name in self.names)
            is_kept = size <= cache_entry.limit
            if is_kept and not self._gpu and not self._store.has_room(size):
                is_kept = False
                self._store.stop_caching(self._device)
            # They outlive the mode in which they are made.
            with torch.inference_mode(False), torch.no_grad():
                outs = own_memory(self._store, self.names, self._device, self._dtype) if is_kept and self._gpu else None
                held = DecodedWeights(
                    self._dtype, decode_apart(self._store, self.names, self._device, self._dtype, outs)
                )
            if is_kept:
                cache_entry.held = held
            return held


def own_memory(
    store: Store, names: Sequence[str], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Tensors of a GPU for these weights, in one piece of memory that is not torch's (see :func:`memory`)."""
    entries = [store.entry(name) for name in names]
    sizes = [decoded_bytes(entry, dtype) for entry in entries]
    rest = memory(device, sum(-(-size // ALIGN) * ALIGN for size in sizes))
    tensors = []
    for entry, size in zip(entries, sizes, strict=True):
        tensors.append(rest[:size].view(dtype).view(entry.shape))
        rest = rest[-(-size // ALIGN) * ALIGN :]
    return tuple(tensors)


def decode_apart(
    store: Store,
    names: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    outs: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Weights in tensors of their own (``outs``, if they are there already). On a GPU, compressed bytes are there only
    while they are decoded."""
    if device.type != "cuda":
        return tuple(store.rows(name, dtype, None).to(device) for name in names)
    decoder = store.tensor_groups.scaled.decoder(_gpu_decoder.GpuDecoder(store.container, list(names), device))
    places = outs or [None] * len(names)
    weights = tuple(decoder.decode(name, dtype, out) for name, out in zip(names, places, strict=True))
    # Waits, so that every stream finds them decoded.
    decoder.check()
    return weights
