"""The two halves of a decoder layer, as far as their descriptions say what they do: norms, layers and activation, and
what launches take of them."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ..._gpu.decoder import ProductBatch
from .._weights.workspace import is_capturing
from ..linear import CompressedLinear
from .groups import plain_class
from .launches import CachedLaunch, Epilogue, Norm
from .recognize import attention_form, mlp_form, norm_form
from .spec import HalfSpec, NormSpec

# In newer versions of torch it is one kernel; in older ones it is as many as a module's, and f16 was squared as it is.
_rms_norm: Any = F.rms_norm if hasattr(torch, "_fused_rms_norm") else None
HalfName = Literal["attention", "mlp"]
HALVES: tuple[HalfName, HalfName] = ("attention", "mlp")
_ACTIVATIONS = {
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "GELUActivation": "gelu",
    "ReLUSquaredActivation": "relu_squared",
}


class Gain:
    """A norm's weight, as launches take it."""

    def __init__(self, norm: Any, spec: NormSpec) -> None:
        self.norm, self.spec = norm, spec
        self._of: torch.Tensor | None = None
        self._scale = 1.0
        # The last norm, and what it was made for: a weight, its address, a layer and the vectors' elements.
        self._last: tuple[torch.Tensor, int, CompressedLinear, int | None, Norm] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies find out anew.
        return {**self.__dict__, "_last": None}

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        """The norm of many vectors: by one kernel, which rounds once, where torch has it."""
        norm = self.norm
        if self.spec.kind == "layer" and not self.spec.offset:
            return F.layer_norm(h, h.shape[-1:], norm.weight, None, self._epsilon)
        if _rms_norm is None or self.spec.kind != "rms" or self.spec.offset:
            normed: torch.Tensor = norm(h)
            return normed
        normed = _rms_norm(h, h.shape[-1:], norm.weight, self._epsilon)
        return normed

    @property
    def _epsilon(self) -> float:
        return float(getattr(self.norm, self.spec.epsilon))

    @property
    def is_rms(self) -> bool:
        """Whether results can be divided behind products, so that the norm is no step of its own."""
        return self.spec.kind == "rms"

    def fits(self, layer: CompressedLinear, features: int | None = None) -> bool:
        """Whether the weight is one for vectors that the layer takes.

        :param features: elements of the vectors; as many as the layer takes where it is absent.
        """
        weight = self.norm._parameters.get("weight")
        if weight is None or weight.dtype is not layer._dtype or weight.device != layer._device:
            return False
        return weight.is_contiguous() and weight.shape == (layer.in_features if features is None else features,)

    def get(self, layer: CompressedLinear, features: int | None = None) -> Norm | None:
        """For vectors as :meth:`fits` says; nothing if the weight is none for them."""
        weight, offset = self.norm._parameters.get("weight"), self.spec.offset
        last = self._last
        if last is not None and weight is last[0] and layer is last[2] and features == last[3]:
            # A weight that goes to another dtype or device has another address, and the layer may go there alone.
            is_same_place = weight.dtype is layer._dtype and weight.device == layer._device
            if weight.data_ptr() == last[1] and is_same_place and self._epsilon == last[4].epsilon:
                return last[4]
        if not self.fits(layer, features):
            return None
        if weight is not self._of:
            if layer._dtype is torch.float16 and weight.is_cuda and is_capturing():
                # To look at the largest would be to wait, which a capture does not do.
                return None
            self._scale, self._of = _scale(weight, offset), weight
        made = Norm(weight.detach(), self._scale, self._epsilon, offset, self.spec.kind)
        self._last = weight, weight.data_ptr(), layer, features, made
        return made


def _scale(weight: torch.Tensor, offset: float) -> float:
    """A power of two for products with vectors of float16, so that they are hardly larger than these. Later changes of
    the weight change the range of the products, and not what they stand for."""
    largest = float((weight.detach().float() + offset).abs().max()) if weight.dtype is torch.float16 else 1.0
    return 2.0 ** -math.ceil(math.log2(largest)) if 1 < largest < math.inf else 1.0


class Half:
    """One half of a decoder layer.

    ``reason`` says why it is computed by its modules; then there are no launches for it.
    """

    reason: str | None = None
    first: CachedLaunch | None = None
    last: CachedLaunch | None = None
    before: Gain | None = None
    behind: Gain | None = None
    multiplier = 1.0

    def __init__(self, name: HalfName, spec: HalfSpec, layer: Any) -> None:
        self.name, self.spec = name, spec
        self.epilogue = Epilogue()
        self.module = layer._modules[spec.module]
        self._act_name: str | None = None
        self._act: Any = None
        # Each module, where it stands: what takes its place, or looks on, finds the half done as it was.
        self.watched: list[tuple[Any, str, Any]] = []
        # Functions of classes, which somebody may replace.
        self.code: list[tuple[Any, str, Any]] = []
        self._dropout = None if spec.dropout is None else layer._modules.get(spec.dropout)
        for module in (spec.module, spec.before, spec.behind, spec.dropout):
            if module is not None:
                self._watch(layer, module)
        self.reason = self._norms(layer) or self._scalars(layer) or self._compute()

    def _watch(self, owner: Any, name: str) -> None:
        module = owner._modules[name]
        self.watched.append((owner._modules, name, module))
        kind = plain_class(module)
        self.code.append((kind, "forward", kind.forward))

    def _norms(self, layer: Any) -> str | None:
        for place in ("before", "behind"):
            name = getattr(self.spec, place)
            if name is None:
                continue
            norm = layer._modules[name]
            spec = norm_form(plain_class(norm))
            if spec is None or not hasattr(norm, spec.epsilon):
                return f"norm {type(norm).__name__}"
            setattr(self, place, Gain(norm, spec))
            self.code += [(plain_class(norm), method, getattr(plain_class(norm), method)) for method in spec.methods]
        return None

    def _scalars(self, layer: Any) -> str | None:
        if self._dropout is not None and type(self._dropout) is not torch.nn.Dropout:
            return f"dropout {type(self._dropout).__name__}"
        if self.spec.multiplier is not None:
            value = getattr(layer, self.spec.multiplier, None)
            if not isinstance(value, (int, float)):
                return f"multiplier {type(value).__name__}"
            self.multiplier = float(value)
        return None

    def _compute(self) -> str | None:
        """Takes the module apart that stands between the norms, if it can."""
        module, kind = self.module, plain_class(self.module)
        if self.name == "attention":
            attention = attention_form(kind)
            if attention is None:
                return f"attention {type(module).__name__}"
            return self._layers(attention.first, attention.last)
        mlp = mlp_form(kind)
        if mlp is None:
            return f"MLP {type(module).__name__}"
        self._act_name, self._act = mlp.activation, getattr(module, mlp.activation, None)
        activation = activation_of(self._act)
        if activation is None:
            return f"activation {getattr(self._act, '__name__', type(self._act).__name__)}"
        self.epilogue = Epilogue(mlp.gated, mlp.packed, activation)
        reason = self._layers(mlp.first, mlp.last)
        if reason is None and isinstance(self._act, torch.nn.Module):
            self.watched.append((module._modules, mlp.activation, self._act))
        return reason

    def _layers(self, first: tuple[str, ...], last: str) -> str | None:
        layers = [self.module._modules.get(name) for name in (*first, last)]
        for name, layer in zip((*first, last), layers, strict=True):
            if type(layer) is not CompressedLinear:
                return f"layer {name} is {'not there' if layer is None else type(layer).__name__}"
        self.first, self.last = CachedLaunch(layers[:-1], self.epilogue), CachedLaunch(layers[-1:])
        self.watched.extend((self.module._modules, name, la) for name, la in zip((*first, last), layers, strict=True))
        return None

    @property
    def sizes(self) -> list[int]:
        """Elements of what the first launch gives, of each result for a token."""
        assert self.first is not None
        sizes = [layer.out_features for layer in self.first.layers]
        if not self.epilogue.gated:
            return sizes
        return [sizes[0] // 2 if self.epilogue.packed else sizes[0]]

    @property
    def takes_scaled(self) -> bool:
        """Whether the launch before can prepare for this half: its norm is one whose results are divided behind
        products."""
        return self.first is not None and self.before is not None and self.before.is_rms

    def divides(self, h: torch.Tensor) -> bool:
        """Whether launches divide results by the norm of these vectors. The norm of more is written first."""
        return self.takes_scaled and h.numel() <= ProductBatch.MOST_NORMED * h.shape[-1]

    def is_as_it_was(self, layer: Any) -> bool:
        """Whether the half is what it was taken for: its scalars, its activation, and no dropout."""
        if self._dropout is not None and self._dropout.training and self._dropout.p:
            return False
        if self.spec.multiplier is not None and getattr(layer, self.spec.multiplier, None) != self.multiplier:
            return False
        act = self._act
        return act is None or isinstance(act, torch.nn.Module) or getattr(self.module, self._act_name or "") is act

    def launches_fit(self, h: torch.Tensor) -> bool:
        """Whether the launches were made, and are for as many tokens as these."""
        assert self.first is not None and self.last is not None
        count = h.numel() // self.first.layers[0].in_features
        return self.first.has_launch(h.numel()) and self.last.has_launch(count * self.last.layers[0].in_features)

    def fits(self) -> bool:
        """Whether the norms' weights are ones for the layers."""
        assert self.first is not None and self.last is not None
        first, last = self.first.layers[0], self.last.layers[0]
        if self.before is not None and not self.before.fits(first):
            return False
        return self.behind is None or self.behind.fits(last, last.out_features)

    def joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The input of an MLP's last layer, from the results of the first ones, which nobody else has seen."""
        gate, *values = parts[0].chunk(2, dim=-1) if self.epilogue.packed else parts
        fresh = not self.epilogue.packed and self.epilogue.activation == "silu"
        activated: torch.Tensor = F.silu(gate, inplace=True) if fresh else self._act(gate)
        return activated.mul_(values[0]) if values else activated

    def result(self, y: torch.Tensor, residual: torch.Tensor, fresh: bool = False) -> torch.Tensor:
        """``residual`` and what the half's module gives, by torch.

        :param fresh: nobody else has seen ``y``, which may be changed in place.
        """
        if self.behind is not None:
            y = self.behind(y)
        if self.spec.multiplier is not None:
            y = y * self.multiplier
        return y.add_(residual) if fresh else residual + y


def activation_of(function: Any) -> str | None:
    """The kernels' name of an activation, if they have it.

    >>> activation_of(torch.nn.SiLU()), activation_of(torch.nn.GELU("tanh")), activation_of(torch.nn.Tanh())
    ('silu', 'gelu_tanh', None)
    """
    kind = type(function)
    if kind.__module__ == "transformers.activations":
        return _ACTIVATIONS.get(kind.__name__)
    if kind is torch.nn.SiLU or function is F.silu:
        return "silu"
    if kind is torch.nn.ReLU or function is F.relu:
        return "relu"
    if kind is torch.nn.GELU:
        return "gelu" if function.approximate == "none" else "gelu_tanh"
    return "gelu" if function is F.gelu else None
