"""Providers of weights that decode on a GPU: one launch decodes a group, into memory that all groups share."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from .fused import Fused, fused
from .providers import ALIGN, Back, Product, WeightProvider, decoded_bytes, joined, slices, weak
from .workspace import Space, is_capturing, workspace

if TYPE_CHECKING:
    from .store import Store

_numbers = itertools.count()


class _Prepared(NamedTuple):
    """Views and launches that are prepared for a piece of memory."""

    views: list[torch.Tensor]
    """The decoded weights, or slices of one."""
    batches: list[Any]
    """These decode into them."""
    below: dict[tuple[int, int], torch.Tensor]
    """Weights that lie one below the other, as one: by the first one's place and their number, once they were asked
    for."""


class PreparedProvider(WeightProvider):
    """The base of a GPU's providers: launches and views, prepared once for each piece of memory.

    :param size: bytes of the memory that the provider decodes into.
    """

    def __init__(self, store: Store, names: tuple[str, ...], device: torch.device, size: int) -> None:
        self.names = names
        self._number = next(_numbers)
        self._size = size
        self._workspace = workspace(device)
        self._prefetch_order = store.prefetch_order(device, names)
        self._fuses = store.fuses
        # The kernel of each layer that multiplies without decoding to memory.
        self._fused: list[Fused | None] = []
        self._spaces: list[weakref.ref[Space]] = []

    def fused(self, place: int) -> Fused | None:
        return self._fused[place]

    def _multiply_few(
        self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The product, if there are few enough tokens, and the weight is one that kernels multiply with."""
        kernel = self._fused[place]
        if kernel is None or product is not F.linear or not 0 < x.numel() <= kernel.limit:
            return None
        return kernel(x, bias)

    def _is_decode_step(self, x: torch.Tensor) -> bool:
        """Whether layers of kinds that kernels multiply with would be multiplied with, as others are in this pass."""
        return self._fuses and x.numel() <= self._prefetch_order.most_few * x.shape[-1]

    def _prepare(self, buffer: torch.Tensor) -> tuple[list[torch.Tensor], list[Any]]:
        """Views of the memory, and the batches that decode into them."""
        raise NotImplementedError

    def _ready(self) -> None:
        """Makes sure of the memory and prepares the launches, so that a lack of memory is an error early. Memory that
        is taken while a graph is captured would be the graph's. If kernels multiply with the weights of all layers,
        both wait for the first call of more tokens: calls of few tokens need no memory for decoded weights."""
        if all(self._fused):
            self._workspace.wanted = max(self._workspace.wanted, self._size)
            return
        if is_capturing():
            return
        with self._workspace.lock:
            # Preparing may take memory of torch, which is the current stream's: others come after it.
            self._in(self._workspace.enter(self._size))

    def _in(self, space: Space) -> _Prepared:
        """The views and launches that are prepared for that memory."""
        prepared: _Prepared | None = space.prepared.get(self._number)
        if prepared is None:
            prepared = space.prepared[self._number] = _Prepared(*self._prepare(space.buffer), {})
            self._spaces = [ref for ref in self._spaces if ref() is not None] + [weakref.ref(space)]
            if space is self._workspace.streams:
                self._prefetch_order.replace(self, prepared.batches)
        return prepared

    def __del__(self) -> None:
        # Memory that lives on, as that of graphs, need not hold what nobody decodes any more.
        for ref in getattr(self, "_spaces", ()):
            space = ref()
            if space is not None:
                space.prepared.pop(self._number, None)


class GpuProvider(PreparedProvider):
    """Layers that are decoded together, by one launch, when one is called that is not decoded."""

    def __init__(self, store: Store, names: tuple[str, ...], device: torch.device, dtype: torch.dtype) -> None:
        sizes = [-(-decoded_bytes(store.entry(name), dtype) // ALIGN) * ALIGN for name in names]
        super().__init__(store, names, device, sum(sizes))
        # The owner of the memory while this group is in it; not the provider, which the memory need not keep alive.
        self._token = object()
        self._shapes = [store.entry(name).shape for name in names]
        self._below: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._dtype = dtype
        self._decoders = [store.decoder(name, device) for name in names]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self._fused = [
            fused(store, n, d, dtype, self._prefetch_order) for n, d in zip(names, self._decoders, strict=True)
        ]
        self._ready()

    def prefetch(self) -> None:
        """Has what is streamed of the group on its way."""
        with self._workspace.lock:
            for batch in self._in(self._workspace.enter(self._size)).batches:
                batch.prefetch()

    def _prepare(self, buffer: torch.Tensor) -> tuple[list[torch.Tensor], list[Any]]:
        views = []
        for shape, offset in zip(self._shapes, self._offsets, strict=True):
            count = 1
            for extent in shape:
                count *= extent
            flat = buffer[offset : offset + count * self._dtype.itemsize].view(self._dtype)
            views.append(flat.view(shape))
        batches = []
        for decoder in dict.fromkeys(self._decoders):
            targets = [(n, v) for n, v, d in zip(self.names, views, self._decoders, strict=True) if d is decoder]
            batches.append(decoder.prepare(targets))
        return views, batches

    def _decode(self, space: Space, batches: list[Any], is_decode_step: bool = False) -> None:
        """Decodes the group.

        :param is_decode_step: for few tokens, in a pass in which other layers are not decoded but multiplied with.
        """
        space.owner = None
        for batch in batches:
            batch.launch()
        # The owner is set only now: a launch that raised has not decoded.
        space.owner = self._token
        if space is self._workspace.streams:
            self._prefetch_order.follow(self, is_decode_step)

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product_of_few = self._multiply_few(product, place, x, bias)
        if product_of_few is not None:
            return product_of_few
        with self._workspace.lock:
            return product(x, self._weights(x).views[place], bias)

    def apply_below(
        self,
        begin: int,
        count: int,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        key = begin, count
        shape = self._below[key] if key in self._below else self._below.setdefault(key, self._factor(begin, count))
        if shape is None:
            return None
        with self._workspace.lock:
            prepared = self._weights(x)
            weight = prepared.below.get(key)
            if weight is None:
                weight = prepared.below[key] = prepared.views[begin].as_strided(shape, (shape[1], 1))
            if residual is None:
                return F.linear(x, weight, bias)
            # One kernel adds both, which rounds once.
            if x.dim() == residual.dim() == 2:
                total = torch.addmm(residual, x, weight.t())
                return total if bias is None else total + bias
            total = torch.addmm(residual.reshape(-1, shape[0]), x.reshape(-1, shape[1]), weight.t())
            return (total if bias is None else total + bias).view(residual.shape)

    def _weights(self, x: torch.Tensor | None = None) -> _Prepared:
        """The decoded weights, for whoever has the lock.

        :param x: the input that one of them is multiplied with, in a forward pass.
        """
        space = self._workspace.enter(self._size)
        prepared: _Prepared = space.prepared.get(self._number) or self._in(space)
        if space.owner is not self._token:
            self._decode(space, prepared.batches, x is not None and self._is_decode_step(x))
        return prepared

    def _factor(self, begin: int, count: int) -> tuple[int, int] | None:
        """The shape of so many weights as one, if they lie so."""
        shapes, width = self._shapes[begin : begin + count], self._shapes[begin][-1]
        if any(len(shape) != 2 or shape[1] != width for shape in shapes):
            return None
        rows = sum(shape[0] for shape in shapes)
        ends = [*self._offsets, self._size]
        lies_so = ends[begin + count] - ends[begin] == rows * width * self._dtype.itemsize
        return (rows, width) if lies_so else None

    def apply_all(self, product: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
        with self._workspace.lock:
            return product(self._weights().views)


class GpuSlicedProvider(PreparedProvider):
    """One large layer, decoded and multiplied a slice at a time."""

    def __init__(self, store: Store, name: str, device: torch.device, dtype: torch.dtype) -> None:
        entry = store.entry(name)
        self._slices = list(slices(entry, dtype))
        self._width = entry.shape[1]
        self._rows = max(end - begin for begin, end in self._slices)
        super().__init__(store, (name,), device, self._rows * self._width * dtype.itemsize)
        self._store, self._device, self._dtype = weak(store), device, dtype
        self._decoder = store.decoder(name, device)
        self._fused = [fused(store, name, self._decoder, dtype, self._prefetch_order)]
        self._ready()

    def _prepare(self, buffer: torch.Tensor) -> tuple[list[torch.Tensor], list[Any]]:
        longest = buffer[: self._size].view(self._dtype).view(self._rows, self._width)
        views = [longest[: end - begin] for begin, end in self._slices]
        batches = [
            self._decoder.prepare([(self.names[0], view, rows)])
            for view, rows in zip(views, self._slices, strict=True)
        ]  # fmt: skip
        return views, batches

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product_of_few = self._multiply_few(product, place, x, bias)
        if product_of_few is not None:
            return product_of_few
        with self._workspace.lock:
            return joined(product, self._parts(self._is_decode_step(x)), self._slices[-1][1], x, bias)

    def gradient(self, back: Back, place: int, grad: torch.Tensor) -> torch.Tensor:
        # The sum over the outputs is one over slices, too: in float32, and rounded once.
        total: torch.Tensor | None = None
        with self._workspace.lock:
            for (begin, end), weight in self._parts():
                part = back(grad[..., begin:end], weight)
                total = part.float() if total is None else total.add_(part)
        assert total is not None
        return total.to(grad.dtype)

    def _parts(self, is_decode_step: bool = False) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
        """The slices, each decoded when it is asked for, and gone with the next; for whoever has the lock."""
        space = self._workspace.enter(self._size)
        views, batches, _ = self._in(space)
        # No slice outlives its product, so nobody owns the memory afterwards.
        space.owner = None
        at_once = space is self._workspace.streams
        for i, (rows, batch) in enumerate(zip(self._slices, batches, strict=True)):
            batch.launch()
            if at_once:
                self._prefetch_order.follow_part(self, i, is_decode_step)
            yield rows, views[i]

    def apply_all(self, product: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
        return product((self._store.decoded(self.names[0], self._device, self._dtype),))
