"""The second moments of a layer's input as error feedback needs them.

``H = E[x x^T]`` says what an error ``e`` of a row of weights costs at the layer's output: ``e H e^T``. With
``H = V V^T``, V upper triangular, that is the sum over columns of ``(e V)_j^2``: where ``e V = (e N) v`` with ones on
N's diagonal, column j is best rounded from ``w_j + sum_{i<j} e_i N_ij``, whatever the columns after it will be, and
what is lost there is weighted by ``v_j^2``. This is the form of LDLQ; GPTQ's, with the Cholesky factor of the inverse,
is the same with ``N^-1``, and takes two more factorizations.

Where columns have factors c, weights are divided by them, and so are errors: ``N_ij`` becomes ``c_i N_ij / c_j``, and
``v_j^2`` becomes ``c_j^2 v_j^2``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

# Added to the diagonal, as part of its mean; more where rounding leaves a matrix that is not positive definite.
DAMPING = 0.01
_MORE_DAMPING = (0.01, 0.1, 1.0)

# Tokens for each column of which as much is chance as is not.
_CHANCE = 2

# Shared by all that compute with one thread of torch: how many they are, and the threads that torch had before.
_lock = threading.Lock()
_inside = 0
_before = 1


@dataclass(frozen=True)
class Block:
    """A block of the block-diagonal second moments, and its factor in the order in which columns are rounded."""

    begin: int
    end: int
    moments: torch.Tensor
    """``float32 [n, n]``, damped, in the weights' own order."""
    feed: torch.Tensor
    """N, ``float32 [n, n]``, in the order of rounding."""
    factors: torch.Tensor | None = None
    """Factors of its columns, in the order of rounding, if weights are divided by some."""

    def passed(self, begin: int, end: int) -> torch.Tensor:
        """The shares of errors in some of its columns that later columns get, ``float32 [end - begin, n]``."""
        rows = self.feed[begin:end]
        return rows if self.factors is None else rows * (self.factors[begin:end, None] / self.factors)


@dataclass(frozen=True)
class Feedback:
    """The statistics of a matrix's input, as its quantization uses them."""

    blocks: tuple[Block, ...]
    order: torch.Tensor | None
    """Columns in the order of rounding, where that is not their own."""
    weights: torch.Tensor
    """``float32 [cols]``: what an error of each column costs that no later column can make up for, of mean 1; in the
    order of rounding."""
    factors: torch.Tensor | None = None
    """Factors of columns, in the weights' own order, if weights are divided by some."""

    @property
    def cols(self) -> int:
        """Columns of the matrix."""
        return self.blocks[-1].end

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices that it is made of."""
        return sum(block.moments.nbytes + block.feed.nbytes for block in self.blocks)

    def costs(self) -> torch.Tensor:
        """The weights of columns in the weights' own order."""
        if self.order is None:
            return self.weights
        out = torch.empty_like(self.weights)
        out[self.order] = self.weights
        return out

    def divided(self, factors: torch.Tensor) -> Feedback:
        """This of weights that are divided by factors of their columns, which are in the weights' own order."""
        ordered = factors if self.order is None else factors[self.order]
        weights = ordered.square() * self.weights
        blocks = tuple(replace(block, factors=ordered[block.begin : block.end]) for block in self.blocks)
        return Feedback(blocks, self.order, weights / weights.mean(), factors)


def damped(moments: torch.Tensor, part: float = DAMPING) -> torch.Tensor:
    """Second moments with a part of their mean diagonal added to it; the identity where there was no input at all."""
    out = moments.to(torch.float32, copy=True)
    mean = float(out.diagonal().mean())
    out.diagonal().add_(part * mean if mean > 0 else 1.0)
    return out


def factor(moments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """N and ``v^2`` of second moments that are damped already. In float64: inputs of language models have a few
    directions that are thousands of times stronger than the others."""
    mean = float(moments.diagonal().mean())
    for more in _MORE_DAMPING:
        reverse = moments.to(torch.float64).flip(0, 1)
        lower, info = torch.linalg.cholesky_ex(reverse)
        del reverse
        if int(info) == 0:
            upper = lower.flip(0, 1)
            v = upper.diagonal().clone()
            # Row after row, as kernels read it; a GPU's factorization has columns one after the other.
            return (upper / v).to(torch.float32).contiguous(), (v * v).to(torch.float32)
        moments = moments.clone()
        moments.diagonal().add_(more * mean)
    size = moments.shape[0]
    return torch.eye(size, device=moments.device), torch.ones(size, device=moments.device)


def by_falling_diagonal(moments: torch.Tensor) -> torch.Tensor:
    """Columns in the order in which plain rounding does best: the strongest inputs first, which later columns can still
    make up for. The first of equal ones comes first."""
    return torch.sort(moments.diagonal(), descending=True, stable=True).indices


def shrunk(moments: torch.Tensor, tokens: float) -> torch.Tensor:
    """Second moments of so many tokens, with less of what inputs seem to have in common: from few tokens most of that
    is chance (O. Ledoit and M. Wolf, Journal of Multivariate Analysis 88(2), 2004, whose share depends on the numbers
    of samples and columns likewise).

    SmolLM2-135M at 3.0 bits without a trellis has 0.47 of the KL divergence of moments as they are with 1,024 tokens,
    0.78 with 4,096, and 0.9 with 32,768. With a trellis and 32,768 it has the same.
    """
    chance = _CHANCE * len(moments)
    out = moments.to(torch.float32, copy=True)
    diagonal = out.diagonal().clone()
    out.mul_(1 / (1 + chance / max(tokens, 1)))
    out.diagonal().copy_(diagonal)
    return out


def feedback(blocks: list[tuple[int, torch.Tensor]], own_order: bool, tokens: float = math.inf) -> Feedback:
    """Prepares blocks of second moments, each with its first column.

    :param own_order: whether columns are rounded in their own order, as paths of a trellis are, and not by falling
        diagonal.
    :param tokens: the number of tokens that they are of, for :func:`shrunk`.
    """
    made: list[Block] = []
    orders: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []
    for begin, raw in blocks:
        moments = damped(shrunk(raw, tokens))
        order = None if own_order else by_falling_diagonal(moments)
        feed, cost = factor(moments if order is None else moments[order][:, order])
        made.append(Block(begin, begin + len(moments), moments, feed))
        weights.append(cost)
        if order is not None:
            orders.append(order + begin)
    joined = torch.cat(weights)
    return Feedback(tuple(made), torch.cat(orders) if orders else None, joined / joined.mean())


def predictability(blocks: list[tuple[int, torch.Tensor]], tokens: float = math.inf) -> float:
    """The fraction of an error that is left after later columns compensate it: mean ``v^2`` by the mean diagonal, 0 to
    1.

    :param tokens: the number of tokens that second moments are of, for :func:`shrunk`: what few tokens seem to have in
        common makes up for no error of other tokens.
    """
    left = total = 0.0
    for _, raw in blocks:
        if float(raw.diagonal().mean()) <= 0:
            continue
        moments = damped(shrunk(raw, tokens))
        order = by_falling_diagonal(moments)
        left += float(factor(moments[order][:, order])[1].sum(dtype=torch.float64))
        total += float(raw.diagonal().sum(dtype=torch.float64))
    # Damping adds to what is left where hardly anything is compensated.
    return min(left / total, 1.0) if total > 0 else 1.0


@contextmanager
def one_thread(device: torch.device, narrow: bool) -> Iterator[None]:
    """torch computes with one thread, where that is on the CPU and of something narrow. With more, each small step
    would wait for the last of them, and for whatever else keeps its core busy."""
    global _inside, _before
    if device.type != "cpu" or not narrow:
        yield
        return
    with _lock:
        if not _inside:
            _before = torch.get_num_threads()
        _inside += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            # Part of the setting is the whole process's: that of who came first is everybody's.
            torch.set_num_threads(_before)
