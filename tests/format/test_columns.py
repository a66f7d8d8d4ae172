"""Scheme `columns`: the page's reader and writer, and the Rust code against both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from format_reader import FormatReader, FormatReaderError
from format_writer import Tensor, write_container
from lossless_samples import VIEWS
from rate_samples import CODINGS, DTYPES, FACTORS, NO_NUMBERS, WHOLE, expected, floats, rate, same

from tests.format.test_rate_interop import rust_reads


def check(*tensors: Tensor) -> FormatReader:
    """Write tensors, and compare what is read with what was written."""
    file = write_container(None, tensors)
    assert file[8:12] == bytes([1, 0, 3, 0])
    reader = FormatReader(file)
    for t in tensors:
        assert t.factors is not None
        np.testing.assert_array_equal(reader.symbols(t.name), t.data)
        assert same(reader.scales(t.name).ravel(), floats(t.scales), "F32")
        assert same(reader.factors(t.name).ravel(), floats(t.factors), "F32")
        values = reader.values(t.name)
        assert values.shape == tuple(t.shape) and same(values, expected(t), t.dtype), t.name
    return reader


def test_by_hand() -> None:
    """Two matrices of two rows and three columns: level, times the row's scale, times the column's factor."""
    symbols = np.array([[[0, 1, -1], [-2, 3, 0]], [[0, 0, 0], [7, -8, 1]]], np.int8)
    t = rate("w", (2, 2, 3), (2, 2, 3, 0), symbols=symbols, dtype="F32", filter=None, coder="raw",
             scales=[0x3F80, 0x4000, 0x4040, 0x3F00],
             factors=[0x3F80, 0x4000, 0x3F00, 0x4080, 0x3E80, 0x3F80])  # fmt: skip
    values = check(t).values("w")
    # scales 1, 2, 3 and 1/2; factors 1, 2 and 1/2 of the first matrix, 4, 1/4 and 1 of the second
    assert values.tolist() == [[[0.5, 3.0, -0.25], [-3.0, 14.0, 0.5]], [[6.0, 0.375, 1.5], [15.0, -0.9375, 0.75]]]
    turned = rate("t", (3, 2), (1, 2, 3, 1), symbols=symbols[:1], dtype="F32", filter=None, coder="raw",
                  scales=[0x3F80, 0x4000], factors=[0x3F80, 0x4000, 0x3F00])  # fmt: skip
    assert check(turned).values("t").tolist() == [[0.5, -3.0], [3.0, 14.0], [-0.25, 0.5]]


def test_the_order_of_products() -> None:
    """A first product beyond float32's range is not brought back by the second one."""
    symbols = np.full((1, 2, 2), 126, np.int8)
    # 2^127 and 2^-133; 2^-64 and 2^64
    t = rate("w", (2, 2), (1, 2, 2, 0), symbols=symbols, dtype="F32", filter=None, coder="raw",
             scales=[0x7F00, 0x0001], factors=[0x1F80, 0x5F80])  # fmt: skip
    values = check(t).values("w")
    assert np.isposinf(values[0]).all() and values[1].tolist() == [0.0, 126.5 * 2.0**-69]
    for rows in (range(2), range(1)):
        assert (
            wcodec.open(write_container(None, [t]))["w"][rows.start : rows.stop].tolist()
            == values[: len(rows)].tolist()
        )


@pytest.mark.parametrize(("coder", "layout", "shift", "name"), CODINGS)
def test_every_coding(coder: str, layout: str, shift: int, name: str | None, tmp_path: Path) -> None:
    options: dict[str, Any] = {"coder": coder, "layout": layout, "shift": shift, "filter": name, "factors": FACTORS}
    tensors = [
        rate("w", (2, 17, 150), (2, 17, 150, 0), raw_chunks=(1, 4), pad=253, chunk=450, bits=11, **options),
        rate("t", (150, 33), (1, 33, 150, 1), tile=128, dtype="F32", chunk=150, wrap=61, **options),
        rate("e", (33, 129), (1, 33, 129, 0), tile=1024, dtype="F32", chunk=129 * 3, **options),
    ]
    check(*tensors)
    rust_reads(tensors, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_view(dtype: str, tmp_path: Path) -> None:
    ways = [{"coder": coder, "layout": layout, "shift": shift} for coder, layout, shift in WHOLE]
    tensors = [
        # factors and scales that are finite together in every dtype
        rate(f"{n}", shape, matrix, dtype=dtype, factors=FACTORS[:5], scales=[0x3C8D, 0x3D31], **ways[n % 5])
        for n, (shape, matrix) in enumerate(VIEWS)
    ]
    check(*tensors)
    rust_reads(tensors, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_that_no_writer_writes(dtype: str, tmp_path: Path) -> None:
    """Values are computed all the same; verifying says that they are damage."""
    for n, factors in enumerate(([0, 0x3F80], [0x3F80, 0xBF80], [0x8000], NO_NUMBERS, [0x7F7F, 0x0001])):
        t = rate("w", (9, 70), (1, 9, 70, 0), factors=factors, dtype=dtype, coder=("rans", "huffman")[n % 2])
        check(t)
        rust_reads([t], tmp_path, finite=False)


def test_the_page_reads_what_rust_writes() -> None:
    rng = np.random.default_rng(6)
    shapes: dict[str, tuple[int, ...]] = {
        "plain": (48, 320), "odd": (79, 319), "stack": (3, 31, 192), "conv": (64, 4, 3, 3), "transposed": (191, 96),
    }  # fmt: skip
    given = {name: (rng.standard_t(6, shape) * 0.02).astype(np.float32) for name, shape in shapes.items()}
    cols = {"plain": 320, "odd": 319, "stack": 576, "conv": 36, "transposed": 191}
    columns = {name: np.exp(rng.standard_normal(n)) for name, n in cols.items()}
    for options in ({"coder": "rans", "trellis": True}, {"coder": "huffman"}, {"coder": "zstd"}):
        file, _ = wcodec.compress_to_bytes(
            given | {"without": given["plain"] + 1}, bits=5.0, columns=columns, transpose=["transposed"], **options
        )
        page, container = FormatReader(file), wcodec.open(file)
        assert file[8:12] == bytes([1, 0, 3, 0])
        for name, entry in container.items():
            assert page.raw_bytes(name) == entry.numpy().tobytes(), name
            found = entry.column_factors()
            assert page.entry(name)["scheme"] == ("rate" if found is None else "columns")
            assert found is None or page.factors(name).tobytes() == found.tobytes()
            assert (found is None) == (name == "without") and page.scales(name).size == entry.scales().size


def test_earlier_readers_refuse_the_tensor_alone() -> None:
    given = {name: np.random.default_rng(2).standard_t(6, (48, 320)).astype(np.float32) for name in "ab"}
    file, _ = wcodec.compress_to_bytes(given, bits=4.0, columns={"a": np.arange(1, 321)})
    page = FormatReader(file, minor=2)
    assert page.raw_bytes("b") == wcodec.open(file)["b"].numpy().tobytes()
    with pytest.raises(FormatReaderError, match="a: unknown scheme 'columns'"):
        page.values("a")
