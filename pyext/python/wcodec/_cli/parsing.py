"""The parser's own part: it prints as the commands do, and asks what was meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import hints
from .helping import command_help, root_help
from .output import reject, say

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

PASS_ON = "--"
"""Separates a command's own arguments from those that it hands on."""


class Refused(SystemExit):
    """Arguments that the parser refused, after that was told; for a document of JSON."""

    def __init__(self, status: int, message: str, tip: str | None) -> None:
        super().__init__(status)
        self.message, self.tip = message, tip


class Parser(argparse.ArgumentParser):
    """argparse does not say when its help cannot be written, quotes arguments as they are, begins an error with all
    options that there are, and leaves it to the reader to find out what a mistaken word should have been."""

    words: Sequence[str] = ()
    """The words that were typed, for all parsers; one that misses an argument is not told of unknown ones."""
    passes_on: str = ""
    """The arguments that a command hands on: nothing, ``all`` of its arguments, or those ``after`` two dashes."""
    _tip: str | None = None

    def error(self, message: str) -> NoReturn:
        """Tells what is wrong, what helps, and where more is said."""
        _, required, names = message.partition("the following arguments are required: ")
        if required:
            message = f"missing: {names}"
            # A word that nobody knows may be the one that is missing.
            known = options(self)
            unknown = [w for w in self.words if w.startswith("--") and w != PASS_ON and not _is_known(w, known)]
            if unknown:
                self._unrecognized(unknown, self.words)
        problem, advice = hints.advice_of(message) if "(choose from" not in message else (message, None)
        tip = self._tip or advice
        reject(problem, tip, f"{self.prog} --help")
        raise Refused(2, problem, tip)

    def unrecognized(self, extra: Sequence[str]) -> NoReturn:
        """Refuses arguments that nobody knows."""
        self._unrecognized(extra, extra)

    def _unrecognized(self, extra: Sequence[str], words: Sequence[str]) -> NoReturn:
        named = [word for word in extra if word.startswith("-") and word != "-"] or list(extra)
        word = named[0].partition("=")[0]
        self._tip = self._meant(word, words) if word.startswith("-") else self._superfluous(word)
        self.error(f"unrecognized argument '{word}'")

    def _meant(self, word: str, words: Sequence[str]) -> str:
        command, known = self.prog.partition(" ")[2], options(self)
        at = next((i for i, w in enumerate(words) if w.partition("=")[0] == word), len(words))
        after = words[at].partition("=")[2] if at < len(words) and "=" in words[at] else "".join(words[at + 1 : at + 2])
        value = after if after and not after.startswith("-") else None
        takes = next((str(a.metavar) for a in self._actions if not a.option_strings and a.metavar), None)
        tip = hints.for_option(command, word, value, known, takes)
        if tip is not None:
            return tip
        others = [name for name, sub in commands(root()).items() if word in options(sub)]
        if others:
            return f"{word} is an option of {', '.join(f'wcodec {name}' for name in others)}"
        return f"wcodec help {command} lists what there is" if command else "wcodec help lists what there is"

    def _superfluous(self, word: str) -> str:
        shell = " (quote text that has spaces)" if any(a.dest == "prompt" for a in self._actions) else ""
        return f"{self.prog} takes no more arguments before '{word}'{shell}"

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """The help that is asked for: ``--all`` anywhere on the line has it complete."""
        self._print_message(self.help_text("--all" in self.words))

    def help_text(self, everything: bool) -> str:
        """Short help, or all of it."""
        name = self.prog.partition(" ")[2]
        return command_help(self, name, everything) if name else root_help(self, everything)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        say(message.rstrip("\n"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            known = [str(choice) for choice in action.choices or ()]
            if isinstance(action, argparse._SubParsersAction):
                at = list(self.words).index(value) if value in self.words else len(self.words)
                self._tip = hints.for_command(str(value), known, self.words[at + 1 :])
                self.error(f"there is no command '{value}'")
            option = action.option_strings[-1] if action.option_strings else ""
            self._tip = hints.for_choice(option, str(value), known)
            self.error(f"argument {option or action.metavar}: '{value}' is none of {', '.join(known)}")

    def read(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """The arguments; what nobody knows is refused with what was probably meant."""
        words = list(sys.argv[1:] if args is None else args)
        Parser.words = words
        passed: list[str] = []
        sub = commands(self).get(words[0]) if words else None
        if isinstance(sub, Parser) and sub.passes_on == "all":
            return argparse.Namespace(**sub._defaults, passed=words[1:])
        if isinstance(sub, Parser) and sub.passes_on and PASS_ON in words:
            at = words.index(PASS_ON)
            words, passed = words[:at], words[at + 1 :]
            Parser.words = words
        namespace, extra = self.parse_known_args(words)
        namespace.passed = passed
        # The arguments were those of the subcommand, if there is one.
        parser = getattr(namespace, "parser", self)
        extra = _placed(parser, namespace, extra)
        if extra:
            parser.unrecognized(extra)
        return namespace


def _placed(parser: argparse.ArgumentParser, namespace: argparse.Namespace, extra: list[str]) -> list[str]:
    """Gives words to arguments that may be left out: argparse, before Python 3.13, sees those only that follow the
    others without an option between them.

    :return: the rest.
    """
    if any(word.startswith("-") and word != "-" for word in extra):
        return extra
    optional = [a.dest for a in parser._actions if not a.option_strings and a.nargs == "?"]
    free = [name for name in optional if getattr(namespace, name) is None]
    for name, word in zip(free, extra, strict=False):
        setattr(namespace, name, word)
    return extra[len(free) :]


def root() -> argparse.ArgumentParser:
    """The parser of ``wcodec`` itself."""
    from .parser import build_parser

    return build_parser()


def _is_known(word: str, known: Sequence[str]) -> bool:
    """Whether an option is one of these, or short for one."""
    name = word.partition("=")[0]
    return any(option.startswith(name) for option in known)


def options(parser: argparse.ArgumentParser) -> list[str]:
    """The long options of a parser."""
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands of a parser."""
    subparsers = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(subparsers[0].choices) if subparsers else {}
