"""The Rust code against the reader and writer that were written from `codec/FORMAT.md` alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from format_reader import FormatReader
from format_writer import Tensor, write_container

WAYS = [
    *(("rans", layout) for layout in ("byte", "pair")),
    *(("huffman", layout) for layout in ("byte", "pair", "quad")),
    ("zstd", "byte"),
    ("raw", "byte"),
]


def weights() -> dict[str, np.ndarray]:
    """Shapes and distributions that take different ways through the format."""
    rng = np.random.default_rng(3)
    heavy = rng.standard_t(6, (40, 700)).astype(np.float32)
    outlier = rng.standard_normal((64, 512)).astype(np.float32)
    outlier[::7, 3] = 60  # a row's symbols become small, and the outlier a patch
    smooth = np.cumsum(rng.standard_normal((33, 400)), axis=1).astype(np.float32)  # a filter pays
    return {
        "heavy": heavy,
        "half": heavy.astype(np.float16),
        "outlier": outlier,
        "smooth": smooth,
        "stack": rng.standard_t(6, (3, 17, 130)).astype(np.float32),
        "conv1d": rng.standard_t(6, (160, 96)).astype(np.float32),
        "zeros": np.zeros((20, 64), dtype=np.float32),
        "wide": rng.standard_t(6, (1, 5000)).astype(np.float32),
        "ids": rng.integers(-20, 20, (64, 64)).astype(np.int8),
        "bias": rng.standard_normal(9).astype(np.float32),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "scalar": np.float32(3).reshape(()),
    }


@pytest.mark.parametrize(("coder", "layout"), WAYS)
@pytest.mark.parametrize("scale", ["row", "tensor", "block"])
def test_the_page_reads_what_rust_writes(coder: str, layout: str, scale: str, tmp_path: Path) -> None:
    path = tmp_path / "a.wcodec"
    options: dict[str, Any] = {"coder": coder, "layout": layout, "scale": scale, "transpose": ["conv1d"]}
    wcodec.compress(weights(), path, progress=False, **options)
    page = FormatReader(path)
    with wcodec.open(path) as container:
        assert sorted(page.names()) == sorted(container)
        kinds = set()
        for name, entry in container.items():
            if entry.scheme == "int8":
                plane = page.entry(name)["planes"][0]
                kinds.add((plane.get("shift"), plane.get("filter")))
                count, rows, cols, axis = page.entry(name)["matrix"]
                symbols = page.symbols(name)
                assert symbols.shape == (count, rows, cols)
                ours = entry.symbols()
                assert np.array_equal(symbols.reshape(ours.shape) if axis == 0 else symbols[0].T, ours)
                scales = entry.scales().T if axis else entry.scales()
                assert np.array_equal(page.scales(name).ravel(), scales.ravel())
                assert np.array_equal(page.values(name), entry.numpy())
            else:
                assert page.raw_bytes(name) == entry.numpy().tobytes()
    # The cases that the page has most to say about are really there. (Blocks of scales leave little to predict.)
    if coder in ("rans", "huffman") and scale != "block":
        assert ("left" in {name for _, name in kinds}) == (layout != "quad")
        assert layout == "byte" or len({shift for shift, _ in kinds} - {None}) > 1


SHAPES = [(1, 1, 1), (1, 15, 64), (1, 16, 65), (1, 17, 63), (2, 33, 130), (1, 5, 700)]


@pytest.mark.parametrize(
    ("coder", "layout", "filter_name"),
    # Coder raw and layout quad have no filters.
    [
        (*way, name)
        for way in WAYS
        for name in ((None,) if way[0] == "raw" or way[1] == "quad" else (None, "left", "up"))
    ],
)
def test_rust_reads_what_the_page_writes(coder: str, layout: str, filter_name: str | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    tensors, symbols, scales = [], {}, {}
    shifts = {"pair": range(4), "quad": range(5)}.get(layout, [3])
    sizes, few = (8, 9, 10, 11, 12) if coder == "huffman" else (11, 12), 200 if layout == "quad" else 100
    for (count, rows, cols), shift, bits in itertools.product(SHAPES, shifts, sizes):
        name = f"{count}x{rows}x{cols}.{shift}.{bits}"
        spread = (2, 4, 8, 16, 30)[shift] if layout == "quad" else (4, 8, 16, 40)[shift]
        q = np.clip(np.rint(rng.standard_normal((count, rows, cols)) * spread), -127, 127).astype(np.int8)
        if q.size > 1000:
            q.reshape(-1)[:: q.size // 5] = 127
        symbols[name], scales[name] = q, rng.random(count * rows, dtype=np.float32)
        tensors.append(
            Tensor(
                name, q, (count, rows, cols), matrix=(count, rows, cols, 0), scales=scales[name], coder=coder,
                layout=layout, shift=shift, bits=bits, filter=filter_name, chunk=cols * 3,
                alphabet=few if bits in (8, 10, 12) and shift < 3 and filter_name is None and coder == "huffman" else 0,
                raw_chunks=(0,) if rows == 33 else (),
            )
        )  # fmt: skip
    path = tmp_path / "b.wcodec"
    write_container(path, tensors)
    assert wcodec.verify(path, progress=False).ok
    with wcodec.open(path) as container:
        for name, q in symbols.items():
            entry = container[name]
            assert np.array_equal(entry.symbols().reshape(q.shape), q), name
            expected = q.astype(np.float32) * scales[name].reshape(q.shape[0], q.shape[1], 1)
            assert np.array_equal(entry.numpy(), expected), name


def test_the_page_reads_the_real_model(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.wcodec"
    report = wcodec.compress(model, path, progress=False)
    page = FormatReader(path)
    with wcodec.open(path) as container:
        assert page.names() == list(container)
        for name, entry in container.items():
            values = page.values(name) if entry.scheme == "int8" else None
            if values is not None:
                assert values.tobytes() == entry.numpy().tobytes()
            else:
                assert page.raw_bytes(name) == entry.numpy().tobytes()
    assert report.ratio > 1.9
