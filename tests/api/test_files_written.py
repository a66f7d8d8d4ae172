"""Nothing that is on disk is lost: what may be an output, and what is left of one that was interrupted."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import Cli, contents, endless_model
from wcodec import cli
from wcodec._core.paths import output

WEIGHTS = {"w": np.linspace(-1, 1, 64 * 256, dtype=np.float32).reshape(64, 256)}
posix = pytest.mark.skipif(os.name != "posix", reason="signals and files of POSIX")


# Allowed outputs


@posix
def test_only_files_are_replaced(copy: Path, tmp_path: Path, run: Cli) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(copy / "model.safetensors")
    (tmp_path / "dangling").symlink_to("nothing")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    places = {name: os.lstat(tmp_path / name).st_mode for name in ("pipe", "link", "dangling", "socket")}
    before = contents(copy)
    container = tmp_path / "m.wcodec"
    assert run("encode", copy, "-o", container, "-q")[0] == 0
    for name in (*places, "/dev/null"):
        for command in (
            ["encode", copy, "-o", tmp_path / name],
            ["decode", container, "-o", tmp_path / name],
            ["roundtrip", copy, "--json", tmp_path / name],
        ):
            for more in ([], ["--overwrite"]) if command[0] != "roundtrip" else ([],):
                status, out, err = run(*command, *more, "-q")
                assert status == 2 and "which is not replaced (name" in err and str(tmp_path / name) in err, err
        with pytest.raises(wcodec.InputError, match="which is not replaced"):
            wcodec.save_file(WEIGHTS, tmp_path / name)
    listening.close()
    assert {name: os.lstat(tmp_path / name).st_mode for name in places} == places
    assert contents(copy) == before and Path("/dev/null").is_char_device()


def test_an_input_is_not_an_output(copy: Path, tmp_path: Path, run: Cli) -> None:
    before = contents(copy)
    weights, link = copy / "model.safetensors", copy / "hard"
    os.link(weights, link)
    for out in (weights, link, copy / "config.json", copy / "tokenizer.json"):
        for command in (["encode", copy, "-o", out], ["encode", weights, "-o", out]):
            status, _, err = run(*command, "--overwrite")
            assert status == 2 and "what is read would be lost" in err, err
        for source in (copy, weights):
            status, _, err = run("roundtrip", source, "--json", out)
            assert status == 2 and "what is read would be lost" in err, err
    link.unlink()
    assert contents(copy) == before

    container = tmp_path / "x.wcodec"
    wcodec.compress(copy, container, progress=False)
    data = container.read_bytes()
    os.link(container, tmp_path / "again")
    for out in (container, tmp_path / "again"):
        status, _, err = run("decode", container, "-o", out, "--overwrite")
        assert status == 2 and "what is read would be lost" in err, err
        with wcodec.open(container) as opened:
            # As a whole, and one of its entries in a mapping.
            for tensors in (opened, {"norm": opened["model.norm.weight"], **WEIGHTS}):
                with pytest.raises(wcodec.InputError, match="what is read would be lost"):
                    wcodec.save_file(tensors, out)
    assert container.read_bytes() == data
    # A view of a file that NumPy maps.
    WEIGHTS["w"].tofile(tmp_path / "w")
    mapped = np.memmap(tmp_path / "w", np.float32, "r").reshape(64, 256)
    for tensor in (mapped, np.asarray(mapped)[:32]):
        with pytest.raises(wcodec.InputError, match="what is read would be lost"):
            wcodec.save_file({"w": tensor}, tmp_path / "w")
    assert (tmp_path / "w").stat().st_size == WEIGHTS["w"].nbytes
    # Other containers may be replaced while one is open.
    with wcodec.open(container) as opened:
        wcodec.save_file(opened, tmp_path / "other.wcodec")
        wcodec.save_file(opened, tmp_path / "other.wcodec")


def test_shards_and_their_index_are_not_outputs(tmp_path: Path, run: Cli, write_safetensors: Any) -> None:
    folder = tmp_path / "sharded"
    folder.mkdir()
    for i in (1, 2):
        write_safetensors(folder / f"{i}.safetensors", {f"t{i}": np.zeros((4, 4), np.float32)})
    index = {"weight_map": {"t1": "1.safetensors", "t2": "2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    before = contents(folder)
    for name in before:
        status, _, err = run("encode", folder, "-o", folder / name, "--overwrite")
        assert status == 2 and "what is read would be lost" in err, err
    assert contents(folder) == before
    # An index that names nothing is none.
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    status, _, err = run("encode", folder, "-o", tmp_path / "x.wcodec")
    assert status == 2 and "names no tensor" in err and not (tmp_path / "x.wcodec").exists()


def test_endings_of_other_formats(copy: Path, tmp_path: Path, run: Cli) -> None:
    container = tmp_path / "m.wcodec"
    assert run("encode", copy, "-o", container, "-q")[0] == 0
    before = contents(tmp_path)
    for command, endings in (
        (["encode", copy, "-o"], "safetensors json bin pt pth ckpt gguf onnx npz npy h5 msgpack py txt PT"),
        (["decode", container, "-o"], "wcodec gguf bin json"),
        (["roundtrip", copy, "--json"], "wcodec safetensors pt npz"),
    ):
        for ending in endings.split():
            status, _, err = run(*command, tmp_path / f"new.{ending}")
            assert status == 2 and f"the ending .{ending.lower()} is not that of" in err, err
    assert contents(tmp_path) == before
    for name in ("new", "new.v2", "new-7.1b"):
        assert run("encode", copy, "-o", tmp_path / name, "-q")[0] == 0
        assert run("decode", container, "-o", tmp_path / f"{name}.st", "-q")[0] == 0


def test_sources_without_tensors(copy: Path, tmp_path: Path, run: Cli, write_safetensors: Any) -> None:
    empty = write_safetensors(tmp_path / "empty.safetensors", {})
    for command in (["encode", empty], ["encode", copy, "--skip", "*"]):
        status, _, err = run(*command, "-o", tmp_path / "x.wcodec")
        assert status == 2 and "there are no tensors to encode" in err, err
    with pytest.raises(wcodec.InputError, match="no tensors to encode"):
        wcodec.save_file({}, tmp_path / "x.wcodec")
    assert not (tmp_path / "x.wcodec").exists()


def test_a_report_appears_when_it_is_complete(copy: Path, tmp_path: Path, run: Cli) -> None:
    report = tmp_path / "report.json"
    arguments = ["roundtrip", copy, "--coder", "raw", "--scale", "row", "-q", "--json", report]
    assert run(*arguments)[0] == 0
    first = json.loads(report.read_text())
    assert first["ok"]
    # Another run replaces it, and one that fails leaves it.
    assert run(*arguments)[0] == 0 and report.read_text().endswith("}\n")
    before = report.read_bytes()
    (copy / "model.safetensors").write_bytes(b"not a model")
    assert run(*arguments)[0] == 2
    assert report.read_bytes() == before and sorted(os.listdir(tmp_path)) == ["model", "report.json"]
    # A place that cannot be written to is found before the work.
    began = time.perf_counter()
    status, _, err = run("roundtrip", endless_model(tmp_path / "m.safetensors"), "--json", tmp_path / "no/report.json")
    assert status == 2 and "check the path" in err and time.perf_counter() - began < 5


def test_outputs_of_python(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(RuntimeError), output(path) as out:
        out.write(b"half")
        assert len(os.listdir(tmp_path)) == 1 and not path.exists()
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with output(path) as out:
        out.write(b"who")
        out.write(b"le")
        out.finish()
    assert path.read_bytes() == b"whole"
    with pytest.raises(wcodec.InputError, match="finished already"):
        out.write(b"!")
    with pytest.raises(wcodec.OutputExistsError), output(path):
        pass
    with output(path, overwrite=True) as out:
        out.finish()
    assert path.read_bytes() == b"" and os.listdir(tmp_path) == ["a"]


# Leftovers of work that ended early


@contextmanager
def encoding(folder: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A process that encodes into a folder, and has begun to write."""
    model = endless_model(folder.parent / "endless.safetensors")
    command = [*before, sys.executable, "-m", "wcodec", "encode", "-q", "--threads", "1", str(model), "-o",
               str(folder / "x.wcodec")]  # fmt: skip
    old = set(folder.iterdir())
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and not any(p.stat().st_size for p in set(folder.iterdir()) - old):
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


@posix
def test_what_a_killed_process_left_is_removed_and_what_another_one_writes_is_not(tmp_path: Path, run: Cli) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with encoding(folder) as process:
        process.kill()
        process.wait()
        (lost,) = os.listdir(folder)
    assert lost.startswith(".wcodec-") and lost.endswith(".part")
    with encoding(folder) as process:
        # It was removed, and this is the other's.
        (written,) = os.listdir(folder)
        assert written != lost
        size = (folder / written).stat().st_size
        for _ in range(3):
            wcodec.save_file(WEIGHTS, folder / "y.wcodec")
            assert sorted(os.listdir(folder)) == [written, "y.wcodec"]
        while (folder / written).stat().st_size == size:
            time.sleep(0.01)
        assert process.poll() is None
    with output(folder / "z") as out:
        out.finish()
    assert sorted(os.listdir(folder)) == ["y.wcodec", "z"]


@posix
@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_that_end_a_command_leave_nothing(name: str, status: int, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with encoding(folder) as process:
        # Twice, as it happens: the second must not break off the cleaning up.
        process.send_signal(getattr(signal, name))
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (status, "", f"wcodec: ended by {name}\n")
    assert os.listdir(folder) == []


@posix
def test_signals_remove_the_temporary_folder_of_roundtrip(tmp_path: Path) -> None:
    model = endless_model(tmp_path / "endless.safetensors")
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "wcodec", "roundtrip", "-q", str(model), "--json", str(tmp_path / "report.json")]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while process.poll() is None and not list((tmp_path / "tmp").rglob("*.part")):
            time.sleep(0.01)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert os.listdir(tmp_path / "tmp") == [] and sorted(os.listdir(tmp_path)) == ["endless.safetensors", "tmp"]


@posix
def test_hanging_up_without_a_terminal_to_write_to(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with encoding(folder) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 129
        process.stdout = process.stderr = None
    assert os.listdir(folder) == []


@posix
def test_a_hang_up_that_is_ignored_stays_so(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with encoding(folder, "nohup") as process:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 143
    assert os.listdir(folder) == []


@posix
def test_handlers_are_put_back(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    own = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGTERM, own)
    seen: list[Any] = []
    try:
        doctor = importlib.import_module("wcodec._cli.doctor")
        monkeypatch.setattr(doctor, "run", lambda arguments: seen.extend(map(signal.getsignal, numbers)) or 0)
        handlers = [signal.getsignal(n) for n in numbers]
        assert run("doctor")[0] == 0
        assert len(seen) == 2 and all(callable(h) and h is not own for h in seen)
        assert [signal.getsignal(n) for n in numbers] == handlers
        # No handlers can be put anywhere but in the main thread.
        status: list[int] = []
        thread = threading.Thread(target=lambda: status.append(cli.main(["doctor"])))
        thread.start()
        thread.join()
        assert status == [0] and seen[2:] == handlers
    finally:
        signal.signal(signal.SIGTERM, before)


_NO_THREADS = """
import os, pathlib, resource, sys, numpy as np, wcodec
data = {"w": np.ones((64, 256), np.float32)}
# The threads that encoding shares are there; a user that may have no more of them.
wcodec.compress_to_bytes(data)
# Names that are imported at first use, while their files can be read.
save, decompress = wcodec.save_file, wcodec.decompress
os.setgid(65534); os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
save(data, sys.argv[1])
decompress(sys.argv[1], sys.argv[1] + ".st", progress=False)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="needs another user's limits")
def test_no_thread_to_write_with() -> None:
    # In a folder of its own: that of the tests is closed to other users.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        path = Path(place, "x.wcodec")
        done = subprocess.run([sys.executable, "-c", _NO_THREADS, path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert wcodec.load_file(path)["w"].shape == (64, 256)
        assert sorted(os.listdir(place)) == ["x.wcodec", "x.wcodec.st"]
