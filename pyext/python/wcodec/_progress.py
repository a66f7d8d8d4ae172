"""Progress of long work: a bar, a callback, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ._native import safe

ProgressCallback = Callable[[str, int, int], object]
"""Called as ``callback(tensor, done, total)``: the tensor at work, bytes done, bytes in all (of the original)."""

# Work that is done sooner shows no bar at all.
_DELAY_SECONDS = 0.5


@contextmanager
def reporter(progress: bool | ProgressCallback, title: str) -> Iterator[ProgressCallback | None]:
    """What to hand to the native module for a user's ``progress`` argument."""
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
