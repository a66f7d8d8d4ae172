"""The reader of format 1.0, as it was released, with files of format 1.1.

It opens them, reads the tensors that are of 1.0 and refuses the others by name, each by itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import format_reader
import numpy as np
import pytest
import wcodec

from tests.released import reader_1_0

HERE = Path(__file__).parents[1]
GOLDEN = HERE / "data/golden-1.1"
#: of the whole file, comment included
SHA256 = "9284312262b535cc735ef8b8bea5d8fad82f79e05854302ef651b7ebce505f01"
SCHEMES_OF_1_0 = ("int8", "raw")


def mixed() -> bytes:
    """A file of all schemes, written now."""
    rng = np.random.default_rng(9)
    weights = {
        name: rng.standard_t(6, shape).astype(dtype)
        for name, shape, dtype in (
            ("a.int8", (48, 320), np.float32), ("b.rate", (48, 320), np.float32), ("c.lossless", (64, 256), np.float16),
            ("d.int8", (33, 100), np.float16), ("e.rate", (70, 200), np.float32), ("f.bias", (9,), np.float32),
            ("g.stack.int8", (3, 32, 128), np.float32), ("h.conv.int8", (128, 96), np.float32),
        )
    }  # fmt: skip
    rules: dict[str, Any] = {
        "b.*": {"scheme": "rate", "bits": 4.0, "trellis": True},
        "e.*": {"scheme": "rate", "bits": 5.0, "trellis": False, "coder": "huffman"},
        "c.*": {"scheme": "lossless"},
    }
    return wcodec.compress_to_bytes(weights, rules=rules, transpose=["h.*"], optimize="size")[0]


def files() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.wcodec"))} | {"written now": mixed()}


def test_the_reader_is_the_released_one() -> None:
    assert hashlib.sha256((HERE / "released/reader_1_0.py").read_bytes()).hexdigest() == SHA256


@pytest.mark.parametrize("name", files())
def test_files_of_1_1_are_opened_and_their_tensors_of_1_0_read(name: str) -> None:
    file = files()[name]
    assert file[10:12] == bytes([1, 0]), "the minor version"
    old, today = reader_1_0.FormatReader(file), wcodec.open(file)
    assert set(old.names()) == {*today, *today.aliases}
    read = set()
    for tensor in old.names():
        scheme = old.entry(tensor)["scheme"]
        if scheme not in SCHEMES_OF_1_0:
            with pytest.raises(reader_1_0.FormatReaderError) as refused:
                old.values(tensor)
            assert str(refused.value) == f"{tensor}: unknown scheme {scheme!r}"
            continue
        read.add(scheme)
        assert old.raw_bytes(tensor) == today[tensor].numpy().tobytes(), tensor
        if scheme == "int8":
            axis = old.entry(tensor)["matrix"][3]
            symbols, scales = today[tensor].symbols(), today[tensor].scales()
            ours = old.symbols(tensor)
            assert np.array_equal(ours[0].T if axis else ours.reshape(symbols.shape), symbols), tensor
            assert old.scales(tensor).tobytes() == np.ascontiguousarray(scales.T if axis else scales).tobytes(), tensor
    assert read == (set(SCHEMES_OF_1_0) if name in ("mixed", "written now") else {"raw"})


def test_a_damaged_tensor_of_1_1_is_nothing_to_a_reader_of_1_0() -> None:
    file = mixed()
    index = format_reader.FormatReader(file).index
    begin, length, _ = next(t for t in index["tensors"] if t["name"] == "b.rate")["planes"][0]["data"]
    damaged = file[: begin + length // 2] + bytes([file[begin + length // 2] ^ 1]) + file[begin + length // 2 + 1 :]
    old = reader_1_0.FormatReader(damaged)
    assert old.raw_bytes("a.int8") == wcodec.open(file)["a.int8"].numpy().tobytes()
