"""Files that nobody vouches for: what is refused of them, by every way in, and what one word allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import call
from format_writer import Tensor, write_container
from wcodec import CorruptError, FormatError, InputError

CORRUPT = Path(__file__).parents[1] / "data/corrupt"
# 9 KB that are a gigabyte of float32.
BOMB = CORRUPT / "found-bomb.wcodec"


@pytest.fixture(scope="module")
def zeros(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of one tensor of 65 MiB in the largest frames that there may be: just beyond the bounds."""
    path = tmp_path_factory.mktemp("zeros") / "zeros.wcodec"
    shape = [65, 1 << 20]
    data = np.zeros(65 << 20, dtype=np.uint8)
    tensor = Tensor("z", data, shape, dtype="U8", scheme="raw", coder="zstd", chunk=1 << 24)
    write_container(path, [tensor])
    assert path.stat().st_size < 65 << 10
    return path


def test_having_it_whole_is_refused_and_both_sizes_are_said(zeros: Path) -> None:
    with wcodec.open(zeros) as container:
        assert not container.trusted
        entry = container["z"]
        ways: list[Callable[[], Any]] = [
            entry.numpy,
            entry.symbols,
            entry.torch,
            lambda: entry.numpy_rows(0, 65),
            lambda: container.read_rows("z", 0, 65),
            lambda: wcodec.load_file(zeros),
        ]
        for way in ways:
            with pytest.raises(
                InputError, match=r"stored bytes become 68157440 in memory.*trusted=True.*to a file"
            ) as e:
                way()
            assert e.value.tensor == "z" and e.value.file == str(zeros)
        assert not entry.numpy_rows(3, 5).any()
        assert wcodec.verify(zeros, progress=False).ok


def test_one_word_allows_it(zeros: Path) -> None:
    with wcodec.open(zeros, trusted=True) as container:
        assert container.trusted
        assert container["z"].numpy().nbytes == 65 << 20
    with wcodec.open(zeros.read_bytes(), trusted=True) as container:
        assert container["z"].symbols().shape == (65, 1 << 20)
    assert wcodec.load_file(zeros, trusted=True)["z"].nbytes == 65 << 20
    assert wcodec.verify(zeros, trusted=True, progress=False).ok
    assert wcodec.compare(zeros, zeros, trusted=True).same


def test_decoding_to_a_file_needs_no_word(zeros: Path, tmp_path: Path) -> None:
    wcodec.decompress(zeros, tmp_path / "a.safetensors", progress=False)
    wcodec.decompress(zeros, tmp_path / "b.safetensors", trusted=True, progress=False)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_single_layers() -> None:
    layer = np.zeros((65, 1 << 20), dtype=np.int8)
    blob, _ = wcodec.Encoder(format="legacy").encode_layer(layer)
    shape, symbols = list(layer.shape), layer.reshape(-1).view(np.uint8)
    tensor = Tensor("layer", symbols, shape, dtype="I8", scheme="raw", coder="zstd", chunk=1 << 24)
    for data in (blob, write_container(None, [tensor])):
        with pytest.raises(InputError, match="trusted=True"):
            wcodec.Decoder().decode_layer(data)
        decoded, _ = wcodec.Decoder(trusted=True).decode_layer(data)
        assert decoded.shape == layer.shape and not decoded.any()
    assert "trusted=True" in repr(wcodec.Decoder(trusted=True))


@pytest.mark.parametrize("command", ["inspect", "verify", "compare", "decode"])
def test_commands_take_the_word(command: str, zeros: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"compare": [str(zeros)], "decode": ["-o", str(tmp_path / "out.safetensors")]}.get(command, [])
    status, _, said = call(capsys, command, zeros, *more, "--trust")
    assert status == 0, said


def test_a_large_index_is_refused_before_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import xxhash

    path = tmp_path / "large.wcodec"
    length = (256 << 20) + 1
    fields = [64, length, 0, 64 + length, 0]
    header = b"\x89WCODEC\n" + b"\x01" + b"\0" * 7 + b"".join(n.to_bytes(8, "little") for n in fields)
    header += xxhash.xxh3_64_intdigest(header).to_bytes(8, "little")
    with path.open("wb") as file:
        file.write(header)
        file.truncate(64 + length)
    for way in (wcodec.open, wcodec.load_file, lambda p: wcodec.verify(p, progress=False)):
        with pytest.raises(InputError, match=r"an index of 268435457 bytes.*--trust"):
            way(path)
    status, _, said = call(capsys, "verify", path)
    assert status == 2 and "268435457" in said
    with pytest.raises(CorruptError, match="index's hash"):
        wcodec.open(path, trusted=True)


def test_a_bomb_is_verified_and_not_held() -> None:
    assert wcodec.verify(BOMB, progress=False).ok
    with wcodec.open(BOMB) as container, pytest.raises(InputError, match="become 1073741824"):
        container["w"].numpy()


def test_lists_are_no_objects() -> None:
    with pytest.raises(FormatError, match="expected an object"):
        wcodec.open(CORRUPT / "found-table-as-list.wcodec")


def test_values_that_are_not_finite_are_damage() -> None:
    report = wcodec.verify(CORRUPT / "found-infinite.wcodec", progress=False)
    (found,) = report.problems
    assert found.status == "damaged" and "row 0, column 0 is not finite" in found.detail
    assert wcodec.verify(CORRUPT / "found-largest-half.wcodec", progress=False).ok


def test_a_model_that_cannot_be_read_concerns_those_who_ask() -> None:
    data, _ = wcodec.compress_to_bytes({"w": np.ones(3, dtype=np.float32)})
    text = data[int.from_bytes(data[16:24], "little") :].decode()
    for model in ("[" * 5000 + "]" * 5000, "1e999"):
        with wcodec.open(_with_index(data, text.replace('"tables"', f'"model":{model},"tables"', 1))) as container:
            assert container["w"].numpy().sum() == 3
            with pytest.raises(FormatError, match="'model' cannot be read"):
                _ = container.model


def _with_index(data: bytes, index: str) -> bytes:
    import xxhash

    begin, text = int.from_bytes(data[16:24], "little"), index.encode()
    fields = [begin, len(text), xxhash.xxh3_64_intdigest(text), begin + len(text), 0]
    header = data[:16] + b"".join(n.to_bytes(8, "little") for n in fields)
    return header + xxhash.xxh3_64_intdigest(header).to_bytes(8, "little") + data[64:begin] + text
