"""The dtype of each parameter and buffer of a model, as transformers' own loading gives it."""

from __future__ import annotations

import re
from typing import Any

import torch


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
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path)._parameters[leaf] = made[id(parameter)]
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
