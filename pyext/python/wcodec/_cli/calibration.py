"""Calibration in the commands that encode: its options, what they mean, and what to say where it is left out."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._calibrate import by_default
from .._core import paths
from .._core.errors import FormatError, InputError
from .._core.options import COLUMNS, MIXED_TEXT, OWN_TEXT, is_statistics_file
from .._core.paths import regular
from .._core.terminal import columns, wrapped
from .._native import safe
from .arguments import positive
from .encoding import given_options
from .output import tell

# The values of --calibrate that are no files.
_NAMES = (MIXED_TEXT, OWN_TEXT, COLUMNS)


def _data(text: str) -> str:
    if os.path.isdir(text):
        # In `--calibrate MODEL -o OUT` the folder was meant as the source.
        raise argparse.ArgumentTypeError(f"{text!r} is a folder (name the model before --calibrate, or a file of text)")
    return text


def add_options(parser: argparse.ArgumentParser, none: bool = False, *, default: bool = False) -> None:
    """``--calibrate`` with its alias, and how much text it looks at.

    :param none: whether ``none`` may be asked for.
    :param default: whether a calibration of seconds is the default, which can be left out.
    """
    parser.add_argument("--calibrate", nargs="?", const=MIXED_TEXT, type=_data, metavar="TEXT",
                        help="calibrate: far less quality loss at the same bits. TEXT is columns (seconds), mixed "
                             "(minutes; texts of many kinds and what the model writes, the default without a value), "
                             "self (what it writes alone), a file of UTF-8 text, or a statistics file of wcodec "
                             "calibrate"
                             + (", or none" if none else "")
                             + (" (default: columns, for the folder of a causal language model, up to 5 bits)"
                                if default else ""))  # fmt: skip
    if default:
        parser.add_argument("--no-calibrate", dest="calibrate", action="store_const", const="none",
                            help="encode by the weights alone, without running the model")  # fmt: skip
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
    if a.calibrate in _NAMES:
        return a.calibrate
    return a.calibrate if is_statistics_file(a.calibrate) else Path(a.calibrate)


def choice_of(a: argparse.Namespace) -> Any:
    """The value for ``calibrate`` where columns are the default, which is ``None``."""
    return False if a.calibrate == "none" and a.statistics is None else value_of(a)


def file_of(a: argparse.Namespace) -> list[Any]:
    """The file that ``calibrate`` names, if it names one."""
    value = value_of(a)
    return [] if value is None or value in _NAMES else [value]


def collects(a: argparse.Namespace) -> bool:
    """Whether the model is to run over text."""
    value = value_of(a)
    return value is not None and not is_statistics_file(value)


def announce(a: argparse.Namespace, model: str) -> None:
    """Says on standard error, before minutes of work, what they are for."""
    if not collects(a):
        return
    value = value_of(a)
    # Which text a name stands for, the calibration says when it is known.
    text = "" if value in _NAMES else f" on {value}"
    time = "seconds with a GPU, and for a small model" if value == COLUMNS else "minutes"
    by = " by columns" if value == COLUMNS else ""
    _tell_unless_quiet(a, f"calibrating {model}{by}{text}: this takes {time}")


def is_default(a: argparse.Namespace) -> bool:
    """Whether ``wcodec encode`` calibrates by columns although nothing asks for it, if the model runs here."""
    given = given_options(a)
    planned = {"budget": a.budget, "quality": a.quality, "plan": a.plan}
    return by_default.applies(a.src, {**given, **planned, "calibrate": choice_of(a)})


@contextmanager
def telling(a: argparse.Namespace) -> Iterator[None]:
    """Prints on standard error what a calibration says that it does, and why one is left out."""
    logger, handler = logging.getLogger(by_default.LOGGER), _Told(a)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


class _Told(logging.Handler):
    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self._a = a

    def emit(self, record: logging.LogRecord) -> None:
        _tell_unless_quiet(self._a, record.getMessage())


def _tell_unless_quiet(a: argparse.Namespace, text: str) -> None:
    if not (a.quiet or a.json):
        tell(wrapped(safe(text), columns(sys.stderr), "  "))
