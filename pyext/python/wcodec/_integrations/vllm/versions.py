"""Versions of vLLM that the plug-in is for. Another one is refused when a compressed model is loaded."""

from __future__ import annotations

import re
from typing import Any

from ..._core.errors import UnsupportedError, WcodecError

# The first that it is for, and the first that it is not for: what it implements changes between such versions.
FIRST, BEYOND = (0, 32), (0, 34)


def refused(version: str) -> UnsupportedError | None:
    """Why a version of vLLM is refused; nothing if it is not.

    >>> refused("0.32.0"), refused("0.33.1+cu130")
    (None, None)
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and FIRST <= (int(match[1]), int(match[2])) < BEYOND:
        return None
    last = f"{BEYOND[0]}.{BEYOND[1] - 1}"
    return UnsupportedError(
        f"vLLM {version}: compressed models run with vLLM {FIRST[0]}.{FIRST[1]} to {last} "
        f"(pip install 'vllm>={FIRST[0]}.{FIRST[1]},<{BEYOND[0]}.{BEYOND[1]}', or another version of wcodec)",
        code="U205",
    )


def register_refusal(problem: WcodecError) -> None:
    """Has vLLM raise the problem for compressed models. A vLLM without these means says by itself that it does not know
    the method."""
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    def fail(*_: Any, **__: Any) -> Any:
        raise problem

    # All methods fail, whichever of them that version of vLLM calls.
    members = {name: classmethod(fail) for name in dir(QuantizationConfig) if not name.startswith("_")}
    made = type("WCodecConfig", (QuantizationConfig,), {**members, "__module__": __name__})
    register_quantization_config("wcodec")(made)
