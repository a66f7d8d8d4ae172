"""Trials of a plan: recipes encoded in memory, what they take, and what they do to the model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._calibrate.encoding import compress_to_bytes
from .._core.errors import InputError
from .._core.option_table import DEFAULT_BITS, LEAST_BITS, MOST_BITS
from .._core.tensor_info import TensorInfo
from .._file.container import Container
from .recipe import Recipe
from .target import Target

if TYPE_CHECKING:
    from .score import Judge, Score

LOSSLESS = "lossless"
# A budget is met when no more than this part of it is left, and a bound of quality loss likewise.
_TOLERANCE = 0.002
_KL_TOLERANCE, _ROUGH_TOLERANCE = 0.08, 0.3
_MOST_ENCODINGS = 7
# From here on symbols may not have as many bits as they are asked for.
_MANY = 6.0
_MOST_MEASURED = 8
# The fraction of a source's bytes that 16-bit weights take, at most in steps, and at least without loss.
_AMPLE = 0.55
# The fall of the logarithm of KL with each bit: its value about 4 bits, and the bounds within which a slope is
# believed.
_SLOPE, _SLOPES = 1.45, (0.8, 3.0)
# Windows of a first look.
FEW = 6
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def role_of(name: str) -> str:
    """The role that tensors of all layers and experts share: the name without numbers that stand alone.

    >>> role_of("model.layers.11.mlp.experts.3.w1.weight")
    'model.layers.*.mlp.experts.*.w1.weight'
    """
    return _NUMBER.sub("*", name)


@dataclass
class Trial:
    """A recipe that was tried."""

    recipe: Recipe
    tensors: tuple[TensorInfo, ...]
    file_bytes: int
    """The size of the whole file, including the plan."""
    container: Container
    score: Score | None = None

    @property
    def encoded(self) -> list[TensorInfo]:
        """The tensors that are encoded, and not stored as they are."""
        return [t for t in self.tensors if t.scheme != "raw"]

    @property
    def bits(self) -> float:
        """Bits per weight of the tensors that are encoded, everything but header and index counted."""
        return 8 * sum(t.stored_bytes for t in self.encoded) / sum(t.elements for t in self.encoded)

    def taken(self, target: Target) -> float:
        """The part of a budget that it takes."""
        return self.bits if target.bytes is None else self.file_bytes


class Trials:
    """Tries recipes on one source.

    :param source: a checkpoint, or tensors by name.
    :param fixed: options of :func:`wcodec.compress` that all of them have.
    :param device: the device on which error feedback computes.
    :param model: the model that is measured, with the weights of the source; ``None`` if nothing can be.
    :param reserve: bytes that the plan itself takes in the file.
    """

    def __init__(
        self, source: Any, fixed: dict[str, Any], device: Any, model: Any, judge: Judge | None, reserve: int
    ) -> None:
        self._source, self._model, self._judge, self._reserve = source, model, judge, reserve
        self._device = device
        self._rules = dict(fixed.get("rules") or {})
        self._fixed = {key: value for key, value in fixed.items() if key != "rules"}
        self.done: list[Trial] = []
        """Those that were measured on all windows."""

    def options(self, recipe: Recipe) -> dict[str, Any]:
        """Arguments of :func:`wcodec.compress`. The caller's own rules come before those of a recipe."""
        options = {**self._fixed, **recipe.options(), "rules": {**self._rules, **(recipe.rules or {})} or None}
        return options if recipe.statistics is None else {**options, "device": self._device}

    def encode(self, recipe: Recipe) -> Trial:
        """Encodes a recipe, and returns the trial."""
        data, report = compress_to_bytes(self._source, self.options(recipe))
        trial = Trial(recipe, report.tensors, len(data) + self._reserve, Container.open(data, trusted=True))
        if not trial.encoded or not any(t.elements for t in trial.encoded):
            raise InputError(
                "there is nothing to encode: the source has no matrix of floats that include and exclude leave "
                "(change them, or name another source)",
                code="I623",
            )
        return trial

    def measure(self, trial: Trial, windows: Sequence[int] | None = None, role: str | None = None) -> Score | None:
        """Measures the quality loss of a trial, or the loss from its tensors of one role alone."""
        if self._judge is None:
            return None
        from .matrices import decoded, pieces_of, replaced

        pieces = [p for p in pieces_of(self._model, trial.container) if role is None or role_of(p.name) == role]
        value = decoded(self._model, trial.container, self._fixed.get("threads"))
        with replaced(self._model, pieces, value):
            score = self._judge.score(windows)
        if role is None and windows is None:
            trial.score = score
            self.done.append(trial)
        return score

    @property
    def first_windows(self) -> Sequence[int]:
        """Windows for a first look."""
        return [] if self._judge is None else self._judge.first_windows(FEW)

    # Budgets

    def is_ample(self, target: Target) -> bool:
        """Whether a budget is likely to be more than steps can use, so that there may be room for all bits."""
        return target.bytes is not None and target.bytes > _AMPLE * _size(self._source)

    def fit(self, recipe: Recipe, target: Target, guess: float | None = None) -> Trial:
        """A recipe at as many bits as a budget allows.

        :raises InputError: if the budget is too small for any number of bits.
        """
        limit = float(target.bits if target.bytes is None else target.bytes)  # type: ignore[arg-type]
        bits = min(max(guess or target.bits or DEFAULT_BITS, LEAST_BITS), MOST_BITS)
        best: Trial | None = None
        tried: list[tuple[float, float]] = []
        for _ in range(_MOST_ENCODINGS):
            bits = round(bits, 4)
            if any(bits == other for other, _ in tried):
                break
            trial = self._possible(recipe, bits)
            if trial is None:
                # Fewer bits than symbols can have.
                break
            taken = trial.taken(target)
            if taken <= limit and (best is None or taken > best.taken(target)):
                best = trial
            if limit * (1 - _TOLERANCE) <= taken <= limit:
                break
            if tried and bits > max(tried[-1][0], _MANY) and taken <= tried[-1][1]:
                # More bits than symbols can have.
                break
            slope = self._per_bit(trial, target)
            if tried and tried[-1][0] != bits:
                # Tables that tensors begin or cease to share make steps of it: no slope is far from what it should be.
                slope = min(max((taken - tried[-1][1]) / (bits - tried[-1][0]), slope / 2), 2 * slope)
            tried.append((bits, taken))
            # A little less than what would just fit: bits are met to some parts in a thousand.
            bits = min(max(bits + (limit * (1 - _TOLERANCE / 3) - taken) / slope, LEAST_BITS), MOST_BITS)
        return best or self._least_that_fits(recipe, target, limit)

    def _possible(self, recipe: Recipe, bits: float) -> Trial | None:
        """A recipe at so many bits; none where that is less than can be reached."""
        try:
            return self.encode(replace(recipe, bits=bits))
        except InputError as error:
            if error.code != "I401":
                raise
            return None

    def _per_bit(self, trial: Trial, target: Target) -> float:
        """The cost of one bit per weight more."""
        of_rate = sum(t.elements for t in trial.encoded if t.scheme == "rate")
        return max(of_rate, 1) / (8 if target.bytes is not None else sum(t.elements for t in trial.encoded))

    def least(self, recipe: Recipe) -> Trial:
        """A recipe at the fewest bits that can be reached, or hardly more."""
        bits = LEAST_BITS
        while (trial := self._possible(recipe, bits)) is None:
            bits *= 1.08
        return trial

    def _least_that_fits(self, recipe: Recipe, target: Target, limit: float) -> Trial:
        least = self.least(recipe)
        if least.taken(target) <= limit:
            return least
        low, high = (trial.taken(target) for trial in (least, self.encode(replace(recipe, bits=MOST_BITS))))
        reach = f"{low:,.0f} to {high:,.0f} bytes" if target.bytes is not None else f"{low:.3f} to {high:.3f} bits"
        raise InputError(
            f"a budget of {target} is too small: there can be {reach} (ask for more, or exclude less)", code="I634"
        )

    # Quality loss

    def meet(self, recipe: Recipe, bound: float, start: Trial | None = None, roughly: bool = False) -> Trial | None:
        """A recipe at as few bits as a bound of KL allows, measured on all windows; none where 8 bits are too few.

        A few windows tell where to look, and all of them whether the bound is met: what these differ by is learned on
        the way.

        :param start: a trial of this recipe that was measured.
        :param roughly: whether it may be some way below the bound.
        """
        tolerance = _ROUGH_TOLERANCE if roughly else _KL_TOLERANCE
        best: Trial | None = None
        share = 1.0
        known: list[tuple[float, float]] = []
        seen: set[float] = set()
        bits = DEFAULT_BITS
        if start is not None and start.score is not None:
            first = self._kl(start, self.first_windows)
            share = start.score.kl / first if first > 0 else 1.0
            best = start if start.score.kl <= bound else None
            if best is not None and start.score.kl >= bound * (1 - tolerance):
                return best
            bits = start.recipe.bits or DEFAULT_BITS
            known, seen = [(bits, first)], {bits}
            bits += _log_ratio(first, bound * (1 - tolerance / 2) / share) / _slope(known)
        for _ in range(_MOST_MEASURED):
            bits = round(min(max(bits, LEAST_BITS), MOST_BITS), 3)
            if bits in seen:
                break
            seen.add(bits)
            trial = self._possible(recipe, bits) or self.least(recipe)
            bits = trial.recipe.bits or bits
            first = self._kl(trial, self.first_windows)
            known.append((bits, first))
            if bound * (1 - tolerance) <= first * share <= bound or bits in (LEAST_BITS, MOST_BITS):
                kl = self._kl(trial)
                share = kl / first if first > 0 else 1.0
                if kl <= bound and (best is None or trial.file_bytes < best.file_bytes):
                    best = trial
                if kl <= bound and (kl >= bound * (1 - tolerance) or bits == LEAST_BITS):
                    break
                if kl > bound and bits == MOST_BITS:
                    break
            # A little below the bound: beyond it, all was in vain.
            bits += _log_ratio(first, bound * (1 - tolerance / 2) / share) / _slope(known)
        return best

    def _kl(self, trial: Trial, windows: Sequence[int] | None = None) -> float:
        score = self.measure(trial, windows)
        assert score is not None
        return score.kl


def _size(source: Any) -> float:
    """Bytes of a source's tensors, about; infinitely many where that is not known at once. Errors of a source are for
    its encoder to report."""
    try:
        # Other mappings make their arrays when they are asked.
        if type(source) is dict:
            return sum(getattr(value, "nbytes", math.inf) for value in source.values())
        path = Path(source)
        files = path.glob("*.safetensors") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)
    except (TypeError, ValueError, OSError, RuntimeError):
        return math.inf


def _log_ratio(above: float, below: float) -> float:
    return math.log(max(above, 1e-12) / max(below, 1e-12))


def _slope(known: list[tuple[float, float]]) -> float:
    """The fall of the logarithm of KL with each bit, by the last measurements."""
    if len(known) < 2 or known[-1][0] == known[-2][0]:
        return _SLOPE
    (a, first), (b, second) = known[-2:]
    return min(max(_log_ratio(first, second) / (b - a), _SLOPES[0]), _SLOPES[1])
