"""Choice of tokens: from options of a command to what ``generate`` of transformers takes."""

from __future__ import annotations

import argparse
from typing import Any

_DRAWING = ("temperature", "top_p", "top_k")


def options_of(a: argparse.Namespace, *, greedy: bool) -> dict[str, Any]:
    """Options for ``generate``.

    :param greedy: whether the likeliest token is taken where nothing is said; otherwise the model's own settings count.
    """
    given = {name: getattr(a, name) for name in _DRAWING if getattr(a, name) is not None}
    options: dict[str, Any] = {}
    if given.pop("temperature", None) == 0 or (greedy and not given and a.temperature is None):
        # Told so, transformers warns of settings of the model that only count when tokens are drawn.
        options = {"do_sample": False, **dict.fromkeys(_DRAWING)}
    elif a.temperature is not None or given:
        options = {"do_sample": True, **given}
        if a.temperature is not None:
            options["temperature"] = a.temperature
    if a.repetition_penalty is not None:
        options["repetition_penalty"] = a.repetition_penalty
    return options


def seed(a: argparse.Namespace) -> None:
    """Makes what is drawn from here on the same with the same number."""
    if a.seed is not None:
        import torch

        torch.manual_seed(a.seed)
