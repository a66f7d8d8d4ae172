"""Golden files in the reader that was written from `codec/FORMAT.md` alone.

What they decode to is written down for all readers: `codec/tests/golden.rs` and `codec/tests/golden_newer.rs` read the
same files with the Rust code, and say how they are made.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import format_reader
import numpy as np
import pytest
import xxhash

from tests.released import reader_1_0

HERE = Path(__file__).parents[1]
DATA = HERE / "data"


def settled() -> dict[str, str]:
    """Files of format 1.0 -> what they decode to, from the table of the Rust test."""
    table = (HERE.parent / "codec/tests/golden.rs").read_text()
    found = re.findall(r'\("([\w.-]+\.wcodec)", 0x([0-9A-F]{16})\)', table)
    return {name: value.lower() for name, value in found}


def newer() -> dict[str, str]:
    """Files of formats 1.1 and 1.3 -> what they decode to."""
    found = {}
    for folder in ("golden-1.1", "golden-1.3"):
        for name, value in map(str.split, (DATA / folder / "decoded.txt").read_text().splitlines()):
            found[f"{folder}/{name}"] = value
    return found


def digest(reader: Any, with_symbols: bool) -> str:
    """The hash that the Rust tests describe."""
    parts = []
    # Aliases come by name, as in the Rust code.
    own = [t["name"] for t in reader.index["tensors"]]
    for name in [*own, *sorted(reader.index["aliases"])]:
        entry = reader.entry(name)
        scheme, dtype, shape = entry["scheme"], entry["dtype"], entry["shape"]
        if with_symbols:
            parts.append(f"{name} {scheme} {dtype} [{' '.join(map(str, shape))}]\n".encode())
        else:
            parts.append(f"{name} {dtype} [{', '.join(map(str, shape))}]\n".encode())
        if with_symbols and scheme in ("int8", "rate", "columns"):
            parts.append(struct.pack("<d", entry["quality"].get("error", -1.0)))
            parts.append(np.ascontiguousarray(reader.symbols(name)).tobytes())
            parts.append(reader.factors(name).astype("<f4").tobytes())
            parts.append(reader.scales(name).astype("<f4").tobytes())
        parts.append(reader.raw_bytes(name))
    return f"{xxhash.xxh3_64_intdigest(b''.join(parts)):016x}"


@pytest.mark.parametrize("page", [format_reader, reader_1_0], ids=["the page's reader", "the reader of 1.0"])
def test_files_of_1_0_decode_to_what_they_always_did(page: ModuleType) -> None:
    files = settled()
    assert len(files) > 50
    for name, value in files.items():
        assert digest(page.FormatReader(DATA / "golden" / name), with_symbols=False) == value, name


@pytest.mark.parametrize("name", sorted(newer()))
def test_newer_files_decode_to_what_they_always_did(name: str) -> None:
    reader = format_reader.FormatReader(DATA / name)
    assert digest(reader, with_symbols=True) == newer()[name]
