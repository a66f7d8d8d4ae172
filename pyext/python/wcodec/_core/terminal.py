"""Text for terminals: how wide they are, whether they have colours, and tables that fit."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TextIO

from .._native import safe

# A style has one meaning everywhere.
_STYLES = {"heading": "1", "good": "32", "bad": "1;31", "attention": "33", "aside": "2"}
_GAP = "  "
# A name that is cut to fewer columns says nothing any more: then other columns go first.
_LEAST_NAME = 36
_SHORTEST_NAME = 8


def columns(stream: TextIO | None = None) -> int | None:
    """The width of text for a stream: a terminal's width, or what ``COLUMNS`` says; ``None`` where any will do, as in a
    pipe or a file."""
    setting = os.environ.get("COLUMNS", "")
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    out = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if is_terminal(out) else None


def is_terminal(stream: TextIO | None) -> bool:
    """Whether people watch."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def has_colors(stream: TextIO | None = None) -> bool:
    """Whether text for a stream has colours: that of a terminal has, unless ``NO_COLOR`` is set or ``TERM`` is
    ``dumb``; ``FORCE_COLOR`` gives them to pipes too. As Python itself decides it."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if os.environ.get("TERM") == "dumb" or (os.name == "nt" and not os.environ.get("WT_SESSION")):
        return False
    return is_terminal(sys.stdout if stream is None else stream)


def paint(text: str, style: str, colors: bool) -> str:
    """The text in a style: ``heading``, ``good``, ``bad``, ``attention`` or ``aside``.

    >>> paint("ok", "good", False), paint("ok", "good", True)
    ('ok', '\\x1b[32mok\\x1b[0m')
    """
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colors and text else text


def width(text: str) -> int:
    """Columns that a text takes on a screen.

    >>> width("größe"), width("層"), width("e\\u0301")
    (5, 2, 1)
    """
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def shortened(text: str, most: int) -> str:
    """The text in so many columns: of one that is longer, the begin and, where names differ, the end.

    >>> shortened("model.layers.10.mlp.up_proj.weight", 20)
    'model.l...roj.weight'
    >>> shortened("short", 20)
    'short'
    """
    if width(text) <= most:
        return text
    mark = "…" if _has_ellipsis() else "..."
    left = most - width(mark)
    if left < 1:
        return text[:most] if width(text[:most]) <= most else ""
    tail = left * 3 // 5
    begin, end = text[: left - tail], text[len(text) - tail :]
    while width(begin) > left - tail:
        begin = begin[:-1]
    while width(end) > tail:
        end = end[1:]
    return begin + mark + end


def _has_ellipsis() -> bool:
    try:
        "…".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


class Table(NamedTuple):
    """A table as text, and the headings of the columns for which there was no room."""

    text: str
    left_out: tuple[str, ...] = ()


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: int = 1,
    *,
    most: int | None = None,
    drop: Sequence[str] = (),
    styles: Mapping[str, str] | None = None,
    colors: bool = False,
) -> Table:
    """An aligned table in at most so many columns of the screen; nothing in a cell steers a terminal.

    If it is too wide, the first column is shortened, then other columns are left out, then lines are cut.

    :param left: so many columns are flush left, the others, numbers, flush right.
    :param drop: headings of columns that may be left out, the most dispensable first.
    :param styles: styles by the text of the cells that have their own.

    >>> print(table(["name", "bytes"], [["a", "10"], ["long", "5"]]).text)
    name  bytes
    a        10
    long      5
    >>> narrow = table(["name", "shape", "bytes"], [["a" * 40, "2x2", "5"]], 2, most=40, drop=["shape"])
    >>> len(narrow.text.splitlines()[1]), narrow.left_out
    (40, ('shape',))
    """
    cells = [list(headings), *([safe(cell) for cell in row] for row in rows)]
    keep = list(range(len(headings)))
    sizes = [max(width(row[i]) for row in cells) for i in keep]

    def others() -> int:
        return sum(sizes[i] + len(_GAP) for i in keep[1:])

    left_out = []
    if most is not None:
        for name in drop:
            if min(sizes[0], _LEAST_NAME) + others() <= most:
                break
            keep.remove(headings.index(name))
            left_out.append(name)
        sizes[0] = max(min(sizes[0], most - others()), min(sizes[0], _SHORTEST_NAME))
    style_of = styles or {}
    lines = []
    for number, row in enumerate(cells):
        line, used = "", 0
        for i in keep:
            gap = _GAP if line else ""
            if most is not None and used + len(gap) + sizes[i] > most and line:
                break
            text = shortened(row[i], sizes[i])
            space = " " * (sizes[i] - width(text))
            style = "heading" if number == 0 else style_of.get(text)
            text = text if style is None else paint(text, style, colors)
            line += gap + (text + space if i < left else space + text)
            used += len(gap) + sizes[i]
        lines.append(line.rstrip())
    return Table("\n".join(lines), tuple(left_out))


def wrapped(text: str, most: int | None, indent: str = "") -> str:
    """The text in lines of so many columns, broken at spaces.

    >>> print(wrapped("one two three", 9, "  "))
    one two
      three
    """
    if most is None or width(text) <= most:
        return text
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if line.strip() and width(line) + 1 + width(word) > most:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def pairs(facts: Iterable[tuple[str, str]], most: int | None = None, colors: bool = False, *, least: int = 0) -> str:
    """Facts below each other, long ones in several lines; their names take ``least`` columns, or more.

    >>> print(pairs([("file", "x"), ("measured", "one two three")], 17))
    file      x
    measured  one two
              three
    """
    known = [(safe(name), safe(value)) for name, value in facts]
    size = max((width(name) for name, _ in known), default=0)
    size = max(size, least)
    hanging = " " * (size + len(_GAP))
    lines = []
    for name, value in known:
        text = wrapped(f"{name}{' ' * (size - width(name))}{_GAP}{value}", most, hanging).rstrip()
        lines.append(paint(text[: len(name)], "heading", colors) + text[len(name) :])
    return "\n".join(lines)
