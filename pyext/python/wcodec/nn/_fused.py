"""Products of a few tokens straight from compressed weights, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .._errors import DeviceError
from .._gpu_decoder import Decoder, ProductBatch
from .._host import HostDecoder

if TYPE_CHECKING:
    from ._store import Store

# Faster than the public way, which runs for every layer and token; a torch without CUDA may not have it.
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Fused:
    """What one linear layer does for up to :attr:`ProductBatch.MOST` tokens: a launch that decodes and multiplies, so
    that the weight is written nowhere."""

    def __init__(self, decoder: Decoder, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.decoder, self.name, self.dtype = decoder, name, dtype
        self._out, self._in = shape
        self._index = decoder.device.index
        # Elements of the input up to which there are few enough tokens.
        self.limit = ProductBatch.MOST * self._in
        # Address of the bias: a parameter that goes to another dtype or device is the same object.
        self._bias = 0
        self._multiply: Callable[[int, int, int, int, int], None] | None = None

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
        return y

    def prepare(self, bias: torch.Tensor | None) -> Callable[[int, int, int, int, int], None]:
        """Makes the launches with that bias, which the next call has."""
        # Detached, it keeps the memory that the address is of.
        kept = None if bias is None else bias.detach()
        self._batch = self.decoder.products([(self.name, kept)], self.dtype)
        self._bias = 0 if kept is None else kept.data_ptr()
        self._multiply = self._batch._native.multiply
        return self._multiply


def fuse_(model: torch.nn.Module, fused: bool = True) -> int:
    """Lets the compressed linear layers of a model multiply up to 16 tokens straight from their compressed weights, on
    a GPU: one launch decodes and multiplies, and the weight is written nowhere. More tokens, what no kernel multiplies
    with (:meth:`wcodec.GpuDecoder.unfused` says why), and weights that are streamed are decoded as before.

    A layer's result is then no longer that of torch's product with the decoded weight bit for bit, but nearer to the
    exact one: weights are not rounded to the dtype, sums are f32 in a fixed order, and only the result is rounded. It
    is the same in eager mode and in CUDA graphs, and wherever the compressed bytes are.

    :param fused: False goes back to decoding.
    :returns: how many linear layers there are that this is for.

    >>> import torch, wcodec.nn
    >>> model = torch.nn.Sequential(wcodec.nn.CompressedLinear.from_linear(torch.nn.Linear(64, 64)))
    >>> wcodec.nn.fuse_(model)
    1
    """
    from .linear import CompressedLinear

    layers = [m for m in model.modules() if isinstance(m, CompressedLinear)]
    for layer in layers:
        layer._store.fuse(fused)
    return len(layers)


def fused(store: Store, name: str, decoder: Decoder, dtype: torch.dtype) -> Fused | None:
    """The layer's products, if kernels multiply with its weight as it is stored."""
    shape = store.entry(name).shape
    if not store.fuses or dtype not in (torch.float16, torch.bfloat16) or len(shape) != 2 or not shape[1]:
        return None
    # What is streamed would be copied layer by layer, and not ahead.
    if isinstance(decoder, HostDecoder) or decoder.unfused(name) is not None or not decoder.multiplies(dtype):
        return None
    found = Fused(decoder, name, shape, dtype)
    try:
        # Kernels are loaded now, and not when a graph is captured.
        found.prepare(None)
    except DeviceError:
        # Tiles so wide that a block of threads has no room for them.
        return None
    return found
