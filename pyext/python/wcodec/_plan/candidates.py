"""Candidates of a plan: how steps of tensors differ. Which of them is best, a measurement says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._calibrate.records import power_of
from .._core.options import exactly
from .loading import Factors, has_columns, has_feedback, name_without_feedback
from .recipe import FEEDBACK, Recipe
from .trials import Trial, Trials, role_of

MEASURED = "measured roles"
# Steps over those of others at least and at most. A role that would need finer ones is kept as it is, if it is small.
_LEAST, _MOST = 1 / 8, 4.0
_SMALL = 0.002
_SMALLEST_KL = 1e-9
_OF_KEYS = (".k_proj.", ".v_proj.")


@dataclass(frozen=True)
class RoleLoss:
    """The quality loss that quantizing the tensors of one role causes alone."""

    role: str
    weights: int
    kl: float

    @property
    def cost(self) -> float:
        """The quality loss per weight."""
        return max(self.kl, _SMALLEST_KL) / self.weights

    def step(self, usual: float) -> float:
        """The step over that of weights of the usual cost, by the power that statistics have, too."""
        return (self.cost / usual) ** (-0.5 * power_of(".experts." in self.role))


def role_losses(trials: Trials, trial: Trial) -> list[RoleLoss]:
    """The quality loss of each role alone, on a few windows."""
    weights: dict[str, int] = {}
    for tensor in trial.tensors:
        if tensor.scheme == "rate":
            role = role_of(tensor.name)
            weights[role] = weights.get(role, 0) + tensor.elements
    losses = []
    for role, count in weights.items():
        score = trials.measure(trial, trials.first_windows, role)
        if score is not None:
            losses.append(RoleLoss(role, count, score.kl))
    return losses


def by_roles(first: Trial, losses: list[RoleLoss], config: Any) -> Recipe:
    """Steps by what each role did alone, at the steps of the first trial: as the squares of steps are to quality
    loss."""
    usual = _geometric_mean({d.role: (d.cost, d.weights) for d in losses})
    factors = {d.role: d.step(usual) for d in losses}
    mean = _geometric_mean({d.role: (factors[d.role], d.weights) for d in losses})
    total = sum(d.weights for d in losses)
    rules = dict(first.recipe.rules or {})
    for loss in losses:
        factor = factors[loss.role] / mean
        if factor < _LEAST and loss.weights < _SMALL * total:
            # A router, perhaps: it takes next to nothing.
            rules.update((exactly(t.name), "lossless") for t in first.tensors if role_of(t.name) == loss.role)
        factors[loss.role] = min(max(factor, _LEAST), _MOST)
    names = [t.name for t in first.tensors if t.scheme == "rate"]
    before = {**of_architecture(config, names), **(first.recipe.steps or {})}
    steps = {name: before.get(name, 1.0) * factors.get(role_of(name), 1.0) for name in names}
    return replace(first.recipe, name=MEASURED, steps=steps, rules=rules or None)


def by_statistics(first: Trial, losses: list[RoleLoss], statistics: Factors, feedback: bool) -> list[Recipe]:
    """Factors of columns, and steps by the Fisher information; those of tensors that statistics do not know, by what
    they do alone. And the same with error feedback."""
    known = statistics.factors()
    names = [t.name for t in first.tensors if t.scheme == "rate"]
    steps = {name: known[name] for name in names if name in known}
    inside = {role_of(name) for name in steps}
    others = [d for d in losses if d.role not in inside]
    rest = [d for d in losses if d.role in inside]
    if others and rest:
        cost = sum(d.kl for d in rest) / sum(d.weights for d in rest)
        for loss in others:
            clamped = min(max(loss.step(max(cost, _SMALLEST_KL / 1e9)), _LEAST), _MOST)
            steps.update((name, clamped) for name in names if role_of(name) == loss.role)
    cheap = replace(first.recipe, name=name_without_feedback(statistics), steps=steps or first.recipe.steps)
    recipes = [replace(cheap, statistics=statistics, feedback=False) if has_columns(statistics) else cheap]
    if feedback and has_feedback(statistics):
        recipes.append(replace(first.recipe, name=FEEDBACK, steps=steps, statistics=statistics))
    return recipes


def _geometric_mean(values: Mapping[str, tuple[float, int]]) -> float:
    total = sum(count for _, count in values.values())
    return math.exp(sum(math.log(value) * count for value, count in values.values()) / max(total, 1))


def of_architecture(config: Any, names: Iterable[str]) -> dict[str, float]:
    """Finer steps for keys and values that several heads of queries share, as the encoder has them for a folder, whose
    ``config.json`` it sees.

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(num_attention_heads=8, num_key_value_heads=2)
    >>> of_architecture(config, ["a.q_proj.weight", "a.k_proj.weight"])
    {'a.k_proj.weight': 0.5}
    """
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    queries, keys = (getattr(text_config, key, None) for key in ("num_attention_heads", "num_key_value_heads"))
    if not isinstance(queries, int) or not isinstance(keys, int) or not 0 < keys < queries:
        return {}
    return {name: math.sqrt(keys / queries) for name in names if any(role in name for role in _OF_KEYS)}
