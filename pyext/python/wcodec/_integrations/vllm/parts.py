"""A rank's part of a linear layer or of an embedding, as pieces of compressed matrices, one below the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...nn import CompressedEmbedding, CompressedLinear


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

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with ``x``, and the bias."""
        pieces = self.pieces
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


def _product(layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(layer, CompressedLinear):
        return layer._product(x, bias)
    return F.linear(x, layer, bias)


def _nothing(x: torch.Tensor, bias: torch.Tensor | None, begin: int, end: int) -> torch.Tensor:
    shape = (*x.shape[:-1], end - begin)
    return x.new_zeros(shape) if bias is None else bias[begin:end].expand(shape)
