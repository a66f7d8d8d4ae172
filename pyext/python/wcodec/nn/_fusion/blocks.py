"""Decoder layers whose code a description stands for (:mod:`wcodec.nn.specs`). For few tokens they are four launches:
norms, activations and residuals are done by those that multiply. For more, weights are decoded, and the
steps before and after their products take few of torch's kernels.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch

from ..._gpu.decoder import ProductBatch
from .._layers import ops as _ops
from .._layers.served import Serving, current_thread, serve_result
from .._weights.of_layer import product_below
from ..linear import CompressedLinear
from . import norms as _norms
from .groups import KINDS, apart, hooked, plain_class, watched
from .halves import HALVES, Half, HalfName
from .launches import CachedLaunch, Launch, Norm
from .recognize import BlockForm, block_form

_is_compiling = torch.compiler.is_compiling
# Modes of a half: by launches with prologues and epilogues, too; with decoded weights and few kernels beside
# the products; or by its modules as before.
HalfMode = Literal["launches", "decoded", "modules"]


class Launches(NamedTuple):
    """A half for few tokens: two launches, and its norms."""

    first: Launch
    last: Launch
    before: Norm | None
    behind: Norm | None


class Block:
    """A decoder layer, taken apart: which of its halves can be done in another way than by its modules, and what does
    them."""

    def __init__(self, module: Any, form: BlockForm) -> None:
        self._form = form
        self._names = _arguments(plain_class(module))
        spec, attending = form.spec, _attending(form, module)
        assert attending is not None
        self._attending = attending
        attention = spec.attention._replace(module=attending)
        self.halves: dict[HalfName, Half] = {
            "attention": Half("attention", attention, module),
            "mlp": Half("mlp", spec.mlp, module),
        }
        halves = self.halves.items()
        self.first: dict[HalfName, CachedLaunch] = {name: half.first for name, half in halves if half.first is not None}
        self.last: dict[HalfName, CachedLaunch] = {name: half.last for name, half in halves if half.last is not None}
        self._watched = [watched for half in self.halves.values() for watched in half.watched]
        self._code = [code for half in self.halves.values() for code in half.code]
        # The block that comes next, whose norm the last launch prepares for.
        self.next: Block | None = None
        self._incoming: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._register()

    @property
    def layers(self) -> list[CompressedLinear]:
        """All layers that its launches multiply with."""
        return [layer for launch in (*self.first.values(), *self.last.values()) for layer in launch.layers]

    def _register(self) -> None:
        self._handle = _ops.register(self, next((layer.device for layer in self.layers), "cpu"))

    # Inputs that it takes

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
        if any(getattr(kind, name) is not code for kind, name, code in self._code):
            return False
        if not all(half.is_as_it_was(module) for half in self.halves.values()):
            return False
        if self._form.spec.choice is not None and _attending(self._form, module) != self._attending:
            return False
        return not any(owner.get(name) is not part or hooked(part) for owner, name, part in self._watched)

    def _launches(self, name: HalfName, like: torch.Tensor | None = None) -> Launches | None:
        """The launches that do a half; None where the modules do it as before.

        :param like: a tensor of the dtype and on the device that it would be done for; otherwise those of its layers.
        """
        half = self.halves[name]
        first, last = half.first, half.last
        if first is None or last is None or first.layers[0]._device.type not in KINDS:
            return None
        dtype, device = (first.layers[0]._dtype, first.layers[0]._device) if like is None else (like.dtype, like.device)
        for layer in (*first.layers, *last.layers):
            if layer._dtype is not dtype or layer._device != device:
                return None
        before = None if half.before is None else half.before.get(first.layers[0])
        output = last.layers[0]
        behind = None if half.behind is None else half.behind.get(output, output.out_features)
        if (half.before is not None and before is None) or (half.behind is not None and behind is None):
            return None
        a, b = first.get(), last.get()
        return None if a is None or b is None else Launches(a, b, before, behind)

    def _fitting_launches(self, name: HalfName, h: torch.Tensor) -> Launches | None:
        """The launches, if they are for as many tokens as these."""
        launches = self._launches(name, h)
        return None if launches is None or not self.halves[name].launches_fit(h) else launches

    def _mode(self, name: HalfName, h: torch.Tensor) -> HalfMode:
        """The mode in which a half is computed. Compiled code asks for launches that were made before, and compiles all
        else."""
        half = self.halves[name]
        if not _is_compiling():
            if self._is_decoded(name, h):
                return "decoded"
            if self._launches(name, h) is None:
                return "modules"
            return "launches" if half.launches_fit(h) else "decoded"
        if half.first is None or half.last is None or not half.launches_fit(h):
            return "modules"
        layers = (*half.first.layers, *half.last.layers)
        return "launches" if all(la._dtype is h.dtype and la._device == h.device for la in layers) else "modules"

    def _is_decoded(self, name: HalfName, h: torch.Tensor) -> bool:
        """Whether a half is surely done with decoded weights; without this it may be, too. The check is a short one,
        since such passes wait for the CPU in small models."""
        half = self.halves[name]
        first, last = half.first, half.last
        if first is None or last is None or h.numel() <= ProductBatch.MOST * first.layers[0].in_features:
            return False
        layer = first.layers[0]
        is_same_kind = h.dtype is layer._dtype and h.device == layer._device and half.fits()
        return is_same_kind and first.has_providers() and last.has_providers()

    def prepare(self) -> None:
        """Makes the launches."""
        self._handle = _ops.moved(self._handle, next(iter(self.first.values())).layers[0]._device)
        for half in self.first:
            self._launches(half)

    # Its computation

    def run(self, module: Any, h: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Computes the result of the block's ``forward``."""
        mlp = self._mode("mlp", h)
        attention = self._mode("attention", h)
        # Halves that are parallel both read the layer's input.
        start = h if self._form.spec.parallel else None
        scaled = None
        if attention == "launches":
            scales = mlp == "launches" and start is None and self.halves["mlp"].divides(h)
            h, scaled = self._attend(module, h, self._given(args, kwargs), scales)
        elif attention == "decoded":
            h = self.halves["attention"].result(self._attend_decoded(module, h, self._given(args, kwargs)), h)
        else:
            h = self._attend_by_modules(module, h, self._given(args, kwargs))
            mlp = "modules" if mlp == "modules" else self._mode("mlp", h)
        if mlp == "decoded":
            return self._mlp_decoded(h if start is None else start, h)
        if mlp == "modules":
            return self._mlp_by_modules(module, h if start is None else start, h)
        (values,) = self._normed("mlp", h if start is None else start, scaled)
        after = self.next
        # A change of it in place changes its version; tensors of inference mode have none.
        ahead = False
        if after is not None and not _is_compiling() and not h.is_inference():
            ahead = after.halves["attention"].divides(h) and after._fitting_launches("attention", h) is not None
        h, scaled = self._added("mlp", values, h, ahead)
        if ahead and after is not None and scaled is not None:
            after._incoming[current_thread()] = (h, h._version, scaled)
        return h

    def _attend(
        self, module: Any, h: torch.Tensor, kwargs: dict[str, Any], scales: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        incoming = None if _is_compiling() else self._incoming.pop(current_thread(), None)
        is_valid = incoming is not None and incoming[0] is h and not h.is_inference() and incoming[1] == h._version
        results = self._normed("attention", h, incoming[2] if incoming is not None and is_valid else None)
        outputs: list[tuple[torch.Tensor, torch.Tensor | None]] = []

        def output(x: torch.Tensor) -> torch.Tensor:
            outputs.append(self._added("attention", x, h, scales))
            return outputs[0][0]

        layers = (*self.first["attention"].layers, *self.last["attention"].layers)
        serve = [serve_result(la, h, y) for la, y in zip(self.first["attention"].layers, results, strict=True)]
        with Serving(layers, [*serve, output]):
            returned = module._modules[self._attending](hidden_states=h, **kwargs)
        if not outputs or (not _is_compiling() and returned[0] is not outputs[0][0]):
            raise layers[-1]._refuse(
                "its module does not return what it gives", "call wcodec.nn.fuse_(model, blocks=False)", code="I440"
            )
        return outputs[0]

    def _attend_decoded(self, module: Any, h: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """The output of attention for the norm of ``h``, with decoded weights."""
        half = self.halves["attention"]
        layers = self.first["attention"].layers
        x = h if half.before is None else half.before(h)
        serve = [serve_result(layer, x, y) for layer, y in zip(layers, _all_of(layers, x), strict=True)]
        with Serving(layers, serve):
            attended: torch.Tensor = module._modules[self._attending](hidden_states=x, **kwargs)[0]
        return attended

    def _attend_by_modules(self, module: Any, h: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        spec = self._form.spec
        x = h if spec.attention.before is None else module._modules[spec.attention.before](h)
        attended = module._modules[self._attending](hidden_states=x, **kwargs)
        if self._attending == spec.attention.module:
            attended, _ = attended
        return self._finished(module, "attention", attended, h)

    def _mlp_by_modules(self, module: Any, h: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        spec = self._form.spec.mlp
        y = module._modules[spec.module](h if spec.before is None else module._modules[spec.before](h))
        if spec.unpacks and isinstance(y, tuple):
            y, _ = y
        return self._finished(module, "mlp", y, residual)

    def _finished(self, module: Any, name: HalfName, y: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual`` and what a half's module gives, by modules."""
        spec = self.halves[name].spec
        for behind in (spec.behind, spec.dropout):
            y = y if behind is None else module._modules[behind](y)
        return residual + (y if spec.multiplier is None else y * getattr(module, spec.multiplier))

    def _mlp_decoded(self, h: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual`` plus the MLP's output for the norm of ``h``, with decoded weights. Tensors that no other code
        has seen are changed in place."""
        half = self.halves["mlp"]
        x = h if half.before is None else half.before(h)
        values = half.joined([layer._computed(x) for layer in self.first["mlp"].layers])
        return half.result(self.last["mlp"].layers[0]._computed(values), residual, fresh=True)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the block hands on to its attention."""
        named = dict(zip(self._names, args, strict=False))
        rest: dict[str, Any] = {}
        for name, value in kwargs.items():
            (named if name in self._names else rest)[name] = value
        call = self._form.calls[self._attending]
        handed = {keyword: named.get(name, self._names[name]) for keyword, name in call.keywords}
        return {**handed, **rest} if call.rest is not None else handed

    # The two launches of a half, or the operators for them

    def _normed(self, name: HalfName, h: torch.Tensor, scaled: torch.Tensor | None) -> list[torch.Tensor]:
        sizes = self.halves[name].sizes
        if _is_compiling():
            flat = _ops.normed(h, scaled, self._handle, HALVES.index(name), sum(sizes))
        else:
            flat = self.normed(name, h, scaled)
        return apart(flat, h, sizes)

    def _added(
        self, name: HalfName, x: torch.Tensor, residual: torch.Tensor, scales: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if _is_compiling():
            y, scaled = _ops.added(x.contiguous(), residual, self._handle, HALVES.index(name), scales)
            return y, scaled if scales else None
        return self.added(name, x, residual, scales)

    def normed(self, name: HalfName, h: torch.Tensor, scaled: torch.Tensor | None) -> torch.Tensor:
        """Computes the operator: the products of a half's first layers with its norm of ``h``, one behind the other,
        in one launch or not; for the MLP, the input of its last layer."""
        half, launches = self.halves[name], self._fitting_launches(name, h)
        if launches is not None:
            first, norm = launches.first, launches.before
            if norm is None:
                return first.all(h)
            if not half.divides(h):
                return first.all(_norms.run(h, norm)[0])
            return first.normed(h, norm.scaled(h) if scaled is None else scaled, norm)
        x = h if half.before is None else half.before.norm(h)
        parts = [layer._computed(x) for layer in self.first[name].layers]
        if name == "mlp":
            parts = [half.joined(parts)]
        return torch.cat([part.reshape(-1) for part in parts])

    def added(
        self, name: HalfName, x: torch.Tensor, residual: torch.Tensor, scales: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``residual`` and what a half makes of the product of its last layer with ``x``; and what the next norm wants
        of that."""
        half = self.halves[name]
        layer = self.last[name].layers[0]
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
                code="I440",
            )
        launches = self._fitting_launches(name, residual)
        after = self._norm_after(name, residual) if scales else None
        if launches is None:
            y = half.result(layer._computed(x), residual)
            return y, None if after is None else after.scaled(y)
        if launches.behind is not None:
            y = launches.last.all(x).view(residual.shape)
            return _norms.run(y, launches.behind, residual, half.multiplier, after)
        return launches.last.added(x, residual, after, half.multiplier)

    def _norm_after(self, name: HalfName, h: torch.Tensor) -> Norm | None:
        """The norm that comes behind a half, if it is where the half is."""
        block = self if name == "attention" else self.next
        half = None if block is None else block.halves["mlp" if name == "attention" else "attention"]
        if half is None or half.first is None or half.before is None:
            return None
        layer = half.first.layers[0]
        return half.before.get(layer) if layer._dtype is h.dtype and layer._device == h.device else None

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
    biases = [bias for layer in layers if (bias := layer._parameters["bias"]) is not None]
    joined = len(biases) in (0, len(layers)) and all(bias.dtype is x.dtype for bias in biases)
    if joined and len(layers) > 1:
        product = product_below([layer._weights for layer in layers], x, torch.cat(biases) if biases else None)
        if product is not None:
            return product.split([layer.out_features for layer in layers], -1)
    return [layer._computed(x) for layer in layers]


def _arguments(kind: type[Any]) -> dict[str, Any]:
    """Names of the arguments of a class's ``forward``, with what they are where they are not given."""
    parameters = list(inspect.signature(inspect.unwrap(kind.forward)).parameters.values())[1:]
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return {p.name: None if p.default is p.empty else p.default for p in named}


def _attending(form: BlockForm, module: Any) -> str | None:
    """The name of the module that attends, or stands in the place of attention."""
    choice = form.spec.choice
    if choice is None:
        return form.spec.attention.module
    value: Any = getattr(module, choice.attribute, None)
    if value in choice.others:
        return choice.others[value]
    return form.spec.attention.module if choice.attention in (None, value) else None


def taken_apart(module: Any) -> Block | str:
    """A decoder layer as a block, whether or not launches can do any of it; or why it is none."""
    form = block_form(plain_class(module))
    if form is None:
        return f"the code of {type(module).__name__} is none that is known"
    attending, spec = _attending(form, module), form.spec
    names = [attending, spec.mlp.module, *(name for half in spec.halves for name in (half.before, half.behind))]
    for name in (n for n in names if n is not None):
        if not isinstance(module._modules.get(name), torch.nn.Module):
            return f"{name} is not there"
    return "what attends is not there" if attending is None else Block(module, form)


def find(module: Any) -> Block | None:
    """The block that a module is, if one of its halves can be done in another way than by its modules."""
    block = taken_apart(module)
    return block if isinstance(block, Block) and block.first else None


def run(self: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``forward`` of a module that is a block."""
    block: Block | None = self.__dict__.get("_wcodec_block")
    if block is None:
        # Code that keeps a module's ``forward``, as hooks of accelerate do, calls it when its block is gone, too.
        return forward(self, *args, **kwargs)
    h = args[0] if args else kwargs.get("hidden_states")
    if any(name in kwargs for name in block._form.earlier):
        # The decorator that renames it, and warns, is around the block's own forward.
        return forward(self, *args, **kwargs)
    return block.run(self, h, args, kwargs) if block.takes(self, h) else forward(self, *args, **kwargs)


def link_blocks(modules: Iterable[torch.nn.Module]) -> None:
    """Tells each block which one comes behind it: the next of their list."""
    for module in modules:
        if isinstance(module, torch.nn.ModuleList):
            # Some lists have nothing in a place.
            blocks = [getattr(child, "__dict__", {}).get("_wcodec_block") for child in module]
            for block, after in itertools.pairwise(blocks):
                if block is not None:
                    block.next = after
