"""transformers' own saving, which would leave the compressed weights out, is refused for models that have some."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from .._errors import InputError
from ..nn import CompressedLayer


def save_pretrained(*_: Any, **__: Any) -> NoReturn:
    """Stands in for a model's own method.

    :raises InputError: always.
    """
    raise InputError(
        "transformers cannot save compressed layers: the model would be loaded with random weights in their place "
        "(use wcodec.save_pretrained(model, folder), or wcodec.decompress_ the model first)"
    )


def push_to_hub(*_: Any, **__: Any) -> NoReturn:
    """Stands in for a model's own method, which makes a repository before it saves.

    :raises InputError: always.
    """
    raise InputError(
        "transformers cannot push compressed layers to the Hub: the model would be loaded with random weights in their "
        "place (use wcodec.save_pretrained(model, folder), and upload the folder with huggingface_hub)"
    )


_METHODS = {"save_pretrained": save_pretrained, "push_to_hub": push_to_hub}


def mark(model: torch.nn.Module) -> None:
    """Puts the refusals on every module of a model that has these methods and compressed layers, and takes them from
    those that have no compressed layers any more.

    They are functions of this file, in the modules' dictionaries: copies and pickles of the model keep them.
    """
    for module in model.modules():
        for name, refusal in _METHODS.items():
            if not hasattr(type(module), name) or _saves_adapters(module):
                continue
            if any(isinstance(m, CompressedLayer) for m in module.modules()):
                module.__dict__[name] = refusal
            elif module.__dict__.get(name) is refusal:
                del module.__dict__[name]
                _forget_quantizer(module)


def _forget_quantizer(module: Any) -> None:
    """Makes an ordinary model of one that transformers loaded with our quantizer: as long as it has that, it refuses to
    save the model in words of its own."""
    quantizer: Any = getattr(module, "hf_quantizer", None)
    if type(quantizer).__module__ == "wcodec._transformers":
        quantizer.remove_quantization_config(module)


def check_no_adapters(model: torch.nn.Module) -> None:
    """Adapters of peft would be compressed with the layers that they are beside, or merged into what is not kept.

    :raises InputError: for a model that has some.
    """
    for name, module in model.named_modules():
        if _saves_adapters(module) and isinstance(getattr(module, "base_layer", None), torch.nn.Module):
            raise InputError(
                f"'{name}' is an adapter of peft (compress_ the model first, then attach adapters; merge or unload "
                "those that are there)"
            )


def _saves_adapters(module: torch.nn.Module) -> bool:
    """Whether a module is one of peft's, whose models save what was trained beside the weights, and not these."""
    return any(c.__module__.partition(".")[0] == "peft" for c in type(module).__mro__)
