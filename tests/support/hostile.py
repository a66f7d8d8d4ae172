"""Containers that nobody writes by accident: names that steer terminals, absurd shapes, thousands of digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from format_writer import Tensor, hex_hash, reseal, write_container
from lossless_samples import lossless, patterns
from rate_samples import FACTORS, rate

#: Characters that a terminal, or whatever lays out text, obeys instead of showing them, in one name.
STEERING = "a\x1b]0;pwned\x07\x1b[31mRED\x1b[2J\u202e\r\nfake line\x9b2J\u2066\u2028\u061c\x7f\t"
#: The name as it is shown.
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


def poke(data: bytes, at: int, value: bytes) -> bytes:
    """Data with the bytes from `at` on replaced."""
    return data[:at] + value + data[at + len(value) :]


def changed_index(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An `edit_index` that sets what a path like `tensors/0/name` names; value `...` removes it."""

    def edit(index: dict[str, Any]) -> None:
        *parents, last = (int(key) if key.isdigit() else key for key in path.split("/"))
        node: Any = index
        for key in parents:
            node = node[key]
        if value is ...:
            del node[last]
        else:
            node[last] = value

    return edit


def resized(place: int, shape: tuple[int, int]) -> Callable[[dict[str, Any]], None]:
    """An `edit_index` by which the tensor at a place of the index has another shape."""

    def edit(index: dict[str, Any]) -> None:
        index["tensors"][place] |= {"shape": [*shape], "matrix": [1, *shape, 0]}

    return edit


def reindexed(file: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """A container with another index: its hash and the header are right again."""
    begin = int.from_bytes(file[16:24], "little")
    index = json.loads(file[begin:])
    edit(index)
    text = json.dumps(index, ensure_ascii=False).encode()
    return reseal(file[:24] + len(text).to_bytes(8, "little") + file[32:begin] + text)


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


def lossless_tensors() -> list[Tensor]:
    """Tensors that `LOSSLESS_EDITS` and `LOSSLESS_CONTENTS` break: `w` of three kinds of planes, `z` of two zstd
    planes, `b` without fields, `t` transposed; and an int8 tensor and a raw one, which stay."""
    side = [
        {"fields": [(23, 8), (31, 1), (16, 7)], "layout": "split"},
        {"fields": [(8, 8)], "coder": "huffman", "layout": "byte"},
        {"fields": [(0, 8)], "coder": "raw"},
    ]
    zstd = [{"fields": [(low, 8)], "coder": "zstd", "chunk": 1000} for low in (8, 0)]
    q = patterns("F8_E4M3", 16 * 128).view(np.int8) // 2
    ones = np.ones(1, np.float32)
    w = lossless("w", "F32", side, (16, 128), (1, 16, 128, 0))
    w.data.view("<u4")[:] &= 0xFFFF0FFF  # so that huffman makes the second byte smaller
    return [
        w,
        lossless("z", "BF16", zstd, (16, 128), (1, 16, 128, 0)),
        lossless("b", "F8_E4M3", "whole", (16, 128), (1, 16, 128, 0)),
        lossless("t", "F16", "as they are", (128, 16), (1, 16, 128, 1)),
        Tensor("i", q.reshape(1, 16, 128), (16, 128), matrix=(1, 16, 128, 0), scales=ones, per="tensor", tile=64),
        raw("r"),
    ]


P0, P1, P2, Z1, B0, T0, I0, R0 = (f"tensors/{tensor}/planes/{n}" for tensor, n in
                                  ((0, 0), (0, 1), (0, 2), (1, 1), (2, 0), (3, 0), (4, 0), (5, 0)))  # fmt: skip
#: Edits of the index that make one tensor wrong: where, what, and why the page's reader says it is refused.
LOSSLESS_EDITS: list[tuple[str, Any, str]] = [
    # the bits of planes
    (P1 + "/fields", [[16, 8]], "in two planes, or twice"), (P1 + "/fields", [[0, 8]], "in two planes, or twice"),
    (P1 + "/fields", [[8, 4], [8, 4]], "in two planes, or twice"), (P1 + "/fields", [[8, 7]], "have 7 bits, not 8"),
    (P1 + "/fields", [[8, 9]], "in two planes|have 9"), (P1 + "/fields", [[8, 4], [12, 3]], "have 7 bits, not 8"),
    (P1 + "/fields", [], "have 0 bits, not 8"), (P1 + "/fields", ..., "a plane without fields"),
    (P1 + "/fields", None, "a plane without fields"), (P1 + "/fields", {}, "no bits of"),
    (P1 + "/fields", "8", "no bits of"),
    (P1 + "/fields", 8, "no bits of"), (P1 + "/fields", [8, 8], "no bits of"), (P1 + "/fields", [[8]], "no bits of"),
    (P1 + "/fields", [[8, 8, 8]], "no bits of"), (P1 + "/fields", [[8.0, 8]], "no bits of"),
    (P1 + "/fields", [["8", 8]], "no bits of"), (P1 + "/fields", [[None, 8]], "no bits of"),
    (P1 + "/fields", [[-1, 8]], "no bits of"), (P1 + "/fields", [[8, -8]], "no bits of"),
    (P1 + "/fields", [[32, 8]], "no bits of"), (P1 + "/fields", [[25, 8]], "no bits of"),
    (P1 + "/fields", [[2**32 - 8, 8]], "no bits of"), (P1 + "/fields", [[2**64 - 1, 8]], "no bits of"),
    (P1 + "/fields", [[2**63, 2**63]], "no bits of"), (P1 + "/fields", [[8, 2**32 + 8]], "no bits of"),
    (P1 + "/fields", [[10**400, 8]], "no bits of"), (P1 + "/fields", [[8, 0], [8, 8]], "no bits of"),
    (P1 + "/fields", [[8, 1]] * 30, "in two planes, or twice"), (P1 + "/fields", [[[]], {}], "no bits of"),
    (P2 + "/fields", [[0, 16]], "in two planes|have 16"), (P0 + "/fields", [[23, 8], [31, 1]], "have 9 bits, not 16"),
    (P0 + "/fields", [[23, 8]], "have 8 bits, not 16"), (B0 + "/fields", [[0, 7]], "have 7 bits, not 8"),
    (T0 + "/fields", ..., "a plane without fields"), (T0 + "/fields", [[0, 8]], "have 8 bits, not 16"),
    # layout split
    (P0 + "/shift", 16, "have 16 bits, not 24"), (P0 + "/shift", 24, "have 16 bits, not 32"),
    (P0 + "/shift", 0, "bad shift"), (P0 + "/shift", 3, "bad shift"), (P0 + "/shift", 32, "bad shift"),
    (P0 + "/shift", -8, "bad shift"), (P0 + "/shift", 8.0, "bad shift"), (P0 + "/shift", "8", "bad shift"),
    (P0 + "/shift", 2**64, "bad shift"), (P0 + "/shift", 2**32 + 8, "bad shift"), (P0 + "/shift", ..., "bad shift"),
    (P0 + "/layout", "byte", "have 16 bits, not 8"), (P0 + "/layout", "pair", "have 16 bits, not 8"),
    (P1 + "/layout", "pair", "are missing"), (P1 + "/layout", "split", "bad shift"),
    (P1 + "/layout", "quad", "bad layout"), (P0 + "/layout", ..., "have 16 bits, not 8"),
    (P0 + "/side", ..., "gap"), (I0 + "/layout", "split", "bad layout"),
    # what planes share, and what they must not have
    (P1 + "/tile", 128, "differ in their tile"), (P1 + "/tile", ..., "differ in their tile"),
    (P0 + "/tile", 2**64 - 64, "differ in their tile"), (Z1 + "/chunk", 1001, "differ in their chunk"),
    (Z1 + "/chunk", 0, "differ in their chunk"), (P0 + "/filter", "left", "a filter in"),
    (P1 + "/filter", "up", "a filter in"), (Z1 + "/filter", "left", "a filter in"),
    (B0 + "/filter", "left", "a filter in"),
    (P1 + "/filter", "down", "unknown filter"), (P1 + "/coder", "lzma", "unknown coder"),
    (P1 + "/coder", "rans", "another coder"), (P1 + "/table", 0, "another coder"), (P1 + "/table", 2**64, "no table"),
    (P1 + "/hash", "0" * 16, "plane hash"), (P0 + "/hash", ..., "plane hash"), (P0 + "/chunks", 3, "number of chunks"),
    (P0 + "/max_chunk", 2**40, "wrong max_chunk"), ("tensors/0/planes/1", ..., "gap"), ("tensors/0/planes", [], "gap"),
    # the tensor
    ("tensors/0/dtype", "I32", "not for lossless"), ("tensors/0/dtype", "U32", "not for lossless"),
    ("tensors/0/dtype", "F64", "not for lossless"), ("tensors/0/dtype", "F16", "no bits of"),
    ("tensors/2/dtype", "F8_E8M0", "not for lossless"), ("tensors/2/dtype", "U8", "not for lossless"),
    ("tensors/2/dtype", "BF16", "a plane without fields"), ("tensors/1/dtype", "F8_E5M2", "no bits of"),
    ("tensors/0/matrix", ..., "lossless needs a matrix"), ("tensors/0/matrix", None, "lossless needs a matrix"),
    ("tensors/0/matrix", [1, 16, 127, 0], "contradicts shape"), ("tensors/0/matrix", [1, 16, 128, 1], "does not fit"),
    ("tensors/3/matrix", [2, 8, 128, 1], "does not fit"), ("tensors/3/matrix", [1, 128, 16, 1], "does not fit"),
    ("tensors/0/shape", [16, 0], "an empty tensor"), ("tensors/0/scheme", "raw", "not one plane"),
    ("tensors/0/scheme", "int8", "not one plane"), ("tensors/1/scheme", "int8", "not one plane"),
    ("tensors/4/scheme", "lossless", "with scales"),
    ("tensors/5/scheme", "lossless", "needs a matrix"), (I0 + "/fields", [[0, 8]], "fields in a plane"),
    (R0 + "/fields", [[0, 8]], "fields in a plane"), ("tensors/3/scheme", "raw", "does not fit"),
    ("tensors/0/scheme", "lossles", "unknown scheme"),
]  # fmt: skip

#: Edits of segments of lossless tensors whose hashes are right afterwards, and why the page's reader refuses.
LOSSLESS_CONTENTS: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("w/0/side", lambda d: d[:-4], "length of the side plane"),
    ("w/0/side", lambda d: d + d, "length of the side plane"),
    ("w/0/side", lambda d: b"", "cannot hold|length of the side plane"),
    ("w/0/side", lambda d: poke(d, 5, bytes([d[5] ^ 1])), "0: plane hash"),
    ("w/0/side", lambda d: poke(d, len(d) - 1, bytes([d[-1] ^ 1])), "0: plane hash"),
    ("w/0/data", lambda d: poke(d, 0, bytes(4)), "final state"),
    ("w/0/data", lambda d: d[:-4], "not those of the data"),
    ("w/0/data", lambda d: b"", "cannot hold"), ("w/0/data", lambda d: bytes(len(d)), "final state"),
    ("w/0/data", lambda d: b"\xff" * len(d), "final state|left over|missing|not zero"),
    ("w/0/offsets", lambda d: d[:4] + d[8:] + d[-4:], "out of order|max_chunk|too short|raw length|too long"),
    ("w/0/offsets", lambda d: bytes(len(d)), "not those of the data"),
    ("w/0/offsets", lambda d: b"\xff" * len(d), "out of order"), ("w/0/offsets", lambda d: d[:-4], "number of offsets"),
    ("w/1/data", lambda d: poke(d, 2, b"\2"), "neither 0 nor 1"), ("w/1/data", lambda d: bytes(len(d)), "huffman body"),
    ("w/1/data", lambda d: b"\xff" * len(d), "huffman body"), ("w/1/offsets", lambda d: b"", "number of offsets"),
    ("w/2/data", lambda d: d[:-1], "wrong length"), ("w/2/data", lambda d: d + d, "wrong length"),
    ("w/2/data", lambda d: b"", "cannot hold"), ("w/2/data", lambda d: poke(d, 9, bytes([d[9] ^ 1])), "2: plane hash"),
    ("z/1/data", lambda d: poke(d, 0, b"\0"), "z/1: zstd chunk 0"),
    ("z/1/data", lambda d: bytes(len(d)), "z/1: zstd chunk 0"),
    ("z/0/offsets", lambda d: d[8:] + d[:8], "out of order"), ("z/0/offsets", lambda d: d[:-8], "number of offsets"),
    ("b/0/data", lambda d: d[:-4], "not those of the data"), ("b/0/data", lambda d: bytes(len(d)), "final state"),
    ("t/0/side", lambda d: poke(d, 0, bytes([d[0] ^ 1])), "0: plane hash"),
    ("t/0/side", lambda d: d[4:], "length of the side plane"),
]  # fmt: skip

_HIGH, _LOW = {"fields": [(8, 8)], "layout": "byte"}, {"fields": [(0, 8)], "layout": "byte"}
#: Lossless tensors that decode, in ways that the page forbids: planes of an element of 8 or 16 bits, and the reason.
LOSSLESS_FORBIDDEN: dict[str, tuple[list[dict[str, Any]], str]] = {
    "tiles": ([{**_HIGH, "tile": 64}, {**_LOW, "tile": 128}], "differ in their tile"),
    "tiles wider than all": ([{**_HIGH, "tile": 128}, {**_LOW, "tile": 192}], "differ in their tile"),
    "frames": ([{**_HIGH, "coder": "zstd", "chunk": n} for n in (100, 200)], "differ in their chunk"),
    "frames larger than all": ([{**_HIGH, "coder": "zstd", "chunk": n} for n in (5000, 6000)], "differ in their chunk"),
    "tiles and frames": ([{**_HIGH, "coder": "zstd", "chunk": 128}, {**_LOW, "tile": 128}], "tiles and of zstd"),
    "the same bits": ([_HIGH, _HIGH], "in two planes, or twice"),
    "a run without bits": ([{**_HIGH, "fields": [(3, 0), (8, 8)]}], "no bits of the element"),
    "a run without bits at the end": ([{**_HIGH, "fields": [(8, 8), (16, 0)]}], "no bits of the element"),
    "pairs": ([{"layout": "pair"}], "bad layout"),
    "pairs of named bits": ([{**_HIGH, "layout": "pair"}, _LOW], "bad layout"),
}  # fmt: skip
LOSSLESS_FORBIDDEN |= {
    f"{name}, filter {way}, {coder}": ([{**plane, "coder": coder, "filter": way, "chunk": 128}], "a filter")
    for coder in ("rans", "huffman", "zstd")
    for way in ("left", "up")
    for name, plane in (("whole", {"layout": "byte"}), ("high", _HIGH))
}  # fmt: skip


def forbidden_file(what: str) -> bytes:
    """A container with one of `LOSSLESS_FORBIDDEN` as tensor `w`, and a good one."""
    planes, _ = LOSSLESS_FORBIDDEN[what]
    dtype = "BF16" if "fields" in planes[0] else "F8_E4M3"
    w = lossless("w", dtype, planes, (16, 128), (1, 16, 128, 0))
    if planes[0]["layout"] == "pair":
        w.data[:] &= 0x0F  # pairs of shift 0 would need too many patches
    return write_container(None, [w, raw("r")])


def rate_tensors() -> list[Tensor]:
    """Tensors that `RATE_EDITS` and `RATE_CONTENTS` break: `w` and `h` in tiles with a trellis, `t` transposed, `z` of
    zstd, `p` not coded, `u` with filter `up`; an int8 tensor and a lossless one; `c`, whose columns have factors."""
    q = np.random.default_rng(6).normal(0, 9, (1, 16, 128)).astype(np.int8)
    plain: tuple[tuple[int, ...], tuple[int, ...]] = ((16, 128), (1, 16, 128, 0))
    return [
        rate("w", *plain, shift=1, dtype="F32"),
        rate("h", *plain, coder="huffman", layout="byte", sigma=9),
        rate("t", (128, 16), (1, 16, 128, 1), dtype="F16", variety=0),
        rate("z", *plain, coder="zstd", filter="left", chunk=384, sigma=9),
        rate("p", *plain, coder="raw", filter=None, dtype="F32"),
        rate("u", *plain, coder="huffman", filter="up", tile=128),
        Tensor("i", q, *plain[:1], matrix=plain[1], scales=np.ones(16, np.float32), tile=64),
        lossless("l", "BF16", "exponents", *plain),
        rate("c", (2, 16, 128), (2, 16, 128, 0), factors=FACTORS, dtype="F32"),
    ]


W, H, T, Z, P, U, Q, L, C = (f"tensors/{n}" for n in range(9))
#: Edits of the index that make one tensor wrong: where, what, and why the page's reader says it is refused.
RATE_EDITS: list[tuple[str, Any, str]] = [
    # scales
    *((W + "/scales/dtype", value, "scales of dtype")
      for value in ("F32", "F16", "bf16", "BF16 ", "", None, 16, ["BF16"], {}, True, ...)),
    (Z + "/scales/dtype", "F16", "scales of dtype"), (P + "/scales/dtype", ..., "scales of dtype"),
    *((W + "/scales/per", value, "rate with scales per") for value in ("tensor", "block", "rows", None, [], 0, ...)),
    *((W + "/scales/block", value, "a scale block without") for value in (16, 128, 0, None)),
    (W + "/scales", ..., "gap"), (W + "/scales", None, "gap"), (W + "/scales/data", ..., "gap"),
    (W + "/scales", [], "not an object"), (Q + "/scheme", "rate", "scales of dtype None"),
    *((tensor + "/scheme", "columns", "number of scales") for tensor in (W, Z, P)),
    (C + "/scheme", "rate", "number of scales"), (C + "/scheme", "column", "unknown scheme"),
    (C + "/scales/dtype", "F16", "scales of dtype"), (C + "/scales/per", "tensor", "columns with scales per"),
    (C + "/scales", ..., "gap"), (C + "/matrix", ..., "columns needs a matrix"),
    (C + "/dtype", "F64", "not for columns"),
    *((C + "/matrix", matrix, "number of chunks") for matrix in ([4, 8, 128, 0], [2, 8, 256, 0])),
    (C + "/matrix", [1, 32, 128, 0], "number of scales"),
    # filters and layouts
    *((plane + "/planes/0/filter", "trellis", "unknown filter") for plane in (Z, P, Q, L)),
    *((W + "/planes/0/filter", value, "unknown filter") for value in ("Trellis", "trellis4", "down", None, 4, [], "")),
    *((W + "/planes/0/filter", value, "plane hash") for value in ("left", "up", ...)),
    (U + "/planes/0/filter", "trellis", "plane hash"), (P + "/planes/0/filter", "left", "with a filter"),
    (W + "/planes/0/layout", "split", "bad layout"), (W + "/planes/0/layout", "quad", "bad layout"),
    (H + "/planes/0/layout", "split", "are missing"), (H + "/planes/0/layout", "pair", "are missing"),
    (H + "/planes/0/layout", None, "bad layout"), (U + "/planes/0/layout", "split", "bad layout"),
    *((plane + "/planes/0/fields", [[0, 8]], "fields in a plane") for plane in (W, Z, P)),
    (H + "/planes/0/fields", None, "fields in a plane"), (H + "/planes/0/fields", [], "fields in a plane"),
    (W + "/planes/0/shift", 2, "side plane"), (W + "/planes/0/shift", 8, "bad shift"),
    (W + "/planes/0/shift", 4, "bad shift"), (W + "/planes/0/shift", ..., "are missing"),
    (W + "/planes/0/shift", 1.0, "bad shift"), (T + "/planes/0/shift", -1, "bad shift"),
    (W + "/planes/0/tile", 128, "number of chunks"), (W + "/planes/0/tile", 32, "bad tile"),
    (W + "/planes/0/coder", "huffman", "side plane"), (W + "/planes/0/coder", "raw", "unknown filter"),
    (H + "/planes/0/coder", "zstd", "are missing"), (W + "/planes/0/table", 1, "another coder"),
    (Z + "/planes/0/chunk", 385, "number of chunks|not a frame"), (W + "/planes/0/hash", "0" * 16, "plane hash"),
    (W + "/planes/0/chunks", 3, "number of chunks"), (W + "/planes/0/max_chunk", 4, "wrong max_chunk"),
    # the tensor
    *((W + "/dtype", value, "not for rate") for value in ("F64", "I8", "U8", "F8_E4M3", "U16", "I32", "BOOL")),
    (W + "/scheme", "int8", "unknown filter"), (P + "/scheme", "int8", "number of scales"),
    (Z + "/scheme", "int8", "number of scales"), (U + "/scheme", "int8", "number of scales"),
    (W + "/scheme", "lossless", "with scales"), (P + "/scheme", "raw", "raw elements of more than 8 bits"),
    (L + "/scheme", "rate", "fields in a plane"), (W + "/scheme", "Rate", "unknown scheme"),
    (W + "/scheme", "rate2", "unknown scheme"),
    (W + "/matrix", ..., "rate needs a matrix"), (P + "/matrix", None, "rate needs a matrix"),
    (W + "/matrix", [1, 16, 127, 0], "contradicts shape"), (W + "/matrix", [1, 16, 128, 1], "does not fit"),
    (T + "/matrix", [2, 8, 128, 1], "does not fit"), (P + "/matrix", [1, 32, 64, 0], "number of scales"),
    (P + "/matrix", [16, 2, 64, 0], "number of scales"), (W + "/shape", [16, 0], "an empty tensor"),
    (W + "/planes", [], "gap"), (W + "/planes/0/data", ..., "gap"),
]  # fmt: skip

#: Edits of segments of rate tensors whose hashes are right afterwards, and why the page's reader refuses.
RATE_CONTENTS: list[tuple[str, Callable[[bytes], bytes], str]] = [
    *(("w/scales", edit, "number of scales") for edit in (
        lambda d: d[:-2], lambda d: d[:-1], lambda d: d + bytes(2), lambda d: d + d, lambda d: b"", lambda d: d[:2])),
    *(("c/scales", edit, "number of scales") for edit in (
        lambda d: d[:-2], lambda d: d[512:], lambda d: d[:-64], lambda d: d + bytes(2), lambda d: d[256:])),
    ("t/scales", lambda d: d[:-2], "number of scales"), ("z/scales", lambda d: d + d, "number of scales"),
    ("p/scales", lambda d: d + bytes(2), "number of scales"),
    ("w/side", lambda d: d[:-4], "length of the side plane"),
    ("w/side", lambda d: poke(d, 5, bytes([d[5] ^ 1])), "plane hash"),
    ("w/data", lambda d: poke(d, 0, b"\xff\xff"), "more patches"), ("w/data", lambda d: poke(d, 7, b"\1"), "patches: "),
    ("w/data", lambda d: poke(d, 6, bytes([d[6] ^ 1])), "an element and its change"),
    ("w/data", lambda d: b"", "cannot hold"),
    ("w/data", lambda d: poke(d, 6, bytes([d[6] ^ 1, (d[7] + 1 - d[6] % 2 * 2) % 256])), "plane hash"),
    ("w/data", lambda d: d[:-4], "not those of the data"), ("w/offsets", lambda d: d[:-4], "number of offsets"),
    ("h/data", lambda d: poke(d, 2, b"\2"), "neither 0 nor 1"), ("h/data", lambda d: bytes(len(d)), "huffman body"),
    ("h/data", lambda d: b"\xff" * len(d), "huffman body"), ("t/data", lambda d: bytes(len(d)), "final state"),
    ("t/data", lambda d: poke(d, 0, bytes(4)), "final state"), ("t/side", lambda d: d + d, "length of the side plane"),
    ("z/data", lambda d: poke(d, 0, b"\0"), "zstd chunk 0"), ("z/offsets", lambda d: d[8:] + d[:8], "out of order"),
    ("p/data", lambda d: d[:-1], "wrong length"), ("p/data", lambda d: poke(d, 9, bytes([d[9] ^ 1])), "plane hash"),
    ("u/side", lambda d: b"", "length of the side plane"), ("u/data", lambda d: d + bytes(4), "not those of the data"),
]  # fmt: skip

#: Tensors that decode, in ways that the page forbids: what they are, keys of the index's entry, and the reason.
RATE_FORBIDDEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "one scale": ({}, {"scales/per": "tensor"}, "rate with scales per"),
    "blocks of scales": ({}, {"scales/per": "block", "scales/block": 128}, "rate with scales per"),
    "blocks of scales and no length": ({}, {"scales/per": "block"}, "rate with scales per"),
    "float16 scales": ({}, {"scales/dtype": "F16"}, "scales of dtype 'F16'"),
    "float32 scales": ({}, {"scales/dtype": "F32"}, "scales of dtype 'F32'"),
    "float32 scales without a dtype": ({}, {"scales/dtype": ...}, "scales of dtype None"),
    "zstd, trellis": ({"coder": "zstd", "chunk": 128}, {}, "unknown filter"),
    "raw, trellis": ({"coder": "raw"}, {}, "unknown filter"),
    "raw, left": ({"coder": "raw", "filter": "left"}, {}, "with a filter"),
    "a second plane": ({"filter": None}, {"planes/1": None}, "not one plane"),
    "fields of the whole byte": ({}, {"planes/0/fields": [[0, 8]]}, "fields in a plane"),
    "not a float": ({}, {"dtype": "I8"}, "not for rate"),
    "float8": ({}, {"dtype": "F8_E4M3"}, "not for rate"),
    "float64": ({}, {"dtype": "F64"}, "not for rate"),
}
RATE_FORBIDDEN |= {
    f"{scheme}, {coder}, trellis": ({"coder": coder, "scheme": scheme}, {}, "unknown filter")
    for coder in ("rans", "huffman", "zstd")
    for scheme in ("int8", "raw", "lossless")
}


def forbidden_rate(what: str) -> bytes:
    """A container with one of `RATE_FORBIDDEN` as tensor `w`, and a good one."""
    options, changes, _ = RATE_FORBIDDEN[what]
    scheme = options.get("scheme", "rate")
    w = rate(
        "w", (16, 128), (1, 16, 128, 0), **{k: v for k, v in options.items() if k != "scheme"} | {"layout": "byte"}
    )
    w.scheme = scheme
    if scheme == "int8":
        w.scales = np.ones(16, np.float32)
    elif scheme != "rate":
        w.data, w.dtype = w.data.view(np.uint8).reshape(-1), "F8_E4M3"
        w.planes = [{}] if scheme == "lossless" else ()

    def edit(index: dict[str, Any]) -> None:
        entry = index["tensors"][0]
        for path, value in changes.items():
            if path == "planes/1":
                entry["planes"].append({"coder": "raw", "data": [0, 0, hex_hash(b"")], "hash": hex_hash(b"")})
            else:
                changed_index(path, value)(entry)

    def scales(role: str, data: bytes) -> bytes:
        if role != "w/scales":
            return data
        if "scales/dtype" in changes and changes["scales/dtype"] != "F16":
            return np.ones(16, "<f4").tobytes()
        return data[:2] if changes.get("scales/per") == "tensor" else data

    return write_container(None, [w, raw("r")], edit_segment=scales, edit_index=edit)
