"""Rows of tensors and containers out of containers, through the Python package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec

CODERS = ("rans", "huffman", "zstd", "raw")


@pytest.fixture
def tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    weight = rng.standard_t(6, (100, 320)).astype(np.float32)
    return {
        "embed": weight,
        "half": rng.standard_t(6, (3, 21, 64)).astype(np.float16),
        "turned": rng.standard_t(6, (64, 48)).astype(np.float32),
        "bytes": np.clip(rng.standard_t(6, (50, 70)) * 22, -127, 127).astype(np.int8),
        "norm": rng.standard_normal(64).astype(np.float16),
        "double": rng.standard_normal((5, 2)),
        "ids": np.arange(9, dtype=np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.5, np.float32),
        "head": weight,
    }


@pytest.fixture(params=CODERS)
def data(request: pytest.FixtureRequest, tensors: dict[str, np.ndarray]) -> bytes:
    return wcodec.compress_to_bytes(tensors, coder=request.param, transpose="turned", metadata={"made": "here"})[0]


def ranges(rows: int) -> list[tuple[int, int]]:
    some = {(0, rows), (0, 0), (rows, rows), (0, 1), (3, 20), (15, 17), (16, 32), (31, rows), (rows - 1, rows)}
    return [(a, b) for a, b in sorted(some) if 0 <= a <= b <= rows]


def test_rows_are_parts_of_the_whole(data: bytes) -> None:
    container = wcodec.open(data)
    for name, entry in container.items():
        for dtype in (None, "float32", np.float16) if entry.dtype in ("F32", "F16", "F64") else (None,):
            whole = entry.numpy(dtype) if entry.shape else None
            for begin, end in ranges(entry.shape[0]) if entry.shape else ():
                some = container.read_rows(name, begin, end, dtype, threads=1)
                assert whole is not None and some.dtype == whole.dtype and some.shape == whole[begin:end].shape
                assert some.tobytes() == whole[begin:end].tobytes(), (name, dtype, begin, end)


def test_rows_as_torch_tensors(data: bytes) -> None:
    torch = pytest.importorskip("torch")
    container = wcodec.open(data)
    for entry in container.values():
        dtypes: tuple[Any, ...] = (None,)
        if entry.scheme == "int8":
            dtypes = (None, "float32", torch.bfloat16, torch.float16, torch.int8)
        elif entry.dtype in ("F16", "F64"):
            dtypes = (None, torch.float32, torch.bfloat16)
        for dtype in dtypes:
            for begin, end in ranges(entry.shape[0]) if entry.shape else ():
                some, whole = entry.torch_rows(begin, end, dtype), entry.torch(dtype)[begin:end]
                assert some.dtype == whole.dtype and some.shape == whole.shape and torch.equal(some, whole)


def test_rows_that_there_are_not(data: bytes) -> None:
    container = wcodec.open(data)
    for begin, end in ((0, 101), (-1, 3), (5, 4), (101, 101)):
        for call in (container["embed"].numpy_rows, container["embed"].torch_rows):
            with pytest.raises(wcodec.InputError, match="it has 100") as caught:
                call(begin, end)
            assert caught.value.tensor == "embed"
    with pytest.raises(wcodec.InputError, match="a scalar has none"):
        container.read_rows("scalar", 0, 1)
    with pytest.raises(wcodec.TensorNotFoundError, match="did you mean 'embed'"):
        container.read_rows("embedd", 0, 1)
    with pytest.raises(wcodec.InputError):
        container.read_rows("ids", 0, 1, "float32")


def test_rows_of_a_damaged_tensor(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "m.wcodec"
    wcodec.save_file(tensors, path)
    segment = next(s for s in wcodec.open(path)["embed"].segments if s.role == "data")
    data = bytearray(path.read_bytes())
    data[segment.offset + segment.length - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(wcodec.CorruptError) as caught:
        wcodec.open(path).read_rows("embed", 0, 1)
    assert caught.value.tensor == "embed" and caught.value.file == str(path)


def stored(data: bytes, entry: wcodec.TensorEntry) -> list[tuple[str, bytes]]:
    return [(s.role, data[s.offset : s.offset + s.length]) for s in entry.segments]


def test_extract(data: bytes) -> None:
    whole = wcodec.open(data)
    for names in (["half"], ["norm", "embed"], ["turned", "bytes", "empty", "scalar"], list(whole)):
        part = whole.extract(names)
        taken = wcodec.open(part)
        assert set(taken) == set(names) and wcodec.verify(part, progress=False).ok
        assert taken.metadata == whole.metadata and taken.model is None
        for name in names:
            a, b = taken[name], whole[name]
            assert a.numpy().tobytes() == b.numpy().tobytes() and a.shape == b.shape and a.coder == b.coder
            # Nothing was encoded: what is stored is what was stored.
            assert dict(stored(part, a)).items() >= {(r, d) for r, d in stored(data, b) if r != "table"}
    assert set(wcodec.open(whole.extract(name for name in ["norm"]))) == {"norm"}


def test_extract_tied(data: bytes) -> None:
    whole = wcodec.open(data)
    assert whole.aliases == {"head": "embed"}
    alone = wcodec.open(whole.extract(["head"]))
    assert list(alone) == ["head"] and alone.aliases == {} and alone["head"].alias_of is None
    assert np.array_equal(alone["head"].numpy(), whole["embed"].numpy())
    assert wcodec.open(whole.extract(["head", "embed"])).aliases == {"head": "embed"}


def test_extract_of_nothing_and_of_what_is_not_there(data: bytes) -> None:
    whole = wcodec.open(data)
    with pytest.raises(wcodec.InputError, match="empty"):
        whole.extract([])
    with pytest.raises(wcodec.InputError, match="list"):
        whole.extract("embed")
    with pytest.raises(wcodec.TensorNotFoundError, match="did you mean 'embed'"):
        whole.extract(["norm", "embde"])
    whole.close()
    with pytest.raises(wcodec.InputError, match="closed"):
        whole.extract(["norm"])


def test_a_real_model_layer_by_layer(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.wcodec"
    wcodec.compress(model, path, progress=False)
    with wcodec.open(path) as whole:
        assert whole.model
        for name, entry in whole.items():
            layer = wcodec.open(whole.extract([name]))
            assert layer[name].numpy("float32").tobytes() == entry.numpy("float32").tobytes()
        embed = whole["model.embed_tokens.weight"]
        for token in (0, 17, embed.shape[0] - 1):
            assert np.array_equal(embed.numpy_rows(token, token + 1), embed.numpy()[token : token + 1])
