"""Standard streams that are closed or full: an exit status and at most one line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import wcodec

if not Path("/dev/full").exists():
    pytest.skip("this system has no /dev/full", allow_module_level=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A container whose table is longer than a pipe holds."""
    path = tmp_path_factory.mktemp("streams") / "x.wcodec"
    weights = np.ones((2, 2), np.float32)
    wcodec.compress({f"layers.{i}.{'w' * 100}": weights + i for i in range(1000)}, path, progress=False)
    return path


def shell(text: str, file: Path, **env: str) -> tuple[int, str]:
    """The exit status of a command of the shell, and what came out on the streams that are left."""
    program = f"'{sys.executable}' -m wcodec"
    done = subprocess.run(
        ["bash", "-c", text.replace("wcodec ", f"{program} ", 1).replace("FILE", str(file))],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **env}, cwd=file.parent, timeout=300,
        check=False,
    )  # fmt: skip
    text = done.stdout.decode(env.get("PYTHONIOENCODING", "utf-8"))
    assert "Traceback" not in text and "Exception ignored" not in text and "internal error" not in text, text
    return done.returncode, text


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("options", ["", " --json"])
def test_output_that_cannot_be_written(options: str, unbuffered: str, file: Path) -> None:
    def tried(text: str) -> tuple[int, str]:
        return shell(text, file, PYTHONUNBUFFERED=unbuffered)

    full = "wcodec: error: [Errno 28] No space left on device\n"
    closed = "wcodec: error: standard output is closed (send it to a file, or to /dev/null) [O105]\n"
    for command in (
        f"wcodec inspect FILE{options or ' --all'}",
        f"wcodec verify FILE{options}",
        f"wcodec compare FILE FILE{options}",
    ):
        assert tried(f"{command} >/dev/full") == (2, full)
        assert tried(f"{command} >&-") == (2, closed)
        assert tried(f"{command} >&- 2>&-") == (2, "")
        assert tried(f"{command} >/dev/full 2>/dev/full") == (2, "")
        status, told = tried(f"{command} | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}")
        # Whether one line is read before the pipe is closed is chance.
        assert told == "" and status in ((141,) if "inspect" in command else (0, 141))
    assert tried("wcodec --help >/dev/full") == tried("wcodec --version >/dev/full") == (2, full)
    assert tried("wcodec inspect --help >&-") == (2, closed)


def test_errors_that_cannot_be_told(file: Path) -> None:
    for stream in ("2>&-", "2>/dev/full", ">&- 2>&-", "<&- 2>&-"):
        assert shell(f"wcodec inspect no/such {stream}", file) == (2, "")
        assert shell(f"wcodec inspect {stream}", file) == (2, "")
        assert shell(f"wcodec frobnicate {stream}", file) == (2, "")
    status, _ = shell("wcodec verify FILE --quiet 2>&-", file)
    assert status == 0


def test_what_needs_no_output_needs_no_stream(file: Path) -> None:
    # The output must not come to lie where a closed stream was, and be written to as that.
    for streams in (">&-", ">&- 2>&-", "<&- >&- 2>&-"):
        status, told = shell(f"wcodec decode FILE -o out.safetensors --overwrite --quiet {streams}", file)
        assert (status, told) == (0, "")
        status, told = shell(f"wcodec encode out.safetensors -o out.wcodec --overwrite --quiet {streams}", file)
        assert (status, told) == (0, "")
        assert wcodec.verify(file.parent / "out.wcodec", file.parent / "out.safetensors", progress=False)


def test_an_encoding_that_lacks_characters(tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    wcodec.compress({"größe.層": np.ones((2, 2), np.float32)}, path, progress=False)
    status, told = shell("wcodec inspect FILE", path, PYTHONIOENCODING="ascii")
    assert status == 0 and "gr\\xf6\\xdfe.\\u5c64" in told
    status, told = shell("wcodec inspect FILE", path, PYTHONIOENCODING="latin-1")
    assert status == 0


def test_progress_without_a_place_for_it(file: Path, tmp_path: Path) -> None:
    code = f"import wcodec; wcodec.decompress({str(file)!r}, {str(tmp_path / 'x')!r}, progress=True)"
    done = subprocess.run(["bash", "-c", f"'{sys.executable}' -c \"{code}\" 2>&-"], check=False)
    assert done.returncode == 0
