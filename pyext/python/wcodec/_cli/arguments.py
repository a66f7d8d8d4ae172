"""What arguments of several commands have in common: numbers in text, and lists with commas."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable


def positive(text: str) -> int:
    """A whole number above 0."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def bits(text: str) -> float:
    """A number of bits that scheme ``rate`` has."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 8:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bits from 1 to 8")
    return value


def rates(text: str) -> tuple[float, ...]:
    """Numbers of bits, with commas between."""
    return tuple(dict.fromkeys(bits(part.strip()) for part in text.split(",")))


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers above 0, with commas between."""
    return tuple(dict.fromkeys(positive(part.strip()) for part in text.split(",")))


def choices(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Some of these, with commas between, or all."""

    def parse(text: str) -> list[str]:
        chosen = list(known) if text == "all" else [part.strip() for part in text.split(",")]
        for part in chosen:
            if part not in known:
                near = difflib.get_close_matches(part, known, 1)
                asked = f" (did you mean {near[0]}?)" if near else ""
                raise argparse.ArgumentTypeError(f"{part!r} is not one of all, {', '.join(known)}{asked}")
        return list(dict.fromkeys(chosen))

    return parse
