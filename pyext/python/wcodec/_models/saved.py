"""The model that is saved: taken out of what is around it, and checked for what no loading would find again."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from .._core.errors import InputError, WcodecError
from .._core.foreign import by_transformers
from ..nn import CompressedLayer
from .parallel import check_whole

# The prefix that torch.compile puts into the names of wrapped modules.
_COMPILED = re.compile(r"(?:^|(?<=\.))_orig_mod\.")
_AROUND = ("DataParallel", "DistributedDataParallel", "OptimizedModule")
_SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine", "PipelineParallel", "PipelineStage")


def plain_name(name: str) -> str:
    """The name of a tensor as in the model itself, where parts of it are compiled.

    >>> plain_name("model.layers.0._orig_mod.mlp.weight")
    'model.layers.0.mlp.weight'
    """
    return _COMPILED.sub("", name)


def inner(model: Any) -> Any:
    """The model itself, of one that torch.compile or a wrapper of torch for several devices is around.

    :raises InputError: if a wrapper has only a part of the model, or changed it.
    """
    while True:
        kind = type(model).__name__
        if kind in _SHARDED:
            raise InputError(
                f"a {kind} has parts of a model, which cannot be saved as one (save the model without it)", code="I517"
            )
        if not _is_torchs(model):
            break
        model = model._orig_mod if kind == "OptimizedModule" else model.module
    for name, module in model.named_modules():
        if _is_pefts(module) and isinstance(getattr(module, "base_layer", None), torch.nn.Module):
            raise InputError(
                f"'{name}' has an adapter of peft, which is saved by itself (save_pretrained of the PeftModel or of "
                "the model that it was loaded into; unload() it to save the model)",
                code="I505",
            )
    check_whole(model, "saved")
    for name, tensor in model.named_parameters():
        if type(tensor.data).__name__ == "DTensor":
            raise InputError(
                f"'{name}' is a DTensor, of which this process has a part (save the model before it is sharded)",
                tensor=name,
                code="I517",
            )
    for name, layer in model.named_modules():
        if isinstance(layer, CompressedLayer) and any(_COMPILED.search(t) for t in layer.tensors):
            raise InputError(
                f"'{name}' was compressed inside of what torch.compile wraps, under names that no model has (call "
                "compress_ first, then torch.compile)",
                tensor=layer.tensor,
                code="I518",
            )
    return model


def _is_pefts(module: torch.nn.Module) -> bool:
    return any(c.__module__.partition(".")[0] == "peft" for c in type(module).__mro__)


def _is_torchs(model: Any) -> bool:
    return type(model).__name__ in _AROUND and type(model).__module__.partition(".")[0] == "torch"


def check_own(model: Any) -> None:
    """Checks that a model's class makes every parameter that the model has: parameters that were added would be in the
    files, and loading would refuse them or leave them out.

    :raises InputError: if there is more; it is named.
    """
    made = _made_again(model)
    if made is None:
        return
    known = {n: tuple(p.shape) for n, p in made.named_parameters(remove_duplicate=False)}
    modules = {name for name, _ in made.named_modules(remove_duplicate=False)}
    rest = {plain_name(n): tuple(p.shape) for n, p in model.named_parameters()}
    more = [n for n in rest if n not in known]
    more += [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, CompressedLayer) and plain_name(name) not in modules
    ]
    kind = type(model).__name__
    if more:
        shown = ", ".join(more[:5]) + (f" and {len(more) - 5} more" if len(more) > 5 else "")
        raise InputError(
            f"a {kind} of this config has no {shown}, so the saved model could not be loaded (save a model of a class "
            "that makes it in its __init__, or take it out and save it by itself)",
            tensor=more[0],
            code="I519",
        )
    for path, layer in model.named_modules():
        if isinstance(layer, CompressedLayer):
            shapes = {f"{plain_name(path)}.{key}": shape for key, shape in layer.shapes.items()}
            rest.update((name, shape) for name, shape in shapes.items() if name in known)
    for name, shape in rest.items():
        if shape != known[name]:
            raise InputError(
                f"'{name}' is {list(shape)}, and in a {kind} of this config {list(known[name])} (change the "
                "config as the model was changed)",
                tensor=name,
                code="I519",
            )


def _made_again(model: Any) -> Any:
    """A model of the same class and config without weights; ``None`` where its class makes none of a config alone."""
    try:
        from accelerate import init_empty_weights
    except ImportError:
        return None
    kind: Any = getattr(type(model), "_plain_class", None) or type(model)
    if not hasattr(model.config, "to_json_file") or not hasattr(kind, "_from_config"):
        return None
    # The config as its file will have it: some classes do not take all that is in ``to_dict``, and numbers without end
    # are written in a way of their own.
    with tempfile.TemporaryDirectory() as folder:
        model.config.to_json_file(Path(folder, "config.json"), use_diff=True)
        config = type(model.config).from_pretrained(folder, local_files_only=True)
    if getattr(config, "quantization_config", None) is not None:
        delattr(config, "quantization_config")
    try:
        with by_transformers(kind.__name__, "makes no model of its config"), init_empty_weights():
            return kind._from_config(config)
    except WcodecError:
        return None


def once(model: Any, rest: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of the rest without those that are tied to another of them and equal to it: it is stored once."""
    dropped = set()
    for target, source in getattr(model, "all_tied_weights_keys", {}).items():
        a, b = rest.get(target), rest.get(source)
        if a is None or b is None or target == source or source in dropped or a.shape != b.shape or a.dtype != b.dtype:
            continue
        if a.data_ptr() == b.data_ptr() or (a.device == b.device and torch.equal(a, b)):
            dropped.add(target)
    return {name: tensor for name, tensor in rest.items() if name not in dropped}


def save_settings(model: Any, place: Path) -> None:
    """Writes the config and the settings of generation, as they are: transformers refuses to save those that it finds
    invalid, though it reads them."""
    try:
        model.config.save_pretrained(place)
    except ValueError:
        model.config.to_json_file(place / "config.json", use_diff=True)
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return
    try:
        generation.save_pretrained(place)
    except ValueError:
        # The settings for compilation are of this process alone; transformers leaves them out, too.
        with_compile = generation.__dict__.pop("compile_config", None)
        try:
            generation.to_json_file(place / "generation_config.json", use_diff=True)
        finally:
            if with_compile is not None:
                generation.compile_config = with_compile
