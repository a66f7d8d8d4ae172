"""Adapters of vLLM (LoRA) on compressed layers.

vLLM puts an adapter's layer in the place of a linear layer or an embedding, calls the method of that one, and adds to
the result. Linear layers, embeddings and heads need nothing for that. Routed experts have no result between their two
matrices that vLLM could add to: its own kernels do both, and read the weights as they are.
"""

from __future__ import annotations

from typing import Any

import torch

from ..._core.errors import UnsupportedError


def refuse_experts(model: torch.nn.Module, config: Any, compressed: set[int]) -> None:
    """Raises where vLLM is going to put adapters on compressed experts, which it does unless it is told what adapters
    are for.

    :param config: vLLM's of adapters, or None.
    :param compressed: layers of experts that are compressed, by ``id``.
    :raises UnsupportedError: if there is such a layer.
    """
    if config is None or not compressed:
        return
    from vllm.lora.utils import is_in_target_modules, process_packed_modules_mapping
    from vllm.model_executor.layers.fused_moe import MoERunner

    packed = process_packed_modules_mapping(model)
    for name, module in model.named_modules():
        if not isinstance(module, MoERunner) or not any(id(m) in compressed for m in module.modules()):
            continue
        if is_in_target_modules(name, config.target_modules, packed):
            raise UnsupportedError(
                f"'{name}': vLLM adds adapters to no compressed experts (--lora-target-modules q_proj k_proj v_proj "
                "o_proj, or lora_target_modules=[...], names layers that adapters are for; or compress the model with "
                "exclude='*experts*')",
                code="U506",
            )
