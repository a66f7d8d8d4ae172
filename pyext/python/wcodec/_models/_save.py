"""Saving models with compressed layers: compressed bytes are copied as they are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from .._errors import InputError, OutputExistsError
from ..nn import CompressedLayer

FILE = "model.wcodec"
# Files of a tokenizer, which belong to a model's folder.
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json"),
)


def save_pretrained(
    model: Any, folder: str | os.PathLike[str], tokenizer: Any = None, *, overwrite: bool = False
) -> None:
    """Writes a model of transformers with compressed layers to a folder, for :func:`wcodec.load_model` and for
    ``AutoModelForCausalLM.from_pretrained``::

        wcodec.compress_(model)
        wcodec.save_pretrained(model, "model-compressed", tokenizer)
        model = wcodec.load_model("model-compressed")

    Loaded, the model has the ``residency``, ``vram_budget`` and ``cache`` that it has now, if no others are asked for.
    The folder has ``model.wcodec`` with the compressed weights, copied as they are; ``model.safetensors`` with the few
    that are not compressed (norms, biases); ``config.json``, and files of the tokenizer.

    :param tokenizer: saved with the model; if left out, its files are copied from where the model was loaded from, if
        that was a folder.
    :param overwrite: whether a model in the folder may be replaced.
    :raises InputError: if no layer is compressed, or layers come from several containers.
    :raises OutputExistsError: if the folder has a model and ``overwrite`` was not asked for.
    """
    from safetensors.torch import save_file

    layers = [m for m in model.modules() if isinstance(m, CompressedLayer)]
    if not layers:
        raise InputError(f"no layer of this {type(model).__name__} is compressed (call wcodec.compress_ first)")
    if not hasattr(model, "config") or not hasattr(model.config, "save_pretrained"):
        raise InputError(
            f"a {type(model).__name__} has no config to save (save its state_dict, or use a model of transformers)"
        )
    stores = {id(layer._store): layer._store for layer in layers}
    if len(stores) > 1:
        raise InputError(
            f"the layers come from {len(stores)} containers (decompress_ the model and compress_ it at once)"
        )
    target = Path(folder)
    if not overwrite:
        for name in (FILE, "model.safetensors", "config.json"):
            if (target / name).exists():
                raise OutputExistsError(
                    f"{target / name} exists (pass overwrite=True to replace it)", file=target / name
                )
    target.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for layer in layers for name in layer.tensors))
    data = layers[0]._store.bytes_of(names)
    part = target / f"{FILE}.part"
    part.write_bytes(data)
    os.replace(part, target / FILE)
    save_file(_rest(model), str(target / "model.safetensors"), metadata={"format": "pt"})
    _save_config(model, target, layers[0])
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    else:
        loaded_from = str(getattr(model.config, "_name_or_path", ""))
        source = Path(loaded_from)
        if loaded_from and source.is_dir() and source.resolve() != target.resolve():
            for name in _TOKENIZER:
                if (source / name).is_file():
                    shutil.copyfile(source / name, target / name)


def _rest(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that are not compressed, tied ones once."""
    out = {name: p.detach().to("cpu").contiguous() for name, p in model.named_parameters()}
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                out[f"{path}.{name}" if path else name] = buffer.detach().to("cpu").contiguous().clone()
    return out


def _save_config(model: Any, target: Path, layer: CompressedLayer) -> None:
    quantization = getattr(model.config, "quantization_config", None)
    try:
        if quantization is not None:
            del model.config.quantization_config
        model.config.save_pretrained(target)
    finally:
        if quantization is not None:
            model.config.quantization_config = quantization
    path = target / "config.json"
    config = json.loads(path.read_text())
    if not config.get("architectures"):
        config["architectures"] = [type(model).__name__]
    config["dtype"] = str(layer.dtype).removeprefix("torch.")
    config["quantization_config"] = {
        "quant_method": "wcodec",
        "file": FILE,
        "scheme": layer.scheme,
        "coder": layer.coder,
        **layer._store.saved_settings(),
    }
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(target)
