"""Lines before and after the work of a command: the input, the time that all of it took, and the next command."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

from .._core import format as fmt
from .output import show_progress, tell

_LONGEST_HEADER = 100_000_000
_INDEX = "model.safetensors.index.json"
_started = time.perf_counter()


def begin() -> None:
    """Starts the clock of a command."""
    global _started
    _started = time.perf_counter()


def seconds() -> float:
    """Seconds since the command began: with all that it imported, read and measured."""
    return time.perf_counter() - _started


def duration() -> str:
    """Those seconds for people.

    >>> duration().endswith(" s")
    True
    """
    passed = seconds()
    return f"{passed:.1f} s" if passed < 120 else f"{passed / 60:.0f} min {passed % 60:.0f} s"


def announce(source: str, quiet: bool) -> None:
    """Tells people at once what is read: importing torch alone may take seconds."""
    if show_progress(quiet):
        count = tensors_of(Path(source))
        what = "" if count is None else f"{fmt.plural(count, 'tensor')} from "
        tell(f"reading {what}{source}")


def tensors_of(path: Path) -> int | None:
    """The number of tensors of a checkpoint, by its headers or index alone; nothing where these do not say it."""
    try:
        if path.is_dir():
            if (path / _INDEX).is_file():
                return len(json.loads((path / _INDEX).read_text("utf-8"))["weight_map"])
            counts = [tensors_of(file) for file in sorted(path.glob("*.safetensors"))]
            return sum(n for n in counts if n is not None) if counts else None
        if path.suffix != ".safetensors":
            return None
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < _LONGEST_HEADER else {}
        return len(header.keys() - {"__metadata__"})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # Whatever is wrong with it, reading it says so.
        return None


def next_command(folder: str) -> str | None:
    """The command that one would want after a folder was written; nothing for what is no folder of a model."""
    config = _json(Path(folder) / "config.json")
    if not config:
        return None
    name = shlex.quote(os.path.join(folder, ""))
    architectures = config.get("architectures") or []
    if not any(isinstance(a, str) and a.endswith("ForCausalLM") for a in architectures):
        return f"wcodec inspect {name}"
    template = (Path(folder) / "chat_template.jinja").is_file()
    if template or _json(Path(folder) / "tokenizer_config.json").get("chat_template"):
        return f"wcodec chat {name}"
    return f'wcodec generate {name} "Once upon a time"'


def output_of(a: argparse.Namespace) -> str:
    """The output that was named, as an argument or as an option.

    It refuses two of them, and where there is none proposes one.
    """
    if a.out is not None and a.output is not None:
        a.parser.error(f"two outputs were named, '{a.out}' and '{a.output}' (leave one of them out)")
    output = a.out if a.output is None else a.output
    if output is None:
        given = Path(a.src)
        file = given.suffix == ".safetensors" or given.is_file()
        kind = _kind(a)
        proposed = f"{given.stem}-{kind}.wcodec" if file else f"{given.resolve().name or 'model'}-{kind}/"
        bits = f" --bits {a.bits:g}" if a.bits is not None else ""
        line = f"wcodec encode {shlex.quote(a.src)} {shlex.quote(proposed)}{bits}"
        a.parser.error(f"no output was named (for instance: {line})")
    return str(output)


def _kind(a: argparse.Namespace) -> str:
    """A word for a name: how a model is compressed."""
    if a.budget is not None or a.quality is not None:
        return "small"
    if a.bits is not None:
        return f"{a.bits:g}bit"
    return "4bit" if a.scheme == "rate" else a.scheme or "int8"


def _json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
