"""The time that the inspector takes from its start to its first frame, in a pseudo-terminal; and to its first rows.

    cargo build --release --package wcodec-tui
    python tui/benches/first_frame.py FILE.wcodec [--until TEXT] [--repeats 11] [--program target/release/wcodec-tui]

The first frame is there when the file's name is on the screen, rows when TEXT is, such as part of a tensor's name.
Prints medians, and the fastest and slowest start, in milliseconds. Needs nothing but Python, on Linux or macOS.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import time
from pathlib import Path

PATIENCE = 30.0
"""Seconds after which a start has failed."""


def start(command: list[str], texts: list[bytes], columns: int = 120, rows: int = 40) -> list[float]:
    """Starts the program, waits until each of the texts was written, and ends it. Milliseconds to each."""
    begin = time.perf_counter()
    child, master = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8")
        os.execv(command[0], command)
    seen = b""
    took: list[float] = []
    try:
        while len(took) < len(texts):
            if not select.select([master], [], [], PATIENCE)[0]:
                sys.exit(f"{texts[len(took)]!r} did not appear in {PATIENCE:.0f} s")
            try:
                seen += os.read(master, 1 << 16)
            except OSError:
                sys.exit(f"{command[0]} ended: {seen[-500:].decode(errors='replace')}")
            while len(took) < len(texts) and texts[len(took)] in seen:
                took.append(1e3 * (time.perf_counter() - begin))
    finally:
        os.kill(child, signal.SIGTERM)
        os.close(master)
        os.waitpid(child, 0)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--until", metavar="TEXT", help="also the time until this text is on the screen")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--program", type=Path, default=Path("target/release/wcodec-tui"))
    a = parser.parse_args()
    if not a.program.is_file():
        sys.exit(f"there is no {a.program} (cargo build --release --package wcodec-tui)")
    texts = [a.file.name.encode(), *([a.until.encode()] if a.until else [])]
    command = [str(a.program.resolve()), str(a.file)]
    start(command, texts)  # the first one reads program and file from the disk
    found = list(zip(*(start(command, texts) for _ in range(a.repeats)), strict=True))
    for what, times in zip(("first frame", f"{a.until!r}"), found, strict=False):
        print(f"{what}: {statistics.median(times):.1f} ms ({min(times):.1f} to {max(times):.1f})")


if __name__ == "__main__":
    main()
