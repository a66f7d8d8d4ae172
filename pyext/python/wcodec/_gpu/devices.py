"""Which GPUs and libraries of NVIDIA's there are, what is said of devices, and what is missing."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

from .. import _native
from .._core.errors import DeviceError, InputError
from .._core.options import shown
from . import torch as _torch

if TYPE_CHECKING:
    import torch

# "cuda" without a number: torch's current device.
CURRENT = -1


def parse(device: Any) -> int | None:
    """The number of a GPU, ``CURRENT`` for the current one, ``None`` for the CPU.

    >>> parse("cpu"), parse("cuda"), parse("cuda:1")
    (None, -1, 1)
    """
    text = str(device)
    match = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", text)
    if match:
        return CURRENT if match[1] is None else int(match[1])
    if re.fullmatch(r"cpu(:0)?", text):
        return None
    raise InputError(f"cannot decode to device {shown(text)} (use 'cpu', 'cuda' or 'cuda:N')", code="I320")


def ordinal(number: int) -> int:
    """The number of a GPU that can be used, without torch; raises what is missing."""
    devices = json.loads(_native.gpu_devices())
    index = max(number, 0)
    if index >= len(devices):
        raise _no_such_gpu(index, len(devices))
    problem = devices[index]["problem"]
    if problem:
        raise DeviceError(problem, code="D105")
    return index


def torch_device(number: int) -> torch.device:
    """torch's device of that number; raises what is missing."""
    _native.gpu_available()
    torch = _torch.require()
    problem = torch_problem(torch)
    if problem:
        raise DeviceError(problem, code="D301")
    count = torch.cuda.device_count()
    if number >= count:
        raise _no_such_gpu(number, count)
    return torch.device("cuda", torch.cuda.current_device() if number == CURRENT else number)


def place(device: Any) -> torch.device:
    """torch's device that is said; raises what is missing."""
    number = parse(device)
    return _torch.require().device("cpu") if number is None else torch_device(number)


def _no_such_gpu(number: int, count: int) -> InputError:
    return InputError(
        f"there is no GPU {number} (the last one is GPU {count - 1}; CUDA_VISIBLE_DEVICES may hide others)", code="I320"
    )


def torch_problem(torch: Any) -> str | None:
    """Why torch cannot use the GPU that is there, and what to do; ``None`` if it can."""
    with warnings.catch_warnings():
        # It warns of a driver that is too old; the text below says so with what to do.
        warnings.simplefilter("ignore")
        if torch.cuda.is_available() and not torch.version.hip:
            return None
    major, minor = _native.gpu_driver()
    name = json.loads(_native.gpu_devices())[0]["name"]
    index = next((w for v, w in (((13, 0), "cu130"), ((12, 8), "cu128"), ((12, 6), "cu126")) if (major, minor) >= v),
                 "cu124")  # fmt: skip
    install = f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{index}"
    built = torch.version.cuda
    if built is None:
        return f"there is a GPU ({name}), but torch {torch.__version__} is built without CUDA ({install})"
    if int(built.split(".")[0]) > major:
        return (
            f"there is a GPU ({name}), but torch {torch.__version__} is built for CUDA {built}, and the driver "
            f"implements {major}.{minor} (update the driver, or {install})"
        )
    return (
        f"there is a GPU ({name}), but torch {torch.__version__} cannot use it (see what "
        "`python -c 'import torch; torch.cuda.init()'` says)"
    )


def nvcomp_folders() -> list[str]:
    """Folders of Python's path that have packages of NVIDIA, where nvCOMP may be one."""
    return [p for p in sys.path if os.path.isabs(p) and os.path.isdir(os.path.join(p, "nvidia"))]
