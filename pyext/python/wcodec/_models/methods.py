"""Methods of transformers' models that know nothing of compressed weights, and what stands in for them.

transformers' own would save a model without its compressed weights, and count them as none.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .._core.classes import derived
from .._core.errors import InputError
from ..nn import CompressedLayer
from . import card
from .folder import WEIGHTS
from .save import save_pretrained

# Arguments that transformers' method takes, and that have no meaning here but do no harm.
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
    """``save_pretrained`` of a model with compressed layers. It does what :func:`wcodec.save_pretrained` does and, as
    with transformers, overwrites a model that was saved there before, if that is compressed.

    :raises InputError: for what compressed weights cannot be saved as.
    """
    unknown = set(options) - _WITHOUT_EFFECT - _OF_REPOSITORIES - {"repo_id"}
    wrong = {"state_dict": state_dict is not None, "variant": variant is not None, **dict.fromkeys(unknown, True)}
    wrong["safe_serialization=False"] = not safe_serialization
    if any(wrong.values()):
        names = ", ".join(sorted(name for name, given in wrong.items() if given))
        raise InputError(
            f"save_pretrained of a model with compressed layers does not take {names} (leave it out)", code="I514"
        )
    if not is_main_process:
        return
    if getattr(model, "_hf_peft_config_loaded", False):
        # The method of transformers saves only the adapters of a model that has some; so does this one.
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
        raise InputError(
            f"push_to_hub of a model with compressed layers does not take {names} (leave it out)", code="I514"
        )
    with tempfile.TemporaryDirectory(prefix="wcodec-push-") as folder:
        save_pretrained(model, folder)
        # It names the repository, not a folder that will be gone.
        readme = Path(folder, card.FILE)
        readme.write_text(card.card(Path(folder), card.original_of(card.read(Path(folder))), repo_id, repo_id), "utf-8")
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
        tables = (m for m in model.modules() if isinstance(m, torch.nn.Embedding))
        outside = {id(m.weight) for m in tables if not isinstance(m, CompressedLayer)}
    parameters = (p for _, p in model.named_parameters() if id(p) not in outside)
    count = sum(p.numel() for p in parameters if p.requires_grad or not only_trainable)
    if only_trainable:
        return int(count)
    layers = (la for la in _stored(model) if not (exclude_embeddings and la.looked_up))
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


def _tie(model: Any, *args: Any, **kwargs: Any) -> None:
    """``tie_weights``: compressed layers that are tied share a stored tensor already; other parameters are tied as
    transformers does it."""
    before = model.__dict__.get("all_tied_weights_keys")
    try:
        if before is not None:
            model.all_tied_weights_keys = _left(model, before)
        model._plain_class.tie_weights(model, *args, **kwargs)
    finally:
        if before is not None:
            model.all_tied_weights_keys = before


def _tied_keys(model: Any, *args: Any, **kwargs: Any) -> dict[str, str]:
    """``get_expanded_tied_weights_keys``: of parameters that there are. transformers counts which of its patterns match
    some, so while it looks something stands for compressed weights."""
    places = [(m, key) for m in model.modules() if isinstance(m, CompressedLayer) for key in m.keys]
    try:
        for layer, key in places:
            layer._parameters[key] = torch.nn.Parameter(torch.empty(0, device="meta"), requires_grad=False)
        keys = model._plain_class.get_expanded_tied_weights_keys(model, *args, **kwargs)
    finally:
        for layer, key in places:
            layer._parameters.pop(key, None)
    return _left(model, keys)


def _left(model: Any, tied: Any) -> dict[str, str]:
    """Tied names of which neither is a compressed weight."""
    layers = {f"{name}." for name, m in model.named_modules() if isinstance(m, CompressedLayer)}
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    def is_left(name: str) -> bool:
        return name in names or f"{name.rpartition('.')[0]}." not in layers

    return {target: source for target, source in tied.items() if is_left(target) and is_left(source)}


def _resize(model: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, **others: Any) -> Any:
    """``resize_token_embeddings``, where it changes nothing, or the table and the head are not compressed.

    :raises InputError: otherwise.
    """
    embeddings = {"the embedding": model.get_input_embeddings(), "the head": model.get_output_embeddings()}
    layers = {what: layer for what, layer in embeddings.items() if isinstance(layer, CompressedLayer)}
    resize = model._plain_class.resize_token_embeddings
    if not layers:
        return resize(model, new_num_tokens, pad_to_multiple_of, **others)
    table = model.get_input_embeddings()
    rows = int(table.weight.shape[0])
    wanted = rows if new_num_tokens is None else int(new_num_tokens)
    if pad_to_multiple_of is not None:
        wanted = -(-wanted // pad_to_multiple_of) * pad_to_multiple_of
    if wanted == rows:
        return table
    names = [name for name, module in model.named_modules() if any(module is layer for layer in layers.values())]
    raise InputError(
        f"{' and '.join(layers)} of this {type(model).__name__} {'is' if len(layers) == 1 else 'are'} compressed and "
        f"cannot be resized (resize before compress_, or call wcodec.decompress_(model, include={names}) first)",
        code="I533",
    )


def _parameters(model: Any, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
    """``parameters``: those that there are. If all are compressed, one without elements stands for them, since callers
    ask the first one for its device and dtype."""
    parameters = iter(model._plain_class.parameters(model, recurse))
    first = next(parameters, None)
    if first is None and recurse:
        first = torch.nn.Parameter(torch.empty(0, dtype=_dtype(model), device=_device(model)), requires_grad=False)
    if first is not None:
        yield first
    yield from parameters


def _device(model: Any) -> torch.device:
    """``device``: that of the first weight, compressed or not."""
    return next(tensor.device for tensor in _weights(model))


def _dtype(model: Any) -> torch.dtype:
    """``dtype``: that of the first weight, compressed or not, that is a floating point number."""
    return next(tensor.dtype for tensor in _weights(model) if tensor.dtype.is_floating_point)


def _weights(model: torch.nn.Module) -> Iterator[Any]:
    """Yields what has the device and dtype of each weight, in the order of the model."""
    for module in model.modules():
        if isinstance(module, CompressedLayer):
            yield module
        yield from (p for p in module._parameters.values() if p is not None)


_METHODS: dict[str, Callable[..., Any]] = {
    "save_pretrained": _save,
    "push_to_hub": _push,
    "get_memory_footprint": _footprint,
    "num_parameters": _count,
    "tie_weights": _tie,
    "get_expanded_tied_weights_keys": _tied_keys,
    "resize_token_embeddings": _resize,
    "parameters": _parameters,
}
_PROPERTIES: dict[str, Callable[..., Any]] = {"device": _device, "dtype": _dtype}


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
    for name, function in _METHODS.items():
        if hasattr(kind, name):
            methods[name] = _method(name, function)
    for name, function in _PROPERTIES.items():
        if isinstance(getattr(kind, name, None), property):
            methods[name] = property(function)
    return derived(kind, {**methods, "_plain_class": kind}, _with_methods, kind)


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, function.__doc__
    return method


def _forget_quantizer(module: Any) -> None:
    """Makes an ordinary model of one that transformers loaded with our quantizer: as long as it has that, it refuses to
    save the model in words of its own."""
    quantizer: Any = getattr(module, "hf_quantizer", None)
    if type(quantizer).__module__ == "wcodec._transformers":
        quantizer.remove_quantization_config(module)
    # It names a file of compressed weights.
    if str(getattr(getattr(module, "config", None), WEIGHTS, "")).endswith(".wcodec"):
        delattr(module.config, WEIGHTS)


def check_no_adapters(model: torch.nn.Module) -> None:
    """Adapters of peft would be compressed with the layers that they are beside, or merged into what is not kept.

    :raises InputError: for a model that has some.
    """
    for name, module in model.named_modules():
        if _saves_adapters(module) and isinstance(getattr(module, "base_layer", None), torch.nn.Module):
            raise InputError(
                f"'{name}' is an adapter of peft (compress_ the model first, then attach adapters; merge or unload "
                "those that are there)",
                code="I505",
            )


def _saves_adapters(module: torch.nn.Module) -> bool:
    """Whether a module is one of peft's, whose models save what was trained beside the weights, and not these."""
    return any(c.__module__.partition(".")[0] == "peft" for c in type(module).__mro__)
