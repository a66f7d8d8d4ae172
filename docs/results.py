"""Writes the tables of the pages from the runs in docs/results; ``--check`` writes nothing and lists what is wrong.

    python docs/results.py [--check]

A page has a table between two marks, ``<!-- results: NAME -->`` and ``<!-- end -->``. ``result_tables.py`` says which
figures of which runs are in the table of that name. A run is a file of ``docs/results``, as ``schema.json`` describes.

The check has three parts. Tables are those that the runs give. Every run is shown somewhere. Each other figure of a
page is one of a run that the page shows, or a rounded one. A figure is a decimal number in a table outside of marks; in
the text, it is a number with a unit of measurement (``UNITS``), if it has a decimal point or is a speed or a time.
``<!-- runs: NAME, NAME -->`` names runs that only the text tells of. Code is not looked at. A line or table that is not
about a measurement, such as a size by design, is marked: ``<!-- not measured: REASON -->``, at the end of the line or
before the table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "docs/results"
PAGES = tuple(
    ROOT / name
    for name in (
        "README.md",
        "docs/measurements.md",
        "docs/peers.md",
        "docs/fixed-widths.md",
        "docs/schemes-and-coders.md",
        "docs/calibration.md",
        "docs/quality.md",
        "docs/tuning.md",
        "docs/vllm.md",
        "docs/several-gpus.md",
        "docs/residencies-and-memory.md",
        "docs/fine-tuning.md",
        "docs/gpu-setup.md",
        "docs/tasks/best-quality.md",
    )
)
Value = Decimal | str

_REGION = re.compile(r"^<!-- results: ([a-z0-9-]+) -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
_OPTIONAL = re.compile(r"<<(.*?)>>")
_NUMBER = r"(?<![\w.,^-])(\d[\d,]*(?:\.\d+)?)"
SPEEDS = r"tokens/s|tokens per second|[GTM]B/s|[MG]B per second|[GT] weights/s|(?:us|ms|s|seconds|microseconds)\b"
UNITS = rf"{SPEEDS}|%|x\b|times\b|[kMG]i?B\b|bits/weight|bits per weight|nats|of (?:bf16|bfloat16|NF4|GPTQ)"
_FIGURE = re.compile(rf"{_NUMBER}(?= ?(?:({SPEEDS})|{UNITS}))")


class ResultsError(Exception):
    """A run, a table or a page is not what it should be."""


@dataclass(frozen=True)
class Columns:
    """A table with a row for each row of one run, or for those that ``rows`` names."""

    run: str
    columns: dict[str, str]
    """Titles, and cells: text with ``{quantity}``, and ``<<text>>`` that is left out where a figure of it is absent.
    Spaces at the end tell two titles of one name apart."""
    rows: tuple[str, ...] | None = None

    def lines(self) -> list[str]:
        found = load(self.run)
        wanted = found.rows if self.rows is None else {name: found.row(name) for name in self.rows}
        titles = [title.strip() for title in self.columns]
        return _table(titles, ([_cell(c, row) for c in self.columns.values()] for row in wanted.values()))

    @property
    def runs(self) -> set[str]:
        return {self.run}


@dataclass(frozen=True)
class Grid:
    """A table of figures of several runs, whose cells name each: ``{run/row/quantity}``."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        return _table(list(self.header), ([_cell(cell, None) for cell in row] for row in self.rows))

    @property
    def runs(self) -> set[str]:
        return {name.split("/")[0] for row in self.rows for cell in row for name, _ in _FIELD.findall(cell)}


@dataclass(frozen=True)
class Run:
    name: str
    facts: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    """By name: the settings and figures of each row, and under ``quantities`` the names of figures."""

    def row(self, name: str) -> dict[str, Any]:
        if name not in self.rows:
            raise ResultsError(f"docs/results/{self.name}.json has no row {name!r}")
        return self.rows[name]

    def numbers(self) -> Iterator[Decimal]:
        for row in self.facts["rows"]:
            for value in [*row["values"].values(), *row.get("of", {}).values()]:
                for found in value.values() if isinstance(value, dict) else [value]:
                    if isinstance(found, Decimal):
                        yield found


@cache
def load(name: str) -> Run:
    """A run, whose numbers keep the digits that the file has."""
    path = RUNS / f"{name}.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, parse_int=Decimal)
    except FileNotFoundError:
        raise ResultsError(f"there is no docs/results/{name}.json") from None
    rows = {
        row["name"]: {"name": row["name"], **row.get("of", {}), **row["values"], "quantities": row["values"].keys()}
        for row in facts["rows"]
    }
    if len(rows) < len(facts["rows"]):
        raise ResultsError(f"docs/results/{name}.json has two rows of one name")
    for row in facts["rows"]:
        if unknown := set(row["values"]) - set(facts["units"]):
            raise ResultsError(f"docs/results/{name}.json: no unit of {', '.join(sorted(unknown))}")
    return Run(name, facts, rows)


def names() -> list[str]:
    """All runs."""
    return sorted(path.stem for path in RUNS.glob("*.json") if path.stem != "schema")


def _value(name: str, row: dict[str, Any] | None) -> Value | None:
    """A figure, the reason why there is none, or nothing."""
    if row is None:
        run, place, name = name.split("/")
        row = load(run).row(place)
        if name.split(".")[0] not in row:
            raise ResultsError(f"docs/results/{run}.json: row {place!r} has no {name}")
    name, _, part = name.partition(".")
    found = row.get(name)
    if isinstance(found, dict):
        return found.get(part or "median")
    return None if part else found


def _text(template: str, row: dict[str, Any] | None) -> str | None:
    """The template with figures; nothing if one of them is absent."""
    found = {name: _value(name, row) for name, _ in _FIELD.findall(template)}
    if None in found.values():
        return None

    def shown(match: re.Match[str]) -> str:
        value = found[match[1]]
        return value if isinstance(value, str) else format(value, match[2] or "")

    return _FIELD.sub(shown, template)


def _cell(template: str, row: dict[str, Any] | None) -> str:
    """Text of a cell; empty where a figure of it is absent. A reason why there is no figure stands alone."""
    certain = _FIELD.search(_OPTIONAL.sub("", template))
    if certain and row is not None and certain[1] in row["quantities"]:
        reason = _value(certain[1], row)
        if isinstance(reason, str):
            return reason
    text = _OPTIONAL.sub(lambda m: _text(m[1], row) or "", template)
    return _text(text, row) or ""


def _table(header: list[str], rows: Any) -> list[str]:
    return ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in (header, *rows)]


def _with_rule(lines: list[str]) -> list[str]:
    columns = lines[0].replace("\\|", "").count("|") - 1
    return [lines[0], "|---" * columns + "|", *lines[1:]]


def tables() -> dict[str, Columns | Grid]:
    """All tables by name."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import result_tables as found
    finally:
        sys.path.pop(0)
    return found.TABLES


def written(text: str) -> str:
    """A page with its tables as the runs give them."""
    known = tables()

    def made(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise ResultsError(f"docs/result_tables.py has no table {match[1]!r}")
        lines = "\n".join(_with_rule(known[match[1]].lines()))
        return f"<!-- results: {match[1]} -->\n{lines}\n\n<!-- end -->"

    return _REGION.sub(made, text)


def cited(text: str) -> set[str]:
    """The runs that a page shows or names."""
    known = tables()
    found = {run for name, _ in _REGION.findall(text) if name in known for run in known[name].runs}
    for listed in re.findall(r"<!-- runs: (.*?) -->", text):
        found |= set(listed.split(", "))
    return found


def without_row(text: str) -> Iterator[tuple[int, str]]:
    """Line and figure of each figure of a page that no run has."""
    numbers = {number for name in cited(text) for number in load(name).numbers()}
    text = _REGION.sub(lambda m: "\n" * m[0].count("\n"), text)
    fenced = excused = False
    for place, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        if line.startswith("<!-- not measured: "):
            excused = True
            continue
        if "<!-- not measured: " in line or excused and (line.startswith("|") or not line):
            continue
        excused = False
        line = re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+", " ", line)
        if line.startswith("|"):
            for figure in re.findall(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.])", line):
                if not _is_among(figure, numbers):
                    yield place, f"{figure} in a table outside of marks"
            continue
        for match in _FIGURE.finditer(line):
            if ("." in match[1] or match[2]) and not _is_among(match[1], numbers):
                yield place, match[0] + line[match.end() :].split(",")[0][:20]


def _is_among(text: str, numbers: set[Decimal]) -> bool:
    """Whether the text is one of the numbers, as it is or rounded."""
    wanted = Decimal(text.replace(",", ""))
    unit = Decimal(1).scaleb(wanted.as_tuple().exponent)
    return any(2 * abs(number - wanted) <= unit for number in numbers)


def mistakes() -> list[str]:
    """Everything that the check finds, with the remedy."""
    found, shown = [], set[str]()
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        try:
            if written(text) != text:
                found.append(f"{name}: a table is not what docs/results gives (run python docs/results.py)")
            shown |= cited(text)
            found += [f"{name}:{line}: no run of this page has {figure}" for line, figure in without_row(text)]
        except ResultsError as error:
            found.append(f"{name}: {error}")
    found += [f"docs/results/{name}.json is on no page" for name in names() if name not in shown]
    used = {n for page in PAGES for n, _ in _REGION.findall(page.read_text(encoding="utf-8"))}
    return found + [f"docs/result_tables.py: {name} is on no page" for name in tables() if name not in used]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and list what is wrong")
    if not parser.parse_args().check:
        for page in PAGES:
            page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    found = mistakes()
    print("\n".join(found) or "every figure has a row")
    return int(bool(found))


if __name__ == "__main__":
    # result_tables.py imports this module by name.
    sys.modules["results"] = sys.modules["__main__"]
    sys.exit(main())
