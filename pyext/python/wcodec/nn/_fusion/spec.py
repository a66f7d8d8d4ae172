"""Descriptions of decoder layers as data: which norms stand where, which activation, where residuals are added.

A description is trusted only where the code of a module's ``forward`` is the code that the description stands for
(:mod:`wcodec.nn._recognize`). The modules of :mod:`wcodec.nn.specs` hold the descriptions, one file for each kind of
architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class NormSpec(NamedTuple):
    """A norm of vectors: ``(offset + weight) * x / sqrt(mean(x^2) + epsilon)``, or the same behind ``x - mean(x)``."""

    code: str
    """Its ``forward``, whose argument is ``x``."""
    kind: Literal["rms", "layer"] = "rms"
    offset: float = 0.0
    """Is added to the weight. Gemma stores weights without the 1 that they are around."""
    epsilon: str = "variance_epsilon"
    """The attribute that is added to the mean of the squares."""
    product: Literal["float32", "input"] = "input"
    """The dtype in which the module multiplies with its weight. Launches multiply in float32, and round once."""
    methods: Mapping[str, str] = {}
    """Code of the module's own methods that ``code`` calls."""


class MlpSpec(NamedTuple):
    """An MLP: ``last(activation(gate(x)) * up(x))``, or ``last(activation(up(x)))``."""

    code: str
    """Its ``forward``, whose argument is ``x``."""
    first: tuple[str, ...]
    """Layers that take the input: those of gates before those of values."""
    last: str = "down_proj"
    activation: str = "act_fn"
    """The attribute that is the activation, a module or a function."""
    packed: bool = False
    """Whether one layer gives the gates, and behind them the values."""

    @property
    def gated(self) -> bool:
        """Whether there are gates."""
        return self.packed or len(self.first) == 2


class AttentionSpec(NamedTuple):
    """An attention that reads its input by some layers, and returns what one layer makes, in front of something else.

    Its code in between is its own, and runs as it is.
    """

    first: tuple[str, ...]
    """Layers that take the input."""
    last: str = "o_proj"
    """The layer whose result is the attention's."""


class HalfSpec(NamedTuple):
    """A half of a decoder layer, attention or MLP: ``residual + multiplier * behind(module(before(x)))``."""

    module: str
    before: str | None = None
    """The norm in front."""
    behind: str | None = None
    """The norm behind, whose result is added to the residual."""
    multiplier: str | None = None
    """The attribute with the number that results are multiplied by."""
    dropout: str | None = None
    """The dropout between result and residual, which does nothing where nobody trains."""
    unpacks: bool = False
    """Whether a result that is a pair counts for its first half, as some mixtures return one."""


class Choice(NamedTuple):
    """An attribute that says which module a decoder layer has in the place of attention."""

    attribute: str
    attention: str | None
    """The value with which it is attention; none where that is any other value than those of ``others``."""
    others: Mapping[str, str]
    """Other modules by their values; they return a tensor and no tuple."""


class BlockSpec(NamedTuple):
    """A decoder layer of two halves."""

    attention: HalfSpec
    mlp: HalfSpec
    parallel: bool = False
    """Whether both halves read one norm of the layer's input, and the residual is added to both of them."""
    choice: Choice | None = None

    @property
    def halves(self) -> tuple[HalfSpec, HalfSpec]:
        """Attention and MLP."""
        return self.attention, self.mlp

    @property
    def code(self) -> str:
        """The ``forward`` that it stands for, with calls of attention that are given ``hidden_states`` alone."""
        attend = f"hidden_states, _ = self.{self.attention.module}(hidden_states=hidden_states)"
        if self.parallel:
            lines = [
                "residual = hidden_states",
                f"hidden_states = self.{self.attention.before}(hidden_states)",
                attend.replace("hidden_states, _", "attended, _", 1),
                f"transformed = self.{self.mlp.module}(hidden_states)",
                "hidden_states = residual + attended + transformed",
            ]
            return "\n".join([*lines, "return hidden_states"])
        mlp = [f"hidden_states = self.{self.mlp.module}(hidden_states)"]
        if self.mlp.unpacks:
            mlp += ["if isinstance(hidden_states, tuple):", "    hidden_states, _ = hidden_states"]
        lines = _half(self.attention, self._choice_lines(attend)) + _half(self.mlp, mlp)
        return "\n".join([*lines, "return hidden_states"])

    def _choice_lines(self, attend: str) -> list[str]:
        if self.choice is None:
            return [attend]
        lines: list[str] = []
        for value, module in self.choice.others.items():
            lines += [
                f"{'elif' if lines else 'if'} self.{self.choice.attribute} == {value!r}:",
                f"    hidden_states = self.{module}(hidden_states=hidden_states)",
            ]
        attention_value = self.choice.attention
        lines += [
            "else:" if attention_value is None else f"elif self.{self.choice.attribute} == {attention_value!r}:",
            f"    {attend}",
        ]
        return lines


def _half(half: HalfSpec, compute: list[str]) -> list[str]:
    lines = ["residual = hidden_states"]
    if half.before is not None:
        lines.append(f"hidden_states = self.{half.before}(hidden_states)")
    lines += compute
    if half.behind is not None:
        lines.append(f"hidden_states = self.{half.behind}(hidden_states)")
    result = "hidden_states" if half.dropout is None else f"self.{half.dropout}(hidden_states)"
    if half.multiplier is not None:
        result += f" * self.{half.multiplier}"
    return [*lines, f"hidden_states = residual + {result}"]
