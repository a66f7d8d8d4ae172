"""Searching for a plan: which candidates are tried for a target, and which of them is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from .._core.errors import InputError
from .candidates import by_roles, by_statistics, role_losses
from .loading import Factors
from .recipe import Recipe
from .target import Target
from .trials import LOSSLESS, Trial, Trials


@dataclass(frozen=True)
class Wish:
    """The target, and the facts that the search starts from."""

    target: Target
    recipe: Recipe
    """The first candidate: steps by weights alone, or those that were given."""
    scheme: str | None
    trellis: bool | None
    statistics: Factors | None
    feedback: bool
    config: Any
    """The model's config."""


def without_text(trials: Trials, wish: Wish) -> Trial:
    """The recipe that is best for most models, where nothing is measured."""
    first = _fitting(trials, wish)
    if wish.statistics is None or wish.recipe.steps is not None or first.recipe.scheme == LOSSLESS:
        return first
    best = by_statistics(first, [], wish.statistics, wish.feedback)[-1]
    return trials.fit(best, wish.target, first.recipe.bits)


def measured(trials: Trials, wish: Wish) -> tuple[Trial, list[Trial]]:
    """The best trial, and all that were measured on all windows."""
    bound = wish.target.kl
    if bound is None:
        first = _fitting(trials, wish)
        trials.measure(first)
    else:
        first = _meeting(trials, wish, bound)
    if wish.recipe.steps is not None or first.recipe.scheme == LOSSLESS:
        return first, trials.done
    losses = role_losses(trials, first)
    recipes = [by_roles(first, losses, wish.config)]
    if wish.statistics is not None:
        recipes += by_statistics(first, losses, wish.statistics, wish.feedback)
    others = []
    for recipe in recipes:
        trial = trials.encode(recipe) if bound is not None else trials.fit(recipe, wish.target, first.recipe.bits)
        trials.measure(trial)
        others.append(trial)
    best = min([first, *others], key=_kl_of)
    if bound is not None:
        # A better recipe meets the bound with fewer bits.
        fewer = trials.meet(best.recipe, bound, best)
        met = [t for t in (first, best, fewer) if t is not None and _kl_of(t) <= bound]
        best = min(met, key=lambda t: t.file_bytes)
    return best, trials.done


def _kl_of(trial: Trial) -> float:
    return math.inf if trial.score is None else trial.score.kl


def _fitting(trials: Trials, wish: Wish) -> Trial:
    """A recipe at as many bits as a budget allows: where these are more than it can have, without the trellis, which
    has fewer levels; and without loss where there is room for that."""
    recipe, wanted = wish.recipe, wish.target
    limit = float(wanted.bits if wanted.bytes is None else wanted.bytes)  # type: ignore[arg-type]
    # Nothing is better than all bits, nor quicker to try.
    ample = wish.scheme is None and trials.is_ample(wanted)
    if ample and (lossless := _without_loss(trials, wish, limit)) is not None:
        return lossless
    first = trials.fit(recipe, wanted)
    if first.taken(wanted) >= 0.98 * limit:
        return first
    if wish.trellis is None:
        first = max((first, trials.fit(replace(recipe, trellis=False), wanted)), key=lambda t: t.taken(wanted))
    if wish.scheme is None and not ample and first.taken(wanted) < 0.98 * limit:
        return _without_loss(trials, wish, limit) or first
    return first


def _without_loss(trials: Trials, wish: Wish, limit: float) -> Trial | None:
    """All bits, if there is room for them."""
    lossless = trials.encode(Recipe(LOSSLESS, LOSSLESS, coder=wish.recipe.coder))
    return lossless if lossless.taken(wish.target) <= limit else None


def _meeting(trials: Trials, wish: Wish, bound: float) -> Trial:
    """A recipe at as few bits as a bound allows: without the trellis, and then without loss, if the bound is not met
    before.

    :raises InputError: if nothing meets it.
    """
    recipe = wish.recipe
    # A rough result is enough if other candidates follow, since one of them will be brought nearer.
    roughly = recipe.steps is None
    met = trials.meet(recipe, bound, roughly=roughly)
    if met is None and wish.trellis is None:
        met = trials.meet(replace(recipe, trellis=False), bound, roughly=roughly)
    if met is None and wish.scheme is None:
        met = trials.encode(Recipe(LOSSLESS, LOSSLESS, coder=recipe.coder))
        trials.measure(met)
    if met is not None and _kl_of(met) <= bound:
        return met
    least = trials.least(recipe)
    trials.measure(least)
    reached = [_kl_of(trial) for trial in trials.done]
    raise InputError(
        f"a KL of at most {bound:g} nats per token cannot be met: measured values are from {min(reached):.3g} to "
        f"{max(reached):.3g} (allow more, or leave scheme out so that tensors may be kept without loss)",
        code="I634",
    )
