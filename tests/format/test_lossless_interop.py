"""Scheme `lossless`: the Rust code against the reader and writer that were written from `codec/FORMAT.md` alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from format_reader import FormatReader, FormatReaderError
from format_writer import VARIETIES, Tensor, write_container
from hostile import lossless_tensors, reindexed
from lossless_samples import (
    DTYPES_AND_WAYS,
    VIEWS,
    WIDTHS,
    lossless,
    patterns,
    read_checkpoint,
    write_checkpoint,
)

CODERS = ("rans", "huffman", "zstd", "raw")
Weights = dict[str, tuple[str, tuple[int, ...], bytes]]


def weights(dtype: str) -> Weights:
    """Shapes and contents that take different ways through a writer."""
    rng = np.random.default_rng(8)
    shapes: dict[str, tuple[int, ...]] = {
        "plain": (48, 320), "odd": (319, 319), "stack": (3, 31, 192), "conv": (8, 4, 3, 3), "vector": (700,),
        "scalar": (), "empty": (0, 4), "one": (1, 1), "transposed": (191, 96), "long": (1, 5000), "tall": (2100, 3),
    }  # fmt: skip
    made = {name: (shape, patterns(dtype, int(np.prod(shape, dtype=np.int64)))) for name, shape in shapes.items()}
    some = patterns(dtype, 64 * 256)
    top = {8: 0xF0, 16: 0xFF00, 32: 0xFFFF0000}[WIDTHS[dtype]]
    made["zeros"] = ((64, 256), np.zeros_like(some))
    made["same"] = ((64, 256), np.full_like(some, some[9]))
    made["noise"] = ((64, 256), np.frombuffer(rng.bytes(some.nbytes), some.dtype))
    made["upper bits"] = ((64, 256), some & some.dtype.type(top))
    made["lower bits"] = ((64, 256), some & some.dtype.type(top ^ (1 << WIDTHS[dtype]) - 1))
    made["smooth"] = ((64, 256), (np.cumsum(rng.integers(-1, 2, some.size)) & 0xFF).astype(some.dtype))
    return {name: (dtype, shape, array.tobytes()) for name, (shape, array) in made.items()}


@pytest.mark.parametrize(("coder", "dtype"), [*itertools.product(CODERS, WIDTHS)])
def test_the_page_reads_what_rust_writes(coder: str, dtype: str, tmp_path: Path) -> None:
    expected = weights(dtype)
    source, path = write_checkpoint(tmp_path / "a.safetensors", expected), tmp_path / "a.wcodec"
    wcodec.compress(source, path, scheme="lossless", coder=coder, transpose=["transposed"], progress=False)
    page = FormatReader(path)
    schemes = {name: page.entry(name)["scheme"] for name in page.names()}
    assert set(schemes.values()) <= {"lossless", "raw"} and schemes.keys() == expected.keys()
    for name, (_, shape, data) in expected.items():
        assert page.values(name).shape == shape and page.raw_bytes(name) == data, name
    # Cases that the page says most about do occur, and the file says whether it is of version 1.1.
    if coder in ("rans", "huffman"):
        planes = [plane for name, s in schemes.items() if s == "lossless" for plane in page.entry(name)["planes"]]
        assert {schemes[name] for name in ("plain", "odd", "stack", "transposed")} == {"lossless"}
        assert WIDTHS[dtype] == 8 or "split" in {plane.get("layout") for plane in planes}
    newer = "lossless" in schemes.values()
    assert path.read_bytes()[8:12] == bytes([1, 0, newer, 0]) and page.index["features"] == []


OPTIONS: list[dict[str, Any]] = [
    {"tile": 64, "table_bits": 11}, {"tile": 1024}, {"coder": "huffman", "tile": 192}, {"coder": "zstd", "frame": 999},
]  # fmt: skip


@pytest.mark.parametrize(("options", "dtype"), [*itertools.product(OPTIONS, ("BF16", "F32", "F8_E5M2"))])
def test_the_page_reads_other_options(options: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    expected = weights(dtype)
    source = write_checkpoint(tmp_path / "a.safetensors", expected)
    page = FormatReader(wcodec.compress_to_bytes(source, scheme="lossless", **options)[0])
    assert {name: page.raw_bytes(name) for name in page.names()} == {name: t[2] for name, t in expected.items()}


def test_the_page_reads_the_real_model(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.wcodec"
    report = wcodec.compress(model, path, scheme="lossless", progress=False)
    page, expected = FormatReader(path), read_checkpoint(next(model.glob("*.safetensors")))
    for name in page.names():
        assert page.raw_bytes(name) == expected[name][2], name
    assert set(page.names()) == set(expected) and report.ratio > 1.2


def rust_reads(tensors: list[Tensor], folder: Path) -> None:
    """Everything that reads a container gives the tensors' bytes."""
    path, out = folder / "b.wcodec", folder / "b.safetensors"
    file = write_container(path, tensors)
    assert wcodec.verify(path, progress=False).ok
    wcodec.decompress(path, out, progress=False, overwrite=True)
    decoded = read_checkpoint(out)
    assert list(decoded) == [t.name for t in tensors]
    with wcodec.open(path) as container:
        part = wcodec.open(container.extract([tensors[-1].name]))
        for t in tensors:
            assert decoded[t.name] == (t.dtype, tuple(t.shape), t.data.tobytes()), t.name
            entry = container[t.name]
            assert entry.scheme == "lossless" and entry.shape == tuple(t.shape)
            array = entry.numpy()
            assert array.dtype.itemsize == WIDTHS[t.dtype] // 8 and array.tobytes() == t.data.tobytes(), t.name
            rows = t.shape[0] if t.shape else 0
            for begin, end in {(0, rows), (rows // 3, rows // 2), (rows - 1, rows), (rows // 2, rows // 2)}:
                if rows:
                    some = entry.numpy_rows(begin, end)
                    assert some.tobytes() == array[begin:end].tobytes(), (t.name, begin, end)
        assert part[tensors[-1].name].numpy().tobytes() == tensors[-1].data.tobytes()
    assert wcodec.open(file).keys() == decoded.keys()


@pytest.mark.parametrize(("dtype", "way"), DTYPES_AND_WAYS)
def test_rust_reads_what_the_page_writes(dtype: str, way: str, tmp_path: Path) -> None:
    tensors = [
        lossless(f"{n}", dtype, way, shape, matrix, tile=(64, 128, 1024)[n % 3])
        for n, (shape, matrix) in enumerate(VIEWS)
    ]
    rust_reads(tensors, tmp_path)


@pytest.mark.parametrize(("variety", "coder"), [*itertools.product(range(len(VARIETIES)), ("rans", "huffman"))])
def test_rust_reads_what_writers_may_choose(variety: int, coder: str, tmp_path: Path) -> None:
    planes = [{"fields": [(23, 8), (31, 1), (8, 15)], "layout": "split"}, {"fields": [(0, 8)], "layout": "byte"}]
    tensors = [
        lossless(f"{bits} {tile}", "F32", planes, (17, 300), (1, 17, 300, 0), coder=coder, bits=bits, tile=tile,
                 variety=variety, table_key="all")
        for bits, tile in itertools.product((11, 12), (64, 256))
    ]  # fmt: skip
    rust_reads(tensors, tmp_path)


def test_rust_does_not_need_the_minor_version(tmp_path: Path) -> None:
    """It is for people. Features are for readers: those that a reader does not know are refused by name."""
    for version in ((1, 0), (1, 1), (1, 7)):
        tensors = lossless_tensors()
        file = write_container(None, tensors, version=version)
        assert wcodec.open(file)["w"].numpy().tobytes() == tensors[0].data.tobytes()
    with pytest.raises(wcodec.UnsupportedError, match="planes-1.2"):
        wcodec.open(reindexed(file, lambda index: index["features"].append("planes-1.2")))


def test_a_reader_of_version_1_0(tmp_path: Path) -> None:
    """It reads what it knows of what this version writes, and refuses one tensor."""
    rng, path = np.random.default_rng(2), tmp_path / "a.wcodec"
    arrays = {"w": rng.standard_t(6, (48, 320)).astype(np.float32), "ids": np.arange(7)}
    wcodec.compress(arrays, path, scheme="lossless", progress=False)
    page = FormatReader(path, minor=0)
    assert page.raw_bytes("ids") == arrays["ids"].tobytes()
    with pytest.raises(FormatReaderError, match="w: unknown scheme 'lossless'"):
        page.values("w")


def test_version_1_0_is_written_as_ever(tmp_path: Path) -> None:
    """A file without lossless tensors says nothing of 1.1, so that readers of 1.0 take it."""
    arrays = {"w": np.random.default_rng(2).standard_t(6, (48, 320)).astype(np.float32), "ids": np.arange(7)}
    for scheme in ("int8", "raw"):
        file, _ = wcodec.compress_to_bytes(arrays, scheme=scheme, optimize="size")
        page = FormatReader(file, minor=0)
        assert page.index["features"] == [] and file[8:12] == bytes([1, 0, 0, 0])
        assert page.values("w").shape == (48, 320)
