"""Which tensor of a file belongs to which parameter of a model, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .._errors import InputError
from .._foreign import by_transformers

_SHOWN = 5
# Of an expert: as Python writes it, and none of thousands of digits.
_NUMBER = "0|[1-9][0-9]{0,8}"
# What old checkpoints carry along and models compute by themselves.
_IGNORED = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.masked_bias)$")
# An expert of a stack, as compress_ names it.
_OF_STACK = re.compile(rf"(.*)\.({_NUMBER})", re.DOTALL)


@dataclass(frozen=True)
class Match:
    """Names in a file for each parameter of a model.

    A parameter is one tensor, or a stack of experts, each of which is one or several tensors, one below the other.
    """

    whole: dict[str, str]
    experts: dict[str, dict[int, tuple[str, ...]]]
    extra: list[str] = field(default_factory=list)

    def stack(self, parameter: str) -> list[tuple[str, ...]]:
        """Names for each expert of a stack, in order."""
        found = self.experts[parameter]
        return [found[i] for i in sorted(found)]


def shared_names(model: torch.nn.Module) -> dict[str, str]:
    """For each parameter, the first name of those that share it; tied ones by what the model says of itself."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    for target, source in getattr(model, "all_tied_weights_keys", {}).items():
        if target in names and source in names:
            names[target] = names[source]
    return names


def tie(model: torch.nn.Module) -> None:
    """Gives tied parameters of a model without weights one object."""
    for name, source in shared_names(model).items():
        if name != source:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path)._parameters[leaf] = model.get_parameter(source)


def match(model: torch.nn.Module, keys: Iterable[str]) -> Match:
    """Names in a file for the parameters of a model without weights, by the rules of transformers."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    known: dict[str, Any] = {**parameters, **dict(model.named_buffers())}
    with by_transformers(type(model).__name__, "cannot name its weights"):
        rename = _renaming(model, known)
    found = Match({}, {})
    parts: dict[str, dict[int, dict[int, str]]] = {}
    for key in keys:
        stack = _OF_STACK.fullmatch(key)
        if key not in known and stack and stack[1] in parameters and parameters[stack[1]].dim() == 3:
            found.experts.setdefault(stack[1], {})[int(stack[2])] = (key,)
            continue
        name, order = rename(key)
        if name not in known:
            if not _IGNORED.search(key):
                found.extra.append(key)
        elif order is None:
            found.whole[name] = key
        else:
            numbers = re.findall(rf"\.({_NUMBER})(?=\.)", key)
            if numbers:
                parts.setdefault(name, {}).setdefault(int(numbers[-1]), {})[order] = key
            else:
                found.extra.append(key)
    for name, experts in parts.items():
        found.experts[name] = {i: tuple(p[k] for k in sorted(p)) for i, p in experts.items()}
    for name, source in shared_names(model).items():
        for one, other in ((name, source), (source, name)):
            if one not in found.whole and other in found.whole:
                found.whole[one] = found.whole[other]
    return found


def check(model: torch.nn.Module, found: Match, shape_of: Callable[[str], tuple[int, ...]], file: str | None) -> None:
    """Raises what is missing, extra, or of another shape."""
    missing: list[str] = []
    other: list[str] = []
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if name in found.whole:
            if shape_of(found.whole[name]) != shape:
                other.append(f"{name} is {list(shape_of(found.whole[name]))}, not {list(shape)}")
        elif name in found.experts:
            experts = found.experts[name]
            missing += [f"{name} (expert {i})" for i in range(shape[0]) if i not in experts]
            for i, names in sorted(experts.items()):
                shapes = [shape_of(n) for n in names]
                rows = sum(s[0] for s in shapes if s)
                if any((rows, *s[1:]) != shape[1:] for s in shapes) or i >= shape[0]:
                    other.append(f"{name} (expert {i}) is {[rows, *shapes[0][1:]]}, not {list(shape[1:])}")
        else:
            missing.append(name)
    for name, buffer in model.named_buffers():
        shape = tuple(buffer.shape)
        if name in found.whole and shape_of(found.whole[name]) != shape:
            other.append(f"{name} is {list(shape_of(found.whole[name]))}, not {list(shape)}")
    told = [
        f"{what} {_some(names)}"
        for what, names in (("missing:", missing), ("extra:", found.extra), ("of another shape:", other))
        if names
    ]
    if told:
        raise InputError(
            f"the weights are not those of this {type(model).__name__} (open the right file, or use the config that "
            f"belongs to it): {'; '.join(told)}",
            file=file,
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _renaming(model: torch.nn.Module, known: Mapping[str, Any]) -> Callable[[str], tuple[str, int | None]]:
    """The parameter that a tensor of a checkpoint is for and, for experts, its place among the parts of one."""
    prefix = getattr(model, "base_model_prefix", "")

    def plain(key: str) -> str:
        if key in known or not prefix:
            return key
        if key.startswith(f"{prefix}.") and key[len(prefix) + 1 :] in known:
            return key[len(prefix) + 1 :]
        return f"{prefix}.{key}" if f"{prefix}.{key}" in known else key

    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:
        # Versions before 5 have modules that are named like their checkpoints.
        return lambda key: (plain(key), None)
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    orders: dict[str, int] = {}
    for converter in converters:
        # Only stacks of experts are put together here; what needs other operations is reported as extra.
        if all(type(o).__name__ in ("MergeModulelist", "Concatenate") for o in converter.operations):
            for order, pattern in enumerate(converter.source_patterns):
                orders[pattern] = order

    def rename(key: str) -> tuple[str, int | None]:
        if key in known:
            return key, None
        name, pattern = rename_source_key(key, renamings, converters)
        name = plain(name)
        if pattern is None:
            return name, None
        return (name, orders[pattern]) if pattern in orders else (key, None)

    return rename
