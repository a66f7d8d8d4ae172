"""The model of a config without weights. Parameters and buffers have the dtypes that transformers loads them in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from .._core.errors import UnsupportedError
from .._core.foreign import by_transformers, class_of
from .folder import WEIGHTS
from .names import put
from .plain import make_buffers


def skeleton(config: Any, dtype: torch.dtype, place: Path | str, trust_remote_code: bool = False) -> Any:
    """The model of a config.

    :param place: the path that messages name.
    :raises FormatError: if transformers makes none of it.
    """
    try:
        from accelerate import init_empty_weights
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise UnsupportedError(
            "models need transformers and accelerate (pip install torch transformers accelerate)"
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
        kept = leaf not in module._non_persistent_buffers_set and wanted.search(name)
        # Counts, too: transformers makes float32 of all that the class names.
        if kept and buffer.dtype != torch.float32:
            module._buffers[leaf] = buffer.to(torch.float32)


def _patterns(model: Any, dtype: torch.dtype) -> list[str]:
    plan = getattr(model, "_get_dtype_plan", None)
    # Up to 5.0 a plan is for all dtypes.
    found = plan(dtype) if callable(plan) else getattr(model, "dtype_plan", None) or {}
    return [pattern for pattern, kept in found.items() if kept is torch.float32]
