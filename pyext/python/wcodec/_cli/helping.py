"""Help for people: commands by what they are for, and of each command the options that most need; ``--help --all`` has
the rest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .._core.terminal import columns, wrapped

GROUPS = (
    ("Make", ("encode", "decode", "plan", "calibrate")),
    ("Run", ("chat", "generate", "serve")),
    ("Look", ("inspect", "tui", "sensitivity", "compare")),
    ("Measure", ("eval", "bench", "frontier", "verify", "doctor")),
)
"""Commands by what they are for, in the order of help. Those of no group are named in one line."""

SHORT = {
    "encode": ("output", "bits", "calibrate", "optimize", "budget", "quality", "plan", "exclude", "rule", "overwrite"),
    "decode": ("output", "overwrite"),
    "plan": ("budget", "quality", "text", "statistics", "tensors", "save"),
    "calibrate": ("output", "text", "windows", "device", "overwrite"),
    "chat": ("system", "temperature", "top_p", "seed", "max_new_tokens", "bits", "device"),
    "generate": ("prompts", "chat", "baseline", "max_new_tokens", "temperature", "seed", "bits", "device"),
    "serve": ("engine", "host", "port", "device"),
    "inspect": ("all", "filter", "sort", "top", "summary", "plot"),
    "eval": ("text", "baseline", "max_tokens", "device"),
    "bench": ("baseline", "batch", "prompt_tokens", "new_tokens", "device"),
    "frontier": ("text", "bits", "calibrate", "plot", "device"),
    "roundtrip": ("scheme", "bits", "coder", "scale"),
}
"""Options in the short help of a command, by their names in its arguments; a command that is not here shows all. The
other options are the advanced ones."""
_ALWAYS = ("help", "json", "quiet")

_EXAMPLES = """\
Start here:
  wcodec encode path/to/model -o small/ --bits 4 --calibrate
  wcodec chat small/
  wcodec inspect small/"""

_WORDS = """\
SRC is a .safetensors file or the folder of a checkpoint. MODEL is a .wcodec file or folder, or the folder of a
checkpoint, which is compressed in memory; running models needs torch, transformers and accelerate. Ratios are
original / stored bytes (larger is better), and bits/weight counts all that is stored."""

_STATUS = """\
Exit status: 0 equal or done, 1 difference or damage, 2 error, 130 interrupted, 143 and 129 ended by SIGTERM and
SIGHUP."""

_GAP = 2
# As argparse does it: a margin, and no more than can be read.
_WIDEST = 100


def room() -> int:
    """Columns for help: the terminal's, or those of most terminals where none is there."""
    return min(columns() or 80, _WIDEST)


def root_help(parser: argparse.ArgumentParser, everything: bool) -> str:
    """Help of ``wcodec`` itself: commands by group.

    :param everything: whether commands of no group have lines of their own, too, and options are shown.
    """
    summaries = {choice.dest: choice.help or "" for a in _subparsers(parser) for choice in a._choices_actions}
    shown = [(title, [name for name in names if name in summaries]) for title, names in GROUPS]
    more = [name for name in summaries if not any(name in names for _, names in shown)]
    if everything:
        shown.append(("More", more))
    size = max(map(len, summaries))
    parts = [str(parser.description), "Usage: wcodec <COMMAND> [OPTIONS]", ""]
    for title, names in shown:
        parts.append(title)
        parts += [_row(name, summaries[name], size) for name in names]
    parts += ["", *_options(parser)] if everything else [_filled(f"More: {', '.join(more)}  (wcodec help --all)")]
    parts += ["", _EXAMPLES, ""]
    if everything:
        parts += [_filled(_WORDS), "", _filled(_STATUS), ""]
    parts.append("Run 'wcodec help <COMMAND>' for details.")
    return "\n".join([parts[0], "", *parts[1:]]) + "\n"


def command_help(parser: argparse.ArgumentParser, name: str, everything: bool) -> str:
    """Help of a command: its arguments and the options that most need, or all of them."""
    wanted = SHORT.get(name)
    actions = [a for a in parser._actions if a.help != argparse.SUPPRESS]
    positionals = [a for a in actions if not a.option_strings]
    options = [a for a in actions if a.option_strings]
    short = [a for a in options if everything or wanted is None or a.dest in (*wanted, *_ALWAYS)]
    formatter = parser._get_formatter()
    for title, group in (("Arguments", positionals), ("Options", short)):
        if group:
            formatter.start_section(title)
            formatter.add_arguments(group)
            formatter.end_section()
    parts = [_filled(str(parser.description)), "", usage(parser), "", formatter.format_help().strip("\n")]
    if len(short) < len(options):
        rest = len(options) - len(short)
        parts += ["", f"Advanced: {rest} more options (wcodec {name} --help --all)"]
    return "\n".join([*parts, "", str(parser.epilog or "")]).rstrip("\n") + "\n"


def usage(parser: argparse.ArgumentParser) -> str:
    """One line: the arguments of a command by what stands for them."""
    names = [(str(a.metavar), a.nargs) for a in parser._actions if not a.option_strings and a.metavar]
    shown = [f"[{name}]" if nargs == "?" else f"[{name} ...]" if nargs == "*" else name for name, nargs in names]
    return " ".join(["Usage:", parser.prog, *shown, "[OPTIONS]"])


def _options(parser: argparse.ArgumentParser) -> list[str]:
    formatter = parser._get_formatter()
    formatter.start_section("Options")
    formatter.add_arguments([a for a in parser._actions if a.option_strings])
    formatter.end_section()
    return [formatter.format_help().strip("\n")]


def _row(name: str, summary: str, size: int) -> str:
    gap = " " * _GAP
    sentence = summary[:1].upper() + summary[1:]
    lines = wrapped(f"{name.ljust(size)}{gap}{sentence}", room() - _GAP, " " * (size + _GAP))
    return "\n".join(gap + line for line in lines.split("\n"))


def _filled(text: str) -> str:
    return wrapped(" ".join(text.split()), room())


def _subparsers(parser: argparse.ArgumentParser) -> Sequence[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
