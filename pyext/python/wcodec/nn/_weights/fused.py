"""Products of a few tokens straight from compressed weights, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..._core.errors import DeviceError
from ..._gpu.decoder import DeviceDecoder, ProductBatch
from . import crossover

if TYPE_CHECKING:
    from .prefetch_order import Link, PrefetchOrder
    from .store import Store

# Faster than the public way, which runs for every layer and token; a torch without CUDA may not have it.
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Fused:
    """Computes one linear layer for few tokens: one launch decodes and multiplies, so that the weight is never written
    to memory.

    :param prefetch_order: the order in which streamed weights are used.
    :param tokens: the most that are few, no more than the decoder's kernels take.
    :param kind: by which that was measured.
    """

    def __init__(
        self,
        decoder: DeviceDecoder,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        prefetch_order: PrefetchOrder,
        tokens: int,
        kind: crossover.Kind,
    ) -> None:
        self.kind = kind
        self.decoder, self.name, self.dtype, self.prefetch_order = decoder, name, dtype, prefetch_order
        self._out, self._in = shape
        self._index = decoder.device.index
        self.tokens = tokens
        # Elements of the input up to which there are few enough tokens.
        self.limit = tokens * self._in
        # Address of the bias: a parameter that goes to another dtype or device is the same object.
        self._bias = 0
        self._multiply: Callable[[int, int, int, int, int], None] | None = None
        self._link: Link | None = None

    @property
    def features(self) -> tuple[int, int]:
        """Results and elements of an input vector."""
        return self._out, self._in

    @property
    def batch(self) -> ProductBatch:
        """The launches, for the bias of the last call."""
        return self._batch

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """The product, or nothing where the input is not one that kernels take; then torch says why."""
        if x.get_device() != self._index or x.dtype is not self.dtype or x.shape[-1] != self._in:
            return None
        multiply = self._multiply
        if multiply is None or (0 if bias is None else bias.data_ptr()) != self._bias:
            multiply = self.prepare(bias)
        if not x.is_contiguous():
            x = x.contiguous()
        y = x.new_empty((*x.shape[:-1], self._out))
        multiply(x.data_ptr(), self._in, x.numel() // self._in, y.data_ptr(), _current_stream(self._index))
        if self._link is not None:
            self.prefetch_order.used(self._link)
        return y

    def prepare(self, bias: torch.Tensor | None) -> Callable[[int, int, int, int, int], None]:
        """Makes the launches with that bias, which the next call has."""
        # Detached, it keeps the memory that the address is of.
        detached = None if bias is None else bias.detach()
        self._batch = self.decoder.products([(self.name, detached)], self.dtype)
        self._bias = 0 if detached is None else detached.data_ptr()
        self._link = self.prefetch_order.link(self._batch._native)
        self._multiply = self._batch._native.multiply
        return self._multiply


def fused(
    store: Store, name: str, decoder: DeviceDecoder, dtype: torch.dtype, prefetch_order: PrefetchOrder
) -> Fused | None:
    """The layer's products, if kernels multiply with its weight as it is stored."""
    entry = store.entry(name)
    shape = entry.shape
    if not store.fuses or dtype not in (torch.float16, torch.bfloat16) or len(shape) != 2 or not shape[1]:
        return None
    if decoder.can_fuse(name) is not None or not decoder.multiplies(dtype):
        return None
    kind = crossover.Kind.of(entry)
    measured = crossover.tokens(decoder.device, kind, shape[0] * shape[1])
    tokens = min(measured, decoder.most_vectors(name))
    product = Fused(decoder, name, shape, dtype, prefetch_order, tokens, kind)
    try:
        # Kernels are loaded now, and not when a graph is captured.
        product.prepare(None)
    except DeviceError:
        # Tiles so wide that a block of threads has no room for them.
        return None
    prefetch_order.most_few = max(prefetch_order.most_few, tokens)
    return product
