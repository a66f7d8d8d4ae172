"""Decoding a whole container on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._core.tensor_info import TensorInfo
from .._gpu import devices
from .._gpu.decodable import CONVERTIBLE, wanted_dtype
from .._gpu.decoder import GpuDecoder
from .container import Container

if TYPE_CHECKING:
    import torch

# Compressed bytes that loading a file keeps on the GPU at once, besides the tensors. A single tensor may take more.
GROUP_BYTES = 1 << 30


def groups(tensors: Iterable[TensorInfo], limit: int) -> Iterator[list[TensorInfo]]:
    """The tensors in order, at most ``limit`` stored bytes at a time (but at least one)."""
    group: list[TensorInfo] = []
    held = 0
    for tensor in tensors:
        if group and held + tensor.stored_bytes > limit:
            yield group
            group, held = [], 0
        group.append(tensor)
        held += tensor.stored_bytes
    if group:
        yield group


def load(
    container: Container,
    device: str | torch.device,
    dtype: Any,
    threads: int | None,
    callback: Callable[[str, int, int], object] | None,
) -> dict[str, torch.Tensor]:
    """Every stored tensor, decoded on a GPU, whose memory holds them and one group of compressed ones."""
    devices.torch_device(devices.CURRENT)  # Also a file without tensors needs a GPU.
    stored = container.stored
    out: dict[str, torch.Tensor] = {}
    done, total = 0, sum(t.original_bytes for t in stored)
    for group in groups(stored, GROUP_BYTES):
        decoder = GpuDecoder(container, [t.name for t in group], device, threads=threads)
        for info in group:
            wanted = dtype if info.dtype in CONVERTIBLE else None
            out[info.name] = decoder._empty(info, wanted_dtype(info, wanted))
        decoder.decode_batch({t.name: out[t.name] for t in group})
        decoder.check()
        # Before the next group needs the memory.
        del decoder
        for info in group:
            done += info.original_bytes
            if callback:
                callback(info.name, done, total)
    return out
