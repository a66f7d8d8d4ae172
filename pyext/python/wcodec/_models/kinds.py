"""Which modules can be compressed and in which way, and why others cannot: by what they are made of and compute."""

from __future__ import annotations

import dis
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from ..nn._layers.forms import form_of
from ..nn.experts import STACKS, eager_forward
from .uses import functions_of, multiplied

# Matrices of a stack that are smaller, or so many for their size, are no matrices of experts.
_LEAST = 8
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Parameters of the kinds that are known, beside the matrix.
_OWN = {"linear": {"weight", "bias"}, "conv1d": {"weight", "bias"}, "embedding": {"weight"}}
# Functions that may set a module's parameters: it is not running then.
_MAKING = ("__init__", "reset_parameters", "_reset_parameters", "_init_weights", "init_weights")


@dataclass(frozen=True)
class Kind:
    """The kind of a module."""

    name: str | None = None
    """The kind of a :class:`Candidate`; none if the module is none."""
    keys: tuple[str, ...] = ()
    """Names of its parameters that can be compressed."""
    why: str | None = None
    """Why it is none, or nothing if it has no matrix."""


def kind_of(module: torch.nn.Module, least: int) -> Kind:
    """Says how a module can be compressed.

    :param least: elements of matrices that are worth the while, in modules of which nothing is known.
    """
    if isinstance(module, torch.nn.Linear):
        plain = "linear"
    elif isinstance(module, torch.nn.Embedding):
        plain = "embedding"
    elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        plain = "conv1d"
    else:
        return _others(module, least)
    if (why := _no_weight(module, plain)) is not None:
        return Kind(why=why)
    if plain == "linear" and form_of(type(module), module.bias is not None) is None:
        plain = "own"
    elif plain == "embedding" and not _is_table(module):
        plain = "own"
    why = _not_own(module, ("weight",)) if plain == "own" else _beside(module, plain)
    return Kind(why=why) if why is not None else Kind(plain, ("weight",))


def _others(module: torch.nn.Module, least: int) -> Kind:
    if hasattr(module, "parametrizations"):
        why = "its weight is computed from others"
        return Kind(why=why)
    matrices = [p for p in module._parameters.values() if p is not None and (is_unmade(p) or is_matrix(p))]
    if not matrices:
        return Kind()
    of: Any = type(module)
    if any(c.__module__.startswith("torch.") and c is not torch.nn.Module for c in of.__mro__):
        # torch has code of its own for them, and for classes that derive from them.
        why = f"a {of.__name__}, which torch computes by code of its own"
        return Kind(why=why)
    keys, kind = stacks_of(module), "experts"
    if not keys:
        large = {
            k: p for k, p in module._parameters.items() if p is not None and not is_unmade(p) and _is_large(p, least)
        }
        kind = "own"
        keys = tuple(key for key, p in large.items() if _is_factor(of, key, p))
        if large and not keys:
            why = f"a {of.__name__}, which does not multiply with {', '.join(large)}"
            return Kind(why=why)
    if not keys:
        why = f"a {of.__name__}, whose matrices are small"
        return Kind(why=why)
    keys = _of_one_dtype(module, keys)
    against = _not_values(module, keys)
    if against is None and not is_known(module):
        against = _not_own(module, keys)
    return Kind(why=against) if against is not None else Kind(kind, keys)


def _of_one_dtype(module: torch.nn.Module, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The parameters of the dtype that most of them have: a module decodes to one."""
    held: dict[str, Any] = {key: module._parameters[key] for key in keys}
    sizes: Counter[torch.dtype] = Counter()
    for parameter in held.values():
        sizes[parameter.dtype] += 1 if is_unmade(parameter) else parameter.numel()
    most = sizes.most_common(1)[0][0]
    return tuple(key for key, parameter in held.items() if parameter.dtype == most)


def _is_factor(of: Any, key: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter is multiplied with. One of a single row, as positions are, must be known to be."""
    is_multiplied = multiplied(of, key)
    return bool(is_multiplied) if 1 in parameter.shape else is_multiplied is not False


def _is_large(parameter: torch.Tensor, least: int) -> bool:
    extents = [extent for extent in parameter.shape if extent > 1]
    return len(extents) > 1 and parameter.numel() >= max(least, _LEAST * max(extents))


def stacks_of(module: torch.nn.Module) -> tuple[str, ...]:
    """Names of a module's parameters that are stacks of matrices."""
    held = module._parameters.items()
    names = tuple(key for key, p in held if p is not None and not is_unmade(p) and _is_stack(p))
    # The stacks of most mixtures have one order, whatever order the module has.
    return STACKS if set(names) == set(STACKS) else names


def _is_stack(parameter: torch.Tensor) -> bool:
    if parameter.dim() != 3:
        return False
    count, rows, columns = parameter.shape
    return count > 1 and min(rows, columns) >= _LEAST and count * _LEAST <= rows * columns


def is_known(module: torch.nn.Module) -> bool:
    """Whether a module of stacks is one of those experts of transformers whose products are known: it has nothing but
    the stacks of most of them."""
    held = {**module._parameters, **module._buffers}
    alone = {key for key, tensor in held.items() if tensor is not None} == set(STACKS)
    return alone and eager_forward(module) is not None


def _no_weight(module: torch.nn.Module, kind: str) -> str | None:
    """Why a layer has no weight that could be compressed, if it has none."""
    weight = module._parameters.get("weight")
    if weight is None:
        if hasattr(module, "parametrizations") or any(k.startswith("weight_") for k in module._parameters):
            return "its weight is computed from others"
        if "weight" in module._buffers:
            return "its weight is a buffer"
        return "it has no weight"
    if (why := _not_values(module, ("weight",))) is not None:
        return why
    if hasattr(module, "parametrizations") or kind != "embedding" and "bias" not in module._parameters:
        return "its bias is computed from others"
    if kind == "embedding" and module.max_norm is not None:
        return "max_norm changes the table while the model runs"
    return None


def _not_values(module: torch.nn.Module, keys: tuple[str, ...]) -> str | None:
    """Why values of these parameters cannot be compressed, if they cannot."""
    for key in keys:
        parameter: Any = module._parameters[key]
        if is_unmade(parameter):
            return "its weight is not made yet (run the model once)"
        if parameter.dtype not in _DTYPES:
            return f"its dtype is {parameter.dtype}"
        if parameter.numel() == 0:
            return "it is empty"
        if type(parameter) is not torch.nn.Parameter and parameter.device.type != "meta":
            return f"its weight is a {type(parameter).__name__}"
    return None


def _beside(module: torch.nn.Module, kind: str) -> str | None:
    """Why a layer of a known kind is more than that, if it is: whatever it holds besides would be lost."""
    more = [key for key, p in module._parameters.items() if p is not None and key not in _OWN[kind]]
    if not is_scaled(module):
        more += [key for key, buffer in module._buffers.items() if buffer is not None]
    more += [key for key, child in module._modules.items() if child is not None]
    if more:
        return f"it has {', '.join(more[:3])} beside its weight"
    if "forward" in module.__dict__ and not hasattr(module, "_hf_hook"):
        return "its forward was replaced"
    return None


def _is_table(module: torch.nn.Module) -> bool:
    return type(module) is torch.nn.Embedding or is_scaled(module)


def is_scaled(module: torch.nn.Module) -> bool:
    """Whether this is an embedding of transformers that multiplies its rows by a scale, as Gemma's."""
    named = type(module).__name__.endswith("TextScaledWordEmbedding") and isinstance(module, torch.nn.Embedding)
    return named and hasattr(module, "embed_scale") and hasattr(module, "scalar_embed_scale")


def _not_own(module: torch.nn.Module, keys: tuple[str, ...]) -> str | None:
    """Why a module cannot compute in its own way with weights that are decoded when they are read, if it cannot."""
    if "forward" in module.__dict__:
        return "its forward was replaced"
    for function in functions_of(type(module), _MAKING):
        for instruction in dis.get_instructions(function):
            if instruction.opname == "STORE_ATTR" and instruction.argval in keys:
                return f"its {function.__name__} replaces the {instruction.argval}"
    return None


def is_unmade(parameter: torch.Tensor) -> bool:
    """Whether a parameter of a lazy module has no shape yet."""
    is_lazy: bool = torch.nn.parameter.is_lazy(parameter)
    return is_lazy


def is_matrix(parameter: torch.Tensor) -> bool:
    """Whether a parameter has two dimensions and more, of more than one element each."""
    return sum(extent > 1 for extent in parameter.shape) > 1
