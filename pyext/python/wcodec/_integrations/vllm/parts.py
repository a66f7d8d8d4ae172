"""A rank's part of a linear layer or of an embedding, as pieces of compressed matrices, one below the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...nn import CompressedEmbedding, CompressedLinear
from ...nn._fusion.launches import CachedLaunch, Epilogue
from ...nn._weights.of_layer import product_below


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
        # The compressed layers that make up the whole layer, as query, key and value projections do; none where there
        # is anything else.
        self.layers = _whole(pieces, rows)
        self._weights = tuple(layer._weights for layer in self.layers)
        self._launch = CachedLaunch(self.layers, Epilogue(by_vector=True)) if len(self.layers) > 1 else None
        self._bias = 0
        # The half of a decoder layer that it is of, for the operators of compiled code.
        self.half: Any = None

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with ``x``, and the bias."""
        pieces = self.pieces
        if self._launch is not None:
            product = self._together(self._launch, x, bias)
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

    def _together(self, launch: CachedLaunch, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """The products with all pieces side by side, by one launch, or by one product with what they decode to; nothing
        where neither is there."""
        first = self.layers[0]
        if x.dtype is not first._dtype or x.device != first._device:
            return None
        self.adopt(bias)
        found = launch.take(x)
        if found is not None:
            return found.all(x).view(*x.shape[:-1], self.rows)
        return product_below(self._weights, x, bias)

    def added(self, x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        """``residual`` and the product with ``x``, by one call of torch where the weight is decoded as a whole."""
        total = None
        if self.layers and x.dtype is self.layers[0]._dtype:
            total = product_below(self._weights, x, bias, residual)
        return residual + self.product(x, bias) if total is None else total

    def adopt(self, bias: torch.Tensor | None) -> None:
        """Gives each piece its part of the layer's bias, which launches add."""
        # Compiled code has other objects for the same memory.
        address = 0 if bias is None else bias.data_ptr()
        if address == self._bias:
            return
        for piece in self.pieces:
            part = None if bias is None else torch.nn.Parameter(bias[piece.begin : piece.end], requires_grad=False)
            piece.layer.register_parameter("bias", part)
        self._bias = address

    def prepare_rows(self) -> None:
        """Makes the weight one whose rows can be looked up. It has one piece then, from the first row on."""
        [piece] = self.pieces
        layer = piece.layer
        place = {"dtype": layer.dtype, "device": layer.device}
        self._table = CompressedEmbedding(layer._store, layer.tensor, piece.end, self.width, **place)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """The weight's rows of these numbers, after :meth:`prepare_rows`."""
        table = self._table
        assert table is not None
        lookup = table._weights.table().lookup if table._kind == "cuda" else None
        if lookup is not None and ids.numel():
            # The engine has looked at the tokens; to do so again would be to wait for the GPU.
            return lookup(ids)
        return table._look_up(ids)


def _whole(pieces: list[LayerRows], rows: int) -> tuple[CompressedLinear, ...]:
    """The layers of pieces that are all rows, each a layer by itself."""
    ends = [0, *(piece.end for piece in pieces)]
    layers = tuple(piece.layer for piece in pieces if type(piece.layer) is CompressedLinear)
    is_whole = ends[-1] == rows and all(piece.begin == end for piece, end in zip(pieces, ends, strict=False))
    return layers if is_whole and len(layers) == len(pieces) else ()


def _product(layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(layer, CompressedLinear):
        return layer._product(x, bias)
    return F.linear(x, layer, bias)


def _nothing(x: torch.Tensor, bias: torch.Tensor | None, begin: int, end: int) -> torch.Tensor:
    shape = (*x.shape[:-1], end - begin)
    return x.new_zeros(shape) if bias is None else bias[begin:end].expand(shape)
