"""Rate tensors for tests of the format: symbols with and without a trellis, scales at the edges, ways to code them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from format_reader import to_bfloat16
from format_writer import Tensor, on_trellis

TILED = [
    (coder, *way)
    for coder in ("rans", "huffman")
    for way in (("byte", 3), ("pair", 0), ("pair", 1), ("pair", 2), ("pair", 3))
]
TILED += [("huffman", "quad", shift) for shift in range(5)]
#: those whose symbols have room for all elements, so that none needs a patch
WHOLE = [way for way in TILED if way[1] == "byte" or way[1:] in (("pair", 3), ("quad", 4))]
#: coder, layout, shift and filter: all that the page allows
CODINGS: list[tuple[str, str, int, str | None]] = [
    *((*way, name) for way in TILED for name in ("trellis", None, "left", "up")[: 2 if way[1] == "quad" else 4]),
    *(("zstd", "", 3, name) for name in (None, "left", "up")),
    ("raw", "", 3, None),
]
DTYPES = ("F32", "F16", "BF16")
#: bf16: ordinary ones, zeros of both signs, subnormal, the smallest normal one, negative, one that 16 bits round
SCALES = [0x3F80, 0x3C8D, 0x0000, 0x8000, 0x0001, 0x007F, 0x0080, 0xBD31, 0x3301, 0x2F7B]
#: finite with every symbol in float32 and bfloat16; in no dtype; no numbers
#: bf16 factors of columns: ordinary ones, and some that are far from 1
FACTORS = [0x3F80, 0x3F2B, 0x4061, 0x3DCD, 0x41A0, 0x3C01, 0x4640, 0x3733]
LARGE, TOO_LARGE, NO_NUMBERS = [0x7B7F, 0xFB00], [0x7F7F, 0xFF01], [0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81]


def floats(scales: Any) -> np.ndarray:
    """bf16 bit patterns as float32."""
    return (np.asarray(scales).astype(np.uint32) << 16).view(np.float32)


def rate(
    name: str,
    shape: Sequence[int],
    matrix: Sequence[int],
    *,
    sigma: float | None = None,
    scales: Sequence[int] | None = None,
    symbols: np.ndarray | None = None,
    factors: Sequence[int] | None = None,
    seed: int = 3,
    **options: Any,
) -> Tensor:
    """A rate tensor of normal symbols among which are the extremes, with `SCALES` or others row after row.

    With factors, column after column, it is of scheme `columns`.
    """
    rng, (count, rows, cols) = np.random.default_rng(seed), matrix[:3]
    options = {"dtype": "BF16", "filter": "trellis", "tile": 64} | options
    trellis = options["filter"] == "trellis"
    if symbols is None:
        # what pairs of a small shift can code; the trellis halves symbols, other filters make residuals of them
        room = 2.0 if options.get("layout") == "quad" else 4.0
        spread = sigma or room * 2 ** options.get("shift", 3) * (
            2 if trellis else 1 if options["filter"] is None else 0.7
        )
        symbols = np.clip(np.rint(rng.normal(-0.5, spread, (count, rows, cols))), -128, 127).astype(np.int8)
        flat = symbols.reshape(-1)
        flat[3::211], flat[4::211] = 127, -128
    if trellis:
        symbols = on_trellis(symbols, options["tile"])
    some = list(SCALES if scales is None else scales)
    values = np.resize(np.array(some, np.uint16), count * rows)
    if factors is not None:
        by_columns = np.resize(np.array(list(factors), np.uint16), count * cols)
        options |= {"scheme": "columns", "factors": by_columns}
    return Tensor(name, symbols, shape, matrix=matrix, scales=values, **{"scheme": "rate"} | options)


def expected(tensor: Tensor) -> np.ndarray:
    """The tensor's values: the products in float64, which has them exactly, rounded once. With factors they are in
    float32, since the first product may leave its range."""
    assert tensor.matrix and tensor.scales is not None
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (tensor.data.astype(np.float64) + 0.5) * floats(tensor.scales).reshape(*tensor.data.shape[:2], 1)
        if tensor.factors is not None:
            count, _, cols = tensor.data.shape
            exact = exact.astype(np.float32) * floats(tensor.factors).reshape(count, 1, cols)
        exact = exact[0].T if tensor.matrix[3] else exact
        if tensor.dtype == "BF16":
            # a product has 16 bits, so that float32 has it, too
            return to_bfloat16(exact.reshape(tensor.shape).astype(np.float32))
        return exact.reshape(tensor.shape).astype(f"<f{int(tensor.dtype[1:]) // 8}")


def same(ours: np.ndarray, theirs: np.ndarray, dtype: str) -> bool:
    """Whether arrays have the same bits, but for those of NaNs, of which the page says nothing."""
    size = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    a, b = (np.frombuffer(np.ascontiguousarray(x).tobytes(), f"<u{size}") for x in (ours, theirs))
    infinity = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}[dtype]
    nan = [(x & (1 << 8 * size - 1) - 1) > infinity for x in (a, b)]
    return ours.shape == theirs.shape and bool(np.array_equal(nan[0], nan[1]) and (a == b)[~nan[0]].all())
