"""LoRA's layers over compressed ones. Imports PEFT: only for who has imported it."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from peft.tuners.lora.variants import DoraLinearVariant
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils import TaskType
from peft.utils.constants import SEQ_CLS_HEAD_NAMES

from .._core import format as fmt
from .._core.errors import InputError, UnsupportedError
from .._models import methods
from ..nn import CompressedConv1D, CompressedLayer, CompressedLinear

# Ways to begin that leave the base layer's weight as it is.
_BEGINNINGS = (True, False, "gaussian", "orthogonal")


class _Dora(DoraLinearVariant):  # type: ignore[misc]
    """DoRA whose product with the base layer is always the base layer's own: of PEFT's with dropout, autograd would
    keep the decoded weight."""

    @staticmethod
    def forward(module: Any, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **_: Any) -> torch.Tensor:
        dropout = module.lora_dropout[active_adapter]
        base = result
        if module.training and not isinstance(dropout, torch.nn.Identity):
            x = dropout(x)
            base = module.base_layer(x.to(module.get_base_layer().dtype)).to(x.dtype)
        change: torch.Tensor = module.lora_magnitude_vector[active_adapter](
            x,
            lora_A=module.lora_A[active_adapter],
            lora_B=module.lora_B[active_adapter],
            scaling=module.scaling[active_adapter],
            base_layer=module.get_base_layer(),
            base_result=base,
            adapter_name=active_adapter,
        )
        return result + change


class LoraCompressedLinear(Linear):  # type: ignore[misc]
    """PEFT's LoRA over a :class:`~wcodec.nn.CompressedLinear`, whose weight stays as it is."""

    def __init__(self, base_layer: Any, adapter_name: str, config: Any, **kwargs: Any) -> None:
        if "config" not in inspect.signature(Linear.__init__).parameters:
            raise UnsupportedError("this peft is too old for compressed layers (pip install 'peft>=0.21')", code="U204")
        conv1d = isinstance(base_layer, CompressedConv1D)
        if bool(config.fan_in_fan_out) != conv1d:
            kind = type(base_layer).__name__
            warnings.warn(f"fan_in_fan_out is set to {conv1d}, as a {kind} needs it", stacklevel=2)
            config.fan_in_fan_out = conv1d
        super().__init__(base_layer, adapter_name, config=config, is_target_conv_1d_layer=conv1d, **kwargs)

    @property
    def lora_variants(self) -> dict[tuple[str, ...], Any]:
        """The variants of LoRA that leave the base layer's weight as it is."""
        return {(): None, ("use_dora",): _Dora}

    def resolve_lora_variant(self, *, config: Any, **kwargs: Any) -> Any:
        base = self.get_base_layer()
        if isinstance(base, CompressedLayer) and config.init_lora_weights not in _BEGINNINGS:
            raise InputError(
                f"tensor '{base.tensor}': init_lora_weights={config.init_lora_weights!r} changes the weight, which "
                "stays compressed (use True, False, 'gaussian' or 'orthogonal')",
                tensor=base.tensor,
                code="I535",
            )
        try:
            return super().resolve_lora_variant(config=config, **kwargs)
        except ValueError as error:
            raise InputError(
                f"LoRA and DoRA attach to compressed layers, other variants do not: {error} "
                "(leave them out of the config, or wcodec.decompress_ the model first)",
                code="I535",
            ) from error

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Refused while the base layer is compressed.

        :raises InputError: then.
        """
        base = self.get_base_layer()
        if isinstance(base, CompressedLayer) and check_adapters_to_merge(self, adapter_names):
            raise InputError(
                f"tensor '{base.tensor}': an adapter cannot be merged into a compressed weight (use merge_and_unload, "
                "which makes uncompressed layers, or wcodec.decompress_ the model first)",
                tensor=base.tensor,
                code="I536",
            )
        super().merge(safe_merge=safe_merge, adapter_names=adapter_names)

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> torch.nn.Module:
        """The base layer, or, with adapters merged into it, an uncompressed one."""
        base = self.get_base_layer()
        if merge and (not isinstance(base, CompressedLayer) or check_adapters_to_merge(self, adapter_names)):
            if isinstance(base, CompressedLayer):
                self.base_layer = base.to_conv1d() if isinstance(base, CompressedConv1D) else base.to_linear()
                before, after = fmt.size(base.stored_bytes), fmt.size(self.base_layer.weight.nbytes)
                warnings.warn(
                    f"a merged layer is not compressed: {before} became {after} "
                    "(wcodec.decompress_ the rest, and compress_ the model again)",
                    stacklevel=2,
                )
            self.merge(safe_merge=safe_merge, adapter_names=adapter_names)
        base_layer: torch.nn.Module = self.get_base_layer()
        return base_layer

    def _get_in_out_features(self, module: Any) -> tuple[int, int]:
        return module.in_features, module.out_features

    def _get_base_layer_device_and_dtype(self, base_layer: Any) -> tuple[Any, Any]:
        # PEFT asks the weight, which would be decoded for that.
        if isinstance(base_layer, CompressedLayer):
            return base_layer.device, base_layer.dtype
        device_and_dtype: tuple[Any, Any] = super()._get_base_layer_device_and_dtype(base_layer)
        return device_and_dtype


def mapping(target: Any, parameter: str | None) -> dict[type[Any], type[Any]]:
    """The mapping from compressed layers to the adapter layers that PEFT makes of them.

    :raises InputError: if ``target`` is one that LoRA does not attach to.
    """
    layer = getattr(target, "base_layer", target)
    if parameter is not None or not isinstance(layer, CompressedLinear):
        raise InputError(
            f"tensor '{layer.tensor}': LoRA does not attach to a {type(layer).__name__} "
            "(leave it out of target_modules, or keep the layer as it is with compress_(exclude=...))",
            tensor=layer.tensor,
            code="I535",
        )
    return {CompressedLinear: LoraCompressedLinear}


def replace_module(tuner: Any, parent: Any, child_name: str, new_module: Any, child: Any) -> None:
    """Puts a layer in place and moves its adapters, as PEFT does, which asks the weight for its device every time."""
    setattr(parent, child_name, new_module)
    if isinstance(new_module, LoraCompressedLinear):
        for name, module in new_module.named_modules():
            if tuner.prefix in name and not any(p.device.type == "meta" for p in module.parameters()):
                module.to(new_module.get_base_layer().device)
    elif not isinstance(new_module, CompressedLayer):
        # The last compressed layer may be gone, and the model be one that transformers can save.
        methods.mark(tuner.model)


def all_linear(config: Any, model: torch.nn.Module) -> set[str]:
    """Names of the compressed layers that ``target_modules="all-linear"`` means: not the head, as PEFT has it."""
    heads = [model.get_output_embeddings()] if hasattr(model, "get_output_embeddings") else []
    if config.task_type == TaskType.SEQ_CLS:
        heads += [getattr(model, name, None) for name in SEQ_CLS_HEAD_NAMES]
    inside = {child for module in model.modules() if isinstance(module, BaseTunerLayer) for child in module.modules()}
    return {
        name
        for name, module in model.named_modules()
        if isinstance(module, CompressedLinear) and module not in inside and not any(module is head for head in heads)
    }


def in_their_own_way(model: torch.nn.Module) -> set[str]:
    """Names of compressed layers that derive from torch's linear layer and compute otherwise, such as routers: LoRA
    does not attach to them."""
    layers = ((name, m) for name, m in model.named_modules() if isinstance(m, CompressedLayer))
    return {name for name, layer in layers if not isinstance(layer, CompressedLinear)}


def check_tokens(module: Any) -> None:
    """:raises InputError: for a table or a head some of whose rows are to be trained, if it is compressed."""
    if isinstance(module, CompressedLayer):
        raise InputError(
            f"tensor '{module.tensor}': trainable_token_indices train rows of the weight, which is compressed (leave "
            "the layer as it is with compress_(exclude=...), or wcodec.decompress_ it first)",
            tensor=module.tensor,
            code="I531",
        )


def check_trained(module: torch.nn.Module) -> None:
    """:raises InputError: for a module that is to be trained as a whole and has compressed weights."""
    for layer in module.modules():
        if isinstance(layer, CompressedLayer):
            raise InputError(
                f"tensor '{layer.tensor}': modules_to_save are trained, and compressed weights are not (leave the "
                "layer as it is with compress_(exclude=...))",
                tensor=layer.tensor,
                code="I531",
            )
