"""The model that is measured, its text, and statistics of a calibration, from wherever they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import _devices, _torch
from .._errors import InputError
from .._foreign import by_transformers, config_of
from .._measure import _models
from .._options import path_of, shown

if TYPE_CHECKING:
    import torch

# How classes of models are named that predict the next token.
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class Factors(Protocol):
    """What :class:`Statistics` of a calibration can say of steps."""

    def factors(self) -> dict[str, float]:
        """By the name of a tensor, its step as a multiple of that of others."""
        ...


def is_model(source: Any) -> bool:
    """Whether it is a model of torch, without importing torch for it."""
    return callable(getattr(source, "named_parameters", None)) and callable(getattr(source, "forward", None))


def original(
    source: Any, device: str | torch.device = "cpu", dtype: Any = None, trust_remote_code: bool = False
) -> tuple[Any, Path | None]:
    """A causal language model that is not compressed, and the folder that it is from; a model is taken as it is.

    :raises InputError: if it is none.
    """
    if is_model(source):
        _models.check_model(source)
        return source, None
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"a {type(source).__name__} is no language model that could be measured (pass the folder of a model, or a "
            "model of transformers)"
        )
    transformers = _models.require_transformers()
    torch = _torch.require()
    folder = Path(path_of(source))
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder}: there is no config.json, so that nothing says what model this is "
            "(name the folder of a transformers model)",
            file=folder,
        )
    config = config_of(folder, trust_remote_code=trust_remote_code)
    known = getattr(config, "architectures", None) or []
    if known and not any(str(name).endswith(_CAUSAL) for name in known):
        raise InputError(
            f"{folder}: its config says {shown(known[0])}, which is no causal language model: there is no next token "
            "to predict (leave text out, and give a budget)",
            file=folder,
        )
    number = _devices.parse(device)
    where = torch.device("cpu") if number is None else _devices.torch_device(number)
    if dtype is None:
        dtype = torch.float32 if number is None else (getattr(config, "dtype", None) or torch.bfloat16)
    with _without_bars(transformers), by_transformers(folder, "does not load it"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, trust_remote_code=trust_remote_code
        )
        return model.to(where).eval(), folder


def tensors_of(model: Any) -> dict[str, Any]:
    """The tensors of a model in memory: stacks of experts one by one, tied ones once."""
    from .._models._find import find

    stacks = {n for c in find(model, [], [], True)[0] if c.kind == "experts" for n in c.parameters}
    out: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        if name in stacks:
            out.update((f"{name}.{i}", parameter.detach()[i]) for i in range(parameter.shape[0]))
        else:
            out[name] = parameter.detach()
    return out


@contextmanager
def _without_bars(transformers: Any) -> Iterator[None]:
    """transformers shows bars of its own unless it is told not to."""
    logging = transformers.utils.logging
    shown_before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown_before:
            logging.enable_progress_bar()


def statistics_of(calibrate: Any, model: Any = None, tokenizer: Any = None, **options: Any) -> Factors | None:
    """Statistics of a calibration: those that are given, in a file, or to be collected from a model."""
    if calibrate is None or callable(getattr(calibrate, "factors", None)):
        found: Factors | None = calibrate
        return found
    if isinstance(calibrate, str | os.PathLike) and str(calibrate).endswith(".safetensors"):
        from .._calibrate import Statistics

        return Statistics.load(path_of(calibrate))
    if model is None:
        raise InputError(
            f"statistics must be there already, or a model that is measured, not {shown(calibrate)} "
            "(pass what collect_statistics found, a .safetensors file of it, or a text to measure on)"
        )
    from .._calibrate import collect_statistics

    return collect_statistics(model, tokenizer, calibrate, **options)


def has_feedback(statistics: Factors | None) -> bool:
    """Whether there are second moments, which error feedback needs."""
    return bool(getattr(statistics, "full", False))
