"""Which tensor of a file belongs to which parameter of a model, which parameters are one, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from .._core.errors import InputError
from .._core.foreign import by_transformers, cause
from .checkpoint import Checkpoint, Stored
from .find import may_be_missing
from .rules import Conversion, Read, Rules

_SHOWN = 5
# The number of an expert, as Python writes it; never thousands of digits.
_NUMBER = "0|[1-9][0-9]{0,8}"
# Old checkpoints carry these along, and models compute them by themselves.
_IGNORED = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.masked_bias)$")
# An expert of a stack, as compress_ names it.
_OF_STACK = re.compile(rf"(.*)\.({_NUMBER})", re.DOTALL)

ShapeOf = Callable[[str], tuple[int, ...]]
Same = Callable[[str, str], bool]


@dataclass
class Match:
    """Names in a file for each parameter of a model.

    A parameter is one tensor; or a stack of experts, each of which is one or several tensors, one below the other; or
    made of tensors by a conversion of transformers.
    """

    single: dict[str, str]
    experts: dict[str, dict[int, tuple[str, ...]]]
    converted: dict[str, tuple[Conversion, str]] = field(default_factory=dict)
    """The conversion that makes a parameter, and the name of its result, by parameter."""
    converted_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """Tensors that the model's class has no use for, by its own word."""
    twice: set[str] = field(default_factory=set)
    """Tensors of tied parameters that are read from equal ones."""

    def has(self, parameter: str) -> bool:
        """Whether there is something for a parameter."""
        return parameter in self.single or parameter in self.experts or parameter in self.converted

    def stack(self, parameter: str) -> list[tuple[str, ...]]:
        """Names for each expert of a stack, in order."""
        experts = self.experts[parameter]
        return [experts[i] for i in sorted(experts)]

    def keys(self, parameter: str) -> tuple[str, ...]:
        """All tensors that a parameter is read from."""
        if parameter in self.single:
            return (self.single[parameter],)
        if parameter in self.experts:
            return tuple(name for names in self.stack(parameter) for name in names)
        return self.converted[parameter][0].keys

    def alias(self, parameter: str, other: str) -> None:
        """Makes a parameter what another one is."""
        tables: tuple[dict[str, Any], ...] = (self.single, self.experts, self.converted, self.converted_shapes)
        for table in tables:
            table.pop(parameter, None)
            if other in table:
                table[parameter] = table[other]

    def equal(self, parameter: str, other: str, same: Same) -> bool:
        """Whether two parameters have the same values, by what says so of two tensors."""
        one, two = self.keys(parameter), self.keys(other)
        if one == two:
            return True
        return parameter in self.single and other in self.single and same(one[0], two[0])

    def value(self, parameter: str, read: Read) -> torch.Tensor:
        """A parameter's values, read from the file."""
        if parameter in self.single:
            return read(self.single[parameter])
        if parameter in self.converted:
            conversion, name = self.converted[parameter]
            return conversion.value(name, read)
        experts = ([read(n) for n in names] for names in self.stack(parameter))
        return torch.stack([parts[0] if len(parts) == 1 else torch.cat(parts) for parts in experts])


def matched(model: torch.nn.Module, tensors: Checkpoint | Stored, whole: bool = True) -> Match:
    """Finds the tensors of each parameter of a model without weights, and ties its parameters as these say.

    :param whole: whether they are to be the tensors of this very model.
    :raises InputError: for what is missing, extra or of another shape then.
    """
    matching = match(model, tensors, tensors.shape)
    alone = set(matching.single.values())
    _settle(model, matching, tensors.same)
    matching.twice = alone.difference(matching.single.values())
    if whole:
        check(model, matching, tensors.shape, str(tensors.path))
    return matching


def match(model: torch.nn.Module, keys: Iterable[str], shape_of: ShapeOf | None = None) -> Match:
    """Names in a file for the parameters of a model without weights, by the rules of transformers.

    :param shape_of: the shape of a tensor of the file. Without it, tensors that transformers converts are extra.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    known: dict[str, Any] = {**parameters, **_persistent(model)}
    matching = Match({}, {})
    names = list(keys)
    with by_transformers(type(model).__name__, "cannot name its weights"):
        rules = Rules(model, known)
        names = rules.in_order(names)
    stacks = {key: stack for key in names if (stack := _expert_of(key, known, parameters))}
    # A file that was written from the model has its names, and no rule is for these.
    plain = all(key in known or key in stacks for key in names)
    conversions: dict[str, Conversion] = {}
    for key in names:
        if key in stacks:
            of, expert = stacks[key]
            matching.experts.setdefault(of, {})[expert] = (key,)
            continue
        name, rule = (key, None)
        if not plain:
            with by_transformers(type(model).__name__, "cannot name its weights"):
                name, rule = rules.place_of(key)
        if name not in known:
            ignored = _is_ignored(model, name) or _is_ignored(model, key)
            (matching.ignored if ignored else matching.extra).append(key)
        elif rule is None:
            matching.single[name] = key
        else:
            converter, pattern = rule
            # Making one takes a walk over all parameters, and experts are thousands of tensors.
            if name not in conversions:
                conversions[name] = Conversion(converter, name, model)
            conversions[name].add(key, pattern)
    for name, conversion in conversions.items():
        _convert(name, conversion, known, matching, shape_of)
    for name, source in _one_object(parameters).items():
        for one, other in ((name, source), (source, name)):
            if not matching.has(one) and matching.has(other):
                matching.alias(one, other)
    return matching


def _persistent(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that files have."""
    persistent = {}
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                persistent[f"{path}.{name}" if path else name] = buffer
    return persistent


def _expert_of(key: str, known: dict[str, Any], parameters: dict[str, Any]) -> tuple[str, int] | None:
    """The stack that a tensor is a matrix of by its name, and its place in it."""
    if key in known:
        return None
    stack = _OF_STACK.fullmatch(key)
    if stack and stack[1] in parameters and parameters[stack[1]].dim() == 3:
        return stack[1], int(stack[2])
    return None


def _one_object(parameters: dict[str, Any]) -> dict[str, str]:
    """Names of parameters that are one object, and the first name of each."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(parameter), name) for name, parameter in parameters.items()}
    return {name: source for name, source in names.items() if name != source}


def _convert(
    name: str, conversion: Conversion, known: dict[str, Any], matching: Match, shape_of: ShapeOf | None
) -> None:
    """Notes what a conversion makes."""
    if known[name].dim() == 3 and (experts := _merged(conversion)) is not None:
        matching.experts[name] = experts
        return
    shapes: dict[str, tuple[int, ...]] = {}
    if shape_of is not None:
        try:
            shapes = conversion.shapes(shape_of)
        except Exception as error:
            raise InputError(
                f"transformers cannot make '{name}' of {_some(list(conversion.keys))}: {cause(error)} "
                "(use the config that belongs to the weights)",
                tensor=conversion.keys[0],
                code="I507",
            ) from None
    if not shapes or any(target not in known for target in shapes):
        matching.extra.extend(conversion.keys)
        return
    for target, shape in shapes.items():
        matching.converted[target] = (conversion, target)
        matching.converted_shapes[target] = shape


def _merged(conversion: Conversion) -> dict[int, tuple[str, ...]] | None:
    """The tensors of each expert, where a conversion does no more than to stack experts whose parts lie one below the
    other: such a stack can be kept as the matrices that it is made of."""
    kinds = list(zip(conversion.operations, conversion.dims, strict=True))
    if kinds not in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)]):
        return None
    order = {pattern: place for place, pattern in enumerate(conversion.patterns)}
    parts: dict[int, dict[int, str]] = {}
    for key, pattern in conversion.sources():
        numbers = re.findall(rf"\.({_NUMBER})(?=\.)", key)
        if not numbers:
            return None
        parts.setdefault(int(numbers[-1]), {})[order[pattern]] = key
    return {i: tuple(p[k] for k in sorted(p)) for i, p in parts.items()}


def _is_ignored(model: Any, name: str) -> bool:
    """Whether a tensor that a model has no place for is one that its class expects to be there."""
    if _IGNORED.search(name) or any(name == buffer for buffer, _ in model.named_buffers()):
        return True
    patterns = list(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
    buffers = {buffer.rpartition(".")[2] for buffer, _ in model.named_buffers()}
    if "position_ids" in buffers:
        patterns.append(r"(^|\.)position_ids$")
    if "inv_freq" in buffers:
        patterns.append(r"rotary_emb\.inv_freq")
    return any(re.search(pattern, name) for pattern in patterns)


def shared_names(model: torch.nn.Module) -> dict[str, str]:
    """The first of the names that share a parameter, for each; tied ones as the model says of itself."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    for target, source in tied_pairs(model):
        if target in names and source in names:
            names[target] = names[source]
    return names


def tied_pairs(model: Any) -> list[tuple[str, str]]:
    """Names of parameters that the model ties, each with the one that it is to be."""
    return list((getattr(model, "all_tied_weights_keys", None) or {}).items())


def tie(model: torch.nn.Module) -> None:
    """Gives tied parameters of a model without weights one object."""
    for name, source in shared_names(model).items():
        if name != source:
            put(model, name, model.get_parameter(source))


def _settle(model: torch.nn.Module, matching: Match, same: Same) -> None:
    """Decides which parameters of a model without weights are tied, and gives those one object.

    transformers' rule: of a pair that the model ties, and of which the checkpoint has one, both are that; if it has
    both, they are tied if they are equal, whatever the config says; if it has none, another one of the same source
    stands in. Parameters that are found by a tie get the names of its tensors in ``matching``.

    :param same: whether two tensors of the checkpoint, by their names, have the same values.
    """
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    pairs = [(target, source) for target, source in tied_pairs(model) if target in names and source in names]
    # Which of them are one may depend on the checkpoint, so that none is at first.
    for target, source in pairs:
        parameter = model.get_parameter(target)
        if parameter is model.get_parameter(source):
            put(model, target, torch.nn.Parameter(parameter.detach().clone(), requires_grad=False))
    for place, (target, source) in enumerate(pairs):
        has_target, has_source = matching.has(target), matching.has(source)
        if has_target and has_source:
            if not matching.equal(target, source, same):
                model.all_tied_weights_keys = {k: v for k, v in tied_pairs(model) if k != target}
                continue
        elif has_target:
            target, source = source, target
        elif not has_source:
            others = (t for t, s in pairs[place + 1 :] if s == source and matching.has(t))
            if (other := next(others, None)) is None:
                # A parameter that no file has stays tied, and is missing.
                put(model, target, model.get_parameter(source))
                continue
            source = other
        matching.alias(target, source)
        put(model, target, model.get_parameter(source))


def put(model: torch.nn.Module, name: str, parameter: Any) -> None:
    """Makes a parameter of a model another one."""
    path, _, leaf = name.rpartition(".")
    model.get_submodule(path)._parameters[leaf] = parameter


def check(
    model: torch.nn.Module, matching: Match, shape_of: ShapeOf, file: str | None, only: Collection[str] | None = None
) -> None:
    """Raises what is missing, extra, or of another shape.

    :param only: names of the parameters to look at, if not all that the model and the file have is looked at.
    """
    missing: list[str] = []
    other: list[str] = []
    for name, parameter in model.named_parameters(remove_duplicate=only is None):
        if only is not None and name not in only:
            continue
        shape = tuple(parameter.shape)
        if name in matching.single or name in matching.converted:
            file_shape = (
                matching.converted_shapes[name] if name in matching.converted else shape_of(matching.single[name])
            )
            if file_shape != shape:
                other.append(f"{name} is {list(file_shape)}, not {list(shape)}")
        elif name in matching.experts:
            experts = matching.experts[name]
            missing += [f"{name} (expert {i})" for i in range(shape[0]) if i not in experts]
            for i, names in sorted(experts.items()):
                shapes = [shape_of(n) for n in names]
                rows = sum(s[0] for s in shapes if s)
                if any((rows, *s[1:]) != shape[1:] for s in shapes) or i >= shape[0]:
                    other.append(f"{name} (expert {i}) is {[rows, *shapes[0][1:]]}, not {list(shape[1:])}")
        elif not may_be_missing(model, name):
            missing.append(name)
    for name, buffer in model.named_buffers() if only is None else ():
        shape = tuple(buffer.shape)
        if name in matching.single and shape_of(matching.single[name]) != shape:
            other.append(f"{name} is {list(shape_of(matching.single[name]))}, not {list(shape)}")
    extra = matching.extra if only is None else []
    problems = [
        f"{what} {_some(names)}"
        for what, names in (("missing:", missing), ("extra:", extra), ("of another shape:", other))
        if names
    ]
    if problems:
        raise InputError(
            f"{'' if file is None else f'{file}: '}the weights are not those of this {type(model).__name__} (open the "
            f"right file, or use the config that belongs to it): {'; '.join(problems)}",
            file=file,
            code="I507",
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


__all__ = ["Match", "check", "match", "matched", "put", "shared_names", "tie", "tied_pairs"]
