"""Progress of long work: a bar, a callback, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._native import safe

ProgressCallback = Callable[[str, int, int], object]
"""Called as ``callback(tensor, done, total)``: the tensor at work, bytes done, bytes in all (of the original)."""

# Work that is done sooner shows no bar at all.
_DELAY_SECONDS = 0.5


@contextmanager
def reporter(progress: bool | ProgressCallback, title: str) -> Iterator[ProgressCallback | None]:
    """The callback that the native module gets for a user's ``progress`` argument."""
    if callable(progress):
        yield progress
        return
    tqdm = _tqdm() if progress else None
    if tqdm is None:
        yield None
        return
    bar = tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024, delay=_DELAY_SECONDS, leave=False)

    def update(tensor: str, done: int, total: int) -> None:
        bar.total = total
        bar.set_postfix_str(safe(tensor), refresh=False)
        bar.update(done - bar.n)

    try:
        yield update
    finally:
        bar.close()


class Stages:
    """Work of several stages under one progress, which goes to its end once.

    Stages follow each other in the order in which they are named. One that is left out, or that ends early, counts as
    done as soon as a later one begins.

    >>> seen = []
    >>> stages = Stages({"collecting": 1, "encoding": 3}, lambda stage, part: seen.append((stage, part)))
    >>> stages.of("collecting")(1, 2), stages.of("encoding")(3, 3)
    (None, None)
    >>> seen
    [('collecting', 0.125), ('encoding', 1.0)]

    :param shares: by the name of a stage, its part of the work, about, in whatever unit.
    :param tell: called with the stage at work and the part of all work that is done, 0 to 1.
    """

    def __init__(self, shares: Mapping[str, float], tell: Callable[[str, float], object]) -> None:
        self._tell, self._done = tell, 0.0
        total = sum(shares.values())
        self._places: dict[str, tuple[float, float]] = {}
        at = 0.0
        for name, share in shares.items():
            self._places[name] = (at / total, share / total)
            at += share

    def of(self, stage: str) -> Callable[..., None]:
        """A function to be called as ``(done, total)`` while a stage is at work, and with a name for what is."""
        begin, share = self._places[stage]

        def step(done: int, total: int, what: str = stage) -> None:
            # A total that grows must not lead back.
            self._done = min(1.0, max(self._done, begin + share * (done / total if total else 1.0)))
            self._tell(what, self._done)

        return step


@contextmanager
def staged(
    progress: bool | Callable[[str, float], object], title: str, shares: Mapping[str, float]
) -> Iterator[Stages]:
    """One bar for all stages, in percent and with the stage's name behind it; or a function that is told of them; or
    nothing."""
    if callable(progress):
        yield Stages(shares, progress)
        return
    tqdm = _tqdm() if progress else None
    if tqdm is None:
        yield Stages(shares, lambda stage, part: None)
        return
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
    bar = tqdm(total=100.0, desc=title, bar_format=form, delay=_DELAY_SECONDS, leave=False)

    def update(stage: str, part: float) -> None:
        bar.set_postfix_str(safe(stage), refresh=False)
        bar.update(100.0 * part - bar.n)

    try:
        yield Stages(shares, update)
    finally:
        bar.close()


def _tqdm() -> Any:
    """tqdm for where we run: a widget in a notebook, text elsewhere; nothing where standard error is closed."""
    import warnings

    if sys.stderr is None:
        return None
    try:
        with warnings.catch_warnings():
            # In a notebook without ipywidgets tqdm.auto warns and falls back to text, which is what we want.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        try:
            from tqdm import tqdm
        except ImportError:
            return None
    return tqdm
