"""GPU time of an engine's steps, by torch's profiler: tokens per second depend on the CPU, too, and this does not.

A marker, a kernel that nothing else uses, is launched in front of each step of the model's runner, which says how many
tokens the step has. On the GPU a step is all that begins between two markers, and its time is the time in which at
least one kernel runs: those that overlap, as programmatic launches do, count once. Copies from and to the host are left
out. With several ranks this is the first one's time, in which it also waits for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

STEPS = 32
"""Decode steps that are looked at, for each number of sequences."""
PREFILLS = 4
MARKER = "spin_kernel"
OWN = "wcodec_"
"""Kernels of wcodec have names that begin with this."""
HOST_COPIES = ("Memcpy HtoD", "Memcpy DtoH")

Interval = tuple[int, int]
Event = tuple[str, int, int]
"""A name, and the first and the last nanosecond."""


class NoTimes(RuntimeError):
    """Why there are no times of the GPU."""


class Step(NamedTuple):
    """A step of the runner, as the GPU saw it; times in nanoseconds."""

    tokens: int
    busy: int
    """Some kernel ran."""
    own: int
    """A kernel of wcodec ran."""
    own_sum: int
    """The times of wcodec's kernels added up, whether they overlap or not."""
    kernels: int
    span: int
    """From marker to marker: the GPU waited for the CPU in what it is longer than ``busy``."""


def covered(intervals: list[Interval]) -> int:
    """The time that intervals cover together.

    >>> covered([(0, 10), (5, 12), (20, 21), (6, 7)])
    13
    """
    total, reached = 0, None
    for begin, end in sorted(intervals):
        if reached is None or begin > reached:
            reached = begin
        if end > reached:
            total, reached = total + end - reached, end
    return total


def steps_of(events: list[Event], tokens: list[int]) -> list[Step]:
    """The steps among the events of a GPU. The last one is left out: there is no marker behind it.

    :param tokens: of each step, in the order in which their markers were launched.
    :raises NoTimes: if the profiler saw other markers than those that were launched.
    """
    events = sorted(events, key=lambda event: event[1:])
    markers = [begin for name, begin, _ in events if MARKER in name]
    if len(markers) != len(tokens):
        raise NoTimes(f"torch's profiler saw {len(markers)} of {len(tokens)} steps")
    kernels = [event for event in events if MARKER not in event[0] and not event[0].startswith(HOST_COPIES)]
    out, at = [], 0
    for count, begin, end in zip(tokens, markers, markers[1:], strict=False):
        while at < len(kernels) and kernels[at][1] < begin:
            at += 1
        first = at
        while at < len(kernels) and kernels[at][1] < end:
            at += 1
        inside = kernels[first:at]
        own = [(start, stop) for name, start, stop in inside if name.startswith(OWN)]
        busy = covered([(start, stop) for _, start, stop in inside])
        own_sum = sum(stop - start for start, stop in own)
        out.append(Step(count, busy, covered(own), own_sum, len(inside), end - begin))
    return out


def summary(steps: list[Step], tokens: int, least: int = 1) -> dict[str, Any]:
    """Medians over the steps of so many tokens, in microseconds, and how far the times of steps are apart.

    :param least: kernels that each step has at least: a profiler may not see those of CUDA graphs.
    :raises NoTimes: if there is no such step, or one with fewer kernels.
    """
    found = [step for step in steps if step.tokens == tokens]
    seen = min((step.kernels for step in found), default=0)
    if seen < least:
        raise NoTimes(f"torch's profiler saw {seen} kernels of a step of {tokens} tokens, which has {least} or more")

    def middle(name: str) -> float:
        return median(getattr(step, name) for step in found) / 1e3

    busy = [step.busy / 1e3 for step in found]
    return {
        "us": median(busy), "spread": [min(busy), max(busy)], "own_us": middle("own"), "own_sum_us": middle("own_sum"),
        "span_us": middle("span"), "kernels": median(step.kernels for step in found), "steps": len(found),
    }  # fmt: skip


# Sent to each rank; the first one does it. They refer to nothing else of this module, which a rank may not find.


def begin(worker: Any) -> str | None:
    """Starts the profiler; returns why it cannot."""
    import torch
    from torch.profiler import ProfilerActivity, profile, supported_activities

    if worker.rank != 0:
        return None
    if ProfilerActivity.CUDA not in supported_activities():
        return "torch's profiler does not know this GPU (its build has no CUPTI)"
    runner = worker.model_runner
    execute, tokens = runner.execute_model, []

    def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        tokens.append(scheduled.total_num_scheduled_tokens)
        # The marker.
        torch.cuda._sleep(1)
        return execute(scheduled, *args, **kwargs)

    torch.cuda.synchronize()
    profiler = profile(activities=[ProfilerActivity.CUDA])
    profiler.start()
    runner.execute_model = execute_model
    runner._gpu_time = (profiler, tokens)
    return None


def end(worker: Any) -> tuple[list[tuple[str, int, int]], list[int]] | None:
    """Stops the profiler; the events of the GPU, and the tokens of each step."""
    import torch

    if worker.rank != 0:
        return None
    runner = worker.model_runner
    profiler, tokens = runner._gpu_time
    # The class's own is there again.
    del runner.execute_model, runner._gpu_time
    torch.cuda.synchronize()
    profiler.stop()
    events = []
    for event in profiler.profiler.kineto_results.events():
        # Earlier versions of torch do not tell it.
        kind = event.activity_type() if hasattr(event, "activity_type") else "kernel"
        is_gpu = event.device_type() == torch.autograd.DeviceType.CUDA
        if is_gpu and kind in ("kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset"):
            start = event.start_ns()
            events.append((event.name(), start, start + event.duration_ns()))
    return events, tokens


Rpc = Callable[[Any], list[Any]]


def profiled(rpc: Rpc, run: Callable[[], object]) -> list[Step]:
    """The steps that an engine takes while ``run`` is running.

    :param rpc: calls a function with each rank's worker.
    :raises NoTimes: if the profiler is not to be had.
    """
    for reason in rpc(begin):
        if reason is not None:
            raise NoTimes(reason)
    try:
        run()
    finally:
        found = rpc(end)
    return steps_of(*next(part for part in found if part is not None))


def measure(
    rpc: Rpc,
    decode: Callable[[int, int], object],
    prefill: Callable[[], object],
    sequences: tuple[int, ...],
    prefill_tokens: int,
    least: int,
    tell: Callable[..., None],
) -> None:
    """Tells the GPU time of decode steps and of a long prompt; or why there is none, and then nothing has failed.

    :param decode: runs so many sequences for so many tokens each.
    :param prefill: reads a long prompt, and takes one more step.
    :param least: kernels that a step has at least.
    """
    try:
        for count in sequences:
            steps = profiled(rpc, lambda count=count: decode(count, STEPS + 2))  # type: ignore[misc]
            tell("gpu-step", sequences=count, **summary(steps, count, least))
        steps = profiled(rpc, lambda: [prefill() for _ in range(PREFILLS)])
        tell("gpu-prefill", tokens=prefill_tokens, **summary(steps, prefill_tokens, least))
    # Whatever it is: all other figures are there.
    except Exception as error:
        tell("no-gpu-time", reason=f"{error}" if isinstance(error, NoTimes) else f"{type(error).__name__}: {error}")


# The table.

Json = dict[str, Any]


def ratio(found: Json | None, base: Json | None) -> str:
    """The time of bf16 over one of a row, as it stands beside tokens per second; nothing where one is absent."""
    return "" if found is None or base is None else f"; GPU {base['us'] / found['us']:.2f}"


def cell(found: Json | None, base: Json | None) -> str:
    """Microseconds, bf16's over them, and the part of wcodec's kernels.

    >>> cell({"us": 1330.2, "own_us": 800.0}, {"us": 1450.0, "own_us": 0.0})
    '1,330 (1.09), wcodec 800'
    """
    if found is None:
        return "-"
    own = f", wcodec {found['own_us']:,.0f}" if found["own_us"] else ""
    return f"{found['us']:,.0f}" + ("" if base is None else f" ({base['us'] / found['us']:.2f})") + own


NOTE = (
    "GPU time of a step, microseconds, medians; in parentheses bf16's over it, and then the part in which a kernel of "
    "wcodec runs. Kernels that overlap count once, and waiting for other ranks counts."
)
