"""The options of encoding, as the command has them: made from the table of all options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .._core.option_table import CODERS, OPTIONS, SCHEMES, Option
from .arguments import bits, positive

_FORMS: dict[str, Callable[[Option], dict[str, Any]]] = {
    "bits": lambda option: {"type": bits, "metavar": option.metavar},
    "choice": lambda option: {"choices": option.choices},
    "count": lambda option: {"type": positive, "metavar": option.metavar},
    "either": lambda _: {"action": argparse.BooleanOptionalAction},
    "level": lambda option: {"type": int, "metavar": option.metavar},
    "patterns": lambda _: {"action": "append", "default": [], "metavar": "GLOB"},
    "switch": lambda _: {"action": "store_true"},
}


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds options of the table, by their names in Python."""
    for name in names:
        option = OPTIONS[name]
        parser.add_argument(option.flag, help=option.help, **_FORMS[option.kind](option))


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Adds the option for ``rules``: one of them at a time, as text."""
    parser.add_argument("--rule", action="append", default=[], type=rule, metavar="GLOB=WAY",
                        help="encode matching tensors in another way (may be repeated; the first that matches counts): "
                             "a scheme or a number of bits, and with commas behind it trellis or a coder, such as "
                             "'*.down_proj.*=4.5,trellis' or 'lm_head.*=lossless,huffman'")  # fmt: skip


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the table that a command has, as Python takes them: defaults in place of what was left out."""
    a = vars(arguments)
    given = {name: option.default if a[name] is None else a[name] for name, option in OPTIONS.items() if name in a}
    return {**given, "rules": dict(a["rule"])}


def rule(text: str) -> tuple[str, dict[str, object]]:
    """A pattern, and how what matches it is encoded."""
    pattern, _, way = text.rpartition("=")
    found: dict[str, object] = {}
    for part in way.split(","):
        part = part.strip()
        if part in CODERS and part != "raw":
            found["coder"] = part
        elif part in SCHEMES:
            found["scheme"] = part
        elif part == "trellis":
            found["trellis"] = True
        else:
            try:
                found["bits"] = bits(part)
            except argparse.ArgumentTypeError:
                known = ", ".join((*SCHEMES, "trellis", *(c for c in CODERS if c != "raw")))
                raise argparse.ArgumentTypeError(f"{part!r} is neither bits from 1 to 8 nor one of {known}") from None
    if not pattern:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pattern, '=' and how what matches it is encoded")
    return pattern, found
