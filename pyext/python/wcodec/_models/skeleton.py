"""The model of a config without weights. Parameters and buffers have the dtypes that transformers loads them in."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from .._core.errors import InputError, UnsupportedError
from .._core.foreign import by_transformers, class_of
from .folder import WEIGHTS
from .names import put


def skeleton(
    config: Any, dtype: torch.dtype, place: Path | str, trust_remote_code: bool = False, tensors: int | None = None
) -> Any:
    """The model of a config.

    :param place: the path that messages name.
    :param tensors: the number of tensors that there are for it, if that is known.
    :raises FormatError: if transformers makes none of it.
    :raises InputError: if it has more layers than there are tensors.
    """
    if tensors is not None:
        # Before a model is built whose layers would take for ever.
        with by_transformers(place, "makes no config of it"):
            layers = getattr(config.get_text_config(), "num_hidden_layers", None)
        if isinstance(layers, int) and layers > tensors:
            raise InputError(
                f"{place}: its config says {layers} layers, and there are {tensors} tensors "
                "(use the config that belongs to the weights)",
                file=place,
                code="I507",
            )
    try:
        from accelerate import init_empty_weights
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise UnsupportedError(
            "models need transformers and accelerate (pip install torch transformers accelerate)", code="U202"
        ) from None
    # The folder's file says so for transformers' own loading; here nothing of it is wanted.
    for key in ("quantization_config", WEIGHTS):
        if getattr(config, key, None) is not None:
            delattr(config, key)
    # The first versions of transformers 5 make parts of a model in the dtype of their own configs.
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        if part is not None:
            part.dtype = dtype
    with by_transformers(place, "makes no model of its config"):
        named = class_of(config)
        with init_empty_weights(include_buffers=False):
            if named is None:
                model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
            else:
                model = named._from_config(config, dtype=dtype)
        keep_float32(model, dtype)
        make_buffers(model)
    return model


def keep_float32(model: Any, dtype: torch.dtype) -> None:
    """Makes float32 of those parameters of a model without weights, and of those buffers that files have, that its
    class keeps so, whatever is computed in.

    All others have the dtype that they were made in: that of the model, or another one that their module asked for.
    """
    patterns = _patterns(model, dtype)
    if not patterns:
        return
    wanted = re.compile("|".join(f"(?:{pattern.replace('*', '.*')})" for pattern in patterns))
    made: dict[int, torch.nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if parameter.device.type != "meta" or not parameter.is_floating_point() or not wanted.search(name):
            continue
        if id(parameter) not in made:
            made[id(parameter)] = torch.nn.Parameter(parameter.detach().to(torch.float32), requires_grad=False)
        put(model, name, made[id(parameter)])
    for name, buffer in list(model.named_buffers(remove_duplicate=False)):
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        is_kept = leaf not in module._non_persistent_buffers_set and wanted.search(name)
        # Counts, too: transformers makes float32 of all that the class names.
        if is_kept and buffer.dtype != torch.float32:
            module._buffers[leaf] = buffer.to(torch.float32)


def _patterns(model: Any, dtype: torch.dtype) -> list[str]:
    plan = getattr(model, "_get_dtype_plan", None)
    # Up to 5.0 a plan is for all dtypes.
    dtype_plan = plan(dtype) if callable(plan) else getattr(model, "dtype_plan", None) or {}
    return [pattern for pattern, dtype_of_pattern in dtype_plan.items() if dtype_of_pattern is torch.float32]


def make_buffers(model: Any) -> None:
    """Has a model's class make its buffers anew, as transformers does when it has loaded one: in float32, and not in
    the dtype that the model was built in."""
    # Code of others may know nothing of marks, and write to parameters, too.
    if type(model).__module__.partition(".")[0] == "transformers":
        initialize(model, {name for name, _ in model.named_buffers(remove_duplicate=False)})


def initialize(model: Any, names: Collection[str]) -> None:
    """Has a model's class make some of its tensors, and no others."""
    if not hasattr(model, "initialize_weights"):
        return
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        # transformers' mark on tensors that have their values.
        tensor._is_hf_initialized = name not in names
        model.get_submodule(name.rpartition(".")[0])._is_hf_initialized = False
    model.initialize_weights()
    for _, tensor in tensors:
        tensor._is_hf_initialized = True


def as_ever() -> Any:
    """Without what whoever calls has set for new tensors: another device, another dtype, inference mode.

    transformers builds models under some of them; tensors of inference mode could never be trained beside.
    """
    stack = ExitStack()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    stack.callback(torch.set_default_dtype, before)
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.device("cpu"))
    return stack
