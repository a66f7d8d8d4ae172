"""Arguments that several commands have, and their values: numbers in text, and lists with commas."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable

from .._core.errors import InputError
from .._core.option_table import LEAST_BITS, MOST_BITS
from .._core.options import AUTO, DTYPES, size


def positive(text: str) -> int:
    """A whole number above 0."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def whole(text: str) -> int:
    """A whole number from 0 on."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on (such as 7)")
    return value


def fraction(text: str) -> float:
    """A number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on (such as 0.7)")
    return value


_NAMED_SIZES = ("int8", "lossless")
_WITH_UNIT = re.compile(r"([0-9.]+)[ -]?bits?", re.IGNORECASE)


def bits(text: str) -> float:
    """A number of bits that scheme ``rate`` has; the unit may stand behind it.

    >>> bits("3.5"), bits("4bit"), bits("4-bit")
    (3.5, 4.0, 4.0)
    """
    unit = _WITH_UNIT.fullmatch(text)
    try:
        value = float(unit[1] if unit else text)
    except ValueError:
        value = 0.0
    if value == 16:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bits from 1 to 8 (for exact 16-bit weights use --scheme lossless)"
        )
    if not LEAST_BITS <= value <= MOST_BITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bits from 1 to 8 (such as 4 or 3.5)")
    return value


def bits_or_list(text: str) -> float | tuple[float | str, ...]:
    """A number of bits, or several sizes with commas between: numbers of bits, ``int8`` and ``lossless``.

    >>> bits_or_list("4"), bits_or_list("3,4,int8,lossless")
    (4.0, (3.0, 4.0, 'int8', 'lossless'))
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0] not in _NAMED_SIZES:
        return bits(text)
    return tuple(dict.fromkeys(part if part in _NAMED_SIZES else bits(part) for part in parts))


def rates(text: str) -> tuple[float, ...]:
    """Numbers of bits, with commas between."""
    return tuple(dict.fromkeys(bits(part.strip()) for part in text.split(",")))


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers above 0, with commas between."""
    return tuple(dict.fromkeys(positive(part.strip()) for part in text.split(",")))


def choices(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Some of these, with commas between, or all."""

    def parse(text: str) -> list[str]:
        selected = list(known) if text == "all" else [part.strip() for part in text.split(",")]
        for part in selected:
            if part not in known:
                near = difflib.get_close_matches(part, known, 1)
                asked = f" (did you mean {near[0]}?)" if near else ""
                raise argparse.ArgumentTypeError(f"{part!r} is not one of all, {', '.join(known)}{asked}")
        return list(dict.fromkeys(selected))

    return parse


def bytes_of(text: str) -> int | None:
    """A size with its unit, in bytes."""
    try:
        return size("it", text)
    except InputError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 3GB or 512MiB") from None


def bytes_or_auto(text: str) -> int | str | None:
    """A size with its unit, in bytes, or ``auto``."""
    return AUTO if text == AUTO else bytes_of(text)


def trust(parser: argparse.ArgumentParser) -> None:
    """The option of commands that open ``.wcodec`` files."""
    parser.add_argument("--trust", action="store_true",
                        help="open .wcodec files without the size limits that protect against malicious files: for "
                             "files whose origin you know")  # fmt: skip


def original(parser: argparse.ArgumentParser) -> None:
    """Adds the options of commands that run an original model on a text."""
    parser.add_argument("--dtype", choices=DTYPES,
                        help="the dtype to compute in (default: float32 on the "
                             "CPU, the config's on a GPU)")  # fmt: skip
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="the folder of the tokenizer (default: that of the model)"
    )
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model or its tokenizer, or that their configs name; without "
                             "it, such a model is refused")  # fmt: skip
    parser.add_argument("--threads", type=positive, metavar="N", help="threads to use (default: all cores)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar; print only results")
