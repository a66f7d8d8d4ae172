"""Causal language models that are not compressed: those of folders, and those in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core.errors import InputError
from .._core.foreign import by_transformers, config_of, is_causal
from .._core.options import path_of, shown
from .._file.gguf import is_gguf
from .._gpu import devices
from .._gpu import torch as _torch
from . import running
from .dequantized import dequantized_model, is_quantized

if TYPE_CHECKING:
    import torch


def is_model(source: Any) -> bool:
    """Whether it is a model of torch, without importing torch for it."""
    return callable(getattr(source, "named_parameters", None)) and callable(getattr(source, "forward", None))


def original_model(
    source: Any, device: str | torch.device = "cpu", dtype: Any = None, trust_remote_code: bool = False
) -> tuple[Any, Path | None]:
    """A causal language model that is not compressed, and the folder that it is from; a model is taken as it is.

    :param dtype: its computing dtype: if left out, float32 on the CPU, and what the config says on a GPU; ``"auto"``
        for what the config says everywhere.
    :raises InputError: if it is none, or if it needs code that is not trusted.
    """
    if is_model(source):
        running.check_model(source)
        return source, None
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"a {type(source).__name__} is no language model that could be measured (pass the folder of a model, or a "
            "model of transformers)",
            code="I503",
        )
    transformers = running.require_transformers()
    torch = _torch.require()
    if is_gguf(source):
        return _of_gguf(Path(path_of(source)), device, dtype)
    folder = Path(path_of(source))
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder}: there is no config.json, so that nothing says what model this is "
            "(name the folder of a transformers model)",
            file=folder,
            code="I503",
        )
    config = config_of(folder, trust_remote_code=trust_remote_code)
    known = getattr(config, "architectures", None) or []
    if known and not any(map(is_causal, known)):
        raise InputError(
            f"{folder}: its config says {shown(known[0])}, which is no causal language model: there is no next token "
            "to predict (name another model; a budget without a text needs none)",
            file=folder,
            code="I503",
        )
    where = devices.place(device)
    if dtype is None:
        dtype = torch.float32 if where.type == "cpu" else (getattr(config, "dtype", None) or torch.bfloat16)
    if is_quantized(config):
        with by_transformers(folder, "does not load it"):
            return dequantized_model(config, folder, dtype, trust_remote_code).to(where), folder
    with _without_bars(transformers), by_transformers(folder, "does not load it"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, trust_remote_code=trust_remote_code
        )
        return model.to(where).eval(), folder


def _of_gguf(path: Path, device: str | torch.device, dtype: Any) -> tuple[Any, Path]:
    """The model of a GGUF file, and the folder of its tokenizer."""
    from ..nn._layers.layer import computing_dtype
    from .gguf import GgufModel

    # Without a dtype, weights are what a folder of them has.
    stored = None if dtype is None or dtype == "auto" else computing_dtype(dtype)
    where, gguf_model = devices.place(device), GgufModel(path, stored)
    gguf_model.keep()
    config = config_of(gguf_model.folder)
    if dtype is None:
        dtype = _torch.require().float32 if where.type == "cpu" else config.dtype
    with by_transformers(path, "does not load it"):
        return dequantized_model(config, gguf_model.folder, dtype, weights=gguf_model.checkpoint).to(
            where
        ), gguf_model.folder


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
