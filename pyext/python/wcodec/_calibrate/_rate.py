"""A model's matrices at a number of bits per weight: the one constant that all steps have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from .._errors import InputError
from . import _replay
from ._factor import Feedback
from ._quantize import Quantized, quantize
from ._statistics import Statistics, feedback_for

# What the scale of a row takes.
ROW_BITS = 16
# Steps that samples are quantized with, as powers of 2 around what a Gaussian needs.
_TRIED = (-0.4, 0.0, 0.4)
# The first of them: its prices are learned, and those of the others from it.
_MIDDLE = 1
# Bits of plain steps of a Gaussian: log2 of its RMS by the step, and this. A trellis has steps of half the size.
_GAUSSIAN = 2.05
_SAMPLED_ROWS = 256


@dataclass(frozen=True)
class Matrix:
    """A matrix to quantize, with outputs as rows, and its steps up to the constant."""

    name: str
    weight: torch.Tensor
    steps: torch.Tensor
    feedback: Feedback | None


class Matrices:
    """The matrices of a model, with what statistics say of each, one at a time.

    :param weights: tensors as a checkpoint has them, by name; read anew each time they are needed.
    :param statistics: ``None`` for weights alone.
    :param with_feedback: ``False`` for steps only.
    """

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        statistics: Statistics | None,
        *,
        trellis: bool,
        tile: int | Callable[[str], int] = 512,
        device: torch.device | str = "cpu",
        with_feedback: bool = True,
    ) -> None:
        self._weights, self._statistics, self._device = weights, statistics, device
        self.trellis, self._tile, self._with_feedback = trellis, tile, with_feedback
        self._factors = {} if statistics is None else statistics.factors()
        # By name, prices at the steps that were tried, and log2 of the middle one of these.
        self._prices: dict[str, list[torch.Tensor]] = {}
        self._guess = 0.0

    def __iter__(self) -> Iterator[Matrix]:
        for name in self._weights:
            yield self.matrix(name)

    def matrix(self, name: str) -> Matrix:
        """One of them."""
        weight = self._weights[name].detach().to(self._device)
        unit = None if self._statistics is None else self._statistics.units.get(name)
        if unit is not None and unit.transposed:
            weight = weight.t()
        rms = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32) / math.sqrt(max(weight.shape[1], 1))
        feedback = None
        if self._statistics is not None and self._with_feedback:
            feedback = feedback_for(
                self._statistics, name, trellis=self.trellis, device=self._device, shape=tuple(weight.shape)
            )
        return Matrix(name, weight, rms * self._factors.get(name, 1.0), feedback)

    def quantized(
        self,
        matrix: Matrix,
        constant: float,
        rows: torch.Tensor | None = None,
        prices: torch.Tensor | None = None,
    ) -> Quantized:
        """A matrix with steps of this many times its own."""
        if prices is None and matrix.name in self._prices:
            prices = self._prices_at(matrix.name, math.log2(constant) - self._guess)
        tile = self._tile if isinstance(self._tile, int) else self._tile(matrix.name)
        return quantize(
            matrix.weight,
            matrix.feedback,
            step=matrix.steps * constant,
            tile=tile,
            trellis=self.trellis,
            rows=rows,
            prices=prices,
            name=matrix.name,
        )

    def constant_for(self, bits: float) -> float:
        """The constant with which all matrices together take so many bits per weight, scales among them, found with a
        sample of the rows of each."""
        self._prices, self._guess = {}, _GAUSSIAN - bits - (1 if self.trellis else 0)
        totals = [0.0] * len(_TRIED)
        weights = 0
        for matrix in self:
            rows, cols = matrix.weight.shape
            sample = torch.linspace(0, rows - 1, min(rows, _SAMPLED_ROWS)).long()
            learned: torch.Tensor | None = None
            prices = [torch.empty(0)] * len(_TRIED)
            for place in sorted(range(len(_TRIED)), key=lambda i: abs(i - _MIDDLE)):
                found = self.quantized(matrix, 2.0 ** (self._guess + _TRIED[place]), sample, learned)
                learned = found.prices if learned is None else learned
                prices[place] = found.prices
                totals[place] += found.symbol_bits * rows / len(sample) + found.table_bits + ROW_BITS * rows
            self._prices[matrix.name] = prices
            weights += rows * cols
        if not weights:
            raise InputError("there is no matrix to quantize (pass weights of at least one)")
        return float(2.0 ** (self._guess + _solve(_TRIED, [total / weights for total in totals], bits)))

    def _prices_at(self, name: str, power: float) -> torch.Tensor:
        """Prices between those of the steps that were tried."""
        prices = self._prices[name]
        left = max(i for i in range(len(_TRIED) - 1) if i == 0 or _TRIED[i] <= power)
        part = (power - _TRIED[left]) / (_TRIED[left + 1] - _TRIED[left])
        return torch.lerp(prices[left], prices[left + 1], min(max(part, 0.0), 1.0))


def quantize_model(
    weights: Mapping[str, torch.Tensor],
    statistics: Statistics | None,
    bits: float,
    *,
    trellis: bool = True,
    tile: int | Callable[[str], int] = 512,
    device: torch.device | str = "cpu",
    with_feedback: bool = True,
    constant: float | None = None,
) -> Iterator[tuple[str, Quantized]]:
    """Quantizes matrices to so many bits per weight in all, one at a time: their names, symbols and scales, outputs as
    rows also where the tensor has them as columns.

    Bits are those of entropies (:attr:`Quantized.bits`) and of scales of 16 bits a row; what a file takes is some
    percent more.

    :param weights: by the names that the statistics have, read twice.
    :param constant: what all steps are multiplied with, where that is known; ``bits`` does not matter then.
    """
    work = Matrices(weights, statistics, trellis=trellis, tile=tile, device=device, with_feedback=with_feedback)
    chosen = work.constant_for(bits) if constant is None else constant
    try:
        for matrix in work:
            yield matrix.name, work.quantized(matrix, chosen)
    finally:
        _replay.forget()


def _solve(x: tuple[float, ...], y: list[float], wanted: float) -> float:
    """Where a falling curve through these points has the wanted value, straight on beyond them."""
    left = next((i for i in range(len(x) - 2) if y[i + 1] <= wanted), len(x) - 2)
    slope = (y[left + 1] - y[left]) / (x[left + 1] - x[left])
    return x[left] + (wanted - y[left]) / min(slope, -0.1)
