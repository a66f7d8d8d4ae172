"""A profile of the time that a model takes to write tokens."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from .._gpu import torch as _torch
from .._models import running
from .reports import LayerTime, Span, TimeSplit

if TYPE_CHECKING:
    import torch

# Tokens that are written under the profiler, and with hooks: enough for a median, few enough for their overhead.
_TOKENS = 8
# Names of kernels and of torch's operators. Matrix products: cuBLAS, CUTLASS, Triton's templates; aten on the CPU.
_DECODE = re.compile(r"wcodec|nvcomp|zstd|huffman", re.IGNORECASE)
# Attention has products within, too, and CUTLASS among its template arguments; but none with weights.
_ATTENTION = re.compile(r"flash|fmha", re.IGNORECASE)
_PRODUCT = re.compile(
    r"gemm|gemv|cutlass|cublas|nvjet|splitk|xmma|dot_kernel|triton_tem|"
    r"^aten::(mm|addmm|bmm|baddbmm|addmv|mv|matmul|linear|mkldnn_linear|_grouped_mm|_weight_int8pack_mm)$",
    re.IGNORECASE,
)
_COPY = re.compile(r"memcpy htod|memcpy h2d", re.IGNORECASE)
# Steps before anything is measured: the prompt, and two tokens.
_PREPARED = 3
# Tokens that are written each by itself, of which one is shown.
_ALONE = 3
KINDS = ("copy", "decode", "product", "other")
# Marks for the profiler of decoding by the CPU, and of the tokens that count.
_DECODING = "wcodec decodes"
_WRITING = "wcodec writes tokens"
# Kind, name, begin and end in the profiler's microseconds.
_Found = tuple[str, str, float, float]


def kind_of(name: str) -> str:
    """The purpose of a kernel, a copy or an operator.

    >>> kind_of("wcodec_rans_pair_bf16"), kind_of("nvjet_tst_64x8"), kind_of("Memcpy HtoD (Pinned -> Device)")
    ('decode', 'product', 'copy')
    >>> kind_of("aten::addmm"), kind_of("void vectorized_elementwise_kernel")
    ('product', 'other')
    >>> kind_of("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>>")
    'other'
    """
    for kind, pattern in (("copy", _COPY), ("decode", _DECODE), ("other", _ATTENTION), ("product", _PRODUCT)):
        if pattern.search(name):
            return kind
    return "other"


class _Writer:
    """Writes tokens one by one, after a prompt."""

    def __init__(self, model: Any, prompt: torch.Tensor) -> None:
        self._model = model
        self._ids = prompt
        self._cache: Any = None
        self._name = running.cache_name(model)

    def step(self) -> None:
        """The next token of each sequence."""
        options = {} if self._cache is None else {self._name: self._cache}
        output = self._model(input_ids=self._ids, use_cache=True, **options)
        self._cache = getattr(output, self._name)
        self._ids = output.logits[:, -1:].argmax(-1)


def _prepared(model: Any, prompt: torch.Tensor) -> _Writer:
    """A writer that has read the prompt and written the first two tokens, so that nothing is new to it."""
    writer = _Writer(model, prompt)
    for _ in range(_PREPARED):
        writer.step()
    return writer


def positions(new_tokens: int) -> int:
    """Tokens beyond the prompt for which :func:`profiled` and :func:`layers` run the model."""
    # The first step is the prompt's, but one more token is written before those that count.
    return _PREPARED + min(_TOKENS, new_tokens) + _ALONE


def profiled(model: Any, what: str, prompt: torch.Tensor, new_tokens: int) -> tuple[TimeSplit, list[Span]]:
    """Time per token by kinds of work, and what is done when during one more token, from torch's profiler."""
    torch = _torch.require()
    device = prompt.device
    writer = _prepared(model, prompt)
    tokens = min(_TOKENS, new_tokens)
    # Its library writes its own progress to standard error, in the middle of notebooks. It asks once, at its first use,
    # so that this stays set.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activity = torch.profiler.ProfilerActivity
    gpu = device.type == "cuda"
    activities = [activity.CPU, activity.CUDA] if gpu else [activity.CPU]
    with _decoding_on_cpu(), torch.profiler.profile(activities=activities, **_keeping(torch)) as profiler:
        # Not counted: the profiler's own start, tens of milliseconds on a GPU, falls into it.
        writer.step()
        wall = _write(writer, tokens, device)
        # By themselves, as a GPU may still be busy with one token when the next one is launched.
        alone = [_write(writer, 1, device) for _ in range(_ALONE)]
    events = profiler.events()
    cpu = torch.autograd.DeviceType.CPU
    marks = sorted(e.time_range.start for e in events if e.name == _WRITING and e.device_type == cpu)
    # The profiler may stop for its own buffers: the fastest token has the fewest such gaps.
    quietest = 1 + alone.index(min(alone))
    spans = sorted(_on_device(events) if gpu else _on_cpu(events), key=lambda span: span[2])
    sums: dict[str, float] = defaultdict(float)
    for kind, _, begin, end in spans:
        if marks[0] <= begin < marks[1]:
            sums[kind] += (end - begin) / 1e6
    parts = {kind: sums[kind] / tokens for kind in KINDS}
    last = marks[quietest + 1] if quietest < _ALONE else float("inf")
    timeline = [span for span in spans if marks[quietest] <= span[2] < last]
    first = timeline[0][2] if timeline else 0.0
    return TimeSplit(model=what, batch=prompt.shape[0], wall=wall / tokens, **parts), [
        Span(what, kind, name, (begin - first) / 1e6, (end - begin) / 1e6) for kind, name, begin, end in timeline
    ]


def _write(writer: _Writer, tokens: int, device: torch.device) -> float:
    """Writes tokens, marked for the profiler, from when the device has nothing to do until it is done; seconds."""
    running.synchronize(device)
    begin = time.perf_counter()
    with _torch.require().profiler.record_function(_WRITING):
        for _ in range(tokens):
            writer.step()
        running.synchronize(device)
    return time.perf_counter() - begin


def _keeping(torch: Any) -> dict[str, bool]:
    """Asks newer versions of torch to keep the events, about which they would warn."""
    known = inspect.signature(torch.profiler.profile).parameters
    return {"acc_events": True} if "acc_events" in known else {}


@contextmanager
def _decoding_on_cpu() -> Iterator[None]:
    """Marks each decoding of weights by the CPU, which is no operator of torch that its profiler would see."""
    stores = sys.modules.get("wcodec.nn._weights.store")
    if stores is None:
        yield
        return
    torch = _torch.require()
    store, plain = stores.Store, stores.Store.rows

    def marked(*arguments: Any) -> Any:
        with torch.profiler.record_function(_DECODING):
            return plain(*arguments)

    store.rows = marked
    try:
        yield
    finally:
        store.rows = plain


def _on_cpu(events: Any) -> Iterator[_Found]:
    """Operators, each without the operators that it calls."""
    for event in events:
        if event.cpu_parent is None:
            yield from _without_inner(event)


def _without_inner(event: Any) -> Iterator[_Found]:
    at, end = event.time_range.start, event.time_range.end
    if event.name == _DECODING:
        yield "decode", event.name, at, end
        return
    # wcodec's own operators do nothing but decode, which is marked by itself, and call others. Ranges that somebody
    # marked do nothing themselves.
    is_operator = not (event.name.startswith("wcodec::") or _is_mark(event))
    kind = kind_of(event.name)
    for inner in sorted(event.cpu_children, key=lambda inner: inner.time_range.start):
        if is_operator and inner.time_range.start > at:
            yield kind, event.name, at, inner.time_range.start
        yield from _without_inner(inner)
        at = max(at, inner.time_range.end)
    if is_operator and end > at:
        yield kind, event.name, at, end


def _is_mark(event: Any) -> bool:
    """Whether an event is a range that somebody marked. Older versions of torch do not say so: ours have names."""
    return event.name in (_DECODING, _WRITING) or getattr(event, "is_user_annotation", False)


def _on_device(events: Any) -> Iterator[_Found]:
    """Kernels, copies and fills on the GPU; and decoding by the CPU, for layers of the model that are there."""
    on_device = _torch.require().autograd.DeviceType.CUDA
    for event in events:
        # Ranges that somebody marked appear on the device too, and would count their kernels twice.
        if event.device_type == on_device and not _is_mark(event):
            yield kind_of(event.name), event.name, event.time_range.start, event.time_range.end
        elif event.device_type != on_device and event.name == _DECODING:
            yield "decode", event.name, event.time_range.start, event.time_range.end


def layers(model: Any, what: str, prompt: torch.Tensor, new_tokens: int) -> list[LayerTime]:
    """Time of each module that has no modules inside, and of each block of a stack of them, in the model's order.

    On a GPU it is the time between events around the module, in which the GPU may also wait for the CPU.
    """
    torch = _torch.require()
    device = prompt.device
    gpu = device.type == "cuda"
    writer = _prepared(model, prompt)
    open_marks: dict[str, list[Any]] = defaultdict(list)
    spans: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def mark() -> Any:
        if not gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    handles = []
    modules = _measured_modules(model)
    # The model itself, for the shares. Its name is empty.
    for name, module in [("", model), *modules]:
        handles.append(module.register_forward_pre_hook(lambda *_, n=name: open_marks[n].append(mark()), prepend=True))
        handles.append(module.register_forward_hook(lambda *_, n=name: spans[n].append((open_marks[n].pop(), mark()))))
    try:
        for _ in range(min(_TOKENS, new_tokens)):
            writer.step()
        running.synchronize(device)
    finally:
        for handle in handles:
            handle.remove()

    def seconds(pair: tuple[Any, Any]) -> float:
        begin, end = pair
        return float(begin.elapsed_time(end)) / 1e3 if gpu else end - begin

    took = {name: [seconds(pair) for pair in pairs] for name, pairs in spans.items()}
    total = sum(took[""])
    return [
        LayerTime(
            model=what,
            batch=prompt.shape[0],
            name=name,
            kind=type(module).__name__,
            calls=len(took[name]),
            seconds=median(took[name]),
            share=sum(took[name]) / total,
        )
        for name, module in modules
        if took.get(name)
    ]


def _measured_modules(model: Any) -> list[tuple[str, Any]]:
    """The modules to measure, each once."""
    torch = _torch.require()
    blocks = {id(m) for stack in model.modules() if isinstance(stack, torch.nn.ModuleList) for m in stack}
    return [
        (name, module)
        for name, module in model.named_modules()
        if name
        and (id(module) in blocks or next(module.children(), None) is None)
        and not isinstance(module, torch.nn.ModuleList)
    ]
