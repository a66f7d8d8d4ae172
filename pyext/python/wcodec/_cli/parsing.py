"""The parser's own part: it prints as the commands do, and asks what was meant."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .._native import safe
from .output import complain, say, tell

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# What people write by mistake is at least so like what they mean.
_LIKE = 0.6
# What other tools call it, and the Python package.
_ELSEWHERE = {
    **dict.fromkeys(("compress", "compress_", "convert", "quantize"), "encode"),
    **dict.fromkeys(("decompress", "decompress_", "dequantize"), "decode"),
    **dict.fromkeys(("info", "list", "ls", "open", "show"), "inspect"),
    **dict.fromkeys(("check", "test"), "verify"),
    **dict.fromkeys(("chat", "run"), "generate"),
    "diff": "compare",
    "perplexity": "eval",
}


class Parser(argparse.ArgumentParser):
    """argparse does not say when its help cannot be written, quotes arguments as they are, and leaves it to the reader
    to find out what a mistaken word should have been."""

    words: Sequence[str] = ()
    """What was typed, of all parsers: one that misses an argument is told nothing of those that nobody knows."""

    def error(self, message: str) -> NoReturn:
        if "are required" in message:
            unknown = [w.partition("=")[0] for w in self.words if w.startswith("--")]
            missing = [name for name in options(self) if name in message]
            meant = [(w, near) for w in unknown if w not in options(self) and (near := like(w, missing))]
            message += "".join(f" (did you mean {near} by {safe(w)}?)" for w, near in meant)
        tell(self.format_usage().rstrip("\n"))
        complain("error", message, self.prog)
        self.exit(2)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        say(message.rstrip("\n"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(choice) for choice in action.choices or ()]
            elsewhere = _ELSEWHERE.get(str(value))
            known = elsewhere in choices
            near = elsewhere if known else like(str(value), choices)
            # From Python 3.14 on argparse can ask by itself.
            if near is not None and (known or "maybe you meant" not in error.message):
                error.message += f": did you mean {near}?"
            raise

    def read(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """The arguments; what nobody knows is refused with what was probably meant."""
        Parser.words = list(sys.argv[1:] if args is None else args)
        found, extra = self.parse_known_args(Parser.words)
        if extra:
            # Of the subcommand, if there is one: the arguments were its own.
            parser = getattr(found, "parser", self)
            parser.error(f"unrecognized arguments: {' '.join(extra)}{self._meant(parser, extra)}")
        return found

    def _meant(self, parser: argparse.ArgumentParser, extra: Sequence[str]) -> str:
        known = options(parser)
        for word in (word.partition("=")[0] for word in extra if word.startswith("--")):
            near = like(word, known)
            if near is not None:
                return f" (did you mean {near}?)"
            others = [name for name, sub in commands(self).items() if word in options(sub)]
            if others:
                return f" ({word} is an option of {', '.join(f'wcodec {name}' for name in others)})"
        return f" ({parser.prog} --help lists what there is)"


def like(word: str, known: Iterable[str]) -> str | None:
    """What was probably meant.

    >>> like("inpsect", ["encode", "inspect"]), like("xyz", ["encode"])
    ('inspect', None)
    """
    found = difflib.get_close_matches(word, list(known), 1, _LIKE)
    return safe(found[0]) if found else None


def options(parser: argparse.ArgumentParser) -> list[str]:
    """The long options of a parser."""
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands of a parser."""
    found = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}
