"""The recording of a terminal on the front page: commands that are typed, and what they print.

    python docs/recording.py .demo/smollm2.gguf [docs/images/terminal.gif]

Runs in an empty folder, on the chat model that ``make demo`` fetches. Needs the extras ``torch`` and ``transformers``,
pyte and pillow. What a command prints appears as it came, at most a few seconds long; calibrating takes minutes.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
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
# Commands, and what is typed when they ask.
COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("wcodec encode smollm2.gguf -o smol-4bit/ --bits 4 --calibrate --tokens 1024", ()),
    ("wcodec verify smol-4bit/", ()),
    ("wcodec chat smol-4bit/ --temperature 0", ("What is the capital of France?", "/stats", "/quit")),
)
# Seconds between frames, and the most that the viewer waits for a command or an answer.
STEP, MOST = 0.12, 3.0
ASKS = "> "


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

    def asks(self) -> bool:
        """Whether the cursor stands behind a prompt."""
        return self.screen.display[self.screen.cursor.y][: self.screen.cursor.x].endswith(ASKS)

    def run(self, command: str, typed: tuple[str, ...], folder: Path) -> None:
        child, master = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8", COLUMNS=str(COLUMNS))
            os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            os.environ.pop("NO_COLOR", None)
            os.execvp("sh", ["sh", "-c", command])
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        shown, last, left = 0.0, time.monotonic(), list(typed)
        while True:
            if left and self.asks() and not select.select([master], [], [], 0.5)[0]:
                line = left.pop(0)
                for letter in line:
                    os.write(master, letter.encode())
                    self.feed(os.read(master, 1 << 16), 0.05)
                os.write(master, b"\r")
                shown, last = 0.0, time.monotonic()
                self.feed(b"", 0.4)
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
    model = Path(sys.argv[1]).absolute()
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else REPOSITORY / "docs/images/terminal.gif"
    film = Film()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "smollm2.gguf").symlink_to(model)
        for command, typed in COMMANDS:
            film.feed(PROMPT.encode(), 0.5)
            film.type(command)
            film.feed(b"\r\n", 0.1)
            film.run(command, typed, folder)
            film.feed(b"", 1.6)
    film.feed(PROMPT.encode(), 4)
    film.save(path)


if __name__ == "__main__":
    main()
