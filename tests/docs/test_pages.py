"""The documentation: its examples run, its links lead somewhere, its references are complete."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import doc_examples
import pytest
import wcodec
from doc_examples import REPOSITORY, name_of
from wcodec._cli.parser import build_parser

PAGES = doc_examples.pages()
# Pages without examples that run here, whose links count all the same.
LINKING = [*PAGES, REPOSITORY / "CHANGELOG.md", REPOSITORY / "codec/FORMAT.md"]
RUNNING = [p for p in PAGES if any(b.language in ("python", *doc_examples.SHELL) for b in doc_examples.blocks(p))]
COMMANDS = REPOSITORY / "docs/command-line.md"


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those that need a GPU run in tests/gpu/test_torch.py.
    pytest.importorskip("transformers")
    doc_examples.run(page, tmp_path, monkeypatch, gpu=False)


def test_readme_has_its_quick_starts() -> None:
    found = doc_examples.blocks(doc_examples.README)
    assert [b.needs for b in found if b.language == "python"] == [None, None]
    commands = re.findall(r"^wcodec[ -](\w+)", "\n".join(b.text for b in found if b.language == "sh"), re.MULTILINE)
    assert set(commands) == {"chat", "doctor", "encode", "inspect", "tui", "verify"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_of_a_known_kind(page: Path) -> None:
    for block in doc_examples.blocks(page):
        assert block.language in ("python", *doc_examples.SHELL, *doc_examples.SHOWN), block
        assert block.language != "rust" or page == doc_examples.README, f"{block}: no test compiles it"


def test_statements_are_told_apart() -> None:
    text = "make demo\nwcodec verify a \\\n  --json  # exit status 1\nfor f in *.wcodec; do\n  wcodec verify $f\ndone\n"
    found = list(doc_examples.statements(text))
    assert [doc_examples.calls(s) for s in found] == [False, True, True]
    assert doc_examples.words(found[1]) == ["wcodec", "verify", "a", "--json"] and doc_examples.words(found[2]) is None
    assert doc_examples.words("wcodec inspect a --filter '*mlp*'") == ["wcodec", "inspect", "a", "--filter", "*mlp*"]
    for statement in ("cd a && wcodec doctor", "wcodec inspect a | head", "A=1 wcodec doctor", "x=$(wcodec doctor )"):
        assert doc_examples.calls(statement), statement
    for statement in ("cargo run --package wcodec --example x", "pip install 'wcodec[torch]'", "# wcodec doctor"):
        assert not doc_examples.calls(statement), statement


def test_an_example_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(doc_examples, "REPOSITORY", tmp_path)
    (tmp_path / "tests").mkdir()
    for number, text in enumerate((
        "```python\nassert False\n```",
        "```sh\nwcodec inspect missing.wcodec\n```",
        "```sh\nwcodec inspect missing.wcodec | cat\n```",
        "```sh\nwcodec-tui missing.wcodec\n```",
        "```sh\nwcodec encode --no-such-option\n```",
        "```sh\nwcodec doctor  # exit status 1\n```",
        "<!-- needs: luck -->\n```python\n```",
        "<!-- not run: -->\n```python\n```",
    )):  # fmt: skip
        page.write_text(text)
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(AssertionError):
            doc_examples.run(page, folder, monkeypatch, gpu=False)
    page.write_text(
        "```sh\nwcodec inspect missing.wcodec  # exit status 2\n```\n\n<!-- needs: gpu -->\n```python\n1/0\n```"
    )
    (tmp_path / "good").mkdir()
    doc_examples.run(page, tmp_path / "good", monkeypatch, gpu=False)


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_links_and_pictures_exist(page: Path) -> None:
    assert not list(doc_examples.broken_links(doc_examples.tokens(page), page))


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    code = [token.content for token in doc_examples.inline(doc_examples.tokens(page)) if token.type == "code_inline"]
    code += [block.text for block in doc_examples.blocks(page) if block.language in doc_examples.SHELL]
    named = {t for text in code for t in re.findall(r"^(?:\w+=\S+ )*make ([a-z-]+)", text, re.MULTILINE)}
    assert named <= targets


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_no_path_of_a_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:work|home|Users|root|mnt|scratch)/.*", page.read_text(encoding="utf-8"))


# The reference of the command.


def sections() -> dict[str, tuple[str, dict[str, str]]]:
    """For each heading of the page of commands: the text below it, and its tables' rows."""
    out: dict[str, tuple[str, dict[str, str]]] = {}
    text = COMMANDS.read_text(encoding="utf-8")
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        rows = re.findall(r"^\| (`.+?) \| (.+) \|$", body, re.MULTILINE)
        out[title] = body, dict(rows)
    return out


def arguments_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Options by their names, other arguments by what stands for them, without --help."""
    out = {}
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction | argparse._VersionAction):
            for name in action.option_strings or [str(action.metavar)]:
                out[name] = action
    return out


def subparsers() -> dict[str, argparse.ArgumentParser]:
    found = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def described(command: str) -> dict[str, str]:
    """Text of the page about each argument of a command, in its section and those that this links to."""
    everything = sections()
    body, rows = everything[f"wcodec {command}"]
    shared = {re.sub(r"\W+", "-", title.lower()): found for title, (_, found) in everything.items()}
    for anchor in re.findall(r"\]\(#([\w-]+)\)", body):
        rows = {**rows, **shared[anchor]}
    out = {}
    for names, text in rows.items():
        for name in re.findall(r"`([^`]+)`", names):
            assert name.split()[0] not in out, f"{command}: {name} is described twice"
            out[name.split()[0]] = f"{name.partition(' ')[2]} {text}"
    return out


def test_every_command_has_a_section_and_an_example() -> None:
    titles = {title.removeprefix("wcodec ") for title in sections() if title.startswith("wcodec ")}
    assert titles == set(subparsers())
    for command in titles:
        assert f"```sh\nwcodec {command}" in sections()[f"wcodec {command}"][0]
        assert f"| [`{command}`](#wcodec-{command}) |" in COMMANDS.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", sorted(subparsers()))
def test_every_option_of_a_command_is_described(command: str) -> None:
    arguments, texts = arguments_of(subparsers()[command]), described(command)
    assert set(texts) == set(arguments)
    for name, action in arguments.items():
        if name.startswith("--") and action.metavar:
            assert texts[name].startswith(f"{action.metavar} "), name
        listed = re.search("some of (.+?), with", action.help or "")
        for choice in action.choices or (listed[1].split(", ") if listed else ()):
            assert f"`{choice}`" in texts[name], f"{name}: {choice}"
        if "default:" in (action.help or "") and isinstance(action.default, int | str):
            assert re.search(rf"default: `?{action.default}\b|`{action.default}` \(default", texts[name]), name
        assert not action.required or not name.startswith("--") or "required" in texts[name], name


def test_every_option_of_the_inspector_is_described() -> None:
    done = subprocess.run([sys.executable, "-m", "wcodec._tui", "--help"], capture_output=True, text=True, check=True)
    options = set(re.findall(r"^\s+(?:-\w, )?(--[a-z-]+)", done.stdout, re.MULTILINE))
    assert "--plain" in options
    page = (REPOSITORY / "docs/inspector.md").read_text(encoding="utf-8")
    assert {o for o in options if not re.search(rf"`{o}[`\s=]", page)} == set()


# The reference of the package.


Built = tuple[Path, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The documentation's folder, and what Sphinx said."""
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-d", str(out / "doctrees"),
         str(REPOSITORY / "docs"), str(out / "html")],
        cwd=out, capture_output=True, encoding="utf-8", check=False, env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    return out / "html", done


def test_sphinx_has_nothing_to_say(built: Built) -> None:
    # A name that is described twice is a warning too.
    assert built[1].returncode == 0, built[1].stderr


def public() -> Iterator[tuple[str, object]]:
    from wcodec import _measure, _plot, nn

    for prefix, module in (("wcodec", wcodec), ("wcodec.nn", nn)):
        yield from ((f"{prefix}.{name}", getattr(module, name)) for name in module.__all__)
    yield from ((f"wcodec._plot.{name}", getattr(_plot, name)) for name in _plot.__all__)
    for name in _measure.__all__:
        yield f"wcodec.{name}" if name in wcodec.__all__ else f"wcodec._measure.{name}", getattr(_measure, name)


def test_the_reference_has_everything_that_is_public(built: Built) -> None:
    from sphinx.util.inventory import InventoryFile

    with (built[0] / "objects.inv").open("rb") as file:
        found = InventoryFile.load(file, "", lambda base, path: path)
    inventory = {name for kind, names in found.items() if kind.startswith("py:") for name in names}
    for name, value in public():
        assert name in inventory, name
        if inspect.isclass(value):
            for key, member in vars(value).items():
                # torch calls extra_repr for what it prints.
                if key.startswith("_") or key == "extra_repr":
                    continue
                if inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod):
                    assert f"{name}.{key}" in inventory, f"{name}.{key}"


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set()
    for page in (REPOSITORY / "docs").rglob("*.md"):
        for toctree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            names = [line for line in toctree.split() if not line.startswith(":") and re.match(r"[\w/-]+$", line)]
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    pages = {p.resolve() for p in (REPOSITORY / "docs").rglob("*.md")} - {(REPOSITORY / "docs/index.md").resolve()}
    assert pages <= listed
