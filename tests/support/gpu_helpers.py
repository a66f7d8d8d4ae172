"""Helpers of the tests that need a GPU: whether there is one, coders that can run there, comparing bit for bit, threads
that are watched.

A test module that imports this is skipped without a GPU, with the reason; with WCODEC_REQUIRE_GPU=1 its tests fail
instead. It takes the fixtures that it wants: ``gpu, coder = gpu_helpers.gpu, gpu_helpers.coder``.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import wcodec
from wcodec import _native
from wcodec._gpu import devices

REQUIRED = os.environ.get("WCODEC_REQUIRE_GPU") == "1"

try:
    import torch
except ImportError:
    if REQUIRED:
        raise
    pytest.skip("torch is not installed", allow_module_level=True)

CODERS = ("rans", "huffman", "zstd", "raw")


def _no_gpu() -> str | None:
    try:
        devices.torch_device(devices.CURRENT)
    except wcodec.DeviceError as error:
        return str(error)
    return None


def _no_nvcomp() -> str | None:
    try:
        _native.nvcomp_info(None, devices.nvcomp_folders())
    except wcodec.DeviceError as error:
        return str(error)
    return None


NO_GPU, NO_NVCOMP = _no_gpu(), _no_nvcomp()
if NO_GPU and not REQUIRED:
    pytest.skip(NO_GPU, allow_module_level=True)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """Every test of the module needs a GPU."""
    if NO_GPU:
        pytest.fail(NO_GPU)
    yield
    # An error of a kernel shows in the test that launched it.
    torch.cuda.synchronize()


def need_nvcomp() -> None:
    """Ends a test that decodes zstd where nvCOMP is missing."""
    if NO_NVCOMP:
        (pytest.fail if REQUIRED else pytest.skip)(NO_NVCOMP)


@pytest.fixture(params=CODERS)
def coder(request: pytest.FixtureRequest) -> str:
    """Each coder, zstd where nvCOMP is there."""
    if request.param == "zstd":
        need_nvcomp()
    return request.param


def same(gpu: Any, cpu: Any) -> bool:
    """Equal bit for bit, and decoded on the GPU."""
    there = gpu.cpu()
    bits = (there.contiguous().reshape(-1).view(torch.uint8), cpu.contiguous().reshape(-1).view(torch.uint8))
    return gpu.is_cuda and there.dtype == cpu.dtype and there.shape == cpu.shape and torch.equal(*bits)


def graph_computes(layer: Any, plain: Any, x: Any) -> None:
    """A CUDA graph that a layer was recorded in computes what an ordinary layer does, bit for bit."""
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        layer(x)
        with torch.cuda.graph(graph):
            out = layer(x)
        out.fill_(7.0)
        graph.replay()
        assert torch.equal(out, plain(x))


@pytest.fixture
def compiler() -> Iterator[None]:
    """Requirements of torch.compile for a GPU; without them, a test is skipped."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("torch.compile needs triton")
    if not any(shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang")):
        pytest.skip("torch.compile needs a C compiler")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def seed() -> int:
    """A seed that nobody has used before, or that of WCODEC_SEED. Printed, which shows where a test fails."""
    given = os.environ.get("WCODEC_SEED")
    found = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"WCODEC_SEED={found}")
    return found


def side_by_side(functions: Sequence[Callable[[], Any]], limit: float = 120) -> list[Any]:
    """Results of the functions, each run by a thread of its own, all begun at once. Raises what one of them raised.

    :param limit: seconds; who takes longer is stuck, and the test fails with the stacks of all threads.
    """
    begin = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)
    raised: list[BaseException] = []

    def run(place: int, function: Callable[[], Any]) -> None:
        try:
            begin.wait(limit)
            results[place] = function()
        except BaseException as error:
            raised.append(error)

    # Daemons, so that those that are stuck do not keep the process.
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        pytest.fail(f"{sum(t.is_alive() for t in threads)} threads are stuck; their stacks are above")
    if raised:
        raise raised[0]
    return results
