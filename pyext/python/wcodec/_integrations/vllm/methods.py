"""Methods by which vLLM's layers hold compressed weights: placeholders during loading, a rank's parts from then on."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.utils import set_weight_attrs

from ..._core.errors import UnsupportedError
from . import ops, parts
from .deferred import Placeholder, virtual
from .experts import RankExperts
from .rank import Rank


class _Weight:
    """The base of the methods of linear layers and embeddings, which have one weight ``[out, in]``.

    :param name: the layer's, for errors.
    """

    looked_up = False

    def __init__(self, name: str) -> None:
        self.name = name

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Gives the layer a weight without data."""
        shape = (sum(output_partition_sizes), input_size_per_partition)
        weight = Placeholder(f"{self.name}.weight", shape, params_dtype)
        set_weight_attrs(weight.parameter, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
        layer.register_parameter("weight", weight.parameter)
        # The parameter does not hold it.
        _give(layer, weight)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product of the rank's part of the weight."""
        rank_layer = layer._wcodec
        if torch.compiler.is_compiling():
            return ops.linear(x, layer.weight, bias, rank_layer.rows)
        product: torch.Tensor = rank_layer.product(x, bias)
        return product

    def needs(self, layer: torch.nn.Module, rank: Rank) -> bool:
        """Notes what the layer needs; False if its weight is not compressed."""
        weight = placeholder(layer.weight)

        def take(made: parts.Linear) -> None:
            _give(layer, made)
            _replace(layer, "weight", ops.marker(made, weight.dtype, rank.device))

        return rank.linear(weight, take, looked_up=self.looked_up)

    def give_up(self, layer: torch.nn.Module, rank: Rank) -> None:
        """Gives the layer its weight as it is, and vLLM's own method."""
        _replace(layer, "weight", torch.nn.Parameter(rank.plain(placeholder(layer.weight)), requires_grad=False))
        _give(layer, None)
        layer.quant_method = self._plain()

    def check(self, layer: torch.nn.Module) -> None:
        """Raises if there are weights that the folder does not have."""
        placeholder(layer.weight).check()

    def _plain(self) -> QuantizeMethodBase:
        raise NotImplementedError


class Linear(_Weight, LinearMethodBase):  # type: ignore[misc]
    """The method of linear layers: column-parallel, row-parallel, merged, replicated."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: our loader has done it."""
        check_loaded(layer, self.name)

    def _plain(self) -> QuantizeMethodBase:
        return UnquantizedLinearMethod()


class Embedding(_Weight, QuantizeMethodBase):  # type: ignore[misc]
    """The method of embeddings and heads, which may share one weight.

    :param looked_up: whether it is no head.
    """

    def __init__(self, name: str, looked_up: bool = False) -> None:
        super().__init__(name)
        self.looked_up = looked_up

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: our loader has done it."""
        check_loaded(layer, self.name)

    def check(self, layer: torch.nn.Module) -> None:
        """Checks the weight as for linear layers; vocabularies are padded."""
        placeholder(layer.weight).check(padded=True)

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """The rows of these ids."""
        rank_layer = layer._wcodec
        if torch.compiler.is_compiling():
            return ops.embedding(input_, layer.weight, rank_layer.width)
        rows: torch.Tensor = rank_layer.look_up(input_)
        return rows

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> torch.nn.Module:
        """Gives the head the weight of the embedding, whatever that becomes."""
        layer.weight = embed_tokens.weight
        _give(layer, embed_tokens._wcodec)
        return layer

    def _plain(self) -> QuantizeMethodBase:
        return UnquantizedEmbeddingMethod()


class Experts(FusedMoEMethodBase):  # type: ignore[misc]
    """The method of the routed experts of a mixture."""

    def __init__(self, moe: Any, name: str) -> None:
        super().__init__(moe)
        self.name = name

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Gives the layer weights without data."""
        if self.moe.has_bias:
            raise UnsupportedError(
                f"'{self.name}': experts with biases do not run compressed in vLLM (compress the model with "
                "exclude='*experts*')",
                code="U505",
            )
        inner = intermediate_size_per_partition * (2 if self.moe.is_act_and_mul else 1)
        shapes = {
            "w13_weight": (num_experts, inner, hidden_size),
            "w2_weight": (num_experts, hidden_size, intermediate_size_per_partition),
        }
        weights = {key: Placeholder(f"{self.name}.{key}", shape, params_dtype) for key, shape in shapes.items()}
        _give(layer, weights)
        for key, weight in weights.items():
            set_weight_attrs(weight.parameter, extra_weight_attrs)
            layer.register_parameter(key, weight.parameter)

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        """None: no kernel of vLLM computes."""
        return None

    def apply(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The output of the rank's experts for each token."""
        if torch.compiler.is_compiling():
            return ops.experts(x, layer.w13_weight, topk_weights, topk_ids)
        mixed: torch.Tensor = layer._wcodec.mix(x, topk_weights, topk_ids)
        return mixed

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: our loader has done it."""
        check_loaded(layer, self.name)

    def check(self, layer: torch.nn.Module) -> None:
        """Raises if there are weights that the folder does not have."""
        for key in ("w13_weight", "w2_weight"):
            placeholder(getattr(layer, key)).check()

    def needs(self, layer: torch.nn.Module, rank: Rank) -> bool:
        """Notes what the layer needs; False if its experts are not compressed."""
        first, second = placeholder(layer.w13_weight), placeholder(layer.w2_weight)

        def take(made: RankExperts) -> None:
            _give(layer, made)
            for key in ("w13_weight", "w2_weight"):
                _replace(layer, key, ops.marker(made, first.dtype, rank.device))

        share = min(layer.top_k / max(layer.global_num_experts, 1), 1.0)
        return rank.experts(
            first, second, _activation(layer), layer.expert_map, share, take, bool(layer.apply_router_weight_on_input)
        )

    def give_up(self, layer: torch.nn.Module, rank: Rank) -> None:
        """Gives the layer its experts as they are, and vLLM's own method."""
        for key in ("w13_weight", "w2_weight"):
            data = rank.plain(placeholder(getattr(layer, key)))
            _replace(layer, key, torch.nn.Parameter(data, requires_grad=False))
        _give(layer, None)
        layer.quant_method = UnquantizedFusedMoEMethod(self.moe)


def check_loaded(layer: torch.nn.Module, name: str) -> None:
    """Raises where another loader has read the model, as that of a draft model beside an ordinary one."""
    if not isinstance(layer._wcodec, parts.Linear | RankExperts):
        raise UnsupportedError(
            f"'{name}': compressed weights were not loaded, but by another load format (pass --load-format wcodec)",
            code="U502",
        )


def placeholder(parameter: torch.nn.Parameter) -> Placeholder:
    """The placeholder that a parameter stands for."""
    virtual_parameter = virtual(parameter)
    assert isinstance(virtual_parameter, Placeholder)
    return virtual_parameter


def _give(layer: torch.nn.Module, made: object) -> None:
    """Keeps something with a layer; not as one of its modules, whose weights the engine would count and move."""
    object.__setattr__(layer, "_wcodec", made)


def _replace(layer: torch.nn.Module, key: str, parameter: torch.nn.Parameter) -> None:
    del layer._parameters[key]
    layer.register_parameter(key, parameter)


def _activation(layer: torch.nn.Module) -> Any:
    """The activation between the matrices of a layer's experts, as vLLM's own experts compute it."""
    from vllm.model_executor.layers.fused_moe.activation import ApplyMoEActivationConfig
    from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig

    kind: MoEActivation = layer.activation
    limits = FusedMoEQuantConfig.make(
        gemm1_alpha=getattr(layer, "swiglu_alpha", None),
        gemm1_beta=getattr(layer, "swiglu_beta", None),
        gemm1_clamp_limit=getattr(layer, "swiglu_limit", None),
    )
    config = ApplyMoEActivationConfig.from_configs(layer.moe_config, limits)

    def activation(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty((*x.shape[:-1], x.shape[-1] // (2 if kind.is_gated else 1)))
        apply_moe_activation(kind, out, x.contiguous(), activation_config=config)
        return out

    return activation
