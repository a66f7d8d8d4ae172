"""Folders with compressed models: the record in their config, and the file that has the weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core.errors import FileMissingError, InputError
from .._core.foreign import read_json

# Key of config.json: the file that transformers reads weights from. If that is the container, it has them all, and
# who does not know the format stops at its name.
WEIGHTS = "transformers_weights"


def container_of(folder: Path) -> Path | None:
    """The ``.wcodec`` file of a folder: the one that its config names, or the only one."""
    named = quantization_of(folder).get("file")
    if named:
        path = folder / Path(str(named)).name
        if not path.is_file():
            raise FileMissingError(
                f"{path}: the config names this file, and it is missing (put it back, or save the model again)",
                file=path,
                code="O302",
            )
        return path
    files = sorted(folder.glob("*.wcodec"))
    if len(files) > 1:
        raise InputError(
            f"{folder}: there are {len(files)} .wcodec files (give the path of one)", file=folder, code="I201"
        )
    return files[0] if files else None


def quantization_of(folder: Path) -> dict[str, Any]:
    """The config's record of compressed weights; empty if they are not of this package."""
    record = read_json(folder / "config.json").get("quantization_config")
    return record if isinstance(record, dict) and record.get("quant_method") == "wcodec" else {}


def is_part(folder: Path) -> bool:
    """Whether a folder was written by an earlier version: its container has what is compressed, and
    ``model.safetensors`` the few other weights."""
    return bool(quantization_of(folder)) and not has_all(read_json(folder / "config.json"))


def has_all(config: Mapping[str, Any]) -> bool:
    """Whether a config with compressed weights says that its container has all of them."""
    record = config.get("quantization_config")
    file = record.get("file") if isinstance(record, dict) else None
    return config.get(WEIGHTS) == Path(str(file or "model.wcodec")).name


def is_meant(dst: str) -> bool:
    """Whether an output is to be a folder: its name ends as one's does, or there is a compressed model."""
    separators = tuple(s for s in (os.sep, os.altsep) if s)
    return dst.endswith(separators) or (os.path.isdir(dst) and bool(quantization_of(Path(dst))))
