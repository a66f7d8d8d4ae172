"""GGUF files for tests: written here byte by byte, with blocks of random bytes of every type.

Run with the package ``gguf`` installed it writes ``tests/data/gguf`` anew: a file of all types, and hashes of what the
package makes of their blocks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "gguf"
ALIGNMENT = 32


class Kind(NamedTuple):
    """A type: its number, weights and bytes of a block, and where a block has numbers of float16."""

    number: int
    elements: int
    size: int
    halves: tuple[int, ...] = ()


PLAIN = {
    "F32": Kind(0, 1, 4), "F16": Kind(1, 1, 2), "BF16": Kind(30, 1, 2), "F64": Kind(28, 1, 8), "I8": Kind(24, 1, 1),
    "I16": Kind(25, 1, 2), "I32": Kind(26, 1, 4), "I64": Kind(27, 1, 8),
}  # fmt: skip
"""Types whose elements are stored as numbers."""
BLOCKS = {
    "Q4_0": Kind(2, 32, 18, (0,)), "Q4_1": Kind(3, 32, 20, (0, 2)), "Q5_0": Kind(6, 32, 22, (0,)),
    "Q5_1": Kind(7, 32, 24, (0, 2)), "Q8_0": Kind(8, 32, 34, (0,)), "IQ4_NL": Kind(20, 32, 18, (0,)),
    "Q2_K": Kind(10, 256, 84, (80, 82)), "Q3_K": Kind(11, 256, 110, (108,)), "Q4_K": Kind(12, 256, 144, (0, 2)),
    "Q5_K": Kind(13, 256, 176, (0, 2)), "Q6_K": Kind(14, 256, 210, (208,)), "IQ2_XXS": Kind(16, 256, 66, (0,)),
    "IQ2_XS": Kind(17, 256, 74, (0,)), "IQ2_S": Kind(22, 256, 82, (0,)), "IQ3_XXS": Kind(18, 256, 98, (0,)),
    "IQ3_S": Kind(21, 256, 110, (0,)), "IQ1_S": Kind(19, 256, 50, (0,)), "IQ1_M": Kind(29, 256, 56),
    "IQ4_XS": Kind(23, 256, 136, (0,)), "TQ1_0": Kind(34, 256, 54, (52,)), "TQ2_0": Kind(35, 256, 66, (64,)),
    "MXFP4": Kind(39, 32, 17), "NVFP4": Kind(40, 64, 36),
}  # fmt: skip
"""Types of blocks that are decoded."""
KINDS = PLAIN | BLOCKS


def blocks(kind: str, shape: Sequence[int], rng: np.random.Generator) -> bytes:
    """Random blocks, whose scales are finite: of both signs, zero and subnormal ones among them."""
    _, elements, size, halves = KINDS[kind]
    count = int(np.prod(shape)) // elements
    out = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in halves:
        out[:, at + 1] = out[:, at + 1] & 0x83 | rng.integers(0, 31, count, dtype=np.uint8) << 2
    if kind == "IQ1_M":
        # Its scale is in the highest four bits of four words: here the exponent is from 8 to 11.
        out[:, 55] = out[:, 55] & 0x8F | 0x20
    return out.tobytes()


class Tensor(NamedTuple):
    """A tensor to write: its type, its shape as NumPy has it, and its bytes."""

    name: str
    kind: str | int
    shape: Sequence[int]
    data: bytes


def numbers(name: str, array: np.ndarray) -> Tensor:
    """A tensor of float32 or float16."""
    return Tensor(name, {"float32": "F32", "float16": "F16"}[array.dtype.name], array.shape, array.tobytes())


def text(value: str) -> bytes:
    """A text as GGUF has it."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value with its type: bool, text, whole numbers as u32, others as f32, and lists of one of them."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    items = [_value(item) for item in value]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)


def gguf_bytes(metadata: Mapping[str, Any], tensors: Sequence[Tensor]) -> bytes:
    """A file."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key) + _value(value)
    at = 0
    for name, kind, shape, data in tensors:
        number = kind if isinstance(kind, int) else KINDS[kind].number
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, at)
        at += len(data) + -len(data) % ALIGNMENT
    out += bytes(-len(out) % ALIGNMENT)
    return out + b"".join(data + bytes(-len(data) % ALIGNMENT) for _, _, _, data in tensors)


def of_every_type(seed: int = 43) -> bytes:
    """A file with a tensor of each type."""
    rng = np.random.default_rng(seed)
    shapes = {kind: (2, max(2 * row.elements, 3)) for kind, row in KINDS.items()}
    return gguf_bytes(
        {"general.architecture": "llama", "general.name": "types"},
        [Tensor(kind.lower(), kind, shape, blocks(kind, shape, rng)) for kind, shape in shapes.items()],
    )


def main() -> None:
    """Writes the data."""
    import xxhash
    from gguf import GGUFReader, dequantize

    DATA.mkdir(exist_ok=True)
    path = DATA / "types.gguf"
    path.write_bytes(of_every_type())
    hashes = {}
    for tensor in GGUFReader(path).tensors:
        kind = tensor.tensor_type.name
        if kind in BLOCKS:
            values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            hashes[kind] = f"{xxhash.xxh3_64_intdigest(values.tobytes()):016x}"
    (DATA / "types.json").write_text(json.dumps(hashes, indent=1) + "\n")


if __name__ == "__main__":
    main()
