"""Replacing a model's layers by compressed ones, in place, and back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .._core.errors import InputError
from .._core.keywords import keywords
from .._core.options import patterns, shown
from .._file.container import Container
from ..nn import CompressedConv1D, CompressedEmbedding, CompressedExperts, CompressedLayer, CompressedLinear
from ..nn._fusion.fuse import arrange, fuses
from ..nn._weights.placement import refuse_disk
from ..nn.own import CompressedModule
from . import methods
from .choose import Selection, of_model
from .find import key_of
from .kinds import is_unmade
from .parallel import check_whole
from .report import ReplacedLayer, ReplaceReport
from .request import Wanted
from .wrap import keep_attributes, keep_hooks, swap, wrap


def compress(model: torch.nn.Module, wanted: Wanted, encode: Callable[..., Container]) -> ReplaceReport:
    """Does the work of :func:`wcodec.compress_`.

    :param encode: called with the weights, by their names, and patterns of those that are stored transposed.
    """
    begin = time.perf_counter()
    _check_model("compress_", model)
    if isinstance(model, torch.nn.Linear | torch.nn.Embedding | CompressedLayer):
        raise InputError(
            f"compress_ replaces layers of a model, and a {type(model).__name__} has none "
            f"(for a single layer use wcodec.nn, such as CompressedLinear.from_linear)",
            code="I502",
        )
    methods.check_no_adapters(model)
    settings = wanted.settings()
    refuse_disk(settings)
    # Modules that were changed for layers that are there already are put back.
    arrange(model, groups=False, blocks=False)
    selection = of_model(model, wanted.choice())
    skipped = tuple(selection.skipped)
    before = _parameter_bytes(model)
    container = selection.encoded({}, encode)
    store, layers = wrap(model, selection, container, settings, wanted.fused)
    replaced = _replaced(selection, layers)
    try:
        store.check_budget()
    except InputError:
        swap(model, {layer: c.module for c, layer in zip(selection.layers, layers, strict=True)})
        methods.mark(model)
        raise
    # The original weights go before compressed ones come.
    del selection
    for parameter in model.parameters():
        if not is_unmade(parameter):
            parameter.requires_grad_(False)
    store.prepare()
    if wanted.fused:
        arrange(model)
    after = _parameter_bytes(model) + sum(r.stored_bytes for r in replaced if r.tied_to is None)
    return ReplaceReport(replaced, skipped, before, after, time.perf_counter() - begin)


def _replaced(selection: Selection, layers: list[CompressedLayer]) -> tuple[ReplacedLayer, ...]:
    """The report of each layer, with the first one that has the same stored tensor."""
    first: dict[str, str] = {}
    replaced: list[ReplacedLayer] = []
    for candidate, layer in zip(selection.layers, layers, strict=True):
        stored = layer._store.entry(layer.tensor).name
        tied = first.get(stored)
        first.setdefault(stored, candidate.name)
        shape = tuple(next(iter(candidate.parameters.values())).shape)
        dtype = str(layer.dtype).removeprefix("torch.")
        kind, entry = type(layer).__name__, layer.entry
        size = candidate.bytes, layer.stored_bytes
        replaced.append(ReplacedLayer(candidate.name, kind, dtype, shape, entry.scheme, entry.coder, *size, tied))
    return tuple(replaced)


def _check_model(function: str, model: Any) -> None:
    """Refuses what is not a model of torch, with the function that takes it."""
    if isinstance(model, torch.nn.Module):
        return
    if isinstance(model, str | os.PathLike):
        description, advice = shown(str(model)), "wcodec.load_model loads folders and models of the Hub, compressed"
    else:
        description = f"a {type(model).__name__}"
        stored = "wcodec.compress stores tensors in a file"
        advice = stored if isinstance(model, Mapping) else "pass the model itself"
    raise InputError(f"{function} takes a torch.nn.Module, not {description} ({advice})", code="I502")


@keywords()
def decompress_(
    model: torch.nn.Module, include: str | Iterable[str] = (), exclude: str | Iterable[str] = ()
) -> list[str]:
    """Replaces compressed layers by ordinary ones with the decoded weights, in place; their names.

    >>> import torch, wcodec
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 64))
    >>> report = wcodec.compress_(model, progress=False)
    >>> wcodec.decompress_(model), type(model[0]).__name__
    (['0'], 'Linear')

    :param include: glob patterns of layers to replace; all if left out.
    :param exclude: glob patterns of layers to leave as they are.
    :raises InputError: if there is nothing to replace.
    """
    import fnmatch

    _check_model("decompress_", model)
    wanted, unwanted = patterns("include", include), patterns("exclude", exclude)
    compressed: dict[str, CompressedLayer] = {}
    for name, module in model.named_modules():
        if not isinstance(module, CompressedLayer) or not name:
            continue
        if wanted and not any(fnmatch.fnmatchcase(name, p) for p in wanted):
            continue
        if not any(fnmatch.fnmatchcase(name, p) for p in unwanted):
            compressed[name] = module
    if not compressed:
        raise InputError(
            f"there is no compressed layer to replace in {type(model).__name__} "
            "(compress_ it first, or change include and exclude)",
            code="I506",
        )
    check_whole(model, "decompressed")
    was_fused = fuses(model)
    arrange(model, groups=False, blocks=False)
    # Layers with the same stored tensors get the same parameters.
    shared: dict[Any, torch.nn.Parameter] = {}
    plain: dict[torch.nn.Module, torch.nn.Module] = {}
    for module in compressed.values():
        new = _plain(module)
        keep_hooks(module, new)
        if isinstance(module, CompressedLinear | CompressedEmbedding):
            keep_attributes(module, new)
        stored = tuple(module._store.entry(name).name for name in module.tensors)
        for leaf in module.keys:
            # One tensor is one matrix, whatever it is called; of several, each parameter has its own.
            key = (id(module._store), stored, leaf if len(stored) > 1 else "", module.dtype, module.device)
            new._parameters[leaf] = shared.setdefault(key, new._parameters[leaf])
        plain[module] = new
    swap(model, plain)
    methods.mark(model)
    if was_fused:
        arrange(model)
    return list(compressed)


def _plain(layer: CompressedLayer) -> torch.nn.Module:
    if isinstance(layer, CompressedModule):
        return layer.to_module()
    if isinstance(layer, CompressedExperts):
        return layer.to_experts()
    if isinstance(layer, CompressedEmbedding):
        return layer.to_embedding()
    if isinstance(layer, CompressedConv1D):
        return layer.to_conv1d()
    assert isinstance(layer, CompressedLinear)
    return layer.to_linear()


def _parameter_bytes(model: torch.nn.Module) -> int:
    return sum({key_of(p): int(p.nbytes) for p in model.parameters() if not is_unmade(p)}.values())
