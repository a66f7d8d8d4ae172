"""Folders that are no model of transformers with weights in .safetensors files: each is named for what it is."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .._core.errors import InputError, WcodecError
from .._core.foreign import read_json

ADAPTER = "adapter_config.json"
_CONFIG = "config.json"
_MERGE = "merge_and_unload() of peft's PeftModel makes one model of both, to be saved and named here"
# Weights in other forms: by their files, what they are and what helps. The first that fits counts.
_FORMS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("*.gguf",),
        "a GGUF model",
        "name the .gguf file itself, fetched from the Hub if it is there; better, take the repository that it was made "
        "from, whose weights are .safetensors files",
    ),
    (("*.onnx", "*.onnx_data", "*.onnx.data"), "an ONNX model", "take the model that it was exported from"),
    (
        ("openvino_*.xml", "openvino_*.bin", "*.tflite", "*.mlpackage", "*.mlmodel", "*.engine", "*.plan", "*.pte"),
        "a model compiled for another runtime",
        "take the model that it was made from",
    ),
    (
        ("*.distcp", ".metadata", "shard-*-model-*-of-*.safetensors", "global_step*", "mp_rank_*"),
        "a distributed checkpoint, of parts that ranks wrote",
        "load it with what wrote it, and save it with save_pretrained",
    ),
    (
        ("tf_model.h5", "*.h5", "*.keras", "saved_model.pb", "tf_model-*.h5", "variables"),
        "weights of TensorFlow",
        "transformers 4 reads them with from_tf=True; save the model with save_pretrained there",
    ),
    (
        ("flax_model.msgpack", "*.msgpack", "flax_model-*.msgpack"),
        "weights of Flax",
        "transformers 4 reads them with from_flax=True; save the model with save_pretrained there",
    ),
    (("*.ot",), "weights of rust-bert", "take the model that they were made from"),
    (("*.npz", "*.npy"), "NumPy arrays", "load them, and pass the mapping of arrays to wcodec.compress"),
    (
        ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl"),
        "pickled weights of torch",
        "AutoModel.from_pretrained(folder).save_pretrained(new) writes .safetensors files where transformers reads "
        "them; otherwise torch.load(..., weights_only=True) gives tensors that wcodec.compress takes",
    ),
)
# Files that say which other library a folder is of.
_LIBRARIES = {
    "open_clip_config.json": "open_clip",
    "gliner_config.json": "GLiNER",
    "params.json": "the model's authors, in their own form",
    "mergekit_config.yml": "mergekit",
    "model_config.yaml": "NeMo",
}
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "spiece.model", "special_tokens_map.json", "added_tokens.json",
              "tekken.json", "*.tiktoken", "chat_template*")  # fmt: skip


def check(folder: Path) -> None:
    """Whether a folder is a model of transformers, or has a container that may say what it is of.

    :raises InputError: if it is something else, in words that say what.
    """
    _raise(folder, _names(folder))


def check_weights(folder: Path) -> None:
    """Whether a folder has weights that are encoded tensor by tensor, of whatever model.

    :raises InputError: if they are in another form, or an adapter is beside them.
    """
    names = _names(folder)
    if ADAPTER in names:
        raise _adapter(folder, names, lambda name: read_json(folder / name))
    if names and not _has_weights(names):
        _raise(folder, names)


def _raise(folder: Path, names: list[str]) -> None:
    error = explain(folder, names, lambda name: read_json(folder / name), lambda name: _names(folder / name))
    if error is not None:
        raise error


def _names(folder: Path) -> list[str]:
    """Names of a folder's files; none if it is no folder or must not be read, which reading reports better."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def explain(
    place: str | os.PathLike[str],
    names: list[str],
    read: Callable[[str], dict[str, Any]],
    inside: Callable[[str], list[str]],
) -> WcodecError | None:
    """The error about a folder that has such files, if it is no model that can be read.

    :param read: a function that gives the JSON object of one of the files, an empty one if it is not there.
    :param inside: a function that gives the names in a subfolder, none if it is not one.
    """
    if ADAPTER in names and not _is_model(names):
        return _adapter(place, names, read)
    if "model_index.json" in names:
        name = read("model_index.json").get("_class_name", "of diffusers")
        return _refuse(
            place,
            f"this is a pipeline of diffusers ({name}), not a model of transformers",
            "its text encoders are models of transformers: name such a subfolder; of other parts, name the "
            ".safetensors file, and an output that ends with .wcodec",
            code="I206",
        )
    config = read(_CONFIG) if _CONFIG in names else {}
    class_name = config.get("_class_name") or config.get("_diffusers_version")
    if class_name or any(n.startswith("diffusion_pytorch_model") for n in names) or "scheduler_config.json" in names:
        return _refuse(
            place,
            f"this is a part of a diffusers pipeline ({class_name or 'without a config'}), not a model of transformers",
            "name its .safetensors file, and an output that ends with .wcodec, to encode its weights",
            code="I206",
        )
    if _CONFIG in names and config.get("architecture") and not config.get("model_type"):
        return _refuse(
            place,
            "this is a model of timm, not of transformers",
            "name its .safetensors file, and an output that ends with .wcodec, to encode its weights",
            code="I206",
        )
    if any(fnmatch.fnmatchcase(n, "*.wcodec") for n in names):
        return None
    if _CONFIG not in names:
        return _without_config(place, names, inside)
    quantization = config.get("quantization_config")
    if _has_weights(names) or (isinstance(quantization, dict) and quantization.get("quant_method") == "wcodec"):
        return None
    return _other_form(place, names, inside)


def _without_config(
    place: str | os.PathLike[str], names: list[str], inside: Callable[[str], list[str]]
) -> WcodecError | None:
    if not names:
        return _refuse(
            place, "the folder is empty: no config.json, no weights", "name the folder of a model", code="I205"
        )
    models = [n for n in names if _CONFIG in inside(n)]
    if "modules.json" in names and models:
        return _refuse(
            place,
            f"this is a folder of sentence-transformers, whose model is in '{models[0]}'",
            "name that subfolder",
            code="I207",
        )
    if not _has_weights(names):
        if other := _other_form(place, names, inside):
            return other
        if models:
            # The last steps of a training come first.
            models.sort(key=lambda n: (n.startswith("checkpoint-"), len(n), n), reverse=True)
            return _refuse(
                place,
                f"there is no config.json in the folder, and there are models in {_some(models)}",
                "name one of these subfolders",
                code="I207",
            )
        if _any(names, _TOKENIZER):
            return _refuse(
                place,
                "the folder has a tokenizer and no model: no config.json, no weights",
                "name the model's folder",
                code="I205",
            )
    for name, library in _LIBRARIES.items():
        if name in names:
            return _refuse(
                place,
                f"there is no config.json, and '{name}', of {library}: this is no model of transformers",
                "take the model in the form of transformers; or name its .safetensors file, and an output that ends "
                "with .wcodec, to encode its weights",
                code="I206",
            )
    return None


def _is_model(names: list[str]) -> bool:
    """Whether there is more than an adapter."""
    return _CONFIG in names or any(n.endswith(".wcodec") for n in names) or _has_weights(names)


def _adapter(place: str | os.PathLike[str], names: list[str], read: Callable[[str], dict[str, Any]]) -> InputError:
    record = read(ADAPTER)
    kind, base = record.get("peft_type") or "peft", record.get("base_model_name_or_path")
    if _is_model(names):
        return _refuse(
            place,
            f"there is an adapter ({kind}, {ADAPTER}) beside the model, which one file of weights would leave out",
            f"write a folder, which keeps it, with / at the end of the output; or {_MERGE}; or name the .safetensors "
            "file",
            code="I209",
        )
    return _refuse(
        place,
        f"this is an adapter ({kind}) of {base or 'another model'}, not a model",
        f"load that model with wcodec.load_model, and attach the adapter with PeftModel.from_pretrained; or {_MERGE}",
        code="I208",
    )


def _other_form(
    place: str | os.PathLike[str], names: list[str], inside: Callable[[str], list[str]]
) -> WcodecError | None:
    inner = [f"{n}/{m}" for n in ("onnx", "original", "gguf") if n in names for m in inside(n)]
    for patterns, what, advice in _FORMS:
        for name in [*names, *inner]:
            if any(fnmatch.fnmatchcase(name.rpartition("/")[2], p) for p in patterns) and not _is_state(name):
                return _refuse(place, f"there is no .safetensors file, and '{name}': {what}", advice, code="I204")
    return None


def _is_state(name: str) -> bool:
    """Whether a file is of a training, not of its model."""
    return _any([name], ("optimizer*", "scheduler*", "rng_state*", "training_args.bin", "scaler*", "random_states*"))


def _has_weights(names: Iterable[str]) -> bool:
    """Whether there are weights in the form that is read, other than an adapter's or a rank's."""
    return any(
        n.endswith((".safetensors", ".safetensors.index.json"))
        and not n.startswith("adapter_model")
        and not fnmatch.fnmatchcase(n, "shard-*-model-*-of-*.safetensors")
        for n in names
    )


def _any(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def _refuse(place: str | os.PathLike[str], what: str, advice: str, *, code: str) -> InputError:
    return InputError(f"{place}: {what} ({advice})", code=code, file=place)
