"""Linear layers of other classes than torch's: which of them compute the same, by their code and by trying it."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F

Form = Literal["linear", "sum"]

# Names that a forward may ask for whose result depends on its input, the weight and the bias only, with the modules of
# torch that they must be.
_NAMES = {"weight", "bias", "T", "t", "mT", "linear", "matmul", "functional"}
_MODULES: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": F}
# Instructions by which code would do another thing for other inputs, or keep something.
_BRANCHES = ("COMPARE", "CONTAINS", "FOR_ITER", "STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "YIELD", "SEND", "IMPORT")
# Members of a class, beside its forward, that are for nobody but itself.
_OF_CLASSES = {
    *("__module__", "__qualname__", "__doc__", "__init__", "__annotations__", "__constants__", "__parameters__"),
    *("__firstlineno__", "__static_attributes__", "__dict__", "__weakref__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__orig_bases__", "reset_parameters", "extra_repr", "__repr__", "forward"),
}


def summed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product, rounded, and the bias."""
    product = F.linear(x, weight)
    return product if bias is None else product + bias


_FORMS: dict[Form, Callable[..., torch.Tensor]] = {"linear": F.linear, "sum": summed}


def form_of(kind: type[Any], bias: bool = True) -> Form | None:
    """Says how layers of a class that derives from ``torch.nn.Linear`` compute: as that does, or the same with a bias
    that is added to a rounded product; none where nothing proves either.

    :param bias: whether they have one.

    >>> class Own(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return x @ self.weight.T if self.bias is None else x @ self.weight.T + self.bias
    >>> form_of(torch.nn.Linear), form_of(Own)
    ('linear', 'sum')
    """
    if kind is torch.nn.Linear:
        return "linear"
    between = [c for c in kind.__mro__ if issubclass(c, torch.nn.Linear) and c is not torch.nn.Linear]
    other_classes = [c for c in kind.__mro__ if c not in between and c not in torch.nn.Linear.__mro__]
    if other_classes or any(set(vars(c)) - _OF_CLASSES for c in between):
        return None
    return "linear" if kind.forward is torch.nn.Linear.forward else _tried(kind.forward, bias)


@functools.lru_cache(maxsize=256)
def _tried(forward: Any, has_bias: bool) -> Form | None:
    """Finds what a forward computes, if its code can be followed and a few inputs show it."""
    if not _can_be_followed(forward):
        return None
    candidates = dict(_FORMS)
    generator = torch.Generator().manual_seed(0)
    # A half precision shows where results are rounded.
    for dtype in (torch.float32, torch.bfloat16):
        weight, bias, x = (torch.randn(n, generator=generator).to(dtype) for n in (19 * 37, 19, 2 * 3 * 37))
        weight, x = weight.view(19, 37), x.view(2, 3, 37)
        for given in (x, x[0], x[0, 0]):
            added = bias if has_bias else None
            try:
                with torch.no_grad(), torch.device("cpu"):
                    result = forward(types.SimpleNamespace(weight=weight, bias=added), given)
            except Exception:
                return None
            if not isinstance(result, torch.Tensor):
                return None
            candidates = {form: f for form, f in candidates.items() if _same(result, f(given, weight, added))}
    return next(iter(candidates), None)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype is b.dtype and torch.equal(a, b)


def _can_be_followed(forward: Any) -> bool:
    """Whether code makes its result of the input, the weight and the bias in one way for all."""
    if not isinstance(forward, types.FunctionType):
        return False
    code = forward.__code__
    if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_flags & 0x0C or code.co_freevars or code.co_cellvars:
        return False
    for name in code.co_names:
        if name not in _NAMES and forward.__globals__.get(name) is not _MODULES.get(name, forward):
            return False
    if any(not (value is None or isinstance(value, str)) for value in code.co_consts):
        return False
    return not any(i.opname.startswith(_BRANCHES) for i in dis.get_instructions(forward))
