"""A rank's experts of one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ...nn._layers.layer import CompressedLayer
from ...nn._weights.expert_groups import bytes_of_a_group
from ...nn._weights.providers import WeightProvider, stacked
from ...nn._weights.store import Store
from ...nn._weights.workspace import exclusive, is_capturing
from .grouped import HALVES, GroupedExperts, grouped_experts
from .routed import RoutedExperts, routed_experts

Activation = Callable[[torch.Tensor], torch.Tensor]
"""The function between the two matrices of an expert; it takes ``[tokens, gate and up]``."""


class RankExperts(CompressedLayer):
    """Experts of which only those are decoded that tokens are routed to.

    Where kernels multiply with experts as they are stored, a GPU finds out by itself which these are, for few tokens
    and in CUDA graphs (:class:`~.routed.RoutedExperts`). For more tokens a GPU that holds all of them decodes several
    at a time (:class:`~.grouped.GroupedExperts`). Otherwise they are computed one by one, each with its matrices
    together. While a CUDA graph is captured nobody knows which they will be: all are decoded then, and those that a
    token is not routed to have no share in it.

    :param names: for each expert, the tensors of its first matrix, one below the other, and those of its second.
    :param activation: the function between the two.
    :param places: the index of each expert of the model among these, -1 for those of other ranks; left out if all are
        here.
    """

    cut = False

    def __init__(
        self,
        store: Store,
        names: list[tuple[tuple[str, ...], tuple[str, ...]]],
        activation: Activation,
        places: torch.Tensor | None,
        *,
        shares_first: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._names = names
        self._activation = activation
        self._places = places
        self._shares_first = shares_first
        # The launches for routed experts and the groups for many tokens, and the provider of weights that they belong
        # to.
        self._launches: tuple[WeightProvider, RoutedExperts | None, GroupedExperts | None] | None = None
        first = names[0][0][0]
        super().__init__(store, first, store.entry(first).shape, dtype, device)
        if dtype in HALVES:
            self._weights.at_once = bytes_of_a_group(store, names, dtype)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors of all experts."""
        return tuple(name for expert in self._names for matrix in expert for name in matrix)

    def mix(self, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The sum, for each token, of what its experts make of it, by their shares.

        :param x: ``[tokens, width]``.
        :param shares: ``[tokens, experts for each]``.
        :param ids: numbers of experts, of the same shape.
        """
        routed, grouped = self._ways() if self._kind == "cuda" else (None, None)
        if routed is not None and routed.takes(x, shares, ids):
            return routed.mix(x, shares, ids)
        if self._places is not None:
            # Engines pad with -1, which is no expert.
            ids = torch.where(ids < 0, -1, self._places.to(ids.device)[ids.long().clamp_min(0)])
        capturing = self._kind == "cuda" and is_capturing()
        if grouped is not None and not capturing and grouped.takes(x, shares, ids):
            return grouped.mix(x, shares, ids)
        with exclusive(self._store, self._device):
            if capturing:
                return self._all(x, shares, ids)
            return self._routed(x, shares, ids)

    def _ways(self) -> tuple[RoutedExperts | None, GroupedExperts | None]:
        """The launches for routed experts and the groups for many tokens as the weights are now; nothing for those that
        there are not."""
        launches, provider = self._launches, self._weights.provider
        if launches is not None and provider is not None and launches[0] is provider[0]:
            return launches[1:]
        with self._store.lock:
            provider = self._weights.prepared()
            store, device, names, dtype = self._store, self._device, self._names, self._dtype
            routed = routed_experts(store, device, names, dtype, self._activation, self._places, self._shares_first)
            grouped = grouped_experts(store, device, names, dtype, self._activation, self._shares_first)
            self._launches = provider[0], routed, grouped
            return routed, grouped

    def _routed(self, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for number in torch.unique(ids).tolist():
            if number < 0:
                continue
            tokens, which = torch.where(ids == number)
            share = shares[tokens, which, None]
            out.index_add_(0, tokens, self._expert(number, x[tokens], share).to(out.dtype))
        return out

    def _all(self, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for number in range(len(self._names)):
            share = torch.where(ids == number, shares, 0).sum(-1, keepdim=True)
            made = self._expert(number, x, share).to(out.dtype)
            # An expert's output for tokens not routed to it may be infinite, and 0 times infinity is NaN: select.
            out += torch.where((ids == number).any(-1, keepdim=True), made, 0)
        return out

    def _expert(self, number: int, x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        first, second = self._matrices(number)
        if self._shares_first:
            x, share = (x * share).to(x.dtype), torch.ones_like(share)
        return F.linear(self._activation(F.linear(x, first)), second) * share

    def _matrices(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Valid until another weight is decoded."""
        first, second = self._names[number]
        weights = self._weights.together((*first, *second))
        return stacked(weights[: len(first)]), stacked(weights[len(first) :])

    def __getstate__(self) -> dict[str, Any]:
        # Launches are of this machine's memory.
        return {**super().__getstate__(), "_launches": None}

    def _settle(self) -> None:
        # They keep memory of the GPU that the layer was on.
        self._launches = None
        super()._settle()

    def _form(self) -> str:
        return f"{len(self._names)} experts"
