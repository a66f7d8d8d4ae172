"""Factors of columns, by the sizes of inputs: the recipe, in one place.

Input channels of language models differ in size by tens, and an error of column j of a matrix costs what the mean
square of its input is, ``H_j = E[x_j^2]``. Fine steps of the same total rate cost least where each column's step is in
proportion to ``H_j ** -0.5`` (reverse water filling; the theory for matrices of a layer is that of WaterSIC, 2026,
arXiv:2603.04956). At 2 to 4 bits it is a smaller power: entropy-coded uniform quantization of few levels (N. Farvardin
and J. W. Modestino, IEEE Trans. Information Theory 30(3), 1984) takes hardly fewer bits for the columns that are
quantized coarsest, and their errors are no longer uniform. On SmolLM2-135M at 3.0 and 3.5 bits, powers from 0.3 to 0.43
lose the same, within what can be measured, and 0.25 and 0.5 lose 5 to 10 % more.

Factors have a geometric mean of 1, and steps of rows stay what they are without factors: in proportion to the root mean
square of the weights of the row. By that of the quotients, a few columns would decide the step of a whole matrix.

Symbols have 8 bits. A column whose largest weight would leave their range gets a larger factor; without that the rows
of such weights get larger steps, and SmolLM2 loses a quarter more.

A factor takes 16 bits. They are left out where they would cost more bits than they save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

# The power of the mean square of an input by which its column's step falls.
POWER = 0.35
# The power of an error that no later column makes up for, which says more of a column than the size of its input.
FEEDBACK_POWER = 0.425
# The smallest mean square that counts, as part of the mean of all: a channel that was silent need not stay so.
_FLOOR = 1e-3
# The tokens that the guess that all inputs are equally large is worth.
_GUESS = 16
# Bits of a factor in a file, and the part of the bits saved, as fine steps save them, that models were seen to save.
_BITS = 16
_REAL = 0.5
# The part of the farthest level that the largest weight of a column may reach, for steps are found only later.
_ROOM = 0.9


@dataclass(frozen=True)
class Weights:
    """Measurements of a matrix ``[rows, cols]``, in units of the root mean square of each row."""

    rows: int
    means: torch.Tensor
    """The mean magnitude of each column."""
    peaks: torch.Tensor
    """The largest magnitude of each column."""


def measured(weight: torch.Tensor) -> Weights:
    """Measures the columns of a matrix."""
    rms = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32) / math.sqrt(max(weight.shape[1], 1))
    by_row = torch.where(rms > 0, 1 / rms, 0)[:, None]
    sizes = weight.abs().to(torch.float32).mul_(by_row)
    return Weights(len(weight), sizes.mean(0), sizes.amax(0))


def factors_of(
    sizes: torch.Tensor, weights: Weights, farthest: float, tokens: float = math.inf, power: float = POWER
) -> torch.Tensor | None:
    """A factor for each column, by which its step is multiplied: values of bf16, ``float32 [cols]``; ``None`` where
    they are not worth it.

    :param sizes: mean squares of inputs, or whatever else an error of each column costs.
    :param farthest: the largest weight that has a level without factors, in units of its row's root mean square.
    :param tokens: how many tokens sizes are the mean of.
    :param power: the power of its cost by which a column's step falls.
    """
    mean = sizes.mean()
    if not float(mean) > 0:
        return None
    known = 1.0 if math.isinf(tokens) else tokens / (tokens + _GUESS)
    likely = sizes.clamp_min(_FLOOR * mean)
    logs = likely.log2().mul_(-power * known)
    logs -= logs.mean()
    # Symbols have 8 bits: a larger weight would make the steps of its whole row larger.
    least = (weights.peaks / (_ROOM * farthest)).clamp_min(torch.finfo(torch.float32).tiny).log2()
    logs = torch.maximum(logs, least.clamp_max_(0))
    factors = torch.exp2(logs - logs.mean()).to(torch.bfloat16).to(torch.float32)
    return factors if _REAL * _saved(factors, likely, weights) * weights.rows > _BITS else None


def left(factors: torch.Tensor, sizes: torch.Tensor) -> float:
    """The part of the cost of errors that is left with the factors, at the same steps of rows."""
    whole = float(sizes.sum(dtype=torch.float64))
    return float((factors.square() * sizes).sum(dtype=torch.float64)) / whole if whole > 0 else 1.0


def _saved(factors: torch.Tensor, sizes: torch.Tensor, weights: Weights) -> float:
    """Bits per weight that factors save at the same cost of errors, less those that larger levels take."""
    larger = float((weights.means / factors).sum()) / max(float(weights.means.sum()), 1e-30)
    return -0.5 * math.log2(max(left(factors, sizes), 1e-30)) - math.log2(max(larger, 1e-30))
