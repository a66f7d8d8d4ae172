"""A rank's part of a linear layer or of an embedding, as pieces of compressed matrices, one below the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...nn import CompressedEmbedding, CompressedLinear
from ...nn._fusion.launches import CachedLaunch, Epilogue


@dataclass(frozen=True)
class LayerRows:
    """Rows ``begin`` to ``end`` of a layer's weight.

    :param layer: the compressed layer, or the matrix that is not compressed, that computes with them.
    """

    begin: int
    end: int
    layer: Any


class Linear:
    """The product with a weight of several pieces; rows that no piece has are zero.

    :param rows: outputs of the layer.
    """

    def __init__(self, pieces: list[LayerRows], rows: int, width: int) -> None:
        self.pieces, self.rows, self.width = pieces, rows, width
        self._table: CompressedEmbedding | None = None
        self._together = Together.of(pieces, rows)

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with ``x``, and the bias."""
        pieces = self.pieces
        if self._together is not None:
            product = self._together.product(x, bias)
            if product is not None:
                return product
        if len(pieces) == 1 and pieces[0].begin == 0 and pieces[0].end == self.rows:
            return _product(pieces[0].layer, x, bias)
        parts, at = [], 0
        for piece in pieces:
            if piece.begin > at:
                parts.append(_nothing(x, bias, at, piece.begin))
            parts.append(_product(piece.layer, x, None if bias is None else bias[piece.begin : piece.end]))
            at = piece.end
        if at < self.rows:
            parts.append(_nothing(x, bias, at, self.rows))
        return torch.cat(parts, -1)

    def prepare_rows(self) -> None:
        """Makes the weight one whose rows can be looked up. It has one piece then, from the first row on."""
        [piece] = self.pieces
        layer = piece.layer
        place = {"dtype": layer.dtype, "device": layer.device}
        self._table = CompressedEmbedding(layer._store, layer.tensor, piece.end, self.width, **place)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """The weight's rows of these numbers, after :meth:`prepare_rows`."""
        assert self._table is not None
        return self._table._look_up(ids)


class Together:
    """Pieces that make up a whole layer, as its query, key and value projections do: one launch multiplies with all of
    them, and where they are decoded, they are decoded as one matrix."""

    def __init__(self, layers: list[CompressedLinear], rows: list[int]) -> None:
        self._layers, self._rows = layers, rows
        self._launch = CachedLaunch(layers, Epilogue(by_vector=True))
        self._address = 0

    @classmethod
    def of(cls, pieces: list[LayerRows], rows: int) -> Together | None:
        """The pieces of a layer with so many rows, if they are several and all of it."""
        ends = [0, *(piece.end for piece in pieces)]
        layers = [piece.layer for piece in pieces if type(piece.layer) is CompressedLinear]
        whole = ends[-1] == rows and all(piece.begin == end for piece, end in zip(pieces, ends, strict=False))
        return cls(layers, ends) if whole and len(layers) == len(pieces) > 1 else None

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """The products with ``x`` side by side, and the bias; nothing where neither can be had in one piece."""
        first = self._layers[0]
        if x.dtype is not first._dtype or x.device != first._device:
            return None
        # Compiled code has other objects for the same memory.
        if (0 if bias is None else bias.data_ptr()) != self._address:
            self._take(bias)
        launch = self._launch.get()
        if launch is not None and x.numel() <= launch.limit:
            return launch.all(x).view(*x.shape[:-1], self._rows[-1])
        providers = [layer._weights.provider or layer._weights.prepared() for layer in self._layers]
        provider, begin = providers[0]
        if providers != [(provider, begin + i) for i in range(len(providers))]:
            return None
        return provider.apply_below(begin, len(providers), x, bias)

    def _take(self, bias: torch.Tensor | None) -> None:
        """Gives each layer its part of the bias, which launches add."""
        for layer, begin, end in zip(self._layers, self._rows, self._rows[1:], strict=False):
            part = None if bias is None else torch.nn.Parameter(bias[begin:end], requires_grad=False)
            layer.register_parameter("bias", part)
        self._address = 0 if bias is None else bias.data_ptr()


def _product(layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(layer, CompressedLinear):
        return layer._product(x, bias)
    return F.linear(x, layer, bias)


def _nothing(x: torch.Tensor, bias: torch.Tensor | None, begin: int, end: int) -> torch.Tensor:
    shape = (*x.shape[:-1], end - begin)
    return x.new_zeros(shape) if bias is None else bias[begin:end].expand(shape)
