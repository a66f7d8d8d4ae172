"""Pictures of the inspector, made from real sessions in a pseudo-terminal.

    python docs/screenshots.py FILE.wcodec OUT.png [--keys "/q_proj{enter}2"] [--size 120x36] [--theme light]

Keys are typed one by one; ``{enter}``, ``{esc}``, ``{tab}`` and ``{wait}`` (a second) are what they say. Needs
``wcodec-tui``, pyte and pillow; the font is the one that matplotlib comes with.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

import matplotlib
import pyte
from PIL import Image, ImageDraw, ImageFont

KEYS = {"enter": "\r", "esc": "\x1b", "tab": "\t"}
# The usual sixteen colours, and what "default" is, on dark and on light.
NAMES = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
DARK = ("#1d2026", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0")
LIGHT = ("#fbfbfb", "#b3261e", "#2e7d32", "#8a6d00", "#1f5fbf", "#8e24aa", "#00798c", "#24292f")
BRIGHT_DARK = ("#7f8590", "#ff7b86", "#b5e890", "#ffd68a", "#84c4ff", "#e29bf5", "#7fdfea", "#ffffff")
BRIGHT_LIGHT = ("#8a9099", "#d32f2f", "#388e3c", "#a98300", "#2a74e0", "#a63cc4", "#0097a7", "#000000")


def session(command: list[str], keys: str, columns: int, rows: int) -> pyte.Screen:
    """The screen after the keys were typed."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    child, master = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8")
        os.environ.pop("NO_COLOR", None)
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([master], [], [], left)[0]:
                try:
                    stream.feed(os.read(master, 1 << 16))
                except OSError:
                    return

    read(1.0)
    for token in re.findall(r"\{\w+\}|.", keys):
        if token == "{wait}":
            read(1.0)
        else:
            os.write(master, KEYS.get(token.strip("{}"), token).encode())
            read(0.15)
    read(0.7)
    shown = copy.deepcopy(screen)
    os.write(master, b"\x03")
    read(0.5)
    os.close(master)
    os.waitpid(child, 0)
    return shown


def color(name: str, light: bool, background: bool) -> str:
    """An RGB colour for pyte's word."""
    plain, bright = (LIGHT, BRIGHT_LIGHT) if light else (DARK, BRIGHT_DARK)
    if name == "default":
        return plain[0] if background else plain[7]
    if name.startswith("bright"):
        word = name.removeprefix("bright")
        return bright[NAMES.index("brown" if word == "yellow" else word)]
    return plain[NAMES.index(name)] if name in NAMES else f"#{name}"


def draw(screen: pyte.Screen, light: bool, size: int = 15) -> Image.Image:
    """The screen as a picture."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(folder / f"DejaVuSansMono{kind}.ttf", size) for kind in ("", "-Bold")]
    width = round(fonts[0].getlength("M"))
    height = sum(fonts[0].getmetrics())
    margin = width
    picture = Image.new(
        "RGB", (screen.columns * width + 2 * margin, screen.lines * height + 2 * margin), color("default", light, True)
    )
    brush = ImageDraw.Draw(picture)
    for y in range(screen.lines):
        for x in range(screen.columns):
            char = screen.buffer[y][x]
            front, back = color(char.fg, light, False), color(char.bg, light, True)
            if char.reverse:
                front, back = back, front
            left, top = margin + x * width, margin + y * height
            if back != color("default", light, True):
                brush.rectangle((left, top, left + width - 1, top + height - 1), back)
            if char.data.strip():
                brush.text((left, top), char.data, front, fonts[char.bold])
    return picture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("out")
    parser.add_argument("--keys", default="")
    parser.add_argument("--size", default="120x36")
    parser.add_argument("--theme", default="dark", choices=("dark", "light"))
    parser.add_argument("--command", default="wcodec-tui")
    parser.add_argument("more", nargs="*")
    args = parser.parse_args()
    columns, rows = map(int, args.size.split("x"))
    command = [args.command, args.file, "--theme", args.theme, *args.more]
    screen = session(command, args.keys, columns, rows)
    draw(screen, args.theme == "light").save(args.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
