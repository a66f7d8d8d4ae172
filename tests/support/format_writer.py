"""A slow, scalar writer of the wcodec container, written from `codec/FORMAT.md` alone.

It makes small files that the readers must accept, and, through the `edit_*` hooks of `write_container`, files that they
must refuse: the hooks run before hashes are taken, so that a violation is not hidden behind a hash that does not match.
Section numbers in the comments are those of the page.
"""

from __future__ import annotations

import heapq
import json
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

MAGIC = b"\x89WCODEC\n"
LANES = range(32)
#: schemes whose levels are at halves
HALVES = ("rate", "columns")
#: how coded bodies use what the page leaves to writers (`Tensor.variety`): p of the lanes of rans, header of huffman,
#: and in layout quad its header, bits that streams leave, and the bits of symbols that raw chunks have and nobody reads
VARIETIES = [
    "as advised",
    "p = 15; wide; unit = 8 and least the most",
    "every p by turns; wide and least = 0",
    "p = 30; least below the fewest; no small unit",
]
Json = dict[str, Any]
TableKey = tuple[str, str, int, bool]


@dataclass
class Tensor:
    """One tensor to write and how."""

    name: str
    #: `int8`, `rate`, `columns`: symbols, int8 [count, rows, cols] of the matrix view; others: the tensor's bytes,
    #: uint8 [n]
    data: np.ndarray
    shape: Sequence[int]
    dtype: str = "F32"
    scheme: str = "int8"
    #: [count, rows, cols, row_axis]; None leaves the key out
    matrix: Sequence[int] | None = None
    #: float32, flat in the order of section 2; of schemes `rate` and `columns` bf16 as uint16
    scales: np.ndarray | None = None
    #: scheme `columns`: the factors of columns, bf16 as uint16, flat
    factors: np.ndarray | None = None
    per: str = "row"
    block: int = 0
    coder: str = "rans"
    layout: str = "pair"
    shift: int = 3
    tile: int = 128
    bits: int = 12
    filter: str | None = None
    #: filter `trellis`: in every so many bytes bit 6, which is lost, is not that of the sign; 0: in none
    wrap: int = 0
    #: zstd: decoded bytes of a chunk
    chunk: int = 1000
    #: tiled coders: these chunks are stored raw even where coding makes them shorter
    raw_chunks: Sequence[int] = ()
    #: tiled coders: value of the elements beyond the matrix (of all their bits, in layout `split`)
    pad: int = 0
    #: tensors with the same key, coder and bits share one table, those of layout `quad` one of theirs; "" shares with
    #: none
    table_key: str = ""
    #: huffman, layout `pair` with shift below 3, and `quad`: only so many pairs or quads, the commonest, have codes; 0:
    #: all of them, or of quads as many as the table has room for
    alphabet: int = 0
    #: coded chunks: an index into `VARIETIES`. None: chunk after chunk another, beginning with one that the name gives
    variety: int | None = None
    #: scheme `lossless`: for each plane what differs from what this tensor says of `coder` and the like, and `fields`
    planes: Sequence[Json] = ()
    #: of a plane of a lossless tensor: runs of bits (lowest, width), the first on top; None leaves the key out
    fields: Sequence[tuple[int, int]] | None = None


def is_quad(tensor: Tensor) -> bool:
    """Whether the tensor's plane is of layout `quad`, which is one of coder `huffman`."""
    return tensor.coder == "huffman" and tensor.layout == "quad"


def table_key(tensor: Tensor) -> TableKey:
    """Key of a table, equal for tensors that share it: a name, coder, bits, and whether it is one of layout `quad`."""
    return tensor.table_key or "=" + tensor.name, tensor.coder, tensor.bits, is_quad(tensor)


@dataclass
class Chunk:
    """A tile on its way into a file."""

    width: int
    #: coded symbols of each lane
    symbols: list[list[int]]
    #: side words [block][word][lane], not of layout `byte`
    side: list[list[list[int]]] = field(default_factory=list)
    #: (position, value), None where the chunk has no count
    patches: list[tuple[int, int]] | None = None


def align(n: int, a: int) -> int:
    """`n` rounded up to a multiple of `a`."""
    return (n + a - 1) // a * a


def hex_hash(data: bytes) -> str:
    """xxh3 of bytes, as 16 lower-case hexadecimal digits."""
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def cut_tiles(matrices: np.ndarray, tile: int, pad: int) -> list[list[list[int]]]:
    """Tiles of unsigned [count, rows, cols], in chunk order, each 16 lists of its width's elements."""
    count, rows, cols = matrices.shape
    strips, padded_cols = align(rows, 16) // 16, align(cols, 64)
    padded = np.full((count, strips * 16, padded_cols), pad, matrices.dtype)
    padded[:, :rows, :cols] = matrices
    return [
        padded[m, 16 * s : 16 * s + 16, c : c + tile].tolist()
        for m in range(count)
        for s in range(strips)
        for c in range(0, padded_cols, tile)
    ]


def trellis_row(wanted: list[int], wrap: int = 0) -> tuple[list[int], list[int]]:
    """A path through the trellis near some symbols: the bytes to code, and the symbols that they stand for.

    In every state each symbol or its neighbour can follow, so that none is further away than 1; whoever comes from a
    path gets it back.
    """
    coded, symbols = [], []
    before = now = 0  # Q(j - 1) and Q(j)
    for j, byte in enumerate(wanted):
        symbol = byte & 0xFE | now
        lost = (byte >> 7 ^ bool(wrap and j % wrap == 0)) << 6
        coded.append(symbol & 0x80 | lost | symbol >> 1 & 0x3F)
        symbols.append(symbol)
        before, now = now, coded[-1] % 2 ^ before
    return coded, symbols


def on_trellis(wanted: np.ndarray, tile: int) -> np.ndarray:
    """Symbols, int8 [count, rows, cols], none further than 1 from those wanted, that filter `trellis` has."""
    rows = wanted.reshape(-1, wanted.shape[-1]).view(np.uint8).tolist()
    found = [sum((trellis_row(row[c : c + tile])[1] for c in range(0, len(row), tile)), []) for row in rows]
    return np.array(found, np.uint8).view(np.int8).reshape(wanted.shape)


def apply_filter(rows: list[list[int]], name: str | None, wrap: int = 0) -> list[list[int]]:
    """Residuals of rows of bytes whose first row and column have nothing before them."""
    if name == "trellis":
        return [trellis_row(row, wrap)[0] for row in rows]
    if name == "left":
        return [[(v - (row[c - 1] if c else 0)) % 256 for c, v in enumerate(row)] for row in rows]
    if name == "up":
        return [[(v - (rows[r - 1][c] if r else 0)) % 256 for c, v in enumerate(row)] for r, row in enumerate(rows)]
    return rows


def lane_elements(tile: list[list[int]], lane: int) -> list[int]:
    """Elements of a lane in its order: per block of 64 columns, 16 columns of row g, then of row g + 8."""
    g, t = divmod(lane, 4)
    starts = range(16 * t, len(tile[0]), 64)
    return [tile[row][c + i] for c in starts for row in (g, g + 8) for i in range(16)]


def rotr(x: int, n: int) -> int:
    """Rotate a u32 right by 0 <= n < 32."""
    return (x >> n | x << (32 - n)) & 0xFFFFFFFF


def side_words(elements: list[int], shift: int) -> list[int]:
    """The shift + 1 side words of 32 elements (bytes) of a lane and block."""
    packed = []
    for k in range(8):
        kept = [(q & 0x80) | (magnitude(q) & ((1 << shift) - 1)) for q in elements[4 * k : 4 * k + 4]]
        packed.append(int.from_bytes(bytes(kept), "little"))
    words = [0] * (shift + 1)
    for k, a in enumerate(packed):
        if shift == 0:
            words[0] |= rotr(a, k)
        elif shift == 1:
            words[k // 4] |= rotr(a, 2 * (k % 4))
        elif shift == 2:
            words[0] |= rotr(a & 0x80808080, k)
            words[1 + k // 4] |= rotr(a & 0x03030303, 2 * (k % 4))
        else:
            words[k // 2] |= rotr(a, 4 * (k % 2))
    return words


def quad_side_words(elements: list[int], shift: int) -> list[int]:
    """`side_words` of layout `quad`."""
    words = [0] * (shift + 1)
    for k in range(8):
        kept = [(q & 0x80) | (magnitude(q) << 4 - shift & 0x0F) for q in elements[4 * k : 4 * k + 4]]
        a = int.from_bytes(bytes(kept), "little")
        signs, i, j = a & 0x80808080, k % 4, k // 4
        if shift in (0, 2, 4):
            words[0] |= signs >> k
        if shift == 1:
            words[j] |= a >> i
        elif shift == 2:
            low = a & 0x0C0C0C0C
            words[1 + j] |= (low >> 2, low, low << 2, low << 4)[i]
        elif shift == 3:
            low = a & 0x0E0E0E0E
            words[k // 2] |= signs >> 4 | low >> 1 if k % 2 else signs | low << 3
        elif shift == 4:
            words[1 + k // 2] |= (a & 0x0F0F0F0F) << 4 * (k % 2)
    return words


def rest_words(elements: list[int], shift: int) -> list[int]:
    """The side words of 32 elements of 8 + shift bits of a lane and block, layout `split`."""
    words = []
    for r in range(shift // 8):
        octets = bytes(e >> shift - 8 * (r + 1) & 0xFF for e in elements)  # r = 0 is the most significant
        words += [int.from_bytes(octets[4 * k : 4 * k + 4], "little") for k in range(8)]
    return words


def magnitude(byte: int) -> int:
    """v of layout `pair`: q ^ (q >> 7) of a byte that stands for the int8 q."""
    return byte ^ 0xFF if byte & 0x80 else byte


def make_chunk(tensor: Tensor, tile: list[list[int]]) -> Chunk:
    """Coded symbols, side words and patches of a tile whose filter is applied."""
    lanes = [lane_elements(tile, lane) for lane in LANES]
    width = len(tile[0])
    if tensor.layout == "byte":
        return Chunk(width, lanes)
    s = tensor.shift
    if tensor.layout == "split":
        by_lane = [[rest_words(e[b : b + 32], s) for b in range(0, len(e), 32)] for e in lanes]
        side = [[[by_lane[lane][b][j] for lane in LANES] for j in range(s)] for b in range(width // 64)]
        return Chunk(width, [[e >> s for e in elements] for elements in lanes], side)
    quad = tensor.layout == "quad"
    most, per_symbol, words_of = (7, 4, quad_side_words) if quad else (15, 2, side_words)
    symbols = []
    for elements in lanes:
        high = [min(magnitude(q) >> s, most) for q in elements]
        symbols.append([sum(high[i + b] << 4 * b for b in range(per_symbol)) for i in range(0, len(high), per_symbol)])
    by_lane = [[words_of(e[b : b + 32], s) for b in range(0, len(e), 32)] for e in lanes]
    side = [[[by_lane[lane][b][j] for lane in LANES] for j in range(s + 1)] for b in range(width // 64)]
    # In decoding order: block, lane, element.
    order = [(i // 32 * 1024 + lane * 32 + i % 32, q) for lane in LANES for i, q in enumerate(lanes[lane])]
    escapes = sorted((position, q) for position, q in order if magnitude(q) >> s > most)
    return Chunk(width, symbols, side, escapes if quad or s < 3 else None)


def patch_rare(chunk: Chunk, tile: list[list[int]], kept: list[int]) -> None:
    """Codes the nearest of the pairs or quads that are kept for each that is not, and patches its elements.

    Those that differ, and the first one always: patches may replace an element by what it is.
    """
    patches, nearest, others = dict(chunk.patches or []), {}, np.array(kept)
    for lane, symbols in enumerate(chunk.symbols):
        elements = lane_elements(tile, lane)
        per_symbol = len(elements) // len(symbols)
        places = range(0, 4 * per_symbol, 4)  # of the elements' bits in a symbol
        for i, symbol in enumerate(symbols):
            if symbol not in nearest:
                differ = sum((others ^ symbol) >> at & 15 != 0 for at in places)
                nearest[symbol] = kept[int(np.argmin(differ))]
            other = symbols[i] = nearest[symbol]
            for e, at in enumerate(places if symbol != other else (), per_symbol * i):
                if at == 0 or (symbol ^ other) >> at & 15:
                    patches[e // 32 * 1024 + lane * 32 + e % 32] = elements[e]
    chunk.patches = sorted(patches.items())


def rans_table(counts: Counter[int], bits: int) -> list[int]:
    """256 frequencies that sum to 2^bits, at least 1 for symbols that occur."""
    counts = counts + Counter((0, 1))  # a table needs two symbols
    spare, total = (1 << bits) - len(counts), counts.total()
    frequencies = [1 + counts[s] * spare // total if counts[s] else 0 for s in range(256)]
    frequencies[frequencies.index(max(frequencies))] += (1 << bits) - sum(frequencies)
    return frequencies


def huffman_table(counts: Counter[int], bits: int) -> dict[int, int]:
    """Lengths of a complete code of at most `bits` bits."""
    counts = counts + Counter((0, 1))  # a complete code needs two symbols
    if len(counts) > 1 << bits:
        raise ValueError(f"{len(counts)} symbols are too many for codes of {bits} bits")
    while True:
        heap = [(n, s, [s]) for s, n in counts.items()]
        heapq.heapify(heap)
        lengths = dict.fromkeys(counts, 0)
        while len(heap) > 1:
            (n0, _, a), (n1, key, b) = heapq.heappop(heap), heapq.heappop(heap)
            for s in a + b:
                lengths[s] += 1
            heapq.heappush(heap, (n0 + n1, key, a + b))
        if max(lengths.values()) <= bits:
            return lengths
        # flatter counts give shorter codes; equal counts give as few bits as there can be
        counts = Counter({s: (n + 1) // 2 for s, n in counts.items()})


def rans_lane(symbols: list[int], x: int, table: list[tuple[int, int]], bits: int) -> tuple[int, dict[int, int]]:
    """The encoder of section 6 for one lane, from its last x: the first one, and words by the step that takes them."""
    words = {}
    for step in range(len(symbols) - 1, -1, -1):
        f, start = table[symbols[step]]
        if x >= f << (32 - bits):
            words[step] = x % 65536
            x //= 65536
        x = (x // f << bits) + x % f + start
    return x, words


def rans_body(lanes: list[list[int]], tails: list[int], frequencies: list[int], bits: int, variety: int) -> bytes:
    """A coded body of section 6."""
    table = [(f, sum(frequencies[:s])) for s, f in enumerate(frequencies)]
    states, taken, parts = [], [], []
    for lane, (symbols, tail) in enumerate(zip(lanes, tails, strict=True)):
        choice = (range(15, 31), [15], [15 + lane % 16], [30])[variety]
        tried = {p: rans_lane(symbols, (2 << p) + tail % (1 << p), table, bits) for p in choice}
        p = max(choice, key=lambda p: (-len(tried[p][1]), p))  # the largest that costs no further word
        x, words = tried[p]
        states.append(x)
        taken += [(step, lane, word) for step, word in words.items()]
        parts.append(f"{tail >> p:0{32 - p}b}"[::-1])
    stream = b"".join(struct.pack("<H", word) for _, _, word in sorted(taken))
    rest = "".join(parts)
    stream += int(rest[::-1], 2).to_bytes(align(len(rest), 8) // 8, "little")
    return struct.pack("<32I", *states) + stream + bytes(-len(stream) % 4)


def huffman_codes(lengths: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Canonical codes: symbol -> (code, length)."""
    codes = {}
    code, last = 0, 0
    for length, s in sorted((n, s) for s, n in lengths.items()):
        code <<= length - last
        codes[s] = (code, length)
        code, last = code + 1, length
    return codes


def quad_table(lengths: dict[int, int], bits: int) -> bytes:
    """The table of layout `quad`: how many codes have each length, and their symbols."""
    used, counts = sorted((n, s) for s, n in lengths.items()), Counter(lengths.values())
    return struct.pack(f"<{bits + len(used)}H", *(counts[n + 1] for n in range(bits)), *(s for _, s in used))


def huffman_body(lanes: list[list[int]], lengths: dict[int, int], variety: int) -> bytes:
    """A coded body of section 7."""
    text = {s: f"{code:0{length}b}" for s, (code, length) in huffman_codes(lengths).items()}
    coded = ["".join(text[s] for s in symbols) for symbols in lanes]
    sizes = [len(codes) for codes in coded]
    fewest, most = min(sizes), max(sizes)
    # below the fewest, but so that narrow excesses stay narrow where that can be
    least = (fewest, fewest, 0, max(min(most - 255, fewest), 0))[variety]
    wide = variety in (1, 2) or most - least > 255
    header = struct.pack("<2H", least, wide) + struct.pack("<32H" if wide else "<32B", *(n - least for n in sizes))
    value = int(("00" + "".join(coded))[::-1], 2)  # bit 0 of the stream is the least significant one
    return header + value.to_bytes(align(2 + sum(sizes), 32) // 8, "little")


def quad_body(lanes: list[list[int]], lengths: dict[int, int], variety: int) -> bytes:
    """A coded body of section 7 in layout `quad`."""
    text = {s: f"{code:0{length}b}" for s, (code, length) in huffman_codes(lengths).items()}
    # of each block, 8 symbols, a lane's first stream has the first 4
    streams = [[s for i, s in enumerate(lane) if i % 8 // 4 == which] for lane in lanes for which in (0, 1)]
    coded = ["".join(text[s] for s in stream) for stream in streams]
    sizes = [len(codes) for codes in coded]
    fewest, most = min(sizes), max(sizes)
    # a stream is less than 2^unit bits longer than its codes, whatever the least
    least, units = [
        (fewest, range(9)),
        (most if most - fewest < 256 else fewest, range(8, 9)),
        (0, range(9)),
        (max(fewest - 5, 0), range(3, 9)),
    ][variety]
    unit = next(u for u in units if most <= least + (15 << u) and fewest > least - (1 << u))
    steps = [max(-(-(size - least) // (1 << unit)), 0) for size in sizes]
    left = "0110"[variety] * 256, "0101"[variety] * 256  # in what streams leave anything may stand
    stream = "00" + "".join(
        codes + left[i % 2][: least + (steps[i] << unit) - len(codes)] for i, codes in enumerate(coded)
    )
    header = struct.pack("<2H32B", least, unit, *(steps[2 * lane] | steps[2 * lane + 1] << 4 for lane in LANES))
    return header + int(stream[::-1], 2).to_bytes(align(len(stream), 32) // 8, "little")


def raw_body(chunk: Chunk, layout: str, tails: list[int], variety: int) -> bytes:
    """Symbols in the order [block][half][lane][symbol], then the tails if there are any."""
    per_half, code = {"pair": (8, "B"), "quad": (4, "H")}.get(layout, (16, "B"))
    unread = (0, 0x8888, 0x8000, 0x0808)[variety] if layout == "quad" else 0
    out = b""
    for first in range(0, len(chunk.symbols[0]), per_half):
        for lane in LANES:
            out += struct.pack(f"<{per_half}{code}", *(s | unread for s in chunk.symbols[lane][first:][:per_half]))
    return out + struct.pack(f"<{len(tails)}I", *tails)


def chunk_bytes(tensor: Tensor, chunk: Chunk, table: Any, index: int) -> bytes:
    """Patches and body of chunk `index` of the tensor; `table` is what `rans_table` or `huffman_table` gave."""
    rans, quad = tensor.coder == "rans", tensor.layout == "quad"
    variety = tensor.variety
    if variety is None:
        variety = (xxhash.xxh3_64_intdigest(tensor.name.encode()) + index) % len(VARIETIES)
    tails = chunk.side[-1][-1] if rans and chunk.side else []
    stored = raw_body(chunk, tensor.layout, tails, variety)
    if quad:
        body = quad_body(chunk.symbols, table, variety)
    elif not rans:
        body = huffman_body(chunk.symbols, table, variety)
    elif tails:
        body = rans_body(chunk.symbols, tails, table, tensor.bits, variety)
    else:
        last = [int.from_bytes(bytes(lane[-4:]), "little") for lane in chunk.symbols]
        body = rans_body([lane[:-4] for lane in chunk.symbols], last, table, tensor.bits, variety)
    if index in tensor.raw_chunks or len(body) >= len(stored):
        body = stored
    head = b""
    if chunk.patches is not None:
        head = struct.pack("<I", len(chunk.patches))
        for p, q in chunk.patches:
            change = q - coded_element(chunk, p, q, tensor) if tensor.scheme in HALVES or quad else 0
            head += struct.pack("<HBB", p, q, change % 256)
    if tensor.layout in ("pair", "quad") and len(head + body) > 16 * chunk.width:
        raise ValueError(f"{tensor.name}: shift {tensor.shift} makes too many escapes for a chunk")
    return head + body


def coded_element(chunk: Chunk, position: int, byte: int, tensor: Tensor) -> int:
    """Element that the coded symbol makes with the sign and low bits of `byte`."""
    block, lane, element = position // 1024, position // 32 % 32, position % 32
    per_symbol, shift = 4 if tensor.layout == "quad" else 2, tensor.shift
    high = chunk.symbols[lane][(block * 32 + element) // per_symbol] >> element % per_symbol * 4 & 15
    v = high << shift | magnitude(byte) & (1 << shift) - 1
    return v ^ 0xFF if byte & 0x80 else v


def side_bytes(tensor: Tensor, chunk: Chunk) -> bytes:
    """The side plane of a chunk; with rans the last words are left out: they are the tails."""
    if tensor.layout == "quad":
        out = b""
        for block in chunk.side:
            words = list(block)
            for size in (size for size in (4, 2, 1) if len(block) & size):
                group, words = words[:size], words[size:]
                out += b"".join(struct.pack(f"<{size}I", *(word[lane] for word in group)) for lane in LANES)
        return out
    words = [word for block in chunk.side for word in block]
    return b"".join(struct.pack("<32I", *word) for word in (words[:-1] if tensor.coder == "rans" else words))


def planes_of(tensor: Tensor) -> list[Tensor]:
    """Tensors coded for themselves: the tensor, or its planes of bits as tensors of unsigned elements of 8 to 32
    bits."""
    if tensor.scheme != "lossless":
        return [tensor]
    assert tensor.matrix, "a lossless tensor needs a matrix"
    count, rows, cols, axis = tensor.matrix
    elements = tensor.data.reshape(-1).view(f"<u{tensor.data.nbytes // (count * rows * cols)}").astype(np.uint32)
    view = elements.reshape(cols, rows).T[None] if axis else elements.reshape(count, rows, cols)
    planes = []
    for number, options in enumerate(tensor.planes):
        plane = replace(tensor, name=f"{tensor.name}/{number}", planes=(), **options)
        value, width = np.zeros_like(view), 0
        for low, bits in plane.fields or [(0, 8)]:
            value, width = value << bits | view >> low & (1 << bits) - 1, width + bits
        data = np.ascontiguousarray(value).astype("<u4")
        planes.append(replace(plane, data=data, shift=width - 8 if plane.layout == "split" else plane.shift))
    return planes


def plain_bytes(tensor: Tensor) -> bytes:
    """Bytes that the hash of a plane is about, and that coders `zstd` and `raw` store."""
    if tensor.scheme != "lossless":
        return tensor.data.tobytes()
    octets = 1 + (tensor.shift // 8 if tensor.layout == "split" else 0)
    return tensor.data.reshape(-1).view(np.uint8).reshape(-1, 4)[:, :octets].tobytes()


def zstd_plane(tensor: Tensor, plain: bytes) -> tuple[bytes, bytes, int]:
    """Section 8: data, offsets and the length of the longest frame."""
    compressor = zstandard.ZstdCompressor(write_content_size=True, write_checksum=False, write_dict_id=False)
    cols = tensor.matrix[2] if tensor.matrix else 1
    data, offsets, longest = b"", b"", 0
    for first in range(0, len(plain), tensor.chunk):
        part = plain[first : first + tensor.chunk]
        residuals = bytearray(part)
        for i in range(len(part) if tensor.filter else 0):
            if tensor.filter == "left" and i and (first + i) % cols:
                residuals[i] = (part[i] - part[i - 1]) % 256
            if tensor.filter == "up" and i >= cols:
                residuals[i] = (part[i] - part[i - cols]) % 256
        frame = compressor.compress(bytes(residuals))
        data += bytes(-len(data) % 8)
        offsets += struct.pack("<2I", len(data) // 8, len(frame))
        data += frame
        longest = max(longest, len(frame))
    return data, offsets, longest


def symbols_as_bytes(tensor: Tensor) -> np.ndarray:
    """The matrices of a tiled coder, uint8 [count, rows, cols]; of a lossless tensor's plane the elements, uint32."""
    assert tensor.matrix, "a tiled coder needs a matrix"
    count, rows, cols, axis = tensor.matrix
    if tensor.scheme == "lossless":
        return tensor.data
    flat = tensor.data.reshape(-1).view(np.uint8)
    if tensor.scheme == "raw" and axis == 1:
        return np.ascontiguousarray(flat.reshape(cols, rows).T)[None]
    return flat.reshape(count, rows, cols)


def write_container(
    path: str | Path | None,
    tensors: Sequence[Tensor],
    *,
    metadata: dict[str, str] | None = None,
    aliases: dict[str, str] | None = None,
    features: Sequence[str] | None = None,
    version: tuple[int, int] | None = None,
    edit_segment: Callable[[str, bytes], bytes] = lambda _, data: data,
    edit_index: Callable[[Json], None] = lambda _: None,
) -> bytes:
    """Write the tensors into a container; returns the file's bytes, and writes them to `path` unless it is None.

    `edit_segment` is given every segment as ("tensor/data", bytes) - or `scales`, `offsets`, `side`, and "table i"; of
    lossless tensors "tensor/plane/data" - and returns the bytes to store; `edit_index` may change the index. Hashes are
    taken afterwards. Without `features` and `version` they are what the tensors need.
    """
    parts = [planes_of(t) for t in tensors]
    newer = any(t.scheme in ("lossless", *HALVES) for t in tensors)
    newer = newer or any(t.coder == "huffman" and t.bits < 11 for some in parts for t in some)
    quads = any(is_quad(t) for some in parts for t in some)
    newest = any(t.scheme == "columns" for t in tensors)
    features = features or []
    version = (1, 3 if newest else 2 if quads else int(newer)) if version is None else version
    out = bytearray(64)
    tables: list[Json] = []
    tiled = [t for some in parts for t in some if t.coder in ("rans", "huffman")]
    cut, chunks = {}, {}
    found: dict[TableKey, Counter[int]] = {}
    counts: dict[TableKey, Counter[int]] = {}
    for t in tiled:
        tiles = cut_tiles(symbols_as_bytes(t), t.tile, t.pad)
        if t.filter == "trellis" and t.data.dtype == np.int8:
            # what is not on a path would be replaced silently; beyond the matrix it may be
            assert np.array_equal(on_trellis(t.data, t.tile), t.data), f"{t.name}: not on a path"
        cut[t.name] = [apply_filter(tile, t.filter, t.wrap) for tile in tiles]
        chunks[t.name] = [make_chunk(t, tile) for tile in cut[t.name]]
        for lane in (lane for chunk in chunks[t.name] for lane in chunk.symbols):
            found.setdefault(table_key(t), Counter()).update(lane)
    for t in tiled:
        if t.alphabet or is_quad(t):
            # two less than there are codes, as a table may need two symbols that no chunk has
            kept = [s for s, _ in found[table_key(t)].most_common(t.alphabet or (1 << t.bits) - 2)]
            for chunk, tile in zip(chunks[t.name], cut[t.name], strict=True):
                patch_rare(chunk, tile, kept)
        for lane in (lane for chunk in chunks[t.name] for lane in chunk.symbols):
            counts.setdefault(table_key(t), Counter()).update(lane)

    def segment(role: str, data: bytes) -> list[int | str]:
        data = edit_segment(role, data)
        if not data:
            return [0, 0, hex_hash(b"")]
        offset = align(len(out), 4096 if len(data) >= 1 << 20 else 16)
        out.extend(bytes(offset - len(out)) + data)
        return [offset, len(data), hex_hash(data)]

    built = {}
    for number, (key, count) in enumerate(counts.items()):
        _, coder, bits, quads = key
        if coder == "rans":
            table: Any = rans_table(count, bits)
            data = struct.pack("<256H", *table)
        else:
            table = huffman_table(count, bits)
            data = quad_table(table, bits) if quads else bytes(table.get(s, 0) for s in range(256))
        layout = {"layout": "quad"} if quads else {}
        tables.append({"coder": coder, **layout, "bits": bits, "data": segment(f"table {number}", data)})
        built[key] = (number, table)

    def stored_plane(t: Tensor) -> Json:
        plain = plain_bytes(t)
        plane: Json = {"coder": t.coder, "hash": hex_hash(plain)} | ({"filter": t.filter} if t.filter else {})
        if t.fields is not None:
            plane["fields"] = [list(run) for run in t.fields]
        if t.coder == "raw":
            data = plain
        elif t.coder == "zstd":
            data, offsets, longest = zstd_plane(t, plain)
            plane |= {"chunk": t.chunk, "chunks": len(offsets) // 8, "max_chunk": longest}
        else:
            number, table = built[table_key(t)]
            bodies = [chunk_bytes(t, c, table, i) for i, c in enumerate(chunks[t.name])]
            data = b"".join(bodies)
            ends = [sum(map(len, bodies[:i])) // 4 for i in range(len(bodies) + 1)]
            offsets = struct.pack(f"<{len(ends)}I", *ends)
            plane |= {"layout": t.layout, "tile": t.tile, "table": number}
            plane |= {"chunks": len(bodies), "max_chunk": max(map(len, bodies))}
            if t.layout != "byte":
                side = b"".join(side_bytes(t, c) for c in chunks[t.name])
                plane |= {"shift": t.shift, "side": segment(f"{t.name}/side", side)}
        if t.coder != "raw":
            plane["offsets"] = segment(f"{t.name}/offsets", offsets)
        plane["data"] = segment(f"{t.name}/data", data)
        return plane

    entries = []
    for t, planes in zip(tensors, parts, strict=True):
        entry: Json = {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "scheme": t.scheme}
        if t.matrix is not None:
            entry["matrix"] = list(t.matrix)
        if t.scheme == "int8" and t.scales is not None:
            scales = segment(f"{t.name}/scales", t.scales.astype("<f4").tobytes())
            entry["scales"] = {"per": t.per, "data": scales} | ({"block": t.block} if t.per == "block" else {})
        elif t.scheme in HALVES and t.scales is not None:
            factors = b"" if t.factors is None else t.factors.astype("<u2").tobytes()
            scales = segment(f"{t.name}/scales", factors + t.scales.astype("<u2").tobytes())
            entry["scales"] = {"per": t.per, "dtype": "BF16", "data": scales}
        entries.append(entry | {"planes": [stored_plane(plane) for plane in planes]})

    index = {"format": "wcodec", "features": list(features), "writer": "format_writer.py", "metadata": metadata or {}}
    index |= {"tables": tables, "tensors": entries, "aliases": aliases or {}}
    edit_index(index)
    out.extend(bytes(-len(out) % 16))
    offset = len(out)
    out.extend(json.dumps(index, ensure_ascii=False).encode())
    out[:64] = MAGIC + struct.pack("<HHIQQQQQQ", *version, 0, offset, len(out) - offset, 0, 0, 0, 0)
    file = reseal(bytes(out))
    if path is not None:
        Path(path).write_bytes(file)
    return file


def reseal(file: bytes) -> bytes:
    """The file with the hashes and the length in its header made right again, after a change to it."""
    offset, length = struct.unpack_from("<2Q", file, 16)
    index_hash = xxhash.xxh3_64_intdigest(file[offset : offset + length])
    head = file[:32] + struct.pack("<2Q", index_hash, len(file)) + file[48:56]
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + file[64:]
