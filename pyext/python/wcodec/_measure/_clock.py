"""When the first token of a text was there."""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """A streamer of transformers that notes when the first new token comes, and hands all on to another one.

    >>> clock = Clock()
    >>> clock.put("the prompt"), clock.first
    (None, None)
    >>> clock.put("a token"), clock.first is None
    (None, False)
    """

    def __init__(self, streamer: Any = None) -> None:
        self.first: float | None = None
        """By ``time.perf_counter()``."""
        self._streamer = streamer
        self._prompt = True

    def put(self, value: Any) -> None:
        """The prompt's tokens, then each new one, which the device has computed by now."""
        if not self._prompt and self.first is None:
            self.first = time.perf_counter()
        self._prompt = False
        if self._streamer is not None:
            self._streamer.put(value)

    def end(self) -> None:
        """After the last token."""
        if self._streamer is not None:
            self._streamer.end()


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
