"""Containers that nobody writes by accident: names that steer terminals, absurd shapes, thousands of digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from format_writer import Tensor, hex_hash, write_container

#: What a terminal, or whatever lays out text, obeys instead of showing it, in one name.
STEERING = "a\x1b]0;pwned\x07\x1b[31mRED\x1b[2J\u202e\r\nfake line\x9b2J\u2066\u2028\u061c\x7f\t"
#: How it is shown.
SHOWN = r"a\x1b]0;pwned\x07\x1b[31mRED\x1b[2J\u{202e}\r\nfake line\x9b2J\u{2066}\u{2028}\u{61c}\x7f\t"


def steers(text: str) -> list[str]:
    """The characters of a printed text that are not shown, but for line feeds."""
    marks = "\u061c\u200e\u200f\u2028\u2029"
    return [
        c
        for c in text
        if (c < " " and c != "\n")
        or "\x7f" <= c <= "\x9f"
        or c in marks
        or "\u202a" <= c <= "\u202e"
        or "\u2066" <= c <= "\u2069"
    ]


def raw(name: str, count: int = 2, **options: Any) -> Tensor:
    """A tensor of floats that is stored as it is."""
    data = np.arange(count, dtype=np.float32)
    return Tensor(name, data.view(np.uint8), options.pop("shape", (count,)), scheme="raw", coder="raw", **options)


def _plane(index: dict[str, Any], **values: Any) -> None:
    index["tensors"][0]["planes"][0].update(values)


def write_steering(folder: Path) -> dict[str, Path]:
    """Files with steering text in every place that a file has for text, some of which cannot be opened."""
    made: dict[str, Callable[[dict[str, Any]], None]] = {
        "names": lambda index: index.update(writer=STEERING, model={"config": {STEERING: STEERING}}),
        "damaged": lambda index: _plane(index, hash="0" * 16),
        "feature": lambda index: index.update(features=[STEERING]),
        "format": lambda index: index.update(format=STEERING),
        "table": lambda index: _plane(index, table=9),
        "target": lambda index: index["aliases"].update({STEERING + "y": STEERING + "z"}),
        "dtype": lambda index: index["tensors"][0].update(dtype=STEERING),
        "scheme": lambda index: index["tensors"][0].update(scheme=STEERING),
        "coder": lambda index: _plane(index, coder=STEERING),
        "layout": lambda index: _plane(index, coder="rans", layout=STEERING, filter=STEERING),
        "scales": lambda index: index["tensors"][0].update(scales={"per": STEERING, "data": [0, 0, hex_hash(b"")]}),
        "index": lambda index: index.update(tables=STEERING),
    }
    paths = {}
    for name, edit in made.items():
        paths[name] = folder / f"{name}.wcodec"
        tensors = [raw(STEERING), raw(f"{STEERING}.0.{STEERING}")]
        options = {"metadata": {STEERING: STEERING}, "aliases": {STEERING + "x": STEERING}}
        write_container(paths[name], tensors, edit_index=edit, **options)
    return paths
