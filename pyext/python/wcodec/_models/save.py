"""Saving models with compressed layers: compressed bytes are copied as they are."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from .. import _native
from .._core.errors import InputError
from .._core.keywords import keywords
from .._core.paths import output, refuse_existing
from .._file.encode import compress_in_memory
from ..nn import CompressedLayer
from . import beside, card
from .folder import WEIGHTS, is_part, quantization_of
from .saved import check_own, inner, once, plain_name, save_settings
from .stored import forget_quantization

FILE = "model.wcodec"
REST = "model.safetensors"
CONFIG = "config.json"
# Weights that are not compressed, as transformers names them.
_ORIGINALS = (REST, "*.safetensors.index.json", "model-*-of-*.safetensors", "pytorch_model*.bin*")


@keywords()
def save_pretrained(
    model: Any, folder: str | os.PathLike[str], tokenizer: Any = None, *, overwrite: bool = False
) -> None:
    """Writes a model of transformers with compressed layers to a folder, for :func:`wcodec.load_model` and for
    ``AutoModelForCausalLM.from_pretrained``::

        wcodec.compress_(model)
        wcodec.save_pretrained(model, "model-compressed", tokenizer)
        model = wcodec.load_model("model-compressed")

    Loaded, the model has the ``residency``, ``vram_budget`` and ``cache`` that it has now, if no others are asked for.
    The folder has ``model.wcodec`` with all weights: the compressed ones, copied as they are, and the few that are not
    compressed (norms, biases); ``config.json``, and files of the tokenizer. No file of it passes for the model to a
    program that does not know the format: it stops with an error. All files are written under other names first: if
    something fails or is interrupted, the folder stays as it was. A model that ``torch.compile`` or ``DataParallel`` is
    around is saved without that. ``README.md`` is a model card with the original's below it; one that somebody else
    wrote stays as it is.

    :param tokenizer: saved with the model; if left out, its files are copied from where the model was loaded from, as
        are, in any case, other files beside the weights there: of processors, chat templates, code, licences.
    :param overwrite: whether a compressed model in the folder may be replaced; one that is not compressed never is.
    :raises InputError: if no layer is compressed, layers come from several containers or are parts that ranks have, or
        were compressed as those of a larger module; if the model has adapters of peft, or parts that its class does not
        make and loading would not find; or the folder has a model that is not compressed.
    :raises OutputExistsError: if the folder has a model and ``overwrite`` was not asked for.
    """
    model = inner(model)
    layers = [m for m in model.modules() if isinstance(m, CompressedLayer)]
    if not layers:
        raise InputError(
            f"no layer of this {type(model).__name__} is compressed (call wcodec.compress_ first)", code="I506"
        )
    if not hasattr(model, "config") or not hasattr(model.config, "save_pretrained"):
        raise InputError(
            f"a {type(model).__name__} has no config to save (save its state_dict, or use a model of transformers)",
            code="I515",
        )
    _check_names(model)
    containers = {id(layer._store.container) for layer in layers}
    if len(containers) > 1:
        raise InputError(
            f"the layers come from {len(containers)} containers (decompress_ the model and compress_ it at once)",
            code="I516",
        )
    target = Path(folder)
    _keep_original(target)
    rest = _rest(model)
    check_own(model)
    with tempfile.TemporaryDirectory(prefix="wcodec-save-") as place, ExitStack() as stack:
        small = _small_files(model, layers[0], tokenizer, Path(place))
        for name, path in beside.of_model(model, target, tokenizer is None).items():
            # These files were not asked for: those that are there stay.
            if name != card.FILE and (overwrite or not os.path.lexists(target / name)):
                small.setdefault(name, path)
        for name in (FILE, *small):
            refuse_existing(target / name, overwrite)
        target.mkdir(parents=True, exist_ok=True)

        def begin(name: str) -> _native.Output:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            return stack.enter_context(output(target / name, overwrite=overwrite))

        # A file of an earlier version, which would pass for the model.
        old_rest = target / REST if is_part(target) else None
        outputs = [begin(FILE)]
        names = list(dict.fromkeys(name for layer in layers for name in layer.tensors))
        names = layers[0]._store.tensor_groups.stored_with(names)
        parts = [(layers[0]._store.container._open, names)]
        if left := once(model, rest):
            parts.append(_as_they_are(left))
        outputs[0].write_extract(parts, {})
        # The config comes last: without it a folder is no model.
        for name in sorted(small, key=lambda n: n == CONFIG):
            outputs.append(begin(name))
            outputs[-1].write(small[name].read_bytes())
        for out in outputs:
            out.finish()
        if old_rest is not None:
            old_rest.unlink(missing_ok=True)
        if card.FILE not in small:
            _write_card(model, target)


def _write_card(model: Any, target: Path) -> None:
    """Writes the card of a folder that was saved, unless it has one that somebody wrote."""
    existing = card.read(target)
    if os.path.lexists(target / card.FILE) and (existing is None or not card.is_own(existing)):
        return
    source = beside.source_of(model)
    if source is None or source.resolve() == target.resolve():
        original = card.original_of(existing)
    else:
        # A compressed one says what it is of.
        name = None if quantization_of(source) else card.repository_of(source)
        original = card.original_of(card.read(source), name)
    name = target.absolute().name
    with output(target / card.FILE, overwrite=True) as out:
        out.write(card.card(target, original, name, name).encode())
        out.finish()


def _as_they_are(tensors: Mapping[str, torch.Tensor]) -> tuple[_native.Container, list[str]]:
    """A container in memory with tensors as they are, and their names."""
    container = compress_in_memory(tensors, scheme="raw", coder="raw")
    return container._open, list(container)


def _check_names(model: Any) -> None:
    """Refuses weights that were compressed as those of a larger module, under its names: they would not be found."""
    for name, layer in model.named_modules():
        if not isinstance(layer, CompressedLayer) or layer._store.container.path is not None:
            continue
        prefix, _, _ = layer.tensor.rpartition(f".{name}.")
        if prefix and prefix != getattr(model, "base_model_prefix", ""):
            raise InputError(
                f"'{name}' was compressed as '{prefix}.{name}', a part of a larger module, and would not be found "
                f"(call compress_ with the {type(model).__name__} itself)",
                tensor=layer.tensor,
                code="I518",
            )


def _keep_original(target: Path) -> None:
    """Refuses a folder with weights that would be there beside the compressed ones, with the config of these."""
    originals = sorted(path.name for pattern in _ORIGINALS for path in target.glob(pattern))
    if originals and not quantization_of(target):
        raise InputError(
            f"{target}: there is a model that is not compressed ({originals[0]}), and saving would destroy it "
            "(save to another folder)",
            file=target,
            code="I513",
        )


def _small_files(model: Any, layer: CompressedLayer, tokenizer: Any, place: Path) -> dict[str, Path]:
    """All but the weights, by their names in the model's folder; transformers writes them to ``place``."""
    _save_config(model, place, layer)
    if tokenizer is not None:
        tokenizer.save_pretrained(place)
    return {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*")) if path.is_file()}


def _rest(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that are not compressed, those that are one object once."""
    out = {plain_name(name): p.detach() for name, p in model.named_parameters()}
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                out[plain_name(f"{path}.{name}" if path else name)] = buffer.detach()
    return out


def _main_dtype(model: Any) -> torch.dtype:
    """The dtype that most of a model computes in: classes keep some layers in another one."""
    counts: Counter[torch.dtype] = Counter()
    for module in model.modules():
        if isinstance(module, CompressedLayer):
            counts[module.dtype] += module.elements
    dtype: torch.dtype = counts.most_common(1)[0][0]
    return dtype


def _save_config(model: Any, target: Path, layer: CompressedLayer) -> None:
    quantization = getattr(model.config, "quantization_config", None)
    try:
        if quantization is not None:
            del model.config.quantization_config
        save_settings(model, target)
    finally:
        if quantization is not None:
            model.config.quantization_config = quantization
    path = target / CONFIG
    config = forget_quantization(json.loads(path.read_text()))
    # The model that is saved may be a part of the one that the config was of.
    config["architectures"] = [type(model).__name__]
    config["dtype"] = str(_main_dtype(model)).removeprefix("torch.")
    config[WEIGHTS] = FILE
    config["quantization_config"] = {
        "quant_method": "wcodec",
        "file": FILE,
        "scheme": layer.scheme,
        "coder": layer.coder,
        **layer._store.saved_settings(),
    }
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
