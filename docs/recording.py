"""The recording of a terminal on the front page: commands that are typed, and what they print.

    python docs/recording.py [docs/images/terminal.gif]

Runs in an empty folder, on the model of this repository. Needs the extras ``torch`` and ``transformers``, pyte and
pillow. What a command prints appears as it came, at most two seconds long.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte
from PIL import Image
from screenshots import draw

REPOSITORY = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 92, 22
PROMPT = "\x1b[32m$\x1b[0m "
COMMANDS = (
    "wcodec encode doc-llama-3m -o four/ --bits 4 --quiet",
    "wcodec verify four --against doc-llama-3m",
    "wcodec inspect four | head -10",
    'wcodec generate four --prompt "The function returns" --max-new-tokens 40',
)
# Seconds between frames, and the most that the viewer waits for a command.
STEP, MOST = 0.12, 2.0


class Film:
    """Frames of a screen, each with its seconds."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self._frames: list[Image.Image] = []
        self._times: list[float] = []

    def feed(self, data: bytes, seconds: float) -> None:
        self._stream.feed(data)
        frame = draw(self.screen, light=False, size=13)
        if self._frames and frame.tobytes() == self._frames[-1].tobytes():
            self._times[-1] += seconds
        else:
            self._frames.append(frame)
            self._times.append(seconds)

    def type(self, text: str) -> None:
        for begin in range(0, len(text), 4):
            self.feed(text[begin : begin + 4].encode(), 0.1)
        self.feed(b"", 0.4)

    def run(self, command: str, folder: Path) -> None:
        child, master = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8", COLUMNS=str(COLUMNS))
            os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            os.environ.pop("NO_COLOR", None)
            os.execvp("sh", ["sh", "-c", command])
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        shown, last = 0.0, time.monotonic()
        while True:
            try:
                data = os.read(master, 1 << 16)
            except OSError:
                break
            if not data:
                break
            # Models take seconds to load, which nobody wants to look at.
            seconds = min(max(time.monotonic() - last, 0), STEP * 4, max(MOST - shown, 0.02))
            last, shown = time.monotonic(), shown + seconds
            self.feed(data, seconds)
        os.close(master)
        os.waitpid(child, 0)

    def save(self, path: Path) -> None:
        """A GIF of few colours, that begins again."""
        first = self._frames[-1].quantize(48)
        frames = [frame.quantize(palette=first, dither=Image.Dither.NONE) for frame in self._frames]
        times = [max(round(seconds * 1000), 20) for seconds in self._times]
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)
        print(f"{path}: {len(frames)} frames, {sum(times) / 1000:.0f} s, {path.stat().st_size:,} bytes")


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "docs/images/terminal.gif"
    film = Film()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "doc-llama-3m").symlink_to(REPOSITORY / "tests/data/doc-llama-3m")
        for command in COMMANDS:
            film.feed(PROMPT.encode(), 0.5)
            film.type(command)
            film.feed(b"\r\n", 0.1)
            film.run(command, folder)
            film.feed(b"", 1.6)
    film.feed(PROMPT.encode(), 4)
    film.save(path)


if __name__ == "__main__":
    main()
