"""Everything that goes wrong is a WcodecError that names the place, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec

W = {"w": np.ones((4, 64), np.float32)}


def test_hierarchy() -> None:
    for name in ("FormatError", "CorruptError", "UnsupportedError", "InputError", "FileError"):
        assert issubclass(getattr(wcodec, name), wcodec.WcodecError)
    assert issubclass(wcodec.InputError, ValueError) and issubclass(wcodec.FileError, OSError)
    assert issubclass(wcodec.TensorNotFoundError, KeyError)
    error = wcodec.CorruptError("bad", file=Path("f"), tensor="t", offset=3)
    copy = pickle.loads(pickle.dumps(error))
    place = (copy.file, copy.tensor, copy.offset)
    assert (str(copy), *place, type(copy)) == ("bad [C000]", "f", "t", 3, wcodec.CorruptError)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("options", [{}, {"scale": "tensor"}, {"scale": "block"}, {"coder": "zstd"}])
def test_weights_that_are_not_finite(value: float, dtype: Any, options: dict[str, Any], tmp_path: Path) -> None:
    bad = np.ones((20, 300), dtype)
    bad[13, 271] = value
    with pytest.raises(wcodec.InputError, match="row 13, column 271") as caught:
        wcodec.compress({"good": W["w"], "bad": bad}, tmp_path / "x.wcodec", progress=False, **options)
    assert caught.value.tensor == "bad" and ("NaN" in str(caught.value)) == bool(np.isnan(value))
    assert os.listdir(tmp_path) == []
    data, _ = wcodec.compress_to_bytes({"bad": bad}, exclude="bad", **options)
    assert np.array_equal(wcodec.open(data)["bad"].numpy(), bad, equal_nan=True)


def test_existing_output(tmp_path: Path) -> None:
    path, back = tmp_path / "x.wcodec", tmp_path / "x.safetensors"
    path.write_text("precious")
    back.write_text("precious")
    with pytest.raises(wcodec.OutputExistsError) as caught:
        wcodec.compress(W, path, progress=False)
    assert isinstance(caught.value, FileExistsError) and caught.value.file == str(path) and caught.value.errno
    assert path.read_text() == "precious"
    wcodec.compress(W, path, overwrite=True, progress=False)
    with pytest.raises(FileExistsError):
        wcodec.decompress(path, back, progress=False)
    assert back.read_text() == "precious"
    wcodec.decompress(path, back, overwrite=True, progress=False)
    assert sorted(os.listdir(tmp_path)) == ["x.safetensors", "x.wcodec"]


def test_missing_files(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    for call in (
        lambda: wcodec.open(missing),
        lambda: wcodec.compress(missing, tmp_path / "x", progress=False),
        lambda: wcodec.compress(W, missing / "x.wcodec", progress=False),
        lambda: wcodec.load_file(missing),
        lambda: wcodec.verify(missing, progress=False),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert isinstance(caught.value, wcodec.WcodecError) and str(tmp_path) in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(wcodec.FileError, match="irectory"):
        wcodec.compress(W, file / "x.wcodec", progress=False)
    assert os.listdir(tmp_path) == ["file"]
    # The temporary file has a name that nobody knows.
    with pytest.raises(wcodec.FileMissingError, match="check the path") as caught:
        wcodec.compress(W, tmp_path / "no" / "x.wcodec", progress=False)
    assert caught.value.file == str(tmp_path / "no" / "x.wcodec") and ".part" not in str(caught.value)


def test_a_missing_shard(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "1.safetensors"}}')
    with pytest.raises(wcodec.FileMissingError, match="download") as caught:
        wcodec.compress(tmp_path, tmp_path / "x.wcodec", progress=False)
    assert caught.value.file == str(tmp_path / "1.safetensors") and caught.value.errno == errno.ENOENT


def test_unwritable_folder(tmp_path: Path) -> None:
    folder = Path("/sys")
    if os.geteuid() != 0:
        folder = tmp_path
        folder.chmod(0o500)
    elif not (folder / "kernel").exists():
        pytest.skip("root may write everywhere, and this system has no folder that refuses even root")
    with pytest.raises(wcodec.FilePermissionError, match="permissions") as caught:
        wcodec.compress(W, folder / "x.wcodec", progress=False)
    assert isinstance(caught.value, PermissionError) and caught.value.file == str(folder / "x.wcodec")


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 64, b"PK\3\4" * 100, b"\x89WCODEC\n" + b"\0" * 56])
def test_not_a_container(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises((wcodec.FormatError, wcodec.CorruptError)):
            wcodec.open(source)


def test_truncation(tmp_path: Path) -> None:
    data, _ = wcodec.compress_to_bytes({"w": np.random.default_rng(1).standard_normal((32, 128)).astype(np.float32)})
    for length in range(0, len(data), 7):
        with pytest.raises(wcodec.WcodecError):
            wcodec.open(data[:length])


def test_not_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for data in (b"", b"\xff" * 8, b"\2\0\0\0\0\0\0\0{}x", (10**6).to_bytes(8, "little")):
        path.write_bytes(data)
        with pytest.raises(wcodec.WcodecError) as caught:
            wcodec.compress(path, tmp_path / "x.wcodec", progress=False)
        assert caught.value.file == str(path)
    with pytest.raises(wcodec.InputError, match="safetensors"):
        (tmp_path / "empty").mkdir()
        wcodec.compress(tmp_path / "empty", tmp_path / "x.wcodec", progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "int4"}, {"coder": "lzma"}, {"scale": "column"}, {"layout": "triple"}, {"block": 128},
        {"scale": "block", "block": 17}, {"scale": "block", "block": 0}, {"tile": 63}, {"tile": -64}, {"threads": 0},
        {"threads": True}, {"threads": 2**70},
        {"include": "["}, {"include": [3]}, {"metadata": {"a": 1}},
        {"level": "high"},
        {"coder": "zstd", "level": 99}, {"coder": "zstd", "level": 2**40}, {"coder": "zstd", "level": -(2**40)},
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(wcodec.InputError):
        wcodec.compress(W, tmp_path / "x.wcodec", progress=False, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "tensors",
    [{"w": [1, 2]}, {"w": None}, {"": W["w"]}, {3: W["w"]}, {"w": np.array(["a"])}, {"w": np.array([{}])},
     {"w": np.zeros(2, np.complex128)}, {"w": np.zeros(2, "f4,f4")}],
)  # fmt: skip
def test_wrong_tensors(tensors: dict[Any, Any]) -> None:
    with pytest.raises(wcodec.InputError):
        wcodec.compress_to_bytes(tensors)


def test_wrong_kinds() -> None:
    with pytest.raises(wcodec.InputError, match="compress"):
        wcodec.save_file("model.safetensors", "x.wcodec")  # type: ignore[arg-type]
    with pytest.raises(wcodec.InputError, match="framework"):
        wcodec.load_file("x.wcodec", "jax")
    with pytest.raises(wcodec.WcodecError, match="neon"):
        wcodec.Decoder(isa="neon").decode_layer(wcodec.Encoder().encode_layer(np.ones((2, 2), np.int8))[0])
    with pytest.raises(wcodec.InputError, match="a path must be text or a pathlib.Path, not 3"):
        wcodec.open(3)  # type: ignore[arg-type]
