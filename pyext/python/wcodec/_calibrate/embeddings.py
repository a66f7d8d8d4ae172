"""The costs of errors in embeddings, by gradients where rows of them are looked up.

A row that is looked up is an input of all that follows, so that an error of it costs what the gradient there says. A
table that is also the head, as that of most small models, pays for both uses. With costs of the head alone,
SmolLM2-135M had 3.8 bits there of 4.0 on average, and more than a third of its KL divergence in a fifth of its weights.

Tokens at the first place of a text do not count. Models put states there that are thousands of times larger, so that a
hundredth of SmolLM2's tokens had a fifth of all costs. They are one row of the table, mostly, and not like the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from . import hooks


class EmbeddingCosts:
    """Sums of the costs of each embedding over the passes in which it is watched.

    :param modules: the embeddings, by their names in the model.
    :param others: modules whose outputs begin what gradients are taken of, too, and of which nothing is summed up.
    """

    def __init__(self, modules: Mapping[str, Any], others: Iterable[Any] = ()) -> None:
        self._modules = dict(modules)
        self._others = [one for one in others if all(one is not module for module in self._modules.values())]
        self._sums: dict[str, torch.Tensor] = {}
        self.tokens = dict.fromkeys(self._modules, 0)
        """Rows that were looked up in each embedding."""

    def __getitem__(self, name: str) -> float:
        """Sum over tokens but the first ones, and columns, of (gradient x RMS of the row)^2; 0 where nothing was looked
        up."""
        return float(self._sums.get(name, 0.0))

    @contextmanager
    def watching(self, ids: torch.Tensor) -> Iterator[None]:
        """While this lasts, what embeddings give has gradients, which are summed up.

        :param ids: the tokens that the model is to see, ``int64 [texts, tokens]``.
        """
        texts, tokens = ids.shape
        handles = [
            module.register_forward_hook(functools.partial(self._looked_up, name, texts, tokens))
            for name, module in self._modules.items()
        ]
        # A module around an embedding that is watched has gradients already.
        handles += [
            other.register_forward_hook(
                lambda module, args, output: None if output.requires_grad else hooks.with_gradient(output)
            )
            for other in self._others
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _looked_up(
        self, name: str, texts: int, tokens: int, module: Any, args: Any, output: torch.Tensor
    ) -> torch.Tensor | None:
        begun = hooks.with_gradient(output)
        if not begun.requires_grad:
            # Code of the model takes no gradients here, whatever depends on it.
            return None
        self.tokens[name] += output[..., 0].numel()
        axis = _axis_of_tokens(output.shape[:-1], texts, tokens)
        # Some models multiply what they look up: these count as it is then, not as it is stored.
        squares = _without_first(output.detach().to(torch.float32).square().mean(-1), axis)
        begun.register_hook(functools.partial(self._gradient, name, squares, axis))
        return begun

    def _gradient(self, name: str, squares: torch.Tensor, axis: int | None, gradient: torch.Tensor) -> None:
        costs = _without_first(gradient.detach().to(torch.float32).square().sum(-1), axis)
        total = (costs * squares).sum(dtype=torch.float64)
        before = self._sums.get(name)
        self._sums[name] = total if before is None else before + total


def _axis_of_tokens(shape: torch.Size, texts: int, tokens: int) -> int | None:
    """The axis along which what was looked up has the tokens of a text; ``None`` where it is of something else."""
    if tuple(shape) in ((texts, tokens), (1, tokens), (tokens,)):
        return len(shape) - 1
    return 0 if tuple(shape) == (tokens, texts) else None


def _without_first(values: torch.Tensor, axis: int | None) -> torch.Tensor:
    """Values of all tokens but the first of each text."""
    return values if axis is None else values.narrow(axis, 1, values.shape[axis] - 1)
