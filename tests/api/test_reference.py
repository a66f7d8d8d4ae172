"""Numbers bit for bit against NumPy and torch, for every shape, dtype, granularity, coder and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wcodec

ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes for bf16 arrays")

SHAPES = [
    (48, 320), (1, 700), (700, 1), (17, 65), (2, 30_000), (3, 7, 128), (5, 3, 3, 3), (1, 1), (16, 64), (33, 4097),
]  # fmt: skip
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
SCALES: list[dict[str, Any]] = [{"scale": "row"}, {"scale": "tensor"}, {"scale": "block", "block": 32}]
CODERS: list[dict[str, Any]] = [
    {"coder": "rans", "layout": "pair"},
    {"coder": "rans", "layout": "byte"},
    {"coder": "huffman", "layout": "pair"},
    {"coder": "huffman", "layout": "byte"},
    {"coder": "zstd"},
    {"coder": "raw"},
]


def numpy_quantize(w: np.ndarray, rows: int, scale: str, block: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Symbols and dequantized values of FORMAT.md's scheme int8, the whole tensor at once."""
    f = w.astype(np.float32).reshape(rows, -1)
    width = {"row": f.shape[1], "tensor": f.size, "block": block}[scale]
    flat = f.reshape(1, -1) if scale == "tensor" else f
    pad = -flat.shape[1] % width
    groups = np.pad(flat, ((0, 0), (0, pad))).reshape(flat.shape[0], -1, width)
    a = np.abs(groups).max(axis=2, keepdims=True)
    s = np.where(a == 0, np.float32(1), np.maximum(a / np.float32(127), np.float32(2.0**-126)))
    with np.errstate(over="ignore"):
        s = np.where(np.isinf(s * np.float32(127)), np.nextafter(s, np.float32(0)), s)
    q = np.clip(np.rint(groups / s), -127, 127).astype(np.int8)
    values = (q.astype(np.float32) * s).reshape(flat.shape[0], -1)[:, : flat.shape[1]].astype(w.dtype)
    symbols = q.reshape(flat.shape[0], -1)[:, : flat.shape[1]]
    return symbols.reshape(w.shape), values.reshape(w.shape)


def rows_of(shape: tuple[int, ...]) -> int:
    """Number of rows that the writer sees: those of all matrices of an expert stack, and the first axis otherwise."""
    return shape[0] * shape[1] if len(shape) == 3 and shape[2] >= 64 else shape[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("scale", SCALES, ids=lambda s: s["scale"])
@pytest.mark.parametrize("options", CODERS, ids=lambda c: "-".join(c.values()))
def test_equals_numpy(dtype: Any, scale: dict[str, Any], options: dict[str, Any], rng: np.random.Generator) -> None:
    tensors = {str(s): (rng.standard_t(4, s) * 0.05).astype(dtype) for s in SHAPES}
    container = wcodec.open(wcodec.compress_to_bytes(tensors, **scale, **options)[0])
    for shape in SHAPES:
        entry, w = container[str(shape)], tensors[str(shape)]
        assert entry.shape == shape
        if entry.scheme == "raw":
            # A scale for every weight or two would make these larger.
            assert shape in ((700, 1), (1, 1)) and entry.numpy().tobytes() == w.tobytes()
            continue
        symbols, values = numpy_quantize(w, rows_of(shape), **scale)
        assert np.array_equal(entry.symbols(), symbols), shape
        decoded = entry.numpy()
        assert decoded.dtype == w.dtype and decoded.tobytes() == values.tobytes(), shape


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_difficult_values(dtype: Any) -> None:
    smallest, largest = float(ml_dtypes.finfo(dtype).smallest_subnormal), float(ml_dtypes.finfo(dtype).max)
    rows = [
        np.zeros(64),
        -np.zeros(64),
        np.full(64, smallest),
        np.linspace(-largest, largest, 64),
        np.arange(64) - 31.5,
        np.arange(64) * 2 + 127.0,
        np.where(np.arange(64) == 5, largest, smallest),
    ]
    w = np.array(rows).astype(dtype)
    for scale in SCALES:
        entry = wcodec.open(wcodec.compress_to_bytes({"w": w}, **scale)[0])["w"]
        symbols, values = numpy_quantize(w, len(rows), **scale)
        assert np.array_equal(entry.symbols(), symbols) and entry.numpy().tobytes() == values.tobytes()
        assert np.isfinite(values.astype(np.float64)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_equals_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(3)
    w = (torch.randn(130, 257, generator=generator) * 0.02).to(getattr(torch, dtype))
    f = w.float()
    a = f.abs().amax(dim=1, keepdim=True)
    s = torch.where(a == 0, torch.ones_like(a), (a / 127).clamp(min=2.0**-126))
    s = torch.where((s * 127).isinf(), torch.nextafter(s, torch.zeros_like(s)), s)
    q = (f / s).round().clamp(-127, 127)
    for options in CODERS:
        entry = wcodec.open(wcodec.compress_to_bytes({"w": w}, **options)[0])["w"]
        assert torch.equal(torch.from_numpy(entry.symbols()), q.to(torch.int8))
        assert torch.equal(torch.from_numpy(entry.scales()), s)
        decoded = entry.torch()
        assert decoded.dtype == w.dtype and torch.equal(decoded, (q * s).to(w.dtype))
        assert torch.equal(entry.torch(torch.float32), q * s)
        assert torch.equal(entry.torch("bfloat16"), (q * s).to(torch.bfloat16))


def test_empty_and_tiny() -> None:
    tensors = {
        "no rows": np.zeros((0, 64), np.float32),
        "no columns": np.zeros((5, 0), np.float16),
        "nothing": np.zeros(0, np.float32),
        "empty stack": np.zeros((3, 0, 128), np.float32),
        "0-d": np.array(2.5, np.float32),
        "scalar": np.float16(1.5),
        "one": np.array([[-3.0]], np.float32),
        "flag": np.array(True),
    }
    for options in CODERS:
        data, report = wcodec.compress_to_bytes(tensors, **options)
        container = wcodec.open(data)
        for name, array in tensors.items():
            decoded = container[name].numpy()
            assert decoded.shape == array.shape and decoded.dtype == array.dtype
            assert np.array_equal(decoded, array), name
        assert container["nothing"].ratio is None and container["nothing"].bits_per_weight is None
        assert report.original_bytes == sum(a.nbytes for a in tensors.values())
    assert len(wcodec.open(wcodec.compress_to_bytes({})[0])) == 0


@pytest.mark.parametrize(
    "view",
    [lambda a: a.T, lambda a: a[::2], lambda a: a[:, 3:90:5], lambda a: a[::-1, ::-1], np.asfortranarray,
     lambda a: np.broadcast_to(a[:1], (9, a.shape[1])), lambda a: a.astype(a.dtype.newbyteorder(">"))],
    ids=["transposed", "rows", "columns", "reversed", "fortran", "broadcast", "big-endian"],
)  # fmt: skip
def test_views(view: Any, rng: np.random.Generator) -> None:
    array = view(rng.standard_normal((40, 96)).astype(np.float32))
    plain = np.ascontiguousarray(array, "<f4")
    entries = [wcodec.open(wcodec.compress_to_bytes({"w": a})[0])["w"] for a in (array, plain)]
    assert entries[0].numpy().tobytes() == entries[1].numpy().tobytes()


@pytest.mark.parametrize("isa", wcodec.instruction_sets()[0])
@pytest.mark.parametrize("threads", [1, 2])
def test_instruction_sets_agree(isa: str, threads: int, rng: np.random.Generator) -> None:
    layer = np.clip(np.rint(rng.standard_t(5, (100, 1000)) * 20), -127, 127).astype(np.int8)
    for options in CODERS:
        data, _ = wcodec.Encoder(**options).encode_layer(layer)
        assert np.array_equal(wcodec.Decoder(isa=isa, threads=threads).decode_layer(data, 100, 1000)[0], layer)


def test_every_dtype_is_kept(rng: np.random.Generator) -> None:
    bits = rng.integers(0, 256, 64, np.uint8)
    names = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64", "complex64"]
    kinds = [np.dtype(n) for n in names]
    kinds += [np.dtype(getattr(ml_dtypes, n)) for n in ("float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu")]
    tensors = {k.name: bits.view(k).reshape(2, -1) for k in kinds}
    tensors["bool"] = bits.reshape(4, 16) > 99
    for options in CODERS:
        container = wcodec.open(wcodec.compress_to_bytes(tensors, **options)[0])
        for name, array in tensors.items():
            decoded = container[name].numpy()
            assert decoded.dtype == array.dtype and decoded.tobytes() == array.tobytes(), name
