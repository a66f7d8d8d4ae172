"""Arrival times of a text's tokens."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any


class Clock:
    """A streamer of transformers that notes when new tokens come, and hands all on to another one."""

    def __init__(self, streamer: Any = None) -> None:
        self._times: list[float] = []
        self._counts: list[int] = []
        self._streamer = streamer
        self._prompt = True

    def put(self, value: Any) -> None:
        """The prompt's tokens, then each new one, which the device has computed by now."""
        if not self._prompt:
            self._times.append(time.perf_counter())
            self._counts.append(value.numel())
        self._prompt = False
        if self._streamer is not None:
            self._streamer.put(value)

    def end(self) -> None:
        """After the last token."""
        if self._streamer is not None:
            self._streamer.end()

    @property
    def first(self) -> float | None:
        """The time at which the first token came, by ``time.perf_counter()``."""
        return self._times[0] if self._times else None

    @property
    def speed(self) -> float | None:
        """Tokens per second after the first one, by the median time: the second one often waits for kernels that are
        loaded."""
        gaps = [later - before for before, later in pairwise(self._times)]
        if not gaps:
            return None
        # A gap is not the time of one token if several come at once, as those of speculative decoding do.
        one = max(self._counts) == 1
        seconds = median(gaps) if one else sum(gaps) / sum(self._counts[1:])
        return 1 / seconds if seconds > 0 else None


def clocked(model: Any, options: dict[str, Any]) -> Clock | None:
    """Adds a clock to what ``generate`` is called with, where tokens of one text come one after the other: not with
    beams, nor from a ``generate`` that is not transformers' own."""
    transformers = sys.modules.get("transformers")
    generate = getattr(getattr(model, "generate", None), "__func__", None)
    if transformers is None or generate is not transformers.GenerationMixin.generate:
        return None
    configs = (options.get("generation_config"), getattr(model, "generation_config", None))
    for name in ("num_beams", "num_return_sequences"):
        asked = (options.get(name), *(getattr(config, name, None) for config in configs))
        if next((value for value in asked if value is not None), 1) != 1:
            return None
    clock = options["streamer"] = Clock(options.get("streamer"))
    return clock
