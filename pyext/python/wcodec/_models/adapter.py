"""An adapter of peft that is in a model's folder: transformers applies it, and so it is here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .._core.errors import UnsupportedError
from .._core.foreign import by_transformers
from .._file.folder_kinds import ADAPTER


def apply(model: Any, folder: Path) -> None:
    """Attaches the adapter of a folder, if there is one, to the model that was loaded from it.

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
        )
    with by_transformers(path, "does not apply it"):
        model.load_adapter(str(folder))
    model.requires_grad_(False)
    model.eval()


def _has_peft() -> bool:
    return importlib.util.find_spec("peft") is not None
