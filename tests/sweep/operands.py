"""Which parameters of a model are multiplied with, found by looking at what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .models import forward

PRODUCT, CONVOLUTION, TABLE, OTHER = "product", "convolution", "table", "other"

_USES = {
    "convolution": CONVOLUTION,
    "conv1d": CONVOLUTION,
    "conv2d": CONVOLUTION,
    "conv3d": CONVOLUTION,
    "conv_transpose1d": CONVOLUTION,
    "_convolution": CONVOLUTION,
    "embedding": TABLE,
    "embedding_bag": TABLE,
    **dict.fromkeys(
        ("mm", "addmm", "bmm", "baddbmm", "mv", "linear", "matmul", "einsum", "_grouped_mm", "addmv", "bilinear"),
        PRODUCT,
    ),
}
# Their results hold values of one operand, in another order or dtype.
_COPIES = {"_to_copy", "clone", "copy_", "cat", "stack", "contiguous", "index", "index_select", "to"}


class _Watch(TorchDispatchMode):
    def __init__(self, of: dict[int, str]) -> None:
        super().__init__()
        self.of = of
        self.uses: dict[str, set[str]] = {}
        self.held: list[torch.Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        use = _USES.get(name)
        if use is None and name not in _COPIES:
            return out
        for tensor in _tensors(args):
            parameter = self.of.get(_place(tensor))
            if parameter is None:
                continue
            if use is not None:
                self.uses.setdefault(parameter, set()).add(use)
            elif torch.is_tensor(out) and out.numel() and _place(out) not in self.of:
                # Held, so that nothing else comes to be where it is.
                self.held.append(out)
                self.of[_place(out)] = parameter
        return out


def uses(model: Any, inputs: dict[str, Any]) -> dict[str, str]:
    """By the name of each parameter with at least two dimensions, the use of it in ``forward``."""
    named = {name: p for name, p in model.named_parameters() if p.dim() >= 2 and p.numel()}
    watch = _Watch({_place(p): name for name, p in named.items()})
    with watch:
        forward(model, inputs)
    return {name: _main(watch.uses.get(name, set())) for name in named}


def _main(found: set[str]) -> str:
    return next((use for use in (PRODUCT, CONVOLUTION, TABLE) if use in found), OTHER)


def _place(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _tensors(args: Any) -> list[torch.Tensor]:
    out: list[torch.Tensor] = []
    for arg in args:
        if torch.is_tensor(arg):
            out.append(arg)
        elif isinstance(arg, list | tuple):
            out.extend(a for a in arg if torch.is_tensor(a))
    return out
