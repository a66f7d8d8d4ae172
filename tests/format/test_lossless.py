"""Scheme `lossless` in the container's Python reader, against the Python writer and bytes worked out by hand.

As in `test_format_reader.py`, both sides are the page's (what it marks 1.1), and refusals name the check that refuses.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import format_reader
import numpy as np
import pytest
from format_reader import FormatReader, FormatReaderError
from format_refusals import every_byte_counts, refused, shapes_allocate_nothing
from format_writer import VARIETIES, hex_hash, reseal, write_container
from hostile import (
    LOSSLESS_CONTENTS,
    LOSSLESS_EDITS,
    LOSSLESS_FORBIDDEN,
    changed_index,
    forbidden_file,
    lossless_tensors,
    reindexed,
)
from lossless_samples import DTYPES_AND_WAYS, VIEWS, WIDTHS, lossless


@pytest.mark.parametrize(("dtype", "way"), DTYPES_AND_WAYS)
def test_ways(dtype: str, way: str) -> None:
    tensors = [
        lossless(f"{n}", dtype, way, shape, matrix, tile=(64, 128, 1024)[n % 3])
        for n, (shape, matrix) in enumerate(VIEWS)
    ]
    reader = FormatReader(write_container(None, tensors))
    for t in tensors:
        values = reader.values(t.name)
        assert values.shape == t.shape and values.itemsize == WIDTHS[dtype] // 8
        assert reader.raw_bytes(t.name) == t.data.tobytes(), t.matrix


@pytest.mark.parametrize("variety", range(len(VARIETIES)))
@pytest.mark.parametrize(("coder", "bits"), [("rans", 11), ("rans", 12), ("huffman", 11), ("huffman", 12)])
def test_varieties(variety: int, coder: str, bits: int) -> None:
    planes = [{"fields": [(23, 8), (31, 1), (8, 15)], "layout": "split"}, {"fields": [(0, 8)], "layout": "byte"}]
    t = lossless("w", "F32", planes, (17, 300), (1, 17, 300, 0), variety=variety, coder=coder, bits=bits, tile=256)
    assert FormatReader(write_container(None, [t])).raw_bytes("w") == t.data.tobytes()


def test_shared_table() -> None:
    options: dict[str, Any] = {"table_key": "all", "tile": 128}
    tensors = [lossless(dtype, dtype, "exponents", (18, 70), (1, 18, 70, 0), **options) for dtype in ("BF16", "F32")]
    tensors.append(lossless("b", "F8_E5M2", "whole", (18, 70), (1, 18, 70, 0), **options))
    reader = FormatReader(write_container(None, tensors))
    assert len(reader.index["tables"]) == 1
    for t in tensors:
        assert reader.raw_bytes(t.name) == t.data.tobytes()


def test_raw_chunk_of_rans_is_longer_than_its_tile() -> None:
    """Section 3: symbols and tails, so 16 w + 128 bytes, and the tails are not in the side plane."""
    planes = [{"fields": [(7, 8), (15, 1), (0, 7)], "layout": "split", "raw_chunks": (0,)}]
    t = lossless("w", "BF16", planes, (16, 64), (1, 16, 64, 0))
    plane = FormatReader(write_container(None, [t])).entry("w")["planes"][0]
    assert plane["max_chunk"] == plane["data"][1] == 16 * 64 + 128 and plane["side"][1] == 128 * 8 - 128


@pytest.mark.parametrize("rest", [1, 2, 3])
def test_by_hand_rests(rest: int) -> None:
    """Element 4k + b of lane 5 in block 1 has one byte r of its rest set: byte b of side word 8r + k."""
    for r, k, b in [(0, 0, 0), (rest - 1, 3, 2), (rest - 1, 7, 3)]:
        side = np.zeros((1, 2, 8 * rest, 32), "<u4")
        side[0, 1, 8 * r + k, 5] = 0xA7 << 8 * b
        out = format_reader.join_rests(np.full((1, 32, 2, 32), 0x42, np.uint8), side)
        assert out.shape == (1, 32, 2, 32, rest + 1)
        value = bytes(out[0, 5, 1, 4 * k + b])
        # big-endian: the symbol, then the rest with its byte 0 first
        assert value[::-1] == b"\x42" + bytes(0xA7 * (i == r) for i in range(rest))
        out[0, 5, 1, 4 * k + b, :rest] = 0
        assert not out[..., :rest].any() and (out[..., rest] == 0x42).all()


def test_by_hand_split_plane() -> None:
    """0xC2A5 is 1 10000101 0100101: of [7, 8], [15, 1], [0, 7] that is 10000101 1 0100101, so 0x85 beside 0xA5."""
    planes = [{"fields": [(7, 8), (15, 1), (0, 7)], "layout": "split", "coder": "huffman", "raw_chunks": (0,)}]
    t = lossless("w", "BF16", planes, (16, 128), (1, 16, 128, 0), tile=128)
    t.data = np.zeros(16 * 128, np.uint16)
    row, column = 9, 64 + 16 + 6  # lane 4 (9 - 8) + 1 = 5, block 1, half 1, so element 16 + 6 = 22: word 5, byte 2
    t.data[128 * row + column] = 0xC2A5
    reader = FormatReader(file := write_container(None, [t]))
    plane = reader.entry("w")["planes"][0]
    symbols, side = (file[plane[key][0] :][: plane[key][1]] for key in ("data", "side"))
    assert plane["shift"] == 8 and len(symbols) == len(side) == 2048
    # [block][half][lane][symbol] and [block][word][lane], u32
    assert [*np.flatnonzero(np.frombuffer(symbols, np.uint8))] == [1024 + 512 + 16 * 5 + 6] and 0x85 in symbols
    assert [*np.flatnonzero(np.frombuffer(side, np.uint8))] == [1024 + 128 * 5 + 4 * 5 + 2] and 0xA5 in side
    place = 2 * (128 * row + column)
    assert plane["hash"] == hex_hash(bytes(place) + b"\xa5\x85" + bytes(2 * 16 * 128 - place - 2))
    assert reader.values("w")[row, column] == 0xC2A5


def test_by_hand_container() -> None:
    """Two elements, 0xC2A5 and 0x3F80, as planes of their exponents (85, 7F) and of the rest (A5, 00)."""
    index = (
        b'{"format":"wcodec","features":[],"writer":"hand","tables":[],"aliases":{},"tensors":[{"name":"x",'
        b'"dtype":"BF16","shape":[2],"scheme":"lossless","matrix":[1,1,2,0],"planes":['
        b'{"coder":"raw","fields":[[7,8]],"data":[64,2,"HASH0"],"hash":"HASH0"},'
        b'{"coder":"raw","fields":[[15,1],[0,7]],"data":[80,2,"HASH1"],"hash":"HASH1"}]}]}'
    )
    for n, data in enumerate((b"\x85\x7f", b"\xa5\x00")):
        index = index.replace(b"HASH%d" % n, hex_hash(data).encode())
    head = bytes.fromhex("8957434f4445430a 0100 0100 00000000 6000000000000000") + struct.pack("<Q", len(index))
    file = reseal(head + bytes(32) + b"\x85\x7f" + bytes(14) + b"\xa5\x00" + bytes(14) + index)
    assert FormatReader(file).values("x").tolist() == [0xC2A5, 0x3F80]


def test_transposed_planes_are_those_of_the_matrix() -> None:
    planes = [{"fields": [(8, 8)], "coder": "raw"}, {"fields": [(0, 8)], "coder": "raw"}]
    t = lossless("w", "F16", planes, (3, 2), (1, 2, 3, 1))
    t.data = np.array([[0x0102, 0x0304], [0x0506, 0x0708], [0x090A, 0x0B0C]], np.uint16)
    reader = FormatReader(write_container(None, [t]))
    assert [bytes(plane) for plane in reader.planes("w")] == [b"\1\5\x09\3\7\x0b", b"\2\6\x0a\4\x08\x0c"]
    assert reader.raw_bytes("w") == t.data.tobytes()


def test_a_reader_of_version_1_0() -> None:
    """It reads what it knows, and refuses the other tensors one by one."""
    tensors = lossless_tensors()
    file = write_container(None, tensors)
    assert file[8:12] == bytes([1, 0, 1, 0])
    for reader in (FormatReader(file), FormatReader(file, minor=0)):
        assert reader.names() == ["w", "z", "b", "t", "i", "r"]
        assert reader.symbols("i").tobytes() == tensors[4].data.tobytes()
        assert reader.raw_bytes("r") == tensors[5].data.tobytes()
    for name in ("w", "z", "b", "t"):
        with pytest.raises(FormatReaderError, match=f"{name}: unknown scheme 'lossless'"):
            reader.values(name)
    with pytest.raises(FormatReaderError, match=r"does not know: \['planes-1.2'\]"):
        FormatReader(reindexed(file, lambda i: i["features"].append("planes-1.2")))


@pytest.fixture(scope="module")
def broken() -> bytes:
    """The file that refusals start from, in which everything is right."""
    tensors = lossless_tensors()
    reader = FormatReader(file := write_container(None, tensors))
    for t in tensors:
        assert t.name == "i" or reader.raw_bytes(t.name) == t.data.tobytes()
    return file


@pytest.mark.parametrize(("path", "value", "message"), LOSSLESS_EDITS, ids=lambda value: str(value)[:40])
def test_index_refusals(path: str, value: Any, message: str, broken: bytes) -> None:
    refused(reindexed(broken, changed_index(path, value)), message)


@pytest.mark.parametrize(("role", "edit", "message"), LOSSLESS_CONTENTS)
def test_content_refusals(role: str, edit: Callable[[bytes], bytes], message: str) -> None:
    tensors = lossless_tensors()
    refused(write_container(None, tensors, edit_segment=lambda r, d: edit(d) if r == role else d), message)


@pytest.mark.parametrize("what", LOSSLESS_FORBIDDEN)
def test_forbidden_ways(what: str) -> None:
    refused(forbidden_file(what), LOSSLESS_FORBIDDEN[what][1])


def test_more_planes_than_bits(broken: bytes) -> None:
    """A plane of 8 bits that nobody has: there is none, so that no more than 4 planes fit."""

    def edit(index: dict[str, Any]) -> None:
        planes = index["tensors"][0]["planes"]
        planes += [{"coder": "raw", "hash": hex_hash(b""), "data": [0, 0, hex_hash(b"")], "fields": [[0, 8]]}] * 1000

    refused(reindexed(broken, edit), "in two planes, or twice")


def test_nothing_is_allocated_from_sizes_alone(broken: bytes) -> None:
    shapes_allocate_nothing(
        broken, ((0, (1 << 20, 1 << 20)), (1, (1 << 19, 1 << 20)), (2, (1, 1 << 40)), (0, (1 << 30, 1 << 30)))
    )


def test_every_byte_counts() -> None:
    tensors = [
        lossless("a", "BF16", "exponents", (3, 40), (1, 3, 40, 0)),
        lossless("b", "F32", "zstd", (5,), (1, 1, 5, 0)),
    ]
    every_byte_counts(tensors)


def test_a_container_is_json_as_the_page_says(broken: bytes) -> None:
    """The index has the keys that the refusals above edit."""
    index = json.loads(broken[int.from_bytes(broken[16:24], "little") :])
    keys = [[sorted(plane) for plane in tensor["planes"]] for tensor in index["tensors"][:4]]
    tiles = ["chunks", "coder", "data", "fields", "hash", "layout", "max_chunk", "offsets", "table", "tile"]
    split = sorted([*tiles, "shift", "side"])
    assert keys[0] == [split, tiles, ["coder", "data", "fields", "hash"]] and keys[3] == [split]
    assert keys[2] == [[key for key in tiles if key != "fields"]]
