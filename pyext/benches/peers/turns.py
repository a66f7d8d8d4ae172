"""Lets several of these commands run side by side: what takes the CPU's time, as compiling does, is done at once, and
figures are taken one command at a time, while all others wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

VARIABLE = "WCODEC_PEERS_TURNS"
"""Names the file to the processes of peers."""
WAITS, GOES_ON = "waits", "goes on"


class Turns:
    """A lock file that processes share while they do anything but wait, and that one has for itself while it measures.

    A process that wants to measure gives its share up first, so that nobody waits for another that waits. Without a
    file nothing is locked.

    :param tell: is told WAITS before it may have to, and GOES_ON afterwards.

    >>> with Turns(None) as turns, turns.alone():
    ...     pass
    """

    def __init__(self, path: str | os.PathLike[str] | None, tell: Callable[[str], object] = lambda _: None) -> None:
        self._path = None if path is None else Path(path)
        self._tell = tell
        self._file: int | None = None

    def __enter__(self) -> Turns:
        if self._path is not None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            self._lock(alone=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            # Gone with its last descriptor, and with a process that dies.
            os.close(self._file)
            self._file = None

    def _lock(self, alone: bool) -> None:
        # Not there on Windows.
        import fcntl

        assert self._file is not None
        self._tell(WAITS)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        fcntl.flock(self._file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        self._tell(GOES_ON)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process does anything, and keeps them waiting."""
        if self._file is None:
            yield
            return
        self._lock(alone=True)
        try:
            yield
        finally:
            self._lock(alone=False)
