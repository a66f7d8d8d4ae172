"""Work of many small steps on a GPU, recorded once and replayed: launching each step by itself takes longer than it
does."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

# Recordings that are kept, of one thread: their memory is theirs until they go.
_KEPT = 4
_here = threading.local()


class _Recording:
    """A function of tensors of certain shapes, with memory of its own for what goes in and out."""

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]], given: tuple[torch.Tensor, ...]) -> None:
        self._given = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in given)
        self._fill(given)
        # Once without recording, as libraries set themselves up then; not in the stream of what is recorded.
        aside = torch.cuda.Stream(given[0].device)
        aside.wait_stream(torch.cuda.current_stream(given[0].device))
        with torch.cuda.stream(aside):
            function(*self._given)
        torch.cuda.current_stream(given[0].device).wait_stream(aside)
        self._fill(given)
        self._graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._results = function(*self._given)

    def _fill(self, given: tuple[torch.Tensor, ...]) -> None:
        for buffer, tensor in zip(self._given, given, strict=True):
            buffer.copy_(tensor)

    def __call__(self, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._fill(given)
        self._graph.replay()
        return self._results


def replayed(function: Callable[..., tuple[torch.Tensor, ...]], *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``function(*given)``; on a GPU from a recording, whose results are valid until the next call. It must depend on
    nothing else than these tensors, and wait for nothing."""
    device = given[0].device
    if device.type != "cuda":
        return function(*given)
    recordings: OrderedDict[Any, _Recording] = _here.__dict__.setdefault("kept", OrderedDict())
    key = (function, device, *(tuple(tensor.shape) for tensor in given))
    recording = recordings.pop(key, None)
    if recording is None:
        while len(recordings) >= _KEPT:
            recordings.popitem(last=False)
        with torch.cuda.device(device):
            recording = _Recording(function, given)
    recordings[key] = recording
    with torch.cuda.device(device):
        return recording(given)


def forget() -> None:
    """Gives the memory of this thread's recordings back."""
    _here.__dict__.pop("kept", None)
