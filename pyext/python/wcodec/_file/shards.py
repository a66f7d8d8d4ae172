"""Parts of the tensors of a container, as a container of their own: what one of several devices needs of a model.

A part decodes to that part of what its tensor decodes to, bit for bit. If it begins and ends with tiles (16 rows; a
tile's columns), its compressed bytes are copied as they are, and only these are read; elsewhere symbols are decoded and
coded again, with the scales that they have. (A trellis that is cut within a tile takes about a bit per weight more.)

>>> import numpy as np, wcodec
>>> from wcodec._file.shards import Shard, even, narrow
>>> weight = np.random.default_rng(0).standard_normal((64, 128)).astype("float32")
>>> whole = wcodec.Container.open(wcodec.compress_to_bytes({"w": weight})[0])
>>> half = narrow(whole, [Shard("w", 0, even(64, 1, 2))])
>>> bool((half["w"].numpy() == whole["w"].numpy()[32:]).all())
True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.errors import InputError
from .._core.options import decode_options
from .container import Container

if TYPE_CHECKING:
    from torch import Tensor

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shard:
    """A part of a tensor.

    :param tensor: its name in the container, which may be a tied one.
    :param axis: the dimension of the tensor that is cut: 0 for the outputs of a linear layer ``[out, in]``, 1 for its
        inputs.
    :param ranges: the first index and the end of each range that is kept: see :func:`even`.
    :param name: the part's name; that of the tensor if left out.
    """

    tensor: str
    axis: int
    ranges: Ranges
    name: str | None = None

    @classmethod
    def whole(cls, container: Container, tensor: str, name: str | None = None) -> Shard:
        """All of a tensor."""
        return cls(tensor, 0, ((0, container[tensor].shape[0]),), name)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The part's shape, of a tensor of ``shape``."""
        length = sum(stop - start for start, stop in self.ranges)
        return (*shape[: self.axis], length, *shape[self.axis + 1 :])


def even(length: int, rank: int, ranks: int, pieces: int = 1) -> Ranges:
    """The share of a dimension that one of several ranks has: as ``torch.chunk`` divides it, so the last ones may have
    less.

    >>> even(10, 0, 2), even(10, 2, 4), even(8, 1, 2, pieces=2)
    (((0, 5),), ((6, 9),), ((2, 4), (6, 8)))

    :param length: the dimension.
    :param pieces: the number of equal pieces that it was put together from (gate and up in one matrix), each of which
        is divided.
    :raises InputError: if nothing is left for a rank, or the pieces are not equal.
    """
    piece, left = divmod(length, pieces)
    if left:
        raise InputError(f"{length} rows or columns are not {pieces} equal pieces (give ranges)", code="I521")
    step = -(-piece // ranks)
    start, stop = min(rank * step, piece), min((rank + 1) * step, piece)
    if start == stop:
        raise InputError(
            f"{piece} rows or columns leave nothing for rank {rank} of {ranks} (use fewer ranks)", code="I521"
        )
    return tuple((i * piece + start, i * piece + stop) for i in range(pieces))


def narrow(
    container: Container, shards: Iterable[Shard], *, verify: bool = False, threads: int | None = None
) -> Container:
    """An open container in memory with these parts, in their order, ready for ``wcodec.nn``'s stores and decoders.

    :param verify: whether hashes are compared, which are of whole segments: all of each tensor is read then. Without it
        only what the parts hold is, and checked as far as it says so itself. (``wcodec verify`` checks a whole file.)
    :raises InputError: if there is no such tensor, dimension or range, or scales per block cannot be cut there.
    :raises CorruptError: if a tensor is damaged.
    """
    wanted = list(shards)
    for shard in wanted:
        if shard.tensor not in container:
            raise container._missing(shard.tensor)
    cuts = [(s.tensor, s.tensor if s.name is None else s.name, s.axis, list(s.ranges)) for s in wanted]
    return Container(container._open.narrow(cuts, decode_options(threads, check=verify)))


def narrowed(tensor: Tensor, axis: int, ranges: Ranges) -> Tensor:
    """That part of an uncompressed tensor, such as a bias, in memory of its own."""
    import torch

    parts = [tensor.narrow(axis, start, stop - start) for start, stop in ranges]
    return torch.cat(parts, axis) if len(parts) > 1 else parts[0].clone()


__all__ = ["Ranges", "Shard", "even", "narrow", "narrowed"]
