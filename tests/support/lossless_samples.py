"""Lossless tensors for tests of the format: numbers of every dtype, and ways to cut their elements into planes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from format_writer import Tensor

#: dtype -> bits of an element
WIDTHS = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
Json = dict[str, Any]


def _plane(*runs: tuple[int, int], coder: str = "rans", **options: Any) -> Json:
    """A plane of these bits; in layout `split` where they are more than 8."""
    layout = "split" if sum(bits for _, bits in runs) > 8 else "byte"
    return {"fields": runs, "coder": coder, "layout": layout, **options}


def _bytes(width: int, *coders: str) -> list[Json]:
    """A plane for each byte, from the upmost one on."""
    return [_plane((width - 8 * (i + 1), 8), coder=coder) for i, coder in enumerate(coders)]


#: Ways to cut elements of so many bits: planes from most of which this project's writer would refrain.
WAYS: dict[int, dict[str, list[Json]]] = {
    8: {
        "whole": [{"coder": "rans", "layout": "byte"}],
        "whole, huffman": [{"coder": "huffman", "layout": "byte"}],
        "whole, zstd": [{"coder": "zstd", "chunk": 100}],
        "whole, raw": [{"coder": "raw"}],
        "named": [_plane((0, 8), raw_chunks=(0,))],
        "nibbles": [_plane((0, 4), (4, 4), coder="huffman")],
        "bits turned over": [_plane(*((i, 1) for i in range(8)), coder="zstd", chunk=64)],
    },
    16: {
        "exponents": [_plane((7, 8), (15, 1), (0, 7))],
        "exponents, huffman": [_plane((7, 8), (15, 1), (0, 7), coder="huffman", bits=11)],
        "as they are": [_plane((0, 16), raw_chunks=(0, 2))],
        "low byte coded": [_plane((0, 8), (8, 8), coder="huffman", raw_chunks=(0, 2))],
        "bytes": _bytes(16, "rans", "huffman"),
        "exponents beside raw": [_plane((7, 8)), _plane((15, 1), (0, 7), coder="raw")],
        "raw first": [_plane((0, 8), coder="raw"), _plane((8, 8), coder="huffman")],
        "zstd": [{**p, "chunk": 100} for p in _bytes(16, "zstd", "zstd")],
        "zstd, raw": [{**p, "chunk": 64} for p in _bytes(16, "zstd", "raw")],
        "raw": _bytes(16, "raw", "raw"),
        "high byte alone": _bytes(16, "rans"),
        "middle alone": [_plane((12, 2), (4, 6), coder="raw")],
    },
    32: {
        "exponents": [_plane((23, 8), (31, 1), (0, 23))],
        "exponents, huffman": [_plane((23, 8), (31, 1), (0, 23), coder="huffman", raw_chunks=(1,))],
        "as they are": [_plane((0, 32), bits=11, raw_chunks=(0, 2))],
        "R = 2 and a byte": [_plane((23, 8), (31, 1), (8, 15)), _plane((0, 8), coder="huffman")],
        "a byte and R = 2": [_plane((0, 8), coder="raw"), _plane((23, 8), (31, 1), (8, 15), coder="huffman")],
        "R = 1 and two bytes": [_plane((23, 8), (31, 1), (16, 7)), *_bytes(16, "rans", "raw")],
        "R = 1 twice": [_plane((23, 8), (31, 1), (16, 7)), _plane((0, 8), (8, 8), coder="huffman")],
        "bytes": _bytes(32, "rans", "huffman", "raw", "rans"),
        "zstd": [{**p, "chunk": 128} for p in _bytes(32, "zstd", "zstd", "zstd", "zstd")],
        "zstd, raw": [{**p, "chunk": 1000} for p in _bytes(32, "zstd", "raw", "zstd", "raw")],
        "scattered": [_plane((0, 3), (29, 3), (12, 2)), _plane((14, 15), (3, 9), coder="huffman")],
        "upper half alone": [_plane((23, 8), (31, 1), (16, 7))],
        "two ends": [_plane((0, 8), coder="huffman"), _plane((24, 8))],
    },
}
#: dtype and name of a way
DTYPES_AND_WAYS = [(dtype, way) for dtype, width in WIDTHS.items() for way in WAYS[width]]
#: Shapes and the views of them as matrices: odd sizes, stacks, vectors, scalars, transposed, and not in their own rows.
VIEWS: list[tuple[tuple[int, ...], tuple[int, int, int, int]]] = [
    ((1, 1), (1, 1, 1, 0)), ((), (1, 1, 1, 0)), ((700,), (1, 1, 700, 0)), ((17, 130), (1, 17, 130, 0)),
    ((700, 1), (1, 700, 1, 0)), ((3, 17, 65), (3, 17, 65, 0)), ((2, 3, 5, 7), (1, 2, 105, 0)),
    ((130, 33), (1, 33, 130, 1)), ((1, 40), (1, 40, 1, 1)), ((6, 50), (2, 30, 5, 0)), ((15, 63), (1, 1, 945, 0)),
    ((33, 193), (1, 33, 193, 0)),
]  # fmt: skip


def patterns(dtype: str, count: int, seed: int = 5) -> np.ndarray:
    """Bit patterns, unsigned: weights, among them NaNs of many payloads, infinities, zeros of both signs, anything."""
    rng, width = np.random.default_rng(seed), WIDTHS[dtype]
    weights = (rng.standard_t(6, count) * 0.02).astype(np.float32)
    if dtype == "F32":
        out = weights.view(np.uint32)
    elif dtype == "BF16":
        out = (weights.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype == "F16":
        out = weights.astype(np.float16).view(np.uint16)
    else:
        signs = rng.integers(0, 2, count).astype(np.uint8) << 7
        out = np.clip(rng.normal(56, 7, count), 0, 127).astype(np.uint8) | signs
    out = out.copy()
    out[7::37] = rng.integers(0, 1 << width, out[7::37].size, np.uint64).astype(out.dtype)
    mantissa = {"BF16": 7, "F16": 10, "F32": 23, "F8_E5M2": 2, "F8_E5M2FNUZ": 2}.get(dtype, 3)
    infinity = (1 << width - 1) - (1 << mantissa)
    special = [0, 1 << width - 1, infinity, infinity + 1, infinity | 1 << width - 1, (1 << width) - 1, 1, infinity - 1]
    out[: len(special)] = np.array(special, np.uint64).astype(out.dtype)[:count]
    return out


def lossless(
    name: str, dtype: str, way: str | list[Json], shape: tuple[int, ...], matrix: tuple[int, ...], **options: Any
) -> Tensor:
    """A lossless tensor; bits that no plane names are 0."""
    width = WIDTHS[dtype]
    planes = [dict(plane) for plane in (WAYS[width][way] if isinstance(way, str) else way)]
    kept = 0
    for plane in planes:
        runs = plane.get("fields", [(0, width)])
        kept |= sum((1 << bits) - 1 << low for low, bits in runs)
        plane["pad"] = 0x9A5C3F71 & (1 << sum(bits for _, bits in runs)) - 1
    data = patterns(dtype, int(np.prod(shape, dtype=np.int64)))
    data &= data.dtype.type(kept)
    options = {"tile": 64} | options
    return Tensor(name, data.view(np.uint8), shape, dtype, "lossless", matrix, planes=planes, **options)


def write_checkpoint(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """A `.safetensors` file of (dtype, shape, bytes): NumPy has not all of the dtypes."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))
    return path


def read_checkpoint(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors that `write_checkpoint` was given."""
    file = path.read_bytes()
    begin = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:begin])
    header.pop("__metadata__", None)
    return {
        name: (e["dtype"], tuple(e["shape"]), file[begin + e["data_offsets"][0] : begin + e["data_offsets"][1]])
        for name, e in header.items()
    }
