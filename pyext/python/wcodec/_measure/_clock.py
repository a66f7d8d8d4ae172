"""When the tokens of a text were there."""

from __future__ import annotations

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
        """When the first token came, by ``time.perf_counter()``."""
        return self._times[0] if self._times else None

    @property
    def speed(self) -> float | None:
        """Tokens per second after the first one, the median: the second one often waits for kernels that are loaded."""
        gaps = [later - before for before, later in pairwise(self._times)]
        rates = [count / gap for count, gap in zip(self._counts[1:], gaps, strict=True) if gap > 0]
        return median(rates) if rates else None


def clocked(model: Any, options: dict[str, Any]) -> Clock | None:
    """Adds a clock to what ``generate`` is called with, where tokens come one by one: not with beams, nor from a
    ``generate`` that is not transformers' own."""
    try:
        from transformers import GenerationMixin
    except ImportError:
        return None
    configs = (options.get("generation_config"), getattr(model, "generation_config", None))
    beams = options.get("num_beams")
    for config in configs:
        beams = getattr(config, "num_beams", None) if beams is None else beams
    if type(model).generate is not GenerationMixin.generate or (beams or 1) > 1:
        return None
    clock = options["streamer"] = Clock(options.get("streamer"))
    return clock
