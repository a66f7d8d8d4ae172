"""Small commands: explain, help, version, completions, the manual page, and the inspector."""

from __future__ import annotations

import argparse

from .._core.codes import catalogue
from .._core.codes import explain as explained
from .._core.errors import InputError
from .._native import __version__
from . import hints
from .output import document, prose, put, say
from .parsing import Parser, commands, root
from .shell import SHELLS, completions_of, manual


def tui(parser: Parser) -> None:
    """Arguments of ``wcodec tui``, which hands all on."""
    parser.passes_on = "all"
    parser.add_argument("passed", nargs="*", metavar="ARGUMENT",
                        help="a .wcodec, .safetensors or .gguf file, and options of wcodec-tui "
                             "(wcodec tui --help)")  # fmt: skip


def run_tui(arguments: argparse.Namespace) -> int:
    """``wcodec tui``"""
    from .. import _tui

    return _tui.main(arguments.passed)


def explain(parser: Parser) -> None:
    """Arguments of ``wcodec explain``."""
    parser.add_argument("code", nargs="?", metavar="CODE",
                        help="the code at the end of a message, such as F101 (default: all codes)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run_explain(arguments: argparse.Namespace) -> int:
    """``wcodec explain``"""
    a = arguments
    found = list(catalogue().values()) if a.code is None else [explained(a.code)]
    if a.json:
        put(document("explain", {"codes": [code.to_dict() for code in found]}))
    elif a.code is not None:
        for line in str(found[0]).splitlines():
            prose(line) if line else say()
    else:
        section = None
        for code in found:
            if code.section != section:
                if section is not None:
                    say()
                prose(code.section, "heading")
                section = code.section
            prose(f"{code.id}  {code.title}")
    return 0


def completions(parser: Parser) -> None:
    """Arguments of ``wcodec completions``."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run_completions(arguments: argparse.Namespace) -> int:
    """``wcodec completions``"""
    put(completions_of(root(), arguments.shell).rstrip("\n"))
    return 0


def run_man(arguments: argparse.Namespace) -> int:
    """``wcodec man``"""
    put(manual(root()).rstrip("\n"))
    return 0


def help_arguments(parser: Parser) -> None:
    """Arguments of ``wcodec help``."""
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="the command to tell about")
    parser.add_argument("--all", action="store_true", help="all commands, or all options of the command")


def run_help(arguments: argparse.Namespace) -> int:
    """``wcodec help``"""
    a, top = arguments, root()
    known = commands(top)
    parser = top if a.command is None else known.get(a.command)
    if parser is None:
        tip = hints.for_command(a.command, list(known), ()) or "wcodec help lists them"
        raise InputError(f"there is no command {a.command!r} ({tip})", code="I303")
    if isinstance(parser, Parser):
        say(parser.help_text(a.all).rstrip("\n"))
    return 0


def run_version(arguments: argparse.Namespace) -> int:
    """``wcodec version``"""
    say(f"wcodec {__version__}")
    return 0
