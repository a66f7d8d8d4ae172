"""Tensors of layout `quad` for tests of the format, and ways in which files of them can be wrong."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from format_reader import to_bfloat16
from format_writer import Tensor, hex_hash, write_container
from hostile import changed_index, poke
from lossless_samples import lossless
from rate_samples import expected, rate

SHIFTS = range(5)
#: schemes, and the filters that their planes of this layout may have
SCHEMES = [("int8", None), ("raw", None), ("rate", None), ("rate", "trellis")]


def quad(
    name: str, shape: Sequence[int], matrix: Sequence[int], *, scheme: str = "int8", seed: int = 3, **options: Any
) -> Tensor:
    """A tensor of layout `quad` and of scheme `int8`, `rate` or `raw`, without a filter unless options name one.

    Some of its elements are escapes, and some of its quads have no code.
    """
    options = {"coder": "huffman", "layout": "quad", "tile": 64, "filter": None} | options
    if scheme == "rate":
        return rate(name, shape, matrix, seed=seed, **options)
    rng, (count, rows, cols) = np.random.default_rng(seed), matrix[:3]
    q = np.rint(rng.normal(0, 2 * 2 ** options.get("shift", 3), (count, rows, cols))).clip(-128, 127).astype(np.int8)
    q.reshape(-1)[3::211], q.reshape(-1)[4::211] = 127, -128
    if scheme == "raw":
        return Tensor(name, q.view(np.uint8).reshape(-1), shape, "I8", scheme, matrix, **options)
    scales = rng.uniform(1e-3, 1e-2, count * rows).astype(np.float32)
    return Tensor(name, q, shape, matrix=matrix, scales=scales, **({"dtype": "BF16"} | options))


def values_of(tensor: Tensor) -> np.ndarray:
    """Values that the tensor decodes to."""
    if tensor.scheme == "rate":
        return expected(tensor)
    if tensor.scheme == "raw":
        return tensor.data.view(np.int8).reshape(tensor.shape)
    assert tensor.matrix and tensor.scales is not None
    exact = tensor.data * tensor.scales.reshape(*tensor.data.shape[:2], 1)
    exact = (exact[0].T if tensor.matrix[3] else exact).reshape(tensor.shape)
    return to_bfloat16(exact) if tensor.dtype == "BF16" else exact.astype(f"<f{int(tensor.dtype[1:]) // 8}")


# Tables


def table_of(bits: int, symbols: dict[int, list[int]], counts: dict[int, int] | None = None) -> bytes:
    """A table's bytes: length of codes -> their symbols, and how many there are said to be, which may be a lie."""
    said = {length: len(some) for length, some in symbols.items()} | (counts or {})
    flat = [s for length in sorted(symbols) for s in symbols[length]]
    return struct.pack(f"<{bits + len(flat)}H", *(said.get(n + 1, 0) for n in range(bits)), *flat)


ALL = sorted(a | b << 4 | c << 8 | d << 12 for a, b, c, d in itertools.product(range(8), repeat=4))
#: tables of 12 bits that are right, and such as are not, and why the page's reader refuses them
TABLES: list[tuple[str, bytes, str | None]] = [
    ("two codes", table_of(12, {1: [0, 0x7777]}), None),
    ("three codes", table_of(12, {1: [0x7777], 2: [0x0001, 0x1000]}), None),
    ("every quad", table_of(12, {12: ALL}), None),
    ("every length", table_of(12, {n: [n] for n in range(1, 8)} | {n: [n - 7 << 4] for n in (8, 9, 10, 11)}
                              | {12: [0x100, 0x200]}), None),
    ("nothing", b"", "shorter than its counts"), ("no codes", bytes(24), "not complete"),
    ("half of the counts", table_of(12, {1: [0, 1]})[:12], "shorter than its counts"),
    ("an odd byte", table_of(12, {1: [0, 1]}) + b"\0", "wrong length"),
    ("a byte too few", table_of(12, {1: [0, 1]})[:-1], "wrong length"),
    ("a symbol too few", table_of(12, {1: [0, 1]})[:-2], "not those of its symbols"),
    ("a symbol too many", table_of(12, {1: [0, 1]}) + b"\2\0", "not those of its symbols"),
    ("counts that go far beyond", table_of(12, {1: [0, 1]}, {12: 0xFFFF}), "not those of its symbols"),
    ("one code", table_of(12, {1: [0]}), "not complete"), ("half a code", table_of(12, {2: [0, 1]}), "not complete"),
    ("a code too few", table_of(12, {12: ALL[:-1]}), "not complete"),
    ("a code too many", table_of(12, {1: [0, 1], 12: [2]}), "not complete"),
    ("three codes of a bit", table_of(12, {1: [0, 1, 2]}), "not complete"),
    ("twice in a length", table_of(12, {1: [1, 1]}), "do not ascend"),
    ("descending", table_of(12, {1: [1, 0]}), "do not ascend"),
    ("descending later", table_of(12, {1: [0], 3: [1, 3, 2, 4]}), "do not ascend"),
    ("twice", table_of(12, {1: [5], 2: [3, 5]}), "stands twice"),
    ("twice, far apart", table_of(12, {1: [5], 2: [3], 3: [4], 4: [1, 5]}), "stands twice"),
    *((f"bit {bit}", table_of(12, {1: [0], 2: [3, 1 << bit]}), "a bit that none has") for bit in (3, 7, 11, 15)),
    ("256 lengths", bytes([8]) * 256, "not those of its symbols"),
]  # fmt: skip


def with_table(table: bytes, bits: int = 12) -> tuple[bytes, Tensor]:
    """A file of a tensor that has a table and uses none of its codes, and the tensor."""
    t = quad("w", (16, 128), (1, 16, 128, 0), shift=4, raw_chunks=(0, 1))
    file = write_container(
        None,
        [t],
        edit_segment=lambda role, data: table if role == "table 0" else data,
        edit_index=changed_index("tables/0/bits", bits),
    )
    return file, t


# Bodies


def coded_body(
    size: int,
    least: int,
    unit: int = 0,
    nibbles: Sequence[int] = (0,) * 64,
    left: str = "0",
    first: str = "00",
    after: str = "",
    words: int = 0,
) -> bytes:
    """A body of 64 streams of so many codes, all 0 and of one bit, whose header says what the arguments do.

    `left` is what streams have beyond their codes, `first` the bits before them, `after` those behind; so many `words`
    of zeros follow.
    """
    bits = [least + (n << unit) for n in nibbles]
    text = first + "".join(("0" * size + left * n)[:n] for n in bits) + after
    text += "0" * (-len(text) % 32)
    header = struct.pack("<2H32B", least, unit, *(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True)))
    return header + int(text[::-1], 2).to_bytes(len(text) // 8, "little") + bytes(4 * words)


_MIXED = [1, 0] * 32
#: bodies: width of the tile (a stream of 64 columns has 4 codes), what `coded_body` is given, and the page's refusal
BODIES: list[tuple[str, int, dict[str, Any], str | None]] = [
    ("exact", 64, {"least": 4}, None), ("exact, 3 blocks", 192, {"least": 12}, None),
    ("a bit left", 64, {"least": 5, "unit": 1, "left": "1"}, None),
    ("a bit left and none may be", 64, {"least": 5}, "take more than its bits, or too few"),
    ("7 bits left", 64, {"least": 11, "unit": 3, "left": "1"}, None),
    ("8 bits left of 8", 64, {"least": 12, "unit": 3}, "take more than its bits, or too few"),
    ("steps", 64, {"least": 0, "unit": 2, "nibbles": [1] * 64}, None),
    ("steps that leave bits", 64, {"least": 1, "unit": 2, "nibbles": [1] * 64, "left": "10"}, None),
    ("some leave bits", 64, {"least": 4, "unit": 3, "nibbles": [0] * 64, "left": "1"}, None),
    ("each lane has both", 64, {"least": 3, "unit": 1, "nibbles": [1] * 64, "left": "1"}, None),
    ("every second has 4 too many", 64, {"least": 4, "unit": 2, "nibbles": _MIXED}, "more than its bits, or too few"),
    ("every second has 4 too few", 192, {"least": 8, "unit": 2, "nibbles": _MIXED}, "more than its bits, or too few"),
    ("a bit too few", 192, {"least": 11}, "take more than its bits, or too few"),
    ("a bit too few in the last stream", 64, {"least": 3, "nibbles": [1] * 63 + [0]}, "more than its bits, or too few"),
    ("a bit too many in the last stream", 64, {"least": 4, "nibbles": [0] * 63 + [1]}, "more than its bits, or too"),
    ("no bits", 64, {"least": 0, "unit": 8, "words": 8}, "not end with the last code's word"),
    ("no bits and a word", 64, {"least": 0, "unit": 8}, "too short"),
    ("255 bits left of 256", 1024, {"least": 64 + 255, "unit": 8, "left": "01"}, None),
    ("256 bits left of 256", 1024, {"least": 64 + 256, "unit": 8, "left": "01"}, "take more than its bits, or too few"),
    ("steps of 256", 1024, {"least": 63, "unit": 8, "nibbles": [1] * 64, "left": "01"}, None),
    ("unit 9", 1024, {"least": 64, "unit": 9}, "unit is larger than 8"),
    ("unit 255", 1024, {"least": 64, "unit": 255}, "unit is larger than 8"),
    ("unit 256", 1024, {"least": 64, "unit": 256}, "unit is larger than 8"),
    ("unit 65535", 1024, {"least": 64, "unit": 65535}, "unit is larger than 8"),
    ("first bit", 64, {"least": 4, "first": "10"}, "bits before or after the codes"),
    ("second bit", 64, {"least": 4, "first": "01"}, "bits before or after the codes"),
    ("bit behind", 64, {"least": 4, "after": "1"}, "bits before or after the codes"),
    ("last bit", 64, {"least": 4, "after": "0" * 29 + "1"}, "bits before or after the codes"),
    ("a word more", 64, {"least": 4, "words": 1}, "not end with the last code's word"),
    ("many words more", 64, {"least": 4, "words": 90}, "not end with the last code's word"),
    ("as long as a raw one", 64, {"least": 4, "words": 110}, "plane hash"),
    ("longer than a raw one", 64, {"least": 4, "words": 111}, "longer than its raw length"),
]  # fmt: skip
#: how many bytes of a chunk that is right there are, and the refusal
CUTS = [(0, "cannot hold"), (4, "too short"), (40, "too short"), (72, "not end with the last code's word")]


def zeros(width: int) -> Tensor:
    """A tile of zeros, and with it a table of two codes of a bit."""
    options: dict[str, Any] = {"coder": "huffman", "layout": "quad", "shift": 4, "tile": width}
    q = np.zeros((1, 16, width), np.int8)
    return Tensor("w", q, (16, width), matrix=(1, 16, width, 0), scales=np.ones(16, np.float32), **options)


def with_chunk(t: Tensor, chunk: bytes, plain: bytes | None = None) -> bytes:
    """A file of tensor `w`, of one chunk, which is this one, and of another that is right.

    `plain`: what the plane then decodes to, if that is not what the tensor has.
    """
    segments = {"w/data": chunk, "w/offsets": struct.pack("<2I", 0, len(chunk) // 4)}

    def edit(index: dict[str, Any]) -> None:
        plane = index["tensors"][0]["planes"][0]
        plane |= {"max_chunk": len(chunk)} | ({"hash": hex_hash(plain)} if plain is not None else {})

    good = quad("good", (5, 70), (1, 5, 70, 0), scheme="rate", filter="trellis", shift=1)
    return write_container(None, [t, good], edit_segment=lambda role, data: segments.get(role, data), edit_index=edit)


def with_body(width: int, options: dict[str, Any]) -> tuple[bytes, Tensor]:
    """A file whose tensor `w` has this body, and the tensor."""
    t = zeros(width)
    return with_chunk(t, bytes(4) + coded_body(width // 16, **options)), t


# Patches


def patched(*patches: tuple[int, int, int], count: int | None = None, raw: bool = False) -> bytes:
    """A chunk of a tile of zeros with patches (position, value, change) and a count of them, which may be a lie."""
    head = struct.pack("<I", len(patches) if count is None else count)
    body = bytes(512) if raw else coded_body(4, least=4)
    return head + b"".join(struct.pack("<HBB", p, v % 256, c % 256) for p, v, c in patches) + body


def with_patches(patches: list[tuple[int, int, int]], **options: Any) -> tuple[bytes, np.ndarray]:
    """A file whose tensor `w` is zeros but for these patches, and its symbols, of which it has the hash."""
    t = zeros(64)
    symbols = np.zeros((16, 64), np.int8)
    for position, value, _ in patches:
        lane, element = position // 32, position % 32
        if lane < 32:
            symbols[lane // 4 + element // 16 * 8, lane % 4 * 16 + element % 16] = value
    return with_chunk(t, patched(*patches, **options), symbols.tobytes()), symbols


#: patches of a tile of zeros, and why the page's reader refuses them
PATCHES: list[tuple[str, list[tuple[int, int, int]], dict[str, Any], str | None]] = [
    ("none", [], {}, None), ("one", [(0, 127, 127)], {}, None), ("the last element", [(1023, -128, -128)], {}, None),
    ("one that changes nothing", [(7, 0, 0)], {}, None), ("negative", [(7, -1, -1)], {}, None),
    ("many", [(n, n % 128, n % 128) for n in range(0, 1024, 9)], {}, None),
    ("in a raw chunk", [(0, 127, 127), (5, -3, -3)], {"raw": True}, None),
    ("no change", [(7, 5, 0)], {}, "an element and its change"),
    ("the wrong way", [(7, 5, -5)], {}, "an element and its change"),
    ("one off", [(7, 5, 4)], {}, "an element and its change"),
    ("a change and nothing else", [(7, 0, 1)], {}, "an element and its change"),
    ("round the end", [(7, -128, 127)], {}, "an element and its change"),
    ("the last of them", [(3, 5, 5), (7, 5, 5), (9, 5, 6)], {}, "an element and its change"),
    ("wrong in a raw chunk", [(7, 5, 0)], {"raw": True}, "an element and its change"),
    ("the same place", [(7, 5, 5), (7, 5, 5)], {}, "not ascending"),
    ("descending", [(8, 5, 5), (7, 5, 5)], {}, "not ascending"),
    ("beyond the tile", [(1024, 5, 5)], {}, "not ascending"), ("far beyond", [(65535, 5, 5)], {}, "not ascending"),
    ("more than there are", [(7, 5, 5)], {"count": 2**32 - 1}, "more patches"),
    ("as many as the chunk has words", [(7, 5, 5)], {"count": 20}, "more patches"),
]  # fmt: skip


# Files


def quad_tensors() -> list[Tensor]:
    """Tensors that `QUAD_EDITS`, `QUAD_CONTENTS` break: planes of all schemes that may be of layout quad, and
    others."""
    plain: tuple[tuple[int, ...], tuple[int, ...]] = ((16, 128), (1, 16, 128, 0))
    q = np.random.default_rng(6).normal(0, 9, (1, 16, 128)).astype(np.int8)
    rest: dict[str, Any] = {"matrix": plain[1], "scales": np.ones(16, np.float32), "tile": 64}
    return [
        quad("w", *plain, scheme="rate", shift=1, dtype="F32", filter="trellis", alphabet=150, variety=3),
        quad("q", *plain, shift=2, bits=10, variety=0),
        quad("u", *plain, scheme="raw", shift=4, tile=128, variety=1),
        Tensor("b", q, *plain[:1], coder="huffman", layout="byte", **rest),
        Tensor("p", q, *plain[:1], coder="huffman", shift=1, **rest),
        Tensor("r", q, *plain[:1], coder="rans", shift=3, **rest),
        lossless("l", "F8_E4M3", "whole, huffman", *plain),
    ]


W, Q, U, B, P, R, L = (f"tensors/{n}" for n in range(7))
PW, PQ, PU, PB, PP, PR, PL = (f"{t}/planes/0" for t in (W, Q, U, B, P, R, L))
#: Edits of the index that make one tensor wrong: where, what, and why the page's reader says it is refused.
QUAD_EDITS: list[tuple[str, Any, str]] = [
    # layouts and coders
    *((PW + "/layout", value, "bad layout") for value in ("split", "Quad", "quads", "", None, 4, ["quad"], {})),
    (PW + "/layout", ..., "are missing"),
    (PW + "/layout", "pair", "of another layout"), (PW + "/layout", "byte", "too short|of another layout"),
    (PU + "/layout", "byte", "too short|of another layout"), (PU + "/layout", "pair", "bad shift"),
    (PW + "/coder", "rans", "bad layout"), (PQ + "/coder", "rans", "bad layout"), (PU + "/coder", "rans", "bad layout"),
    (PW + "/coder", "zstd", "are missing"), (PQ + "/coder", "raw", "wrong length"), (PU + "/coder", "lzma", "unknown"),
    (PB + "/layout", "quad", "are missing"), (PP + "/layout", "quad", "of another layout"),
    (PR + "/layout", "quad", "bad layout"), (PL + "/layout", "quad", "bad layout"),
    (W + "/scheme", "int8", "unknown filter"), (Q + "/scheme", "rate", "scales of dtype"),
    (W + "/scheme", "lossless", "with scales"), (U + "/scheme", "int8", "not for int8"),
    (Q + "/scheme", "raw", "raw elements of more than 8 bits"), (U + "/dtype", "I16", "raw elements of more than 8"),
    # filters
    *((plane + "/filter", value, "in layout quad") for plane in (PW, PQ, PU) for value in ("left", "up")),
    *((plane + "/filter", "trellis", "unknown filter") for plane in (PQ, PU)), (PW + "/filter", ..., "plane hash"),
    *((PQ + "/filter", value, "unknown filter") for value in ("down", "", 0)),
    # shifts
    *((plane + "/shift", value, "bad shift")
      for plane in (PW, PQ) for value in (5, 8, 16, -1, 2**64, 1.0, "1", None, True, [1])),
    (PW + "/shift", ..., "are missing"), (PU + "/shift", 5, "bad shift"),
    *((PW + "/shift", value, "length of the side plane") for value in (0, 2, 3, 4)),
    *((PU + "/shift", value, "length of the side plane") for value in (0, 1, 2, 3)),
    # tables
    *((plane + "/table", 3, "of another layout") for plane in (PW, PQ, PU)), (PB + "/table", 0, "of another layout"),
    (PP + "/table", 1, "of another layout"), (PL + "/table", 2, "of another layout"),
    (PW + "/table", 5, "of another coder"), (PR + "/table", 0, "of another coder"), (PW + "/table", 9, "no table"),
    *((f"tables/{n}/layout", ..., "of another layout") for n in (0, 1, 2)),
    *(("tables/0/layout", value, "of another layout")
      for value in ("pair", "byte", "split", "Quad", "", 0, True, [], ["quad"], {})),
    *((f"tables/{n}/layout", "quad", "of another layout") for n in (3, 4, 5, 6)),
    *((f"tables/{n}/layout", value, "of another layout")
      for n in (3, 4, 5) for value in ("byte", "pair", "other", "", 0, [])),
    ("tables/0/coder", "rans", "of another coder"), ("tables/0/coder", "other", "of another coder"),
    *((f"tables/{n}/bits", value, "bad bits") for n in (0, 1) for value in (7, 13, 0, -8, 12.0, "12", None, 2**64)),
    *(("tables/0/bits", value, "not those of its symbols") for value in (8, 9, 10, 11)),
    *(("tables/1/bits", value, "not those of its symbols|no bit|bit that none") for value in (9, 11)),
    ("tables/0/data", ..., "gap"),
    # the rest of a plane
    *((PW + f"/{key}", ..., "are missing") for key in ("tile", "table", "chunks", "max_chunk")),
    *((plane + "/side", ..., "gap") for plane in (PW, PQ)), (PW + "/offsets", ..., "gap"),
    (PW + "/tile", 128, "number of chunks"), (PW + "/tile", 96, "bad tile"), (PW + "/chunks", 3, "number of chunks"),
    (PW + "/max_chunk", 4, "wrong max_chunk"), (PW + "/hash", "0" * 16, "plane hash"),
    (PQ + "/hash", ..., "plane hash"), (PW + "/fields", [[0, 8]], "fields in a plane"),
    (PU + "/fields", [[0, 8]], "fields in a plane"),
    (W + "/matrix", [16, 1, 128, 0], "number of chunks"), (Q + "/matrix", ..., "needs a matrix"),
    (U + "/matrix", ..., "needs a matrix"), (U + "/matrix", [1, 16, 128, 1], "does not fit"),
]  # fmt: skip


def _flip(at: int, bits: int = 1) -> Callable[[bytes], bytes]:
    return lambda d: poke(d, at % len(d), bytes([d[at] ^ bits]))


#: Edits of segments of these tensors whose hashes are right afterwards, and why the page's reader refuses.
QUAD_CONTENTS: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("table 0", lambda d: d[:-2], "not those of its symbols"), ("table 1", lambda d: b"", "shorter than its counts"),
    ("table 2", lambda d: d + d, "not those of its symbols"), ("table 1", lambda d: bytes(256), "not those|complete"),
    ("table 0", lambda d: bytes([8]) * 256, "not those of its symbols"),
    ("table 0", lambda d: poke(d, 24, bytes([d[24] | 8])), "a bit that none has"),
    ("table 3", lambda d: table_of(12, {1: [0, 1]}), "wrong length"),
    ("table 5", lambda d: table_of(12, {1: [0, 1]}), "wrong length"),
    ("w/side", lambda d: d[:-4], "length of the side plane"), ("q/side", lambda d: d + d, "length of the side plane"),
    ("u/side", lambda d: b"", "cannot hold|length of the side plane"),
    *((f"{name}/side", _flip(at), "plane hash|an element and its change")
      for name in "wqu" for at in (0, 5, 300, -1)),
    ("w/data", lambda d: poke(d, 0, b"\xff\xff"), "more patches"), ("w/data", _flip(6), "an element and its change"),
    ("w/data", _flip(7), "an element and its change"), ("w/data", _flip(5, 0xFF), "not ascending"),
    ("w/data", lambda d: d[:4] + d[8:12] + d[4:8] + d[12:], "not ascending"),
    ("w/data", lambda d: b"", "cannot hold"), ("w/data", lambda d: d[:-4], "not those of the data"),
    *((f"{name}/data", lambda d: bytes(len(d)), "quad body|huffman body|raw len") for name in "wqu"),
    *((f"{name}/data", lambda d: b"\xff" * len(d), "more patches") for name in "wqu"),
    ("u/data", lambda d: d + bytes(4), "not those of the data"),
    ("w/offsets", lambda d: d[:-4], "number of offsets"),
    ("q/offsets", lambda d: bytes(len(d)), "not those of the data"),
]  # fmt: skip

#: Tensors that could be decoded, in ways that the page forbids: the tensor, edits of the index, and the reason.
QUAD_FORBIDDEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rans": ({"variety": 0}, {"tensors/0/planes/0/coder": "rans", "tables/0/coder": "rans"}, "bad layout"),
    "a table of rans": ({}, {"tables/0/coder": "rans"}, "of another coder"),
    "raw chunks and a byte table": (
        {"raw_chunks": (0, 1)}, {"tensors/0/planes/0/table": 1}, "of another layout",
    ),
    "pairs and a quad table": ({"raw_chunks": (0, 1), "alphabet": 0, "layout": "pair", "shift": 2},
                               {"tensors/0/planes/0/table": 1}, "of another layout"),
    "filter left": ({"raw_chunks": (0, 1)}, {"tensors/0/planes/0/filter": "left"}, "in layout quad"),
    "filter up": ({"raw_chunks": (0, 1)}, {"tensors/0/planes/0/filter": "up"}, "in layout quad"),
}  # fmt: skip
QUAD_FORBIDDEN |= {
    f"{scheme}, {name}": ({"scheme": scheme, "filter": None}, {"tensors/0/planes/0/filter": name}, reason)
    for scheme, name, reason in (
        ("int8", "trellis", "unknown filter"), ("raw", "trellis", "unknown filter"), ("rate", "left", "in layout quad"),
    )
}  # fmt: skip


def forbidden_quad(what: str) -> bytes:
    """A container with one of `QUAD_FORBIDDEN` as tensor `w`, and good ones of a byte table and of one of quads."""
    options, changes, _ = QUAD_FORBIDDEN[what]
    plain: tuple[tuple[int, ...], tuple[int, ...]] = ((16, 128), (1, 16, 128, 0))
    w = quad("w", *plain, **options)
    quads = w.layout == "quad"
    beside = quad("good", *plain, **({"layout": "byte"} if quads else {"shift": 4}))

    def edit(index: dict[str, Any]) -> None:
        for path, value in changes.items():
            changed_index(path, value)(index)

    return write_container(None, [w, beside], edit_index=edit)
