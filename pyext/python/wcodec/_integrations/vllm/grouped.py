"""Experts for many tokens: several are decoded at a time, and multiplied with the tokens that are routed to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ...nn._weights.expert_groups import ExpertGroup, Names, expert_groups
from ...nn._weights.store import Store
from ...nn._weights.workspace import exclusive
from .routed import combined

# Dtypes that experts in groups are decoded to.
HALVES = (torch.float16, torch.bfloat16)
# torch's product of several matrices, each with rows of its own. A torch without it multiplies one after the other.
_grouped_mm: Any = getattr(F, "grouped_mm", None)
# Bytes that rows of its operands are multiples of.
_ROW_BYTES = 16
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class GroupedExperts:
    """The experts of one layer, in groups that are decoded together.

    :param groups: these, with the numbers of their experts.
    :param dtype: the dtype that they are decoded to.
    :param activation: the function between the two matrices of an expert.
    :param shares_first: whether tokens, and not results, are multiplied by their shares.
    :param together: whether torch multiplies all of a group by one launch.
    """

    def __init__(
        self,
        store: Store,
        device: torch.device,
        groups: Sequence[tuple[range, ExpertGroup]],
        dtype: torch.dtype,
        activation: Callable[[torch.Tensor], torch.Tensor],
        shares_first: bool,
        together: bool,
    ) -> None:
        self._store, self._device, self._groups, self._dtype = store, device, groups, dtype
        self._activation, self._shares_first = activation, shares_first
        # The number of experts.
        self._experts = groups[-1][0].stop
        self._together = together

    def takes(self, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> bool:
        """Whether it computes these tokens: there are some, and nobody wants gradients."""
        kinds = x.dtype is self._dtype and shares.dtype in (torch.float32, x.dtype)
        wants_gradients = torch.is_grad_enabled() and (x.requires_grad or shares.requires_grad)
        return kinds and ids.numel() > 0 and not wants_gradients

    def mix(self, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The sum, for each token, of what its experts make of it, by their shares. The CPU waits for the numbers of
        tokens of all experts.

        :param x: ``[tokens, width]``.
        :param shares: ``[tokens, experts for each]``.
        :param ids: numbers of these experts, of the same shape; negative and larger ones are of none.
        """
        (tokens, each), device = ids.shape, x.device
        shares, numbers = shares.contiguous(), ids.reshape(-1).long()
        # Routes in the order of experts, and behind them those that lead to none.
        numbers = torch.where((numbers < 0) | (numbers >= self._experts), self._experts, numbers)
        order = numbers.argsort(stable=True)
        ends = torch.bincount(numbers, minlength=self._experts + 1).cumsum(0, dtype=torch.int32)
        places = [0, *ends.tolist()]
        routed = places[self._experts]
        tokens_of = order // each
        positions = torch.full((tokens * each,), -1, dtype=torch.int32, device=device)
        positions[order[:routed]] = torch.arange(routed, dtype=torch.int32, device=device)
        results = x.new_empty((max(routed, 1), x.shape[-1]))
        for numbers_of, group in self._groups:
            first_expert, end_expert = numbers_of.start, numbers_of.stop
            begin, end = places[first_expert], places[end_expert]
            if begin == end:
                continue
            rows = x[tokens_of[begin:end]]
            if self._shares_first:
                rows = (rows * shares.view(-1, 1)[order[begin:end]]).to(x.dtype)
            at = ends[first_expert:end_expert] - begin
            own = [place - begin for place in places[first_expert + 1 : end_expert + 1]]
            with exclusive(self._store, self._device):
                first, second = group.decoded()
                inner = self._activation(self._product(rows, first, own, at))
                results[begin:end] = self._product(inner, second, own, at)
        stream = _current_stream(device.index)
        return combined(results, None if self._shares_first else shares, positions.data_ptr(), (tokens, each), stream)

    def _product(self, x: torch.Tensor, matrices: torch.Tensor, ends: list[int], at: torch.Tensor) -> torch.Tensor:
        """Each matrix times its own rows of ``x``.

        :param ends: one past each matrix's last row.
        :param at: the same on the GPU.
        """
        rows, width = matrices.shape[1:]
        unit = _ROW_BYTES // x.element_size()
        if self._together and rows % unit == 0 and width % unit == 0:
            product: torch.Tensor = _grouped_mm(x.contiguous(), matrices.transpose(1, 2), offs=at)
            return product
        out = x.new_empty((x.shape[0], rows))
        begin = 0
        for matrix, end in zip(matrices, ends, strict=True):
            if begin < end:
                torch.mm(x[begin:end], matrix.t(), out=out[begin:end])
            begin = end
        return out


def grouped_experts(
    store: Store,
    device: torch.device,
    names: Names,
    dtype: torch.dtype,
    activation: Callable[[torch.Tensor], torch.Tensor],
    shares_first: bool,
) -> GroupedExperts | None:
    """The experts in groups, if they are on a GPU, of one shape, and computed in a half precision."""
    if dtype not in HALVES:
        return None
    groups = expert_groups(store, names, device, dtype)
    if groups is None:
        return None
    # torch has a kernel for several matrices, of bfloat16, on these GPUs. On others it would wait for the CPU.
    has_kernel = _grouped_mm is not None and torch.cuda.get_device_capability(device)[0] in (9, 10)
    together = has_kernel and dtype is torch.bfloat16
    return GroupedExperts(store, device, groups, dtype, activation, shares_first, together)
