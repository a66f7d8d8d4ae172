"""Embeddings with compressed tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .._core.coding import FileOptions
from .._core.keywords import keywords
from .._file.encode import compress_in_memory
from ._layers import ops
from ._layers.layer import CompressedLayer
from ._weights import providers
from ._weights.providers import slices, stacked
from ._weights.store import Store
from ._weights.workspace import is_capturing, workspace

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CompressedEmbedding(CompressedLayer):
    """``torch.nn.Embedding`` with a compressed table, of which only the rows that are looked up are decoded, and those
    that share a strip of 16 rows with them.

    >>> import torch, wcodec.nn
    >>> table = torch.nn.Embedding(1000, 64)
    >>> layer = wcodec.nn.CompressedEmbedding.from_embedding(table)
    >>> ids = torch.tensor([[3, 999], [3, 4]])
    >>> torch.equal(layer(ids), layer.weight[ids])
    True

    On a GPU one launch looks all rows up, whose numbers the CPU only sees to refuse those of no row. During the capture
    of a CUDA graph it cannot, and such rows are NaN. For tables of coder ``zstd``, or stored raw, the CPU says which
    strips are decoded, each once; of many, and in graphs, all of them, slice by slice. A table that is stored
    transposed is decoded as a whole. Compressed bytes of an embedding are always in the memory of the device, also with
    residency ``host``.

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
    @keywords(FileOptions, name="CompressedEmbedding.from_embedding")
    def from_embedding(
        cls,
        embedding: torch.nn.Module,
        scheme: str | None = None,
        coder: str | None = None,
        *,
        bits: float | None = None,
        trellis: bool | None = None,
        **options: Unpack[FileOptions],
    ) -> CompressedEmbedding:
        """Compresses a ``torch.nn.Embedding``, which stays as it is.

        :param options: as for :meth:`CompressedLinear.from_linear`.
        """
        weight = embedding.weight.detach()
        encoding: dict[str, Any] = {"scheme": scheme, "coder": coder, "bits": bits, "trellis": trellis, **options}
        container = compress_in_memory({"weight": weight}, **encoding)
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
        out.weight = torch.nn.Parameter(self._own_weight(), requires_grad=False)
        return out.train(self.training)

    @property
    def scalar_embed_scale(self) -> float:
        """The factor of a scaled embedding, before it is rounded."""
        return self._scale_of("scalar_embed_scale")[1]

    @property
    def embed_scale(self) -> torch.Tensor:
        """The factor of a scaled embedding as its class has it, for models that read it."""
        _, scale, dtype = self._scale_of("embed_scale")
        return torch.full((), scale, dtype=dtype, device=self._device)

    def _scale_of(self, name: str) -> tuple[Any, float, torch.dtype]:
        if self._scaled_of is None:
            # Raises torch's error for a name that is not there.
            super().__getattr__(name)
        assert self._scaled_of is not None
        return self._scaled_of

    def _scale(self, dtype: torch.dtype) -> float:
        if self._scaled_of is None:
            return 1.0
        return float(torch.tensor(self._scaled_of[1], dtype=self._scaled_of[2], device="cpu").to(dtype))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows of these ids."""
        if torch.compiler.is_compiling():
            rows = ops.embedding(input, self._handle, self._width, self._dtype)
        else:
            rows = self._look_up(input)
        return rows if self._scaled_of is None else rows * self._scales[self._dtype]

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        first, last = self._span
        if last - first == self.num_embeddings:
            return self._own_rows(ids)
        # Ranks share the table by rows. Rows of other ranks are zeros here: the sum over the ranks has them all.
        capturing = self._kind == "cuda" and is_capturing()
        if not capturing and bool(((ids < 0) | (ids >= self.num_embeddings)).any()):
            bad = int(ids.min() if ids.min() < 0 else ids.max())
            raise self._refuse(
                f"row {bad} is looked up, and there are {self.num_embeddings}", "check the tokens", code="I538"
            )
        is_elsewhere = ((ids >= 0) & (ids < first)) | ((ids >= last) & (ids < self.num_embeddings))
        rows = self._own_rows(torch.where(is_elsewhere, 0, ids - first))
        return rows.masked_fill(is_elsewhere.unsqueeze(-1), 0)

    def _rows_of(self, ids: torch.Tensor) -> torch.Tensor | None:
        return self._look_up(ids)

    def _own_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that count from the first row that is here."""
        count, width = self._span[1] - self._span[0], self._width
        if ids.device != self._device:
            raise self._refuse(
                f"the input is on {ids.device}, and the layer on {self._device}", "move one of them", code="I538"
            )
        if ids.dtype not in (torch.int64, torch.int32):
            raise self._refuse(f"the input is {ids.dtype}", "pass numbers of rows, int64 or int32", code="I538")
        if ids.numel() == 0:
            return torch.empty((*ids.shape, width), dtype=self._dtype, device=self._device)
        rows = self._weights.table() if self._kind == "cuda" else None
        capturing = rows is not None and is_capturing()
        if not capturing:
            # Waits for the GPU.
            wanted = ids.reshape(-1).cpu()
            low, high = (int(number) for number in torch.aminmax(wanted))
            if low < 0 or high >= count:
                bad = low if low < 0 else high
                raise self._refuse(
                    f"row {bad} is looked up, and there are {self.num_embeddings}", "check the tokens", code="I538"
                )
        if rows is not None and rows.lookup is not None:
            return rows.lookup(ids)
        if rows is not None and not rows.has_rows:
            return _picked(rows.decoder.decode(self.tensor, self._dtype), ids, capturing)
        if rows is not None and capturing:
            return self._by_slices(ids)
        if rows is None and (cached_weight := self._store.kept(self.tensor, self._device, self._dtype)) is not None:
            # A head that is tied to it has them.
            return F.embedding(ids, cached_weight)
        # On the CPU the table may be one that is decoded as a whole anyhow.
        runs, place = _runs(wanted.tolist(), self.entry.cut or count, count)
        if rows is None:
            table = stacked([self._store.rows(self.tensor, self._dtype, run) for run in runs])
        elif sum(end - begin for begin, end in runs) * width * self._dtype.itemsize > providers.SLICE_BYTES:
            return self._by_slices(ids)
        else:
            table = rows.decoder.decode_rows(self.tensor, runs, self._dtype)
        if len(place) == 1:
            return table[place[0]].view((*ids.shape, width))
        return F.embedding(torch.as_tensor(place).to(self._device).view(ids.shape), table)

    def _by_slices(self, ids: torch.Tensor) -> torch.Tensor:
        """Decodes the whole table and picks rows, without asking which; rows that are not there come out as NaN."""
        entry = self.entry
        space = workspace(self._device)
        decoder = self._weights.table().decoder
        out = torch.full((*ids.shape, self._width), float("nan"), dtype=self._dtype, device=self._device)
        with space.lock:
            parts = list(slices(entry, self._dtype))
            longest = max(end - begin for begin, end in parts)
            scratch = space.enter(longest * self._width * self._dtype.itemsize)
            scratch.owner = None
            for begin, end in parts:
                size = (end - begin) * self._width * self._dtype.itemsize
                part = scratch.buffer[:size].view(self._dtype).view(end - begin, self._width)
                decoder.decode(self.tensor, out=part, rows=(begin, end))
                inside = ((ids >= begin) & (ids < end)).unsqueeze(-1)
                out = torch.where(inside, F.embedding((ids - begin).clamp(0, end - begin - 1), part), out)
        return out

    def _form(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


def _picked(table: torch.Tensor, ids: torch.Tensor, unchecked: bool) -> torch.Tensor:
    """Rows of a decoded table; NaN where there are none, if nobody has looked.

    >>> _picked(torch.ones(2, 1), torch.tensor([1, 2]), True)
    tensor([[1.],
            [nan]])
    """
    if not unchecked:
        return F.embedding(ids, table)
    last = len(table) - 1
    wrong = ((ids < 0) | (ids > last)).unsqueeze(-1)
    return F.embedding(ids.clamp(0, last), table).masked_fill(wrong, float("nan"))


def _runs(numbers: Sequence[int], cut: int, rows: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The ranges of a table's ``rows`` that have these, in strips of ``cut`` rows, each once and in order, neighbours
    joined; and where each of the numbers is in what these ranges have, one behind the other.

    >>> _runs([35, 3, 32, 17], 16, 40)
    ([(0, 40)], [35, 3, 32, 17])
    >>> _runs([69, 3], 16, 70)
    ([(0, 16), (64, 70)], [21, 3])
    """
    strips = sorted({number // cut for number in numbers})
    begin = {strip: i * cut for i, strip in enumerate(strips)}
    runs: list[tuple[int, int]] = []
    for strip in strips:
        first, last = strip * cut, min((strip + 1) * cut, rows)
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return runs, [begin[number // cut] + number % cut for number in numbers]
