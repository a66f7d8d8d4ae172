"""Steps of transformers' loading of a model whose weights are compressed or become so: they put compressed layers into
the model before it has weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch

from .._api.models import calibrated
from .._calibrate.encoding import compress_in_memory
from .._core.errors import InputError
from .._file.container import Container, TensorEntry
from .._models.checkpoint import Checkpoint, Lazy, Stored
from .._models.choose import Selection, of_checkpoint, of_container
from .._models.device_map import check_map, single, weigh
from .._models.find import find
from .._models.hub import container_beside
from .._models.names import Match, check, matched
from .._models.plain import Filling
from .._models.request import Wanted
from .._models.skeleton import as_ever, keep_float32
from .._models.stored import check_all_taken
from .._models.wrap import wrap
from ..nn import CompressedLayer
from ..nn._layers.layer import computing_dtype
from ..nn._weights.placement import refuse_disk
from . import from_pretrained

_ADVICE = "put the config.json and the .wcodec file of one model together"


def put_layers(model: Any, config: Any, options: dict[str, Any]) -> None:
    """Replaces layers of a model without weights by those of its folder's container."""
    files = [Path(file) for file in options.get("checkpoint_files") or []]
    if not files:
        raise InputError(
            "there is no .wcodec file in the folder (save the model with wcodec.save_pretrained)", code="I511"
        )
    device, dtype = _place(model, options)
    is_whole = files[0].suffix == from_pretrained.ENDING
    path = files[0] if is_whole else container_beside(files, config.file)
    with as_ever():
        container = Container.open(path)
        # Earlier versions have what is not compressed in files that transformers reads.
        rest = None if is_whole else Checkpoint(_source(files), rest=True, files=files)
        stored = Stored(container, rest)
        keep_float32(model, dtype)
        matching = matched(model, stored, whole=False)
        _check_stored_shapes(model, matching, stored, path)
        selection = of_container(model, matching, container)
        plain = [] if rest is not None else _left_to_transformers(matching, selection, stored)
        _check_extra(model, matching, stored.decoded, set(plain), path)
        settings = Wanted.of(config).settings()
        # The filling is set up before compressed layers are there, whose weights are no parameters.
        complete = type(model).__name__ in (getattr(model.config, "architectures", None) or ())
        Filling(model, matching, stored.__getitem__, complete, str(path))
        wrap(model, selection, container, settings, config.fused, device=device)
    if rest is None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        dtypes = {matching.single[name]: tensor.dtype for name, tensor in tensors if name in matching.single}
        from_pretrained.hand_on(model, from_pretrained.Left(plain, stored, stored.shape, dtypes))
    _ignore(model, [key for key in rest or plain if key not in matching.extra])
    _leave_the_rest(model)


def _source(files: list[Any]) -> Path:
    """The checkpoint that transformers is about to read: a file, or the folder of several."""
    return Path(files[0]) if len(files) == 1 else Path(files[0]).parent


def _left_to_transformers(matching: Match, selection: Selection, stored: Stored) -> list[str]:
    """Tensors that are stored as they are, and that transformers reads as it does those of any checkpoint. Tensors of
    layers are ours, and so are those that make up a parameter together."""
    taken = {key for c in selection.layers for one in c.tensors for key in one}
    taken.update(key for name in (*matching.experts, *matching.converted) for key in matching.keys(name))
    entries = ((key, stored.container[key]) for key in stored.decoded if not stored.has_scales(key))
    return [key for key, entry in entries if key not in taken and _as_it_is(entry)]


def _as_it_is(entry: TensorEntry) -> bool:
    return entry.coder == "raw" and not entry.makes_symbols


def _check_stored_shapes(model: Any, matching: Match, stored: Stored, path: Path) -> None:
    """Raises weights of another shape than the model's. Shapes of what is not compressed are for transformers to
    compare, which can be told to ignore them."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        key = matching.single.get(name, "")
        left = key in stored.container and _as_it_is(stored.container[key])
        if key in stored.decoded and not left and stored.shape(key) != tuple(parameter.shape):
            raise InputError(
                f"the container is not that of this model: {name} is {list(stored.shape(key))}, not "
                f"{list(parameter.shape)} ({_ADVICE})",
                file=str(path),
                tensor=key,
                code="I507",
            )


def _check_extra(model: Any, matching: Match, values: Collection[str], plain: Collection[str], path: Path) -> None:
    """Compressed tensors beside the layers of a model: an error if it is to be that of this very class,
    and as with transformers a warning if the model is another head, or none, on the same layers.

    :param plain: tensors that transformers reads, and tells if they are too many.
    """
    kind = type(model).__name__
    extra = [key for key in matching.extra if key in values and key not in plain]
    names = (name for name, _ in model.named_parameters(remove_duplicate=False))
    has_any = any(key in values for name in names if matching.has(name) for key in matching.keys(name))
    if has_any and extra and kind not in (getattr(model.config, "architectures", None) or [kind]):
        warnings.warn(f"{path}: a {kind} has no use for {', '.join(extra[:5])}, which stay in the file", stacklevel=2)
    elif extra or not has_any:
        what = f"it has {', '.join(extra[:5])}" if extra else "it has none of its layers"
        raise InputError(f"the container is not that of this {kind}: {what} ({_ADVICE})", file=str(path), code="I507")


def compress_layers(model: Any, config: Any, options: dict[str, Any]) -> None:
    """Replaces layers of a model without weights by compressed ones, of the files that transformers is about to read:
    tensor by tensor, so that no more of them is in memory than is being encoded."""
    files = [Path(file) for file in options.get("checkpoint_files") or []]
    if not files or any(file.suffix != ".safetensors" for file in files):
        name = files[0].name if files else "no file"
        raise InputError(
            f"weights are compressed from .safetensors files, and these are in {name} (save the model with "
            "safe_serialization first, or load it and call wcodec.compress_)",
            code="I204",
        )
    device, dtype = _place(model, options)
    with as_ever():
        # A repository's files are links to where the Hub's cache has them, named as they should be.
        checkpoint = Checkpoint(_source(files), files=files)
        keep_float32(model, dtype)
        first_name = matched(model, checkpoint, whole=False)
        # Anything else that is missing or too much is for transformers to say, as it does of any checkpoint.
        wanted = Wanted.of(config)
        choice = wanted.choice()
        layers = {name for c in find(model, *choice)[0] for name in c.parameters if first_name.has(name)}
        # Weights of another shape, and experts that are missing, are told before any is encoded.
        check(model, first_name, checkpoint.shape, str(checkpoint.path), layers)
        selection = of_checkpoint(model, first_name, checkpoint, choice)
        weights = selection.weights
        assert isinstance(weights, Lazy)
        check_all_taken(checkpoint, weights)
        settings = wanted.settings()
        refuse_disk(settings)
        encoding = {"progress": False, **config.encoding()}
        if device.type == "meta":
            runs_on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        else:
            runs_on = device
        encoding = calibrated(encoding, files[0].parent, runs_on, False, False)
        Filling(model, first_name, checkpoint.__getitem__, False, str(checkpoint.path))
        container = selection.encoded(encoding, compress_in_memory)
        wrap(model, selection, container, settings, config.fused, device=device)
    taken = weights.keys_used | {name for c in selection.layers for name in c.parameters}
    _ignore(model, taken | checkpoint.quantized.hidden)
    _leave_the_rest(model)


def _ignore(model: Any, keys: Iterable[str]) -> None:
    """Keeps transformers from naming tensors as unexpected that have become layers, or are read by us."""
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None)
    # A model has a set here, or in the first versions of transformers a list or nothing.
    kind = set if isinstance(ignored, set) else list
    model._keys_to_ignore_on_load_unexpected = kind([*(ignored or ()), *(f"^{re.escape(key)}$" for key in keys)])


def _place(model: Any, options: dict[str, Any]) -> tuple[torch.device, torch.dtype]:
    """The device that layers go to, ``meta`` as long as it is not known, and the dtype that they compute in: the model
    was built in the dtype that is wanted."""
    device_map = options.get("device_map")
    check_map(device_map)
    device = single(device_map) or torch.device("meta")
    dtype = options.get("dtype")
    if not isinstance(dtype, torch.dtype):
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return device, computing_dtype(dtype)


def _leave_the_rest(model: Any) -> None:
    """Makes transformers read what is left of a model's parameters, and nothing for compressed layers."""
    for layer in model.modules():
        if isinstance(layer, CompressedLayer):
            layer._bare = True
    weigh(model)
    # Layers that share a stored tensor are tied by that; transformers ties parameters.
    left = dict(model.named_parameters(remove_duplicate=False))
    tied = getattr(model, "all_tied_weights_keys", {})
    model.all_tied_weights_keys = {k: v for k, v in tied.items() if k in left and v in left}


__all__ = ["compress_layers", "put_layers"]
