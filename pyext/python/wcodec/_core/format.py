"""Numbers and tables as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import islice

from .._native import safe
from .colors import BAD
from .terminal import table

# More rows than this make a notebook's output unwieldy; the rest is summed up in one line.
HTML_ROWS = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


# A table: its headings, its rows, how many columns are flush left, and which a narrow terminal may leave out.
Parts = tuple[Sequence[str], Sequence[Sequence[str]], int, Sequence[str]]


def size(count: float) -> str:
    """Bytes for people, in powers of 1,024.

    >>> size(0), size(1023), size(6_295_384)
    ('0 B', '1023 B', '6.00 MiB')
    """
    power = 0
    while abs(count) >= 1024 and power < len(_UNITS) - 1:
        count /= 1024
        power += 1
    return f"{count:.2f} {_UNITS[power]}" if power else f"{count:.0f} B"


def exact_size(count: int) -> str:
    """Bytes in the largest unit that has a whole number of them, so that nothing is lost when it is read again.

    >>> exact_size(3_000_000_000), exact_size(512 << 20), exact_size(1025), exact_size(0)
    ('3GB', '512MiB', '1025B', '0B')
    """
    units = [(base**power, letter + infix + "B") for power, letter in enumerate("KMGT", 1)
             for base, infix in ((1000, ""), (1024, "i"))]  # fmt: skip
    exact_units = [(size, name) for size, name in units if count and count % size == 0]
    unit, name = max(exact_units, default=(1, "B"))
    return f"{count // unit}{name}"


def number(value: float | None, digits: int = 3) -> str:
    """A figure with fixed digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def figure(value: float | None, digits: int = 4) -> str:
    """A figure that may be very small: fixed digits, or an exponent where those would show nothing.

    >>> figure(7.39912), figure(0.0000123), figure(0.0), figure(None)
    ('7.3991', '1.230e-05', '0', '-')
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{value:.3e}" if abs(value) < 10.0**-digits * 10 else f"{value:.{digits}f}"


def shape(dimensions: Sequence[int]) -> str:
    """A shape as it reads in tables.

    >>> shape((4096, 192)), shape(())
    ('4096x192', 'scalar')
    """
    return "x".join(map(str, dimensions)) or "scalar"


def ratio(original: int, stored: int) -> float | None:
    """Original bytes per stored byte; none where nothing is stored."""
    return original / stored if stored else None


def bits(stored: int, elements: int) -> float | None:
    """Stored bits per element; none where there is no element."""
    return 8 * stored / elements if elements else None


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "tensor"), plural(2, "alias")
    ('1 tensor', '2 aliases')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Facts in one line, as ``repr`` has them.

    >>> facts([("file", "a\\n.wcodec"), ("tensors", "2")])
    'file: a\\\\n.wcodec, tensors: 2'
    """
    return ", ".join(f"{name}: {safe(value)}" for name, value in pairs)


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """An aligned table; the first ``left`` columns are flush left, the others (numbers) flush right. Nothing in a cell
    steers a terminal.

    >>> print(text_table(["name", "bytes"], [["a", "10"], ["long", "5"]]))
    name  bytes
    a        10
    long      5
    """
    return table(headings, rows, left).text


def html_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, *, count: int | None = None
) -> str:
    """An HTML table. It sets no colours, so that it follows a notebook's light or dark theme.

    :param rows: only those that are shown are taken of an iterator whose ``count`` is given.
    """
    if count is None:
        rows = list(rows)
        count = len(rows)

    def line(cells: Sequence[str], tag: str) -> str:
        aligned = ("left" if i < left else "right" for i in range(len(cells)))
        inner = "".join(
            f'<{tag} style="text-align:{a}">{_escape(c)}</{tag}>' for a, c in zip(aligned, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in islice(rows, HTML_ROWS))
    more = count - HTML_ROWS
    note = f"<p>and {more:,} more</p>" if more > 0 else ""
    return f"<table><thead>{line(headings, 'th')}</thead><tbody>{body}</tbody></table>{note}"


def html_block(
    title: str,
    facts: Sequence[tuple[str, str]],
    table: str = "",
    summary: str = "",
    *,
    problem: bool = False,
    after: str = "",
) -> str:
    """A title, what is to be seen first, a table of facts, and what folds away.

    :param table: HTML before the facts or, with a ``summary``, below them, folded away.
    :param problem: whether that is something wrong, which is open, and whose summary is red.
    :param after: HTML at the end.
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{_escape(k)}</th><td style="text-align:left">{_escape(v)}</td></tr>'
        for k, v in facts
    )
    first = "" if summary else table
    folded = html_folded(summary, table, problem) if table and summary else ""
    known = f"<table><tbody>{rows}</tbody></table>"
    return f"<div><div><strong>{_escape(title)}</strong></div>{first}{known}{folded}{after}</div>"


def html_folded(summary: str, inner: str, problem: bool = False) -> str:
    """Something that folds away; of a problem it is open, and its summary red."""
    heading = f'<strong style="color:{BAD}">{_escape(summary)}</strong>' if problem else _escape(summary)
    return f"<details{' open' if problem else ''}><summary>{heading}</summary>{inner}</details>"


def _escape(text: str) -> str:
    return html.escape(safe(text))
