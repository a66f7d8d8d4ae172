"""Encoding the folder of a checkpoint into the folder of a compressed model."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import _api, _native
from .._errors import InputError
from .._files import output
from .._foreign import config_of, read_json
from .._options import exactly, patterns
from .._reports import CompressionReport
from .._sources import tensor_source
from . import _load
from ._checkpoint import Checkpoint, Lazy
from ._find import Candidate, find
from ._names import Match, check, match
from ._put_folder import new_folder
from ._replace import nothing_to_compress
from ._save import CONFIG, FILE, REST

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
    wanted = patterns("include", options.pop("include", ())), patterns("exclude", options.pop("exclude", ()))
    inputs = [p for p in map(options.get, ("calibrate", "text")) if isinstance(p, str | os.PathLike)]
    with new_folder(dst, source, inputs, overwrite) as (new, folder):
        report = _fill(source, new, wanted, options)
        folder.finish()
    return replace(report, path=os.fspath(target / FILE))


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
        report = _api.compress(Lazy(checkpoint, keys, stacks), new / FILE, **options)
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
    record = read_json(source / CONFIG)
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
