"""Scheme `rate` and filter `trellis` in the container's Python reader, against the Python writer and by hand.

As in `test_format_reader.py`, both sides are the page's (what it marks 1.1), and refusals name the check that refuses.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from format_reader import FormatReader, FormatReaderError, undo_trellis
from format_refusals import every_byte_counts, refused, shapes_allocate_nothing
from format_writer import VARIETIES, Tensor, hex_hash, on_trellis, reseal, trellis_row, write_container
from hostile import (
    RATE_CONTENTS,
    RATE_EDITS,
    RATE_FORBIDDEN,
    changed_index,
    forbidden_rate,
    rate_tensors,
    reindexed,
)
from lossless_samples import VIEWS
from rate_samples import (
    CODINGS,
    DTYPES,
    LARGE,
    NO_NUMBERS,
    SCALES,
    TILED,
    TOO_LARGE,
    WHOLE,
    expected,
    floats,
    rate,
    same,
)


def check(*tensors: Tensor) -> FormatReader:
    """Write rate tensors, and compare symbols, scales and values that are read with those written."""
    reader = FormatReader(write_container(None, tensors))
    for t in tensors:
        np.testing.assert_array_equal(reader.symbols(t.name), t.data)
        assert reader.scales(t.name).tobytes() == floats(t.scales).tobytes()
        values = reader.values(t.name)
        assert values.shape == tuple(t.shape) and same(values, expected(t), t.dtype), t.name
    return reader


# The trellis


def recurrence(row: list[int]) -> list[int]:
    """Section 4's `trellis` word by word, on a row of a tile."""
    out, now, before = [], 0, 0
    for byte in row:
        q = byte - 256 if byte > 127 else byte
        out.append((2 * q + now) & 0x7F | byte & 0x80)
        now, before = q % 2 ^ before, now
    return out


@pytest.mark.parametrize(
    ("coded", "symbols"),
    [
        # Q stays 0 where all symbols are even
        ("0000000000", "0000000000"), ("8080808080", "8080808080"), ("0202020202", "0404040404"),
        # odd throughout: Q is 0, 1, 1, 0, and so on
        ("010101010101", "020303020203"),
        # -1: 2 q + Q is -2, -1, -1, -2
        ("ffffffffffff", "fefffffefeff"),
        # a single 1 is the parity of every second column after it
        ("0001000000000000", "0002010001000100"), ("0100000000000000", "0201000100010001"),
        # bit 6 is lost
        ("407f80bf", "007e81fe"), ("003fc0ff", "007e81fe"), ("7f3f", "7e7f"),
    ],
)  # fmt: skip
def test_by_hand_trellis(coded: str, symbols: str) -> None:
    row = np.frombuffer(bytes.fromhex(coded), np.uint8)
    assert undo_trellis(row).tobytes().hex() == symbols
    assert bytes(recurrence(row.tolist())).hex() == symbols


@pytest.mark.parametrize("width", [1, 2, 3, 64, 191, 1024])
def test_the_parity_is_the_recurrence(width: int) -> None:
    rows = np.random.default_rng(width).integers(0, 256, (256, width), np.uint8)
    rows[:, 0] = range(256)
    out = undo_trellis(rows)
    assert out.tolist() == [recurrence(row) for row in rows.tolist()]
    # where bit 6 says nothing more, q becomes 2 q + Q; and Q is the parity
    q = np.zeros_like(rows)
    for j in range(1, width):
        q[:, j] = rows[:, j - 1 :: -2].sum(axis=1) % 2
    assert ((out & 1) == q).all() and ((out >> 7) == rows >> 7).all()
    small = (rows < 64) | (rows >= 192)
    assert ((2 * rows.view(np.int8).astype(int) + q) == out.view(np.int8))[small].all()


def test_signs_and_magnitudes() -> None:
    """As code that has them apart would do it: m = q or ~q becomes 2 m + Q, or 2 m + 1 - Q of which it takes ~."""
    for q, now in itertools.product(range(-128, 128), (0, 1)):
        first = 0 if now == 0 else 1
        symbol = undo_trellis(np.array([first, q & 0xFF], np.uint8))[1]
        m = q if q >= 0 else ~q
        k = (2 * m + (now if q >= 0 else 1 - now)) % 128
        assert symbol == (k if q >= 0 else ~k & 0xFF)


def test_each_state_has_half_of_the_levels() -> None:
    """Levels that can follow are every second one, both halves by some state, and twice: whatever bit 6 is."""
    for before in itertools.product((0, 1), repeat=2):
        rows = np.array([[*before, byte] for byte in range(256)], np.uint8)
        ends = undo_trellis(rows)[:, 2]
        assert sorted(ends.tolist()) == sorted(2 * [*range(before[1], 256, 2)])


def test_a_path_is_near_what_was_wanted() -> None:
    wanted = np.random.default_rng(9).integers(-128, 128, (2, 7, 150)).astype(np.int8)
    found = on_trellis(wanted, 64)
    assert np.abs(found.astype(int) - wanted).max() == 1
    np.testing.assert_array_equal(on_trellis(found, 64), found)
    coded, symbols = trellis_row(wanted[0, 0].view(np.uint8).tolist(), wrap=3)
    assert undo_trellis(np.array(coded, np.uint8)).tolist() == symbols == recurrence(coded)
    assert max(min(byte, byte ^ 0xFF) for byte in coded) > 63


@pytest.mark.parametrize("tile", [64, 128, 192])
def test_the_trellis_restarts(tile: int) -> None:
    """At each row, and at each tile's left edge, where every level is one that can begin; and nowhere else."""
    t = rate("w", (18, 300), (1, 18, 300, 0), tile=tile, layout="byte", sigma=40)
    begins = check(t).symbols("w")[0, :, ::64] & 1
    at_edges = np.arange(0, 300, 64) % tile == 0
    assert not begins[:, at_edges].any() and (at_edges.all() or begins[:, ~at_edges].any())
    # the path of another tile is another
    assert (tile == 64) == np.array_equal(on_trellis(t.data, 64), t.data)


def test_padding_does_not_reach_the_matrix() -> None:
    for pad, coder in itertools.product((0, 0x80, 0x7F, 0xFF, 0x55), ("rans", "huffman")):
        check(rate("w", (5, 70), (1, 5, 70, 0), pad=pad, coder=coder))


# Values


def test_by_hand_values() -> None:
    """Levels at halves, none of them 0; a scale of 0 makes a row of zeros, whose signs are those of the levels."""
    q = np.array([[-128, -127, -2, -1, 0, 1, 126, 127]], np.int8)
    scales = {0x3F80: 1, 0x4040: 3, 0xBE80: -0.25, 0x0001: 2.0**-133, 0x7F7F: 1.9921875 * 2.0**127}
    levels = [-127.5, -126.5, -1.5, -0.5, 0.5, 1.5, 126.5, 127.5]
    rows = len(scales) + 1
    t = rate("w", (rows, 8), (1, rows, 8, 0), symbols=np.repeat(q, rows, axis=0)[None], dtype="F32",
             scales=[*scales, 0], filter=None)  # fmt: skip
    values = check(t).values("w").astype(np.float64)
    for row, scale in zip(values, scales.values(), strict=False):
        limit = 2.0**128 - 2.0**103  # from there on float32 is infinite
        assert row.tolist() == [v if abs(v := x * scale) < limit else np.copysign(np.inf, v) for x in levels]
    assert values[-1].tolist() == [0] * 8 and np.signbit(values[-1]).tolist() == [True] * 4 + [False] * 4


def test_by_hand_rounding() -> None:
    """Products have up to 16 bits, of which bfloat16 keeps 8 and float16 11, to nearest and ties to even."""
    cases = {  # symbol and scale -> bfloat16, float16
        (127, 0x437F): (0x46FE, 0x77F0), (0, 0x3F81): (0x3F01, 0x3808), (1, 0x3F81): (0x3FC2, 0x3E0C),
        (2, 0x3F83): (0x4024, 0x411E), (-3, 0x3F83): (0xC024, 0xC11E), (127, 0x4380): (0x46FF, 0x77F8),
        (0, 0x3380): (0x3300, 0x0000), (1, 0x3380): (0x33C0, 0x0002), (127, 0x4400): (0x477F, 0x7BF8),
        (127, 0x4401): (0x4780, 0x7C00), (0, 0x0001): (0x0000, 0x0000), (1, 0x0001): (0x0002, 0x0000),
        (2, 0x0001): (0x0002, 0x0000), (-4, 0x0001): (0x8004, 0x8000),
    }  # fmt: skip
    for dtype, place in (("BF16", 0), ("F16", 1)):
        symbols = np.array([[[q]] for q, _ in cases], np.int8)
        t = rate("w", (len(cases), 1), (len(cases), 1, 1, 0), symbols=symbols, dtype=dtype, filter=None,
                 scales=[scale for _, scale in cases])  # fmt: skip
        values = FormatReader(write_container(None, [t])).values("w").view("<u2")
        assert [f"{v:04x}" for v in values.ravel()] == [f"{v[place]:04x}" for v in cases.values()], dtype


def test_float32_has_the_products_exactly() -> None:
    """Any bf16 is a scale, subnormal ones too, unless the product is infinite."""
    scales = floats(np.arange(0x7F80))
    for q in range(-128, 128):
        with np.errstate(over="ignore"):
            short, exact = np.float32(q + 0.5) * scales, np.float64(q + 0.5) * scales.astype(np.float64)
        assert ((short == exact) | (np.isinf(short) & (np.abs(exact) >= 2.0**128))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scales", [SCALES, LARGE, TOO_LARGE, NO_NUMBERS], ids=["usual", "large", "too large", "none"])
def test_scales(scales: list[int], dtype: str) -> None:
    check(rate("w", (3, 5, 70), (3, 5, 70, 0), scales=scales, dtype=dtype))


def test_views() -> None:
    views = enumerate(zip(VIEWS, itertools.cycle(DTYPES)))
    check(*(rate(f"{n}", shape, matrix, dtype=dtype) for n, ((shape, matrix), dtype) in views))


def test_all_symbols() -> None:
    q = np.random.default_rng(2).permutation(np.repeat(np.arange(-128, 128), 4)).astype(np.int8).reshape(1, 4, 256)
    for n, (coder, layout, shift, name) in enumerate(CODINGS):
        if coder not in ("rans", "huffman") or (coder, layout, shift) in WHOLE:
            options = {"coder": coder, "layout": layout, "shift": shift, "filter": name, "chunk": 512}
            check(rate(f"{n}", (4, 256), (1, 4, 256, 0), symbols=q, **options))


# Coding


@pytest.mark.parametrize(("coder", "layout", "shift", "name"), CODINGS)
def test_codings(coder: str, layout: str, shift: int, name: str | None) -> None:
    options: dict[str, Any] = {"coder": coder, "layout": layout, "shift": shift, "filter": name}
    tensors = [
        rate("w", (2, 17, 150), (2, 17, 150, 0), raw_chunks=(1, 4), pad=253, chunk=450, bits=11, **options),
        rate("v", (150, 33), (1, 33, 150, 1), tile=128, dtype="F16", chunk=150, wrap=61, **options),
    ]
    plane = check(*tensors).entry("w")["planes"][0]
    assert plane.get("filter") == name and (coder in ("zstd", "raw") or plane["chunks"] == 12)


@pytest.mark.parametrize("variety", range(len(VARIETIES)))
@pytest.mark.parametrize(("coder", "layout", "shift"), TILED)
def test_varieties(coder: str, layout: str, shift: int, variety: int) -> None:
    options: dict[str, Any] = {"coder": coder, "layout": layout, "shift": shift, "variety": variety, "wrap": 97}
    check(rate("w", (17, 300), (1, 17, 300, 0), tile=256, **options))


def test_patches_are_made_before_the_trellis_is_undone() -> None:
    """A patch is a coded byte: what it stands for depends on the columns before it, and it changes those after it."""
    symbols = np.zeros((1, 1, 64), np.int8)
    symbols[0, 0, 2], symbols[0, 0, 4:] = 100, 1  # coded as 50, which shift 0 patches, and 0
    t = rate("w", (1, 64), (1, 1, 64, 0), symbols=symbols, shift=0)
    reader = check(t)
    file = write_container(None, [t])
    data = file[reader.entry("w")["planes"][0]["data"][0] :]
    assert struct.unpack_from("<I", data) == (1,)
    position, value, change = struct.unpack_from("<HBB", data, 4)
    assert (position, value, change) == (2, 50, 35)
    changed = data[:6] + b"\x33\x24" + data[8 : reader.entry("w")["planes"][0]["data"][1]]
    symbols = recurrence([0, 0, 51, *(trellis_row(t.data[0, 0].view(np.uint8).tolist())[0][3:])])
    other = write_container(
        None,
        [t],
        edit_segment=lambda role, d: changed if role == "w/data" else d,
        edit_index=changed_index("tensors/0/planes/0/hash", hex_hash(bytes(symbols))),
    )
    assert FormatReader(other).symbols("w")[0, 0].view(np.uint8).tolist() == symbols


def test_tables_are_shared_with_other_schemes() -> None:
    q = np.random.default_rng(1).normal(0, 9, (1, 18, 70)).astype(np.int8)
    tensors = [
        rate("r", (18, 70), (1, 18, 70, 0), layout="byte", table_key="all"),
        Tensor("i", q, (18, 70), matrix=(1, 18, 70, 0), scales=np.ones(18, np.float32), layout="byte", table_key="all"),
    ]
    reader = FormatReader(write_container(None, tensors))
    assert len(reader.index["tables"]) == 1
    for t in tensors:
        np.testing.assert_array_equal(reader.symbols(t.name), t.data)


def test_by_hand_container() -> None:
    """Two elements of a row, -0.5 and 2.5 times 3, stored as they are."""
    index = (
        b'{"format":"wcodec","features":[],"writer":"hand","tables":[],"aliases":{},"tensors":[{"name":"x",'
        b'"dtype":"BF16","shape":[2],"scheme":"rate","matrix":[1,1,2,0],'
        b'"scales":{"per":"row","dtype":"BF16","data":[64,2,"HASH0"]},'
        b'"planes":[{"coder":"raw","data":[80,2,"HASH1"],"hash":"HASH1"}]}]}'
    )
    for n, data in enumerate((b"\x40\x40", b"\xff\x02")):
        index = index.replace(b"HASH%d" % n, hex_hash(data).encode())
    head = bytes.fromhex("8957434f4445430a 0100 0100 00000000 6000000000000000") + struct.pack("<Q", len(index))
    file = reseal(head + bytes(32) + b"\x40\x40" + bytes(14) + b"\xff\x02" + bytes(14) + index)
    assert FormatReader(file).values("x").tolist() == [0xBFC0, 0x40F0]


# Versions and refusals


def test_a_reader_of_version_1_0() -> None:
    """It reads what it knows, and refuses the other tensors one by one."""
    tensors = rate_tensors()
    file = write_container(None, tensors)
    assert file[8:12] == bytes([1, 0, 3, 0])
    for reader in (FormatReader(file), FormatReader(file, minor=0)):
        assert reader.names() == [t.name for t in tensors]
        (i,) = (t for t in tensors if t.scheme == "int8")
        assert reader.symbols("i").tobytes() == i.data.tobytes() and reader.values("i").shape == (16, 128)
    for t in tensors:
        if t.scheme != "int8":
            with pytest.raises(FormatReaderError, match=f"{t.name}: unknown scheme '{t.scheme}'"):
                reader.values(t.name)


def test_a_key_that_version_1_0_ignores() -> None:
    """Scales of int8 are float32, whatever a key that version 1.0 does not know seems to say of them."""
    (place,) = (n for n, t in enumerate(rate_tensors()) if t.scheme == "int8")
    file = write_container(None, rate_tensors())
    changed = reindexed(file, changed_index(f"tensors/{place}/scales/dtype", "BF16"))
    assert FormatReader(changed).raw_bytes("i") == FormatReader(file).raw_bytes("i")


@pytest.fixture(scope="module")
def broken() -> bytes:
    """The file that refusals start from, in which everything is right."""
    tensors = rate_tensors()
    check(*(t for t in tensors if t.scheme == "rate"))
    return write_container(None, tensors)


@pytest.mark.parametrize(("path", "value", "message"), RATE_EDITS, ids=lambda value: str(value)[:40])
def test_index_refusals(path: str, value: Any, message: str, broken: bytes) -> None:
    refused(reindexed(broken, changed_index(path, value)), message)


@pytest.mark.parametrize(("role", "edit", "message"), RATE_CONTENTS)
def test_content_refusals(role: str, edit: Callable[[bytes], bytes], message: str) -> None:
    refused(write_container(None, rate_tensors(), edit_segment=lambda r, d: edit(d) if r == role else d), message)


@pytest.mark.parametrize("what", RATE_FORBIDDEN)
def test_forbidden_ways(what: str) -> None:
    refused(forbidden_rate(what), RATE_FORBIDDEN[what][2])


def test_nothing_is_allocated_from_sizes_alone(broken: bytes) -> None:
    shapes_allocate_nothing(
        broken, ((0, (1 << 20, 1 << 20)), (3, (1 << 19, 1 << 20)), (4, (1, 1 << 40)), (0, (1 << 30, 1 << 30)))
    )


def test_every_byte_counts() -> None:
    tensors = [rate("a", (3, 40), (1, 3, 40, 0)), rate("b", (5,), (1, 1, 5, 0), coder="zstd", filter=None)]
    every_byte_counts(tensors)
