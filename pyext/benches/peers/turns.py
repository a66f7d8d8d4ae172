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
    """Two lock files that processes share: of the first, each has a share while it does anything but wait, and one has
    it for itself while it measures; the second is shared by all who wait to measure, or do.

    A process that wants to measure gives its share of the first up, so that nobody waits for another that waits. Before
    it goes on it waits until nobody has the second: otherwise its next work, of minutes, would be what all others wait
    for, each time one of them has measured. A process that begins does not wait for those. Without a file nothing is
    locked.

    :param tell: is told WAITS before it may have to, and GOES_ON afterwards.

    >>> with Turns(None) as turns, turns.alone():
    ...     pass
    """

    def __init__(self, path: str | os.PathLike[str] | None, tell: Callable[[str], object] = lambda _: None) -> None:
        self._paths = () if path is None else (Path(path), Path(f"{path}.waiting"))
        self._tell = tell
        self._files: list[int] = []

    def __enter__(self) -> Turns:
        self._files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o666) for path in self._paths]
        if self._files:
            import fcntl  # not there on Windows

            self._tell(WAITS)
            fcntl.flock(self._files[0], fcntl.LOCK_SH)
            self._tell(GOES_ON)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Locks are gone with the last descriptor of a file, and with a process that dies.
        for file in self._files:
            os.close(file)
        self._files = []

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process does anything, and keeps them waiting."""
        if not self._files:
            yield
            return
        import fcntl

        working, waiting = self._files
        self._tell(WAITS)
        # In this order: who gave its share up and is not known to wait would be passed by those who go on.
        fcntl.flock(waiting, fcntl.LOCK_SH)
        fcntl.flock(working, fcntl.LOCK_UN)
        fcntl.flock(working, fcntl.LOCK_EX)
        self._tell(GOES_ON)
        try:
            yield
        finally:
            self._tell(WAITS)
            fcntl.flock(working, fcntl.LOCK_UN)
            fcntl.flock(waiting, fcntl.LOCK_UN)
            # While one has this for itself, others only can get ready to wait, with their share of the first.
            fcntl.flock(waiting, fcntl.LOCK_EX)
            fcntl.flock(working, fcntl.LOCK_SH)
            fcntl.flock(waiting, fcntl.LOCK_UN)
            self._tell(GOES_ON)
