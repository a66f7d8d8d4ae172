"""The sections measured for one row: quality, memory and loading, generation, decode steps, prefill."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import tinyllama_model as bench
import torch

from . import catalogue, models, real
from .adapters import Prepare
from .adapters.base import NotThere, Ready, linears, weights_in
from .catalogue import Variant
from .turns import Turns

Values = dict[str, Any]
FURTHEST = 0.2
"""The largest accepted distance of logits from those of the eager step, relative to the largest logit. Other orders of
addition round differently."""


@dataclass(frozen=True)
class Settings:
    """Settings common to all peers; results with other settings are not put side by side."""

    device: str
    shapes: str
    layers: int | None
    tokens: int
    repeats: int
    text_tokens: int
    prefill_tokens: int
    batches: tuple[int, ...]
    sections: tuple[str, ...]
    model: str = catalogue.EMBEDDED
    """Whose quality is measured."""
    windows: int = real.PIECES
    """Pieces of the real model's text."""


def outside_of_torch(device: str) -> int:
    """Bytes of the GPU that are taken, but not by torch's allocator: the context, and what others allocate."""
    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


class Row:
    """A variant, its model for speeds, and what measures it."""

    def __init__(
        self, prepare: Prepare, variant: Variant, settings: Settings, reference: float | None, turns: Turns
    ) -> None:
        self.prepare, self.variant, self.settings = prepare, variant, settings
        self.reference, self.turns = reference, turns
        self._ready: Ready | None = None

    def run(self, section: str) -> Values:
        kind, _, batch = section.partition("/")
        found: Callable[..., Values] = getattr(self, kind)
        with torch.no_grad():
            return found(int(batch)) if batch else found()

    @property
    def model(self) -> Any:
        """The model with stored layers, on the device. The first section that needs it makes it."""
        if self._ready is None:
            self._load()
        assert self._ready is not None
        return self._ready.model

    def quality(self) -> Values:
        device = self.settings.device
        if self.settings.model == catalogue.EMBEDDED:
            judge: models.Quality | real.Quality = models.Quality(models.text(self.settings.text_tokens), device)
            model = models.embedded(torch.bfloat16, device)
        else:
            judge = real.quality(self.settings.windows, device)
            model = real.load(torch.bfloat16, device)
        names, weights = list(linears(model)), weights_in(model)
        begin = time.perf_counter()
        ready = self.prepare(model, self.variant, device)
        values: Values = {
            "bits": ready.stored_bytes * 8 / weights,
            "stored_bytes": ready.stored_bytes,
            "weights": weights,
            "prepare_s": time.perf_counter() - begin,
            "tokens": judge.tokens,
            "notes": list(ready.notes),
        }
        if ready.fell_back:
            values["fell_back"] = ready.fell_back
        if ready.runs:
            if isinstance(judge, models.Quality):
                values.update(judge.as_run(ready.model))
            values.update(judge.of_weights({name: ready.decoded(name) for name in names}))
        return values

    def load(self) -> Values:
        """Measures the time from weights in bf16 on the device to the end of a first pass, and the memory that
        generating takes."""
        with self.turns.alone():
            return self._load()

    def _load(self) -> Values:
        settings = self.settings
        cuda = settings.device != "cpu"
        bench.clean()
        outside = outside_of_torch(settings.device)
        model = models.of_shapes(settings.shapes, settings.layers, settings.device)
        weights = weights_in(model)
        bench.synchronize()
        begin = time.perf_counter()
        ready = self.prepare(model, self.variant, settings.device)
        if not ready.runs:
            raise NotThere(ready.notes[-1])
        del model
        ready.model(bench.prompt(device=settings.device))
        bench.synchronize()
        seconds = time.perf_counter() - begin
        self._ready = ready
        values: Values = {
            "load_s": seconds,
            "bits": ready.stored_bytes * 8 / weights,
            "stored_bytes": ready.stored_bytes,
            "weights": weights,
            "notes": list(ready.notes),
        }
        bench.clean()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            bench.generate(ready.model, settings.tokens, device=settings.device)
            others = max(outside_of_torch(settings.device) - outside, 0)
            values["torch_peak_bytes"] = torch.cuda.max_memory_allocated()
            values["other_bytes"] = others
            values["peak_bytes"] = values["torch_peak_bytes"] + others
        return values

    def _rate(self, times: list[float], tokens: int) -> Values:
        return {
            "tokens_per_s": tokens / median(times),
            "spread": [tokens / max(times), tokens / min(times)],
        }

    def eager(self, batch: int) -> Values:
        model = self.model
        with self.turns.alone():
            values = self._rate(generated(model, self.settings, batch), self.settings.tokens * batch)
        if batch == 1 and self.reference is not None:
            values["bf16_tokens_per_s"] = self.reference
        return values

    def _steps(self, batch: int, make: Callable[[Any], Callable[[], torch.Tensor]]) -> Values:
        s = self.settings
        steps = bench.Steps(self.model, s.tokens, batch, s.device)
        wanted = steps.first(steps.eager())
        begin = time.perf_counter()
        step = make(steps)
        bench.synchronize()
        seconds = time.perf_counter() - begin
        # A step that was captured without all of its work is fast and wrong.
        apart = bench.largest(steps.first(step), wanted)
        if not apart < FURTHEST:
            raise ArithmeticError(f"its logits are not those of the eager step ({apart:.2g} of the largest apart)")
        with self.turns.alone():
            times = [steps.seconds(step) for _ in range(s.repeats)]
        return {**self._rate(times, s.tokens * batch), "prepare_s": seconds, "apart": apart}

    def captured(self, batch: int) -> Values:
        return self._steps(batch, bench.Steps.captured)

    def compiled(self, batch: int) -> Values:
        torch._dynamo.reset()
        return self._steps(batch, bench.Steps.compiled)

    def prefill(self) -> Values:
        s = self.settings
        limit = int(self.model.config.max_position_embeddings)
        tokens = min(s.prefill_tokens, limit)
        vocabulary = int(self.model.config.vocab_size)
        ids = torch.arange(tokens, device=s.device)[None] % vocabulary

        def read() -> Any:
            return self.model(ids, use_cache=True, logits_to_keep=1)

        read()
        with self.turns.alone():
            times = [bench.timed(read) for _ in range(s.repeats)]
        return {**self._rate(times, tokens), "tokens": tokens}


def generated(model: Any, settings: Settings, batch: int = 1) -> list[float]:
    """Seconds for the tokens of each repeat, after some that warm up."""
    bench.generate(model, max(settings.tokens // 4, 2), batch, settings.device)
    return [bench.generate(model, settings.tokens, batch, settings.device) for _ in range(settings.repeats)]


def reference(settings: Settings) -> float:
    """Tokens per second of bf16 itself, eager, at batch 1, in the same process: what the CPU does varies."""
    with torch.no_grad():
        model = models.of_shapes(settings.shapes, settings.layers, settings.device)
        times = generated(model, settings)
        del model
        bench.clean()
    return settings.tokens / median(times)
