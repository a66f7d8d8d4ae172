"""``wcodec --completions SHELL`` and ``wcodec --man``: made from the parser, by packages that exist for that."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from .._core.errors import UnsupportedError
from .output import put

SHELLS = ("bash", "zsh", "fish")
# Names of arguments that stand for a file or folder.
_FILES = ("FILE", "SRC", "OUT", "MODEL", "A", "B")
_FOLDERS = ("FOLDER",)


def add_shell_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``wcodec`` itself, as ``wcodec-tui`` has them."""
    parser.add_argument("--completions", action=_Completions, choices=SHELLS, metavar="SHELL",
                        help="print completions for a shell: bash, zsh or fish")  # fmt: skip
    parser.add_argument("--man", action=_Man, nargs=0, help="print the manual page")


class _Completions(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        put(completions_of(parser, values).rstrip("\n"))
        parser.exit()


class _Man(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        put(manual(parser).rstrip("\n"))
        parser.exit()


def completions_of(parser: argparse.ArgumentParser, shell: str) -> str:
    """Completions of all commands and options, and of the files that they take."""
    try:
        import shtab
    except ImportError:
        raise UnsupportedError("completions need shtab (pip install shtab)", code="U203") from None
    for action in _actions(parser):
        if action.choices is None and action.metavar in (*_FILES, *_FOLDERS):
            action.complete = shtab.FILE if action.metavar in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell)
    return text


def manual(parser: argparse.ArgumentParser) -> str:
    """The manual page, all commands in it."""
    try:
        from argparse_manpage.manpage import Manpage
    except ImportError:
        raise UnsupportedError(
            "the manual page needs argparse-manpage (pip install argparse-manpage)", code="U203"
        ) from None
    page = Manpage(parser)
    page.description, page.manual = "entropy-coded weights for large language models", "wcodec"
    return str(page)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            subparsers: Sequence[argparse.ArgumentParser] = list(action.choices.values())
            for sub in subparsers:
                yield from _actions(sub)
