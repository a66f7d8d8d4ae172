"""Layers that read the same tensor, as q, k and v do, computed together: one launch instead of one for each."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import torch.nn.modules.module as _modules

from ..._core.classes import derived
from ..._gpu.decoder import ProductBatch
from .._layers import ops as _ops
from .._layers.pattern import Siblings, siblings
from .._layers.served import Serve, Serving, current_thread, serve_result
from ..linear import CompressedLinear
from .launches import CachedLaunch

_is_compiling = torch.compiler.is_compiling
# The module whose hooks record hidden states and attention for transformers, which leaves them there after one use.
_RECORDS = "transformers.utils.output_capturing"
# Kinds of devices on which layers are computed together; tests add another one.
KINDS = {"cuda"}


class LayerGroup:
    """Some layers of a module, and the argument of its ``forward`` that they all read."""

    def __init__(self, place: int, argument: str, names: tuple[str, ...], layers: tuple[CompressedLinear, ...]) -> None:
        self.place, self.argument, self.names, self.layers = place, argument, names, layers
        self.limit = ProductBatch.MOST * layers[0].in_features
        self.sizes = [layer.out_features for layer in layers]
        self._launch = CachedLaunch(layers)
        self._handle = _ops.register(self, layers[0].device)

    def takes(self, x: Any) -> bool:
        """Whether the layers are computed together for this input."""
        if not isinstance(x, torch.Tensor) or not 0 < x.numel() <= self.limit:
            return False
        first = self.layers[0]
        if x.device.type not in KINDS or torch.is_grad_enabled():
            return False
        if x.dtype is not first._dtype or x.shape[-1] != first.in_features:
            return False
        if torch.is_autocast_enabled(x.device.type) or not x.is_contiguous() or current_thread() in first._served:
            return False
        if watched() or any(hooked(layer) for layer in self.layers):
            return False
        if not _is_compiling():
            self.prepare()
        return self._launch.has_launch(x.numel())

    def prepare(self) -> None:
        """Makes the launch. Compiled code asks for one that was made before."""
        self._handle = _ops.moved(self._handle, self.layers[0]._device)
        self._launch.get()

    def results(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The product of each layer."""
        flat = _ops.linears(x, self._handle, sum(self.sizes)) if _is_compiling() else self.flat(x)
        return apart(flat, x, self.sizes)

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the operator: the products one behind the other, in one launch or not."""
        launch = self._launch.get()
        if launch is not None and x.numel() <= launch.limit:
            return launch.all(x)
        return torch.cat([layer._computed(x).reshape(-1) for layer in self.layers])

    def __getstate__(self) -> dict[str, Any]:
        return {"of": (self.place, self.argument, self.names, self.layers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["of"])  # type: ignore[misc]


def apart(flat: torch.Tensor, x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """The layers' outputs, which lie one behind the other in ``flat``, each in the shape of its input."""
    count = x.numel() // x.shape[-1]
    parts = flat.split([size * count for size in sizes])
    return [part.view(*x.shape[:-1], size) for part, size in zip(parts, sizes, strict=True)]


def hooked(module: torch.nn.Module) -> bool:
    """Whether somebody wants to see a module run, or has it do something else."""
    hooks = module._forward_hooks
    if hooks and not all(getattr(hook, "__module__", "") == _RECORDS for hook in hooks.values()):
        return True
    return bool(module._forward_pre_hooks or "forward" in module.__dict__)


def watched() -> bool:
    """Whether somebody wants to see all modules run."""
    return bool(_modules._global_forward_hooks or _modules._global_forward_pre_hooks)


def find(module: torch.nn.Module) -> list[LayerGroup]:
    """The groups of a module's own layers."""
    groups = []
    for siblings_read in siblings(plain_class(module)):
        members = {n: m for n in siblings_read.names if type(m := module._modules.get(n)) is CompressedLinear}
        layers = tuple(members.values())
        if len(set(layers)) > 1 and len(set(layers)) == len(layers) and len({la.in_features for la in layers}) == 1:
            groups.append(
                LayerGroup(_place(plain_class(module), siblings_read), siblings_read.argument, tuple(members), layers)
            )
    return groups


def _place(kind: Any, siblings_read: Siblings) -> int:
    """The index of the argument among positional ones, ``self`` not counted."""
    return list(inspect.signature(kind.forward).parameters).index(siblings_read.argument) - 1


def plain_class(module: torch.nn.Module) -> Any:
    """The class that a module had before :func:`change` gave it another."""
    kind: Any = type(module)
    return getattr(kind, "_unfused_class", kind)


def together(self: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``forward`` of a module with groups."""
    layers: list[CompressedLinear] = []
    serve: list[Serve] = []
    # Code that keeps a module's ``forward``, as hooks of accelerate do, calls it when groups are gone, too.
    for group in self.__dict__.get("_wcodec_groups", ()):
        x = args[group.place] if group.place < len(args) else kwargs.get(group.argument)
        is_unchanged = all(self._modules.get(n) is layer for n, layer in zip(group.names, group.layers, strict=True))
        if not is_unchanged or not group.takes(x):
            continue
        layers.extend(group.layers)
        serve.extend(serve_result(la, x, y) for la, y in zip(group.layers, group.results(x), strict=True))
    if not layers:
        return forward(self, *args, **kwargs)
    with Serving(layers, serve):
        return forward(self, *args, **kwargs)


def change(module: torch.nn.Module, run: Any, **state: Any) -> None:
    """Has ``run(module, forward, args, kwargs)`` do what the module's ``forward`` did, with attributes of its own. A
    module of a class that no other can derive from stays as it is."""
    try:
        module.__class__ = _with_forward(plain_class(module), run)
    except TypeError:
        return
    module.__dict__.update(state)


def restore(module: torch.nn.Module) -> None:
    """Undoes :func:`change`."""
    kind = plain_class(module)
    if kind is not type(module):
        module.__class__ = kind
        for name in ("_wcodec_groups", "_wcodec_block"):
            module.__dict__.pop(name, None)


def _with_forward(kind: Any, run: Any) -> Any:
    """A class of the same name."""
    return _made(kind, run, kind.forward)


@functools.cache
def _made(kind: Any, run: Any, analysed: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A ``forward`` that replaced the class's own meanwhile is meant to run.
        plain = kind.forward
        return run(self, plain, args, kwargs) if plain is analysed else plain(self, *args, **kwargs)

    functools.update_wrapper(forward, analysed)
    members = {"forward": forward, "_unfused_class": kind}
    return derived(kind, members, _with_forward, kind, run)
