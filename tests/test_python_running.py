"""While native code runs: progress, other threads, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import wcodec
from wcodec import _native, _options, _progress

BIG = {f"t{i}": np.random.default_rng(i).standard_normal((256, 1024)).astype(np.float32) for i in range(4)}


def test_callback_sees_everything(tmp_path: Path) -> None:
    path, total = tmp_path / "x.wcodec", sum(a.nbytes for a in BIG.values())
    calls = {
        "encode": lambda cb: wcodec.compress(BIG, path, progress=cb),
        "verify": lambda cb: wcodec.verify(path, against=BIG, progress=cb),
        "decode": lambda cb: wcodec.decompress(path, tmp_path / "x.safetensors", progress=cb),
        "load": lambda cb: wcodec.load_file(path, progress=cb),
    }
    for name, call in calls.items():
        events: list[tuple[str, int, int]] = []
        call(lambda *event, events=events: events.append(event))
        assert {e[0] for e in events} == set(BIG), name
        done = [e[1] for e in events]
        assert done == sorted(done) and done[-1] == total and {e[2] for e in events} == {total}, name


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_callback_that_raises_stops_the_work(kind: type[BaseException], tmp_path: Path) -> None:
    def stop(tensor: str, done: int, total: int) -> None:
        if done:
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        wcodec.compress(BIG, tmp_path / "x.wcodec", progress=stop)
    assert os.listdir(tmp_path) == []
    wcodec.save_file(BIG, tmp_path / "x.wcodec")
    for call in (
        lambda: wcodec.decompress(tmp_path / "x.wcodec", tmp_path / "y", progress=stop),
        lambda: wcodec.verify(tmp_path / "x.wcodec", progress=stop),
    ):
        with pytest.raises(kind, match="enough"):
            call()
    assert os.listdir(tmp_path) == ["x.wcodec"]


def test_source_that_raises(tmp_path: Path) -> None:
    class Failing(dict):
        seen = 0

        def __getitem__(self, name: str) -> np.ndarray:
            Failing.seen += 1
            if Failing.seen > 2 * len(BIG) + 1:
                raise LookupError("the disk is gone")
            return super().__getitem__(name)

    with pytest.raises(LookupError, match="the disk is gone"):
        wcodec.compress(Failing(BIG), tmp_path / "x.wcodec", progress=False)
    assert os.listdir(tmp_path) == []


def test_bar_and_its_fallback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(_progress, "_DELAY_SECONDS", 0)
    wcodec.compress(BIG, tmp_path / "x.wcodec", progress=True)
    assert "encode" in capsys.readouterr().err
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, None)
    wcodec.compress(BIG, tmp_path / "y.wcodec", progress=True)
    assert capsys.readouterr().err == ""


def test_other_threads_run_meanwhile(tmp_path: Path, write_safetensors) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": np.tile(BIG["t0"], (32, 1))})
    options = _options.encode_options(coder="zstd", level=9, threads=1)
    turns, stop = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    # With the interpreter held by native code, the other thread gets at most the few turns around the call.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    thread.start()
    try:
        before = turns
        _native.encode_to_bytes(str(path), options, None)
        gained = turns - before
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert gained > 500


def test_containers_are_shared_by_threads() -> None:
    container = wcodec.open(wcodec.compress_to_bytes(BIG)[0])
    want = {n: container[n].numpy().tobytes() for n in BIG}
    wrong: list[str] = []

    def read() -> None:
        for name in list(BIG) * 3:
            if container[name].numpy(threads=1).tobytes() != want[name]:
                wrong.append(name)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_interrupt_during_native_work(tmp_path: Path) -> None:
    # A sparse file: large enough to be at work for long, yet it takes no room on disk.
    model, folder = tmp_path / "m.safetensors", tmp_path / "out"
    folder.mkdir()
    rows, cols, tensors = 8192, 8192, 64
    size = rows * cols * 4
    header = json.dumps({
        f"t{i}": {"dtype": "F32", "shape": [rows, cols], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(tensors)
    }).encode()  # fmt: skip
    with model.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + tensors * size)
    command = [
        sys.executable,
        "-m",
        "wcodec",
        "encode",
        "-q",
        "--threads",
        "1",
        str(model),
        "-o",
        str(folder / "x.wcodec"),
    ]
    # Shells make what runs in the background ignore SIGINT, and children inherit that.
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    try:
        while process.poll() is None and not os.listdir(folder):
            time.sleep(0.01)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130 and said == "wcodec: interrupted\n"
    assert os.listdir(folder) == []
