"""Printing for the subcommands."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from .._core.errors import FileError, InputError, UnsupportedError
from .._core.metadata import finite
from .._core.paths import output, refuse_existing
from .._core.terminal import Table, columns, has_colors, is_terminal, paint, pairs, table, wrapped
from .._native import safe, safe_lines
from .hints import advice_of, code_of

SCHEMA_VERSION = 2
"""Version of the JSON documents; it grows when a key changes its meaning or goes away, not when one is added."""

# Names of results in all tables, and their styles.
STATUSES = {
    **dict.fromkeys(("ok", "same", "equal", "works", "taken"), "good"),
    **dict.fromkeys(("damaged", "DIFFERS", "NO", "differs", "missing", "extra"), "bad"),
    **dict.fromkeys(("unsupported", "only_a", "only_b"), "attention"),
}


def document(command: str, body: dict[str, Any]) -> str:
    """A JSON document of a subcommand, in printable ASCII."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, "command": command, **finite(body)}, indent=2)
    # json writes out what is no printable ASCII, but for this character.
    return text.replace("\x7f", "\\u007f")


def say(text: str = "") -> None:
    """Prints lines on standard output: nothing in them steers a terminal, and what its encoding has not is written out.

    :raises FileError: if standard output is closed.
    """
    _print(text, _stdout())


def show(text: str = "") -> None:
    """Prints lines that may have styles on standard output: whoever made them saw to it that nothing else steers a
    terminal.

    :raises FileError: if standard output is closed.
    """
    _write(text, _stdout())


def stream(text: str) -> None:
    """Writes text on standard output as it comes, without an end of line; nothing in it steers a terminal.

    :raises FileError: if standard output is closed.
    """
    out = _stdout()
    _write(safe_lines(text), out, "")
    out.flush()


def prose(text: str, style: str | None = None) -> None:
    """Prints a sentence on standard output, in lines that fit a terminal; nothing in it steers one.

    :raises FileError: if standard output is closed.
    """
    out = _stdout()
    lines = wrapped(safe(text), columns(out), "  ")
    show(paint(lines, style, has_colors(out)) if style else lines)


def tabulate(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, drop: Sequence[str] = ()) -> None:
    """Prints a table that fits the terminal, and says which columns it had no room for.

    :raises FileError: if standard output is closed.
    """
    out = _stdout()
    show_table(table(headings, rows, left, most=columns(out), drop=drop, styles=STATUSES, colors=has_colors(out)))


def figures(facts: Iterable[tuple[str, str]]) -> None:
    """Prints facts below each other.

    :raises FileError: if standard output is closed.
    """
    out = _stdout()
    show(pairs(facts, columns(out), has_colors(out)))


def show_table(made: Table) -> None:
    """Prints a table that was made for standard output, likewise."""
    show(made.text)
    if made.left_out:
        out = _stdout()
        names = ", ".join(made.left_out)
        note = wrapped(f"not shown for want of room: {names} (a wider terminal or a pipe has them)", columns(out), "  ")
        show(paint(note, "aside", has_colors(out)))


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
    """Tells what went wrong: programs in one line, people with the advice in a line of its own."""
    message = safe(" ".join(text.split()))
    if sys.stderr is None:
        return
    try:
        if is_terminal(sys.stderr):
            text, code = code_of(message)
            message, advice = advice_of(text)
            _write_message(kind, message if code is None else f"{message} [{code}]", advice)
            return
        head = f"wcodec: {kind}:"
        _write(f"{paint(head, 'bad', has_colors(sys.stderr))} {message}", sys.stderr)
    except OSError:
        _drop(sys.stderr)


def reject(text: str, tip: str | None, more: str) -> None:
    """Tells which argument is wrong, what helps, and the command that says more."""
    if sys.stderr is None:
        return
    try:
        _write_message("error", *(part and safe(" ".join(part.split())) for part in (text, tip)))
        _write(f"\nFor more information, try '{more}'.", sys.stderr)
    except OSError:
        _drop(sys.stderr)


def _write_message(kind: str, text: str | None, tip: str | None) -> None:
    """Both, in lines that fit a terminal."""
    out = sys.stderr
    most = columns(out) if is_terminal(out) else None
    for indent, head, message, style in (("", f"{kind}:", text, "bad"), ("  ", "tip:", tip, "good")):
        if message:
            line = wrapped(f"{head} {message}", most and most - len(indent), f"  {indent}")
            body = line[len(head) :].replace("\n", f"\n{indent}")
            _write(indent + paint(head, style, has_colors(out)) + body, out)


def _stdout() -> TextIO:
    if sys.stdout is None:
        # Python opens none where there was none.
        error = FileError("standard output is closed (send it to a file, or to /dev/null)", code="O105")
        error.errno = errno.EBADF
        raise error
    return sys.stdout


def _print(text: str, stream: TextIO) -> None:
    _write(safe_lines(text), stream)


def _write(text: str, stream: TextIO, end: str = "\n") -> None:
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, file=stream)


def check_plot(path: str) -> None:
    """Whether a picture can be drawn, and written there: before the work for it, which may take long.

    :raises InputError: if its name ends in none of a kind of picture.
    :raises UnsupportedError: if matplotlib is not installed.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UnsupportedError("matplotlib is not installed (pip install matplotlib)", code="U203") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in kinds:
        raise InputError(
            f"{path}: no picture of this kind can be drawn (end the name in .png, or in .svg or .pdf)", code="I108"
        )
    if not Path(path).resolve().parent.is_dir():
        raise FileError(
            f"{path}: the picture cannot be written: there is no such folder (choose another place)", code="O101"
        )


def check_plan(path: str, overwrite: bool) -> None:
    """Whether a plan can be saved there: before it is made, which takes minutes.

    :raises InputError: if its name does not end in ``.json``.
    :raises OutputExistsError: if there is a file that is not to be replaced.
    """
    if not path.endswith(".json"):
        raise InputError(f"{path}: a plan is a file of JSON (end its name in .json)", code="I635")
    refuse_existing(path, overwrite)
    if not Path(path).resolve().parent.is_dir():
        raise FileError(
            f"{path}: the plan cannot be written: there is no such folder (choose another place)", code="O101"
        )


def save_plot(draw: Callable[[], Any], path: str, inputs: Iterable[str]) -> None:
    """Writes a picture, whole or not at all; what its ending is called decides what it is.

    :param inputs: the files that are read for it.
    """
    with output(path, inputs=inputs, overwrite=True) as out:
        drawn = io.BytesIO()
        draw().figure.savefig(drawn, dpi=150, format=Path(path).suffix.removeprefix(".").lower())
        out.write(drawn.getvalue())
        out.finish()


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
    return not quiet and is_terminal(sys.stderr)
