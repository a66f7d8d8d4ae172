"""Providers of weights that decode on the CPU: some together as a group, large ones in slices of rows."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ..._file.container import TensorEntry

if TYPE_CHECKING:
    from .prefetch_queue import PrefetchQueue
    from .store import Store

# A weight that decodes to more is decoded and multiplied in slices of rows, each of at most so many bytes.
SLICE_BYTES = 64 << 20
# On a GPU, weights begin at multiples of this: what torch's allocator gives, and what matrix products like.
ALIGN = 512
# Up to so many tokens, the slices' results take less memory than the layer's own, and are joined in one call.
_FEW_TOKENS = 64
# Rows of the tiles that products of many tokens are computed in, or a multiple of them.
_TILE_ROWS = 256

Product = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""The result of a layer, from its input, its weight and its bias."""
Back = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The gradient of a layer's input, from that of its output and the weight."""


def decoded_bytes(entry: TensorEntry, dtype: torch.dtype) -> int:
    """Bytes of the tensor in the computing dtype."""
    return math.prod(entry.shape) * dtype.itemsize


def is_sliced(entry: TensorEntry, dtype: torch.dtype) -> bool:
    """Whether a weight is too large to be decoded at once, and can be decoded by rows."""
    return decoded_bytes(entry, dtype) > SLICE_BYTES and has_rows(entry) and entry.shape[0] > entry.cut


def has_rows(entry: TensorEntry) -> bool:
    """Whether some rows of a matrix can be decoded by themselves."""
    return len(entry.shape) == 2 and entry.cut > 0


def slices(entry: TensorEntry, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Ranges of rows of at most :data:`SLICE_BYTES` (but at least those that are decoded together), in order. They are
    about equal, and whole tiles of what multiplies where so many rows fit: a slice of few rows, or one a little over a
    tile, takes as long as more would."""
    cut, rows = entry.cut, entry.shape[0]
    if not rows:
        return
    most = max(SLICE_BYTES // max(entry.shape[1] * dtype.itemsize, 1) // cut * cut, cut)
    tile = math.lcm(cut, _TILE_ROWS)
    if most >= tile:
        most = most // tile * tile
    even = -(-rows // -(-rows // most))
    step = min(-(-even // tile) * tile, most)
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)


def stacked(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """These one below the other. Autocast would refuse to join those of a half precision that is not its own."""
    if len(parts) == 1:
        return parts[0]
    with torch.autocast(parts[0].device.type, enabled=False):
        return torch.cat(list(parts))


def weak(store: Store) -> Store:
    """A store as its providers know it. It has them, so that one which they had would be there until Python looks for
    circles, with all weights that stay decoded; and whoever has a provider, as layers do, has the store, too."""
    return weakref.proxy(store)


class WeightProvider:
    """The weights of some layers, on one device and in one dtype."""

    names: tuple[str, ...]

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``product(x, weight, bias)`` with the weight of the layer at ``place``."""
        raise NotImplementedError

    def apply_all(self, product: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
        """``product(weights)`` with the weights of all layers of the provider."""
        raise NotImplementedError

    def apply_below(
        self,
        begin: int,
        count: int,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """The products of so many layers, one behind the other in the last dimension, by one call of torch; nothing
        where their decoded weights do not lie one below the other.

        :param begin: the first layer's place.
        :param bias: theirs, joined.
        :param residual: is added to the products.
        """
        return None

    def fused(self, place: int) -> Any:
        """The kernel (a :class:`wcodec.nn._weights.fused.Fused`) that multiplies with the weight of the layer at
        ``place`` without decoding it to memory; None if there is none."""
        return None

    def gradient(self, back: Back, place: int, grad: torch.Tensor) -> torch.Tensor:
        """``back(grad, weight)`` with the weight of the layer at ``place``. The CPU decodes a weight as a whole for it,
        also one that it multiplies in slices: sums of the slices' gradients would be rounded otherwise."""
        gradient: torch.Tensor = self.apply_all(lambda weights: back(grad, weights[place]))
        return gradient


# The group that was decoded last on the CPU, of all models, with its weights: no other memory is kept for weights. One
# tuple that is replaced as a whole, so that threads need no lock.
_held: tuple[weakref.ref[WeightProvider], tuple[torch.Tensor, ...]] | None = None


def _forget(provider: weakref.ref[WeightProvider]) -> None:
    global _held
    if _held is not None and _held[0] is provider:
        _held = None


class CpuProvider(WeightProvider):
    """Layers that are decoded together by the CPU: all of them when one is called that is not decoded."""

    def __init__(self, store: Store, names: tuple[str, ...], dtype: torch.dtype, prefetch_queue: PrefetchQueue) -> None:
        self._store, self.names, self._dtype, self._prefetch_queue = weak(store), names, dtype, prefetch_queue
        self.read_key = prefetch_queue.add(((name, None) for name in names), names[0] in store.tensor_groups.routed)

    def weights(self) -> tuple[torch.Tensor, ...]:
        """The decoded weights. They are valid as long as a reference to them is held, whatever is decoded meanwhile."""
        global _held
        held = _held
        if held is not None and held[0]() is self:
            return held[1]
        # The group that was decoded before is freed first, so that no two groups take memory at once.
        _held = held = None
        self._prefetch_queue.advance(self.read_key)
        weights = tuple(self._store.rows(name, self._dtype, None) for name in self.names)
        _held = (weakref.ref(self, _forget), weights)
        return weights

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return product(x, self.weights()[place], bias)

    def apply_all(self, product: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
        return product(self.weights())


class SlicedProvider(WeightProvider):
    """One large layer, decoded by the CPU a slice at a time."""

    def __init__(self, store: Store, name: str, dtype: torch.dtype, prefetch_queue: PrefetchQueue) -> None:
        self._store, self.names, self._dtype, self._prefetch_queue = weak(store), (name,), dtype, prefetch_queue
        self._slices = list(slices(store.entry(name), dtype))
        self.read_key = prefetch_queue.add(((name, rows) for rows in self._slices), name in store.tensor_groups.routed)

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return joined(product, self._decoded(), self._slices[-1][1], x, bias)

    def _decoded(self) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
        """The slices, each decoded when it is asked for."""
        for i, rows in enumerate(self._slices):
            self._prefetch_queue.advance(self.read_key, i)
            yield rows, self._store.rows(self.names[0], self._dtype, rows)

    def apply_all(self, product: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
        return product((self._store.rows(self.names[0], self._dtype, None),))


def joined(
    product: Product,
    parts: Iterator[tuple[tuple[int, int], torch.Tensor]],
    out_features: int,
    x: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """The product with a weight that comes in slices of rows."""
    if x.numel() <= _FEW_TOKENS * x.shape[-1]:
        # One call at the end: for few tokens, what counts is the number of calls.
        return torch.cat([product(x, w, None if bias is None else bias[b:e]) for (b, e), w in parts], -1)
    if bias is None and product is F.linear:
        return _beside(parts, out_features, x)
    out: torch.Tensor | None = None
    for (begin, end), weight in parts:
        part = product(x, weight, None if bias is None else bias[begin:end])
        if out is None:
            out = part.new_empty((*part.shape[:-1], out_features))
        out[..., begin:end] = part
    assert out is not None
    return out


def _beside(parts: Iterator[tuple[tuple[int, int], torch.Tensor]], out_features: int, x: torch.Tensor) -> torch.Tensor:
    """The product of a linear layer without a bias: each slice's is computed in its place, and not copied there."""
    flat = x.reshape(-1, x.shape[-1])
    out = flat.new_empty((flat.shape[0], out_features))
    for (begin, end), weight in parts:
        torch.mm(flat, weight.t(), out=out[:, begin:end])
    return out.view(*x.shape[:-1], out_features)
