"""Calibration in the commands that encode: its options, what they mean, and what to say where it is left out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import format as fmt
from .._core import paths
from .._core.errors import FormatError, InputError
from .._core.foreign import is_causal
from .._core.option_table import DEFAULT_BITS
from .._core.options import COLUMNS, MIXED_TEXT, OWN_TEXT, is_statistics_file
from .._core.paths import regular
from .._core.terminal import columns, wrapped
from .._models import folder
from .._native import safe
from .arguments import positive
from .output import show_progress, tell

if TYPE_CHECKING:
    from .._calibrate.statistics import Statistics

# Up to so many bits calibration makes a difference that people see.
_FEW_BITS = 5.0
# The part of free memory that weights may take for a calibration that nobody asked for.
_PART_OF_MEMORY = 0.6
# Bytes of a model that calibrates in seconds on a CPU.
_SMALL = 1 << 30
# The values of --calibrate that are no files, and the text that they stand for.
_NAMES = {
    MIXED_TEXT: "text of many kinds",
    OWN_TEXT: "text that it writes",
    COLUMNS: "text of many kinds",
}
# A config.json is a few KB.
_LONGEST_CONFIG = 1 << 22


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
    text = _NAMES.get(value, str(value))
    time = "seconds with a GPU, and for a small model" if value == COLUMNS else "minutes"
    _tell_unless_quiet(a, f"calibrating {model} on {text}: this takes {time}")


def is_default(a: argparse.Namespace) -> bool:
    """Whether ``wcodec encode`` calibrates by columns although nothing asks for it, if the model runs here."""
    return Path(a.src).is_dir() and _gains(a)


def by_default(a: argparse.Namespace) -> Statistics | None:
    """Statistics of columns alone, where that is the default and the model runs here; otherwise says why not."""
    if not _gains(a):
        return None
    try:
        return _of_columns(a)
    except Exception as error:  # noqa: BLE001 - nothing that keeps a model from running keeps it from being encoded
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        _tell_unless_quiet(a, f"not calibrated: {why}; {_bits_of(a):g} bits lose much less with it")
        return None


def _of_columns(a: argparse.Namespace) -> Statistics | None:
    from .._models.running import require_transformers

    source = Path(a.src)
    if not source.is_dir():
        raise InputError("that takes the folder of a whole model (name that)", code="I624")
    require_transformers()
    from .._calibrate import amount
    from .._calibrate.collect import statistics_of
    from .._models.original import original_model
    from .._models.save import FILE
    from ..nn._weights.budget import host_memory

    output = Path(a.output)
    if not a.overwrite and os.path.lexists(output / FILE if folder.is_meant(a.output) else output):
        # That is refused, which should not take a calibration.
        return None
    size = amount.bytes_of(source)
    place = amount.chosen_place(a.device, size)
    available = host_memory()[0]
    if place.type == "cpu" and available is not None and size > _PART_OF_MEMORY * available:
        raise InputError(
            f"the model has {fmt.size(size)}, and {fmt.size(available)} of memory are free "
            "(--calibrate columns does it all the same)",
            code="I624",
        )
    time = "seconds" if place.type != "cpu" or size < _SMALL else "a minute or more on a CPU"
    _tell_unless_quiet(
        a,
        f"calibrating {a.src} by columns, on text of many kinds: this takes {time} (--no-calibrate leaves it out; "
        "--calibrate loses still less, and takes minutes)",
    )
    return statistics_of(
        lambda: original_model(source, place, "auto", a.trust_remote_code)[0],
        COLUMNS,
        trust_remote_code=a.trust_remote_code,
        progress=show_progress(a.quiet or a.json),
    )


def _gains(a: argparse.Namespace) -> bool:
    """Whether nothing is said of calibration, and one number of bits is asked for that it makes better, of a language
    model."""
    if a.calibrate is not None or a.statistics is not None or (a.budget, a.quality, a.plan) != (None, None, None):
        return False
    bits = _bits_of(a)
    if bits is None or bits > _FEW_BITS or any("bits" in rule for _, rule in a.rule) or a.bits_per_tensor:
        return False
    return _is_causal(Path(a.src))


def _tell_unless_quiet(a: argparse.Namespace, text: str) -> None:
    if not (a.quiet or a.json):
        tell(wrapped(safe(text), columns(sys.stderr), "  "))


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
    return isinstance(names, list) and any(map(is_causal, names))
