"""Encoding the folder of a checkpoint into the folder of a compressed model."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import _api, _native
from .._errors import FileMissingError, InputError, OutputExistsError
from .._files import output
from .._foreign import config_of, read_json
from .._options import exactly, patterns
from .._reports import CompressionReport
from .._sources import tensor_source
from . import _load
from ._checkpoint import Checkpoint
from ._find import Candidate, find
from ._folder import quantization_of
from ._names import Match, check, match
from ._plain import as_ever
from ._reads import Part, layer_reads, lazy, tensor, whole
from ._replace import nothing_to_compress
from ._save import CONFIG, FILE, REST
from ._stored import as_stored, forget_quantization, is_exact
from ._ties import settle

# What else is in the folder of a model and goes with it: tokenizer, processors, settings for generation.
_BESIDE = ("*.json", "*.jinja", "*.model", "vocab.txt", "merges.txt")
_NOT_BESIDE = (CONFIG, "*.safetensors.index.json", "*.bin.index.json")


def compress_folder(src: Any, dst: str, options: dict[str, Any]) -> CompressionReport:
    """As :func:`wcodec.compress` with a folder to write.

    The folder has what :func:`wcodec.save_pretrained` writes: weights of layers in a container, the rest as it is, the
    config, and files of the tokenizer. All of it is written to a folder beside it first, which is then renamed.

    :raises InputError: if the source is not the folder of a model, or there is something else at ``dst``.
    :raises OutputExistsError: if there is a compressed model and ``overwrite`` was not asked for.
    """
    if not isinstance(src, str | os.PathLike) or not Path(src).is_dir():
        raise InputError(
            "a folder is written of the folder of a model (name that, or an output that ends with .wcodec)"
        )
    source, target = Path(src), Path(dst)
    overwrite = bool(options.pop("overwrite", False))
    _check_target(target, overwrite)
    wanted = patterns("include", options.pop("include", ())), patterns("exclude", options.pop("exclude", ()))
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as place:
        new = Path(place) / target.name
        new.mkdir()
        report = _fill(source, new, wanted, options)
        _put_in_place(new, target, Path(place) / "old")
    return replace(report, path=os.fspath(target / FILE))


def _put_in_place(new: Path, target: Path, old: Path) -> None:
    """Renames, so that either model is there, whatever interrupts it."""
    try:
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise FileMissingError(f"{target.parent}: there is no such folder (make it first)", file=target.parent)
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise InputError(f"{target}: there is something else than a folder (choose another name)", file=target)
    if not quantization_of(target):
        if any(target.iterdir()):
            raise InputError(
                f"{target}: there is something else than a compressed model, which is not replaced "
                "(choose another name, or empty the folder)",
                file=target,
            )
    elif not overwrite:
        raise OutputExistsError(f"{target} exists (pass overwrite=True, or --overwrite, to replace it)", file=target)


def _fill(source: Path, new: Path, wanted: tuple[list[str], list[str]], options: dict[str, Any]) -> CompressionReport:
    config = config_of(source)
    checkpoint = Checkpoint(source)
    with as_ever():
        model = _load.skeleton(config, _load.computing_dtype_of(config, source))
        found = match(model, checkpoint, checkpoint.shape)
        settle(model, found, checkpoint.same)
        check(model, found, checkpoint.shape, str(checkpoint.path))
        candidates, skipped = find(model, [], [], True)
    candidates = [c for c in candidates if all(found.has(n) for n in c.parameters)]
    kept = [c for c in candidates if _is_wanted(found, c, wanted)]
    if not kept:
        raise nothing_to_compress(str(source), model, skipped)
    encoded = _encoded(found, kept, checkpoint)
    encoded.update(_unused(found, checkpoint, wanted))
    transpose = [exactly(key) for c in kept if c.transposed for n in c.parameters for key in _keys_of(found, c, n)]
    rest = _rest(found, checkpoint, encoded)
    metadata = {**(options.pop("metadata", None) or {}), **({_native.REST_KEY: REST} if rest else {})}
    options = {**options, "metadata": metadata, "transpose": transpose}
    if all(part.keys == (name,) for name, part in encoded.items()):
        skip = [*patterns("skip", options.pop("skip", ())), *(exactly(key) for key in checkpoint if key not in encoded)]
        report = _api.compress(source, new / FILE, skip=skip, **options)
    else:
        # Of stacks of experts, which are in one tensor, each is stored by itself; others are made of several.
        weights: Any = lazy(encoded)
        if is_exact(options):
            looked_up = {k for c in kept if c.kind == "embedding" for n in c.parameters for k in _keys_of(found, c, n)}
            weights = as_stored(weights, checkpoint, looked_up)
        report = _api.compress(weights, new / FILE, **options)
    with output(new / REST) as out:
        out.write_tensors(tensor_source(lazy(rest), {"format": "pt"}))
        out.finish()
    for path in sorted(source.iterdir()):
        beside = any(fnmatch.fnmatchcase(path.name, p) for p in _BESIDE)
        if beside and path.is_file() and not any(fnmatch.fnmatchcase(path.name, p) for p in _NOT_BESIDE):
            shutil.copyfile(path, new / path.name)
    record = forget_quantization(read_json(source / CONFIG))
    way = {"scheme": options.get("scheme") or _scheme_of(report), "coder": options.get("coder", "rans")}
    record["quantization_config"] = {"quant_method": "wcodec", "file": FILE, **way}
    (new / CONFIG).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    return report


def _name(found: Match, parameter: str) -> str:
    """The name that a layer's weight is stored under: the checkpoint's, where it is one tensor there."""
    return found.whole.get(parameter, parameter)


def _encoded(found: Match, kept: list[Candidate], checkpoint: Checkpoint) -> dict[str, Part]:
    """Weights of layers, by the names in the container: those of the checkpoint's tensors where there are such, or
    those of the model's parameters where transformers makes them of others."""
    out: dict[str, Part] = {}
    for candidate in kept:
        parts = layer_reads(candidate, found, checkpoint)
        for name in candidate.parameters:
            if name in found.experts:
                out.update((key, tensor(key, checkpoint)) for key in _keys_of(found, candidate, name))
            elif candidate.kind == "experts":
                out.update((key, parts[key]) for key in _keys_of(found, candidate, name))
            else:
                out[_name(found, name)] = parts[name]
    return out


def _unused(found: Match, checkpoint: Checkpoint, wanted: tuple[list[str], list[str]]) -> dict[str, Part]:
    """Matrices that the model's class has no use for, and others may, such as heads that predict more tokens."""
    return {
        key: tensor(key, checkpoint)
        for key in found.ignored
        if len(checkpoint.shape(key)) == 2 and checkpoint.is_float(key) and _matches(key, wanted)
    }


def _rest(found: Match, checkpoint: Checkpoint, encoded: dict[str, Part]) -> dict[str, Part]:
    """Everything that is not encoded, by its name in the checkpoint; and by its name in the model where transformers
    makes it of tensors of which others are encoded."""
    taken = {key for part in encoded.values() for key in part.keys}
    rest = {key: tensor(key, checkpoint) for key in checkpoint if key not in taken}
    for parameter, (conversion, _) in found.made.items():
        stored = parameter in encoded or any(n.rpartition(".")[0] == parameter for n in encoded)
        if not stored and not taken.isdisjoint(conversion.keys):
            rest[parameter] = whole(parameter, found, checkpoint)
            for key in conversion.keys:
                rest.pop(key, None)
    return rest


def _keys_of(found: Match, candidate: Candidate, name: str) -> list[str]:
    """Names in the container for a parameter's tensors."""
    if candidate.kind != "experts":
        return [_name(found, name)]
    if name in found.experts:
        return list(found.keys(name))
    return [f"{name}.{i}" for i in range(candidate.parameters[name].shape[0])]


def _is_wanted(found: Match, candidate: Candidate, wanted: tuple[list[str], list[str]]) -> bool:
    """Whether all tensors of a layer are among those that are to be encoded."""
    keys = {key for name in candidate.parameters for key in found.keys(name)}
    return all(_matches(key, wanted) for key in keys)


def _matches(key: str, wanted: tuple[list[str], list[str]]) -> bool:
    include, exclude = wanted
    return (not include or any(fnmatch.fnmatchcase(key, p) for p in include)) and not any(
        fnmatch.fnmatchcase(key, p) for p in exclude
    )


def _scheme_of(report: CompressionReport) -> str:
    return next((t.scheme for t in report.tensors if t.scheme != "raw"), "raw")
