"""Encoding the folder of a checkpoint into the folder of a compressed model."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._calibrate import amount
from .._calibrate.by_default import ByDefault
from .._calibrate.statistics import Statistics
from .._core.coding import REPOSITORY
from .._core.errors import FileMissingError, InputError
from .._core.foreign import config_of, read_json
from .._core.metadata import calibration_of
from .._core.option_table import PURPOSES
from .._core.options import coder_for, exactly, is_statistics_file, patterns
from .._core.paths import output_exists
from .._core.reports import CompressionReport
from .._file import folder_kinds
from .._file.container import Container
from .._file.gguf import is_gguf
from .._models import beside, card
from .._models import hub as _hub
from .._models.checkpoint import Checkpoint, Lazy, LazyTensor
from .._models.choose import nothing_to_compress
from .._models.find import Candidate, find
from .._models.folder import WEIGHTS
from .._models.gguf import GgufModel
from .._models.names import Match, matched
from .._models.put_folder import new_folder
from .._models.reads import layer_reads, read_whole, tensor
from .._models.remote import RemoteCheckpoint
from .._models.save import CONFIG, FILE
from .._models.skeleton import as_ever, skeleton
from .._models.source import computing_dtype_of
from .._models.stored import as_stored, forget_quantization, is_exact
from .models import calibrated

Compress = Callable[..., CompressionReport]


def compress_folder(src: Any, dst: str, options: dict[str, Any], compress: Compress) -> CompressionReport:
    """Compresses into a folder, as :func:`wcodec.compress` does.

    The folder has what :func:`wcodec.save_pretrained` writes: a container with the weights of layers, and the rest as
    it is; the config, and files of the tokenizer. All of it is written to a folder beside it first, which is then
    renamed.

    :param compress: :func:`wcodec.compress`, for the file.
    :raises InputError: if the source is not the folder of a model, or there is something else at ``dst``.
    :raises OutputExistsError: if there is a compressed model and ``overwrite`` was not asked for.
    """
    hub = {name: options.pop(name, None) for name in REPOSITORY}
    hub = {name: value for name, value in hub.items() if value is not None}
    from_gguf = is_gguf(src)
    if not isinstance(src, str | os.PathLike) or os.path.isfile(src) and not from_gguf:
        raise InputError(
            "a folder is written of the folder of a model, or of a GGUF file (name that, or an output that ends with "
            ".wcodec)",
            code="I101",
        )
    overwrite = bool(options.pop("overwrite", False))
    if not overwrite and (Path(dst) / FILE).exists():
        # Fetching may take long: better now than at its end.
        raise output_exists(dst)
    if from_gguf:
        with GgufModel(src) as gguf:
            return _compress(compress, gguf.folder, None, dst, overwrite, options, gguf)
    on_hub: ByDefault | None = None
    if isinstance(default := options.get("calibrate"), ByDefault) and not os.path.isdir(src):
        # Its weights are read from there, and no model is made of them.
        on_hub, options["calibrate"] = default, None
    source, checkpoint = _opened(os.fspath(src), _hub.Options(**hub), options)
    if on_hub is not None:
        on_hub.is_on_hub(source)
    try:
        return _compress(compress, source, checkpoint, dst, overwrite, options)
    finally:
        if checkpoint is not None:
            checkpoint.close()


def _opened(name: str, hub: _hub.Options, options: dict[str, Any]) -> tuple[Path, RemoteCheckpoint | None]:
    """The folder of a model; of a repository whose weights are not here, that of the files beside them, and what reads
    them from the Hub."""
    if os.path.isdir(name):
        source = Path(name, hub.subfolder)
        folder_kinds.check(source)
        return source, None
    trusted = bool(options.get("trust_remote_code"))
    repository = _hub.described(name, hub, trusted, with_page=True)
    if repository is None or _runs(options) or _hub.has_weights(repository):
        # From the cache, or into it: what runs the model reads its files.
        return _hub.downloaded(name, hub, trusted, with_page=True), None
    if any(file.endswith(".wcodec") for file in repository.weights):
        raise InputError(f"{name}: it is a compressed model (name the original checkpoint)", file=name, code="I203")
    if not any(file.endswith(".safetensors") for file in repository.weights):
        raise FileMissingError(
            f"{name}: its weights are in no .safetensors file (name another repository)", file=name, code="O301"
        )
    return _hub.with_files(repository), RemoteCheckpoint(repository)


def _runs(options: dict[str, Any]) -> bool:
    """Whether the model itself runs before it is encoded, or is tried in several ways."""
    calibrate = options.get("calibrate")
    reads = isinstance(calibrate, str | os.PathLike) and not is_statistics_file(calibrate)
    tried = any(options.get(key) is not None for key in ("budget", "quality"))
    return tried or reads or not isinstance(calibrate, Statistics | str | os.PathLike | None)


def _compress(
    compress: Compress,
    source: Path,
    checkpoint: RemoteCheckpoint | None,
    dst: str,
    overwrite: bool,
    options: dict[str, Any],
    gguf: GgufModel | None = None,
) -> CompressionReport:
    """Compresses what a folder is of.

    :param checkpoint: its weights, where they are on the Hub.
    :param gguf: the file that has its weights, of which the folder has the config and the tokenizer.
    """
    target = Path(dst)
    wanted = patterns("include", options.pop("include", ())), patterns("exclude", options.pop("exclude", ()))
    inputs = [p for p in map(options.get, ("calibrate", "text")) if isinstance(p, str | os.PathLike)]
    inputs += [] if gguf is None else [gguf.file.path]
    with new_folder(dst, source, inputs, overwrite) as (new, folder):
        report = _fill(compress, source, checkpoint or gguf or Checkpoint(source), new, wanted, options)
        _write_card(source, new, target)
        folder.finish()
    return replace(report, path=os.fspath(target / FILE))


def _fill(
    compress: Compress,
    source: Path,
    weights_of: Checkpoint | GgufModel,
    new: Path,
    wanted: tuple[list[str], list[str]],
    options: dict[str, Any],
) -> CompressionReport:
    trusted = bool(options.get("trust_remote_code"))
    config = config_of(source, trust_remote_code=trusted)
    with as_ever():
        model = skeleton(config, computing_dtype_of(config, source), source, trusted)
        if isinstance(weights_of, GgufModel):
            checkpoint: Checkpoint = weights_of.checkpoint(model)
            if options.get("calibrate") is not None:
                needed = sum(p.numel() * p.element_size() for p in model.parameters())
                device = amount.chosen_place(options.get("device"), needed)
                progress = options.get("progress") is True
                options = calibrated(options, weights_of.file.path, device, trusted, progress)
            options["metadata"] = {**weights_of.metadata(), **(options.get("metadata") or {})}
        else:
            checkpoint = weights_of
        matching = matched(model, checkpoint)
        candidates, skipped = find(model, [], [], True)
    candidates = [c for c in candidates if all(matching.has(n) for n in c.parameters)]
    selected = [c for c in candidates if _is_wanted(matching, c, wanted)]
    if not selected:
        raise nothing_to_compress(str(source), model, skipped)
    encoded = _encoded(matching, selected, checkpoint)
    encoded.update(_unused(matching, checkpoint, wanted))
    transpose = [
        exactly(key) for c in selected if c.transposed for n in c.parameters for key in _keys_of(matching, c, n)
    ]
    # Tensors that are tied to an equal one are stored once.
    rest = {key: part for key, part in _rest(matching, checkpoint, encoded).items() if key not in matching.twice}
    parts = {**encoded, **rest}
    options = {**options, "transpose": transpose, "exclude": [exactly(name) for name in rest]}
    as_they_are = all(part.keys == (name,) and part.index is None for name, part in parts.items())
    # A folder with an adapter is no source of one file, which could not have both.
    if as_they_are and checkpoint.is_local and not (source / folder_kinds.ADAPTER).is_file():
        skip = [*patterns("skip", options.pop("skip", ())), *(exactly(key) for key in checkpoint if key not in parts)]
        report = compress(source, new / FILE, skip=skip, **options)
    else:
        if as_they_are:
            # In the order of the files, as these themselves would be encoded.
            parts = {key: parts[key] for key in checkpoint if key in parts}
        # Stacks of experts, each in one tensor, are stored expert by expert; other weights are joined from several
        # tensors.
        weights = Lazy(checkpoint, parts)
        if isinstance(checkpoint, RemoteCheckpoint):
            checkpoint.expect(key for part in parts.values() for key in part.keys)
        report = compress(as_stored(weights, selected) if is_exact(options) else weights, new / FILE, **options)
    beside.copy(source, new, checkpoint.files).tell(source)
    record = forget_quantization(read_json(source / CONFIG))
    # Without it, transformers looks at the first tensor of a file that it knows.
    if not any(record.get(key) for key in ("dtype", "torch_dtype")):
        record["dtype"] = str(checkpoint.dtype).removeprefix("torch.")
    record[WEIGHTS] = FILE
    wanted_coder = coder_for(options.get("optimize", PURPOSES[0]), options.get("coder"))
    coder = next((t.coder for t in report.tensors if t.scheme != "raw" and t.coder != "raw"), wanted_coder)
    encoding_record = {"scheme": options.get("scheme") or _scheme_of(report), "coder": coder}
    record["quantization_config"] = {"quant_method": "wcodec", "file": FILE, **encoding_record}
    (new / CONFIG).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    return report


def _write_card(source: Path, new: Path, target: Path) -> None:
    """Writes the card, unless the folder that is replaced has one that somebody wrote."""
    existing, source_card = card.read(target), card.read(source)
    if existing is not None and not card.is_own(existing) and existing != source_card:
        (new / card.FILE).write_text(existing, "utf-8")
        return
    original = card.original_of(source_card, card.repository_of(source))
    name = target.absolute().name
    with Container.open(new / FILE) as container:
        calibrated = calibration_of(container.metadata) is not None
    text = card.card(new, original, name, name, calibrated=calibrated)
    (new / card.FILE).write_text(text, "utf-8")


def _name(matching: Match, parameter: str) -> str:
    """The name that a layer's weight is stored under: the checkpoint's, where it is one tensor there."""
    return matching.single.get(parameter, parameter)


def _encoded(matching: Match, selected: list[Candidate], checkpoint: Checkpoint) -> dict[str, LazyTensor]:
    """Weights of layers, by the names in the container: those of the checkpoint's tensors where there are such, or
    those of the model's parameters where transformers makes them of others."""
    out: dict[str, LazyTensor] = {}
    # Stacks that are tied have the same tensors, and are stored under the first one's name.
    first: dict[tuple[str, ...], str] = {}
    for candidate in selected:
        parts = layer_reads(candidate, matching, checkpoint)
        for name in candidate.parameters:
            if candidate.kind == "experts" and first.setdefault(matching.keys(name), name) != name:
                continue
            if candidate.kind == "experts" and name in matching.experts:
                out.update((key, tensor(key, checkpoint)) for key in _keys_of(matching, candidate, name))
            elif candidate.kind == "experts":
                out.update((key, parts[key]) for key in _keys_of(matching, candidate, name))
            else:
                out[_name(matching, name)] = parts[name]
    return out


def _unused(matching: Match, checkpoint: Checkpoint, wanted: tuple[list[str], list[str]]) -> dict[str, LazyTensor]:
    """Matrices that the model's class has no use for, and others may, such as heads that predict more tokens."""
    return {
        key: tensor(key, checkpoint)
        for key in matching.ignored
        if len(checkpoint.shape(key)) == 2 and checkpoint.is_float(key) and _matches(key, wanted)
    }


def _rest(matching: Match, checkpoint: Checkpoint, encoded: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Everything that is not encoded, by its name in the checkpoint; and by its name in the model where transformers
    makes it of tensors of which others are encoded."""
    taken = {key for part in encoded.values() for key in part.keys}
    rest = {key: tensor(key, checkpoint) for key in checkpoint if key not in taken}
    for parameter, (conversion, _) in matching.converted.items():
        stored = parameter in encoded or any(n.rpartition(".")[0] == parameter for n in encoded)
        if not stored and not taken.isdisjoint(conversion.keys):
            rest[parameter] = read_whole(parameter, matching, checkpoint)
            for key in conversion.keys:
                rest.pop(key, None)
    return rest


def _keys_of(matching: Match, candidate: Candidate, name: str) -> list[str]:
    """Names in the container for a parameter's tensors."""
    if candidate.kind != "experts":
        return [_name(matching, name)]
    if name in matching.experts:
        return list(matching.keys(name))
    return [f"{name}.{i}" for i in range(candidate.parameters[name].shape[0])]


def _is_wanted(matching: Match, candidate: Candidate, wanted: tuple[list[str], list[str]]) -> bool:
    """Whether all tensors of a layer are among those that are to be encoded."""
    keys = {key for name in candidate.parameters for key in matching.keys(name)}
    return all(_matches(key, wanted) for key in keys)


def _matches(key: str, wanted: tuple[list[str], list[str]]) -> bool:
    include, exclude = wanted
    return (not include or any(fnmatch.fnmatchcase(key, p) for p in include)) and not any(
        fnmatch.fnmatchcase(key, p) for p in exclude
    )


def _scheme_of(report: CompressionReport) -> str:
    return next((t.scheme for t in report.tensors if t.scheme != "raw"), "raw")
