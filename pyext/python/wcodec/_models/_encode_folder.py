"""Encoding the folder of a checkpoint into the folder of a compressed model."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
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
from ._checkpoint import Checkpoint, Lazy
from ._find import Candidate, find
from ._folder import quantization_of
from ._names import Match, check, match
from ._replace import nothing_to_compress
from ._save import CONFIG, FILE, REST
from ._stored import as_stored, forget_quantization, is_exact

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
    model = _load.skeleton(config, _load.computing_dtype_of(config, source))
    found = match(model, checkpoint)
    check(model, found, checkpoint.shape, str(checkpoint.path))
    candidates, skipped = find(model, [], [], True)
    candidates = [c for c in candidates if all(n in found.whole or n in found.experts for n in c.parameters)]
    kept = [c for c in candidates if _is_wanted(found, c, wanted)]
    if not kept:
        raise nothing_to_compress(str(source), model, skipped)
    keys, stacks = _names(found, kept)
    transpose = [exactly(key) for c in kept if c.kind == "conv1d" for n in c.parameters for key in [found.whole[n]]]
    taken = {key for names in keys.values() for key in names}
    rest = {name: (name,) for name in checkpoint if name not in taken}
    metadata = {**(options.pop("metadata", None) or {}), **({_native.REST_KEY: REST} if rest else {})}
    options = {**options, "metadata": metadata, "transpose": transpose}
    if stacks:
        # Of stacks of experts, which are in one tensor, each is stored by itself.
        weights = Lazy(checkpoint, keys, stacks)
        report = _api.compress(as_stored(weights, kept) if is_exact(options) else weights, new / FILE, **options)
    else:
        skip = [*patterns("skip", options.pop("skip", ())), *map(exactly, rest)]
        report = _api.compress(source, new / FILE, skip=skip, **options)
    with output(new / REST) as out:
        out.write_tensors(tensor_source(Lazy(checkpoint, rest, {}), {"format": "pt"}))
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


def _names(found: Match, kept: list[Candidate]) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """What is encoded, by the names in the container, which are the checkpoint's: the tensor that it is, or that has it
    as a matrix of a stack."""
    keys: dict[str, tuple[str, ...]] = {}
    stacks: dict[str, int] = {}
    for candidate in kept:
        for name, parameter in candidate.parameters.items():
            if candidate.kind != "experts":
                keys[found.whole[name]] = (found.whole[name],)
            elif name in found.whole:
                for i in range(parameter.shape[0]):
                    keys[f"{name}.{i}"], stacks[f"{name}.{i}"] = (found.whole[name],), i
            else:
                keys.update({key: (key,) for expert in found.stack(name) for key in expert})
    return keys, stacks


def _is_wanted(found: Match, candidate: Candidate, wanted: tuple[list[str], list[str]]) -> bool:
    """Whether all tensors of a layer are among those that are to be encoded."""
    keys: Iterable[str] = (
        key
        for name in candidate.parameters
        for key in ([found.whole[name]] if name in found.whole else [k for e in found.stack(name) for k in e])
    )
    include, exclude = wanted
    return all(
        (not include or any(fnmatch.fnmatchcase(key, p) for p in include))
        and not any(fnmatch.fnmatchcase(key, p) for p in exclude)
        for key in keys
    )


def _scheme_of(report: CompressionReport) -> str:
    return next((t.scheme for t in report.tensors if t.scheme != "raw"), "raw")
