"""Layout `quad` in the container's Python reader, against the Python writer and bytes worked out by hand.

As in `test_format_reader.py`, both sides are the page's (what it marks 1.2), and refusals name the check that refuses.
How the layout goes together with coders, schemes and filters is in the tests of those, too.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import format_reader
import numpy as np
import pytest
from format_reader import FormatReader, FormatReaderError
from format_refusals import every_byte_counts, refused, shapes_allocate_nothing
from format_writer import VARIETIES, Tensor, write_container
from hostile import changed_index, poke, reindexed
from lossless_samples import VIEWS
from quad_samples import (
    BODIES,
    CUTS,
    PATCHES,
    QUAD_CONTENTS,
    QUAD_EDITS,
    QUAD_FORBIDDEN,
    SCHEMES,
    SHIFTS,
    TABLES,
    coded_body,
    forbidden_quad,
    patched,
    quad,
    quad_tensors,
    table_of,
    values_of,
    with_body,
    with_chunk,
    with_patches,
    with_table,
    zeros,
)
from rate_samples import same


def check(*tensors: Tensor) -> FormatReader:
    """Write tensors, and compare symbols and values that are read with those written."""
    reader = FormatReader(write_container(None, tensors))
    for t in tensors:
        assert reader.symbols(t.name).tobytes() == t.data.tobytes(), t.name
        values = reader.values(t.name)
        assert values.shape == tuple(t.shape)
        assert same(values, values_of(t), t.dtype) if t.scheme != "raw" else np.array_equal(values, values_of(t)), (
            t.name
        )
    return reader


@pytest.mark.parametrize(("scheme", "name"), SCHEMES)
@pytest.mark.parametrize("shift", SHIFTS)
def test_schemes(scheme: str, name: str | None, shift: int) -> None:
    options: dict[str, Any] = {"scheme": scheme, "filter": name, "shift": shift}
    tensors = [quad("w", (2, 17, 150), (2, 17, 150, 0), raw_chunks=(1, 4), pad=253, bits=8 + shift, **options)]
    tensors += [quad("few", (33, 129), (1, 33, 129, 0), tile=1024, alphabet=200, **options)]
    if scheme != "raw":
        tensors += [quad("t", (150, 33), (1, 33, 150, 1), tile=128, dtype="F16", bits=9, **options)]
    reader = check(*tensors)
    for t in tensors:
        (plane,) = reader.entry(t.name)["planes"]
        assert (plane["layout"], plane["shift"], plane.get("filter")) == ("quad", shift, name)
        assert reader.index["tables"][plane["table"]]["layout"] == "quad"


@pytest.mark.parametrize("shift", SHIFTS)
def test_views(shift: int) -> None:
    made = [
        quad(f"{n}", shape, matrix, scheme=scheme, filter=name, shift=shift, tile=(64, 128, 1024)[n % 3])
        for n, (shape, matrix) in enumerate(VIEWS)
        for scheme, name in (SCHEMES[(n + shift) % 4],)
        if scheme != "raw" or matrix[3] == 0
    ]
    check(*made)


@pytest.mark.parametrize("variety", range(len(VARIETIES)))
@pytest.mark.parametrize("shift", SHIFTS)
def test_varieties(shift: int, variety: int) -> None:
    options: dict[str, Any] = {"tile": 256, "raw_chunks": (1,), "shift": shift, "bits": 11}
    tensors = [quad(f"{v}", (17, 600), (1, 17, 600, 0), variety=v, **options) for v in (0, variety)]
    for t in tensors:
        t.data[:, :4] //= 4  # streams of few bits, so that some are far from the fewest
    reader = check(*tensors[: 1 + (variety > 0)])
    lengths = [reader.entry(name)["planes"][0]["data"][1] for name in reader.names()]
    assert lengths == sorted(lengths)  # what the page advises is never longer


def test_a_table_for_many() -> None:
    tensors = [
        quad(f"{scheme} {name} {shift}", (18, 70), (1, 18, 70, 0), scheme=scheme, filter=name, shift=shift, bits=10,
             table_key="all")
        for (scheme, name), shift in itertools.product(SCHEMES, (1, 3))
    ]  # fmt: skip
    assert len(check(*tensors).index["tables"]) == 1


# By hand


@pytest.mark.parametrize(
    ("shift", "element", "words"),
    [
        (0, 0, {0: 0x80}), (0, 31, {0: 1 << 24}), (0, 13, {0: 0x10 << 8}),
        (1, 0, {0: 0x88}), (1, 4, {0: 0x44}), (1, 15, {0: 0x11 << 24}), (1, 16, {1: 0x88}), (1, 26, {1: 0x22 << 16}),
        (2, 0, {0: 0x80, 1: 0x03}), (2, 4, {0: 0x40, 1: 0x0C}), (2, 8, {0: 0x20, 1: 0x30}),
        (2, 12, {0: 0x10, 1: 0xC0}), (2, 16, {0: 0x08, 2: 0x03}), (2, 27, {0: 0x02 << 24, 2: 0x30 << 24}),
        (3, 0, {0: 0xF0}), (3, 4, {0: 0x0F}), (3, 9, {1: 0xF0 << 8}), (3, 31, {3: 0x0F << 24}),
        (4, 0, {0: 0x80, 1: 0x0F}), (4, 4, {0: 0x40, 1: 0xF0}), (4, 9, {0: 0x20 << 8, 2: 0x0F << 8}),
        (4, 31, {0: 0x01 << 24, 4: 0xF0 << 24}),
    ],
)  # fmt: skip
def test_by_hand_side_words(shift: int, element: int, words: dict[int, int]) -> None:
    """An element of lane 5 in block 1 has sign 1 and all low bits 1 (q = ~v with v = 2^shift - 1), all others are 0."""
    groups = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1)}[shift + 1]
    side = np.zeros((1, 2, (shift + 1) * 32), "<u4")
    for word, value in words.items():
        first = 0 if word < groups[0] else groups[0]
        size = groups[0] if word < groups[0] else groups[1]
        side[0, 1, first * 32 + 5 * size + word - first] = value
    out = format_reader.join_quads(np.zeros((1, 32, 2, 8), np.uint16), side, shift)
    assert out.shape == (1, 32, 2, 32) and out[0, 5, 1, element] == 0xFF ^ ((1 << shift) - 1)
    assert np.count_nonzero(out) == 1


@pytest.mark.parametrize("shift", SHIFTS)
def test_by_hand_bits_of_an_element(shift: int) -> None:
    """q = -75 is v = 74, 1001010: its upper bits are the symbol's, and the highest of the low ones is in bit 3."""
    t = zeros(64)
    t.shift = shift
    t.data[0, 9, 16 + 6] = -75  # lane 4 (9 - 8) + 1 = 5, element 16 + 6 = 22: word 5, byte 2
    file = write_container(None, [t])
    reader = check(t)
    plane = reader.entry("w")["planes"][0]
    data, side = (file[plane[key][0] :][: plane[key][1]] for key in ("data", "side"))
    assert len(side) == 128 * (shift + 1) and bin(int.from_bytes(side, "little")).count("1") == [1, 1, 2, 2, 3][shift]
    # 74 is 37 times 2, 18 times 4 and so on, of which at most 7 are coded; the patch adds the rest to what v is then
    low = 74 & (1 << shift) - 1
    change = 74 - (min(74 >> shift, 7) << shift | low)
    assert struct.unpack_from("<I", data) == (int(change > 0),)
    if change:
        assert struct.unpack_from("<Hbb", data, 4) == (5 * 32 + 22, -75, -change)


def test_by_hand_order_of_raw_symbols() -> None:
    """In a raw chunk u16 i is the symbol of four elements (row, column) as section 3 numbers lanes.

    Every fourth bit of it is nobody's.
    """
    q = np.random.default_rng(2).integers(-128, 128, (1, 16, 128)).astype(np.int8)
    t = zeros(128)
    t.data, t.raw_chunks, t.variety = q, (0,), 0
    file = write_container(None, [t])
    offset, length, _ = check(t).entry("w")["planes"][0]["data"]
    assert length == 4 + 8 * 128
    v = np.where(q < 0, ~q, q)[0] >> 4
    for block, half, lane, symbol in [(0, 0, 0, 0), (0, 0, 1, 3), (0, 1, 5, 2), (1, 0, 31, 1), (1, 1, 30, 3)]:
        (stored,) = struct.unpack_from("<H", file, offset + 4 + 512 * block + 256 * half + 8 * lane + 2 * symbol)
        row, column = lane // 4 + 8 * half, 64 * block + 16 * (lane % 4) + 4 * symbol
        assert stored == sum(int(v[row, column + b]) << 4 * b for b in range(4))
    body = (
        np.frombuffer(file[offset + 4 : offset + length], "<u2") | np.arange(512).astype("<u2") % 16 * 0x0888 & 0x8888
    )
    changed = write_container(None, [t], edit_segment=lambda role, d: d[:4] + body.tobytes() if role == "w/data" else d)
    assert changed != file and FormatReader(changed).symbols("w").tobytes() == q.tobytes()


def test_by_hand_streams() -> None:
    """Codes a = 0, b = 10, c = 11: stream i has i % 3 as all its symbols, 2 i and 2 i + 1 are those of lane i."""
    numbers = np.frombuffer(table_of(8, {1: [0x7000], 2: [0x0007, 0x0123]}), "<u2").astype(np.int64)
    symbol, length = format_reader.quad_lookup(numbers, 8)
    assert symbol[:4].tolist() == [0x7000, 0x0007, 0x7000, 0x0123] and length[:4].tolist() == [1, 2, 1, 2]
    # two blocks, so 8 symbols a stream: 8 or 16 bits, and then what is not used
    codes = [("0", "10", "11")[i % 3] * 8 for i in range(64)]
    exact = (8, 3, [0 if i % 3 == 0 else 1 for i in range(64)], "")
    wide = (5, 4, [1] * 64, "1100110011001")
    bodies = []
    for least, unit, steps, left in (exact, wide):
        sizes = [least + steps[i] * 2**unit for i in range(64)]
        text = "00" + "".join((c + left)[:n] for c, n in zip(codes, sizes, strict=True))
        head = struct.pack("<2H", least, unit) + bytes(steps[2 * lane] + 16 * steps[2 * lane + 1] for lane in range(32))
        bodies.append(head + int(text[::-1], 2).to_bytes(-(-len(text) // 32) * 4, "little"))
    begin, end = np.array([0, len(bodies[0])]), np.array([len(bodies[0]), len(bodies[0] + bodies[1])])
    out = format_reader.decode_quads(bodies[0] + bodies[1], begin, end, 16, numbers, 8)
    assert out.shape == (2, 32, 16)
    symbols = [0x7000, 0x0007, 0x0123]
    for body in out:
        for lane in range(32):
            first, second = symbols[2 * lane % 3], symbols[(2 * lane + 1) % 3]
            assert body[lane].tolist() == ([first] * 4 + [second] * 4) * 2


# Versions


def test_it_is_of_version_1_2() -> None:
    """Readers of earlier versions refuse the planes, and read what is beside them."""
    tensors = quad_tensors()
    file = write_container(None, tensors)
    assert file[8:12] == bytes([1, 0, 2, 0])
    for minor in (0, 1):
        reader = FormatReader(file, minor=minor)
        assert reader.names() == [t.name for t in tensors]
        for t in tensors:
            if t.name in "bpr" or (minor, t.name) == (1, "l"):
                assert reader.raw_bytes(t.name) == FormatReader(file).raw_bytes(t.name)
            else:
                with pytest.raises(FormatReaderError, match="bad layout 'quad'|unknown scheme"):
                    reader.values(t.name)
    # a plane of theirs that names a table of quads: they see that it is none of theirs by its length
    changed = reindexed(file, changed_index("tensors/3/planes/0/table", 0))
    with pytest.raises(FormatReaderError, match="table 0: wrong length"):
        FormatReader(changed, minor=1).values("b")


def test_the_minor_version_is_not_needed() -> None:
    t = quad("w", (5, 70), (1, 5, 70, 0))
    for version in ((1, 0), (1, 1), (1, 7)):
        assert FormatReader(write_container(None, [t], version=version)).symbols("w").tobytes() == t.data.tobytes()


# Refusals


@pytest.mark.parametrize(("what", "table", "message"), TABLES, ids=[what for what, *_ in TABLES])
def test_tables(what: str, table: bytes, message: str | None) -> None:
    file, t = with_table(table)
    if message:
        refused(file, message)
    else:
        assert FormatReader(file).symbols("w").tobytes() == t.data.tobytes()


@pytest.mark.parametrize("bits", range(6, 15))
def test_sizes_of_tables(bits: int) -> None:
    file, t = with_table(table_of(bits, {1: [3], 2: [4], 3: [0x1234, 0x7777]}), bits)
    if 8 <= bits <= 12:
        assert FormatReader(file).symbols("w").tobytes() == t.data.tobytes()
    else:
        refused(file, "bad bits")


@pytest.mark.parametrize(("what", "width", "options", "message"), BODIES, ids=[what for what, *_ in BODIES])
def test_bodies(what: str, width: int, options: dict[str, Any], message: str | None) -> None:
    file, t = with_body(width, options)
    if message:
        refused(file, message)
    else:
        assert FormatReader(file).symbols("w").tobytes() == t.data.tobytes()


@pytest.mark.parametrize(("length", "message"), CUTS)
def test_bodies_that_are_cut(length: int, message: str) -> None:
    refused(with_chunk(zeros(64), (bytes(4) + coded_body(4, least=4))[:length]), message)


@pytest.mark.parametrize(("what", "patches", "options", "message"), PATCHES, ids=[what for what, *_ in PATCHES])
def test_patches(what: str, patches: list[Any], options: dict[str, Any], message: str | None) -> None:
    file, symbols = with_patches(patches, **options)
    if message:
        refused(file, message)
    else:
        assert FormatReader(file).symbols("w").tobytes() == symbols.tobytes()


def test_chunks_have_a_count_with_every_shift() -> None:
    """Also with shift 4, which has no escapes."""
    for shift in SHIFTS:
        t = zeros(64)
        t.shift = shift
        assert check(t).entry("w")["planes"][0]["max_chunk"] == 76
        refused(with_chunk(t, coded_body(4, least=4)), "more patches|not ascending|quad body")
        assert len(patched()) == 76


@pytest.fixture(scope="module")
def broken() -> bytes:
    """The file that refusals start from, in which everything is right."""
    tensors = quad_tensors()
    check(*(t for t in tensors if t.layout == "quad"))
    return write_container(None, tensors)


@pytest.mark.parametrize(("path", "value", "message"), QUAD_EDITS, ids=lambda value: str(value)[:40])
def test_index_refusals(path: str, value: Any, message: str, broken: bytes) -> None:
    refused(reindexed(broken, changed_index(path, value)), message)


@pytest.mark.parametrize(("role", "edit", "message"), QUAD_CONTENTS)
def test_content_refusals(role: str, edit: Callable[[bytes], bytes], message: str) -> None:
    refused(write_container(None, quad_tensors(), edit_segment=lambda r, d: edit(d) if r == role else d), message)


@pytest.mark.parametrize("what", QUAD_FORBIDDEN)
def test_forbidden_ways(what: str) -> None:
    refused(forbidden_quad(what), QUAD_FORBIDDEN[what][2])


def test_nothing_is_allocated_from_sizes_alone(broken: bytes) -> None:
    shapes_allocate_nothing(broken, ((0, (1 << 20, 1 << 20)), (1, (1, 1 << 40)), (2, (1 << 30, 1 << 30))))


def test_every_byte_counts() -> None:
    every_byte_counts([quad("a", (3, 40), (1, 3, 40, 0), scheme="rate", filter="trellis", shift=1)])


def test_damage_stays_with_its_tensor(broken: bytes) -> None:
    offset = FormatReader(broken).entry("w")["planes"][0]["data"][0] + 9
    reader = FormatReader(poke(broken, offset, bytes([broken[offset] ^ 1])))
    assert reader.raw_bytes("q") == FormatReader(broken).raw_bytes("q")
    with pytest.raises(FormatReaderError, match="w: data: hash"):
        reader.values("w")
