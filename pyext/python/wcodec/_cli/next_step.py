"""The command that goes on from here: printed whole, so that it can be copied and run."""

from __future__ import annotations

import shlex
from pathlib import Path

from .output import prose, say


def encode_command(model: str, what: str, *options: str) -> str:
    """A ``wcodec encode`` of a model into a folder beside the working directory.

    >>> encode_command("models/smol", "3bit", "--bits", "3", "--calibrate", "my stats.safetensors")
    "wcodec encode models/smol -o smol-3bit/ --bits 3 --calibrate 'my stats.safetensors'"
    """
    path = Path(model).resolve()
    name = (path.stem if path.is_file() else path.name) or "model"
    return shlex.join(["wcodec", "encode", model, "-o", f"{name}-{what}/", *options])


def show_next(command: str, why: str) -> None:
    """Prints a command on a line of its own, which no terminal's width breaks.

    :param why: the purpose of the command.
    """
    prose(f"next, {why}:")
    say(f"  {command}")
