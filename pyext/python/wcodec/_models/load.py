"""Loading models so that their compressed weights never exist uncompressed, all at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import torch

from .._core import paths
from .._core.errors import FormatError, InputError, UnsupportedError
from .._core.foreign import by_transformers, class_of, config_of
from .._core.keywords import given
from .._core.options import exactly, path_of, patterns, shown
from .._core.progress import ProgressCallback
from .._file.container import Container, TensorEntry
from .._file.encode import compress_in_memory
from .._file.folder_kinds import check as check_kind
from .._file.gguf import is_gguf
from .._gpu import decodable, devices
from ..nn._fusion.fuse import arrange
from ..nn._layers.layer import computing_dtype
from ..nn._weights.placement import Settings, checked_settings, refuse_disk
from ..nn._weights.scaled import Scaled
from ..nn._weights.store import Store
from .adapter import apply as apply_adapter
from .already import refuse_encoding
from .checkpoint import Checkpoint, Lazy, Part, Stored
from .find import Candidate, find, groups, routed
from .folder import WEIGHTS, container_of, is_part, quantization_of
from .gguf import GgufModel
from .hub import Options, downloaded
from .names import Match, check, match, shared_names
from .plain import as_ever, check_written, make_buffers, set_parameters
from .precision import keep_float32
from .reads import layer_reads
from .replace import nothing_to_compress, replace
from .stored import as_stored, is_exact
from .ties import settle

Calibrated = Callable[[dict[str, Any], Path, torch.device, bool, bool], dict[str, Any]]
"""Called with options of an encoding, the folder of a model or its GGUF file, a device, whether its code is trusted,
and whether progress is shown: returns options in which ``calibrate`` is statistics that are there."""


def load(
    path: str | os.PathLike[str],
    device: Any = None,
    residency: str | None = None,
    dtype: Any = None,
    *,
    vram_budget: int | str | None = None,
    ram_budget: int | str | None = None,
    cache: int | str | None = None,
    fused: bool = True,
    encoding: Mapping[str, Any] | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    embeddings: bool = True,
    trusted: bool = False,
    trust_remote_code: bool = False,
    hub: Options | None = None,
    progress: bool | ProgressCallback = False,
    calibrated: Calibrated | None = None,
    encode: Callable[..., Container] = compress_in_memory,
) -> Any:
    """Does the work of :func:`wcodec.load_model`.

    :param encoding: options for compressing an ordinary checkpoint; those that are ``None`` were not given.
    :param calibrated: collects the statistics that ``encoding`` asks for.
    :param encode: encodes weights in memory.
    """
    # Arguments are checked before anything is read.
    path = path_of(path)
    checked_settings(residency or "auto", vram_budget, cache, ram_budget)
    where = devices.place(device or "cpu")
    hub = hub or Options()
    gguf = _gguf_of(path, dtype)
    folder, file = _located(path, trust_remote_code, hub) if gguf is None else (gguf.folder, None)
    settings = _settings(folder, residency, vram_budget, cache, ram_budget)
    if file is None:
        refuse_disk(settings)
    config = _config(folder, file, trusted, trust_remote_code)
    place = folder or file or path
    compute = computing_dtype_of(config, place, dtype)
    container = None if file is None else Container.open(file, trusted=trusted)
    options = dict(encoding or {})
    if container is not None:
        refuse_encoding(container, place, {**options, "include": include, "exclude": exclude}, embeddings)
    # Beside a whole container, files of other weights would be the original.
    has_rest = folder is not None and gguf is None and (file is None or is_part(folder))
    rest = Checkpoint(folder, rest=file is not None) if folder is not None and has_rest else None
    if gguf is None:
        _check_layers(config, len({*(container or ()), *(rest or ())}), place)
    with as_ever():
        with by_transformers(place, "makes no model of its config"):
            model = skeleton(config, compute, trust_remote_code)
        if container is not None:
            fill(model, container, rest, where, settings, fused)
        else:
            if gguf is not None:
                rest = gguf.checkpoint(model)
            assert rest is not None
            chosen = (patterns("include", include), patterns("exclude", exclude), embeddings)
            # While the model that is made here has no weights yet.
            if calibrated is not None:
                options = calibrated(options, rest.path, where, trust_remote_code, progress is True)
            options = {**given(options), "progress": progress}
            found = match(model, rest, rest.shape)
            settle(model, found, rest.same)
            check(model, found, rest.shape, str(rest.path))
            kept, weights = layer_weights(model, rest, found, chosen)
            store = compress_layers(model, kept, weights, options, where, settings, fused, encode)
            set_parameters(model, found, rest.__getitem__, where)
            store.prepare()
        check_written(model, str(place))
        model.to(where)
        model.requires_grad_(False)
        model.eval()
        if fused:
            arrange(model)
        if folder is not None:
            _finish(model, folder)
            apply_adapter(model, folder)
    return model


def _gguf_of(path: str, dtype: Any) -> GgufModel | None:
    """The model of a GGUF file, if it is one. Its tokenizer is there until the process ends."""
    if not is_gguf(path):
        return None
    found = GgufModel(path, None if dtype is None else computing_dtype(dtype))
    found.keep()
    return found


def skeleton(config: Any, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """The model of a config without weights, whose parameters have the dtypes that transformers loads them in."""
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
    _set_dtype(config, dtype)
    named = class_of(config)
    with init_empty_weights(include_buffers=False):
        if named is None:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
        else:
            model = named._from_config(config, dtype=dtype)
    keep_float32(model, dtype)
    make_buffers(model)
    return model


def _set_dtype(config: Any, dtype: torch.dtype) -> None:
    """Says in a config, and in those of its parts, what the model computes in, as transformers' own loading does it.

    The first versions of transformers 5 make parts in the dtype of their own configs.
    """
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        if part is not None:
            part.dtype = dtype


def fill(
    model: Any,
    container: Container,
    rest: Checkpoint | None,
    device: torch.device,
    settings: Settings,
    fused: bool,
) -> None:
    """Gives a model without weights those of a container, and of a checkpoint for what the container has not."""
    stored = Stored(container, rest)
    found = match(model, stored, stored.shape)
    settle(model, found, stored.same)
    check(model, found, stored.shape, container.path)
    candidates = stored_candidates(model, found, container)
    store = Store(container, groups(candidates), routed=routed(model, candidates), **settings)
    store.fuses = bool(fused)
    replace(model, candidates, store, device=device)
    set_parameters(model, found, stored.__getitem__, device)
    store.prepare()


def stored_candidates(model: Any, found: Match, container: Container) -> list[Candidate]:
    """The layers of a model whose weights a container has in a form to run from."""
    out = []
    scaled = Scaled(container)
    for candidate in find(model, [], [], True)[0]:
        names = _stored(candidate, found)
        dtype = next(iter(candidate.parameters.values())).dtype
        # Rows of tables are looked up as they are stored.
        codes = () if candidate.kind == "embedding" else scaled
        if names is None or not all(
            n in container and _runs(container[n], dtype, codes) for one in names.tensors for n in one
        ):
            continue
        out.append(names)
    # Layers that share a weight run from it together or not at all.
    kept = {name for c in out for name in c.parameters}
    shared = shared_names(model)
    plain = {shared[n] for n in shared if n not in kept}
    return [c for c in out if not any(shared.get(n) in plain for n in c.parameters)]


def _stored(candidate: Candidate, found: Match) -> Candidate | None:
    """The candidate with the names that a file has for its tensors, if it has them all."""
    parameters = list(candidate.parameters)
    if candidate.kind != "experts":
        keys = [found.whole[name] for name in parameters if name in found.whole]
        return changed(candidate, stored=(tuple(keys),)) if len(keys) == len(parameters) else None
    if any(name not in found.experts for name in parameters):
        return None
    return candidate.of_stacks([found.stack(name) for name in parameters])


def _runs(entry: TensorEntry, dtype: torch.dtype, scaled: Scaled | tuple[()]) -> bool:
    """Whether a layer can run from a stored tensor, and saves memory by that."""
    if (entry.alias_of or entry.name) in scaled:
        return True
    if len(entry.shape) < 2:
        return False
    if entry.makes_symbols:
        return True
    return entry.coder != "raw" and decodable.wanted_dtype(entry, dtype) == entry.dtype


def compress_layers(
    model: Any,
    kept: list[Candidate],
    weights: Lazy,
    encoding: dict[str, Any],
    device: torch.device,
    settings: Settings,
    fused: bool,
    encode: Callable[..., Container] = compress_in_memory,
) -> Store:
    """Compresses weights of an ordinary checkpoint in memory, tensor by tensor, and gives the model layers of them."""
    transpose = [exactly(name) for c in kept for name in c.transposed_tensors]
    source = as_stored(weights, kept) if is_exact(encoding) else weights
    container = encode(source, transpose=transpose, **encoding)
    store = Store(container, groups(kept), routed=routed(model, kept), **settings)
    store.fuses = bool(fused)
    replace(model, kept, store, device=device)
    return store


def layer_weights(
    model: Any, checkpoint: Checkpoint, found: Match, chosen: tuple[list[str], list[str], bool]
) -> tuple[list[Candidate], Lazy]:
    """Layers of a model without weights that can be compressed, and their weights in a checkpoint, by their names in a
    container. Layers that the checkpoint does not have are left out.

    :raises InputError: if there are none.
    """
    candidates, skipped = find(model, *chosen)
    candidates = [c for c in candidates if all(found.has(n) for n in c.parameters)]
    if not candidates:
        raise nothing_to_compress(str(checkpoint.path), model, skipped)
    weights: dict[str, Part] = {}
    kept: list[Candidate] = []
    shared = shared_names(model)
    for candidate in candidates:
        parts = layer_reads(candidate, found, checkpoint)
        # A tied weight is stored once, under the first name that it has in the model.
        first = {name: _first_name(name, candidate, shared) for name in parts}
        stored = {name: first[name] if first[name] in weights else name for name in parts}
        if candidate.kind != "experts":
            candidate = changed(candidate, stored=(tuple(stored.values()),))
        elif any(name != other for name, other in stored.items()):
            candidate = changed(candidate, stored=tuple(tuple(stored[n] for n in one) for one in candidate.tensors))
        weights.update((stored[name], part) for name, part in parts.items())
        kept.append(candidate)
    return kept, Lazy(checkpoint, weights)


def _first_name(name: str, candidate: Candidate, shared: dict[str, str]) -> str:
    """The name of a layer's matrix after the first parameter that its own one is tied to."""
    if candidate.kind != "experts":
        return shared[name]
    parameter, _, expert = name.rpartition(".")
    return f"{shared[parameter]}.{expert}"


# Locations of models


def _located(path: str, trust_remote_code: bool, hub: Options | None = None) -> tuple[Path | None, Path | None]:
    """The folder of a model and its ``.wcodec`` file, of which one may be missing."""
    hub = hub or Options()
    given = Path(path)
    if given.is_dir():
        given /= hub.subfolder
        if not given.is_dir():
            raise paths.missing(str(given), "folder")
    if given.is_file():
        return (given.parent if (given.parent / "config.json").is_file() else None), given
    folder = given if given.is_dir() else downloaded(path, hub, trust_remote_code)
    check_kind(folder)
    return folder, container_of(folder)


def _config(folder: Path | None, file: Path | None, trusted: bool, trust_remote_code: bool) -> Any:
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise UnsupportedError("models need transformers (pip install torch transformers accelerate)") from None
    if folder is not None and (folder / "config.json").is_file():
        return config_of(folder, trust_remote_code=trust_remote_code)
    config = None
    if file is not None:
        with Container.open(file, trusted=trusted) as container:
            config = (container.model or {}).get("config")
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(
            f"{file or folder}: nothing says what model this is (put its config.json beside it)", file=file or folder
        )
    return config_of(str(file), config, trust_remote_code)


def computing_dtype_of(config: Any, place: Path | str, dtype: Any = None) -> torch.dtype:
    """The dtype that was asked for, or that of the config."""
    found = dtype or getattr(config, "dtype", None) or torch.float32
    try:
        return computing_dtype(found)
    except InputError:
        if dtype:
            raise
        raise InputError(
            f"{place}: its config says dtype {shown(found)}, in which layers do not compute (pass dtype='bfloat16')",
            file=place,
        ) from None


def _check_layers(config: Any, tensors: int, place: Path | str) -> None:
    """Before a model is built whose layers would take for ever."""
    with by_transformers(place, "makes no config of it"):
        layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(layers, int) and layers > tensors:
        raise InputError(
            f"{place}: its config says {layers} layers, and there are {tensors} tensors "
            "(use the config that belongs to the weights)",
            file=place,
        )


def _settings(
    folder: Path | None,
    residency: str | None,
    vram_budget: int | str | None,
    cache: int | str | None,
    ram_budget: int | str | None,
) -> Settings:
    """The settings that were asked for; those that were left out are as the folder's config says."""
    saved = {} if folder is None else quantization_of(folder)
    if folder is not None:
        _check_saved(saved, folder / "config.json")
    budgets = vram_budget is not None or ram_budget is not None
    chosen = residency or ("auto" if budgets else saved.get("residency", "device"))
    if chosen == "auto":
        vram_budget = saved.get("vram_budget") if vram_budget is None else vram_budget
        ram_budget = saved.get("ram_budget") if ram_budget is None else ram_budget
    return checked_settings(chosen, vram_budget, saved.get("cache") if cache is None else cache, ram_budget)


def _check_saved(saved: dict[str, Any], path: Path) -> None:
    """Whether the settings in a config can be used, so that an error names the config."""
    residency = saved.get("residency", "device")
    vram, ram = (saved.get(name) if residency == "auto" else None for name in ("vram_budget", "ram_budget"))
    try:
        checked_settings(residency, vram, saved.get("cache"), ram)
    except InputError as error:
        raise FormatError(f"{path}: its quantization_config is wrong (restore the file): {error}", file=path) from None


def _finish(model: Any, folder: Path) -> None:
    """Sets the attributes that transformers keeps with a model that it loads."""
    model.config._name_or_path = str(folder)
    if (folder / "generation_config.json").is_file() and hasattr(model, "generation_config"):
        from transformers import GenerationConfig

        with by_transformers(folder / "generation_config.json", "cannot read it"):
            # Some models have more to say than others of how they generate.
            kind = getattr(model, "generation_config_class", GenerationConfig)
            model.generation_config = kind.from_pretrained(folder)
