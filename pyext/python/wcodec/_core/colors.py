"""Colours of data: one for each meaning, in pictures, notebooks and pages alike. They are of middle lightness, so that
they can be told from a light background and from a dark one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

GOOD, BAD, ATTENTION, NEUTRAL = "#2e9e6b", "#d0342c", "#e69f00", "#8a8a8a"

COLORS: Mapping[str, str] = MappingProxyType(
    {
        # weights: as they were, compressed in whatever way, and by scheme; other quantizers and formats
        "original": NEUTRAL,
        "compressed": "#0072b2",
        "compressed embedding": "#7fb8d8",
        "int8": "#56b4e9",
        "rate": "#e07b00",
        "rate, steps": "#f0b35e",
        "rate, calibrated": "#a34a00",
        "lossless": "#6a9f3a",
        "others": "#8c6d5a",
        # what was found in a file
        "sound": GOOD,
        "damaged": BAD,
        # coders
        "rans": "#5b5fc7",
        "huffman": "#c2a400",
        "zstd": "#b0628f",
        # the work of a token
        "copy": "#7d8fd1",
        "decode": "#9c4f96",
        "product": "#4f9d8f",
        "other work": "#b9b1a6",
        # where compressed bytes are while a model runs
        "device": "#4c78a8",
        "host": "#f2b134",
        "disk": "#9d7660",
        "cached": "#72b7b2",
        "auto": "#a8a8b8",
    }
)
"""Colours of what bars, lines and points stand for: the same in every picture of the package, and in the notebooks."""

# From the smallest value to the largest.
SCALES: dict[str, tuple[str, ...]] = {
    "bits": ("#46327e", "#365c8d", "#21918c", "#4ac16d", "#d0d63a"),
    "ratio": ("#c9e7bb", "#5fb882", "#1f8a70", "#155e63"),
    "error": ("#f4d58d", "#ee964b", "#d1495b", "#8d1d4f"),
    "rms": ("#f4d58d", "#ee964b", "#d1495b", "#8d1d4f"),
    "damage": ("#f4d58d", "#ee964b", "#d1495b", "#8d1d4f"),
    "share": ("#d9cbe8", "#a685c9", "#7a4fa3", "#4f2675"),
    "speed": ("#bddcf0", "#6baed6", "#3080bd", "#12508c"),
    "step": ("#5e3c1e", "#a9713a", "#dcb47c", "#f0dfc0"),
    "tokens": ("#f3c6d8", "#d9799f", "#a83c6e", "#6b1d45"),
}
MEASURES = ("bits", "ratio", "error", "share", "speed")
"""Those of a container."""
TITLES = {
    "bits": "bits/weight, stored",
    "ratio": "ratio, original / stored bytes",
    "error": "error, RMS of decoded - source over that of the source",
    "rms": "RMS of the differences from the original",
    "damage": "share of the quality loss, %",
    "share": "share of the file's bytes, %",
    "speed": "decoded output, GB/s",
    "step": "step, as a multiple of what all would have",
    "tokens": "tokens that it was multiplied with",
}


def _channels(color: str) -> tuple[int, int, int]:
    value = int(color[1:], 16)
    return value >> 16, value >> 8 & 255, value & 255


def between(stops: Sequence[str], part: float) -> str:
    """The colour at a part, 0 to 1, of the way through some.

    >>> between(("#000000", "#ffffff"), 0.5), between(("#000000", "#ffffff"), 2.0)
    ('#808080', '#ffffff')
    """
    at = min(max(part, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(at), len(stops) - 2)
    pairs = zip(_channels(stops[low]), _channels(stops[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in pairs)


def ink_on(color: str) -> str:
    """Black or white: what can be read on a colour.

    >>> ink_on("#ffffff"), ink_on("#46327e")
    ('#000000', '#ffffff')
    """
    red, green, blue = _channels(color)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


# A range that is less than this part of its larger end has one colour: a scale would make much of nothing. In the
# inspector it is the same.
_FLAT = 0.05


def is_flat(low: float, high: float) -> bool:
    """Whether values between two have one colour.

    >>> is_flat(0.0712, 0.0719), is_flat(1.4, 4.84), is_flat(0.0, 0.0)
    (True, False, True)
    """
    return high <= low or high - low < _FLAT * max(abs(low), abs(high))


def part_of(value: float, low: float, high: float) -> float:
    """The place of a value between two, 0 to 1; the middle if they are nearly one."""
    return 0.5 if is_flat(low, high) else (value - low) / (high - low)
