"""Calibration in the commands that encode: its options, what they mean, and what to say where it is left out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from .._core import paths
from .._core.errors import FormatError, InputError
from .._core.option_table import DEFAULT_BITS
from .._core.options import COLUMNS, OWN_TEXT, is_statistics_file
from .._core.paths import regular
from .._core.terminal import columns, wrapped
from .._native import safe
from .arguments import positive
from .output import tell

# Up to so many bits calibration makes a difference that people see.
_FEW_BITS = 5.0
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# A config.json is a few KB.
_LONGEST_CONFIG = 1 << 22


def _data(text: str) -> str:
    if os.path.isdir(text):
        # In `--calibrate MODEL -o OUT` the folder was meant as the source.
        raise argparse.ArgumentTypeError(f"{text!r} is a folder (name the model before --calibrate, or a file of text)")
    return text


def add_options(parser: argparse.ArgumentParser, none: bool = False) -> None:
    """``--calibrate`` with its alias, and how much text it looks at.

    :param none: whether ``none`` may be asked for.
    """
    parser.add_argument("--calibrate", nargs="?", const=OWN_TEXT, type=_data, metavar="TEXT",
                        help="calibrate on the model itself: far less damage at the same bits. TEXT is columns, for "
                             "factors of columns by what the model writes, in seconds; or, for minutes of more, self "
                             "for what it writes (default without a value), a file of UTF-8 text, or a statistics file "
                             "of wcodec calibrate"
                             + (", or none" if none else ""))  # fmt: skip
    parser.add_argument("--statistics", metavar="FILE", help="the same as --calibrate FILE, of a statistics file")
    parser.add_argument("--tokens", type=positive, metavar="N",
                        help="tokens that calibration looks at (default: 32768; for columns 4096; on a CPU fewer for "
                             "large models)")  # fmt: skip


def check(a: argparse.Namespace) -> None:
    """Refuses what makes no sense before anything is imported for it."""
    if a.statistics is not None:
        if a.calibrate not in (None, "none"):
            raise InputError("--statistics and --calibrate exclude each other (leave one of them out)", code="I625")
        check_statistics(a.statistics)
    value = value_of(a)
    if isinstance(value, Path):
        paths.check(str(value), "file")
        regular(value)
    if a.tokens is not None and not collects(a):
        raise InputError(
            "--tokens has no effect without --calibrate, or with statistics that are there (leave it out, or calibrate "
            "on text)",
            code="I625",
        )


def check_statistics(path: str | None) -> None:
    """Whether a file of statistics is one: a text would be taken for what to collect them on."""
    if path is None:
        return
    paths.check(path, "file")
    if not is_statistics_file(regular(Path(path))):
        raise FormatError(
            f"{path}: not a file of statistics (name what wcodec calibrate wrote)", file=path, code="F105"
        )


def value_of(a: argparse.Namespace) -> Any:
    """The value for ``calibrate`` of Python's functions."""
    if a.statistics is not None:
        return a.statistics
    if a.calibrate in (None, "none"):
        return None
    if a.calibrate in (OWN_TEXT, COLUMNS):
        return a.calibrate
    return a.calibrate if is_statistics_file(a.calibrate) else Path(a.calibrate)


def collects(a: argparse.Namespace) -> bool:
    """Whether the model is to run over text."""
    value = value_of(a)
    return value is not None and not is_statistics_file(value)


def announce(a: argparse.Namespace, model: str) -> None:
    """Says on standard error, before minutes of work, what they are for."""
    if a.quiet or a.json or not collects(a):
        return
    value = value_of(a)
    text = "text that it writes" if value in (OWN_TEXT, COLUMNS) else str(value)
    time = "seconds with a GPU, and for a small model" if value == COLUMNS else "minutes"
    _note(f"calibrating {model} on {text}: this takes {time}")


def advise(a: argparse.Namespace) -> None:
    """Says on standard error what calibration would give, where it could be had."""
    planned = (a.budget, a.quality, a.plan) != (None, None, None)
    if a.quiet or a.json or planned or value_of(a) is not None:
        return
    bits = _bits_of(a)
    if bits is None or bits > _FEW_BITS or any("bits" in rule for _, rule in a.rule) or a.bits_per_tensor:
        return
    if _is_causal(Path(a.src)):
        _note(
            f"not calibrated: {bits:g} bits lose much less with --calibrate columns, which takes seconds, and with "
            "--calibrate, which takes minutes"
        )


def _bits_of(a: argparse.Namespace) -> float | None:
    """Bits of scheme ``rate``; none of other schemes."""
    if a.scheme not in (None, "rate"):
        return None
    if a.bits is not None:
        return float(a.bits)
    return DEFAULT_BITS if a.scheme == "rate" or a.trellis is not None else None


def _is_causal(source: Path) -> bool:
    """Whether the config beside the weights names a language model, without importing what could say for sure."""
    place = (source if source.is_dir() else source.parent) / "config.json"
    try:
        if not place.is_file() or place.stat().st_size > _LONGEST_CONFIG:
            return False
        config = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    names = config.get("architectures") if isinstance(config, dict) else None
    return isinstance(names, list) and any(str(name).endswith(_CAUSAL) for name in names)


def _note(text: str) -> None:
    tell(wrapped(safe(text), columns(sys.stderr), "  "))
