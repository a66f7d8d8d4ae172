"""What the tests that need a GPU share: whether there is one, coders that can run there, comparing bit for bit.

A test module that imports this is skipped without a GPU, with the reason; with WCODEC_REQUIRE_GPU=1 its tests fail
instead. It takes the fixtures that it wants: ``gpu, coder = gpu_helpers.gpu, gpu_helpers.coder``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import wcodec
from wcodec import _gpu, _native

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
        _gpu.torch_device(_gpu.CURRENT)
    except wcodec.DeviceError as error:
        return str(error)
    return None


def _no_nvcomp() -> str | None:
    try:
        _native.nvcomp_info(None, _gpu.nvcomp_folders())
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


@pytest.fixture(params=CODERS)
def coder(request: pytest.FixtureRequest) -> str:
    """Each coder, zstd where nvCOMP is there."""
    if request.param == "zstd" and NO_NVCOMP:
        (pytest.fail if REQUIRED else pytest.skip)(NO_NVCOMP)
    return request.param


def same(gpu: Any, cpu: Any) -> bool:
    """Equal bit for bit, and decoded on the GPU."""
    there = gpu.cpu()
    bits = (there.contiguous().reshape(-1).view(torch.uint8), cpu.contiguous().reshape(-1).view(torch.uint8))
    return gpu.is_cuda and there.dtype == cpu.dtype and there.shape == cpu.shape and torch.equal(*bits)
