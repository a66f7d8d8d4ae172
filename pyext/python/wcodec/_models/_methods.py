"""Methods of transformers' models that know nothing of compressed weights, and what stands in for them.

transformers' own would save a model without its compressed weights, and count them as none.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._classes import derived
from .._errors import InputError
from ..nn import CompressedEmbedding, CompressedLayer
from ._save import save_pretrained

# What transformers' method takes, and what has no meaning here but does no harm.
_WITHOUT_EFFECT = {"max_shard_size", "save_function", "save_original_format", "save_peft_format", "use_temp_dir"}
_OF_REPOSITORIES = {"commit_message", "create_pr", "private", "revision", "token"}


def _save(
    model: Any,
    save_directory: Any,
    is_main_process: bool = True,
    state_dict: Any = None,
    push_to_hub: bool = False,
    safe_serialization: bool = True,
    variant: str | None = None,
    **options: Any,
) -> None:
    """``save_pretrained`` of a model with compressed layers: what :func:`wcodec.save_pretrained` writes, and as it is
    with transformers, over a model that was saved there before, if that is compressed.

    :raises InputError: for what compressed weights cannot be saved as.
    """
    unknown = set(options) - _WITHOUT_EFFECT - _OF_REPOSITORIES - {"repo_id"}
    wrong = {"state_dict": state_dict is not None, "variant": variant is not None, **dict.fromkeys(unknown, True)}
    wrong["safe_serialization=False"] = not safe_serialization
    if any(wrong.values()):
        names = ", ".join(sorted(name for name, given in wrong.items() if given))
        raise InputError(f"save_pretrained of a model with compressed layers does not take {names} (leave it out)")
    if not is_main_process:
        return
    if getattr(model, "_hf_peft_config_loaded", False):
        # As transformers has it: of a model with adapters, its method saves these alone.
        plain = type(model)._plain_class.save_pretrained
        plain(model, save_directory, push_to_hub=push_to_hub, **options)
        return
    save_pretrained(model, save_directory, overwrite=True)
    if push_to_hub:
        name = options.get("repo_id") or str(save_directory).rstrip("/\\").replace("\\", "/").rpartition("/")[2]
        _upload(save_directory, name, options)


def _push(model: Any, repo_id: str, **options: Any) -> Any:
    """``push_to_hub`` of a model with compressed layers: the folder of :func:`wcodec.save_pretrained`, uploaded.

    :raises InputError: for options that this has no use for.
    """
    if unknown := set(options) - _WITHOUT_EFFECT - _OF_REPOSITORIES - {"safe_serialization"}:
        names = ", ".join(sorted(unknown))
        raise InputError(f"push_to_hub of a model with compressed layers does not take {names} (leave it out)")
    with tempfile.TemporaryDirectory(prefix="wcodec-push-") as folder:
        save_pretrained(model, folder)
        return _upload(folder, repo_id, options)


def _upload(folder: Any, name: str, options: dict[str, Any]) -> Any:
    from huggingface_hub import HfApi

    api = HfApi(token=options.get("token"))
    # Weights are uploaded to what is made first: what is there already stays as private as it is.
    repository = api.create_repo(name, private=options.get("private"), exist_ok=True).repo_id
    return api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        commit_message=options.get("commit_message") or "Upload a model with compressed weights",
        revision=options.get("revision"),
        create_pr=options.get("create_pr") or None,
    )


def _footprint(model: Any, return_buffers: bool = True) -> int:
    """``get_memory_footprint``: bytes of parameters, of buffers, and of compressed weights as they are stored, wherever
    they are; tied ones once."""
    plain = sum(p.nbytes for p in model.parameters())
    if return_buffers:
        plain += sum(b.nbytes for b in model.buffers())
    return int(plain) + sum(layer.stored_bytes for layer in _stored(model))


def _count(model: Any, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
    """``num_parameters``: weights of the model, compressed ones among them, which are not trainable; tied ones once."""
    outside = set()
    if exclude_embeddings:
        outside = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    parameters = (p for p in model.parameters() if id(p) not in outside)
    count = sum(p.numel() for p in parameters if p.requires_grad or not only_trainable)
    if only_trainable:
        return int(count)
    layers = (la for la in _stored(model) if not (exclude_embeddings and isinstance(la, CompressedEmbedding)))
    return int(count) + sum(layer.elements for layer in layers)


def _stored(model: Any) -> Iterator[CompressedLayer]:
    """Compressed layers, one of those that share their weights."""
    seen = set()
    for layer in model.modules():
        if isinstance(layer, CompressedLayer):
            key = (id(layer._store.container), layer.entry.name)
            if key not in seen:
                yield layer
            seen.add(key)


_METHODS: dict[str, Callable[..., Any]] = {
    "save_pretrained": _save,
    "push_to_hub": _push,
    "get_memory_footprint": _footprint,
    "num_parameters": _count,
}


def mark(model: torch.nn.Module) -> None:
    """Gives every module of a model that has methods of transformers and compressed layers a class with ours, and those
    that have no compressed layers any more their own class again."""
    for module in model.modules():
        kind: Any = type(module)
        plain = getattr(kind, "_plain_class", None)
        compressed = any(isinstance(m, CompressedLayer) for m in module.modules())
        if compressed and plain is None and hasattr(kind, "save_pretrained") and not _saves_adapters(module):
            module.__class__ = _with_methods(kind)
        elif plain is not None and not compressed:
            module.__class__ = plain
            _forget_quantizer(module)


@functools.cache
def _with_methods(kind: Any) -> Any:
    """A class of the same name with our methods."""
    methods: dict[str, Any] = {}
    for name, ours in _METHODS.items():
        if hasattr(kind, name):
            methods[name] = _method(name, ours)
    return derived(kind, {**methods, "_plain_class": kind}, _with_methods, kind)


def _method(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, ours.__doc__
    return method


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
