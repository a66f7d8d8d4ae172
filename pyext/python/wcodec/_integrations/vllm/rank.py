"""One rank's share of a compressed folder: the parts of tensors that it keeps, and layers that compute with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._file.shards import Shard, narrow
from ..._gpu import decodable
from ...nn import CompressedConv1D, CompressedLinear
from ...nn._weights.placement import checked_settings
from ...nn._weights.store import Store
from .deferred import Copy, Placeholder, Region
from .experts import Activation, RankExperts
from .parts import LayerRows, Linear
from .weights import Weights


@dataclass(frozen=True)
class StoredRows:
    """Rows of a layer's weight, and the stored matrix that has them.

    :param region: the region of the matrix as it is stored; seen transposed where the weight is.
    """

    begin: int
    end: int
    tensor: str
    region: Region


Matrix = tuple[StoredRows, ...]
"""The parts of a weight, one below the other."""


class Rank:
    """Layers of a rank, of one folder: first each says what it needs (:meth:`linear`, :meth:`experts`), then all are
    made (:meth:`make`).

    :param settings: ``residency``, ``vram_budget`` and ``cache``, as for :class:`wcodec.nn._weights.store.Store`.
    :param fused: whether GPUs multiply a few tokens with weights that stay compressed.
    """

    def __init__(self, weights: Weights, device: torch.device, settings: dict[str, Any], fused: bool = True) -> None:
        self._weights, self.device, self._fused = weights, device, fused
        self._settings = checked_settings(
            settings.get("residency") or "device", settings.get("vram_budget"), settings.get("cache") or 0
        )
        self._groups: list[list[StoredRows]] = []
        self._routed: dict[StoredRows, float] = {}
        self._makers: list[Callable[[], None]] = []
        # The name in the rank's container of each part of a matrix.
        self._names: dict[tuple[str, tuple[int, int], tuple[int, int]], str] = {}
        self._plain: dict[Placeholder, torch.Tensor] = {}
        self._store: Store | None = None

    # Notes of the parts that layers need

    def linear(self, weight: Placeholder, take: Callable[[Linear], None], looked_up: bool = False) -> bool:
        """Notes a linear layer or an embedding. False if its weight is not compressed, or not in a way that a layer
        computes with: then :meth:`plain` has it.

        :param take: is given the layer when it is made.
        :param looked_up: whether rows are looked up in it.
        """
        rows, width = weight.shape
        matrix = self._matrix(weight, 0, rows)
        if matrix is None or (looked_up and (len(matrix) > 1 or matrix[0].begin or matrix[0].region.transposed)):
            return False
        self._groups.append(list(matrix))

        def make() -> None:
            made = Linear([self._piece(part, weight.dtype) for part in matrix], rows, width)
            if looked_up:
                made.prepare_rows()
            take(made)

        self._makers.append(make)
        return True

    def experts(
        self,
        first: Placeholder,
        second: Placeholder,
        activation: Activation,
        places: torch.Tensor | None,
        share: float,
        take: Callable[[RankExperts], None],
        shares_first: bool = False,
    ) -> bool:
        """Notes the experts of a layer; as :meth:`linear`.

        :param first: their first matrices, ``[experts, gate and up, width]``.
        :param second: their second ones, ``[experts, width, intermediate]``.
        :param share: the fraction of all experts that a token is routed to.
        """
        pairs: list[tuple[Matrix, Matrix]] = []
        for number in range(first.shape[0]):
            one, other = (self._matrix(w, number * w.shape[1], (number + 1) * w.shape[1]) for w in (first, second))
            if (
                one is None
                or other is None
                or not (_is_whole(one, first.shape[1]) and _is_whole(other, second.shape[1]))
            ):
                return False
            pairs.append((one, other))
        for one, other in pairs:
            self._groups.append([*one, *other])
            self._routed.update(dict.fromkeys((*one, *other), share))

        def make() -> None:
            assert self._store is not None
            names = [(tuple(map(self._name, one)), tuple(map(self._name, other))) for one, other in pairs]
            place = {"dtype": first.dtype, "device": self.device}
            take(RankExperts(self._store, names, activation, places, shares_first=shares_first, **place))

        self._makers.append(make)
        return True

    def plain(self, weight: Placeholder) -> torch.Tensor:
        """A weight with its data, on the rank's device; the same for layers that share it."""
        if weight in self._plain:
            return self._plain[weight]
        out = self._plain[weight] = torch.zeros(weight.shape, dtype=weight.dtype, device=self.device)
        rows = out.view(-1, weight.shape[-1])
        for copy in weight.copies:
            target = rows[slice(*copy.where.rows), slice(*copy.where.cols)]
            target = target.t() if copy.where.transposed else target
            if copy.tensor is not None:
                target.copy_(copy.tensor)
            else:
                assert copy.source is not None and copy.part is not None
                target.copy_(copy.source.read(copy.part))
        return out

    def _matrix(self, weight: Placeholder, begin: int, end: int) -> Matrix | None:
        """The stored parts that rows ``begin`` to ``end`` of a weight consist of, counted from ``begin``; None if there
        are others."""
        parts: list[StoredRows] = []
        for copy in sorted(weight.copies, key=lambda copy: copy.where.rows):
            if not (begin <= copy.where.rows[0] and copy.where.rows[1] <= end):
                if copy.where.rows[1] > begin and copy.where.rows[0] < end:
                    return None
                continue
            matched = self._parts(copy, weight, begin)
            if matched is None:
                return None
            parts += matched
        if not parts or any(one.end > other.begin for one, other in zip(parts, parts[1:], strict=False)):
            return None
        return tuple(_joined(parts))

    def _parts(self, copy: Copy, weight: Placeholder, origin: int) -> list[StoredRows] | None:
        """The parts of one copy, if they are rows of the whole width that a layer computes with."""
        if copy.source is None or copy.part is None or copy.where.cols != (0, weight.shape[-1]):
            return None
        region = copy.part
        if copy.where.transposed:
            region = replace(region, transposed=not region.transposed)
        matrices = self._weights.matrices(copy.source, region)
        if region.transposed and len(matrices) > 1:
            return None
        out, at = [], copy.where.rows[0] - origin
        for name, part in matrices:
            entry = self._weights.entry(name)
            computes = entry.makes_symbols or decodable.wanted_dtype(entry, weight.dtype) == entry.dtype
            cut = (part.rows != (0, entry.shape[0])) + (part.cols != (0, entry.shape[1]))
            if not computes or cut > 1:
                return None
            out.append(StoredRows(at, at + part.shape[0], entry.name, part))
            at += part.shape[0]
        return out

    # Layers made from the notes

    def make(self) -> Store | None:
        """Makes the layers; None if there are none."""
        if not self._groups:
            return None
        container = self._weights.container
        parts = list(
            dict.fromkeys((part.tensor, part.region.rows, part.region.cols) for g in self._groups for part in g)
        )
        shapes = {name: container[name].shape for name, _, _ in parts}
        if all(rows == (0, shapes[name][0]) and cols == (0, shapes[name][1]) for name, rows, cols in parts):
            self._names = {part: part[0] for part in parts}
        else:
            # Only this rank's parts of matrices that are cut are read and kept.
            self._names = {part: f"{part[0]}#{number}" for number, part in enumerate(parts)}
            container = narrow(container, [_shard(part, shapes[part[0]], name) for part, name in self._names.items()])
        groups = [list(dict.fromkeys(map(self._name, group))) for group in self._groups]
        routed = {self._name(part): share for part, share in self._routed.items()}
        self._store = Store(container, _once(groups), routed=routed, **self._settings, fuses=self._fused)
        for make in self._makers:
            make()
        # Memory is taken now, so that a lack of it is an error early, and before the engine measures what is free.
        self._store.prepare()
        return self._store

    def _name(self, part: StoredRows) -> str:
        return self._names[part.tensor, part.region.rows, part.region.cols]

    def _piece(self, part: StoredRows, dtype: torch.dtype) -> LayerRows:
        assert self._store is not None
        out_features, in_features = part.region.shape
        kind = CompressedConv1D if part.region.transposed else CompressedLinear
        place = {"dtype": dtype, "device": self.device}
        return LayerRows(part.begin, part.end, kind(self._store, self._name(part), in_features, out_features, **place))


def _is_whole(matrix: Matrix, rows: int) -> bool:
    """Whether parts are all rows of a matrix, each as it is stored."""
    if any(part.region.transposed for part in matrix):
        return False
    ends = [0, *(part.end for part in matrix)]
    return ends[-1] == rows and all(part.begin == at for part, at in zip(matrix, ends, strict=False))


def _joined(parts: Sequence[StoredRows]) -> list[StoredRows]:
    """Parts that lie behind each other in the same matrix are one."""
    out: list[StoredRows] = []
    for part in parts:
        last = out[-1] if out else None
        if last is not None and last.end == part.begin and last.tensor == part.tensor:
            left, right = last.region, part.region
            if left.transposed == right.transposed:
                if not left.transposed and left.cols == right.cols and left.rows[1] == right.rows[0]:
                    region = replace(left, rows=(left.rows[0], right.rows[1]))
                    out[-1] = replace(last, end=part.end, region=region)
                    continue
                if left.transposed and left.rows == right.rows and left.cols[1] == right.cols[0]:
                    region = replace(left, cols=(left.cols[0], right.cols[1]))
                    out[-1] = replace(last, end=part.end, region=region)
                    continue
        out.append(part)
    return out


def _shard(part: tuple[str, tuple[int, int], tuple[int, int]], shape: tuple[int, ...], name: str) -> Shard:
    tensor, rows, cols = part
    return Shard(tensor, 0, (rows,), name) if cols == (0, shape[1]) else Shard(tensor, 1, (cols,), name)


def _once(groups: list[list[str]]) -> list[list[str]]:
    """Groups in which each tensor is once, at its first place: a tied one is used by several layers."""
    seen: set[str] = set()
    out = []
    for group in groups:
        if unseen := [name for name in group if name not in seen]:
            out.append(unseen)
        seen.update(group)
    return out
