"""Progress of measuring, all recipes together."""

from __future__ import annotations

from .._models._running import StepCallback

# So much of the total is done at most before the end.
_NEARLY = 0.95


class WindowCount:
    """Windows done, which it is called with, and in all.

    Before a search nobody knows how many it takes. Its total is then a guess that stays ahead of what is done, so that
    a bar does not stand at its end while work goes on.

    :param guess: whether the total is one.
    """

    def __init__(self, tell: StepCallback, total: int, *, guess: bool) -> None:
        self._tell, self._done, self.total, self._guess = tell, 0, total, guess

    def __call__(self, windows: int) -> None:
        self._done += windows
        if self._guess and self._done >= self.total * _NEARLY:
            self.total = max(self.total, int(self._done / _NEARLY) + 1)
        self._tell(self._done, max(self._done, self.total))
