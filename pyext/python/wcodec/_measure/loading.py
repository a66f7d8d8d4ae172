"""Models to measure: those in memory, and those that a path or the name of a repository stands for."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._core import keywords
from .._core.errors import InputError
from .._file.gguf import is_gguf
from .._gpu import devices
from .._models import running

# Keywords in the ``**kwargs`` of transformers' ``generate`` that are no settings of a config.
_ITS_OWN = ("assistant_tokenizer", "debug_io", "tokenizer", "trust_remote_code", "use_model_defaults")


def is_place(model: Any) -> bool:
    """Whether it is a path or a name, and not a model."""
    return isinstance(model, str | os.PathLike)


def model_of(
    model: Any,
    what: str = "model",
    *,
    device: Any = None,
    dtype: Any = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> Any:
    """A model in memory as it is; of a path or a name, what :func:`wcodec.load_model` loads.

    :param options: further ones of that function.
    :raises InputError: for a device or a dtype that a model in memory does not have.
    """
    if is_place(model):
        from .._models.load import load
        from .._models.request import Request

        place = {"path": model, "device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
        return load(Request(**place, **options))
    running.check_model(model, what)
    actual = {"device": running.device_of(model), "dtype": running.dtype_of(model)}
    wanted = {"device": None if device is None else devices.place(device), "dtype": dtype}
    for name, value in wanted.items():
        if value is not None and str(value).removeprefix("torch.") != str(actual[name]).removeprefix("torch."):
            raise InputError(
                f"{name}={str(value)!r} is for a model that is loaded from a path, and this {what} is in memory, in or "
                f"on {actual[name]} (leave it out, or move the {what} first)",
                code="I307",
            )
    return model


def baseline_of(baseline: Any, model: Any, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """A model to compare with, on the device and in the dtype of another: of a path or a name an ordinary checkpoint
    or GGUF file as it is, and what is compressed already with its compressed layers.

    :param options: further ones of :func:`wcodec.load_model`, for the latter.
    """
    if not is_place(baseline):
        running.check_model(baseline, "baseline")
        return baseline
    device, dtype = running.device_of(model), running.dtype_of(model)
    place = Path(os.fspath(baseline))
    if not place.exists():
        from .._models.hub import downloaded

        place = downloaded(os.fspath(baseline), None, trust_remote_code)
    if not is_gguf(place) and (place.is_file() or any(place.glob("*.wcodec"))):
        return model_of(place, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **options)
    return original_of(place, device, dtype, trust_remote_code)


def original_of(source: Any, device: Any, dtype: Any, trust_remote_code: bool) -> Any:
    """A causal language model that is not compressed, of a folder or of the Hub; one in memory as it is."""
    from .._models.original import original_model

    if is_place(source) and not os.path.exists(source):
        from .._models.hub import downloaded

        source = downloaded(os.fspath(source), None, trust_remote_code)
    return original_model(source, device, dtype, trust_remote_code)[0]


def check_generation(function: str, accepted: Iterable[str], model: Any, options: Mapping[str, Any]) -> None:
    """Refuses options that neither a function nor the model's ``generate`` has, before the model runs.

    :param function: its name, and ``accepted`` its keywords.
    """
    known = _generation_names(model, options)
    if known is not None:
        keywords.check(function, options, {*accepted, *known}, "help(model.generate) tells what it hands on")


def _generation_names(model: Any, options: Mapping[str, Any]) -> set[str] | None:
    """Keywords of the model's ``generate``; ``None`` where only that itself can say."""
    try:
        from transformers import GenerationConfig, GenerationMixin
    except ImportError:
        return None
    base = getattr(model, "get_base_model", None)
    model = base() if callable(base) else model
    plain = isinstance(model, GenerationMixin) and type(model).generate is GenerationMixin.generate
    if not plain or "custom_generate" in options or getattr(model.config, "is_encoder_decoder", False):
        return None
    functions = (model.generate, model.forward, model.prepare_inputs_for_generation)
    named = {name for function in functions for name in inspect.signature(function).parameters}
    settings = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    return {*named, *settings, *_model_names(), *_ITS_OWN} - {"kwargs", "self"}


def _model_names() -> frozenset[str]:
    """Keywords that all models of transformers take."""
    try:
        from transformers.utils import TransformersKwargs
    except ImportError:
        return frozenset()
    return frozenset(TransformersKwargs.__optional_keys__)


__all__ = ["baseline_of", "check_generation", "is_place", "model_of", "original_of"]
