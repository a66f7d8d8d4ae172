"""Products with the experts that tokens are routed to: which these are, only the GPU knows, so that nobody waits for
it, and CUDA graphs decode no other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ... import _native
from ..._core import dtypes
from ..._core.errors import InputError
from ...nn._weights.expert_groups import Names
from ...nn._weights.store import Store
from ...nn._weights.workspace import is_capturing

_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# Routes of an expert on the average up to which these launches are faster than decoding it once, and cuBLAS: they
# decode it again for every 32. 128 experts of 768x2048, 512 tokens with 8 each (one H200, 4 bits): 0.8 ms, and 1.9 ms.
_ROUTES_EACH = 64
# Bytes of a slot: an expert, the position of its first route, their number.
_SLOT = 16
# Errors that say that a device, a layout or shapes are none that the kernels are for, or that there are too many.
_REFUSED = ("I434", "I435")


@functools.cache
def _router(ordinal: int) -> _native.GpuRouter:
    return _native.GpuRouter(ordinal)


def combined(
    y: torch.Tensor, shares: torch.Tensor | None, positions: int, routes: tuple[int, int], stream: int
) -> torch.Tensor:
    """The sum of each token's results, by their shares: one launch, which rounds once.

    :param y: results by position, ``[routes, width]``.
    :param shares: one for each route; left out if all are 1.
    :param positions: the address of an ``int32`` for each route, its position or -1.
    :param routes: the number of tokens, and the routes of each.
    """
    (tokens, each), width = routes, y.shape[-1]
    out = y.new_empty((tokens, width))
    _router(y.device.index).combine(
        {
            "dtype": dtypes.requested(str(y.dtype)),
            "tokens": tokens,
            "each": each,
            "cols": width,
            "y": y.data_ptr(),
            "shares": 0 if shares is None else shares.data_ptr(),
            "share_dtype": dtypes.requested(str(y.dtype if shares is None else shares.dtype)),
            "positions": positions,
            "out": out.data_ptr(),
        },
        stream,
    )
    return out


class RoutedExperts:
    """The launches for the experts of one layer.

    :param decoder: has all tensors on its GPU.
    :param names: those of the experts.
    :param activation: the function between the two matrices of an expert.
    :param places: the index of each expert of the model among these, ``int32`` on the GPU; left out if all are here.
    :param shares_first: whether tokens, and not results, are multiplied by their shares.
    :raises InputError: if kernels do not multiply with all of them, or not together.
    """

    def __init__(
        self,
        decoder: Any,
        names: Names,
        dtype: torch.dtype,
        activation: Callable[[torch.Tensor], torch.Tensor],
        places: torch.Tensor | None,
        shares_first: bool,
    ) -> None:
        self._dtype, kind = dtype, dtypes.requested(str(dtype))
        self._activation, self._places, self._shares_first = activation, places, shares_first
        self._experts = len(names)
        self._ordinal: int = decoder.device.index
        self._router = _router(self._ordinal)

        def prepared(which: int) -> _native.RoutedProducts:
            matrices = [[(name, None, 0, 0) for name in expert[which]] for expert in names]
            routed: _native.RoutedProducts = decoder._native.prepare_routed(matrices, kind)
            return routed

        self._first, self._second = prepared(0), prepared(1)
        self._inner = sum(decoder.info(name).shape[0] for name in names[0][0])

    def takes(self, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> bool:
        """Whether kernels take these tokens and routes: few for each expert, or any that are captured, where nobody
        could know which experts to decode."""
        few = ids.numel() <= _ROUTES_EACH * self._experts or is_capturing()
        kinds = x.dtype is self._dtype and shares.dtype in (torch.float32, x.dtype)
        if torch.is_grad_enabled() and (x.requires_grad or shares.requires_grad):
            return False
        return few and kinds and 0 < ids.numel() <= _native.MOST_ROUTES and ids.dtype in (torch.int32, torch.int64)

    def mix(self, x: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The sum, for each token, of what its experts make of it, by their shares.

        :param x: ``[tokens, width]``.
        :param shares: ``[tokens, experts for each]``.
        :param ids: numbers of experts of the model, of the same shape; negative ones are of none.
        """
        (tokens, each), width, device = ids.shape, x.shape[-1], x.device
        x, shares, ids = x.contiguous(), shares.contiguous(), ids.contiguous()
        stream = _current_stream(self._ordinal)
        if self._places is not None and is_capturing():
            _native.gpu_keep(self._ordinal, stream, self._places)
        routes = tokens * each
        most = self._first.most(tokens, routes)
        some = min(self._experts, routes)
        count = some + (routes - some) // most
        # Slots, positions, and rows.
        notes = torch.empty(_SLOT * count + 8 * routes, dtype=torch.uint8, device=device)
        slots = notes.data_ptr()
        positions, rows = slots + _SLOT * count, slots + _SLOT * count + 4 * routes
        self._router.route(
            {
                "ids": ids.data_ptr(),
                "count": routes,
                "wide": ids.dtype is torch.int64,
                "each": 1 if self._shares_first else each,
                "places": 0 if self._places is None else self._places.data_ptr(),
                "named": 0 if self._places is None else self._places.numel(),
                "experts": self._experts,
                "most": most,
                "rows": rows,
                "positions": positions,
                "slots": slots,
            },
            stream,
        )
        if self._shares_first:
            x = (x[:, None] * shares[..., None]).to(x.dtype)
        y = x.new_empty((routes, self._inner))
        self._first.multiply(x.data_ptr(), width, rows, slots, count, most, y.data_ptr(), stream)
        inner = self._activation(y).contiguous()
        z = x.new_empty((routes, width))
        self._second.multiply(inner.data_ptr(), inner.shape[-1], 0, slots, count, most, z.data_ptr(), stream)
        return combined(z, None if self._shares_first else shares, positions, (tokens, each), stream)


def routed_experts(
    store: Store,
    device: torch.device,
    names: Names,
    dtype: torch.dtype,
    activation: Callable[[torch.Tensor], torch.Tensor],
    places: torch.Tensor | None,
    shares_first: bool,
) -> RoutedExperts | None:
    """The launches for experts on a GPU, if kernels multiply with all of them as they are stored."""
    if device.type != "cuda" or not store.fuses or dtype not in (torch.float16, torch.bfloat16):
        return None
    tensors = [name for expert in names for matrix in expert for name in matrix]
    if store.residency_of(tensors, device) != "device" or store.is_cached(tensors, device):
        return None
    of = {name: store.entry(name).name for name in tensors}
    decoder = store.decoder(tensors[0], device)
    if not decoder.multiplies(dtype) or not set(decoder.names).issuperset(of.values()):
        return None
    if any(decoder.can_fuse(name) is not None for name in of.values()):
        return None
    experts = [(tuple(of[n] for n in first), tuple(of[n] for n in second)) for first, second in names]
    if places is not None:
        places = places.to(device=device, dtype=torch.int32).contiguous()
    try:
        return RoutedExperts(decoder, experts, dtype, activation, places, shares_first)
    except InputError as error:
        if error.code not in _REFUSED:
            raise
        return None
