"""Embeddings with compressed tables."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from .._api import compress_in_memory
from . import _ops, _plans
from ._layer import CompressedLayer
from ._plans import Plan, has_rows, slices, stacked
from ._store import Store
from ._workspace import is_capturing, workspace

# Up to so many rows, Python finds their strips in less time than operators on arrays take to be called.
_FEW = 64
# A GPU decodes about so many weights in the time that one more run of rows takes it.
_GAP = 1 << 20


class _Rows(Plan):
    """The table of an embedding on a GPU, to be decoded by rows."""

    def __init__(self, store: Store, name: str, device: torch.device) -> None:
        self.names = (name,)
        self.decoder = store.decoder(name, device)
        # Otherwise only the whole table can be decoded.
        self.there = has_rows(store.entry(name))


class CompressedEmbedding(CompressedLayer):
    """``torch.nn.Embedding`` with a compressed table, of which only the rows that are looked up are decoded: the strips
    of 16 rows that have them, each once.

    >>> import torch, wcodec.nn
    >>> table = torch.nn.Embedding(1000, 64)
    >>> layer = wcodec.nn.CompressedEmbedding.from_embedding(table)
    >>> ids = torch.tensor([[3, 999], [3, 4]])
    >>> torch.equal(layer(ids), layer.weight[ids])
    True

    On a GPU, numbers of rows that are looked up come to the CPU, which then knows what to decode: of many rows also
    strips that lie between two that are near each other, in less time than without. Where a CUDA graph is
    captured that cannot be, and the whole table is decoded, slice by slice. Compressed bytes of an embedding are always
    in the memory of the device, also with residency ``host``.

    :param scaled: the embedding that it stands for, if that is one that multiplies its rows by a scale (Gemma).
    """

    looked_up = True

    def __init__(
        self,
        store: Store,
        tensor: str,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        scaled: torch.nn.Module | None = None,
        dtype: Any = torch.float32,
        device: Any = "cpu",
    ) -> None:
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        # The rows that are here, and how wide: where ranks share the table these are a part of it.
        self._span, self._width = (0, num_embeddings), embedding_dim
        # It has no part in looking up; kept for whoever reads it.
        self.padding_idx = padding_idx
        self._scaled_of: tuple[Any, float, torch.dtype] | None = None
        if scaled is not None:
            self._scaled_of = (type(scaled), float(scaled.scalar_embed_scale), scaled.embed_scale.dtype)
        # The scale for each dtype, rounded where the original rounds it. No buffer: transformers fills those anew.
        self._scales = {dtype: self._scale(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)}
        super().__init__(store, tensor, (num_embeddings, embedding_dim), dtype, device)

    @classmethod
    def from_embedding(
        cls, embedding: torch.nn.Module, scheme: str | None = None, coder: str = "rans", **options: Any
    ) -> CompressedEmbedding:
        """Compresses a ``torch.nn.Embedding``, which stays as it is.

        :param options: others of :func:`wcodec.compress`.
        """
        weight = embedding.weight.detach()
        container = compress_in_memory({"weight": weight}, scheme=scheme, coder=coder, **options)
        place = {"dtype": weight.dtype, "device": weight.device}
        count, width = weight.shape
        return cls(Store(container), "weight", count, width, embedding.padding_idx, **place)

    def to_embedding(self) -> torch.nn.Module:
        """An uncompressed ``torch.nn.Embedding``, or the scaled one that this stands for, with the decoded table."""
        sizes = (self.num_embeddings, self.embedding_dim, self.padding_idx)
        if self._scaled_of is None:
            out = torch.nn.Embedding(*sizes, device="meta")
        else:
            kind, scale, dtype = self._scaled_of
            with torch.device("meta"):
                out = kind(*sizes, scale)
            out.embed_scale = torch.tensor(scale, dtype=dtype, device=self._device)
        out.weight = torch.nn.Parameter(self.weight, requires_grad=False)
        return out.train(self.training)

    def _scale(self, dtype: torch.dtype) -> float:
        if self._scaled_of is None:
            return 1.0
        return float(torch.tensor(self._scaled_of[1], dtype=self._scaled_of[2], device="cpu").to(dtype))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows of these ids."""
        if torch.compiler.is_compiling():
            rows = _ops.embedding(input, self._handle, self._width, self._dtype)
        else:
            rows = self._look_up(input)
        return rows if self._scaled_of is None else rows * self._scales[self._dtype]

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        first, last = self._span
        if last - first == self.num_embeddings:
            return self._found(ids)
        # Of a table that ranks share by rows, those of others are zeros here: the sum over the ranks has them all.
        if not (ids.is_cuda and is_capturing()) and bool(((ids < 0) | (ids >= self.num_embeddings)).any()):
            bad = int(ids.min() if ids.min() < 0 else ids.max())
            raise self._refuse(f"row {bad} is looked up, and there are {self.num_embeddings}", "check the tokens")
        inside = (ids >= first) & (ids < last)
        rows = self._found(torch.where(inside, ids - first, 0))
        return rows.masked_fill(~inside.unsqueeze(-1), 0)

    def _found(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that count from the first row that is here."""
        count, width = self._span[1] - self._span[0], self._width
        if ids.device != self._device:
            raise self._refuse(f"the input is on {ids.device}, and the layer on {self._device}", "move one of them")
        if ids.dtype not in (torch.int64, torch.int32):
            raise self._refuse(f"the input is {ids.dtype}", "pass numbers of rows, int64 or int32")
        if ids.numel() == 0:
            return torch.empty((*ids.shape, width), dtype=self._dtype, device=self._device)
        gpu = self._kind == "cuda"
        if gpu and not self._rows().there:
            return F.embedding(ids, self._rows().decoder.decode(self.tensor, self._dtype))
        if gpu and is_capturing():
            return self._by_slices(ids)
        # Waits for the GPU.
        wanted = ids.reshape(-1).cpu()
        few = wanted.numel() <= _FEW
        numbers = wanted.tolist() if few else wanted.numpy()
        low, high = (min(numbers), max(numbers)) if few else (int(numbers.min()), int(numbers.max()))
        if low < 0 or high >= count:
            bad = low if low < 0 else high
            raise self._refuse(f"row {bad} is looked up, and there are {self.num_embeddings}", "check the tokens")
        # On the CPU the table may be one that is decoded as a whole anyhow.
        cut = self.entry.cut or count
        if gpu and not few:
            return self._by_pieces(ids, numbers, cut)
        strips, place = _strips(numbers, cut)
        runs = _runs(strips, cut, count)
        table = self._rows().decoder.decode_rows(self.tensor, runs, self._dtype) if gpu else self._strips(runs)
        if wanted.numel() == 1:
            return table[place[0]].view((*ids.shape, width))
        return F.embedding(torch.as_tensor(place).to(self._device).view(ids.shape), table)

    def _by_pieces(self, ids: torch.Tensor, numbers: Any, cut: int) -> torch.Tensor:
        """The rows of many ids on a GPU: as much of the table at a time as layers take memory for, too.

        :param numbers: the ids, as an array on the CPU.
        """
        count, width = self._span[1] - self._span[0], self._width
        most = max(1, _plans.SLICE_BYTES // (cut * width * self._dtype.itemsize))
        gap = max(1, _GAP // (cut * width))
        strips, place = _strips(numbers, cut, gap)
        decoder = self._rows().decoder
        if place.max() < most * cut:
            table = decoder.decode_rows(self.tensor, _runs(strips, cut, count, gap), self._dtype)
            return F.embedding(torch.from_numpy(place).to(self._device).view(ids.shape), table)
        # Rows in the order of the table, so that each piece gives some that lie together.
        order = place.argsort()
        place = place[order]
        # Where each strip is in the joined table, and each piece of that begins.
        at = _joined(strips, gap)
        first = np.flatnonzero(np.diff(at // most, prepend=-1))
        last = np.append(first[1:], len(strips))
        bounds = [*np.searchsorted(place, at[first] * cut).tolist(), len(place)]
        place -= np.repeat(at[first] * cut, np.diff(bounds))
        there = torch.from_numpy(np.stack([place, order])).to(self._device)
        out = torch.empty((len(order), width), dtype=self._dtype, device=self._device)
        for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
            table = decoder.decode_rows(self.tensor, _runs(strips[first[i] : last[i]], cut, count, gap), self._dtype)
            out.index_copy_(0, there[1, begin:end], table.index_select(0, there[0, begin:end]))
            # No two pieces at once.
            del table
        return out.view(*ids.shape, width)

    def _rows(self) -> _Rows:
        """How to get at rows on the GPU."""
        # Another thread may forget it at any moment, as when a copy of the layer changes its dtype.
        plan = self._plan
        if plan is None:
            with self._store.lock:
                plan = self._plan = (_Rows(self._store, self.tensor, self._device), 0)
        return cast(_Rows, plan[0])

    def _strips(self, runs: list[tuple[int, int]]) -> torch.Tensor:
        return stacked([self._store.rows(self.tensor, self._dtype, run) for run in runs])

    def _by_slices(self, ids: torch.Tensor) -> torch.Tensor:
        """Decodes the whole table and picks rows, without asking which; rows that are not there come out as zeros."""
        entry = self.entry
        space = workspace(self._device)
        decoder = self._rows().decoder
        out = torch.zeros((*ids.shape, self._width), dtype=self._dtype, device=self._device)
        with space.lock:
            parts = list(slices(entry, self._dtype))
            longest = max(end - begin for begin, end in parts)
            here = space.enter(longest * self._width * self._dtype.itemsize)
            here.owner = None
            for begin, end in parts:
                size = (end - begin) * self._width * self._dtype.itemsize
                part = here.buffer[:size].view(self._dtype).view(end - begin, self._width)
                decoder.decode(self.tensor, out=part, rows=(begin, end))
                inside = ((ids >= begin) & (ids < end)).unsqueeze(-1)
                out = torch.where(inside, F.embedding((ids - begin).clamp(0, end - begin - 1), part), out)
        return out

    def _form(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


def _strips(numbers: Any, cut: int, gap: int = 1) -> tuple[Any, Any]:
    """The strips of ``cut`` rows that have these rows, each once and in order; and where each row is in the table that
    :func:`_runs` gives for them. Lists, or arrays of many, which are taken as a whole.

    >>> _strips([35, 3, 32], 16)
    ([0, 2], [19, 3, 16])
    >>> [found.tolist() for found in _strips(np.array([35, 3, 32]), 16, gap=2)]
    [[0, 2], [35, 3, 32]]
    """
    if isinstance(numbers, list):
        found = sorted({n // cut for n in numbers})
        begin = {strip: i * cut for i, strip in enumerate(found)}
        return found, [begin[n // cut] + n % cut for n in numbers]
    strips, inside = np.divmod(numbers, cut)
    there = np.zeros(int(strips.max()) + 1, dtype=bool)
    there[strips] = True
    each = np.flatnonzero(there)
    return each, _joined(each, gap)[(there.cumsum() - 1)[strips]] * cut + inside


def _joined(strips: Any, gap: int) -> Any:
    """Where each of these strips is in the table of their runs, counted in strips.

    >>> _joined(np.array([3, 4, 6, 20]), 2).tolist()
    [0, 1, 3, 4]
    """
    steps = np.diff(strips, prepend=strips[0])
    return np.where(steps <= gap, steps, 1).cumsum()


def _runs(strips: Any, cut: int, rows: int, gap: int = 1) -> list[tuple[int, int]]:
    """Ranges of rows that have these strips of ``cut`` rows, in order, neighbours joined; of arrays, which are not
    empty, also those that are up to ``gap`` apart, with what lies between.

    >>> _runs([0, 1, 4], 16, 70), _runs(np.array([0, 1, 4]), 16, 70)
    ([(0, 32), (64, 70)], [(0, 32), (64, 70)])
    >>> _runs(np.array([0, 2, 4]), 16, 70, gap=2)
    [(0, 70)]
    """
    if isinstance(strips, list):
        found: list[tuple[int, int]] = []
        for strip in strips:
            begin, end = strip * cut, min((strip + 1) * cut, rows)
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found
    first = np.flatnonzero(np.diff(strips, prepend=strips[0] - gap - 1) > gap)
    last = np.append(first[1:], len(strips)) - 1
    begins, ends = strips[first] * cut, np.minimum((strips[last] + 1) * cut, rows)
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
