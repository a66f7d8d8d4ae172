"""``wcodec generate --bits 4,6,...``: the smallest model whose answers are the original's."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _measure
from .._core import format as fmt
from .._core.errors import InputError
from . import generate
from .models import _load, _load_baseline, _running, _tokenizer, weights_bytes
from .next_step import encode_command, show_next
from .output import document, prose, put, show_progress, tabulate, tell

_ENOUGH = "the smallest of these with the original's answers"


@dataclass(frozen=True)
class Trial:
    """A checkpoint at one size: its answers beside the original's."""

    size: float | str
    """Bits per weight, or the name of a scheme."""
    weights_bytes: int
    first_differences: tuple[int | None, ...] = ()
    """The index of the first token that differs, for each prompt; ``None`` where all are the same."""
    refusal: str | None = None
    """Why the model cannot have this size."""

    @property
    def same(self) -> int:
        """The number of prompts with the original's answer."""
        return sum(difference is None for difference in self.first_differences)

    @property
    def is_enough(self) -> bool:
        return self.refusal is None and self.same == len(self.first_differences)

    def to_dict(self) -> dict[str, Any]:
        return {"size": self.size, "weights_bytes": self.weights_bytes, "same": self.same,
                "first_differences": list(self.first_differences), "refusal": self.refusal}  # fmt: skip


def run(a: argparse.Namespace, texts: Sequence[str]) -> int:
    """Tries sizes in their order until all answers are the original's."""
    a.baseline = a.baseline or a.model
    baseline: Any = None
    answers: list[_measure.Generation] = []
    trials: list[Trial] = []
    for size in a.bits:
        if show_progress(a.quiet):
            tell(f"trying {named(size)}")
        try:
            model = _load(_at(a, size))
        except InputError as error:
            # A small model has no 8 bits per weight, which is no reason to lose what was found.
            if error.code != "I401":
                raise
            trials.append(Trial(size, 0, refusal=str(error)))
            continue
        tokenizer = _tokenizer(a, model)
        if baseline is None:
            baseline = _load_baseline(a, model)
            answers = [_answer(a, baseline, tokenizer, text, a.baseline) for text in texts]
        answers_now = [_answer(a, model, tokenizer, text, a.model) for text in texts]
        pairs = zip(answers_now, answers, strict=True)
        differences = tuple(None if one.tokens == other.tokens else generate.same_tokens(one, other)
                            for one, other in pairs)  # fmt: skip
        trials.append(Trial(size, weights_bytes(_measure.measure_vram(model)), differences))
        # Two models fit where three may not.
        del model
        if trials[-1].is_enough:
            break
    _tell(a, texts, trials)
    return 0


def _at(a: argparse.Namespace, size: float | str) -> argparse.Namespace:
    """The arguments of a model of one size."""
    copied = copy.copy(a)
    copied.scheme, copied.bits = (size, None) if isinstance(size, str) else ("rate", size)
    return copied


def _answer(a: argparse.Namespace, model: Any, tokenizer: Any, text: str, name: str) -> _measure.Generation:
    with _running(name):
        return _measure.generate(model, generate.prompt_of(a, tokenizer, text, name), tokenizer,
                                 **generate.options_of(a))  # fmt: skip


def named(size: float | str) -> str:
    """A size for people.

    >>> named(3.5), named("int8")
    ('3.5 bits', 'int8')
    """
    return size if isinstance(size, str) else f"{size:g} bits"


def _tell(a: argparse.Namespace, texts: Sequence[str], trials: Sequence[Trial]) -> None:
    smallest = trials[-1] if trials[-1].is_enough else None
    if a.json:
        body = {"model": a.model, "baseline": a.baseline, "chat": a.chat, "prompts": len(texts),
                "trials": [trial.to_dict() for trial in trials],
                "smallest": None if smallest is None else smallest.size}  # fmt: skip
        put(document("generate", body))
        return
    rows = [_row(trial, len(texts)) for trial in trials]
    tabulate(("size", "weights", "the same", "first difference"), rows)
    if smallest is None:
        prose("none of these gives the original's answers (lossless does: --bits ...,lossless)")
        return
    prose(f"{named(smallest.size)}: {_ENOUGH}, {fmt.size(smallest.weights_bytes)} of weights")
    show_next(_next(a.model, smallest.size), "to keep it")


def _row(trial: Trial, prompts: int) -> tuple[str, ...]:
    if trial.refusal is not None:
        return named(trial.size), "cannot be reached", "-", "-"
    differences = [index for index in trial.first_differences if index is not None]
    first = f"token {min(differences) + 1:,}" if differences else "-"
    return named(trial.size), fmt.size(trial.weights_bytes), f"{trial.same} of {prompts}", first


def _next(model: str, size: float | str) -> str:
    if isinstance(size, str):
        return encode_command(model, size, "--scheme", size)
    return encode_command(model, f"{size:g}bit", "--bits", f"{size:g}")
