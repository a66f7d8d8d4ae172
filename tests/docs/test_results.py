"""Figures on pages are those of docs/results, and benchmarks write such files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))

import results  # noqa: E402

SCHEMA = json.loads((ROOT / "docs/results/schema.json").read_text(encoding="utf-8"))
SHORT = (
    "docs/measurements.md",
    "docs/peers.md",
    "docs/fixed-widths.md",
    "docs/schemes-and-coders.md",
    "docs/calibration.md",
    "docs/tuning.md",
)
RUN: dict[str, Any] = {
    "schema": 1, "subject": "speed", "date": "2026-01-02", "commit": None, "machine": None, "card": None,
    "driver": None, "engine": "x", "mode": None, "command": "x", "units": {"speed": "tokens/s", "of_bf16": "of bf16's"},
    "rows": [
        {"name": "ours", "values": {"speed": 1234.5, "of_bf16": {"median": 1.20, "low": 1.1, "high": 1.3}}},
        {"name": "theirs", "of": {"coder": "rans"}, "values": {"speed": 80, "of_bf16": "no memory"}},
        {"name": "bf16", "values": {"speed": 1000}},
    ],
}  # fmt: skip
PAGE = "Text.\n\n<!-- results: t -->\n<!-- end -->\n\nMore text.\n"


@pytest.mark.parametrize("name", results.names())
def test_runs_are_of_the_schema(name: str) -> None:
    jsonschema.validate(json.loads((results.RUNS / f"{name}.json").read_text(encoding="utf-8")), SCHEMA)


def test_every_figure_has_a_row() -> None:
    assert results.mistakes() == []


@pytest.mark.parametrize("name", SHORT)
def test_pages_of_figures_are_short(name: str) -> None:
    text = re.sub(r"```.*?```|<!--.*?-->", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(" ".join(line for line in text.split("\n") if not line.startswith("|")).split()) <= 1500


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a table of the run above, written."""
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    cells = {"": "{name}", "speed": "{speed:,}<< ({of_bf16})>>", "spread": "<<{of_bf16.low} to {of_bf16.high}>>"}
    monkeypatch.setattr(results, "RUNS", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "tables", lambda: {"t": results.Columns("run", cells)})
    monkeypatch.setattr(results, "PAGES", (tmp_path / "page.md",))
    results.load.cache_clear()
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "page.md").write_text(results.written(PAGE))
    yield tmp_path / "page.md"
    results.load.cache_clear()


def test_tables_are_written(page: Path) -> None:
    assert page.read_text() == (
        "Text.\n\n<!-- results: t -->\n| | speed | spread |\n|---|---|---|\n"
        "| ours | 1,234.5 (1.2) | 1.1 to 1.3 |\n| theirs | 80 (no memory) | |\n| bf16 | 1,000 | |\n\n"
        "<!-- end -->\n\nMore text.\n"
    )
    assert results.written(page.read_text()) == page.read_text() and results.mistakes() == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("1,234.5", "1,234.6", "not what docs/results gives"),
        ("More text.", "It is 1.25 of bf16.", "1.25 of bf16"),
        ("More text.", "It writes 81 tokens/s.", "81 tokens/s"),
        ("More text.", "| a |\n|---|\n| 7.5 |", "7.5 in a table"),
        ("More text.", "<!-- runs: other -->", "no docs/results/other.json"),
        ("results: t", "results: u", "no table"),
    ],
)
def test_a_figure_without_a_row_is_told(page: Path, old: str, new: str, told: str) -> None:
    page.write_text(page.read_text().replace(old, new))
    assert any(told in found for found in results.mistakes())


@pytest.mark.parametrize(
    "text",
    [
        "It writes 1,234.5 tokens/s, 1.2 times bf16's, or 80 tokens/s; rounded, 1,235 tokens/s.",
        "Version 0.32 with 4.5 bits, of 8 GB and 3 layers, `--rate 7.5 tokens/s`.",
        "A disk of 5 GB/s. <!-- not measured: an example -->",
        "<!-- not measured: versions -->\n| a |\n|---|\n| 7.5 |",
        "```sh\nsleep 7.5 s\n```",
    ],
)
def test_other_numbers_are_not_told(page: Path, text: str) -> None:
    page.write_text(page.read_text().replace("More text.", text))
    assert results.mistakes() == []


def test_a_run_on_no_page_is_told(page: Path) -> None:
    (page.parent / "new.json").write_text(json.dumps(RUN))
    assert results.mistakes() == ["docs/results/new.json is on no page"]
    page.write_text(PAGE.replace("<!-- results: t -->\n<!-- end -->", "<!-- runs: run, new -->"))
    assert results.mistakes() == ["docs/result_tables.py: t is on no page"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": [*RUN["rows"], RUN["rows"][0]]}, "two rows of one name"),
        ({"units": {"speed": "tokens/s"}}, "no unit of of_bf16"),
    ],
)
def test_a_run_that_contradicts_itself_is_told(page: Path, change: dict[str, Any], told: str) -> None:
    (page.parent / "run.json").write_text(json.dumps({**RUN, **change}))
    results.load.cache_clear()
    assert told in results.mistakes()[0]


def test_cells_name_rows_and_figures_that_are_there(page: Path) -> None:
    grid = results.Grid(("a",), (("{run/ours/speed}",), ("x {run/theirs/of_bf16}",)))
    assert grid.lines() == ["| a |", "| 1234.5 |", "| x no memory |"] and grid.runs == {"run"}
    for cell in ("{run/nobody/speed}", "{run/ours/colour}", "{nothing/ours/speed}"):
        with pytest.raises(results.ResultsError):
            results.Grid(("a",), ((cell,),)).lines()
