"""Runs the examples of a Markdown page, in the order of the page.

- ```` ```python ```` blocks run in one namespace.
- In ```` ```sh ```` blocks, statements that call ``wcodec`` or ``wcodec-tui`` run. They must end with status 0, or with
  N where the comment ``# exit status N`` ends the line. ``wcodec-tui`` has no terminal here, so it prints its table.
  Other statements (make, pip, cargo) do not run.
- Other languages do not run; they must be of a known kind, so that no example is left out by a misspelling.

A comment right before a block says more: ``<!-- needs: gpu -->``, and ``<!-- not run: reason -->``.

Everything runs in an empty folder, in which ``tests`` is this repository's folder of tests, and ``path/to/checkpoint``
the model in it. README speaks of more files that a reader has: they are made when a command first reads them. Each
statement has a shell of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import wcodec
from markdown_it import MarkdownIt
from markdown_it.token import Token
from wcodec.cli import EXIT_BROKEN_PIPE, main

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
MODEL = Path("tests/data/doc-llama-3m")

SHELL = ("sh",)
SHOWN = ("text", "json", "yaml", "toml", "dockerfile", "diff", "c", "rust")
"""Languages that are only shown. README's Rust is compiled with the documentation of the crate."""
PATIENCE = 600.0
"""Seconds after which a command has hung: much more than it takes."""

_NAMED = re.compile(r"(?<![\w./-])(wcodec|wcodec-tui)(?=\s)")
_SPECIAL = re.compile(r"[|&;<>$`*?(){}\[\]\n]")
# Comments that docs/results.py reads.
_OF_RESULTS = re.compile(r"<!-- (?:results: |runs: |not measured: |end -->)")
_STATUS = re.compile(r"#\s*exit status (\d+)\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """Number of its first line of content, from 1 on."""
    language: str
    text: str
    needs: str | None = None
    not_run: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def pages() -> list[Path]:
    """The pages whose examples run."""
    found = [README, REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "notebooks/README.md"]
    return [page for page in found if page.is_file()] + sorted((REPOSITORY / "docs").rglob("*.md"))


def name_of(page: Path) -> str:
    """A page's path in the repository: the name of its tests."""
    return page.relative_to(REPOSITORY).as_posix()


def parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def tokens(page: Path) -> list[Token]:
    return parsed(page.read_text(encoding="utf-8"))


def inline(found: list[Token]) -> Iterator[Token]:
    """Tokens within paragraphs, titles and cells."""
    for token in found:
        yield from token.children or ()


def _text_of(token: Token) -> str:
    return "".join(child.content for child in token.children or ())


def _anchors(page: Path) -> set[str]:
    """Anchors that links within a page can lead to, by GitHub's rule."""
    found = tokens(page)
    titles = [_text_of(after) for token, after in zip(found, found[1:], strict=False) if token.type == "heading_open"]
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    seen: Counter[str] = Counter()
    out: set[str] = set()
    for slug in slugs:
        out.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return out


def broken_links(found: list[Token], page: Path) -> Iterator[str]:
    """Links and pictures of a page that lead nowhere, or out of the repository; pictures without a text."""
    for token in inline(found):
        address = str(token.attrs.get("href") or token.attrs.get("src") or "")
        if not address or re.match(r"[a-z]+:", address):
            continue
        path, _, anchor = unquote(address).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(REPOSITORY) or not target.exists():
            yield address
        elif anchor and target.suffix == ".md" and anchor not in _anchors(target):
            yield f"{address} (no such title)"
        if token.type == "image" and not token.content.strip():
            yield f"{address} (no text stands for the picture)"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are not directives of Sphinx."""
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    before = None
    for token in tokens(page):
        if token.type == "fence" and not token.info.startswith("{"):
            assert token.map is not None
            marks: dict[str, str] = {} if before is None else _marks(page, before)
            yield Block(page, token.map[0] + 2, re.split(r"[\s,]", token.info.strip())[0], token.content, **marks)
        before = token if token.type == "html_block" and not _OF_RESULTS.match(token.content) else None


def _marks(page: Path, comment: Token) -> dict[str, str]:
    found = re.fullmatch(r"<!--\s*(needs|not run):\s*(\S.*?)\s*-->", comment.content.strip(), re.DOTALL)
    assert found, f"{name_of(page)}: what does {comment.content.strip()!r} mean before a block?"
    assert found[1] == "not run" or found[2] == "gpu", f"{name_of(page)}: unknown need {found[2]!r}"
    return {found[1].replace(" ", "_"): found[2]}


def pages_that_need_a_gpu() -> list[Path]:
    return [page for page in pages() if any(block.needs == "gpu" for block in blocks(page))]


def run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, gpu: bool) -> None:
    """Runs a page's examples in an empty folder, those that need a GPU only where there is one."""
    (folder / "tests").symlink_to(REPOSITORY / "tests")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    forget_settings(monkeypatch)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page):
        if block.not_run or (block.needs == "gpu" and not gpu):
            continue
        if block.language == "python":
            # Lines before it, so that tracebacks name the page's own.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        elif block.language in SHELL:
            for statement in statements(block.text):
                _run_statement(block, statement)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")


def forget_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes away what the user has set for the package, but not what the tests of GPUs are told."""
    for variable in [v for v in os.environ if v.startswith("WCODEC_")]:
        if variable not in ("WCODEC_NVCOMP", "WCODEC_REQUIRE_GPU"):
            monkeypatch.delenv(variable)


def statements(text: str) -> Iterator[str]:
    """The complete statements of a shell's text: lines, and what goes on over several of them."""
    held = ""
    for line in text.splitlines():
        held += line + "\n"
        # Without the user's locale, of which bash would complain if it is not installed.
        plain = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(["bash", "-n"], input=held.encode(), capture_output=True, env=plain, check=False)
        # An unfinished loop is an error, an unfinished text is a warning, and a backslash at the end is neither.
        if done.returncode == 0 and not done.stderr and not line.endswith("\\"):
            if held.strip():
                yield held.strip()
            held = ""
    assert not held, f"no end of: {held}"


def words(statement: str) -> list[str] | None:
    """The words of a simple command without what a shell would do for it; none if it takes a shell."""
    joined = statement.replace("\\\n", " ")
    if '"' in joined and re.search(r'"[^"]*[$`\\][^"]*"', joined):
        return None
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", joined)
    if _SPECIAL.search(re.sub(r"(^|\s)#.*", "", bare)):
        return None
    return shlex.split(joined, comments=True)


def calls(statement: str) -> bool:
    """Whether a statement calls one of the programs."""
    simple = words(statement)
    if simple is not None:
        # A setting may stand before the program.
        simple = [word for word in simple if not re.match(r"[A-Z_]+=", word)]
        return bool(simple) and simple[0] in ("wcodec", "wcodec-tui")
    return _NAMED.search(re.sub(r"(^|\s)#.*", "", statement)) is not None


def _run_statement(block: Block, statement: str) -> None:
    if not calls(statement):
        return
    found = _STATUS.search(statement)
    expected = int(found[1]) if found else 0
    _provide(statement, everything=block.page == README)
    simple = words(statement)
    if simple and simple[0] == "wcodec":
        status, output = _call(simple[1:]), "see above"
    else:
        status, output = _shell(statement)
        if status == EXIT_BROKEN_PIPE and "|" in statement:
            status = 0
    assert status == expected, f"{block}: {statement}\nexit status {status}, not {expected}\n{output}"


def _call(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def _shell(statement: str) -> tuple[int, str]:
    programs = _programs()
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    try:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", statement], stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", errors="replace", timeout=PATIENCE, check=False, env={**os.environ, "PATH": path},
        )  # fmt: skip
    finally:
        shutil.rmtree(programs)
    return done.returncode, done.stdout + done.stderr


def _programs() -> Path:
    """A folder with the programs of the package that is being tested, whatever is installed."""
    folder = Path.cwd().parent / f"{Path.cwd().name}-programs"
    folder.mkdir()
    for name, module in (("wcodec", "wcodec"), ("wcodec-tui", "wcodec._tui")):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def _provide(statement: str, *, everything: bool) -> None:
    """The checkpoint that pages call so; with ``everything``, all files of a reader that a statement speaks of."""
    named = set(re.findall(r"[\w./-]+", statement.split("#")[0]))
    written = re.findall(r"(?:-o|--output) +(\S+)", statement)
    for name in named & {"path/to/checkpoint"}:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if not Path(name).exists():
            Path(name).symlink_to(MODEL.resolve())
    if not everything:
        return
    for name in named & {"model.wcodec", "a.wcodec", "b.wcodec"}:
        if name in written:
            # An earlier quick start wrote its own.
            Path(name).unlink(missing_ok=True)
        elif not Path(name).exists():
            wcodec.compress(MODEL, name, progress=False)
    if "model.safetensors" in named and not Path("model.safetensors").exists():
        Path("model.safetensors").symlink_to((MODEL / "model.safetensors").resolve())
