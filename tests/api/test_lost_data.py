"""Folders and files of others stay: outputs that would lose something, killed processes, file systems that refuse."""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import Cli, contents
from wcodec._core.options import is_statistics_file

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="system calls of Linux")
posix = pytest.mark.skipif(os.name != "posix", reason="files of POSIX")


# Folders


def test_a_folder_that_holds_its_source_is_not_replaced(copy: Path, tmp_path: Path, run: Cli) -> None:
    out = tmp_path / "out"
    assert run("encode", copy, "-o", f"{out}/", "-q")[0] == 0
    (out / "deep/down").mkdir(parents=True)
    inside = out / "deep/down/source"
    copy.rename(inside)
    (tmp_path / "link").symlink_to(inside)
    (tmp_path / "files").mkdir()
    for path in inside.iterdir():
        # As the cache of the Hub has it.
        (tmp_path / "files" / path.name).symlink_to(path)
    before = contents(out)
    for source in (inside, tmp_path / "link", tmp_path / "files"):
        status, _, err = run("encode", source, "-o", f"{out}/", "--overwrite", "-q")
        assert status == 2 and "holds what is read" in err, err
    assert contents(out) == before
    # Hard links: another name of a file that is read.
    shutil.move(inside, tmp_path / "source")
    shutil.rmtree(out / "deep")
    os.link(tmp_path / "source/model.safetensors", out / "kept.safetensors")
    status, _, err = run("encode", tmp_path / "source", "-o", f"{out}/", "--overwrite", "-q")
    assert status == 2 and "holds what is read" in err, err


def test_what_is_not_of_the_model_stays_in_its_folder(copy: Path, tmp_path: Path, run: Cli) -> None:
    out = tmp_path / "out"
    assert run("encode", copy, "-o", f"{out}/", "-q")[0] == 0
    (out / "NOTES.md").write_text("mine")
    (out / "results.json").write_text("{}")
    first = (out / "model.wcodec").read_bytes()
    assert run("encode", copy, "-o", f"{out}/", "--bits", "5", "--overwrite", "-q")[0] == 0
    assert (out / "model.wcodec").read_bytes() != first
    assert ((out / "NOTES.md").read_text(), (out / "results.json").read_text()) == ("mine", "{}")
    assert sorted(os.listdir(tmp_path)) == ["model", "out"]
    (out / "runs").mkdir()
    before = contents(out)
    status, _, err = run("encode", copy, "-o", f"{out}/", "--overwrite", "-q")
    assert status == 2 and "'runs', which is no file of a compressed model" in err and contents(out) == before


@posix
def test_the_folder_that_a_command_runs_in(
    copy: Path, tmp_path: Path, run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out in ("./", "../here/"):
        status, _, err = run("encode", copy, "-o", out, "-q")
        assert status == 2 and "the one that the command runs in" in err, err
    assert os.listdir(".") == [] and run("encode", copy, "-o", "new/", "-q")[0] == 0


def test_what_appears_while_a_folder_is_encoded_stays(copy: Path, tmp_path: Path) -> None:
    def meanwhile(*_: Any) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/precious").write_text("days of work")

    for overwrite in (False, True):
        with pytest.raises(wcodec.InputError, match="which is not replaced"):
            wcodec.compress(copy, f"{tmp_path}/out/", overwrite=overwrite, progress=meanwhile)
        assert sorted(os.listdir(tmp_path)) == ["model", "out"] and os.listdir(tmp_path / "out") == ["precious"]


_KILLED = """
import os, sys, wcodec
wcodec.compress(sys.argv[1], sys.argv[2], overwrite=True, progress=lambda *a: os.kill(os.getpid(), 9))
"""


@linux
def test_folders_of_killed_processes_are_removed_and_no_others(copy: Path, tmp_path: Path, run: Cli) -> None:
    out = tmp_path / "out"
    assert run("encode", copy, "-o", f"{out}/", "-q")[0] == 0
    before = contents(out)
    assert subprocess.run([sys.executable, "-c", _KILLED, copy, f"{out}/"]).returncode == -9
    (left,) = set(os.listdir(tmp_path)) - {"model", "out"}
    assert left.startswith(".wcodec-") and contents(out) == before
    # Another machine's, and what only looks so.
    node, process, *rest = left.removeprefix(".wcodec-").split("-")
    others = [f".wcodec-{'0123456789abcdef'}-{process}-{'-'.join(rest)}", ".out-x3kd9", f".wcodec-{node}.folder"]
    for other in others:
        shutil.copytree(tmp_path / left, tmp_path / other)
    # Any output there will do.
    wcodec.save_file({"w": np.ones((64, 64), np.float32)}, tmp_path / "x.wcodec")
    assert sorted(os.listdir(tmp_path)) == sorted(["model", "out", "x.wcodec", *others])
    assert contents(out) == before


# System calls that file systems refuse. A filter of the kernel makes them fail, in a process of its own.

_REFUSE = """
import ctypes, struct, sys, os
NUMBERS = {"x86_64": {"renameat2": 316, "linkat": 265, "link": 86, "rename": 82, "renameat": 264, "flock": 73},
           "aarch64": {"renameat2": 276, "linkat": 37, "renameat": 38, "flock": 32}}[os.uname().machine]
def refuse(**errors):
    rules = [struct.pack("HBBI", 0x20, 0, 0, 0)]
    for name, error in errors.items():
        if name in NUMBERS:
            rules.append(struct.pack("HBBI", 0x15, 0, 1, NUMBERS[name]))
            rules.append(struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | error))
    rules.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
"""
filters = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"),
    reason="filters of system calls",
)


def refusing(code: str, *arguments: str | Path, **errors: int) -> subprocess.CompletedProcess[str]:
    before = f"{_REFUSE}\nimport numpy as np, wcodec\nrefuse(**{errors!r})\n"
    command = [sys.executable, "-c", before + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


_SAVE = "wcodec.save_file({'w': np.ones((64, 64), np.float32)}, sys.argv[1], overwrite=len(sys.argv) > 2)"


@filters
@pytest.mark.parametrize("error", [22, 38, 1, 95])
def test_files_where_nothing_can_be_renamed_without_replacing(error: int, tmp_path: Path) -> None:
    out = tmp_path / "a.wcodec"
    done = refusing(_SAVE, out, renameat2=error, linkat=1, link=1)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == ["a.wcodec"] and wcodec.load_file(out)["w"].shape == (64, 64)
    done = refusing(_SAVE, out, renameat2=error, linkat=1, link=1)
    assert "OutputExistsError" in done.stderr and os.listdir(tmp_path) == ["a.wcodec"]


@filters
def test_a_finished_file_stays_where_nothing_can_be_renamed(tmp_path: Path) -> None:
    refused = {"renameat2": 22, "linkat": 1, "link": 1, "rename": 5, "renameat": 5}
    for more in ([], ["overwrite"]):
        done = refusing(_SAVE, tmp_path / "a.wcodec", *more, **refused)
        assert "it is complete, as '" in done.stderr, done.stderr
        said = Path(done.stderr.split("it is complete, as '")[1].split("'")[0])
        # The next writer to the folder leaves it.
        wcodec.save_file({"v": np.ones((64, 64), np.float32)}, tmp_path / "b.wcodec")
        assert wcodec.load_file(said)["w"].shape == (64, 64)
        said.unlink()


@filters
def test_folders_where_nothing_can_be_exchanged(copy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "wcodec.compress(sys.argv[1], sys.argv[2], overwrite=True, progress=False, bits=float(sys.argv[3]))"
    wcodec.compress(copy, f"{out}/", progress=False)
    (out / "NOTES.md").write_text("mine")
    first = (out / "model.wcodec").read_bytes()
    done = refusing(code, copy, f"{out}/", "6", renameat2=22, linkat=1, link=1)
    assert done.returncode == 0 and (out / "model.wcodec").read_bytes() != first, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["model", "out"] and (out / "NOTES.md").read_text() == "mine"
    before = contents(out)
    done = refusing(code, copy, f"{out}/", "7", renameat2=22, linkat=1, link=1, rename=5, renameat=5)
    assert "it is complete, as '" in done.stderr and contents(out) == before, done.stderr
    assert Path(done.stderr.split("it is complete, as '")[1].split("'")[0]).is_file()


@filters
def test_files_where_locks_mean_nothing(tmp_path: Path) -> None:
    # A filter that answers 0: every lock is had, as on file systems that lock for one machine.
    code = f"{_REFUSE}\nimport numpy as np, wcodec, time\nrefuse(flock=0)\n"
    slow = code + "from wcodec._core.paths import output\nwith output(sys.argv[1]) as out:\n    out.write(b'x')\n"
    slow += "    print(flush=True)\n    sys.stdin.readline()\n    out.finish()"
    command = [sys.executable, "-c", slow, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout and first.stdin and first.stdout.readline() == "\n"
        second = subprocess.run([sys.executable, "-c", code + _SAVE, str(tmp_path / "b")], timeout=120)
        first.stdin.write("\n")
        first.stdin.close()
        assert (second.returncode, first.wait(60)) == (0, 0)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


# Statistics


@pytest.fixture(scope="module")
def statistics(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("statistics") / "s.stats"
    assert wcodec.cli.main(["calibrate", str(model), "-o", str(path), "--windows", "2", "--length", "16", "-q"]) == 0
    return path


def test_statistics_replace_nothing_that_is_read_and_only_statistics(
    copy: Path, statistics: Path, tmp_path: Path, run: Cli
) -> None:
    text = tmp_path / "text"
    text.write_text("some words " * 200)
    os.link(copy / "model.safetensors", tmp_path / "again")
    before = contents(tmp_path)
    for out in (*copy.iterdir(), tmp_path / "again", text):
        status, _, err = run("calibrate", copy, "--text", text, "-o", out, "--overwrite", "-q")
        assert status == 2 and "what is read would be lost" in err, err
    found = wcodec.Statistics.load(statistics)
    for name in ("again", "text", "model/config.json"):
        with pytest.raises(wcodec.InputError, match="something else than statistics"):
            found.save(tmp_path / name, overwrite=True)
    assert contents(tmp_path) == before
    # Those that are there may be replaced, in the model's folder, too.
    found.save(copy / "statistics.safetensors")
    options = ("--windows", "2", "--length", "16", "--overwrite", "-q")
    assert run("calibrate", copy, "-o", copy / "statistics.safetensors", *options)[0] == 0
    # And they are not replaced by what is encoded with them.
    for ending in ("", ".stats"):
        path = Path(shutil.copy(statistics, tmp_path / f"mine{ending}"))
        status, _, err = run("encode", copy, "--statistics", path, "-o", path, "--overwrite", "-q")
        assert status == 2 and "what is read would be lost" in err and path.read_bytes() == statistics.read_bytes()


def test_statistics_of_any_ending_are_read(copy: Path, statistics: Path, tmp_path: Path, run: Cli) -> None:
    for name in ("a.stats", "b", "c.safetensors", "d.txt"):
        path = Path(shutil.copy(statistics, tmp_path / name))
        assert is_statistics_file(path) and is_statistics_file(str(path))
        assert wcodec.Statistics.load(path).units == wcodec.Statistics.load(statistics).units
    out = tmp_path / "x.wcodec"
    assert run("encode", copy, "--statistics", tmp_path / "d.txt", "--bits", "6", "-o", out, "-q")[0] == 0
    (tmp_path / "text").write_text("no statistics")
    status, _, err = run("encode", copy, "--statistics", tmp_path / "text", "-o", tmp_path / "x.wcodec", "-q")
    assert status == 2 and "not a file of statistics" in err, err


def _changed(source: Path, out: Path, change: Callable[[dict[str, Any], bytearray], None]) -> Path:
    raw = bytearray(source.read_bytes())
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    change(header, data)
    text = json.dumps(header).encode()
    out.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return out


@pytest.mark.parametrize("value", [60000.0, 1.5, -1.5, np.inf, -np.inf, np.nan])
def test_correlations_beyond_one(value: float, statistics: Path, tmp_path: Path) -> None:
    def change(header: dict[str, Any], data: bytearray) -> None:
        key = next(k for k in header if k.endswith("correlations"))
        end = header[key]["data_offsets"][1]
        data[end - 2 : end] = np.float16(value).tobytes()

    with pytest.raises(wcodec.FormatError, match="beyond 1"):
        wcodec.Statistics.load(_changed(statistics, tmp_path / "s", change))


@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan, 3e38])
def test_second_moments_that_are_none(value: float, statistics: Path, tmp_path: Path) -> None:
    def change(header: dict[str, Any], data: bytearray) -> None:
        begin = header[next(k for k in header if k.endswith("diagonal"))]["data_offsets"][0]
        data[begin : begin + 4] = np.float32(value).tobytes()

    with pytest.raises(wcodec.FormatError, match="negative or not finite"):
        wcodec.Statistics.load(_changed(statistics, tmp_path / "s", change))


# Pipes, and what never ends


@posix
def test_nothing_waits_for_a_pipe(copy: Path, tmp_path: Path, run: Cli) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done: list[str] = []

    def all_of_them() -> None:
        for use in (
            lambda: wcodec.open(pipe),
            lambda: wcodec.verify(pipe, progress=False),
            lambda: wcodec.compress(pipe, tmp_path / "x.wcodec", progress=False),
            lambda: wcodec.compress(copy, tmp_path / "x.wcodec", calibrate=pipe, progress=False),
            lambda: wcodec.compress(copy, tmp_path / "x.wcodec", budget="5 bits", text=pipe, progress=False),
            lambda: wcodec.decompress(pipe, tmp_path / "x.safetensors", progress=False),
            lambda: wcodec.load_model(pipe),
            lambda: wcodec.Statistics.load(pipe),
            lambda: wcodec.Statistics.load("/dev/zero"),
            lambda: wcodec.save_file({"w": np.ones((64, 64), np.float32)}, pipe),
        ):
            with pytest.raises(wcodec.WcodecError):
                use()
            done.append("one")

    thread = threading.Thread(target=all_of_them, daemon=True)
    thread.start()
    thread.join(60)
    assert len(done) == 10 and not (tmp_path / "x.wcodec").exists()
    for arguments in (
        ("encode", copy, "--statistics", pipe, "-o", tmp_path / "x.wcodec"),
        ("calibrate", copy, "--text", "/dev/zero", "-o", tmp_path / "s"),
    ):
        status, _, err = run(*arguments)
        assert status == 2 and "not a regular file" in err, err


@posix
def test_the_inspector_waits_for_no_pipe(copy: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "odd").mkdir()
    shutil.copy(copy / "model.safetensors", tmp_path / "odd")
    os.mkfifo(tmp_path / "odd/config.json")
    weights = str(copy / "model.safetensors")
    code = "import sys\nfrom wcodec._tui import main\nsys.exit(main())"
    for arguments in (
        [pipe], ["/dev/zero"], [weights, "--keys", pipe], [weights, "--keys", "/dev/zero"], [weights, "--ref", pipe],
        [weights, "--log", pipe], [weights, weights, "--log", copy / "config.json"],
    ):  # fmt: skip
        command = [sys.executable, "-c", code, *map(str, arguments), "--plain"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and "wcodec-tui: error" in done.stderr, (arguments, done.stderr)
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "odd", "--plain"], timeout=30, capture_output=True)
    assert done.returncode == 0, done.stderr


# Tensors that are not what they seem


class Changing(Mapping[str, Any]):
    """Arrays that are others from some look on."""

    def __init__(self, before: Any, after: Any, looks: int) -> None:
        self.before, self.after, self.looks = before, after, looks

    def __iter__(self) -> Iterator[str]:
        return iter(["a", "b"])

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: str) -> Any:
        self.looks -= 1
        return self.before if self.looks >= 0 else self.after


@pytest.mark.parametrize("way", [{"scheme": "rate", "bits": 6}, {}, {"scheme": "lossless"}, {"scheme": "raw"}])
@pytest.mark.parametrize("looks", [4, 5, 6, 7])
def test_mappings_that_change_while_they_are_read(way: dict[str, Any], looks: int) -> None:
    before = np.ones((160, 64), np.float32)
    for after in (np.ones((1, 64), np.float32), np.ones((64, 160), np.float32), np.ones((160, 64), np.int32), None):
        for wrap in (lambda a: a, lambda a: a if a is None else torch.from_numpy(a)):
            try:
                wcodec.compress_to_bytes(Changing(wrap(before), wrap(after), looks), **way)
            except wcodec.InputError as error:
                assert error.tensor in ("a", "b")
            else:
                # It was not looked at any more.
                assert looks >= 5


def test_views_that_are_seen_in_another_way_are_other_tensors(tmp_path: Path) -> None:
    c = torch.complex(torch.randn(16, 64), torch.randn(16, 64))
    whole = torch.randn(32, 64)
    kinds = {
        "conj": (c, c.conj()), "neg": (c.imag, c.conj().imag), "offset": (whole[:16], whole[16:]),
        "strides": (whole[:32, :32], whole[:32, :32].t()), "bits": (whole, whole.view(torch.int32)),
        "shape": (whole, whole.view(64, 32)),
    }  # fmt: skip
    for name, (a, b) in kinds.items():
        path = tmp_path / f"{name}.wcodec"
        wcodec.save_file({"a": a, "b": b, "again": a}, path, scheme="raw")
        with wcodec.open(path) as container:
            assert dict(container.aliases) == {"again": "a"}, name
            assert torch.equal(container["b"].torch(), b.resolve_conj().resolve_neg()), name


def test_tensors_whose_elements_are_elsewhere() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(torch.randn(16, 64), torch.randn(16, 64))
    nested = [torch.nested.nested_tensor([torch.randn(2, 3)])]
    if hasattr(torch, "jagged"):
        nested.append(torch.nested.nested_tensor([torch.randn(2, 3)], layout=torch.jagged))
    for tensor in (pair, torch.nn.Parameter(pair), *nested, torch.nn.parameter.UninitializedParameter()):
        with pytest.raises(wcodec.InputError, match="tensor 'a'"):
            wcodec.compress_to_bytes({"a": tensor})

    class Sharded(TwoTensor):
        def full_tensor(self) -> Any:
            return self.a

    with pytest.raises(wcodec.InputError, match="full_tensor"):
        wcodec.compress_to_bytes({"a": Sharded(torch.randn(16, 64), torch.randn(16, 64))})
    torch.func.vmap(lambda t: pytest.raises(wcodec.InputError, wcodec.compress_to_bytes, {"a": t}) and t)(pair.a)
    with pytest.raises(wcodec.InputError, match="mask would be lost"):
        wcodec.compress_to_bytes({"a": np.ma.masked_array(np.ones((4, 4)), np.eye(4))})


# Dtypes that are not known


def _safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_tensors_of_other_dtypes_are_kept_and_the_rest_is_readable(tmp_path: Path, run: Cli) -> None:
    from format_reader import FormatReader, FormatReaderError

    weights = np.linspace(-1, 1, 64 * 64, dtype=np.float32)
    tensors = {
        "w": ("F32", [64, 64], weights.tobytes()), "f4": ("F4", [2, 8], bytes(range(8))),
        "f6": ("F6_E2M3", [4, 4], bytes(range(12))), "later": ("X3_NEW", [5], bytes(7) * 600),
    }  # fmt: skip
    source = _safetensors(tmp_path / "m.safetensors", tensors)
    for way in ([], ["--scheme", "raw"], ["--scheme", "lossless"], ["--skip", "f*"], ["--exclude", "f*"],
                ["--coder", "zstd"], ["--bits", "6"]):  # fmt: skip
        out, back = tmp_path / "m.wcodec", tmp_path / "back.safetensors"
        status, _, err = run("encode", source, "-o", out, "--overwrite", "-q", *way)
        assert status == 0, err
        assert run("verify", out, "--against", source, "-q")[0] == int("--skip" in way)
        assert run("decode", out, "-o", back, "--overwrite", "-q")[0] == 0
        raw = back.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        reader, older = FormatReader(out), FormatReader(out, minor=2)
        for name, (dtype, shape, data) in tensors.items():
            if "--skip" in way and name.startswith("f"):
                assert name not in header
                continue
            begin, end = header[name]["data_offsets"]
            assert (header[name]["dtype"], header[name]["shape"]) == (dtype, shape)
            assert reader.source(name) == (dtype, tuple(shape))
            if name != "w":
                assert raw[8 + length + begin : 8 + length + end] == data == reader.values(name).tobytes()
                with wcodec.open(out) as container:
                    assert container[name].scheme == "opaque" and container[name].numpy().tobytes() == data
                with pytest.raises(FormatReaderError, match="unknown scheme"):
                    older.values(name)
        older.values("w")
    # A size that the dtype does not have.
    broken = _safetensors(tmp_path / "broken.safetensors", {"f4": ("F4", [2, 8], bytes(9))})
    assert run("encode", broken, "-o", tmp_path / "x.wcodec", "-q")[0] == 2


# GGUF


def test_gguf_files_are_named_for_what_they_are(tmp_path: Path, run: Cli) -> None:
    def value(key: str, kind: int, data: bytes) -> bytes:
        return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + data

    big = tmp_path / "big.gguf"
    big.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(32))
    pairs = value("split.no", 2, struct.pack("<H", 0)) + value("split.count", 2, struct.pack("<H", 3))
    part = tmp_path / "m-00001-of-00003.gguf"
    part.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pairs + bytes(64))
    for path, word in ((big, "a big-endian GGUF file"), (part, "part 1 of 3 of a split GGUF file")):
        status, _, err = run("encode", path, "-o", tmp_path / "x.wcodec")
        assert status == 2 and word in err and "50331648" not in err, err
    status, _, err = run("inspect", big)
    assert status == 2 and "a big-endian GGUF file" in err
    status, text, _ = run("inspect", part)
    assert status == 0 and "it is part 1 of 3: other tensors are in the others" in text
    code = "import sys\nfrom wcodec._tui import main\nsys.exit(main())"
    for path, status, word in ((big, 2, "big-endian"), (part, 0, "part 1 of 3")):
        command = [sys.executable, "-c", code, str(path), "--plain"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == status and word in done.stdout + done.stderr, done


# Terminals


@posix
@pytest.mark.parametrize("size", [(0, 0), (0, 80), (24, 0), (1, 1)])
def test_terminals_that_do_not_know_their_size(size: tuple[int, int], tmp_path: Path) -> None:
    import fcntl
    import pty
    import select
    import termios

    path = tmp_path / "m.wcodec"
    wcodec.save_file({"w": np.ones((64, 64), np.float32)}, path)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    code = "import sys\nfrom wcodec._tui import main\nsys.exit(main())"
    environment = {**os.environ, "TERM": "xterm-256color"}
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    with subprocess.Popen([sys.executable, "-c", code, str(path)], env=environment, **streams) as process:
        out, end = b"", time.monotonic() + 30
        while time.monotonic() < end and (b"List" not in out if 0 in size else len(out) < 20):
            if select.select([master], [], [], 0.2)[0]:
                out += os.read(master, 1 << 16)
        os.write(master, b"q")
        # Output that it still draws must go somewhere.
        while process.poll() is None and time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                out += os.read(master, 1 << 16)
        process.kill()
    os.close(master)
    os.close(slave)
    assert process.returncode == 0 and (0 not in size or b"List" in out), (process.returncode, out[-500:])
