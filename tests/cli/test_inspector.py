"""The command ``wcodec-tui`` as a user meets it: in a terminal, and without one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import call
from wcodec import _tui
from wcodec._gpu import devices

pyte = pytest.importorskip("pyte", reason="reconstructs the screen")

PATIENCE = 60.0
"""Seconds after which something that should happen has not: much more than it takes."""
COMMAND = [sys.executable, "-m", "wcodec._tui"]
LEAVE, SHOW_CURSOR = b"\x1b[?1049l", b"\x1b[?25h"


def environment(**more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("LC_") and k not in ("NO_COLOR", "COLORFGBG")}
    return {**plain, "TERM": "xterm-256color", "LANG": "C.UTF-8", **more}


class Session:
    """The command in a pseudo-terminal, and what a terminal would show of it."""

    def __init__(self, *arguments: object, columns: int = 120, rows: int = 40, **env: str) -> None:
        self.master, terminal = pty.openpty()
        self.terminal = terminal
        self.before = termios.tcgetattr(terminal)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.output = b""
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment(**env),
            start_new_session=True,
        )

    def read(self, seconds: float = 0.05) -> None:
        while select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:
                return
            self.output += data
            self.stream.feed(data)
            seconds = 0

    def settle(self, seconds: float) -> None:
        """Lets time pass."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait(self, what: str | Callable[[str], object]) -> str:
        """Waits until the screen shows a text, or fulfils a condition."""
        shows = (lambda text: what in text) if isinstance(what, str) else what
        end = time.monotonic() + PATIENCE
        while not shows(self.text):
            assert time.monotonic() < end, f"not shown: {what}\n{self.text}"
            assert self.process.poll() is None, f"ended\n{self.output.decode(errors='replace')}"
            self.read()
        return self.text

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        """Waits for the end; the terminal must be as it was."""
        limit = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < limit, f"does not end\n{self.text}"
            self.read()
        self.read()
        last = self.output[self.output.rindex(LEAVE) :]
        assert SHOW_CURSOR in last
        assert set(re.sub(rb"\x1b\[[?0-9;]*[a-zA-Z]", b"", last)) <= set(b"\r\n"), last
        assert termios.tcgetattr(self.terminal) == self.before
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.terminal)


Start = Callable[..., Session]


@pytest.fixture
def start() -> Iterator[Start]:
    sessions: list[Session] = []

    def begin(*arguments: object, **options: Any) -> Session:
        sessions.append(Session(*arguments, **options))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close()


@pytest.fixture(scope="module")
def container(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tui") / "model.wcodec"
    wcodec.compress(model, out)
    return out


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE, **options)


def test_a_walk_through_the_views(start: Start, container: Path) -> None:
    session = start(container)
    session.wait("lm_head")
    # The letter q is text in the search box.
    session.press("/q_proj")
    session.wait(lambda text: "q_proj" in text and "up_proj" not in text and "lm_head" not in text)
    session.press("\r")
    session.press("s")
    text = session.wait("q_proj.weight")
    assert text.count("q_proj.weight") >= 4
    session.press("\r")
    session.wait(lambda text: "q_proj.weight" in text and "192x192" in text)
    session.press("5")
    session.wait("tokens/s")
    session.settle(1.0)
    session.wait(lambda text: re.search(r"\d+\.\d+", text))
    session.press("?")
    session.wait("Everywhere")
    session.press("q")
    for view in "1245":
        session.press(view)
        session.settle(0.2)
    session.press("2")
    session.wait(lambda text: "q_proj" in text and "lm_head" not in text)
    # Back: the filter, then out.
    session.press("q")
    session.wait("lm_head")
    session.press("q")
    assert session.end() == 0


def test_flags_choose_the_first_view(start: Start, container: Path) -> None:
    session = start(container, "--tensor", "lm_head.weight")
    session.wait(lambda text: "lm_head.weight" in text and "4096x192" in text)
    session = start(container, "--filter", "o_proj", "--sort", "ratio")
    text = session.wait("o_proj")
    assert "q_proj" not in text
    session = start(container, "--ascii", "--tab", "file")
    session.wait("model.wcodec")
    session.settle(0.3)
    assert session.text.isascii(), session.text


@pytest.mark.parametrize("columns, rows", [(1, 1), (20, 5), (300, 100)])
def test_any_size_is_drawn(start: Start, container: Path, columns: int, rows: int) -> None:
    session = start(container, columns=columns, rows=rows)
    end = time.monotonic() + PATIENCE
    while b"\x1b[?1049h" not in session.output and time.monotonic() < end:
        session.read()
    for key in "23451?":
        session.press(key)
        session.settle(0.1)
    session.press("\x03")
    assert session.end() == 0


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signals_give_the_terminal_back(start: Start, container: Path, number: int, status: int) -> None:
    session = start(container)
    session.wait("lm_head")
    session.process.send_signal(number)
    assert session.end() == status


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_keys_give_the_terminal_back(start: Start, container: Path, key: str) -> None:
    session = start(container, "--mouse")
    session.wait("lm_head")
    session.press(key)
    assert session.end() == 0
    assert b"\x1b[?1000l" in session.output


def test_a_file_that_is_truncated_while_it_is_open(start: Start, container: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.wcodec"
    path.write_bytes(container.read_bytes())
    session = start(path)
    session.wait("lm_head")
    os.truncate(path, 1000)
    session.wait("changed")
    # Data that is not in memory cannot be read any more: told, not fatal.
    session.press("2")
    session.settle(0.5)
    session.press("v")
    session.settle(0.5)
    session.press("3")
    session.settle(0.5)
    session.press("1r")
    session.wait("byte 1000: the file has")
    session.wait("lm_head")
    session.press("\x03")
    assert session.end() == 0


def test_a_file_that_is_replaced_while_it_is_open(
    start: Start, container: Path, tmp_path: Path, write_safetensors: Callable[..., Path]
) -> None:
    source = write_safetensors(tmp_path / "b.safetensors", {"brand.new": np.ones((64, 64), np.float32)})
    path = tmp_path / "a.wcodec"
    path.write_bytes(container.read_bytes())
    session = start(path)
    session.wait("lm_head")
    wcodec.compress(source, tmp_path / "b.wcodec")
    (tmp_path / "b.wcodec").replace(path)
    session.wait("changed")
    session.press("r")
    session.wait(lambda text: "brand" in text and "lm_head" not in text)
    session.press("\x03")
    assert session.end() == 0


def test_the_log_tells_what_happened(start: Start, container: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    session = start(container, "--log", log)
    session.wait("lm_head")
    session.press("q")
    assert session.end() == 0
    lines = log.read_text().splitlines()
    assert any("first frame" in line for line in lines) and any("Char('q')" in line for line in lines)
    assert lines[-1].endswith("end: Ok(0)")


def test_without_a_terminal_it_prints_the_table(container: Path) -> None:
    done = run(container)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert sum(line.startswith("model.layers.0.") for line in done.stdout.splitlines()) == 9
    done = run(container, "--plain", "--filter", "q_proj")
    assert len(re.findall("q_proj.weight", done.stdout)) == 4


def inspected(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    status, out, _ = call(capsys, "inspect", path, "--json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("which", ["model", "minilm"])
def test_figures_equal_those_of_inspect_and_of_numpy(
    which: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.wcodec"
    wcodec.compress(request.getfixturevalue(which), path)
    capsys.readouterr()
    done = run(path, "--json")
    assert done.returncode == 0
    ours, theirs = json.loads(done.stdout), inspected(capsys, path)
    assert ours["schema_version"] == 2 and ours.pop("command") == "tui"
    theirs.pop("command")
    order = lambda document: {t["name"]: t for t in document.pop("tensors")}  # noqa: E731
    tensors, expected = order(ours), order(theirs)
    assert tensors == expected
    assert {k: ours[k] for k in theirs} == theirs
    with wcodec.Container.open(path) as opened:
        stored = {t.name: t for t in opened.stored}
        for name, tensor in tensors.items():
            assert tensor["ratio"] == tensor["original_bytes"] / tensor["stored_bytes"]
            if tensor["entropy"] is not None:
                counts = np.unique(stored[name].symbols(), return_counts=True)[1]
                p = counts / counts.sum()
                assert tensor["entropy"] == pytest.approx(-(p * np.log2(p)).sum(), abs=1e-4)


def test_the_inspector_looks_for_nvcomp_where_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    calls: list[tuple[list[str], list[str]]] = []
    monkeypatch.setattr(_tui, "tui_main", lambda args, folders: calls.append((args, folders)) or 0)
    assert _tui.main(["a.wcodec"]) == 0
    assert calls == [(["wcodec-tui", "a.wcodec"], devices.nvcomp_folders())] and calls[0][1][0] == str(tmp_path)


def test_exit_statuses(container: Path, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "raw.wcodec"
    wcodec.compress(model, other, skip=["*q_proj*"])
    assert run(container, container, "--plain").returncode == 0
    assert run(container, other, "--plain").returncode == 1
    assert json.loads(run(container, other, "--json").stdout)["compare"]["same"] is False
    done = run(tmp_path / "missing.wcodec")
    assert done.returncode == 2 and "missing.wcodec" in done.stderr and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert run().returncode == 2
    assert run("--version").stdout == f"wcodec-tui {wcodec.__version__}\n"


def test_a_closed_pipe_is_silent(container: Path) -> None:
    command = " ".join(f"'{word}'" for word in [*COMMAND, str(container), "--json"])
    done = subprocess.run(
        ["sh", "-c", f"{{ {command}; echo $? >&2; }} | true"], capture_output=True, text=True, env=environment()
    )
    assert done.stderr == "0\n"
