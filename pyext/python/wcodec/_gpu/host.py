"""Decoding on a GPU from compressed bytes that stay in the host's memory, or in their file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .._core import format as fmt
from .._core.keywords import keywords
from .decoder import DeviceDecoder, gpu_options

if TYPE_CHECKING:
    import torch

    from .._file.container import Container


class HostDecoder(DeviceDecoder):
    """Compressed tensors in pinned memory of the host, sent to a GPU and decoded there whenever they are wanted.

    The GPU holds no more than a ring of four slots, which compressed bytes pass through, and the outputs. Copies run on
    a stream of their own; nothing waits on the host. With :meth:`prepare` and :meth:`DecodeBatch.prefetch` the bytes of
    the next layers are on their way while one computes::

        decoder = wcodec.HostDecoder("model.wcodec", ring=256 << 20)
        blocks = [decoder.prepare(targets) for targets in targets_of_blocks]
        blocks[0].prefetch()
        for i, block in enumerate(blocks):
            block.launch()                                # decodes, behind its copies
            if i + 1 < len(blocks):
                blocks[i + 1].prefetch()                  # copied while block i computes
            compute(i)
        decoder.check()                                   # waits; raises if anything was damaged

    A slot has a quarter of ``ring``, or what sixteen rows of the widest tensor take if that is more. The tensors of a
    batch fill slots one after the other, and what does not fit a slot goes on in the next one. So a ring of four times
    the stored bytes of a block (and 1 KiB for each tensor) takes a block in each slot, and batches can be prefetched
    three ahead of the one that computes; a smaller one is filled as far as it goes. For tensors that are decoded by
    ``rows``, only the bytes of these are copied. Work can be put into any stream; CUDA graphs cannot capture it.

    With ``from_disk`` tensors take no memory of the host, but for another ring of that size: threads read them from the
    file each time that they are prefetched or launched, and send them on. Each read is compared with hashes before
    anything is decoded from it, and ``launch`` waits until the bytes are there: it raises what is wrong with them. The
    file is kept open; one that is written to meanwhile is an error, one that is removed or replaced is read on::

        decoder = wcodec.HostDecoder("model.wcodec", from_disk=True)

    :param container: an open container, or the path or the bytes of one. It can be closed when the decoder is made.
    :param names: the tensors, tied ones among them; all if left out.
    :param device: ``cuda`` (torch's current device), ``cuda:N`` or a ``torch.device``.
    :param ring: bytes of the GPU's memory for the ring: 128 MiB if left out, and not more than four times all tensors.
    :param threads: threads that read and check the file; all cores if left out.
    :param check: whether hashes are checked.
    :param from_disk: True, or the tensors that are read from the file each time; the container must be one.
    :param readers: threads that read them; 16 if left out.
    :param direct: whether they are read beside the system's page cache, which pays if they are more than it can hold.
        On a file system without such reads they go through the cache all the same; :attr:`direct` says which.
    :param nvcomp: nvCOMP's library or the folder that has it, for coder ``zstd``; searched for if left out.
    :raises DeviceError: if there is no GPU, if so much memory cannot be pinned, or nvCOMP is needed and missing.
    :raises CorruptError: if a tensor is damaged.
    """

    @keywords(name="HostDecoder")
    def __init__(
        self,
        container: Container | str | os.PathLike[str] | bytes,
        names: Iterable[str] | None = None,
        device: str | torch.device = "cuda",
        *,
        ring: int | None = None,
        threads: int | None = None,
        check: bool = True,
        nvcomp: str | os.PathLike[str] | None = None,
        from_disk: Iterable[str] | bool = False,
        readers: int | None = None,
        direct: bool = True,
    ) -> None:
        options = gpu_options(threads, check, nvcomp=nvcomp, ring=ring, readers=readers, direct=bool(direct))
        self._read(container, names, device, options, resident=False, from_disk=from_disk)

    @property
    def host_bytes(self) -> int:
        """Pinned memory that the decoder holds: the compressed tensors, and the ring that those in the file pass
        through."""
        return self._native.host_bytes()

    @property
    def host_ring_bytes(self) -> int:
        """The ring's share of :attr:`host_bytes`; 0 if no tensor is read from the file."""
        return self._native.host_ring_bytes()

    @property
    def direct(self) -> bool | None:
        """Whether tensors in the file are read beside the system's page cache; None if there are no such tensors."""
        return self._native.direct()

    def __repr__(self) -> str:
        how = {None: "", True: ", reads from disk directly", False: ", reads from disk through the page cache"}
        return f"{super().__repr__()[:-1]}, on the host: {fmt.size(self.host_bytes)}{how[self.direct]})"
