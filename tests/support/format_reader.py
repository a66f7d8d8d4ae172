"""A reader of the wcodec container, written from `codec/FORMAT.md` alone.

It shares no code with the Rust reader, so that the two check each other and the page; section numbers are the page's.
Entropy-coded chunks of the same width are decoded in lockstep: NumPy works on arrays [chunks, 32 lanes] and Python
loops only over the steps of a lane. Whatever is wrong with a file, or one tensor of it, is a `FormatReaderError`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

MAGIC = b"\x89WCODEC\n"
HEADER = struct.Struct("<8sHHIQQQQQQ")
LANES = 32
#: safetensors dtype -> NumPy dtype of `values` (types that NumPy lacks are given as their bit patterns)
DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
#: minor version -> scheme -> dtypes
SCHEMES = {0: {"int8": ("F32", "F16", "BF16"), "raw": tuple(DTYPES)}}
SCHEMES[1] = SCHEMES[0] | {
    "lossless": ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    "rate": ("F32", "F16", "BF16"),
}
SCHEMES[2] = SCHEMES[1]
SCHEMES[3] = SCHEMES[2] | {"opaque": ("U8",), "columns": SCHEMES[1]["rate"]}
#: minor version -> coder -> the fewest bits of its tables, and the most
TABLES = {0: {"rans": (11, 12), "huffman": (11, 12)}, 1: {"rans": (11, 12), "huffman": (8, 12)}}
TABLES[2] = TABLES[1]
TABLES[3] = TABLES[2]
#: the keys of a plane that depend on its coder; those of another coder are ignored
CHUNK_KEYS, TILE_KEYS, SIDE_KEYS = {"chunks", "offsets", "max_chunk"}, {"layout", "tile", "table"}, {"shift", "side"}
TILED = ("rans", "huffman")
#: layout -> coded symbols of a lane in a block, and the bytes of one
CODED = {"byte": (32, 1), "split": (32, 1), "pair": (16, 1), "quad": (8, 2)}
#: dtypes of scheme `opaque` of which the bits of an element are known
OPAQUE_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
#: schemes that store bytes as they are
BYTES = ("raw", "opaque")
#: schemes whose plane is of symbols, which scales make values of
SYMBOLS = ("int8", "rate", "columns")
#: those whose levels are at halves
HALVES = ("rate", "columns")

Array = np.ndarray
Json = dict[str, Any]
Segment = tuple[int, int, str]
View = tuple[int, int, int, int]  # count, rows, cols, row_axis
Runs = list[tuple[int, int]]  # lowest bit and width, the first on top


class FormatReaderError(ValueError):
    """The file, or one tensor of it, is not what FORMAT.md allows."""


def require(condition: object, message: str) -> None:
    """Raise `FormatReaderError(message)` unless the condition holds."""
    if not condition:
        raise FormatReaderError(message)


def align(n: int, a: int) -> int:
    """`n` rounded up to a multiple of `a`."""
    return -(-n // a) * a


def is_size(value: Any, low: int = 0, high: int = 2**64 - 1) -> bool:
    """Whether a JSON value is an integer in [low, high] (`True` and `1.0` are none)."""
    return type(value) is int and low <= value <= high


def hex_hash(data: Any) -> str:
    """xxh3 of bytes, as 16 lower-case hexadecimal digits."""
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def as_segment(value: Any) -> Segment:
    """A JSON value as (offset, length, hash)."""
    good = isinstance(value, list) and len(value) == 3 and is_size(value[0]) and is_size(value[1])
    require(good and isinstance(value[2], str) and re.fullmatch("[0-9a-f]{16}", value[2]), f"not a segment: {value!r}")
    return value[0], value[1], value[2]


def find_segments(node: Any) -> Iterator[Segment]:
    """All segments within a JSON value; by their form, so that those under keys of later versions are found too."""
    if isinstance(node, list) and len(node) == 3 and is_size(node[0]) and isinstance(node[2], str):
        yield as_segment(node)
    elif isinstance(node, (list, dict)):
        for child in node.values() if isinstance(node, dict) else node:
            yield from find_segments(child)


def code_lookup(symbols: list[int], lengths: list[int], bits: int) -> tuple[Array, Array]:
    """Symbol and code length for each value of the next `bits` bits of the stream, of canonical codes in this order."""
    require(sum(1 << bits - n for n in lengths) == 1 << bits, "huffman table: the code is not complete")
    symbol, length = np.zeros(1 << bits, np.uint16), np.zeros(1 << bits, np.int64)
    code, last = -1, lengths[0]
    for s, n in zip(symbols, lengths, strict=True):
        code, last = (code + 1) << (n - last), n
        # the stream fills from the least significant bit, so a code's first bit is the lowest bit of the index
        reverse = int(f"{code:0{n}b}"[::-1], 2)
        symbol[reverse :: 1 << n], length[reverse :: 1 << n] = s, n
    return symbol, length


def huffman_lookup(lengths: Array, bits: int) -> tuple[Array, Array]:
    """`code_lookup` of the table of layouts whose symbols are bytes: int64 [256]."""
    require(lengths.max() <= bits, "huffman table: a code is too long")
    used = [int(s) for s in np.argsort(lengths, kind="stable") if lengths[s]]
    symbol, length = code_lookup(used, lengths[used].tolist(), bits)
    return symbol.astype(np.uint8), length


def quad_lookup(numbers: Array, bits: int) -> tuple[Array, Array]:
    """`code_lookup` of the table of layout `quad`, int64: how many codes each length has, and then the symbols."""
    require(numbers.size >= bits, "quad table: shorter than its counts")
    counts, symbols = numbers[:bits], numbers[bits:]
    require(counts.sum() == symbols.size, "quad table: its counts are not those of its symbols")
    lengths = np.repeat(np.arange(1, bits + 1), counts)
    require(not (symbols & ~0x7777).any(), "quad table: a symbol has a bit that none has")
    ascend = np.diff(symbols) > 0
    require((ascend | (np.diff(lengths) > 0)).all(), "quad table: symbols of one length do not ascend")
    require(np.unique(symbols).size == symbols.size, "quad table: a symbol stands twice")
    return code_lookup(symbols.tolist(), lengths.tolist(), bits)


def decode_rans(data: bytes, begin: Array, end: Array, n: int, table: Array, bits: int) -> tuple[Array, Array]:
    """Decode coded `rans` bodies [begin, end) of `data`: uint8 [chunks, 32, n]; and tails, int64 [chunks, 32]."""
    symbol = np.repeat(np.arange(256), table)  # of each slot, like the two that follow
    frequency, rest = table[symbol], np.arange(1 << bits) - (np.cumsum(table) - table)[symbol]
    require((end - begin >= 4 * LANES).all(), "rans body: shorter than its states")
    words = np.frombuffer(data, "<u2").astype(np.int64)
    x = np.frombuffer(data, "<u4")[(begin // 4)[:, None] + np.arange(LANES)].astype(np.int64)
    cursor, stop = begin // 2 + 2 * LANES, (end // 2)[:, None]

    def take(at: Array) -> Array:
        # zeros beyond the end, as from a damaged body
        return np.where(at < stop, words[np.minimum(at, words.size - 1)], 0)

    out = np.empty((n, begin.size, LANES), np.uint8)
    for step in range(n):
        slot = x & ((1 << bits) - 1)
        out[step] = symbol[slot]
        x = frequency[slot] * (x >> bits) + rest[slot]
        need = x < 65536
        rank = np.cumsum(need, axis=1)
        x = np.where(need, x << 16 | take(cursor[:, None] + rank - 1), x)
        cursor = cursor + rank[:, -1]
    p = np.clip(np.frexp(x)[1].astype(np.int64) - 2, 15, 30)  # the highest bit of x is bit p + 1
    require((x >> p == 2).all(), "rans body: a lane does not end in its final state")
    # the bits at which the lanes' parts of r bits begin, and at which the last one ends
    r = 32 - p
    edges = 16 * cursor[:, None] + np.insert(np.cumsum(r, axis=1), 0, 0, axis=1)
    left = 16 * stop - edges[:, -1:]
    require((left >= 0).all(), "rans body: words or bits of the tails are missing")
    require((left < 32).all(), "rans body: words are left over after the tails")
    window = (take(edges >> 4) | take((edges >> 4) + 1) << 16) >> (edges & 15)  # r is at most 17, and so within two u16
    require((window[:, -1] == 0).all(), "rans body: bits after the tails are not zero")
    tail = (window[:, :-1] & ((1 << r) - 1)) << p | x & ((1 << p) - 1)
    return out.transpose(1, 2, 0), tail


def decode_huffman(data: bytes, begin: Array, end: Array, n: int, table: Array, bits: int) -> Array:
    """Decode coded `huffman` bodies, byte ranges [begin, end) of `data`: uint8 [chunks, 32, n]."""
    require((end - begin >= 4 + LANES + 4).all(), "huffman body: shorter than its header and a word")
    octets, pairs = (np.frombuffer(data, f"<u{i}").astype(np.int64) for i in (1, 2))
    least, wide = pairs[begin // 2][:, None], pairs[begin // 2 + 1][:, None]
    require((wide <= 1).all(), "huffman body: wide is neither 0 nor 1")
    first = begin + 4 + LANES * (1 + wide[:, 0])
    require((first < end).all(), "huffman body: shorter than its wide header and a word")
    at = begin[:, None] + 4 + np.arange(LANES) * (1 + wide)
    sizes = least + (octets[at] | octets[at + 1] * wide << 8)
    out, left = decode_streams(data, first, end, sizes, n, huffman_lookup(table, bits))
    require((left == 0).all(), "huffman body: a lane's codes do not take exactly its bits")
    return out


def decode_quads(data: bytes, begin: Array, end: Array, n: int, table: Array, bits: int) -> Array:
    """`decode_huffman` of layout `quad`, whose lanes have two streams and 8 symbols a block: uint16."""
    require((end - begin >= 4 + LANES + 4).all(), "quad body: shorter than its header and a word")
    octets, pairs = (np.frombuffer(data, f"<u{i}").astype(np.int64) for i in (1, 2))
    least, unit = pairs[begin // 2][:, None, None], pairs[begin // 2 + 1][:, None, None]
    require((unit <= 8).all(), "quad body: unit is larger than 8")
    nibbles = octets[begin[:, None, None] + 4 + np.arange(LANES)[:, None]] >> np.array([0, 4]) & 15
    sizes = (least + (nibbles << unit)).reshape(begin.size, 2 * LANES)
    out, left = decode_streams(data, begin + 4 + LANES, end, sizes, n // 2, quad_lookup(table, bits))
    fits = (left >= 0) & (left < 1 << unit[:, 0])
    require(fits.all(), "quad body: a stream's codes take more than its bits, or too few of them")
    # of each block the first 4 symbols are the first stream's
    return out.reshape(begin.size, LANES, 2, n // 8, 4).transpose(0, 1, 3, 2, 4).reshape(begin.size, LANES, n)


def decode_streams(
    data: bytes, begin: Array, end: Array, sizes: Array, n: int, lookup: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Decode the words of bodies, byte ranges [begin, end) of `data`, with streams of `sizes` bits, [chunks, streams].

    Returns the symbols, [chunks, streams, n], and how many bits the codes leave of each stream, below 0 if they pass
    its end.
    """
    (symbol, length), words = lookup, np.frombuffer(data, "<u4").astype(np.int64)
    first, stop, edge = begin // 4, end // 4, 2 + np.cumsum(sizes, axis=1)
    bit, finish = np.insert(edge[:, :-1], 0, 2, axis=1), edge[:, -1]
    require((stop - first == (finish + 31) >> 5).all(), "huffman body: does not end with the last code's word")
    out = np.empty((n, *sizes.shape), symbol.dtype)
    for step in range(n):
        at = first[:, None] + (bit >> 5)
        # the sign bit that the shift may smear is above the at most 12 bits that are kept
        low, high = (np.where(i < stop[:, None], words[np.minimum(i, words.size - 1)], 0) for i in (at, at + 1))
        window = (low | high << 32) >> (bit & 31) & (symbol.size - 1)
        out[step] = symbol[window]
        bit += length[window]
    unused = words[first] & 3 | np.where(finish & 31, words[stop - 1] >> (finish & 31), 0)
    require((unused == 0).all(), "huffman body: bits before or after the codes are not zero")
    return out.transpose(1, 2, 0), edge - bit


def join_pairs(symbols: Array, side: Array, shift: int) -> Array:
    """Bytes of the elements of layout `pair`, uint8 [chunks, 32, blocks, 32].

    `symbols` is uint8 [chunks, 32, blocks, 16], `side` the side words, uint32 [chunks, blocks, shift + 1, 32].
    """

    def unpack(word: Array, turn: Array, mask: int) -> Array:
        # rotl undoes the rotr of the page; uint64 because a shift by 32 of a uint32 is undefined
        wide, by = side[:, :, word].astype(np.uint64), turn[:, None].astype(np.uint64)
        return (wide << by | wide >> (32 - by)) & mask

    k = np.arange(8)
    if shift == 3:
        packed = unpack(k // 2, k % 2 * 4, 0x87878787)
    elif shift == 1:
        packed = unpack(k // 4, k % 4 * 2, 0x81818181)
    else:
        packed = unpack(0 * k, k, 0x80808080)
    if shift == 2:
        packed |= unpack(1 + k // 4, k % 4 * 2, 0x03030303)
    low = np.ascontiguousarray(packed.transpose(0, 3, 1, 2).astype("<u4")).view(np.uint8)  # [chunks, 32, blocks, 32]
    high = np.stack([symbols & 15, symbols >> 4], axis=-1).reshape(low.shape)
    v = high << shift | low & ((1 << shift) - 1)
    return np.where(low & 0x80, ~v, v)


def quad_places(shift: int, k: int) -> list[tuple[int, int, int]]:
    """Places of the bits of A_k: side word, which bits of each byte of A_k, and by how much they stand further left."""
    four, two, i = k // 4, k // 2, k % 4
    if shift == 3:
        return [(two, 0x80, -4 * (k % 2)), (two, 0x0E, 3 - 4 * (k % 2))]
    if shift == 1:
        return [(four, 0x88, -i)]
    sign, low = (0, 0x80, -k), {0: (), 2: ((1 + four, 0x0C, 2 * i - 2),), 4: ((1 + two, 0x0F, 4 * (k % 2)),)}
    return [sign, *low[shift]]


def join_quads(symbols: Array, side: Array, shift: int) -> Array:
    """`join_pairs` of layout `quad`, whose symbols are uint16 [chunks, 32, blocks, 8].

    `side` is the side words as they are stored, uint32 [chunks, blocks, (shift + 1) * 32].
    """
    words, n, at = [], shift + 1, 0
    for size in (4, 2, 1):
        if n & size:
            group = side[:, :, at : at + size * LANES].reshape(*side.shape[:2], LANES, size)
            words += [group[..., j] for j in range(size)]
            at += size * LANES
    packed = np.zeros((*side.shape[:2], LANES, 8), "<u4")
    for k in range(8):
        for word, mask, left in quad_places(shift, k):
            turned = words[word] >> left if left >= 0 else words[word] << -left
            packed[..., k] |= turned & np.uint32(mask * 0x01010101)
    octets = packed.view(np.uint8).transpose(0, 2, 1, 3)  # [chunks, 32, blocks, 32]
    high = (symbols[..., None] >> np.arange(0, 16, 4, dtype=np.uint16) & 7).astype(np.uint8).reshape(octets.shape)
    v = high << shift | (octets & 15) >> (4 - shift)
    return np.where(octets & 0x80, ~v, v)


def join_rests(symbols: Array, side: Array) -> Array:
    """Elements of layout `split` as little-endian bytes, uint8 [chunks, 32, blocks, 32, 1 + R].

    `symbols` is uint8 [chunks, 32, blocks, 32], `side` the side words, uint32 [chunks, blocks, 8 * R, 32].
    """
    chunks, nb, words, _ = side.shape
    octets = np.ascontiguousarray(side.astype("<u4")).view(np.uint8).reshape(chunks, nb, words // 8, 8, LANES, 4)
    # the side plane has the most significant byte of a rest first
    rests = octets[:, :, ::-1].transpose(0, 4, 1, 3, 5, 2).reshape(*symbols.shape, words // 8)
    return np.concatenate([rests, symbols[..., None]], axis=-1)


def undo_trellis(rows: Array) -> Array:
    """Section 4's `trellis` on uint8 [..., columns], by the parity of what is before a column."""
    q = np.zeros_like(rows)
    for first in (0, 1):
        # Q(j) is of the columns j - 1, j - 3 and so on, so the odd columns' is of the even ones
        later = q[..., first + 1 :: 2]
        later[...] = np.bitwise_xor.accumulate(rows[..., first::2] & 1, axis=-1)[..., : later.shape[-1]]
    return rows & 0x80 | rows << 1 & 0x7E | q


def undo_filter(rows: Array, name: str | None) -> Array:
    """Undo a filter on uint8 [..., rows, columns] whose first row and column have nothing before them."""
    if name == "trellis":
        return undo_trellis(rows)
    return rows if name is None else np.cumsum(rows, axis=-1 if name == "left" else -2, dtype=np.uint8)


class FormatReader:
    """One container. Header, index and the segments' places are checked when it is opened; hashes and contents of a
    tensor's segments whenever that tensor is read, so that damage to one tensor leaves the others readable.

    With `minor` 0 it is a reader of version 1.0, which knows nothing of what the page marks 1.1 and 1.2, and so on.
    """

    def __init__(self, path_or_bytes: str | Path | bytes, *, minor: int = 3) -> None:
        self._schemes, self._table_bits, self._quads = SCHEMES[minor], TABLES[minor], minor >= 2
        self._file = path_or_bytes if isinstance(path_or_bytes, bytes) else Path(path_or_bytes).read_bytes()
        index_offset = self._read_header()
        self.index = self._read_index(self._file[index_offset:])
        self._check_places(index_offset)

    def _read_header(self) -> int:
        """Check the header, in the page's order; returns the offset of the index, which ends the file."""
        file = self._file
        require(len(file) >= 64, "not a wcodec file: shorter than a header")
        require(any(file[:64]), "the write of this file was interrupted: its header is zeros")
        magic, major, _, zero, offset, length, index_hash, file_length, zero2, own = HEADER.unpack(file[:64])
        require(magic == MAGIC, "not a wcodec file: wrong magic")
        require(own == xxhash.xxh3_64_intdigest(file[:56]), "header: hash does not match")
        require(major == 1, "written by a newer wcodec" if major > 1 else "header: unknown major version")
        require(zero == zero2 == 0, "header: a reserved field is not zero")
        require(file_length == len(file), "header: the file is shorter or longer than written")
        require(offset % 16 == 0 and offset >= 64 and offset + length == file_length, "header: index out of place")
        require(index_hash == xxhash.xxh3_64_intdigest(file[offset:]), "index: hash does not match")
        return offset

    def _read_index(self, text: bytes) -> Json:
        """Parse the index and check what concerns the whole file."""
        try:
            index = json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FormatReaderError(f"index: not JSON in UTF-8: {error}") from error
        require(isinstance(index, dict) and index.get("format") == "wcodec", "index: not of format wcodec")
        for key, kind in {"features": list, "metadata": dict, "tables": list, "tensors": list, "aliases": dict}.items():
            require(isinstance(index.setdefault(key, kind()), kind), f"index: {key} is not a {kind.__name__}")
        require(all(isinstance(t, dict) for t in index["tables"]), "index: a table is not an object")
        require(not index["features"], f"needs features that this reader does not know: {index['features']}")
        require(all(isinstance(v, str) for v in index["metadata"].values()), "index: metadata are not strings")
        self._tensors: dict[str, Json] = {}
        for entry in index["tensors"]:
            name = entry.get("name") if isinstance(entry, dict) else None
            require(isinstance(name, str) and name, "index: a tensor without a name")
            planes = entry.get("planes")
            parts = [entry.get("scales"), entry.get("quality"), *(planes if isinstance(planes, list) else [])]
            parts = [p for p in parts if p is not None]
            require(all(isinstance(p, dict) for p in parts), f"index: a part of {name} is not an object")
            require(name not in self._tensors, f"index: two tensors named {name}")
            self._tensors[name] = entry
        for alias, target in index["aliases"].items():
            require(alias not in self._tensors, f"index: {alias} is a tensor and an alias")
            require(isinstance(target, str) and target in self._tensors, f"index: alias {alias} leads to no tensor")
        return index

    def _check_places(self, index_offset: int) -> None:
        """Check that segments and their padding fill the file between header and index."""
        end = 64
        for offset, length, _ in sorted(find_segments([self.index["tables"], self.index["tensors"]])):
            if length == 0:
                require(offset == 0, "segment of length 0 with an offset")
                continue
            place = align(end, 4096 if length >= 1 << 20 else 16)
            require(offset == place, f"segment at {offset}: expected at {place} (overlap, gap or wrong alignment)")
            require(offset + length <= index_offset, f"segment at {offset}: passes the index")
            require(not any(self._file[end:offset]), f"padding before {offset} is not zero")
            end = offset + length
        require(index_offset == align(end, 16), "index: a gap or an overlap before it")
        require(not any(self._file[end:index_offset]), "padding before the index is not zero")

    def _segment(self, value: Any, what: str) -> bytes:
        """Stored bytes of a segment, its hash checked."""
        offset, length, stored_hash = as_segment(value)
        data = self._file[offset : offset + length]
        require(hex_hash(data) == stored_hash, f"{what}: hash does not match")
        return data

    def names(self) -> list[str]:
        """Names of all tensors in the order of the source, then of the aliases."""
        return [*self._tensors, *self.index["aliases"]]

    def entry(self, name: str) -> Json:
        """The index entry of a tensor; for an alias, of the tensor that holds its data."""
        name = self.index["aliases"].get(name, name)
        require(name in self._tensors, f"no tensor named {name}")
        return self._tensors[name]

    def _checked(self, name: str) -> tuple[Json, tuple[int, ...], View | None]:
        """Entry, shape and matrix view of a tensor, checked against each other."""
        entry = self.entry(name)
        shape, matrix, dtype, scheme = (entry.get(key) for key in ("shape", "matrix", "dtype", "scheme"))
        require(isinstance(shape, list) and all(map(is_size, shape)), f"{name}: shape is not a list of sizes")
        require((elements := math.prod(shape)) < 2**61, f"{name}: more bytes than 64 bits count")
        require(isinstance(scheme, str) and scheme in self._schemes, f"{name}: unknown scheme {scheme!r}")
        known = isinstance(dtype, str) and dtype in self._schemes[scheme]
        require(known, f"{name}: dtype {dtype!r} is unknown or not for {scheme}")
        require(elements or scheme in BYTES, f"{name}: an empty tensor is raw")
        if scheme == "opaque":
            self._check_source(name, entry, shape)
        planes = entry.get("planes")
        require(isinstance(planes, list) and planes and all(isinstance(p, dict) for p in planes), f"{name}: no planes")
        require(len(planes) == 1 or scheme == "lossless", f"{name}: not one plane")
        if matrix is None:
            require(scheme in BYTES, f"{name}: {scheme} needs a matrix")
            return entry, tuple(shape), None
        good = isinstance(matrix, list) and len(matrix) == 4 and all(map(is_size, matrix)) and matrix[3] < 2
        require(good, f"{name}: bad matrix {matrix!r}")
        count, rows, cols, axis = matrix
        require(math.prod(max(n, 1) for n in matrix[:3]) < 2**63, f"{name}: matrix {matrix} is too large")
        require(count * rows * cols == elements, f"{name}: matrix {matrix} contradicts shape {shape}")
        fits = axis == 0 or (scheme not in BYTES and count == 1 and shape == [cols, rows])
        require(fits, f"{name}: row_axis 1 does not fit scheme {scheme} and shape {shape}")
        narrow = scheme not in BYTES or np.dtype(DTYPES[dtype]).itemsize == 1
        require(narrow, f"{name}: a matrix of raw elements of more than 8 bits")
        return entry, tuple(shape), (count, rows, cols, axis)

    def _check_source(self, name: str, entry: Json, shape: list[int]) -> None:
        """Checks what is said of the source of a tensor of scheme `opaque` against its bytes."""
        require(len(shape) == 1, f"{name}: opaque is a list of bytes")
        said = entry.get("source")
        require(isinstance(said, dict), f"{name}: opaque without source")
        dtype, dimensions = said.get("dtype"), said.get("shape")
        require(isinstance(dtype, str) and dtype and dtype not in DTYPES, f"{name}: source dtype {dtype!r}")
        require(isinstance(dimensions, list) and all(map(is_size, dimensions)), f"{name}: source shape {dimensions!r}")
        bits = OPAQUE_BITS.get(dtype)
        require(bits is None or math.prod(dimensions) * bits == 8 * shape[0], f"{name}: source of another size")

    def source(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape of a tensor as its source has them."""
        entry, shape, _ = self._checked(name)
        said = entry["source"] if entry["scheme"] == "opaque" else {"dtype": entry["dtype"], "shape": shape}
        return said["dtype"], tuple(said["shape"])

    def symbols(self, name: str) -> Array:
        """Decoded plane of a tensor.

        Schemes `int8`, `rate` and `columns`: int8 [count, rows, cols], the matrices (so transposed where row_axis is
        1). Scheme `raw`: the tensor's bytes, uint8 [bytes].
        """
        entry, shape, view = self._checked(name)
        require(entry["scheme"] != "lossless", f"{name}: has planes of bits, no symbols")
        plane, scheme = entry["planes"][0], entry["scheme"]
        width = 1 if scheme in SYMBOLS else np.dtype(DTYPES[entry["dtype"]]).itemsize
        out = self._decode_plane(name, plane, view, math.prod(shape) * width, width, scheme)
        require(hex_hash(out.tobytes()) == plane.get("hash"), f"{name}: plane hash does not match")
        return out.view(np.int8).reshape(view[:3]) if scheme in SYMBOLS and view else out

    def fields(self, name: str) -> list[Runs]:
        """The bits of an element that each plane of a lossless tensor holds, with all that section 2 says of them."""
        entry, _, _ = self._checked(name)
        require(entry["scheme"] == "lossless", f"{name}: has no planes of bits")
        require("scales" not in entry, f"{name}: a lossless tensor with scales")
        planes, width = entry["planes"], 8 * np.dtype(DTYPES[entry["dtype"]]).itemsize
        tiles = {json.dumps(plane.get("tile")) for plane in planes if plane.get("coder") in TILED}
        frames = {json.dumps(plane.get("chunk")) for plane in planes if plane.get("coder") == "zstd"}
        require(len(tiles) <= 1, f"{name}: planes differ in their tile")
        require(len(frames) <= 1, f"{name}: planes differ in their chunk")
        require(not tiles or not frames, f"{name}: planes of tiles and of zstd")
        found, used = [], 0
        for plane in planes:
            runs = plane.get("fields")
            if runs is None:
                require("fields" not in plane and len(planes) == 1 and width == 8, f"{name}: a plane without fields")
                runs = [[0, 8]]
            good = isinstance(runs, list) and all(isinstance(run, list) and len(run) == 2 for run in runs)
            good = good and all(is_size(low) and is_size(bits, 1) and low + bits <= width for low, bits in runs)
            require(good, f"{name}: fields {runs!r} are no bits of the element")
            for low, bits in runs:
                mask = (1 << bits) - 1 << low
                require(not used & mask, f"{name}: a bit is in two planes, or twice in one")
                used |= mask
            split = plane.get("coder") in TILED and plane.get("layout") == "split"
            rest = plane.get("shift") if split else 0
            require(not split or (is_size(rest, 8, 24) and rest % 8 == 0), f"{name}: bad shift {rest!r} for split")
            total = sum(bits for _, bits in runs)
            require(total == 8 + rest, f"{name}: fields {runs!r} have {total} bits, not {8 + rest}")
            found.append([(low, bits) for low, bits in runs])
        return found

    def planes(self, name: str) -> list[Array]:
        """Decoded planes of a lossless tensor: uint8 [elements, bytes] in the order of the matrix view."""
        entry, shape, view = self._checked(name)
        out = []
        for number, (plane, runs) in enumerate(zip(entry["planes"], self.fields(name), strict=True)):
            octets = sum(bits for _, bits in runs) // 8
            plain = self._decode_plane(f"{name}/{number}", plane, view, math.prod(shape) * octets, 1, "lossless")
            require(hex_hash(plain.tobytes()) == plane.get("hash"), f"{name}/{number}: plane hash does not match")
            out.append(plain.reshape(-1, octets))
        return out

    def _join(self, name: str) -> Array:
        """Elements of a lossless tensor in its own order, as unsigned integers; bits that no plane has are 0."""
        entry, shape, view = self._checked(name)
        assert view
        planes = self.planes(name)  # before anything is allocated: they say whether there is data for so many elements
        out = np.zeros(math.prod(shape), np.uint64)
        for plane, runs in zip(planes, self.fields(name), strict=True):
            value = np.zeros(out.size, np.uint64)
            for byte in range(plane.shape[1]):
                value |= plane[:, byte].astype(np.uint64) << np.uint64(8 * byte)
            above = 8 * plane.shape[1]
            for low, bits in runs:
                above -= bits  # where the run is in the plane's own elements
                out |= (value >> np.uint64(above) & np.uint64((1 << bits) - 1)) << np.uint64(low)
        if view[3] == 1:
            out = out.reshape(view[1], view[2]).T.reshape(-1)
        return out.astype(f"<u{np.dtype(DTYPES[entry['dtype']]).itemsize}")

    def scales(self, name: str) -> Array:
        """Scales, float32: `row` [count, rows]; int8 tensors also `tensor` [1], `block` [count, rows, blocks]."""
        return self._scales(name)[1]

    def factors(self, name: str) -> Array:
        """Factors of columns, float32 [count, cols]; [count, 0] where there are none."""
        return self._scales(name)[0]

    def _scales(self, name: str) -> tuple[Array, Array]:
        """Factors of columns, and scales."""
        entry, _, view = self._checked(name)
        has = view and entry["scheme"] in SYMBOLS and isinstance(entry.get("scales"), dict)
        require(has, f"{name}: has no scales")
        scales, rate = entry["scales"], entry["scheme"] in HALVES
        # version 1.0 knows no dtype of scales, so that those of int8 are float32 whatever is under that key
        require(not rate or scales.get("dtype") == "BF16", f"{name}: scales of dtype {scales.get('dtype')!r}")
        require(
            not rate or scales.get("per") == "row", f"{name}: {entry['scheme']} with scales per {scales.get('per')!r}"
        )
        per, block = scales.get("per"), scales.get("block")
        require(per in ("row", "tensor", "block"), f"{name}: scales per {per!r}")
        require(("block" in scales) == (per == "block"), f"{name}: a scale block without blocks, or none with them")
        require(per != "block" or (is_size(block, 16) and block % 16 == 0), f"{name}: bad scale block {block!r}")
        shape = (1,) if per == "tensor" else view[:2] + ((-(-view[2] // block),) if per == "block" else ())
        data = self._segment(scales.get("data"), f"{name}: scales")
        cols = view[2] if entry["scheme"] == "columns" else 0
        first = view[0] * cols
        number = first + math.prod(shape)
        require(len(data) == (2 if rate else 4) * number, f"{name}: number of scales contradicts the shape")
        if rate:
            numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            numbers = np.frombuffer(data, "<f4")
        return numbers[:first].reshape(view[0], cols), numbers[first:].reshape(shape)

    def values(self, name: str) -> Array:
        """The tensor in its shape and dtype; bfloat16 and the 8-bit floats as unsigned bit patterns."""
        entry, shape, view = self._checked(name)
        dtype = entry["dtype"]
        if entry["scheme"] in BYTES:
            return self.symbols(name).view(DTYPES[dtype]).reshape(shape)
        if entry["scheme"] == "lossless":
            return self._join(name).view(DTYPES[dtype]).reshape(shape)
        symbols, scales = self.symbols(name), self.scales(name)
        if entry["scales"]["per"] == "block":
            scales = scales[:, :, np.arange(view[2]) // min(entry["scales"]["block"], view[2])]
        elif entry["scales"]["per"] == "row":
            scales = scales[:, :, None]
        with np.errstate(over="ignore", invalid="ignore"):
            out = (symbols.astype(np.float32) + np.float32(0.5 if entry["scheme"] in HALVES else 0)) * scales
            if entry["scheme"] == "columns":
                out = out * self.factors(name)[:, None, :]
            out = (out[0].T if view[3] == 1 else out).reshape(shape)
            return to_bfloat16(out) if dtype == "BF16" else out.astype(DTYPES[dtype])

    def raw_bytes(self, name: str) -> bytes:
        """The tensor as a safetensors file stores it: little-endian, row-major, in its dtype."""
        return self.values(name).tobytes()

    def _decode_plane(self, name: str, plane: Json, view: View | None, size: int, width: int, scheme: str) -> Array:
        """Decode a plane of `size` bytes, elements of `width` bytes: uint8 [size], tiled coders in matrix order."""
        coder, layout, filter_name = plane.get("coder"), plane.get("layout"), plane.get("filter")
        lossless, trellis = scheme == "lossless", scheme in HALVES and coder in TILED
        require(coder in ("raw", "zstd", *TILED), f"{name}: unknown coder {coder!r}")
        require(lossless or "fields" not in plane, f"{name}: fields in a plane that is not of a lossless tensor")
        quad = layout == "quad" and coder == "huffman" and not lossless and self._quads
        expected = set() if coder == "raw" else CHUNK_KEYS | (TILE_KEYS if coder in TILED else {"chunk"})
        expected = expected | (SIDE_KEYS if quad or (coder in TILED and layout in ("pair", "split")) else set())
        require(expected <= plane.keys(), f"{name}: plane keys {sorted(expected - plane.keys())} are missing")
        filters = ("left", "up", "trellis") if trellis else ("left", "up")
        require("filter" not in plane or filter_name in filters, f"{name}: unknown filter {filter_name!r}")
        require(not lossless or filter_name is None, f"{name}: a filter in a lossless tensor")
        layouts = ("byte", "split") if lossless else ("byte", "pair")
        require(coder not in TILED or quad or layout in layouts, f"{name}: bad layout {layout!r}")
        require(not quad or filter_name in (None, "trellis"), f"{name}: filter {filter_name!r} in layout quad")
        data = self._segment(plane.get("data"), f"{name}: data")
        require(size <= 131072 * len(data), f"{name}: {len(data)} bytes cannot hold {size}")
        if coder == "raw":
            require(filter_name is None and len(data) == size, f"{name}: raw data with a filter or of a wrong length")
            return np.frombuffer(data, np.uint8)
        require(size, f"{name}: an empty tensor has coder raw")
        if coder == "zstd":
            return self._decode_zstd(name, plane, view, data, size, width)
        require(view and width == 1, f"{name}: coder {coder} needs a matrix of bytes")
        return self._decode_tiles(name, plane, view, data, changes=scheme in HALVES or quad)

    def _chunks(self, name: str, plane: Json, data: bytes, chunks: int) -> tuple[Array, Array]:
        """Begin and end of each chunk in `data`, in bytes, int64 [chunks]; `chunks` follows from the shape."""
        require(is_size(plane["chunks"], chunks, chunks), f"{name}: number of chunks contradicts the shape")
        zstd, stored = plane["coder"] == "zstd", self._segment(plane["offsets"], f"{name}: offsets")
        require(len(stored) == (8 * chunks if zstd else 4 * chunks + 4), f"{name}: wrong number of offsets")
        offsets = np.frombuffer(stored, "<u4").astype(np.int64)
        begin = 8 * offsets[::2] if zstd else 4 * offsets[:-1]
        end = begin + offsets[1::2] if zstd else 4 * offsets[1:]
        ordered = (begin <= end).all() and (end[:-1] <= begin[1:]).all() and (zstd or begin[0] == 0)
        require(ordered and end[-1] == len(data), f"{name}: chunk offsets out of order, or not those of the data")
        longest = int((end - begin).max())
        require(is_size(plane["max_chunk"], longest, longest), f"{name}: wrong max_chunk")
        return begin, end

    def _decode_zstd(self, name: str, plane: Json, view: View | None, data: bytes, size: int, width: int) -> Array:
        """Section 8, and section 4 for zstd: uint8 [size]."""
        chunk, filter_name, cols = plane["chunk"], plane.get("filter"), view[2] if view else 1
        require(is_size(chunk, 1, 1 << 24), f"{name}: bad zstd chunk {chunk!r}")
        require(filter_name is None or (view and width == 1), f"{name}: a filter needs a matrix of bytes")
        require(filter_name != "up" or chunk % cols == 0, f"{name}: filter up with chunks of parts of rows")
        places = np.stack(self._chunks(name, plane, data, -(-size // chunk)), axis=1).tolist()
        last, parts = 0, []
        for number, (begin, end) in enumerate(places):
            what = f"{name}: zstd chunk {number}"
            require(not any(data[last:begin]), f"{what}: bytes before it are not zero")
            part = np.frombuffer(unpack_frame(data[begin:end], min(chunk, size - number * chunk), what), np.uint8)
            if filter_name == "up":
                part = undo_filter(part.reshape(-1, cols), "up").reshape(-1)
            elif filter_name == "left":
                total, place = undo_filter(part, "left"), np.arange(part.size)
                # rows may begin anywhere in a chunk: take away the sum of what is before the row's first byte
                row_start = np.maximum(place - (place + number * chunk) % cols, 0)
                part = total - np.where(row_start > 0, total[row_start - 1], 0).astype(np.uint8)
            last = end
            parts.append(part)
        return np.concatenate(parts)

    def _decode_tiles(self, name: str, plane: Json, view: View, data: bytes, *, changes: bool) -> Array:
        """Sections 3 to 7: the bytes of all matrices, row-major, uint8 [count * rows * cols].

        `changes`: patches say by how much they exceed what they replace.
        """
        count, rows, cols, _ = view
        tile, layout, shift = plane["tile"], plane["layout"], plane.get("shift")
        require(is_size(tile, 64, 1024) and tile % 64 == 0, f"{name}: bad tile {tile!r}")
        require(layout != "pair" or is_size(shift, 0, 3), f"{name}: bad shift {shift!r}")
        require(layout != "quad" or is_size(shift, 0, 4), f"{name}: bad shift {shift!r}")
        strips, padded_cols, tiles = -(-rows // 16), align(cols, 64), -(-align(cols, 64) // tile)
        chunks = count * strips * tiles
        begin, end = self._chunks(name, plane, data, chunks)
        sizes, last = end - begin, np.arange(chunks) % tiles == tiles - 1
        widths = np.where(last, padded_cols - (tiles - 1) * tile, tile)
        # checked here because the output is allocated before bodies are looked at. No body of rans is shorter than 32
        # states and 2 bits of each tail, none of huffman than a header, 2 bits, and 16 codes of 1 bit in each lane, or
        # in layout quad 8
        shortest = 136 if plane["coder"] == "rans" else 72 if layout == "quad" else 104
        longest = 16 * widths + (128 if layout == "split" and plane["coder"] == "rans" else 0)
        require(((sizes >= shortest) & (sizes <= longest)).all(), f"{name}: a chunk is too short or too long")
        side: list[Array] = []
        if layout != "byte":
            stored = np.frombuffer(self._segment(plane["side"], f"{name}: side"), np.uint8)
            lengths = 128 * (widths // 64) * side_words(plane) - (128 if plane["coder"] == "rans" else 0)
            require(stored.size == lengths.sum(), f"{name}: length of the side plane contradicts the shape")
            side = np.split(stored, np.cumsum(lengths)[:-1])
        octets = 1 + shift // 8 if layout == "split" else 1
        out = np.zeros((count * strips, 16, padded_cols, octets), np.uint8)
        for w in np.unique(widths).tolist():
            ids = np.flatnonzero(widths == w)
            part = np.stack([side[i] for i in ids]) if side else None
            decoded = self._decode_group(plane, data, begin[ids], end[ids], w, part, changes=changes)
            for i, rectangle in zip(ids.tolist(), decoded, strict=True):
                out[i // tiles, :, i % tiles * tile :][:, :w] = rectangle
        return out.reshape(count, strips * 16, padded_cols, octets)[:, :rows, :cols].reshape(-1)

    def _decode_group(
        self, plane: Json, data: bytes, begin: Array, end: Array, w: int, side: Array | None, *, changes: bool
    ) -> Array:
        """Decode chunks of one width: byte ranges [begin, end) of `data`, side uint8 [chunks, bytes] where it has one.

        `changes`: patches say by how much they exceed what they replace.
        Returns the elements of the tiles as bytes, with the filter undone, uint8 [chunks, 16, w, bytes].
        """
        rans, layout, shift = plane["coder"] == "rans", plane["layout"], plane.get("shift")
        nb, chunks = w // 64, begin.size
        per_block, octets = CODED[layout]
        patches: list[Array] = []
        if layout == "quad" or (layout == "pair" and shift < 3):
            patches = [
                read_patches(data[b:e], 16 * w, changes) for b, e in zip(begin.tolist(), end.tolist(), strict=True)
            ]
            begin = begin + np.array([4 + 4 * len(p) for p in patches])
        raw_length = LANES * nb * per_block * octets + (128 if rans and layout != "byte" else 0)
        require((end - begin <= raw_length).all(), "a body is longer than its raw length")
        raw, coded = np.flatnonzero(end - begin == raw_length), np.flatnonzero(end - begin < raw_length)
        symbols = np.empty((chunks, LANES, nb * per_block), f"<u{octets}")
        tail = np.zeros((chunks, LANES), np.int64)
        bits, table = self._table(plane)
        if coded.size and not rans:
            decode = decode_quads if layout == "quad" else decode_huffman
            symbols[coded] = decode(data, begin[coded], end[coded], nb * per_block, table, bits)
        elif coded.size:
            n = nb * per_block - (4 if layout == "byte" else 0)
            symbols[coded, :, :n], tail[coded] = decode_rans(data, begin[coded], end[coded], n, table, bits)
            if layout == "byte":
                symbols[coded, :, n:] = tail[coded].astype("<u4").view(np.uint8).reshape(-1, LANES, 4)
        for i in raw.tolist():
            body = np.frombuffer(data, np.uint8)[begin[i] : end[i]]
            stored = body[: symbols[i].nbytes].view(symbols.dtype).reshape(nb, 2, LANES, per_block // 2)
            symbols[i] = stored.transpose(2, 0, 1, 3).reshape(LANES, -1)
            tail[i] = body[stored.nbytes :].view("<u4") if body.size > stored.nbytes else 0
        elements = symbols.reshape(chunks, LANES, nb, per_block)
        if side is not None:
            if rans:
                # the tails are the last words, which the side plane leaves out
                side = np.concatenate([side, tail.astype("<u4").view(np.uint8)], axis=1)
            words = np.ascontiguousarray(side).view("<u4").reshape(chunks, nb, side_words(plane), LANES)
            if layout == "quad":
                elements = join_quads(elements, words.reshape(chunks, nb, -1), shift)
            else:
                elements = join_pairs(elements, words, shift) if layout == "pair" else join_rests(elements, words)
        # patches count elements in decoding order: block, lane, element
        elements = np.ascontiguousarray(elements.reshape(chunks, LANES, nb, 32, -1).transpose(0, 2, 1, 3, 4))
        for flat, patch in zip(elements.reshape(chunks, -1), patches, strict=False):
            sums = flat[patch["position"]].view(np.int8).astype(int) + patch["change"].view(np.int8)
            good = not changes or (sums == patch["value"].view(np.int8)).all()
            require(good, "patches: an element and its change do not give the value")
            flat[patch["position"]] = patch["value"]
        # lane 4g + t has rows g and g + 8 and columns 16t to 16t + 15 of each block
        grid = elements.reshape(chunks, nb, 8, 4, 2, 16, -1).transpose(0, 4, 2, 1, 3, 5, 6).reshape(chunks, 16, w, -1)
        return undo_filter(grid[..., 0], plane["filter"])[..., None] if "filter" in plane else grid

    def _table(self, plane: Json) -> tuple[int, Array]:
        """Bits of the plane's table and its numbers, int64: 256 frequencies or code lengths; of layout quad all."""
        tables, number = self.index["tables"], plane["table"]
        require(is_size(number, 0, len(tables) - 1) and isinstance(tables[number], dict), f"no table {number!r}")
        table = tables[number]
        good = table.get("coder") == plane["coder"] and is_size(table.get("bits"), *self._table_bits[plane["coder"]])
        require(good, f"table {number}: of another coder, or bad bits")
        quad = plane["layout"] == "quad"
        good = not self._quads or (table.get("layout") == "quad" if quad else "layout" not in table)
        require(good, f"table {number}: of another layout")
        data = self._segment(table.get("data"), f"table {number}")
        good = len(data) % 2 == 0 if quad else len(data) == (512 if plane["coder"] == "rans" else 256)
        require(good, f"table {number}: wrong length")
        bits, octets = table["bits"], 1 if len(data) == 256 and not quad else 2
        numbers = np.frombuffer(data, f"<u{octets}").astype(np.int64)
        # also where all chunks are raw, and nothing is looked up
        if quad:
            quad_lookup(numbers, bits)
        elif plane["coder"] == "rans":
            require(numbers.sum() == 1 << bits and numbers.max() < 1 << bits, "rans table: bad frequencies")
        else:
            huffman_lookup(numbers, bits)
        return bits, numbers


def side_words(plane: Json) -> int:
    """Side words of a lane and block."""
    return plane["shift"] + (plane["layout"] != "split")  # in layout split 8 R, where R = shift / 8


def read_patches(chunk: bytes, elements: int, changes: bool) -> Array:
    """The patches at the start of a chunk: structured array of `position` (decoding order), `value` and `change`."""
    count = int.from_bytes(chunk[:4], "little")
    require(4 + 4 * count <= len(chunk), "more patches than the chunk holds")
    patches = np.frombuffer(chunk, np.dtype([("position", "<u2"), ("value", "u1"), ("change", "u1")]), count, 4)
    position = patches["position"].astype(np.int64)
    ascending = (np.diff(position) > 0).all() and (position < elements).all()
    good = ascending and (changes or not patches["change"].any())
    require(good, "patches: not ascending within the tile, or a last byte is not 0")
    return patches


def unpack_frame(frame: bytes, size: int, what: str) -> bytes:
    """Decode one zstd frame of `size` decoded bytes; `what` names it in errors."""
    try:
        head = zstandard.get_frame_parameters(frame)
        require(frame[:4] == b"\x28\xb5\x2f\xfd" and head.content_size == size, f"{what}: not a frame of {size} bytes")
        plain = not head.has_checksum and head.dict_id == 0 and head.window_size <= size
        require(plain, f"{what}: has a checksum, a dictionary or a window larger than the chunk")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatReaderError(f"{what}: {error}") from error


def to_bfloat16(values: Array) -> Array:
    """float32 -> bfloat16 bit patterns (uint16), to nearest, ties to even."""
    bits = np.ascontiguousarray(values).reshape(values.shape).view(np.uint32).astype(np.uint64)
    # a NaN keeps its upper bits, as adding could carry it into a number
    return np.where(np.isnan(values), bits >> 16 | 0x40, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
