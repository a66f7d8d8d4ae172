"""Decoder layers of vLLM's own models, whose norms, gates and residuals are done by the launches that multiply.

A layer of Llama's kind is then four launches and its attention. Nothing of vLLM's lies between them but what attention
does, so that each launch begins while the one before it ends. Layers and MLPs are known by their ``forward``; others
stay as they are.

Between two such layers goes a pair of tensors, as vLLM has it. vLLM's are the last product and the residual that is not
yet added to it. Ours are the sum, as ``residual``, and the sum times the gain of the next norm. A layer behind which
another one comes, or a norm, gives vLLM's pair.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import torch

from ..._gpu.decoder import ProductBatch
from ...nn._fusion import norms as _norms
from ...nn._fusion.halves import Gain
from ...nn._fusion.launches import CachedLaunch, Epilogue, Norm
from ...nn._fusion.spec import NormSpec
from . import ops, parts

# Kinds of devices on which layers are done so; tests add another one.
KINDS = {"cuda"}
_PLACE = "vllm.model_executor.models."
_Pair = tuple[torch.Tensor, torch.Tensor]


class LayerForm(NamedTuple):
    """The names of a decoder layer's norms."""

    attention: str = "input_layernorm"
    """In front of attention."""
    behind_attention: str | None = None
    """Behind attention, before its output is added."""
    mlp: str = "post_attention_layernorm"
    """In front of the MLP."""
    behind_mlp: str | None = None
    absent: str | None = None
    """An attribute that has to be None: with it, the layer does more."""
    passes_on: bool = False
    """Whether attention gets the layer's other arguments."""


_FOUR_NORMS = LayerForm(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    passes_on=True,
)  # fmt: skip
LAYERS = {
    "gemma3.Gemma3DecoderLayer": _FOUR_NORMS,
    "llama.LlamaDecoderLayer": LayerForm(),
    "mistral.MistralDecoderLayer": LayerForm(absent="ada_rms_norm_t_cond"),
    "qwen2.Qwen2DecoderLayer": LayerForm(),
    "qwen3.Qwen3DecoderLayer": LayerForm(),
}
"""Decoder layers, by the class that has their ``forward``. The attention of each is ``self_attn``, its MLP ``mlp``."""
ATTENTIONS = frozenset({
    "gemma3.Gemma3Attention", "llama.LlamaAttention", "mistral.MistralAttention", "qwen2.Qwen2Attention",
    "qwen3.Qwen3Attention",
})  # fmt: skip
"""Classes of attention whose ``forward`` begins with ``qkv_proj`` and ends with ``o_proj``, and uses neither twice."""
MLPS = frozenset({
    "gemma3.Gemma3MLP", "llama.LlamaMLP", "mistral.MistralMLP", "qwen2.Qwen2MLP", "qwen3_moe.Qwen3MoeMLP",
})  # fmt: skip
"""MLPs that are ``down_proj(act_fn(gate_up_proj(x)))``; a shared expert's may have a gate behind it, and then stays."""
MODELS = frozenset({"gemma3.Gemma3Model", "llama.LlamaModel", "mistral.MistralModel", "qwen2.Qwen2Model"})
"""Models that hand each layer's pair to the next one, and look at it for engines that guess ahead alone."""
NORMS = {
    "RMSNorm": NormSpec("", epsilon="variance_epsilon"),
    "GemmaRMSNorm": NormSpec("", epsilon="variance_epsilon", offset=1.0),
}
"""Norms, by their class."""


class Half:
    """All that lies between a norm and the addition to the residual: the first layer, with the norm before it and the
    gate behind it, and the last layer, with the addition.

    :param norm: the norm's module; None if the input is taken as it is.
    :param first: ``qkv_proj`` or ``gate_up_proj``.
    :param last: ``o_proj`` or ``down_proj``.
    :param act: the module between gate and up projection and the last layer; None for attention.
    :param behind: the norm of the last layer's output.
    """

    def __init__(self, norm: Any, first: Any, last: Any, act: Any = None, behind: Any = None) -> None:
        self._norm, self._act, self._behind = norm, act, behind
        self.first, self.last = first, last
        self._before = None if norm is None else Gain(norm, NORMS[type(norm).__name__])
        self._gain_behind = None if behind is None else Gain(behind, NORMS[type(behind).__name__])
        merged, output = first._wcodec, last._wcodec
        self.features = merged.rows if act is None else merged.rows // 2
        epilogue = Epilogue(by_vector=True)
        if act is not None:
            epilogue = Epilogue(True, len(merged.layers) == 1, activation_of(act) or "")
        self._launch = CachedLaunch(merged.layers, epilogue)
        self._launch_last = CachedLaunch(output.layers)
        merged.half = output.half = self
        # The half whose norm comes next, if this one prepares its input.
        self.after: Half | None = None

    def _few(self, layer: Any, launch: CachedLaunch, x: torch.Tensor) -> Any:
        """The launch for an input, if there is one for so many tokens."""
        layer._wcodec.adopt(layer.bias)
        return launch.take(x)

    def _norm_before(self) -> Norm | None:
        return None if self._before is None else self._before.get(self._launch.layers[0])

    def normed(self, x: torch.Tensor, scaled: torch.Tensor | None) -> torch.Tensor:
        """The first layer's results for the norm of ``x``; activated and multiplied, if they are gates and values.

        :param scaled: ``x`` times the norm's gain, for few tokens; computed where it is absent.
        """
        norm = self._norm_before()
        launch = self._few(self.first, self._launch, x)
        if launch is None or (norm is None) != (self._norm is None):
            if norm is not None and x.is_cuda:
                x = _norms.run(x, norm)[0]
            elif self._norm is not None:
                x = self._norm(x)
            product = self.first._wcodec.product(x, self.first.bias)
            return product if self._act is None else _activated(self._act, product)
        if norm is None:
            y = launch.all(x)
        elif is_few(x):
            y = launch.normed(x, norm.scaled(x) if scaled is None else scaled, norm)
        else:
            y = launch.all(_norms.run(x, norm)[0])
        return y.view(*x.shape[:-1], self.features)

    def added(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``residual`` and what the last layer makes of ``x``; and that times the gain of the next norm, for few
        tokens, if there is a next half."""
        after = None if self.after is None or not is_few(residual) else self.after._norm_before()
        launch = self._few(self.last, self._launch_last, x)
        if launch is None:
            return self._added_by_torch(x, residual), None
        if self._gain_behind is None:
            return launch.added(x, residual, after)
        behind = self._gain_behind.get(self._launch_last.layers[0], residual.shape[-1])
        if behind is None:
            return self._added_by_torch(x, residual), None
        return _norms.run(launch.all(x).view(residual.shape), behind, residual, 1.0, after)

    def _added_by_torch(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        rank_layer, bias = self.last._wcodec, self.last.bias
        if self._behind is not None:
            return residual + self._behind(rank_layer.product(x, bias))
        total: torch.Tensor = rank_layer.added(x, bias, residual)
        return total


def _activated(act: Any, x: torch.Tensor) -> torch.Tensor:
    """The activation by vLLM's kernel. Its modules leave that to the compiler where there is one, which does not see
    what an operator does."""
    activated: torch.Tensor = (act.forward_cuda if x.is_cuda and hasattr(act, "forward_cuda") else act)(x)
    return activated


def is_few(x: torch.Tensor) -> bool:
    """Whether launches divide their results by the norm of so many vectors. The norm of more is written first."""
    return x.numel() <= ProductBatch.MOST_NORMED * x.shape[-1]


class Block:
    """A decoder layer.

    :param joins_before: whether the layer before it gives the sum and its multiple.
    """

    def __init__(self, layer: Any, form: LayerForm) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        norm = layer._modules.get
        behind_attention = None if form.behind_attention is None else norm(form.behind_attention)
        behind_mlp = None if form.behind_mlp is None else norm(form.behind_mlp)
        self._view = _without_layers(attention)
        self._attention = Half(norm(form.attention), attention.qkv_proj, attention.o_proj, behind=behind_attention)
        self._mlp = Half(norm(form.mlp), mlp.gate_up_proj, mlp.down_proj, mlp.act_fn, behind_mlp)
        self._attention.after = self._mlp
        self._passes_on = form.passes_on
        self.joins_before = False

    def join(self, other: Block) -> None:
        """Has the layer prepare the input of the one that follows it."""
        self._mlp.after, other.joins_before = other._attention, True

    def run(self, positions: Any, hidden: torch.Tensor, residual: torch.Tensor | None, kwargs: dict[str, Any]) -> _Pair:
        """The result of the layer's ``forward``."""
        scaled = None
        if residual is None:
            total = hidden
        elif self.joins_before:
            total, scaled = residual, hidden
        else:
            total = hidden + residual
        qkv = normed(self._attention, total, scaled)
        # Those of Mistral's layers are for the absent attribute.
        attended = self._view(positions=positions, hidden_states=qkv, **(kwargs if self._passes_on else {}))
        total, scaled = added(self._attention, attended, total)
        values = normed(self._mlp, total, scaled)
        if self._mlp.after is not None:
            total, scaled = added(self._mlp, values, total)
            return scaled, total
        if self._mlp._behind is not None:
            return self._mlp._behind(self._mlp.last(values)[0]), total
        return self._mlp.last(values)[0], total


def normed(half: Half, x: torch.Tensor, scaled: torch.Tensor | None) -> torch.Tensor:
    """:meth:`Half.normed`, as an operator in compiled code."""
    if torch.compiler.is_compiling():
        return ops.normed(x, scaled, half.first.weight, half.features)
    return half.normed(x, scaled)


def added(half: Half, x: torch.Tensor, residual: torch.Tensor) -> _Pair:
    """:meth:`Half.added`, as an operator in compiled code. The second result is of any values for many tokens."""
    return ops.added(x, residual, half.last.weight) if torch.compiler.is_compiling() else ops.add(half, x, residual)


class _Pass(torch.nn.Module):  # type: ignore[misc]
    """Stands for a layer that is computed elsewhere."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x, None


def _without_layers(attention: Any) -> Any:
    """An attention module whose first layer has done its part already, and whose last layer has yet to do it. All else
    is that of the module."""
    view = copy.copy(attention)
    view.__dict__ = dict(attention.__dict__)
    view._modules = {**attention._modules, "qkv_proj": _Pass(), "o_proj": _Pass()}
    return view


def fuse(model: torch.nn.Module, device: torch.device, *, ranks: int = 1, joins: bool = True) -> int:
    """Has the decoder layers and MLPs of a model done by fewer launches, as far as they are known; returns how many
    are.

    :param ranks: ranks that share each layer. With several, sums are of all ranks before they are added, so that
        gates alone are fused.
    :param joins: whether nobody looks at what goes from one decoder layer to the next.
    """
    if device.type not in KINDS:
        return 0
    fused = 0
    taken: set[int] = set()
    for owner, module in [(m, child) for m in model.modules() for child in m.children()]:
        if ranks > 1 or not isinstance(module, torch.nn.ModuleList):
            continue
        before: Block | None = None
        for layer in module:
            form = LAYERS.get(_code(layer))
            block = Block(layer, form) if form is not None and _fits(layer, form) else None
            if block is not None:
                _change(layer, _forward, block)
                taken.add(id(layer.mlp))
                fused += 1
                if joins and before is not None and _code(owner) in MODELS:
                    before.join(block)
            before = block
    for module in list(model.modules()):
        if id(module) not in taken and _code(module) in MLPS and _mlp_fits(module):
            _change(module, _forward_mlp, Half(None, module.gate_up_proj, module.down_proj, module.act_fn))
            fused += 1
    return fused


def _forward(
    self: Any, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None, **kwargs: Any
) -> _Pair:
    pair: _Pair = self._wcodec_block.run(positions, hidden_states, residual, kwargs)
    return pair


def _forward_mlp(self: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = self.down_proj(normed(self._wcodec_block, x, None))[0]
    return out


@functools.cache
def _derived(kind: Any, forward: Any) -> type[Any]:
    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _change(module: Any, forward: Any, block: object) -> None:
    kind: Any = type(module)
    module.__class__ = _derived(kind, forward)
    # Not one of its modules, whose weights the engine would count twice.
    object.__setattr__(module, "_wcodec_block", block)


def _code(module: Any) -> str:
    """The class of vLLM that has a module's ``forward``, as the tables name it."""
    forward = type(module).forward
    place = getattr(forward, "__module__", None) or ""
    name = getattr(forward, "__qualname__", "")
    return f"{place.removeprefix(_PLACE)}.{name.removesuffix('.forward')}"


def _fits(layer: Any, form: LayerForm) -> bool:
    """Whether a decoder layer is what its code says, with compressed layers and norms that launches do."""
    norms = (form.attention, form.behind_attention, form.mlp, form.behind_mlp)
    if form.absent is not None and getattr(layer, form.absent, None) is not None:
        return False
    if not all(name is None or _norm_fits(layer._modules.get(name)) for name in norms):
        return False
    attention, mlp = layer._modules.get("self_attn"), layer._modules.get("mlp")
    if attention is None or mlp is None or _code(attention) not in ATTENTIONS or _code(mlp) not in MLPS:
        return False
    return _is_whole(attention.qkv_proj) and _is_whole(attention.o_proj) and _mlp_fits(mlp)


def _norm_fits(norm: Any) -> bool:
    if norm is None or type(norm).__name__ not in NORMS or norm._parameters.get("weight") is None:
        return False
    return getattr(norm, "variance_size_override", None) is None


def _mlp_fits(mlp: Any) -> bool:
    first, last = mlp._modules.get("gate_up_proj"), mlp._modules.get("down_proj")
    if getattr(mlp, "expert_gate", None) is not None:
        return False
    if activation_of(mlp._modules.get("act_fn")) is None or not (_is_whole(first) and _is_whole(last)):
        return False
    # Gates and values of one size, each in a matrix of its own, or both in one.
    return len({layer.out_features for layer in first._wcodec.layers}) == 1 and len(first._wcodec.layers) in (1, 2)


def _is_whole(layer: Any) -> bool:
    """Whether a linear layer is compressed matrices one below the other, and nothing else happens in it."""
    rank_layer = getattr(layer, "_wcodec", None)
    if not isinstance(rank_layer, parts.Linear) or not rank_layer.layers:
        return False
    return not getattr(layer, "skip_bias_add", False) and getattr(layer, "return_bias", True)


def activation_of(act: Any) -> str | None:
    """The kernels' name of one of vLLM's activations of gates, which multiply with the values, too."""
    kind = type(act).__name__
    if kind == "SiluAndMul":
        return "silu"
    if kind == "GeluAndMul":
        return "gelu_tanh" if act.approximate == "tanh" else "gelu"
    return None
