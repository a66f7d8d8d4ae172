"""While native code runs: progress, other threads, Ctrl-C."""

from __future__ import annotations

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
from command import endless_model
from wcodec import _native
from wcodec._core import options as _options
from wcodec._core import progress

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
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0)
    wcodec.compress(BIG, tmp_path / "x.wcodec", progress=True)
    assert "encode" in capsys.readouterr().err
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, None)
    wcodec.compress(BIG, tmp_path / "y.wcodec", progress=True)
    assert capsys.readouterr().err == ""


def test_other_threads_run_meanwhile(tmp_path: Path, write_safetensors) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": np.tile(BIG["t0"], (128, 1))})
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
    model, folder = endless_model(tmp_path / "m.safetensors"), tmp_path / "out"
    folder.mkdir()
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
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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


# Every native call that works in parallel, on the arguments that the test has.
PARALLEL = {
    "encode": lambda path, weights: wcodec.compress(weights, path.with_suffix(".new"), overwrite=True, progress=False),
    "encode to bytes": lambda path, weights: wcodec.compress_to_bytes(weights, coder="zstd"),
    "decode": lambda path, weights: wcodec.decompress(path, path.with_suffix(".out"), overwrite=True, progress=False),
    "load": lambda path, weights: wcodec.load_file(path),
    "one thread": lambda path, weights: wcodec.load_file(path, threads=1),
    "verify": lambda path, weights: wcodec.verify(path, against=weights, progress=False),
    "rows": lambda path, weights: wcodec.open(path).read_rows("t0", 0, 64),
    "extract": lambda path, weights: wcodec.open(path).extract(["t1"]),
    "symbols": lambda path, weights: wcodec.open(path)["t2"].symbols(),
    "layer": lambda path, weights: wcodec.Encoder().encode_layer(np.zeros((256, 1024), np.int8)),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("name", PARALLEL)
def test_a_forked_child_works(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    wcodec.save_file(BIG, path)
    # The parent's threads are there, as those of a container that both have open.
    container = wcodec.open(path)
    want = {n: container[n].numpy(threads=2).tobytes() for n in BIG}
    PARALLEL[name](path, BIG)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            PARALLEL[name](path, BIG)
            same = all(container[n].numpy(threads=2).tobytes() == data for n, data in want.items())
            status = 0 if same else 2
        finally:
            os._exit(status)
    for _ in range(600):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert status == 0
    # And the parent goes on as before.
    PARALLEL[name](path, BIG)


class _Reads:
    """A data set whose items are decoded by the worker that asks for them."""

    def __init__(self, path: Path) -> None:
        self.container = wcodec.open(path)

    def __len__(self) -> int:
        return len(BIG)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.container[f"t{index}"].numpy()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_workers_of_a_data_loader_decode(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.wcodec"
    wcodec.save_file(BIG, path)
    data = _Reads(path)
    want = [data[i] for i in range(len(data))]
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    assert all(np.array_equal(a, b) for a, b in zip(want, loader, strict=True))


def test_more_threads_than_there_can_be_are_refused(tmp_path: Path) -> None:
    for threads in (5000, 10**6, 2**40):
        with pytest.raises(wcodec.InputError, match="use at most 4096"):
            wcodec.compress_to_bytes(BIG, threads=threads)
        with pytest.raises(wcodec.InputError, match="use at most 4096"):
            wcodec.open(wcodec.compress_to_bytes(BIG)[0])["t0"].numpy(threads=threads)


_NO_THREADS = """
import resource, sys, numpy as np, wcodec
data = {"w": np.ones((64, 256), np.float32)}
# Names that are imported at first use, while their files can be read.
encode, InputError = wcodec.compress_to_bytes, wcodec.InputError
# A user that may have no more threads than those that are there.
import os; os.setgid(65534); os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    encode(data)
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="needs another user's limits")
def test_no_thread_to_be_had_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", _NO_THREADS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "cannot start a thread for each core" in done.stdout and "ulimit" in done.stdout


_INTERRUPTED = """
import os, signal, sys, threading, time, numpy as np, wcodec
container = wcodec.open(sys.argv[1])
name = next(iter(container))
def interrupt():
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
    sent.append(time.perf_counter())
sent = []
threading.Thread(target=interrupt).start()
try:
    while True:
        container[name].{call}
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize("call", ["numpy(threads=1)", "symbols(threads=1)", "numpy_rows(0, 4000, threads=1)"])
def test_interrupt_during_the_first_decode(call: str, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    # Weights that differ: of nothing but ones the file would be so small that only a trusted one may become so much.
    row = np.sin(np.arange(4096, dtype=np.float32))
    wcodec.save_file({"w": np.tile(row, (8192, 1))}, path, coder="zstd")
    command = [sys.executable, "-c", _INTERRUPTED.replace("{call}", call), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert float(done.stdout) < 0.5
