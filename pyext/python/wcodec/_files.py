"""Files that are written: whole or not at all, and never in the place of what is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import _native
from ._errors import FileMissingError, InputError
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


def check_output(path: str | os.PathLike[str], *inputs: Any) -> None:
    """Refuses an output that is one of the files that are read.

    :param inputs: what may be the path of a file, and whatever else.
    :raises InputError: if it is.
    """
    paths = [path_of(p) for p in inputs if isinstance(p, str | os.PathLike) and 0 < len(os.fspath(p)) < _LONGEST]
    _native.check_output(path_of(path), [p for p in paths if "\0" not in p])


def regular(path: Path) -> Path:
    """The path of a file that can be read to its end: a pipe would wait, and a device may never end.

    :raises FileMissingError: if there is none.
    :raises InputError: if it is something else.
    """
    if path.is_file():
        return path
    if path.exists():
        raise InputError(f"{path}: not a regular file (name a file)", file=path)
    raise FileMissingError(f"{path}: there is no such file (check the path)", file=path)


def files_of(model: str | os.PathLike[str]) -> list[str]:
    """The files of a model's folder, any of which may be read with it; those around it, of a file."""
    place = Path(path_of(model))
    folder = place if place.is_dir() else place.parent
    try:
        found = sorted(folder.iterdir())
        # Such as templates of chats, of which transformers takes a folder.
        found += [inner for path in found if path.is_dir() for inner in sorted(path.iterdir())]
    except OSError:
        found = [place]
    return [str(path) for path in found if path.is_file()]


# Longer texts are no paths.
_LONGEST = 4096
