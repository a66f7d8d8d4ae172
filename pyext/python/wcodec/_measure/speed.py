"""Speed of a model beside another one: the same prompt, in the same run, taking turns."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._core.errors import DeviceError, InputError
from .._core.keywords import names_of
from .._gpu import torch as _torch
from .._models import running
from . import loading
from . import profile as _profile
from .advice import advice
from .reports import BenchReport, BenchRow, LayerTime, Span, Speed, TimeSplit

if TYPE_CHECKING:
    import torch

# Prompts are random tokens, the same ones each time. Speed does not depend on which.
_SEED = 20


class Clock:
    """Notes the time whenever logits are there. A GPU is not waited for: its events are read at the end.

    It is handed to ``generate`` as a processor of logits, which it leaves as they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def start(self) -> None:
        """Begins a run, when the device has nothing more to do."""
        self._marks = []
        running.synchronize(self._device)
        self._mark()

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._mark()
        return scores

    def _mark(self) -> None:
        if self._device.type == "cuda":
            torch = _torch.require()
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Seconds from the start to each mark."""
        first, *later = self._marks
        if self._device.type == "cuda":
            running.synchronize(self._device)
            return [first.elapsed_time(mark) / 1e3 for mark in later]
        return [mark - first for mark in later]


def bench(
    model: Any,
    baseline: Any = None,
    *,
    batch: int | Sequence[int] = (1, 8, 32),
    prompt_tokens: int = 128,
    new_tokens: int = 64,
    repeats: int = 5,
    profile: bool = False,
    device: str | torch.device | None = None,
    dtype: Any = None,
    trust_remote_code: bool = False,
    progress: bool | running.StepCallback = False,
    **options: Any,
) -> BenchReport:
    """Measures how fast a model reads prompts (prefill) and writes tokens (decode), with its own greedy ``generate``.

    With a ``baseline`` both take turns within the same run, repeat by repeat, so that whatever else the machine does
    meets both. Each speed is the median of the repeats, beside the slowest and the fastest; one run before them warms
    up. Prompts are random tokens of equal length. Prefill is the time until the first new token's logits are there,
    decode the time from those to the last token's. On a GPU these are CUDA events, without waiting between tokens.

    Example::

        report = wcodec.bench("compressed", baseline="path/to/original", batch=(1, 8))
        print(report.ratio(1))  # decode speed at batch 1, as a multiple of the baseline's
        report.plot()

    :param model: a causal language model of transformers; or a path or the name of a repository, which
        :func:`wcodec.load_model` loads.
    :param baseline: another one to measure beside it; or a path or a name. An ordinary checkpoint is loaded as it is,
        on the model's device and in its dtype.
    :param batch: sequences at once; one or several numbers.
    :param prompt_tokens: tokens of each prompt.
    :param new_tokens: tokens to write after it, at least 2.
    :param profile: afterwards, with the first batch size, also measures where the time goes: copies, decoding of
        weights and matrix products by torch's profiler (``report.splits``, and for one token ``report.spans``), and
        every module by forward hooks (``report.layers``). These runs are slower, and do not count as speeds.
    :param progress: ``True`` for a bar, or a function that is called with (runs done, runs in all).
    :param device: the device that a model from a path runs on, the CPU if left out; ``dtype`` and ``trust_remote_code``
        as for :func:`wcodec.load_model`.
    :param options: handed on to ``generate``.
    :raises InputError: if a model has no ``generate``, for options that it does not have, or if the prompt and the
        new tokens do not fit it.
    :raises DeviceError: if the GPU's memory does not suffice.
    """
    torch = _torch.require()
    batches = tuple(dict.fromkeys(running.whole_numbers("batch", batch)))
    (prompt_tokens,) = running.whole_numbers("prompt_tokens", prompt_tokens)
    (new_tokens,) = running.whole_numbers("new_tokens", new_tokens)
    (repeats,) = running.whole_numbers("repeats", repeats)
    if new_tokens < 2:
        raise InputError("new_tokens must be at least 2: the first one belongs to the prompt's time", code="I308")
    model = loading.model_of(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    models = {"model": model}
    if baseline is not None:
        models["baseline"] = loading.baseline_of(baseline, model, trust_remote_code=trust_remote_code)
    for what, candidate in models.items():
        running.check_model(candidate, what)
        needed = max(new_tokens, _profile.positions(new_tokens)) if profile else new_tokens
        _check_fits(candidate, what, prompt_tokens + needed)
    loading.check_generation("bench", names_of(bench), model, options)
    devices = {what: running.device_of(candidate) for what, candidate in models.items()}
    if len({str(device) for device in devices.values()}) > 1:
        places = " and ".join(f"the {what} on {device}" for what, device in devices.items())
        raise InputError(
            f"{places}: move both to one device, or their speeds say nothing about each other", code="I608"
        )
    place = devices["model"]
    vocabulary = min(_vocabulary(candidate) for candidate in models.values())
    generator = torch.Generator().manual_seed(_SEED)
    rows: list[BenchRow] = []
    splits: list[TimeSplit] = []
    layers: list[LayerTime] = []
    spans: list[Span] = []
    total = len(batches) * len(models) * (repeats + 1)
    done = 0
    with (
        running.evaluating(*models.values()),
        running.plain_attention(),
        running.steps(progress, "measuring", "run") as advance,
    ):
        for size in batches:
            prompt = torch.randint(vocabulary, (size, prompt_tokens), generator=generator).to(place)
            times: dict[str, list[tuple[float, float, int | None]]] = {what: [] for what in models}
            for repeat in range(repeats + 1):
                for what, candidate in models.items():
                    measured = _guarded(candidate, prompt, new_tokens, place, options)
                    if repeat:
                        times[what].append(measured)
                    done += 1
                    advance(done, total)
            for what, runs in times.items():
                peaks = [peak for _, _, peak in runs if peak is not None]
                rows.append(
                    BenchRow(
                        model=what,
                        batch=size,
                        prefill=Speed(tuple(size * prompt_tokens / first for first, _, _ in runs)),
                        decode=Speed(tuple(size * (new_tokens - 1) / rest for _, rest, _ in runs)),
                        peak_bytes=max(peaks) if peaks else None,
                    )
                )
        if profile:
            prompt = torch.randint(vocabulary, (batches[0], prompt_tokens), generator=generator).to(place)
            for what, candidate in models.items():
                split, timeline = _profile.profiled(candidate, what, prompt, new_tokens)
                splits.append(split)
                spans.extend(timeline)
                layers.extend(_profile.layers(candidate, what, prompt, new_tokens))
    return BenchReport(
        device=str(place),
        device_name=_name_of(place),
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repeats=repeats,
        rows=tuple(rows),
        splits=tuple(splits),
        layers=tuple(layers),
        spans=tuple(spans),
        advice=advice(model),
    )


def _run(
    model: Any, prompt: torch.Tensor, new_tokens: int, device: torch.device, options: dict[str, Any]
) -> tuple[float, float, int | None]:
    """Seconds until the first new token, seconds for the others, and bytes beyond what was allocated before."""
    torch = _torch.require()
    clock = Clock(device)
    arguments = {
        "do_sample": False,
        "attention_mask": torch.ones_like(prompt),
        "pad_token_id": 0,
        "max_new_tokens": new_tokens,
        # Not to stop early: the processor that sees to it costs both models the same.
        "min_new_tokens": new_tokens,
        **options,
        "logits_processor": [*options.get("logits_processor", ()), clock],
    }
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if gpu else 0
    clock.start()
    model.generate(prompt, **arguments)
    marks = clock.seconds()
    if len(marks) != new_tokens:
        raise InputError(
            f"generate computed logits {len(marks)} times for {new_tokens} tokens (leave out options such as beams)",
            code="I609",
        )
    peak = torch.cuda.max_memory_allocated(device) - before if gpu else None
    return marks[0], marks[-1] - marks[0], peak


def _guarded(
    model: Any, prompt: torch.Tensor, new_tokens: int, device: torch.device, options: dict[str, Any]
) -> tuple[float, float, int | None]:
    torch = _torch.require()
    try:
        return _run(model, prompt, new_tokens, device, options)
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceError(
            f"the GPU's memory does not suffice at batch {prompt.shape[0]} (ask for smaller batches or fewer tokens, "
            f"or measure without the baseline): {error}",
            code="D201",
        ) from None


def _check_fits(model: Any, what: str, tokens: int) -> None:
    if not callable(getattr(model, "generate", None)):
        raise InputError(f"the {what} has no generate() (pass a causal language model of transformers)", code="I503")
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if limit is not None and tokens > limit:
        raise InputError(f"{tokens} tokens are more than the {what}'s {limit} positions (use fewer)", code="I324")


def _vocabulary(model: Any) -> int:
    config = model.config
    if hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    return int(config.vocab_size)


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        name: str = _torch.require().cuda.get_device_name(device)
        return name
    return f"{platform.machine()}, {_torch.require().get_num_threads()} threads"
