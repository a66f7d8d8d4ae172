"""Parameters that are one: as transformers decides it when it knows which tensors a checkpoint has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .names import Match

Same = Callable[[str, str], bool]


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
            _put(model, name, model.get_parameter(source))


def settle(model: torch.nn.Module, found: Match, same: Same) -> None:
    """Decides which parameters of a model without weights are tied, and gives those one object.

    transformers' rule: of a pair that the model ties, and of which the checkpoint has one, both are that; if it has
    both, they are tied if they are equal, whatever the config says; if it has none, another one of the same source
    stands in. Parameters that are found by a tie get the names of its tensors in ``found``.

    :param same: whether two tensors of the checkpoint, by their names, have the same values.
    """
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    pairs = [(target, source) for target, source in tied_pairs(model) if target in names and source in names]
    # Which of them are one may depend on the checkpoint, so that none is at first.
    for target, source in pairs:
        parameter = model.get_parameter(target)
        if parameter is model.get_parameter(source):
            _put(model, target, torch.nn.Parameter(parameter.detach().clone(), requires_grad=False))
    for place, (target, source) in enumerate(pairs):
        has_target, has_source = found.has(target), found.has(source)
        if has_target and has_source:
            if not found.equal(target, source, same):
                model.all_tied_weights_keys = {k: v for k, v in tied_pairs(model) if k != target}
                continue
        elif has_target:
            target, source = source, target
        elif not has_source:
            others = (t for t, s in pairs[place + 1 :] if s == source and found.has(t))
            if (other := next(others, None)) is None:
                # A parameter that no file has stays tied, and is missing.
                _put(model, target, model.get_parameter(source))
                continue
            source = other
        found.alias(target, source)
        _put(model, target, model.get_parameter(source))


def _put(model: torch.nn.Module, name: str, parameter: Any) -> None:
    path, _, leaf = name.rpartition(".")
    model.get_submodule(path)._parameters[leaf] = parameter
