"""Parameters of a model that stay ordinary ones: reading them, and making sure that none is left without values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .._core.errors import InputError
from .find import may_be_missing
from .names import Match, put, tied_pairs
from .rules import Read
from .skeleton import as_ever, initialize

_SHOWN = 5


def set_parameters(model: Any, matching: Match, read: Read, device: torch.device) -> None:
    """Reads what has no values yet, one tensor at a time, in the dtype that each parameter has; tied parameters stay
    tied. Tensors that a class makes by itself, and no file has, are made as transformers makes them."""
    made: dict[int, torch.nn.Parameter] = {}
    left: list[str] = []
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if parameter.device.type != "meta":
            continue
        if id(parameter) not in made:
            if matching.has(name):
                value = matching.value(name, read).to(device=device, dtype=parameter.dtype)
            else:
                value = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                left.append(name)
            made[id(parameter)] = torch.nn.Parameter(value, requires_grad=False)
        put(model, name, made[id(parameter)])
    for name, buffer in list(model.named_buffers()):
        if name in matching.single:
            # A copy: some buffers are written to while a model runs.
            value = read(matching.single[name]).to(device=device, dtype=buffer.dtype, copy=True)
        elif buffer.device.type == "meta" and not name.endswith("_marker"):
            # One that follows from parameters, which had no values when it was made.
            value = torch.zeros(buffer.shape, dtype=buffer.dtype, device=device)
            left.append(name)
        else:
            continue
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path)._buffers[leaf] = value
    if left:
        buffers = dict(model.named_buffers())
        wrong = [name for name in left if name not in buffers and not may_be_missing(model, name)]
        if wrong or not hasattr(model, "initialize_weights"):
            raise unwritten(model, wrong or left, None)
        initialize(model, left)


def unwritten(model: Any, names: Iterable[str], file: str | None) -> InputError:
    """The error where parameters are in no file of a model."""
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return InputError(
        f"nothing has values for {', '.join(listed[:_SHOWN])}{more} of this {type(model).__name__} "
        "(restore the files of the model, or save it again)",
        file=file,
        code="I507",
    )


class Filling:
    """Gives a model that transformers loads what transformers does not find by itself: it is called where transformers
    ties weights, when all files were read and nothing was made of them yet.

    :param matching: the tensors of each parameter.
    :param read: reads one.
    :param complete: whether a parameter may not be left without values.
    """

    def __init__(self, model: Any, matching: Match, read: Read, complete: bool, file: str | None) -> None:
        self._model, self._matching, self._read = model, matching, read
        self._complete, self._file = complete, file
        # Only this model's method is replaced; the first call removes the replacement.
        model.tie_weights = self._tie_weights

    def _tie_weights(self, missing_keys: set[str] | None = None, **options: Any) -> Any:
        model = self._model
        del model.__dict__["tie_weights"]
        tie: Callable[..., Any] = model.tie_weights
        if missing_keys is None:
            return tie(**options)
        with as_ever():
            self._fill(missing_keys)
        tie(missing_keys=missing_keys, **options)
        if self._complete:
            parameters = dict(model.named_parameters(remove_duplicate=False))
            left = [name for name in missing_keys if name in parameters and not may_be_missing(model, name)]
            if left:
                raise unwritten(model, left, self._file)
        return None

    def _fill(self, missing: set[str]) -> None:
        model, matching = self._model, self._matching
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        made: dict[Any, torch.nn.Parameter] = {}
        tied = dict(tied_pairs(model))
        for name in sorted(missing):
            # A parameter that is the same tensor as another one is for transformers to tie, once that has its values.
            if not matching.has(name):
                continue
            if name in tied and matching.has(tied[name]) and _origin(matching, name) == _origin(matching, tied[name]):
                continue
            if name in parameters:
                parameter = parameters[name]
                key = _origin(matching, name)
                if (key, parameter.dtype) not in made:
                    made[key, parameter.dtype] = _as(parameter, matching.value(name, self._read))
                put(model, name, made[key, parameter.dtype])
            elif name in buffers:
                buffers[name].copy_(self._read(matching.single[name]))
            else:
                continue
            missing.discard(name)
        missing.update(self._tied_and_there(missing))

    def _tied_and_there(self, missing: set[str]) -> list[str]:
        """Parameters that are tied to others though both were read: the first versions of transformers 5 untie them,
        but for those that are told as missing."""
        model, matching = self._model, self._matching
        parameters = dict(model.named_parameters(remove_duplicate=False))
        is_there = {
            name
            for name, parameter in parameters.items()
            if name not in missing and matching.has(name) and parameter.device.type != "meta"
        }
        return [target for target, source in tied_pairs(model) if target in is_there and source in is_there]


def _origin(matching: Match, name: str) -> tuple[tuple[str, ...], str]:
    """The tensors that a parameter is read from, and its name among those that transformers makes of them."""
    return matching.keys(name), matching.converted[name][1] if name in matching.converted else ""


def _as(parameter: torch.nn.Parameter, value: torch.Tensor) -> torch.nn.Parameter:
    """A parameter with these values, of the place and dtype of another one; ranks that share it have their part."""
    device = "cpu" if parameter.device.type == "meta" else parameter.device
    value = value.to(device=device, dtype=parameter.dtype)
    if hasattr(parameter, "placements"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    out = torch.nn.Parameter(value, requires_grad=False)
    out._is_hf_initialized = True
    return out
