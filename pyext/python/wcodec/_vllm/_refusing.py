"""The method ``wcodec`` in a vLLM that the plug-in is not for: it says so when a compressed model is loaded."""

from __future__ import annotations

from typing import Any

from .._errors import WcodecError


def register_refusal(problem: WcodecError) -> None:
    """Has vLLM raise the problem for compressed models. A vLLM without these means says by itself that it does not know
    the method."""
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    def fail(*_: Any, **__: Any) -> Any:
        raise problem

    # Of whatever methods that version asks for, all fail.
    members = {name: classmethod(fail) for name in dir(QuantizationConfig) if not name.startswith("_")}
    made = type("WCodecConfig", (QuantizationConfig,), {**members, "__module__": __name__})
    register_quantization_config("wcodec")(made)
