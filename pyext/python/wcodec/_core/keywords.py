"""Keywords of the public functions: one that a function does not have is refused, with the one that was meant.

A function with ``**options`` would hand a mistyped keyword to whatever is called last, which knows neither what was
typed nor who was called. :func:`keywords` stands before all of them, and is the only place that decides.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from .errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

# A hint that is wrong is worse than none: nearer than this is a slip of the fingers, and nothing else.
_LIKE = 0.75
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

# Words of other tools, of the command line and of earlier versions. Each has hints, of which the first counts whose
# keyword the function has.
_HINTS: tuple[tuple[str, str, str], ...] = (
    (
        "device_map",
        "revision",
        "pass device='cuda'; AutoModelForCausalLM.from_pretrained(..., device_map=...) takes compressed folders, too",
    ),
    ("device_map", "residency", "the model stays on its device: move it, or load it with from_pretrained"),
    ("torch_dtype", "dtype", "pass dtype=..."),
    ("load_in_4bit", "bits", "pass bits=4"),
    ("load_in_8bit", "scheme", "pass scheme='int8'"),
    ("group_size", "scale", "pass scale='block', block=..."),
    ("offload", "residency", "pass residency='host' or 'disk'"),
    ("cpu_offload", "residency", "pass residency='host'"),
    ("max_memory", "vram_budget", "pass vram_budget='8GB'"),
)
_SYNONYMS: dict[str, tuple[str, ...]] = {
    "bits": ("bits_per_weight", "bpw", "n_bits", "nbits", "num_bits", "w_bit", "wbits"),
    "calibrate": ("calibration", "calibration_data", "dataset", "imatrix", "statistics"),
    "data": ("dataset", "text"),
    "dtype": ("compute_dtype", "precision"),
    "exclude": ("ignore", "modules_to_not_convert", "skip_modules"),
    "max_new_tokens": ("max_tokens", "n_predict"),
    "overwrite": ("exist_ok", "force", "replace"),
    "progress": ("quiet", "show_progress", "verbose"),
    "scheme": ("method", "qtype", "quant_type"),
    "text": ("data", "dataset"),
    "trusted": ("trust",),
}
_ELSEWHERE = (*_HINTS, *((word, to, f"did you mean {to}?") for to, words in _SYNONYMS.items() for word in words))


def near(word: str, known: Iterable[str]) -> str | None:
    """The one of several words that somebody meant who typed another; ``None`` if none is that near.

    >>> near("casche", ["cache", "scheme"]), near("bit", ["bits", "block"]), near("force", ["rule", "trace"])
    ('cache', 'bits', None)
    """
    names = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), names, 1, _LIKE)
    return names[matches[0]] if matches else None


def check(function: str, given: Iterable[str], known: Iterable[str], otherwise: str | None = None) -> None:
    """Refuses keywords that a function does not have.

    :param function: its name, as the caller wrote it.
    :param otherwise: the advice if none is near; all that there are if left out.
    :raises InputError: with the nearest one that there is.
    """
    names = sorted(known)
    unknown = [word for word in given if word not in names]
    if not unknown:
        return
    hints = list(dict.fromkeys(_hint(word, names) or otherwise or _all(names) for word in unknown))
    raise InputError(f"{function} has no keyword {', '.join(unknown)} ({'; '.join(hints)})", code="I301")


def _all(names: list[str]) -> str:
    return f"it takes {', '.join(names)}"


def _hint(word: str, names: list[str]) -> str | None:
    hint = next((text for typed, needed, text in _ELSEWHERE if typed == word and needed in names), None)
    if hint is not None:
        return hint
    suggestion = near(word, names)
    return f"did you mean {suggestion}?" if suggestion else None


def names_of(function: Callable[..., Any], *groups: Any) -> frozenset[str]:
    """All keywords of a function: those of its signature, and those of typed dictionaries that stand for its
    ``**options``."""
    parameters = inspect.signature(function).parameters
    named = {name for name, p in parameters.items() if p.kind in _NAMED and name not in ("self", "cls")}
    # Keys that a dictionary need not have, its bases' among them.
    return frozenset(named.union(*(group.__optional_keys__ for group in groups)))


def keywords(*groups: Any, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Has a function refuse keywords that it does not have, before anything else happens.

    :param groups: typed dictionaries with the keywords that ``**options`` takes.
    :param name: the name that callers use, if it is not the function's own.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _checked(function, name or function.__name__, names_of(function, *groups))

    return decorate


def keywords_of(other: Callable[..., Any], name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As :func:`keywords`, of a function whose ``**options`` are the keywords of another, which has such a guard."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _checked(function, name, names_of(function) | _KNOWN[other])

    return decorate


# Functions with a guard, and their keywords.
_KNOWN: dict[Callable[..., Any], frozenset[str]] = {}


def _checked(function: Callable[P, R], called: str, known: frozenset[str]) -> Callable[P, R]:
    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not known.issuperset(kwargs):
            check(called, kwargs, known)
        return function(*args, **kwargs)

    _KNOWN[checked] = known
    return checked


def renamed(name: str, function: Callable[P, R]) -> Callable[P, R]:
    """A guarded function under another name, by which its messages and ``help`` call it, too."""
    plain = cast(Callable[P, R], inspect.unwrap(function))
    again = _checked(plain, name, _KNOWN[function])
    again.__name__ = again.__qualname__ = name
    again.__doc__ = f"Another name of ``{function.__name__}``, that of the command.\n\n{function.__doc__}"
    return again


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Optional arguments without those that were left out."""
    return {name: value for name, value in options.items() if value is not None}
