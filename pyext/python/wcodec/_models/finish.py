"""The last steps of loading a model, when all of it has values."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from .._core.errors import UnsupportedError
from .._core.foreign import by_transformers
from .._file.folder_kinds import ADAPTER
from ..nn._fusion.fuse import arrange
from .plain import unwritten


def finish(model: Any, place: Path | str, folder: Path | None, device: torch.device, fused: bool) -> None:
    """Makes a model that has its weights ready to run.

    :param place: the path that messages name.
    :param folder: the one that it was loaded from, if there is one.
    """
    check_written(model, str(place))
    model.to(device)
    model.requires_grad_(False)
    model.eval()
    if fused:
        arrange(model)
    if folder is not None:
        describe(model, folder)
        _apply_adapter(model, folder)


def describe(model: Any, folder: Path) -> None:
    """Sets the attributes that transformers keeps with a model that it loads."""
    model.config._name_or_path = str(folder)
    if (folder / "generation_config.json").is_file() and hasattr(model, "generation_config"):
        from transformers import GenerationConfig

        with by_transformers(folder / "generation_config.json", "cannot read it"):
            # Some models have more to say than others of how they generate.
            kind = getattr(model, "generation_config_class", GenerationConfig)
            model.generation_config = kind.from_pretrained(folder)


def _apply_adapter(model: Any, folder: Path) -> None:
    """Attaches the adapter of peft that is in a model's folder, if there is one, as transformers does.

    :raises UnsupportedError: if peft is not installed: without it the model is another.
    """
    path = folder / ADAPTER
    if not path.is_file():
        return
    if not _has_peft() or not hasattr(model, "load_adapter"):
        raise UnsupportedError(
            f"{path}: this adapter belongs to the model, and peft is not installed "
            "(pip install peft, or move the adapter's files to another folder)",
            file=path,
            code="U203",
        )
    with by_transformers(path, "does not apply it"):
        model.load_adapter(str(folder))
    model.requires_grad_(False)
    model.eval()


def _has_peft() -> bool:
    return importlib.util.find_spec("peft") is not None


def check_written(model: Any, file: str | None) -> None:
    """Raises parameters that are without data after a load, unless accelerate keeps their values elsewhere."""
    left = [
        name
        for name, parameter in model.named_parameters()
        if parameter.device.type == "meta" and not _is_offloaded(model, name)
    ]
    if left:
        raise unwritten(model, left, file)


def _is_offloaded(model: Any, name: str) -> bool:
    parts = name.split(".")[:-1]
    owners = (model.get_submodule(".".join(parts[:count])) for count in range(len(parts) + 1))
    return any(hasattr(owner, "_hf_hook") for owner in owners)
