"""Walks over columns, captured once as a CUDA graph for all matrices of one shape.

A walk is hundreds of small kernels, and for a small matrix Python takes longer to launch them than a GPU takes to run
them. A graph of the same kernels is one launch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .factor import Block

Walk = Callable[[torch.Tensor, "tuple[Block, ...]", torch.Tensor, torch.Tensor], torch.Tensor]
"""Symbols by weights, blocks of the feedback, the cost of an error in each column, and prices."""

# Weights beyond which a kernel runs longer than it takes to launch it, and entries of the largest block whose shares of
# errors are copied to where a graph reads them.
_MOST_WEIGHTS = 1 << 21
_MOST_SHARES = 1 << 24


@dataclass(frozen=True)
class _Captured:
    """A graph, with the tensors that it reads and the one that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    output: torch.Tensor


class Replays:
    """The walks of one encoding. Graphs keep their memory until this is dropped."""

    def __init__(self) -> None:
        self._known: dict[object, _Captured] = {}
        # An encoder asks for levels from several threads, and a graph has one set of tensors.
        self._lock = threading.Lock()

    def __call__(
        self,
        walk: Walk,
        how: object,
        x: torch.Tensor,
        blocks: tuple[Block, ...],
        column_weights: torch.Tensor,
        prices: torch.Tensor,
    ) -> torch.Tensor:
        """Symbols that ``walk`` chooses, by a graph where that is faster.

        :param how: whatever else the walk depends on.
        """
        if not blocks or x.device.type != "cuda" or x.numel() > _MOST_WEIGHTS:
            return walk(x, blocks, column_weights, prices)
        if max(block.feed.numel() for block in blocks) > _MOST_SHARES:
            return walk(x, blocks, column_weights, prices)
        shares = [block.passed(0, block.end - block.begin) for block in blocks]
        inputs = (x, column_weights, prices, *shares)
        places = tuple((block.begin, block.end) for block in blocks)
        # Two streams would write to a graph's tensors at once.
        key = (how, tuple(x.shape), places, x.device, torch.cuda.current_stream(x.device).cuda_stream)
        with self._lock, torch.cuda.device(x.device):
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = _captured(walk, inputs, blocks)
            for place, one in zip(known.inputs, inputs, strict=True):
                place.copy_(one)
            known.graph.replay()
            return known.output.clone()


def _captured(walk: Walk, inputs: tuple[torch.Tensor, ...], blocks: tuple[Block, ...]) -> _Captured:
    """The graph of a walk."""
    own = tuple(one.clone(memory_format=torch.contiguous_format) for one in inputs)
    x, column_weights, prices, *shares = own
    fed = tuple(replace(block, feed=one, factors=None) for block, one in zip(blocks, shares, strict=True))
    stream, graph = torch.cuda.Stream(x.device), torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream(x.device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        # Libraries allocate and kernels are loaded in the first run, which a capture does not allow.
        walk(x, fed, column_weights, prices)
        stream.synchronize()
        # Other threads go on meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            output = walk(x, fed, column_weights, prices)
        finally:
            graph.capture_end()
    before.wait_stream(stream)
    return _Captured(graph, own, output)
