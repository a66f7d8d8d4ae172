"""Files that are written: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from . import _native
from ._options import path_of


@contextmanager
def output(
    path: str | os.PathLike[str],
    *,
    report: bool = False,
    inputs: Iterable[str | os.PathLike[str]] = (),
    overwrite: bool = False,
) -> Iterator[_native.Output]:
    """A file that appears when its ``finish`` is called; if the block ends before, nothing is left of it.

    :param report: whether it is one in JSON, so that its name must not have the ending of a model.
    :param inputs: the files that the work reads, none of which may be the output.
    """
    out = _native.Output(path_of(path), report, [path_of(p) for p in inputs], overwrite)
    try:
        yield out
    finally:
        out.discard()
