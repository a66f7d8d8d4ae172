"""A layer's weights, as the layer and its store both know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .providers import WeightProvider, has_rows

if TYPE_CHECKING:
    from .store import Store


class LayerWeights:
    """The tensors of a store that a layer needs, the device and dtype that it needs them in, and the provider for
    these.

    A layer makes one, and says where it goes. The store has those of all layers that live, decides by them what is kept
    where, and takes providers back that are no longer right; of layers themselves it knows nothing.

    :param tensors: their names, the layer's own first.
    :param cut: as in :meth:`Store.provider`.
    :param planned: whether they are decoded with others of their block, ahead of their turn.
    :param looked_up: whether rows are looked up in them.
    """

    def __init__(
        self,
        store: Store,
        tensors: tuple[str, ...],
        device: torch.device,
        dtype: torch.dtype,
        *,
        cut: bool,
        planned: bool,
        looked_up: bool,
    ) -> None:
        self.store, self.tensors, self.device, self.dtype = store, tensors, device, dtype
        self.cut, self.planned, self.looked_up = cut, planned, looked_up
        # Bytes of decoded weights that the layer has on a GPU at a time, where these are more than of one block.
        self.at_once = 0
        # None until a provider is wanted, and again when the store takes it back.
        self.provider: tuple[WeightProvider, int] | None = None
        self._table: TableRows | None = None
        store.register(self)

    def settle(self, device: torch.device, dtype: torch.dtype) -> None:
        """The layer is on that device now, and computes in that dtype."""
        before = self.device, self.dtype
        self.device, self.dtype = device, dtype
        self.forget()
        if before != (device, dtype):
            self.store.moved(before[0], device)

    def join(self, store: Store, tensors: tuple[str, ...]) -> None:
        """Has the layer's tensors be these, of another store."""
        self.store.leave(self)
        self.store, self.tensors = store, tensors
        self.forget()
        store.register(self)

    def forget(self) -> None:
        """Takes the providers back."""
        self.provider = self._table = None

    def prepared(self, dtype: torch.dtype | None = None) -> tuple[WeightProvider, int]:
        """The provider for a dtype and the layer's place in it; that for the layer's own dtype is kept."""
        # Another thread may have the store take providers back, and this one must not keep one of them.
        with self.store.lock:
            found = self.provider_of(self.tensors[0], dtype or self.dtype)
            if dtype is None or dtype == self.dtype:
                self.provider = found
            return found

    def provider_of(
        self, name: str, dtype: torch.dtype, device: torch.device | None = None
    ) -> tuple[WeightProvider, int]:
        """The provider that decodes one of the tensors, and its place in it."""
        return self.store.provider(name, device or self.device, dtype, self.cut)

    def together(self, names: Sequence[str]) -> list[torch.Tensor]:
        """Decoded tensors of the layer; where one provider decodes all of them, in memory that is shared: valid until
        another weight is decoded. The caller keeps others from that."""
        providers = [self.provider_of(name, self.dtype) for name in names]
        if all(provider is providers[0][0] for provider, _ in providers):
            found = providers[0][0].apply_all(lambda weights: weights)
            return [found[place] for _, place in providers]
        # Matrices that are too large to be decoded together come one by one, in tensors of their own.
        return [self.store.decoded(name, self.device, self.dtype) for name in names]

    def table(self) -> TableRows:
        """The way to rows of the table on a GPU."""
        # Another thread may take it back at any moment, as when a copy of the layer changes its dtype.
        found = self._table
        if found is None:
            with self.store.lock:
                found = self._table = TableRows(self.store, self.tensors[0], self.device, self.dtype)
        return found


def product_below(
    layers: Sequence[LayerWeights], x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The products with the weights of several layers, as :meth:`WeightProvider.apply_below` gives them; nothing where
    no provider has all of them in this order."""
    provider, begin = layers[0].provider or layers[0].prepared()
    for place, weights in enumerate(layers[1:], begin + 1):
        if (weights.provider or weights.prepared()) != (provider, place):
            return None
    return provider.apply_below(begin, len(layers), x, bias, residual)


class TableRows:
    """The table of an embedding on a GPU, to be decoded by rows."""

    def __init__(self, store: Store, name: str, device: torch.device, dtype: torch.dtype) -> None:
        self.decoder = store.decoder(name, device)
        # Whether rows can be decoded by themselves; otherwise only the whole table can.
        self.has_rows = has_rows(store.entry(name))
        # The kernel that looks up rows whose numbers are on the GPU, if there is one.
        self.lookup = self.decoder.lookup(name, dtype) if self.decoder.can_look_up(name) is None else None
