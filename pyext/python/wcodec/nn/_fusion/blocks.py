"""Blocks of models like Llama's. For few tokens they are four launches: norms, gates and residuals are done by those
that multiply. For more, weights are decoded, and what is around their products takes few of torch's kernels.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F

from ..._gpu.decoder import ProductBatch
from .._layers import ops as _ops
from .._layers.pattern import attends, block_form, is_gated, is_rms_norm
from .._layers.served import Serving, given, here
from .._weights.workspace import is_capturing
from ..linear import CompressedLinear
from .around import Launch, Norm, Ready
from .groups import KINDS, apart, hooked, plain_class, watched

_is_compiling = torch.compiler.is_compiling
# Where it is one kernel: in older ones it is as many as a module's, and f16 was squared as it is.
_rms_norm: Any = F.rms_norm if hasattr(torch, "_fused_rms_norm") else None
Half = Literal["attention", "mlp"]
_HALVES: tuple[Half, Half] = ("attention", "mlp")
# By launches that do what is around the products, too; with decoded weights and few kernels beside; or as it was.
Way = Literal["launches", "decoded", "modules"]


class Gain:
    """The weight of an RMSNorm, as launches take it."""

    def __init__(self, norm: Any) -> None:
        self.norm = norm
        self._of: torch.Tensor | None = None
        self._scale = 1.0

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        """The norm of many vectors: by one kernel, which rounds once, where torch has it."""
        norm = self.norm
        if _rms_norm is None:
            found: torch.Tensor = norm(h)
            return found
        found = _rms_norm(h, h.shape[-1:], norm.weight, norm.variance_epsilon)
        return found

    def fits(self, layer: CompressedLinear) -> bool:
        """Whether the weight is one for vectors that the layer takes."""
        weight = self.norm._parameters.get("weight")
        if weight is None or weight.dtype is not layer._dtype or weight.device != layer._device:
            return False
        return weight.is_contiguous() and weight.shape == (layer.in_features,)

    def get(self, layer: CompressedLinear) -> Norm | None:
        """For vectors that the layer takes; nothing if the weight is none of them."""
        if not self.fits(layer):
            return None
        weight = self.norm.weight
        if weight is not self._of:
            if layer._dtype is torch.float16 and weight.is_cuda and is_capturing():
                # To look at the largest would be to wait, which a capture does not do.
                return None
            self._scale, self._of = _scale(weight), weight
        return Norm(weight.detach(), self._scale, float(self.norm.variance_epsilon))


def _scale(weight: torch.Tensor) -> float:
    """A power of two for products with vectors of float16, so that they are hardly larger than these. What the weight
    becomes later changes the range of the products, and not what they stand for."""
    largest = float(weight.detach().abs().max()) if weight.dtype is torch.float16 else 1.0
    return 2.0 ** -math.ceil(math.log2(largest)) if 1 < largest < math.inf else 1.0


class Block:
    """A block, taken apart: which of its halves can be done in another way than by its modules, and what does them."""

    def __init__(self, module: Any) -> None:
        form = block_form(plain_class(module))
        assert form is not None
        self._form = form
        self._names = _arguments(plain_class(module))
        self._mlp = module.mlp
        self._norms = {"attention": Gain(module.input_layernorm), "mlp": Gain(module.post_attention_layernorm)}
        self.first: dict[Half, Ready] = {}
        self.last: dict[Half, Ready] = {}
        # Each module, where it stands: what takes its place, or looks on, finds the block done as it was.
        own = module._modules
        self._watched: list[tuple[Any, str, Any]] = [
            (own, name, own[name])
            for name in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
        ]  # fmt: skip
        attention, mlp = module.self_attn, module.mlp
        if attends(plain_class(attention)) and _norms(module.input_layernorm):
            self._half("attention", attention, ("q_proj", "k_proj", "v_proj"), "o_proj", gated=False)
        if _norms(module.post_attention_layernorm) and is_gated(plain_class(mlp)) and _is_silu(mlp.act_fn):
            self._half("mlp", mlp, ("gate_proj", "up_proj"), "down_proj", gated=True)
        if "mlp" in self.first and isinstance(mlp.act_fn, torch.nn.Module):
            self._watched.append((mlp._modules, "act_fn", mlp.act_fn))
        self._act = getattr(mlp, "act_fn", None)
        kinds = {
            plain_class(part) for part in (module.input_layernorm, module.post_attention_layernorm, attention, mlp)
        }
        self._code = [(kind, kind.forward) for kind in kinds]
        # The block that comes next, whose norm the last launch prepares for.
        self.next: Block | None = None
        self._incoming: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._register()

    @property
    def layers(self) -> list[CompressedLinear]:
        """All layers that its launches multiply with."""
        return [layer for ready in (*self.first.values(), *self.last.values()) for layer in ready.layers]

    def _register(self) -> None:
        self._handle = _ops.register(self, next((layer.device for layer in self.layers), "cpu"))

    def _half(self, half: Half, module: Any, names: tuple[str, ...], last: str, gated: bool) -> None:
        layers = [module._modules.get(name) for name in (*names, last)]
        if any(type(layer) is not CompressedLinear for layer in layers):
            return
        self.first[half], self.last[half] = Ready(layers[:-1], gated), Ready(layers[-1:])
        self._watched.extend((module._modules, name, layer) for name, layer in zip((*names, last), layers, strict=True))

    # What it takes

    def takes(self, module: Any, h: Any) -> bool:
        """Whether the block may be done in another way than by its modules, for this input."""
        if not isinstance(h, torch.Tensor) or h.device.type not in KINDS or torch.is_grad_enabled() or module.training:
            return False
        layer = next(iter(self.first.values())).layers[0]
        if h.dtype is not layer._dtype or h.device != layer._device or h.shape[-1:] != (layer.in_features,):
            return False
        if not h.numel() or not h.is_contiguous():
            return False
        if torch.is_autocast_enabled(h.device.type) or watched():
            return False
        if any(kind.forward is not code for kind, code in self._code):
            return False
        if "mlp" in self.first and not isinstance(self._act, torch.nn.Module) and self._mlp.act_fn is not self._act:
            return False
        return not any(owner.get(name) is not part or hooked(part) for owner, name, part in self._watched)

    def _launches(self, half: Half, like: torch.Tensor | None = None) -> tuple[Launch, Launch, Norm] | None:
        """What does a half; nothing where it is to be done as it was.

        :param like: what it would be done for; otherwise what its layers take.
        """
        first, last = self.first.get(half), self.last.get(half)
        if first is None or last is None or first.layers[0]._device.type not in KINDS:
            return None
        dtype, device = (first.layers[0]._dtype, first.layers[0]._device) if like is None else (like.dtype, like.device)
        for layer in (*first.layers, *last.layers):
            if layer._dtype is not dtype or layer._device != device:
                return None
        norm = self._norms[half].get(first.layers[0])
        a, b = first.get(), last.get()
        return None if norm is None or a is None or b is None else (a, b, norm)

    def _few(self, half: Half, h: torch.Tensor) -> tuple[Launch, Launch, Norm] | None:
        """The launches, if they are for as many tokens as these."""
        found = self._launches(half, h)
        return None if found is None or not self._is_few(half, h) else found

    def _is_few(self, half: Half, h: torch.Tensor) -> bool:
        """Whether the launches of a half were made, and are for as many tokens as these."""
        first, last = self.first[half], self.last[half]
        count = h.numel() // first.layers[0].in_features
        return first.found(h.numel()) and last.found(count * last.layers[0].in_features)

    def _way(self, half: Half, h: torch.Tensor) -> Way:
        """How a half is done. What is compiled asks for launches that were made before, and compiles all else."""
        if not _is_compiling():
            if self._is_decoded(half, h):
                return "decoded"
            if self._launches(half, h) is None:
                return "modules"
            return "launches" if self._is_few(half, h) else "decoded"
        if half not in self.first or not self._is_few(half, h):
            return "modules"
        layers = (*self.first[half].layers, *self.last[half].layers)
        return "launches" if all(la._dtype is h.dtype and la._device == h.device for la in layers) else "modules"

    def _is_decoded(self, half: Half, h: torch.Tensor) -> bool:
        """Whether a half is done with decoded weights: what is found out in little time, for the CPU is what such
        passes wait for in small models. Otherwise it may be so, too."""
        first, last = self.first.get(half), self.last.get(half)
        if first is None or last is None or h.numel() <= ProductBatch.MOST * first.layers[0].in_features:
            return False
        layer = first.layers[0]
        alike = h.dtype is layer._dtype and h.device == layer._device and self._norms[half].fits(layer)
        return alike and first.has_plans() and last.has_plans()

    def prepare(self) -> None:
        """Makes the launches."""
        self._handle = _ops.moved(self._handle, next(iter(self.first.values())).layers[0]._device)
        for half in self.first:
            self._launches(half)

    # What it does

    def run(self, module: Any, h: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """What the block's ``forward`` does."""
        mlp = self._way("mlp", h)
        attention = self._way("attention", h)
        scaled = None
        if attention == "launches":
            h, scaled = self._attend(module, h, self._given(args, kwargs), scales=mlp == "launches")
        elif attention == "decoded":
            h = h + self._attend_decoded(module, h, self._given(args, kwargs))
        else:
            attended, _ = module.self_attn(hidden_states=module.input_layernorm(h), **self._given(args, kwargs))
            h = h + attended
            mlp = "modules" if mlp == "modules" else self._way("mlp", h)
        if mlp == "decoded":
            return self._mlp_decoded(h)
        if mlp == "modules":
            return h + module.mlp(module.post_attention_layernorm(h))
        (values,) = self._normed("mlp", h, scaled)
        after = self.next
        # Whoever changes it in place changes its version; tensors of inference mode have none.
        ahead = False
        if after is not None and not _is_compiling() and not h.is_inference():
            ahead = after._few("attention", h) is not None
        h, scaled = self._added("mlp", values, h, ahead)
        if ahead and after is not None and scaled is not None:
            after._incoming[here()] = (h, h._version, scaled)
        return h

    def _attend(
        self, module: Any, h: torch.Tensor, kwargs: dict[str, Any], scales: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        came = None if _is_compiling() else self._incoming.pop(here(), None)
        known = came is not None and came[0] is h and not h.is_inference() and came[1] == h._version
        results = self._normed("attention", h, came[2] if came is not None and known else None)
        found: list[tuple[torch.Tensor, torch.Tensor | None]] = []

        def output(x: torch.Tensor) -> torch.Tensor:
            found.append(self._added("attention", x, h, scales))
            return found[0][0]

        layers = (*self.first["attention"].layers, *self.last["attention"].layers)
        serve = [given(la, h, y) for la, y in zip(self.first["attention"].layers, results, strict=True)]
        with Serving(layers, [*serve, output]):
            returned = module.self_attn(hidden_states=h, **kwargs)
        if not found or (not _is_compiling() and returned[0] is not found[0][0]):
            raise layers[-1]._refuse(
                "its module does not return what it gives", "call wcodec.nn.fuse_(model, blocks=False)"
            )
        return found[0]

    def _attend_decoded(self, module: Any, h: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """What attention makes of the norm of ``h``, with decoded weights."""
        layers = self.first["attention"].layers
        x = self._norms["attention"](h)
        serve = [given(layer, x, y) for layer, y in zip(layers, _all_of(layers, x), strict=True)]
        with Serving(layers, serve):
            attended: torch.Tensor = module.self_attn(hidden_states=x, **kwargs)[0]
        return attended

    def _mlp_decoded(self, h: torch.Tensor) -> torch.Tensor:
        """``h`` and what the MLP makes of its norm, with decoded weights. What nobody else has seen is changed in
        place."""
        gates, values = self.first["mlp"].layers
        x = self._norms["mlp"](h)
        gated = F.silu(gates._computed(x), inplace=True).mul_(values._computed(x))
        return self.last["mlp"].layers[0]._computed(gated).add_(h)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What the block hands on to its attention."""
        own = dict(zip(self._names, args, strict=False))
        rest: dict[str, Any] = {}
        for name, value in kwargs.items():
            (own if name in self._names else rest)[name] = value
        handed = {keyword: own.get(name, self._names[name]) for keyword, name in self._form.keywords}
        return {**handed, **rest} if self._form.rest is not None else handed

    # The two launches of a half, or the operators for them

    def _normed(self, half: Half, h: torch.Tensor, scaled: torch.Tensor | None) -> list[torch.Tensor]:
        sizes = [layer.out_features for layer in self.first[half].layers]
        if half == "mlp":
            sizes = sizes[:1]
        if _is_compiling():
            flat = _ops.normed(h, scaled, self._handle, _HALVES.index(half), sum(sizes))
        else:
            flat = self.normed(half, h, scaled)
        return apart(flat, h, sizes)

    def _added(
        self, half: Half, x: torch.Tensor, residual: torch.Tensor, scales: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if _is_compiling():
            y, scaled = _ops.added(x.contiguous(), residual, self._handle, _HALVES.index(half), scales)
            return y, scaled if scales else None
        return self.added(half, x, residual, scales)

    def normed(self, half: Half, h: torch.Tensor, scaled: torch.Tensor | None) -> torch.Tensor:
        """The products of a half's first layers with its norm of ``h``, behind each other; of the MLP's, gates times
        values. What the operator does, whether by one launch or not."""
        launches = self._few(half, h)
        if launches is not None:
            first, _, norm = launches
            return first.normed(h, norm.scaled(h) if scaled is None else scaled, norm)
        x = self._norms[half].norm(h)
        parts = [layer._computed(x) for layer in self.first[half].layers]
        if half == "mlp":
            parts = [self._mlp.act_fn(parts[0]) * parts[1]]
        return torch.cat([part.reshape(-1) for part in parts])

    def added(
        self, half: Half, x: torch.Tensor, residual: torch.Tensor, scales: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``residual`` and the product of a half's last layer with ``x``; and what the next norm wants of that."""
        layer = self.last[half].layers[0]
        if (
            x.dtype is not residual.dtype
            or x.device != residual.device
            or x.shape[-1:] != (layer.in_features,)
            or x.numel() // layer.in_features != residual.numel() // residual.shape[-1]
        ):
            raise layer._refuse(
                f"its input is {list(x.shape)} of {x.dtype}, beside a residual of {list(residual.shape)} of "
                f"{residual.dtype}",
                "call wcodec.nn.fuse_(model, blocks=False)",
            )
        launches = self._few(half, residual)
        norm = self._norm_after(half, residual) if scales else None
        if launches is None:
            y = residual + layer._computed(x)
            return y, None if norm is None else norm.scaled(y)
        return launches[1].added(x, residual, norm)

    def _norm_after(self, half: Half, h: torch.Tensor) -> Norm | None:
        """The norm that comes behind a half, if it is where the half is."""
        block = self if half == "attention" else self.next
        after: Half = "mlp" if half == "attention" else "attention"
        if block is None or after not in block.first:
            return None
        layer = block.first[after].layers[0]
        return block._norms[after].get(layer) if layer._dtype is h.dtype and layer._device == h.device else None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_handle"]
        state["_incoming"] = {}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._register()


def _all_of(layers: Sequence[CompressedLinear], x: torch.Tensor) -> Sequence[torch.Tensor]:
    """The product of each layer: views of one product, where the decoded weights lie one below the other."""
    plans = [layer._plan or layer._prepared(layer._dtype) for layer in layers]
    plan, begin = plans[0]
    biases = [bias for layer in layers if (bias := layer._parameters["bias"]) is not None]
    joined = len(biases) in (0, len(layers)) and all(bias.dtype is x.dtype for bias in biases)
    if joined and plans == [(plan, begin + i) for i in range(len(layers))]:
        found = plan.apply_below(begin, len(layers), x, torch.cat(biases) if biases else None)
        if found is not None:
            return found.split([layer.out_features for layer in layers], -1)
    return [layer._computed(x) for layer in layers]


def _norms(module: Any) -> bool:
    return is_rms_norm(plain_class(module)) and hasattr(module, "variance_epsilon")


def _is_silu(function: Any) -> bool:
    kind = type(function)
    ours = kind.__module__ == "transformers.activations" and kind.__name__ == "SiLUActivation"
    return ours or kind is torch.nn.SiLU or function is torch.nn.functional.silu


def _arguments(kind: type[Any]) -> dict[str, Any]:
    """Names of the arguments of a class's ``forward``, with what they are where they are not given."""
    parameters = list(inspect.signature(inspect.unwrap(kind.forward)).parameters.values())[1:]
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return {p.name: None if p.default is p.empty else p.default for p in named}


def find(module: Any) -> Block | None:
    """The block that a module is, if one of its halves can be done in another way than by its modules."""
    if block_form(plain_class(module)) is None or not all(
        isinstance(module._modules.get(name), torch.nn.Module)
        for name in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
    ):
        return None
    block = Block(module)
    return block if block.first else None


def run(self: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``forward`` of a module that is a block."""
    block: Block | None = self.__dict__.get("_wcodec_block")
    if block is None:
        # Whoever keeps a module's ``forward``, as hooks of accelerate do, calls it when its block is gone, too.
        return forward(self, *args, **kwargs)
    h = args[0] if args else kwargs.get("hidden_states")
    if any(name in kwargs for name in block._form.earlier):
        # What renames it, and warns, stands around the block's own forward.
        return forward(self, *args, **kwargs)
    return block.run(self, h, args, kwargs) if block.takes(self, h) else forward(self, *args, **kwargs)


def chain(modules: Iterable[torch.nn.Module]) -> None:
    """Tells each block which one comes behind it: the next of their list."""
    for module in modules:
        if isinstance(module, torch.nn.ModuleList):
            # Some lists have nothing in a place.
            blocks = [getattr(child, "__dict__", {}).get("_wcodec_block") for child in module]
            for block, after in itertools.pairwise(blocks):
                if block is not None:
                    block.next = after
