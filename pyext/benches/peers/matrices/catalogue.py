"""Engines of products, their variants, and the packages that each needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..catalogue import Peer

SHAPES = ("8192x8192", "4096x14336")
"""Rows (outputs) and columns of a matrix."""
TOKENS = (1, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Width:
    """Weights in so many bits with a scale for each row, or for each group of columns of it."""

    bits: int
    group: int | None = None


@dataclass(frozen=True)
class Variant:
    """A way to store a matrix: a row of the table."""

    name: str
    label: str
    width: Width | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Options of wcodec, where the width is not fixed."""


@dataclass(frozen=True)
class Engine:
    """A library that multiplies with stored matrices, in an environment of its own."""

    peer: Peer
    variants: tuple[Variant, ...]


_QUADS = {"coder": "huffman", "layout": "quad"}
_PLAIN = {**_QUADS, "trellis": False}

ENGINES: dict[str, Engine] = {
    engine.peer.name: engine
    for engine in (
        Engine(
            Peer("wcodec", "wcodec", (), ours=True),
            (
                Variant("int8", "wcodec int8", options=_QUADS),
                Variant("4.0", "wcodec 4.0 bits", options={**_PLAIN, "bits": 4.0}),
                Variant("3.1", "wcodec 3.1 bits", options={**_PLAIN, "bits": 3.1}),
            ),
        ),
        Engine(
            Peer("humming", "Humming", (), gpu_requirements=("humming-kernels[cu{cuda}]==0.1.19",)),
            (
                Variant("w8", "Humming W8", Width(8)),
                Variant("w6", "Humming W6", Width(6)),
                Variant("w4-128", "Humming W4, groups of 128", Width(4, 128)),
                Variant("w3", "Humming W3", Width(3)),
            ),
        ),
        Engine(
            # Its kernels are in vLLM's wheel, of which nothing else is needed; what vLLM needs would be gigabytes.
            Peer("marlin", "Marlin", (), gpu_requirements=("vllm==0.32.0",), no_dependencies=True),
            (
                Variant("w8", "Marlin W8", Width(8)),
                Variant("w8-128", "Marlin W8, groups of 128", Width(8, 128)),
                Variant("w4-128", "Marlin W4, groups of 128", Width(4, 128)),
            ),
        ),
    )
}


def shape(text: str) -> tuple[int, int]:
    """Rows and columns.

    >>> shape("4096x14336")
    (4096, 14336)
    """
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise ValueError(f"{text!r} is no shape (rows and columns, as 4096x14336)")
    return int(rows), int(columns)


def width_key(variant: Variant) -> str:
    """A name that variants with the same weights share, whichever engine multiplies with them.

    >>> [width_key(v) for v in ENGINES["marlin"].variants], width_key(ENGINES["wcodec"].variants[1])
    (['w8', 'w8 g128', 'w4 g128'], 'wcodec 4.0')
    """
    width = variant.width
    if width is None:
        return f"wcodec {variant.name}"
    return f"w{width.bits}" + ("" if width.group is None else f" g{width.group}")
