"""Symbols and scales of one matrix: levels at halves, none of which is 0, for scheme ``rate``.

This is entropy-constrained scalar quantization (P. A. Chou, T. Lookabaugh and R. M. Gray, IEEE Trans. Acoustics, Speech
and Signal Processing 37(1), 1989): a level is chosen by its squared error and by the price of its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import _native
from .._core.errors import InputError
from . import tables
from .factor import Block, Feedback, one_thread
from .replay import Replays
from .scalar import round_columns
from .trellis import best_paths

# The cost of a bit in squared steps: coarse steps without a trellis, fine steps with one.
RATE_WEIGHT = 0.1
TRELLIS_RATE_WEIGHT = _native.TRELLIS_RATE_WEIGHT
# The number of the outermost level: a row with a larger weight gets a larger step.
FARTHEST = {False: float(_native.LARGEST_SYMBOL), True: 2.0 * _native.LARGEST_TRELLIS_MAGNITUDE}
# The row scale that is best in the metric of the inputs is never far from the step, unless the statistics are bad.
_SCALE_RANGE = (0.5, 1.5)
# Rows that a table of prices is learned from, and how often.
_LEARNING_ROWS = 256
_LEARNING_PASSES = 2
# Rows with which several threads are hardly quicker than one (0 to 20 % where all cores are idle), and several times
# slower where the cores are busy with something else.
_NARROW = 512
# Bytes of the largest tensors at work. A GPU needs long rows to be busy.
_CHUNK = {"cpu": 1 << 26, "cuda": 1 << 29}


@dataclass(frozen=True)
class Quantized:
    """A matrix as symbols q, which stand for ``(q + 1/2) * scale``."""

    levels: torch.Tensor
    """``int8 [rows, cols]``; with a trellis the fine symbols, as its filter gives them."""
    scales: torch.Tensor
    """``bfloat16 [rows]``."""
    symbol_bits: float
    """Entropy of the symbols, with signs."""
    table_bits: float
    """Approximate bits of their table."""
    prices: torch.Tensor
    """Bits of each magnitude, ``float32 [128]``: a search hands them to the next call."""
    factors: torch.Tensor | None = None
    """Factors of columns, by which values are multiplied, too."""

    @property
    def bits(self) -> float:
        """Approximate bits of the symbols in a file, without the scales."""
        return self.symbol_bits + self.table_bits

    def values(self) -> torch.Tensor:
        """The weights that these stand for, ``float32 [rows, cols]``."""
        values = (self.levels + 0.5) * self.scales.to(torch.float32)[:, None]
        return values if self.factors is None else values * self.factors


def quantize(
    weight: torch.Tensor,
    feedback: Feedback | None,
    *,
    step: torch.Tensor,
    tile: int,
    trellis: bool,
    rows: Sequence[int] | torch.Tensor | None = None,
    prices: torch.Tensor | None = None,
    rate_weight: float | None = None,
    name: str = "weight",
    replays: Replays | None = None,
) -> Quantized:
    """Quantizes a matrix ``[outputs, inputs]``. Two calls with the same arguments on one machine give the same bits.

    :param feedback: the statistics of its input (``feedback_for``), with factors of its columns if these have some;
        ``None`` for weights alone.
    :param step: the distance of levels, in each row: that of the fine levels with a trellis, about half of the other.
    :param tile: columns after which the trellis begins anew; without one it does not matter.
    :param rows: only these rows, of the step too: what a search for the rate counts.
    :param prices: bits of each magnitude, from a call before; learned from a sample of rows if left out.
    :param name: the tensor's name, for messages.
    :param replays: those of an encoding, where many matrices have one shape.
    :raises InputError: if shapes do not fit, or if a value is not finite.
    """
    _check(weight, feedback, step, tile, name)
    if rows is not None:
        row_ids = torch.as_tensor(rows, dtype=torch.int64)
        weight, step = weight[row_ids.to(weight.device)], step[row_ids.to(step.device)]
    step = step.to(weight.device, torch.float32)
    factors = None if feedback is None else feedback.factors
    sizes = weight.abs() if factors is None else weight.abs() / factors
    largest = sizes.amax(1).to(torch.float32) if weight.shape[1] else torch.zeros_like(step)
    del sizes
    step = torch.maximum(step, largest / (FARTHEST[trellis] + 0.5))
    if rate_weight is None:
        rate_weight = TRELLIS_RATE_WEIGHT if trellis else RATE_WEIGHT
    work = _Work(weight, feedback, step, tile, trellis, rate_weight, name, replays)
    if prices is None:
        prices = work.learn()
    levels, scales = work.all(prices.to(weight.device))
    # A GPU waits for each number that is asked of it.
    counts = tables.histogram(levels, trellis).cpu()
    return Quantized(
        *(levels, scales, tables.entropy_bits(counts), tables.table_bits(counts), tables.prices(counts)), factors
    )


def _check(weight: torch.Tensor, feedback: Feedback | None, step: torch.Tensor, tile: int, name: str) -> None:
    if weight.dim() != 2:
        raise InputError(
            f"tensor '{name}': a matrix is quantized, not a tensor of shape {list(weight.shape)} (leave it out)",
            tensor=name,
            code="I626",
        )
    if tuple(step.shape) != (weight.shape[0],):
        raise InputError(
            f"tensor '{name}': {weight.shape[0]} rows need as many steps, not {list(step.shape)} (pass one a row)",
            tensor=name,
            code="I626",
        )
    if feedback is not None and feedback.cols != weight.shape[1]:
        raise InputError(
            f"tensor '{name}': statistics of {feedback.cols} inputs do not fit {weight.shape[1]} columns "
            "(collect them from this model)",
            tensor=name,
            code="I622",
        )
    if tile < 1:
        raise InputError(
            f"tensor '{name}': tile must be at least 1, not {tile} (use a multiple of 64)", tensor=name, code="I626"
        )


class _Work:
    """A matrix, worked on some rows at a time."""

    def __init__(
        self,
        weight: torch.Tensor,
        feedback: Feedback | None,
        step: torch.Tensor,
        tile: int,
        trellis: bool,
        rate_weight: float,
        name: str,
        replays: Replays | None,
    ) -> None:
        self.weight, self.feedback, self.step, self.name = weight, feedback, step, name
        self.tile, self.trellis, self.rate_weight, self.replays = tile, trellis, rate_weight, replays
        self.blocks = () if feedback is None else feedback.blocks
        self.order = None if feedback is None else feedback.order
        self.factors = None if feedback is None else feedback.factors
        cols = weight.shape[1]
        self.column_weights = torch.ones(cols, device=weight.device) if feedback is None else feedback.weights

    def learn(self) -> torch.Tensor:
        """Prices of magnitudes, from rows spread over the matrix: those of rounding, then those of what is chosen with
        them."""
        rows = self.weight.shape[0]
        sample = torch.linspace(0, max(rows - 1, 0), min(rows, _LEARNING_ROWS), device=self.weight.device).long()
        x = self.prepared(sample)
        prices = tables.rounded_prices(x, 2.0 if self.trellis else 1.0)
        for _ in range(_LEARNING_PASSES if self.rate_weight else 0):
            prices = tables.prices(tables.histogram(self.symbols(x, prices), self.trellis))
        return prices

    def all(self, prices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Symbols and scales of all rows."""
        rows, cols = self.weight.shape
        levels = torch.empty((rows, cols), dtype=torch.int8, device=self.weight.device)
        scales = torch.empty(rows, dtype=torch.bfloat16, device=self.weight.device)
        limit = _CHUNK.get(self.weight.device.type, 1 << 26)
        # The additions of the survivors in a tile take the most memory with a trellis.
        width = max(cols, 4 * min(self.tile, cols) if self.trellis else 0)
        count = max(16, limit // (4 * max(width, 1)))
        for begin in range(0, rows, count):
            row_ids = torch.arange(begin, min(begin + count, rows), device=self.weight.device)
            symbols = self.symbols(self.prepared(row_ids), prices)
            if self.order is not None:
                in_order = torch.empty_like(symbols)
                in_order[self.order] = symbols
                symbols = in_order
            levels[row_ids] = symbols.t()
            scales[row_ids] = self.scales(row_ids, levels[row_ids])
        return levels, scales

    def prepared(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows as ``[cols, rows]`` in units of their steps, columns in the order of rounding."""
        step = self.step[rows]
        scaled = self.weight[rows].to(torch.float32) * torch.where(step > 0, 1 / step, 0)[:, None]
        if self.factors is not None:
            scaled /= self.factors
        if not bool(torch.isfinite(scaled).all()):
            raise InputError(
                f"tensor '{self.name}': it has values that are not finite, or steps that are too small "
                "(leave it out, or mend the model)",
                tensor=self.name,
                code="I403",
            )
        if self.order is not None:
            scaled = scaled[:, self.order]
        return scaled.t().contiguous()

    def symbols(self, x: torch.Tensor, prices: torch.Tensor) -> torch.Tensor:
        """Symbols ``[cols, rows]`` of what :meth:`prepared` gave."""
        with one_thread(x.device, x.shape[1] <= _NARROW):
            if self.replays is None:
                return self.walk(x, self.blocks, self.column_weights, prices)
            how = (self.trellis, self.tile if self.trellis else None, self.rate_weight)
            return self.replays(self.walk, how, x, self.blocks, self.column_weights, prices)

    def walk(
        self, x: torch.Tensor, blocks: tuple[Block, ...], column_weights: torch.Tensor, prices: torch.Tensor
    ) -> torch.Tensor:
        """Symbols, column after column."""
        if self.trellis:
            return best_paths(x, blocks, column_weights, self.tile, prices, self.rate_weight)
        return round_columns(x, blocks, prices, self.rate_weight)

    def scales(self, rows: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
        """The scale of each row with which its symbols are nearest to its weights, by what the layer's output shows."""
        weight = self.weight[rows].to(torch.float32)
        y = levels + 0.5
        if self.factors is not None:
            y = y * self.factors
        if self.feedback is None:
            above, below = (weight * y).sum(1), (y * y).sum(1)
        else:
            above, below = torch.zeros_like(self.step[rows]), torch.zeros_like(self.step[rows])
            for block in self.blocks:
                part = slice(block.begin, block.end)
                seen = y[:, part] @ block.moments
                above += (weight[:, part] * seen).sum(1)
                below += (y[:, part] * seen).sum(1)
        step = self.step[rows]
        ratio = above / (below * step).clamp_min(torch.finfo(torch.float32).tiny)
        return (step * ratio.clamp_(*_SCALE_RANGE)).to(torch.bfloat16)
