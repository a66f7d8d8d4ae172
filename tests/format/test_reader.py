"""Tests of the container's Python reader against the Python writer, and against bytes worked out by hand.

Both sides were written from `codec/FORMAT.md`. The hand-made cases (`test_by_hand_*`) pin what the two could otherwise
get wrong in the same way; refusals name the check that must refuse, so that another one cannot hide its absence.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import format_reader
import numpy as np
import pytest
import zstandard
from format_reader import FormatReader, FormatReaderError, to_bfloat16
from format_writer import VARIETIES, Tensor, hex_hash, huffman_table, reseal, write_container
from hostile import changed_index, poke

CODERS = ["rans", "huffman"]
TILED = [(coder, *way) for coder in CODERS for way in [("byte", 3), ("pair", 0), ("pair", 1), ("pair", 2), ("pair", 3)]]
TILED += [("huffman", "quad", shift) for shift in range(5)]
FILTERS = [None, "left", "up"]


def normal(shape: tuple[int, ...], sigma: float, seed: int = 1) -> np.ndarray:
    """Rounded normal int8 symbols in [-127, 127]."""
    return np.clip(np.rint(np.random.default_rng(seed).normal(0, sigma, shape)), -127, 127).astype(np.int8)


def tensor(q: np.ndarray, name: str = "w", **options: Any) -> Tensor:
    """An int8 tensor of symbols [rows, cols] or [count, rows, cols], with a scale of 1 unless options say otherwise."""
    count, rows, cols = q.shape if q.ndim == 3 else (1, *q.shape)
    defaults = {"matrix": (count, rows, cols, 0), "scales": np.ones(1, np.float32), "per": "tensor"}
    return Tensor(name, q.reshape(count, rows, cols), q.shape, **(defaults | options))


def read_all(file: bytes) -> dict[str, bytes]:
    """Open a container and decode everything in it."""
    reader = FormatReader(file)
    return {name: reader.raw_bytes(name) for name in reader.names()}


def check(*tensors: Tensor) -> FormatReader:
    """Write int8 tensors, and compare the symbols that are read with those written."""
    reader = FormatReader(write_container(None, tensors))
    for t in tensors:
        read = reader.symbols(t.name)
        assert read.dtype == np.int8 and read.shape == t.data.shape
        np.testing.assert_array_equal(read, t.data)
    return reader


@pytest.mark.parametrize(
    ("coder", "layout", "shift", "bits", "filter_name"),
    [
        (*way, bits, filter_name)
        for way in TILED
        for bits in (8, 9, 10, 11, 12)
        for filter_name in FILTERS
        if (bits > 10 or way[0] == "huffman") and (way[1] != "quad" or filter_name is None)
    ],
)
def test_coders(coder: str, layout: str, shift: int, bits: int, filter_name: str | None) -> None:
    q = normal((2, 17, 150), (2 if layout == "quad" else 4) * 2**shift)
    t = tensor(q, coder=coder, layout=layout, shift=shift, filter=filter_name, bits=bits, raw_chunks=(1, 4), pad=253)
    assert check(t).entry("w")["planes"][0]["chunks"] == 8


@pytest.mark.parametrize(("coder", "layout", "shift"), [TILED[0], TILED[9], TILED[2]])
@pytest.mark.parametrize(("rows", "cols", "count"), [*itertools.product((1, 15, 16, 17), (1, 63, 64, 65), (1, 3))])
def test_shapes(coder: str, layout: str, shift: int, rows: int, cols: int, count: int) -> None:
    check(tensor(normal((count, rows, cols), 6), coder=coder, layout=layout, shift=shift, tile=64))


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 700), (700, 1), (33, 129), (16, 320), (5, 4160)])
@pytest.mark.parametrize("tile", [64, 192, 1024])
def test_tiles(rows: int, cols: int, tile: int) -> None:
    q = normal((rows, cols), 20)
    check(tensor(q, "r", tile=tile), tensor(q, "h", tile=tile, coder="huffman"))


@pytest.mark.parametrize(("coder", "layout", "shift"), TILED)
def test_all_chunks_raw(coder: str, layout: str, shift: int) -> None:
    q = normal((20, 100), 5)
    check(t := tensor(q, coder=coder, layout=layout, shift=shift, tile=64, raw_chunks=range(4)))
    # symbols that the table does not know are no obstacle to a raw chunk
    table = struct.pack("<256H", *[2048, 2048], *[0] * 254) if coder == "rans" else bytes([1, 1]) + bytes(254)
    if layout == "quad":
        table = struct.pack("<14H", 2, *[0] * 11, 0, 1)
    file = write_container(None, [t], edit_segment=lambda role, data: table if role == "table 0" else data)
    np.testing.assert_array_equal(FormatReader(file).symbols("w"), t.data)


@pytest.mark.parametrize("coder", CODERS)
def test_chunks_that_coding_makes_longer_are_raw(coder: str) -> None:
    q = np.random.default_rng(2).integers(-127, 128, (16, 256), np.int8)
    assert check(tensor(q, coder=coder, layout="byte", tile=64)).entry("w")["planes"][0]["max_chunk"] == 16 * 64


@pytest.mark.parametrize("variety", range(len(VARIETIES)))
@pytest.mark.parametrize(("coder", "layout", "shift"), TILED)
def test_varieties(coder: str, layout: str, shift: int, variety: int) -> None:
    q = normal((17, 300), 4 * 2**shift)
    q[:4, :] = 0  # lanes of few bits, so that some excesses are wide
    tensors = [tensor(q, f"{v}", coder=coder, layout=layout, shift=shift, tile=256, variety=v) for v in (0, variety)]
    reader = check(*tensors[: 1 + (variety > 0)])
    lengths = [reader.entry(name)["planes"][0]["data"][1] for name in reader.names()]
    assert lengths == sorted(lengths)  # what the page advises is never longer


@pytest.mark.parametrize(("coder", "shift", "filter_name"), [*itertools.product(CODERS, (0, 1, 2), FILTERS)])
def test_patches(coder: str, shift: int, filter_name: str | None) -> None:
    q = normal((16, 128), 2)
    for row, column, value in [(0, 0, 127), (15, 127, -127), (7, 63, 16 << shift), (8, 64, ~(16 << shift))]:
        q[row, column] = value
    t = tensor(q, coder=coder, shift=shift, filter=filter_name, raw_chunks=(1,), tile=64)
    reader = FormatReader(file := write_container(None, [t]))
    np.testing.assert_array_equal(reader.symbols("w"), t.data)
    offset = reader.entry("w")["planes"][0]["data"][0]
    assert struct.unpack_from("<I", file, offset)[0] >= 2


@pytest.mark.parametrize("bits", [8, 10, 12])
@pytest.mark.parametrize(("shift", "filter_name"), [*itertools.product((0, 1, 2), FILTERS)])
def test_pairs_without_codes(shift: int, filter_name: str | None, bits: int) -> None:
    options: dict[str, Any] = {"coder": "huffman", "shift": shift, "filter": filter_name, "bits": bits}
    t = tensor(normal((33, 150), 3 * 2**shift), alphabet=70, raw_chunks=(1,), tile=64, **options)
    file, q = write_container(None, [t]), t.data
    np.testing.assert_array_equal(FormatReader(file).symbols("w"), q)
    offset, length, _ = FormatReader(file).index["tables"][0]["data"]
    assert sum(n > 0 for n in file[offset : offset + length]) == 70


def test_small_tables_are_of_version_1_1() -> None:
    for bits in (8, 9, 10):
        t = tensor(normal((16, 64), 3), coder="huffman", bits=bits)
        file = write_container(None, [t])
        assert file[8:12] == bytes([1, 0, 1, 0])
        page = FormatReader(file, minor=0)
        with pytest.raises(FormatReaderError, match="table 0: of another coder, or bad bits"):
            page.symbols("w")
    for coder, bits in (("rans", 10), ("huffman", 7), ("huffman", 13)):
        t, edit = tensor(normal((16, 64), 3), coder=coder), changed_index("tables/0/bits", bits)
        page = FormatReader(write_container(None, [t], edit_index=edit))
        with pytest.raises(FormatReaderError, match="table 0: of another coder, or bad bits"):
            page.symbols("w")


@pytest.mark.parametrize("value", [0, -1, 1, 127, -127])
@pytest.mark.parametrize(("coder", "layout", "shift"), TILED)
def test_constant(value: int, coder: str, layout: str, shift: int) -> None:
    most = 7 if layout == "quad" else 15  # others would be more patches than a chunk may have
    q = np.full((9, 70), value if abs(value) >> shift <= most else most, np.int8)
    check(tensor(q, coder=coder, layout=layout, shift=shift))


def test_residual_of_minus_128() -> None:
    q = np.tile(np.array([[64, -64], [-64, 64]], np.int8), (8, 32))
    for coder, layout, filter_name in itertools.product(CODERS, ("byte", "pair"), ("left", "up")):
        check(tensor(q, coder=coder, layout=layout, filter=filter_name))


@pytest.mark.parametrize("bits", [11, 12])
def test_huffman_codes_of_limited_length(bits: int) -> None:
    # powers of two would give codes of up to 14 bits
    q = np.concatenate([np.full(2**i, i, np.int8) for i in range(15)])[:32000].reshape(32, 1000)
    check(tensor(q, coder="huffman", layout="byte", bits=bits, tile=256))
    lengths = huffman_table(Counter(q.reshape(-1).tolist()), bits).values()
    assert max(lengths) >= 10 and max(lengths) <= bits


def test_shared_table_and_many_tensors() -> None:
    tensors = [tensor(normal((18, 70), 5 + i, i), f"t{i}", table_key="all") for i in range(3)]
    tensors += [tensor(normal((3, 70), 5), "byte", table_key="all", layout="byte", coder="huffman")]
    assert len(check(*tensors).index["tables"]) == 2


@pytest.mark.parametrize("chunk", [1, 37, 74, 100, 111, 37000])
def test_zstd_and_raw(chunk: int) -> None:
    q = normal((3, 5, 37), 3)
    filters = FILTERS if chunk % 37 == 0 else FILTERS[:2]  # up needs whole rows
    check(tensor(q, "raw", coder="raw"), *(tensor(q, f"{f}", coder="zstd", chunk=chunk, filter=f) for f in filters))


def expected_values(q: np.ndarray, scales: np.ndarray, per: str, block: int) -> np.ndarray:
    """Element by element, float32 [count, rows, cols]."""
    out, (_, rows, cols) = np.empty(q.shape, np.float32), q.shape
    for m, r, c in np.ndindex(q.shape):
        at = {"tensor": 0, "row": m * rows + r, "block": (m * rows + r) * -(-cols // (block or 1)) + c // (block or 1)}
        out[m, r, c] = np.float32(q[m, r, c]) * scales[at[per]]
    return out


@pytest.mark.parametrize(("per", "block"), [("row", 0), ("tensor", 0), ("block", 16), ("block", 32), ("block", 4096)])
@pytest.mark.parametrize(("dtype", "axis"), [*itertools.product(("F32", "F16", "BF16"), (0, 1))])
def test_values(per: str, block: int, dtype: str, axis: int) -> None:
    count = 2 - axis
    q = normal((count, 19, 70), 30)
    number = {"row": count * 19, "tensor": 1, "block": count * 19 * (-(-70 // block) if block else 0)}[per]
    scales = np.random.default_rng(3).uniform(1e-4, 1e-2, number).astype(np.float32)
    shape = (70, 19) if axis else (2, 19, 70)
    t = Tensor("w", q, shape, dtype, matrix=(count, 19, 70, axis), scales=scales, per=per, block=block)
    reader = FormatReader(write_container(None, [t]))
    expected = expected_values(q, scales, per, block)
    expected = expected[0].T if axis else expected
    expected = to_bfloat16(expected) if dtype == "BF16" else expected.astype(f"<f{int(dtype[1:]) // 8}")
    values = reader.values("w")
    assert values.shape == shape and values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected)
    assert reader.raw_bytes("w") == np.ascontiguousarray(values).tobytes()
    assert reader.scales("w").reshape(-1).tobytes() == scales.tobytes()


def test_by_hand_bfloat16() -> None:
    cases = {0x3F808000: 0x3F80, 0x3F818000: 0x3F82, 0x3F808001: 0x3F81, 0x3F807FFF: 0x3F80, 0xBF818000: 0xBF82}
    cases |= {0x7F7FFFFF: 0x7F80, 0x7F800000: 0x7F80, 0x80000000: 0x8000, 0x00018000: 0x0002, 0x7F800001: 0x7FC0}
    values = np.array(list(cases), np.uint32).view(np.float32)
    assert to_bfloat16(values).tolist() == list(cases.values())


RAW_DTYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "I64": "<i8", "BOOL": "?"}


@pytest.mark.parametrize(("coder", "dtype"), [*itertools.product(("raw", "zstd"), RAW_DTYPES)])
def test_scheme_raw(coder: str, dtype: str) -> None:
    values = np.random.default_rng(4).integers(0, 2, (3, 1, 5)).astype(RAW_DTYPES[dtype])
    t = Tensor("w", values.reshape(-1).view(np.uint8), values.shape, dtype, "raw", coder=coder, chunk=7)
    reader = FormatReader(write_container(None, [t]))
    np.testing.assert_array_equal(reader.values("w"), values)
    assert reader.raw_bytes("w") == values.tobytes() and reader.symbols("w").dtype == np.uint8


@pytest.mark.parametrize("dtype", ["U8", "I8"])
@pytest.mark.parametrize(("coder", "layout", "shift"), TILED)
def test_scheme_raw_in_tiles(dtype: str, coder: str, layout: str, shift: int) -> None:
    values = normal((70, 19), 5).view(np.uint8 if dtype == "U8" else np.int8)
    matrix = (1, 70, 19, 0)
    data = values.reshape(-1).view(np.uint8)
    t = Tensor("w", data, (70, 19), dtype, "raw", matrix, coder=coder, layout=layout, shift=shift)
    np.testing.assert_array_equal(FormatReader(write_container(None, [t])).values("w"), values)


def test_empty_tensors_and_scalars() -> None:
    empty = [Tensor(str(n), np.zeros(0, np.uint8), (n, 0, 5), "F32", "raw", coder="raw") for n in range(2)]
    raw = Tensor("raw", np.array([2.5], "<f4").view(np.uint8), (), "F32", "raw", coder="raw")
    coded = Tensor("coded", np.array([[[5]]], np.int8), (), matrix=(1, 1, 1, 0), scales=np.array([0.5]))
    bfloat = Tensor("b", coded.data, (), "BF16", matrix=(1, 1, 1, 0), scales=np.array([0.5]), coder="raw")
    reader = FormatReader(write_container(None, [*empty, raw, coded, bfloat]))
    assert reader.values("0").shape == (0, 0, 5) and reader.raw_bytes("1") == b""
    assert [reader.values(name).shape for name in ("raw", "coded", "b")] == [(), (), ()]
    assert reader.values("raw") == reader.values("coded") == 2.5 and reader.values("b") == 0x4020


def test_aliases_metadata_and_file(tmp_path: Path) -> None:
    t = tensor(normal((4, 4), 9), "embed \u00e4")
    aliases, metadata = {"head": "embed \u00e4"}, {"format": "pt", "\u00e4": "\u00df"}
    write_container(path := tmp_path / "a.wc", [t], metadata=metadata, aliases=aliases)
    reader = FormatReader(path)
    assert reader.names() == ["embed \u00e4", "head"] and reader.entry("head") is reader.entry("embed \u00e4")
    np.testing.assert_array_equal(reader.symbols("head"), t.data)
    assert reader.index["metadata"] == metadata
    pytest.raises(FormatReaderError, reader.symbols, "x").match("no tensor named x")


def test_later_minor_version_and_unknown_keys() -> None:
    def edit(index: dict[str, Any]) -> None:
        index["new"] = index["tensors"][0]["new"] = index["tensors"][0]["planes"][0]["new"] = {"a": [1, 2, "x"][:2]}
        index["tensors"][0]["planes"][0]["chunk"] = 100  # of another coder

    t = tensor(normal((4, 4), 9))
    reader = FormatReader(write_container(None, [t], version=(1, 7), edit_index=edit))
    np.testing.assert_array_equal(reader.symbols("w"), t.data)


def test_by_hand_container() -> None:
    index = (
        b'{"format":"wcodec","features":[],"writer":"hand","tables":[],"aliases":{},"tensors":[{"name":"x",'
        b'"dtype":"U8","shape":[3],"scheme":"raw","planes":[{"coder":"raw","data":[64,3,"HASH"],"hash":"HASH"}]}]}'
    ).replace(b"HASH", hex_hash(b"abc").encode())
    head = bytes.fromhex("8957434f4445430a 0100 0000 00000000 5000000000000000") + struct.pack("<Q", len(index))
    file = reseal(head + bytes(32) + b"abc" + bytes(13) + index)
    assert FormatReader(file).raw_bytes("x") == b"abc"
    # XXH3-64 of no bytes with seed 0 is a published constant
    assert hex_hash(b"") == "2d06800538d394c2"


def test_by_hand_huffman() -> None:
    """Codes a = 0, b = 10, c = 11; lane l has l % 3 as all its symbols."""
    table = np.array([0] * 97 + [1, 2, 2] + [0] * 156)
    symbol, length = format_reader.huffman_lookup(table, 11)
    assert bytes(symbol[:4]) == b"abac" and length[:4].tolist() == [1, 2, 1, 2]
    codes = ["0", "10", "11"]
    text = "00" + "".join(codes[lane % 3] * 4 for lane in range(32))
    words = int(text[::-1], 2).to_bytes(-(-len(text) // 32) * 4, "little")
    sizes = [(4, 8, 8)[lane % 3] for lane in range(32)]
    narrow = struct.pack("<2H32B", 4, 0, *(n - 4 for n in sizes)) + words
    wide = struct.pack("<2H32H", 1, 1, *(n - 1 for n in sizes)) + words
    # both at once: headers are of different lengths within one lockstep
    begin, end = np.array([0, len(narrow)]), np.array([len(narrow), len(narrow + wide)])
    out = format_reader.decode_huffman(narrow + wide, begin, end, 4, table, 11)
    for body in out:
        assert [bytes(body[lane]) for lane in range(3)] == [b"aaaa", b"bbbb", b"cccc"]


def test_by_hand_rans_tails() -> None:
    """No symbols, so that the states are the last x: p = 15 + lane % 16, and each tail is 0xFEDCBA98 + lane."""
    table = np.array([1024, 1024] + [0] * 254)
    tails = [0xFEDCBA98 + lane for lane in range(32)]
    states, text = [], ""
    for lane, tail in enumerate(tails):
        p = 15 + lane % 16
        states.append(int("10" + f"{tail:032b}"[32 - p :], 2))
        text += f"{tail:032b}"[: 32 - p][::-1]
    body = struct.pack("<32I", *states) + int(text[::-1], 2).to_bytes(-(-len(text) // 32) * 4, "little")
    assert len(text) == 304 and len(body) == 128 + 40
    out, read = format_reader.decode_rans(body, np.array([0]), np.array([len(body)]), 0, table, 11)
    assert out.shape == (1, 32, 0) and read[0].tolist() == tails
    for bad, message in [
        (body + bytes(4), "left over"),
        (poke(body, 0, struct.pack("<I", 3 << 15)), "final state"), (poke(body, 0, bytes(4)), "final state"),
        (body[:-4], "are missing"), (poke(body, len(body) - 2, b"\1"), "not zero"), (body[:124], "than its states"),
    ]:  # fmt: skip
        with pytest.raises(FormatReaderError, match=message):
            format_reader.decode_rans(bad, np.array([0]), np.array([len(bad)]), 0, table, 11)


@pytest.mark.parametrize(
    ("shift", "element", "words", "low"),
    [
        (0, 0, [0x80], 0x80),  # word 0, byte 0: sign at bit 7
        (0, 31, [1 << 24], 0x80),  # word 7, byte 3: bit 31 turned right by 7
        (1, 4, [1 << 30 | 1 << 5, 0], 0x81),  # word 1, byte 0: bits 0 and 7 turned right by 2
        (1, 16, [0, 0x81], 0x81),  # word 4 begins S_1
        (2, 4, [1 << 6, 3 << 30, 0], 0x83),  # sign turned by 1, low bits by 2
        (3, 0, [0x87, 0, 0, 0], 0x87),
        (3, 4, [7 << 28 | 1 << 3, 0, 0, 0], 0x87),  # word 1 turned right by 4
    ],
)
def test_by_hand_side_words(shift: int, element: int, words: list[int], low: int) -> None:
    """One element of lane 0 has sign 1 and all low bits 1 (so q = ~v with v = 2^shift - 1), all others are 0."""
    side = np.zeros((1, 1, shift + 1, 32), "<u4")
    side[0, 0, :, 0] = words
    out = format_reader.join_pairs(np.zeros((1, 32, 1, 16), np.uint8), side, shift)
    assert np.flatnonzero(out).tolist() == [element] and out[0, 0, 0, element] == 0xFF ^ (low & 0x7F)


@pytest.mark.parametrize("coder", CODERS)
def test_by_hand_lane_order(coder: str) -> None:
    """In a raw chunk of layout byte, byte i of `data` is element (row, column) as section 3 numbers lanes."""
    q = np.arange(16 * 128).reshape(16, 128).astype(np.uint8).view(np.int8)
    q[q == -128] = 0
    file = write_container(None, [tensor(q, coder=coder, layout="byte", raw_chunks=(0,))])
    offset = FormatReader(file).entry("w")["planes"][0]["data"][0]
    for block, half, lane, symbol in [(0, 0, 0, 0), (0, 0, 1, 3), (0, 1, 5, 15), (1, 0, 31, 7), (1, 1, 30, 9)]:
        stored = file[offset + 1024 * block + 512 * half + 16 * lane + symbol]
        assert stored == int(q[lane // 4 + 8 * half, 64 * block + 16 * (lane % 4) + symbol]) % 256


def sample(**options: Any) -> Tensor:
    """A tensor of two chunks."""
    return tensor(normal((16, 128), 6), **({"tile": 64} | options))


def refused(file: bytes, message: str | None) -> None:
    """Reading the file fails, and with this message (None: with any)."""
    with pytest.raises(FormatReaderError, match=message):
        read_all(file)


def test_header_and_file_refusals() -> None:
    file = write_container(None, [sample()])
    for offset, value, message in [
        (8, b"\2\0", "newer wcodec"), (8, b"\0\0", "unknown major"), (12, b"\1", "reserved"), (48, b"\1", "reserved"),
        (16, b"\x38", "index out of place"), (24, b"\0", "index out of place"),
    ]:  # fmt: skip
        refused(reseal(poke(file, offset, value)), message)
    refused(poke(file, 0, b"X"), "wrong magic")
    refused(poke(file, 8, b"\2"), "header: hash")
    refused(file[:63], "shorter than a header")
    refused(bytes(64) + file[64:], "interrupted")
    refused(file + b"\0", "shorter or longer")
    refused(file[:-1] + b" ", "index: hash")
    refused(reseal(file[:-1] + b" "), "not JSON")


def test_every_byte_counts() -> None:
    """A change of any byte of a file is seen by hashes or by the check of padding."""
    file = write_container(None, [tensor(normal((3, 40), 6), "a", coder="zstd"), tensor(normal((1, 40), 2), "b")])
    for i in range(0, len(file), 5):
        changed = bytearray(file)
        changed[i] ^= 1 << i % 8
        refused(bytes(changed), None)


def test_damage_stays_with_its_tensor() -> None:
    file = write_container(None, [sample(name="a"), good := sample(name="b", coder="zstd")])
    offset = FormatReader(file).entry("a")["planes"][0]["data"][0] + 3
    reader = FormatReader(poke(file, offset, bytes([file[offset] ^ 1])))
    np.testing.assert_array_equal(reader.symbols("b"), good.data)
    with pytest.raises(FormatReaderError, match="a: data: hash"):
        reader.symbols("a")


PLANE, ZSTD = "tensors/0/planes/0", "tensors/2/planes/0"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "other", "not of format"), ("features", ["zip"], r"does not know: \['zip'\]"),
        ("metadata/a", 1, "metadata are not strings"), ("tables", {}, "tables is not a list"),
        ("tensors/0/name", "", "without a name"), ("tensors/1/name", "w", "two tensors named w"),
        ("aliases/w", "v", "a tensor and an alias"), ("aliases/x", "nothing", "leads to no tensor"),
        ("aliases", {"x": "y", "y": "w"}, "leads to no tensor"),
        (PLANE + "/data/0", 8, "overlap, gap or wrong alignment"), (PLANE + "/data/2", "X" * 16, "not a segment"),
        ("tensors/0/shape", [16, 129], "contradicts shape"), ("tensors/0/shape", [16, -128], "not a list of sizes"),
        ("tensors/0/shape", [2**40, 2**40], "64 bits"), ("tensors/0/scheme", "int4", "unknown scheme 'int4'"),
        ("tensors/0/dtype", "I8", "not for int8"), ("tensors/0/matrix", ..., "int8 needs a matrix"),
        ("tensors/0/matrix", [1, 16, 128], "bad matrix"), ("tensors/0/matrix", [1, 16, 128, 2], "bad matrix"),
        ("tensors/0/matrix", [1, 16, 128, 1], "row_axis 1 does not fit"),
        ("tensors/0/matrix", [1, 16.0, 128, 0], "bad matrix"),
        ("tensors/0/matrix", [2**40, 2**40, 0, 0], "is too large"),
        ("tables/0", ["rans", 12, [0, 0, "0" * 16]], "a table is not an object"),
        ("tensors/0/scales", ["row", None, [0, 0, "0" * 16]], "a part of w is not an object"),
        ("tensors/0/quality", [1.5], "a part of w is not an object"),
        ("tensors/0/planes", [["raw"]], "a part of w is not an object"),
        ("tensors/0/matrix", [16, 1, 128, 0], "number of chunks contradicts"),
        ("tensors/0/scales/per", "column", "scales per 'column'"),
        ("tensors/0/scales/per", "row", "number of scales contradicts"), ("tensors/0/scales", ..., "gap"),
        ("tensors/0/planes", [], "gap"), (PLANE + "/coder", "lzma", "unknown coder"),
        ("tables/0/coder", "huffman", "of another coder"), (PLANE + "/hash", "0" * 16, "plane hash"),
        (PLANE + "/fields", [[0, 8]], "fields in a plane"), (PLANE + "/chunks", 3, "number of chunks contradicts"),
        (PLANE + "/max_chunk", 4, "wrong max_chunk"), (PLANE + "/max_chunk", ..., "keys .*max_chunk.* missing"),
        (PLANE + "/side", ..., "gap"), (PLANE + "/filter", "down", "unknown filter"),
        (PLANE + "/layout", "quad", "bad layout 'quad'"), (PLANE + "/shift", 4, "bad shift 4"),
        (PLANE + "/shift", 2, "length of the side plane"), (PLANE + "/tile", 32, "bad tile"),
        (PLANE + "/tile", 4160, "bad tile"), (PLANE + "/table", 2, "no table 2"), (PLANE + "/table", -1, "no table -1"),
        ("tables/0/bits", 13, "bad bits"), ("tables/0/bits", 11, "bad frequencies"),
        ("tensors/0/new", [16, 0, "0" * 16], "length 0 with an offset"), (ZSTD + "/data/1", 10**6, "passes the index"),
        (ZSTD + "/data", ..., "index: a gap"), ("tensors/0/scheme", "raw", "raw elements of more than 8 bits"),
        ("tensors/0/shape", [0, 128], "an empty tensor is raw"), (ZSTD + "/chunk", 0, "bad zstd chunk"),
        (ZSTD + "/filter", "up", "parts of rows"), ("tensors/2/scheme", "raw", "raw elements of more than 8 bits"),
    ],
)  # fmt: skip
def test_index_refusals(path: str, value: Any, message: str) -> None:
    tensors = [sample(), sample(name="v"), sample(name="z", coder="zstd", filter="left")]
    refused(write_container(None, tensors, edit_index=changed_index(path, value)), message)


def test_scale_block_refusals() -> None:
    t = sample(per="block", block=32, scales=np.ones(64, np.float32))
    for value, message in [(0, "bad scale"), (24, "bad scale"), (None, "bad scale"), (..., "without")]:
        refused(write_container(None, [t], edit_index=changed_index("tensors/0/scales/block", value)), message)


def u32(data: bytes, at: int, change: int) -> bytes:
    """Data with `change` added to the u32 at `at`."""
    return poke(data, at, struct.pack("<I", struct.unpack_from("<I", data, at)[0] + change))


ESCAPES, BIG = {"shift": 0, "tile": 128}, {"coder": "zstd", "chunk": 1000}
NARROW = {"coder": "huffman", "variety": 0}


@pytest.mark.parametrize(
    ("options", "role", "edit", "message"),
    [
        (BIG, "data", lambda d: d + bytes(1), "not those of the data"),
        (BIG, "offsets", lambda d: u32(d, 4, 8), "out of order"), ({}, "scales", lambda d: d + d, "number of scales"),
        (BIG, "data", lambda d: poke(d, 0, b"\x50\x2a\x4d\x18"), "not a frame"),
        (BIG, "offsets", lambda d: d[:-4], "wrong number of offsets"),
        (ESCAPES, "data", lambda d: poke(d, 7, b"\1"), "patches: "), ({}, "table 0", lambda d: d[:-2], "wrong length"),
        (ESCAPES, "data", lambda d: d[:8] + d[4:8] + d[12:], "patches: "),
        (ESCAPES, "data", lambda d: poke(d, 0, b"\xff\xff"), "more patches"),
        (NARROW, "data", lambda d: poke(d, 0, b"\1"), "not end with the last code"),
        (NARROW, "data", lambda d: poke(d, 4, bytes([d[4] + 1, d[5] - 1])), "not take exactly its bits"),
        (NARROW, "data", lambda d: poke(d, 2, b"\2"), "neither 0 nor 1"),
        (NARROW, "data", lambda d: poke(d, 36, bytes([d[36] | 1])), "before or after the codes"),
        ({"coder": "huffman"}, "table 0", lambda d: poke(d, 255, b"\14"), "not complete"),
        ({"coder": "huffman"}, "table 0", lambda d: poke(d, 255, b"\15"), "too long"),
        ({"coder": "huffman"}, "table 0", lambda d: bytes(256), "not complete"),
        ({"raw_chunks": (0, 1)}, "data", lambda d: poke(d, 0, bytes([d[0] ^ 1])), "plane hash"),
        ({"coder": "raw"}, "data", lambda d: d + b"\0", "wrong length"),
        ({}, "offsets", lambda d: u32(d, 0, 1), "chunk offsets out of order"),
        ({}, "offsets", lambda d: u32(d, 4, 1 << 20), "chunk offsets out of order"),
        ({}, "offsets", lambda d: u32(d, 8, 1), "not those of the data"),
        ({}, "offsets", lambda d: d + bytes(4), "wrong number of offsets"),
        ({}, "side", lambda d: d[:-1], "length of the side plane"),
        ({}, "side", lambda d: poke(d, 0, bytes([d[0] ^ 1])), "plane hash"),
        ({}, "data", lambda d: poke(d, 0, bytes(4)), "final state"),
        ({}, "table 0", lambda d: poke(d, 0, struct.pack("<H", 1)), "bad frequencies"),
        ({}, "table 0", lambda d: struct.pack("<H", 4096) + bytes(510), "bad frequencies"),
        ({"raw_chunks": (0, 1)}, "table 0", lambda d: poke(d, 0, struct.pack("<H", 1)), "bad frequencies"),
        ({"raw_chunks": (0, 1), "coder": "huffman"}, "table 0", lambda d: poke(d, 255, b"\14"), "not complete"),
    ],
)  # fmt: skip
def test_content_refusals(options: dict[str, Any], role: str, edit: Callable[[bytes], bytes], message: str) -> None:
    """Contents that break a rule although all hashes of segments are right."""
    role = role if role.startswith("table") else "w/" + role
    assert read_all(write_container(None, [good := sample(**options)]))
    refused(write_container(None, [good], edit_segment=lambda r, data: edit(data) if r == role else data), message)


@pytest.mark.parametrize(
    ("coder", "size", "message"),
    [
        ("rans", 0, "left over"), ("huffman", 0, "not end"), ("zstd", 0, "chunk 0"), ("huffman", 104, "not end"),
        ("rans", 132, "too short"), ("huffman", 100, "too short"), ("rans", 136, "are missing|final state"),
        ("rans", 1028, "too long"), ("rans", 644, "raw length"), ("huffman", 516, "raw len"),
    ],
)  # fmt: skip
def test_chunk_of_a_wrong_size(coder: str, size: int, message: str) -> None:
    """One chunk cut or filled up with zeros to `size` bytes; 0 stands for one word more."""
    t = tensor(normal((16, 64), 6), coder=coder, tile=64, chunk=1024)
    size = size or FormatReader(write_container(None, [t])).entry("w")["planes"][0]["max_chunk"] + 4
    ends = struct.pack("<2I", 0, size if coder == "zstd" else size // 4)
    edits = {"w/data": lambda d: (d + bytes(size))[:size], "w/offsets": lambda d: ends}
    edit = changed_index(PLANE + "/max_chunk", size)
    refused(write_container(None, [t], edit_segment=lambda r, d: edits.get(r, bytes)(d), edit_index=edit), message)


@pytest.mark.parametrize(
    ("option", "message"), [("", ""), ("checksum", "a checksum"), ("size", "not a frame of"), ("gap", "bytes before")]
)
def test_zstd_frame_options(option: str, message: str) -> None:
    t = tensor(normal((16, 64), 6), coder="zstd", chunk=1024)
    compressor = zstandard.ZstdCompressor(write_checksum=option == "checksum", write_content_size=option != "size")
    frame, before = compressor.compress(t.data.tobytes()), b"\1" * 8 if option == "gap" else b""
    segments = {"w/data": before + frame, "w/offsets": struct.pack("<2I", len(before) // 8, len(frame))}
    edit = changed_index(PLANE + "/max_chunk", len(frame))
    file = write_container(None, [t], edit_segment=lambda r, d: segments.get(r, d), edit_index=edit)
    refused(file, message) if message else read_all(file)


def test_nothing_is_allocated_from_sizes_alone() -> None:
    for shape, coder in itertools.product([(1 << 20, 1 << 20), (1, 1 << 30)], ("rans", "zstd", "raw")):

        def edit(index: dict[str, Any], shape: tuple[int, int] = shape) -> None:
            index["tensors"][0] |= {"shape": [*shape], "matrix": [1, *shape, 0]}

        refused(write_container(None, [sample(coder=coder)], edit_index=edit), "cannot hold")


def test_segments_and_padding() -> None:
    entry = FormatReader(file := write_container(None, [sample(coder="raw")])).entry("w")
    assert entry["scales"]["data"][:2] == [64, 4] and entry["planes"][0]["data"][0] == 80
    refused(poke(file, 70, b"\1"), "padding before 80")
    shared = changed_index("tensors/0/scales/data", entry["planes"][0]["data"])
    refused(write_container(None, [sample(coder="raw")], edit_index=shared), "overlap")
    small, large = (Tensor(str(n), np.ones(n, np.uint8), (n,), "U8", "raw", coder="raw") for n in (5, 1 << 20))
    refused(poke(write_container(None, [small]), 79, b"\1"), "padding before the index")
    reader = FormatReader(write_container(None, [small, large]))
    assert reader.entry("1048576")["planes"][0]["data"][0] == 4096  # segments of 1 MiB begin on pages
    assert reader.raw_bytes("1048576") == b"\1" * (1 << 20)
