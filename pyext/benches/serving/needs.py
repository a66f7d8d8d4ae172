"""The packages and the GPU that engines need, and how to get what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

FIRST, BEYOND = (0, 32), (0, 34)
"""Versions of vLLM that the plug-in is for."""
WITHOUT_NETWORK = (
    "without a network: `python pyext/benches/serving pack OUT --wheel WCODEC.whl` on another machine makes two "
    "archives; unpack both into one folder here, and put that on PYTHONPATH"
)


def number(version: str) -> tuple[int, ...]:
    """The first two numbers of a version.

    >>> number("0.33.1+cu130"), number("2.11.0"), number("dev")
    ((0, 33), (2, 11), ())
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return () if match is None else (int(match[1]), int(match[2]))


def versions() -> dict[str, str]:
    """Versions of the packages that decide about speeds, as far as they are installed."""
    out = {}
    for name in ("vllm", "wcodec", "torch", "transformers", "triton"):
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def lacking(found: dict[str, str], cuda: str | None, gpus: int, ranks: int) -> list[str]:
    """Everything that is missing, each with the way to get it.

    :param found: versions of the packages that are installed.
    :param cuda: the version of CUDA that torch was built for.
    :param gpus: the number of GPUs that torch sees, of which ``ranks`` are needed.
    """
    out = []
    if "torch" not in found:
        out.append("torch is not installed (pip install 'torch>=2.11', of a build for CUDA)")
    elif number(found["torch"]) < (2, 11) or cuda is None:
        build = "no build for CUDA" if cuda is None else f"built for CUDA {cuda}"
        out.append(f"torch {found['torch']}, {build}: 2.11 or later for CUDA is needed (pip install 'torch>=2.11')")
    elif gpus < ranks:
        many = "no GPU" if not gpus else f"{gpus} GPU" + "s" * (gpus > 1)
        out.append(f"torch sees {many}, and {ranks} are needed (nvidia-smi says what the driver sees; see --ranks)")
    if "vllm" not in found:
        out.append(f"vLLM is not installed (pip install 'vllm>=0.32,<0.34'; {WITHOUT_NETWORK})")
    elif not FIRST <= number(found["vllm"]) < BEYOND:
        out.append(f"vLLM {found['vllm']} is not one that the plug-in is for (pip install 'vllm>=0.32,<0.34')")
    if "transformers" not in found:
        out.append("transformers is not installed (pip install 'transformers>=5')")
    if "wcodec" not in found:
        out.append("wcodec is not installed (make wheel, then pip install dist/wcodec-*.whl)")
    return out


def here(ranks: int) -> list[str]:
    """Everything that is missing on this machine."""
    found, cuda, gpus = versions(), None, 0
    if importlib.util.find_spec("torch") is not None:
        import torch

        cuda = torch.version.cuda
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return lacking(found, cuda, gpus, ranks)
