"""How far measuring is, of all recipes together."""

from __future__ import annotations

from .._measure._models import StepCallback


class WindowCount:
    """Windows done, which it is called with, and in all: more than was thought at first, perhaps."""

    def __init__(self, tell: StepCallback, total: int = 1) -> None:
        self._tell, self._done, self.total = tell, 0, total

    def __call__(self, windows: int) -> None:
        self._done += windows
        self._tell(self._done, max(self.total, self._done))
