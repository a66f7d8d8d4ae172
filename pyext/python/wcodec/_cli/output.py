"""What the subcommands print, and how."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from .._errors import FileError
from .._metadata import finite
from .._native import safe, safe_lines

SCHEMA_VERSION = 2
"""Version of the JSON documents; it grows when a key changes its meaning or goes away, not when one is added."""


def document(command: str, body: dict[str, Any]) -> str:
    """A JSON document of a subcommand, in printable ASCII."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, "command": command, **finite(body)}, indent=2)
    # Of what is no printable ASCII, json leaves this character as it is.
    return text.replace("\x7f", "\\u007f")


def say(text: str = "") -> None:
    """Prints lines on standard output: nothing in them steers a terminal, and what its encoding has not is written out.

    :raises FileError: if standard output is closed.
    """
    _print(text, _stdout())


def put(text: str, tensors: Iterable[bytes] | None = None) -> None:
    """Prints a document of :func:`document`, of which nothing can steer a terminal.

    :param tensors: the entries of a list ``tensors``, its last key, which are JSON already, in ASCII, with a comma
        before each. They come in parts and are written as they are: of a hundred thousand tensors it would take most of
        the time to put them together.
    :raises FileError: if standard output is closed.
    """
    out = _stdout()
    if tensors is None:
        print(text, file=out)
        return
    out.write(f'{text[:-2]},\n  "tensors": [')
    out.flush()
    # A stream that somebody put in the place of standard output may have none.
    binary = getattr(out, "buffer", None)
    ahead = 1
    for part in filter(None, tensors):
        entries = memoryview(part)[ahead:]
        if binary is None:
            out.write(str(entries, "ascii"))
        else:
            binary.write(entries)
        ahead = 0
    out.write("]\n}\n" if ahead else "\n  ]\n}\n")


def tell(text: str) -> None:
    """Prints lines on standard error, where that is possible: what cannot be told is no reason to fail."""
    if sys.stderr is not None:
        try:
            _print(text, sys.stderr)
        except OSError:
            _drop(sys.stderr)


def complain(kind: str, text: str) -> None:
    """Tells what went wrong, in one line."""
    tell(f"wcodec: {kind}: {safe(' '.join(text.split()))}")


def _stdout() -> TextIO:
    if sys.stdout is None:
        # Python opens none where there was none.
        error = FileError("standard output is closed (send it to a file, or to /dev/null)")
        error.errno = errno.EBADF
        raise error
    return sys.stdout


def _print(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    print(safe_lines(text).encode(encoding, "backslashreplace").decode(encoding), file=stream)


def reserve() -> None:
    """Keeps files that are opened later from taking the place of a standard stream that is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def settle() -> None:
    """Writes what is still on its way to standard output, or lets go of it: Python would complain once more when it
    closes it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    """Sends what a stream still has to nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError:
        # It is none of the system's.
        pass


def show_progress(quiet: bool) -> bool:
    """A bar is for people who watch: not for a log file, and not when it was asked not to."""
    return not quiet and sys.stderr is not None and sys.stderr.isatty()
