"""Data that others wrote for transformers: configs and tokenizers. They are read without running code that comes with
them or that they name, and errors of transformers about them become errors of this package."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import FormatError, InputError, UnsupportedError, WcodecError
from .options import shown

# Endings of the names of model classes that predict the next token.
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# More layers than any model has.
MOST_LAYERS = 100_000
# A message of transformers may be as long as a list of all its models.
_LONGEST_SAID = 400
_ADVICE = "pass trust_remote_code=True or --trust-remote-code if you trust where it comes from, or remove it"
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_EXPERTS = ("experts_implementation", "_experts_implementation", "_experts_implementation_internal")
# Keys that make transformers look on the Hub, of whatever value.
_FETCHING = ("kernel_config", "use_kernels", "use_pretrained_backbone", "backbone")
# Kernels of experts that are on the Hub, under names without an owner.
_HUB_EXPERTS = ("deepgemm", "sonicmoe")


def is_causal(name: object) -> bool:
    """Whether a model class predicts the next token, by its name.

    >>> is_causal("LlamaForCausalLM"), is_causal("BertForMaskedLM")
    (True, False)
    """
    return str(name).endswith(_CAUSAL)


def cause(error: BaseException) -> str:
    """An exception of another package in one short line."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    if len(text) > _LONGEST_SAID:
        text = f"{text[:_LONGEST_SAID]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def by_transformers(place: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Whatever transformers raises inside becomes an error of this package that names the place.

    :param what: a phrase for the failure, such as "makes no model of it".
    """
    try:
        yield
    except WcodecError:
        raise
    except Exception as error:
        reason = cause(error)
    except BaseException as error:
        # A panic in a native module of Rust, such as that of tokenizers, arrives as this exception.
        if type(error).__name__ != "PanicException":
            raise
        reason = cause(error)
    else:
        return
    # Not from the other: a traceback would show its text, which may quote a file, as it is.
    raise FormatError(
        f"{place}: transformers {what}: {reason} (restore the file, or upgrade transformers)", file=place, code="F110"
    ) from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one if there is no such file.

    :raises FormatError: if it is no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: no JSON (restore the file)", file=path, code="F109") from None
    if not isinstance(record, dict):
        raise FormatError(f"{path}: not a JSON object (restore the file)", file=path, code="F109")
    return record


def config_of(
    place: str | os.PathLike[str], record: dict[str, Any] | None = None, trust_remote_code: bool = False
) -> Any:
    """The config of a model of transformers: that of a folder or a repository, or of a record.

    :raises InputError: if it would run or fetch code, unless ``trust_remote_code`` allows that.
    """
    from transformers import AutoConfig, PreTrainedConfig

    if record is None:
        with by_transformers(place, "cannot read its config"):
            given = dict(PreTrainedConfig.get_config_dict(os.fspath(place))[0])
    else:
        given = record
    _refuse_layers(given, place)
    if not trust_remote_code:
        _refuse_code(given, place)
        _check_type(given, place)
    with by_transformers(place, "makes no config of it"):
        if record is None:
            config = AutoConfig.from_pretrained(os.fspath(place), trust_remote_code=trust_remote_code)
        else:
            config = AutoConfig.for_model(**record)
    if not trust_remote_code:
        _without_code(config, place, set())
    return config


def _check_type(record: dict[str, Any], place: str | os.PathLike[str]) -> None:
    """Whether transformers itself has the model."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    name = record.get("model_type")
    with by_transformers(place, "makes no config of it"):
        config = CONFIG_MAPPING[name] if isinstance(name, str) and name in CONFIG_MAPPING else None
        known = config in MODEL_FOR_CAUSAL_LM_MAPPING or (config and _class_named(record, config)) is not None
    if known:
        return
    if record.get("auto_map"):
        raise InputError(f"{place}: the model is code that comes with it ({_ADVICE})", file=place, code="I508")
    import transformers

    if name is None:
        raise UnsupportedError(
            f"{place}: its config names no model_type, as those of transformers do (put the model's own config.json "
            "beside the weights; of another library's model, compress the .safetensors file)",
            file=place,
            code="U303",
        )
    raise UnsupportedError(
        f"{place}: transformers {transformers.__version__} has no model of type {shown(name)} "
        "(upgrade transformers, or check the config)",
        file=place,
        code="U304",
    )


def class_of(config: Any) -> Any:
    """The class of transformers that a config names; ``None`` where it names none for such a config, or code of its
    own."""
    named = getattr(config, "auto_map", None)
    return None if named else _class_named({"architectures": getattr(config, "architectures", None)}, type(config))


def _class_named(record: dict[str, Any], config: type) -> Any:
    import transformers

    names = record.get("architectures")
    for name in names if isinstance(names, list) else ():
        model_class: Any = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        is_model = isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
        # It could not be made of another kind of config.
        if is_model and (getattr(model_class, "config_class", None) is config or _is_for(name, config)):
            return model_class
    return None


def _is_for(name: str, config: type) -> bool:
    """Whether one of transformers' Auto classes makes a model of this class for a kind of config: some kinds have the
    classes of others."""
    from transformers.models.auto import modeling_auto

    kind = getattr(config, "model_type", None)
    tables = (table for key, table in vars(modeling_auto).items() if key.endswith("_MAPPING_NAMES"))
    listed = (table.get(kind) for table in tables if isinstance(table, dict))
    return any(name in ((names,) if isinstance(names, str) else names) for names in listed if names)


def _items(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Everything in a config that has a key, wherever it is."""
    # A stack of its own: it may be nested as deep as JSON goes.
    left: list[Any] = [record]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from value.items()
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _refuse_layers(record: dict[str, Any], place: str | os.PathLike[str]) -> None:
    """Refuses numbers of layers that no model has, of which configs make lists that fill the memory."""
    for key, value in _items(record):
        counts = key.rpartition("_")[2] in ("layer", "layers")
        if counts and isinstance(value, int) and value > MOST_LAYERS:
            raise InputError(
                f"{place}: '{key}' of the config is {shown(value)} (use the config that belongs to the weights)",
                file=place,
                code="I507",
            )


def _refuse_code(record: dict[str, Any], place: str | os.PathLike[str]) -> None:
    """Refuses what would be fetched from the Hub and run."""
    for key, value in _items(record):
        wanted = value.values() if isinstance(value, dict) and key in _ATTENTION + _EXPERTS else [value]
        if (key in _FETCHING and value) or any(_is_fetched(key, name) for name in wanted):
            raise _fetched(key, value, place)


def _is_fetched(key: str, value: Any) -> bool:
    """Whether transformers takes this from the Hub."""
    if not isinstance(value, str):
        return False
    if key in _EXPERTS:
        return "/" in value or value in _HUB_EXPERTS
    if key == "architecture":
        # timm reads "hf-hub:owner/name".
        return "/" in value or ":" in value
    if key not in _ATTENTION:
        return False
    flash = value.rpartition("|")[2].startswith("flash_attention")
    # If the package itself is missing, transformers takes a kernel of the Hub for it.
    return "/" in value or (flash and _has("kernels") and not _has("flash_attn") and not _has("flash_attn_interface"))


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _fetched(key: str, value: Any, place: str | os.PathLike[str]) -> InputError:
    return InputError(
        f"{place}: '{key}' of the config asks for code from elsewhere: {shown(value)} ({_ADVICE})",
        file=place,
        code="I508",
    )


def _without_code(config: Any, place: str | os.PathLike[str], seen: set[int]) -> None:
    """Checks a config as transformers made it, and takes from its parts the names of their own code: about these,
    transformers would ask on standard input."""
    if id(config) in seen:
        return
    seen.add(id(config))
    for key, value in list(vars(config).items()):
        if key in _ATTENTION + _EXPERTS and _is_fetched(key, value):
            raise _fetched(key, value, place)
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if hasattr(part, "model_type") and hasattr(part, "to_dict"):
                part.__dict__.pop("auto_map", None)
                _without_code(part, place, seen)
