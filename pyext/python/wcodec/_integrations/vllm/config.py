"""The quantization method ``wcodec``, as vLLM asks for it."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from .methods import Embedding, Experts, Linear

METHOD = "wcodec"


class WCodecConfig(QuantizationConfig):  # type: ignore[misc]
    """A folder's record of its compressed weights. The file says which layers these are, when it is read.

    :param record: ``quantization_config`` of ``config.json``.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__()
        self.record = record

    def __repr__(self) -> str:
        return f"WCodecConfig({self.record})"

    def get_name(self) -> str:
        """``wcodec``."""
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Dtypes that layers compute in."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Compute capability of the oldest GPUs that decode."""
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: all is in ``config.json``."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WCodecConfig:
        """The config from the record in ``config.json``."""
        return cls(dict(config))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """The method that holds a layer's weight. Layers found uncompressed get vLLM's own method after loading."""
        from vllm.model_executor.layers.fused_moe import RoutedExperts

        if isinstance(layer, LinearBase):
            return Linear(prefix)
        if isinstance(layer, VocabParallelEmbedding):
            return Embedding(prefix, looked_up=not isinstance(layer, ParallelLMHead))
        if isinstance(layer, RoutedExperts):
            return Experts(layer.moe_config, prefix)
        return None


def register() -> None:
    """Makes the method known."""
    register_quantization_config(METHOD)(WCodecConfig)
