"""Walks over columns, captured once as a CUDA graph for all matrices of one shape.

A walk is hundreds of small kernels, and for a small matrix Python takes longer to launch them than a GPU takes to run
them. A graph of the same kernels is one launch.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from .factor import Block

Walk = Callable[[torch.Tensor, "tuple[Block, ...]", torch.Tensor, torch.Tensor], torch.Tensor]
"""Symbols by weights, blocks of the feedback, the cost of an error in each column, and prices."""

# Weights beyond which a kernel runs longer than it takes to launch it.
_MOST_WEIGHTS = 1 << 21
# Captures on a device share a stream.
_captures = threading.Lock()
# Bytes that graphs read from, those of one walk and of all of an encoding: weights, and shares of errors.
_MOST_BYTES, _MOST_BYTES_TOGETHER = 1 << 27, 1 << 30


@dataclass(frozen=True)
class _Captured:
    """A graph, with the tensors that it reads and the one that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    output: torch.Tensor


class Replays:
    """The walks of one encoding, which asks for one after the other. Graphs keep their memory until :meth:`clear`."""

    def __init__(self) -> None:
        self._known: dict[object, _Captured] = {}
        # By stream, the memory that its graphs share: they never run at the same time.
        self._pools: dict[object, Any] = {}
        self._room = _MOST_BYTES_TOGETHER
        # Generators of older versions of torch cannot be kept out of a capture that fails.
        self._works = hasattr(torch.Generator, "clone_state")

    @property
    def graphs(self) -> int:
        """The number of walks that were captured."""
        return len(self._known)

    def clear(self) -> None:
        """Gives all memory back, and launches walks from now on."""
        self._works = False
        self._known.clear()
        self._pools.clear()

    def __call__(
        self,
        walk: Walk,
        how: object,
        x: torch.Tensor,
        blocks: tuple[Block, ...],
        column_weights: torch.Tensor,
        prices: torch.Tensor,
    ) -> torch.Tensor:
        """Symbols that ``walk`` chooses, by a graph where that is faster and can be captured.

        :param how: whatever else the walk depends on.
        """
        size = x.nbytes + sum(block.feed.nbytes for block in blocks)
        small = x.numel() <= _MOST_WEIGHTS and size <= _MOST_BYTES
        if not (self._works and blocks and x.device.type == "cuda" and small):
            return walk(x, blocks, column_weights, prices)
        places = tuple((block.begin, block.end) for block in blocks)
        with torch.cuda.device(x.device):
            # A graph's tensors are written in the order of one stream.
            stream = (x.device, torch.cuda.current_stream().cuda_stream)
            key = (how, tuple(x.shape), places, stream)
            known = self._known.get(key)
            if known is None and size > self._room:
                return walk(x, blocks, column_weights, prices)
            inputs = (x, column_weights, prices, *(block.passed(0, block.end - block.begin) for block in blocks))
            if known is None:
                if stream not in self._pools:
                    self._pools[stream] = torch.cuda.graph_pool_handle()
                known = _captured(walk, inputs, blocks, self._pools[stream])
                if known is None:
                    # Whatever it was, the next capture would meet it too.
                    self.clear()
                    return walk(x, blocks, column_weights, prices)
                self._known[key] = known
                self._room -= size
            for place, one in zip(known.inputs, inputs, strict=True):
                place.copy_(one)
            known.graph.replay()
            return known.output.clone()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures on a device: libraries keep memory for each stream that they have seen."""
    return torch.cuda.Stream(device)


def _captured(walk: Walk, inputs: tuple[torch.Tensor, ...], blocks: tuple[Block, ...], pool: Any) -> _Captured | None:
    """The graph of a walk; ``None`` where memory or another thread's work keeps it from being captured."""
    own = tuple(one.clone(memory_format=torch.contiguous_format) for one in inputs)
    x, column_weights, prices, *shares = own
    fed = tuple(replace(block, feed=one, factors=None) for block, one in zip(blocks, shares, strict=True))
    before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    with _captures:
        stream = _side_stream(x.device)
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            # Libraries allocate and kernels are loaded in the first run, which a capture does not allow.
            walk(x, fed, column_weights, prices)
            stream.synchronize()
            try:
                with _no_collection(), _own_random_numbers(before.device_index):
                    output = _capture(graph, pool, lambda: walk(x, fed, column_weights, prices))
            except RuntimeError:
                return None
        # Before the next capture begins: a stream that waits for one that is captured becomes part of that.
        before.wait_stream(stream)
    return _Captured(graph, own, output)


def _capture(graph: torch.cuda.CUDAGraph, pool: Any, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Captures what ``run`` launches, and returns the tensor that a replay writes."""
    # Other threads may launch and allocate meanwhile, but not draw from the default generator, nor seed it. If one
    # waits for the whole device, the capture fails.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        output = run()
    except BaseException:
        with suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return output


@contextmanager
def _own_random_numbers(device: int) -> Iterator[None]:
    """Gives a capture a state of random numbers of its own. One that fails leaves it as it is during a capture, and
    nothing could draw from it any more. Graphs of others that draw stay with the state that they know."""
    generator = torch.cuda.default_generators[device]
    known = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(known)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected: a graph among it would be destroyed during the capture of another."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
