"""`wcodec.quantized` of codec/FORMAT.md in NumPy: codes and scales of a container become values."""

from __future__ import annotations

import json
import math

import numpy as np
import numpy.typing as npt
from format_reader import FormatReader, require, to_bfloat16

Array = npt.NDArray[np.generic]

KEY = "wcodec.quantized"
ENDS = (("", "_scale_inv"), ("", "_scale"), (".weight", ".qscale_weight"), (".weight", ".scale_weight"),
        (".weight", ".scale"))  # fmt: skip
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def e4m3(codes: Array) -> Array:
    """Codes of F8_E4M3 as float32."""
    table = np.empty(256, np.float32)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
        table[code] = math.nan if code & 127 == 127 else math.copysign(size, -1 if code & 128 else 1)
    return table[codes]


def numbers(reader: FormatReader, name: str) -> Array:
    """Scales as float32."""
    found, dtype = reader.values(name), reader.entry(name)["dtype"]
    if dtype in ("U8", "F8_E8M0"):
        powers = np.ldexp(np.float32(1), found.astype(np.int32) - 127).astype(np.float32)
        return np.where(found == 255, np.float32(math.nan), powers) if dtype == "F8_E8M0" else powers
    if dtype == "BF16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found.astype(np.float32)


def values(reader: FormatReader) -> dict[str, Array]:
    """The values of all codes of a container, as bit patterns of bfloat16."""
    record = json.loads(reader.index["metadata"][KEY])
    require(record["dtype"] == "bfloat16", "values of another dtype than this reader has")
    block = record["quantization_config"].get("weight_block_size")
    names = set(reader.names())
    found = {}
    for name in names:
        dtype = reader.entry(name)["dtype"]
        if name.endswith("_blocks") and dtype == "U8":
            base = name.removesuffix("_blocks")
            found[base] = to_bfloat16(mxfp4(reader.values(name), numbers(reader, f"{base}_scales")))
        elif dtype == "F8_E4M3" and len(reader.entry(name)["shape"]) >= 2:
            beside = [name.removesuffix(end) + scales for end, scales in ENDS if name.endswith(end)]
            scales = numbers(reader, next(other for other in beside if other in names))
            codes = e4m3(reader.values(name))
            found[name] = to_bfloat16(codes * spread(scales, codes.shape, block))
    return found


def spread(scales: Array, shape: tuple[int, ...], block: list[int] | None) -> Array:
    """A scale for each element."""
    rows, cols = shape[-2:]
    if scales.size == 1:
        return scales.reshape(())
    if scales.ndim < len(shape):
        return scales.reshape(scales.shape + (1,) * (len(shape) - scales.ndim))
    if rows != cols and scales.shape[-2:] == (cols, 1):
        return np.swapaxes(scales, -1, -2)
    counts = scales.shape[-2:]
    covers = [size for size in (block, [128, 128]) if size and counts == (-(-rows // size[0]), -(-cols // size[1]))]
    even = [rows // counts[0], cols // counts[1]] if rows % counts[0] == cols % counts[1] == 0 else None
    sizes = covers[0] if block and covers else even or covers[0]
    return scales[..., np.arange(rows)[:, None] // sizes[0], np.arange(cols)[None] // sizes[1]]


def mxfp4(blocks: Array, scales: Array) -> Array:
    """Values with inputs as rows."""
    codes = np.stack([blocks & 15, blocks >> 4], -1)
    sign = np.where(codes & 8, np.float32(-1), np.float32(1))
    made = sign * FP4[codes & 7] * scales[..., None, None]
    count, outputs = made.shape[:2]
    return made.reshape(count, outputs, -1).transpose(0, 2, 1)
