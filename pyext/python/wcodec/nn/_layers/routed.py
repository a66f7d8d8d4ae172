"""Products of a few tokens with the experts that they are routed to, straight from the compressed weights."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..._core.errors import DeviceError
from ..._gpu.decoder import DeviceDecoder, ProductBatch
from . import pattern

if TYPE_CHECKING:
    from ..experts import CompressedExperts

# Tokens, each counted with each of its experts, that these launches are for: routes of more are hardly repeated.
MOST_ROUTED = 64
# Routes whose launches are kept: text repeats some.
_KEPT = 64
# A token and an expert that it is routed to.
_Route = tuple[tuple[int, int], ...]


class Routed:
    """Computes a module of experts for few tokens, by two launches: one for all gates and values, and one behind them.
    Each token, with each of its experts, is one vector of a launch.

    :param form: the way the module's own code joins gates and values.
    """

    def __init__(self, experts: CompressedExperts, decoder: DeviceDecoder, form: pattern.ExpertForm) -> None:
        self.decoder, self._form = decoder, form
        self._names, self._parts = experts._names, experts._parts
        self._dtype, self._device = experts._dtype, experts._device
        # Tokens, each counted with each of its experts.
        self._most = min(MOST_ROUTED, *(decoder.most_vectors(name) for name in experts.tensors))
        self._launches: OrderedDict[_Route, tuple[ProductBatch, ProductBatch]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(
        self, experts: CompressedExperts, x: torch.Tensor, routed_to: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor | None:
        """The output of the experts for their tokens. None where there are too many, or the input is not one that the
        original takes; then the original says why."""
        if x.dim() != 2 or x.dtype is not self._dtype or x.device != self._device or routed_to.dim() != 2:
            return None
        if not 0 < routed_to.numel() <= self._most or routed_to.shape != weights.shape or len(routed_to) != len(x):
            return None
        tokens, each = routed_to.shape
        # Which experts these are has to be known here, as in the original's loop over them.
        pairs = [(i // each, int(expert)) for i, expert in enumerate(routed_to.flatten().tolist())]
        if any(not 0 <= expert <= len(self._names) for _, expert in pairs):
            return None
        # One more than there are stands for experts that others have.
        own_pairs = [i for i, (_, expert) in enumerate(pairs) if expert < len(self._names)]
        if not own_pairs:
            return torch.zeros_like(x)
        first, second = self._launches_of(tuple(pairs[i] for i in own_pairs))
        if second.slots:
            # Second matrices that are streamed are on their way while the first ones are multiplied with.
            first.prefetch()
            second.prefetch()
        middle = self._form.join(experts, first.run(x, 1).view(len(own_pairs), -1))
        out = second.run(middle, 1).view(len(own_pairs), -1).float()
        if len(own_pairs) < len(pairs):
            # Each token has as many, so that sums have one order.
            out = out.new_zeros(len(pairs), out.shape[-1]).index_copy_(0, torch.tensor(own_pairs, device=x.device), out)
        return (out.view(tokens, each, -1) * weights.float().unsqueeze(-1)).sum(1).to(x.dtype)

    def _launches_of(self, route: _Route) -> tuple[ProductBatch, ProductBatch]:
        with self._lock:
            launches = self._launches.get(route)
            if launches is None:
                launches = self._launches[route] = self._made(route)
                if len(self._launches) > _KEPT:
                    self._launches.popitem(last=False)
            self._launches.move_to_end(route)
        return launches

    def _made(self, route: _Route) -> tuple[ProductBatch, ProductBatch]:
        before = self._parts[0]
        first = [(name, token) for token, expert in route for name in self._names[expert][:before]]
        second = [(name, i) for i, (_, expert) in enumerate(route) for name in self._names[expert][before:]]
        return self._products(first), self._products(second)

    def _products(self, factors: Sequence[tuple[str, int]]) -> ProductBatch:
        vectors = [vector for _, vector in factors]
        return self.decoder.products([(name, None) for name, _ in factors], self._dtype, vectors)


def routed(experts: CompressedExperts) -> Routed | None:
    """The products of a module of experts, if kernels multiply with all of their weights as they are stored, one
    decoder has them, and the module does what others do."""
    store, device, dtype = experts._store, experts._device, experts._dtype
    form = pattern.expert_form(experts._of)
    if (
        form is None
        or getattr(experts, "num_experts", None) != len(experts._names)
        or device.type != "cuda"
        or dtype not in (torch.float16, torch.bfloat16)
    ):
        return None
    names = dict.fromkeys(experts.tensors)
    decoders: set[DeviceDecoder] = {store.decoder(name, device) for name in names}
    decoder = decoders.pop()
    if decoders or not decoder.multiplies(dtype) or any(decoder.can_fuse(name) is not None for name in names):
        return None
    product = Routed(experts, decoder, form)
    try:
        product._launches_of(((0, 0),))
    except DeviceError:
        # Tiles so wide that a block of threads has no room for them.
        return None
    return product
