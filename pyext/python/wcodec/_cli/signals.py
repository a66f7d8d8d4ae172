"""Signals that ask a command to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = ("SIGTERM", "SIGHUP")
# A second signal within this time is ignored. A terminal and its shell often both send one, and the second must not
# interrupt the cleaning up.
_GRACE_SECONDS = 10.0


class Terminated(BaseException):
    """A signal asked the program to end. As with ``KeyboardInterrupt``, what is partial is removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number
        """The exit status that a shell shows for a program that the signal ended."""


@contextmanager
def unwinding() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise :class:`Terminated`, and puts back what handled them before.

    Signals that are ignored stay so, as those under ``nohup``. In a thread that is not the main one, nothing changes.
    """
    before: dict[int, Any] = {}
    last: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if last is None or now - last > _GRACE_SECONDS:
            last = now
            raise Terminated(number)

    try:
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            # None is a handler that another language installed, which could not be put back.
            if number is None or signal.getsignal(number) in (signal.SIG_IGN, None):
                continue
            try:
                before[number] = signal.signal(number, handle)
            except ValueError:
                break
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
