"""Replacing a model's layers by compressed ones, in place, and back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._core.errors import InputError
from .._core.keywords import keywords
from .._core.options import exactly, patterns, shown
from ..nn import CompressedConv1D, CompressedEmbedding, CompressedExperts, CompressedLayer, CompressedLinear
from ..nn._fusion.fuse import arrange, fuses
from ..nn._layers.forms import form_of
from ..nn._weights.placement import checked_settings, refuse_disk
from ..nn._weights.store import Store
from ..nn.linear import CompressedSumLinear
from ..nn.own import CompressedModule, compressed_module
from . import methods
from .find import Candidate, find, groups, key_of, routed
from .kinds import is_scaled, is_unmade
from .parallel import check_whole
from .report import ReplacedLayer, ReplaceReport, SkippedLayer

if TYPE_CHECKING:
    from .._file.container import Container

_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks"),
    *("_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)


def compress(
    model: torch.nn.Module,
    include: str | Iterable[str],
    exclude: str | Iterable[str],
    *,
    embeddings: bool,
    residency: str | None,
    vram_budget: int | str | None,
    ram_budget: int | str | None,
    cache: int | str | None,
    fused: bool,
    encode: Callable[[dict[str, Any], list[str]], Container],
) -> ReplaceReport:
    """Does the work of :func:`wcodec.compress_`.

    :param encode: called with the weights, by their names, and patterns of those that are stored transposed.
    """
    begin = time.perf_counter()
    _check_model("compress_", model)
    if isinstance(model, torch.nn.Linear | torch.nn.Embedding | CompressedLayer):
        raise InputError(
            f"compress_ replaces layers of a model, and a {type(model).__name__} has none "
            f"(for a single layer use wcodec.nn, such as CompressedLinear.from_linear)"
        )
    methods.check_no_adapters(model)
    settings = checked_settings(residency, vram_budget, cache, ram_budget)
    refuse_disk(settings)
    # Modules that were changed for layers that are there already are put back.
    arrange(model, groups=False, blocks=False)
    candidates, skipped = find(model, patterns("include", include), patterns("exclude", exclude), embeddings)
    if not candidates:
        raise nothing_to_compress(type(model).__name__, model, skipped)
    _need_weights(candidates)
    before = _parameter_bytes(model)
    tensors = _tensors(candidates)
    transpose = [exactly(name) for c in candidates for name in c.transposed_tensors]
    container = encode(tensors, transpose)
    del tensors
    store = Store(container, groups(candidates), routed=routed(model, candidates), **settings)
    store.fuses = bool(fused)
    replaced = replace(model, candidates, store)
    try:
        store.check_budget()
    except InputError:
        _swap(model, {id(model.get_submodule(c.name)): c.module for c in candidates})
        methods.mark(model)
        raise
    # The original weights go before compressed ones come.
    del candidates
    for parameter in model.parameters():
        if not is_unmade(parameter):
            parameter.requires_grad_(False)
    store.prepare()
    if fused:
        arrange(model)
    after = _parameter_bytes(model) + sum(r.stored_bytes for r in replaced if r.tied_to is None)
    return ReplaceReport(tuple(replaced), tuple(skipped), before, after, time.perf_counter() - begin)


def _check_model(function: str, model: Any) -> None:
    """Refuses what is not a model of torch, with the function that takes it."""
    if isinstance(model, torch.nn.Module):
        return
    if isinstance(model, str | os.PathLike):
        found, advice = shown(str(model)), "wcodec.load_model loads folders and models of the Hub, compressed"
    else:
        found = f"a {type(model).__name__}"
        stored = "wcodec.compress stores tensors in a file"
        advice = stored if isinstance(model, Mapping) else "pass the model itself"
    raise InputError(f"{function} takes a torch.nn.Module, not {found} ({advice})")


def _need_weights(candidates: list[Candidate]) -> None:
    for candidate in candidates:
        for name, parameter in candidate.parameters.items():
            if parameter.device.type == "meta":
                raise InputError(
                    f"tensor '{name}': it is on the meta device (load the weights first, or use wcodec.load_model)",
                    tensor=name,
                )


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
    found: dict[str, CompressedLayer] = {}
    for name, module in model.named_modules():
        if not isinstance(module, CompressedLayer) or not name:
            continue
        if wanted and not any(fnmatch.fnmatchcase(name, p) for p in wanted):
            continue
        if not any(fnmatch.fnmatchcase(name, p) for p in unwanted):
            found[name] = module
    if not found:
        raise InputError(
            f"there is no compressed layer to replace in {type(model).__name__} "
            "(compress_ it first, or change include and exclude)"
        )
    check_whole(model, "decompressed")
    was_fused = fuses(model)
    arrange(model, groups=False, blocks=False)
    # Layers with the same stored tensors get the same parameters.
    shared: dict[Any, torch.nn.Parameter] = {}
    plain: dict[int, torch.nn.Module] = {}
    for module in found.values():
        new = _plain(module)
        _keep_hooks(module, new)
        if isinstance(module, CompressedLinear | CompressedEmbedding):
            _keep_attributes(module, new)
        stored = tuple(module._store.entry(name).name for name in module.tensors)
        for leaf in module.keys:
            # One tensor is one matrix, whatever it is called; of several, each parameter has its own.
            key = (id(module._store), stored, leaf if len(stored) > 1 else "", module.dtype, module.device)
            new._parameters[leaf] = shared.setdefault(key, new._parameters[leaf])
        plain[id(module)] = new
    _swap(model, plain)
    _share_biases(model, {module: plain[id(module)] for module in found.values()})
    methods.mark(model)
    if was_fused:
        arrange(model)
    return list(found)


def replace(model: torch.nn.Module, candidates: list[Candidate], store: Store, **place: Any) -> list[ReplacedLayer]:
    """Puts layers of a store in the candidates' places; ``place`` has the device where it is not theirs."""
    made: dict[int, torch.nn.Module] = {}
    replaced: list[ReplacedLayer] = []
    first: dict[str, str] = {}
    for candidate in candidates:
        layer = compressed(candidate, store, **place)
        made[id(candidate.module)] = layer
        stored = store.entry(layer.tensor).name
        tied = first.get(stored)
        first.setdefault(stored, candidate.name)
        shapes = [tuple(p.shape) for p in candidate.parameters.values()]
        dtype = str(layer.dtype).removeprefix("torch.")
        kind, entry = type(layer).__name__, layer.entry
        size = candidate.bytes if not place else layer.original_bytes
        replaced.append(
            ReplacedLayer(
                candidate.name, kind, dtype, shapes[0], entry.scheme, entry.coder, size, layer.stored_bytes, tied
            )
        )
    _swap(model, made)
    _share_biases(model, {candidate.module: made[id(candidate.module)] for candidate in candidates})
    methods.mark(model)
    store.serve(model)
    return replaced


def compressed(candidate: Candidate, store: Store, **place: Any) -> CompressedLayer:
    """The layer of a store for a candidate."""
    module = candidate.module
    parameter = next(iter(candidate.parameters.values()))
    where = {"dtype": parameter.dtype, "device": parameter.device, **place}
    name = candidate.tensors[0][0]
    layer: CompressedLayer
    if candidate.kind == "experts" and candidate.known:
        layer = CompressedExperts(store, candidate.tensors, module, parts=candidate.parts, **where)
    elif candidate.kind in ("experts", "own"):
        layer = compressed_module(module, store, candidate.by_key, **where)
    elif candidate.kind == "embedding":
        size = (module.num_embeddings, module.embedding_dim)
        scaled = module if is_scaled(module) else None
        layer = CompressedEmbedding(store, name, *size, module.padding_idx, scaled=scaled, **where)
    else:
        shape = tuple(parameter.shape)
        inputs, outputs = shape if candidate.kind == "conv1d" else shape[::-1]
        layer = _linear_kind(candidate)(store, name, inputs, outputs, module.bias, **where)
        if candidate.kind == "linear":
            layer._of = type(module)
    _keep_hooks(module, layer)
    if candidate.kind not in ("experts", "own"):
        _keep_attributes(module, layer)
    layer.train(module.training)
    return layer


def _linear_kind(candidate: Candidate) -> type[CompressedLinear]:
    if candidate.kind == "conv1d":
        return CompressedConv1D
    return (
        CompressedSumLinear
        if form_of(type(candidate.module), candidate.module.bias is not None) == "sum"
        else CompressedLinear
    )


def _keep_hooks(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Gives a module the hooks of the one whose place it takes: the same, so that who put them there can take them
    away."""
    for name in _HOOKS:
        if getattr(module, name, None):
            other.__dict__[name] = getattr(module, name)


def _keep_attributes(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Gives it what code around a module has written to it, or its class, if that is one of its own."""
    if hasattr(module, "_hf_hook"):
        return
    for key, value in module.__dict__.items():
        known = key.startswith("_") or key in other.__dict__ or hasattr(type(other), key)
        if not known and key not in ("forward", "training", "tensor"):
            other.__dict__[key] = value


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


def _swap(model: torch.nn.Module, new: Mapping[int, torch.nn.Module]) -> None:
    """Puts modules in the places of others, wherever these are."""
    # Modules that are replaced may have others in them, which their new ones have, too.
    for parent in dict.fromkeys([*model.modules(), *new.values()]):
        # Beside submodules, some classes hold and run them a second time, in a list or as a plain attribute.
        for key, value in list(parent.__dict__.items()):
            if (other := _held(value, new, set())) is not value:
                parent.__dict__[key] = other


def _held(value: Any, new: Mapping[int, torch.nn.Module], seen: set[int]) -> Any:
    """A value with modules exchanged in it; lists and dicts are changed in place, since others may hold them, too."""
    if isinstance(value, torch.nn.Module):
        return new.get(id(value), value)
    if not isinstance(value, list | dict) and type(value) is not tuple or id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, tuple):
        made = tuple(_held(v, new, seen) for v in value)
        return made if any(a is not b for a, b in zip(made, value, strict=True)) else value
    for key, held in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if (other := _held(held, new, seen)) is not held:
            value[key] = other
    return value


def _share_biases(model: torch.nn.Module, made: Mapping[torch.nn.Module, torch.nn.Module]) -> None:
    """A bias that another module has, too, is one parameter still, after layers were made of others."""
    left = {id(p): p for p in model.parameters()}
    for before, layer in made.items():
        bias, new = before._parameters.get("bias"), layer._parameters.get("bias")
        if bias is not None and new is not None:
            layer._parameters["bias"] = left.setdefault(id(bias), new)


def _tensors(candidates: list[Candidate]) -> dict[str, torch.Tensor]:
    """The tensors to compress, by their names in the container."""
    out: dict[str, torch.Tensor] = {}
    for candidate in candidates:
        parameters = [p.detach() for p in candidate.parameters.values()]
        for i, names in enumerate(candidate.tensors):
            stacks = [p[i] for p in parameters if i < len(p)] if candidate.kind == "experts" else parameters
            out.update(zip(names, stacks, strict=True))
    return out


def _parameter_bytes(model: torch.nn.Module) -> int:
    return sum({key_of(p): int(p.nbytes) for p in model.parameters() if not is_unmade(p)}.values())


def nothing_to_compress(where: str, model: torch.nn.Module, skipped: list[SkippedLayer]) -> InputError:
    """The error where no layer of a model can be replaced."""
    return InputError(f"nothing to compress in {where}: {_reasons(model, skipped)} ({_advice(model, skipped)})")


def _is_compressed(model: torch.nn.Module, skipped: list[SkippedLayer]) -> bool:
    """Whether nothing is left of a model that could be compressed, since it is."""
    return not any(s.by_choice for s in skipped) and any(isinstance(m, CompressedLayer) for m in model.modules())


def _advice(model: torch.nn.Module, skipped: list[SkippedLayer]) -> str:
    if _is_compressed(model, skipped):
        return "decompress_ it first"
    if any(s.by_choice for s in skipped):
        return "change include, exclude or embeddings"
    return "wcodec.compress stores tensors of any kind in a file"


def _reasons(model: torch.nn.Module, skipped: list[SkippedLayer]) -> str:
    if _is_compressed(model, skipped):
        return "its layers are compressed already"
    if all(s.vectors for s in skipped):
        return "it has no linear layers, embeddings or experts"
    skipped = [s for s in skipped if not s.vectors] or skipped
    shown = "; ".join(f"{s.name}: {s.why}" for s in skipped[:5])
    return shown + (f"; and {len(skipped) - 5} more" if len(skipped) > 5 else "")
