"""Subcommand ``wcodec ranks``: what each of several GPUs would hold of a model."""

from __future__ import annotations

import argparse
from typing import Any

from .._core import format as fmt
from .._core.option_table import TILED_CODERS
from .._native import safe
from .arguments import bits, counts
from .output import document, put, say


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``wcodec ranks``."""
    parser.add_argument(
        "model", metavar="MODEL", help="a .wcodec file or folder, or any folder with a config.json: no weights are read"
    )
    parser.add_argument("--ranks", type=counts, default=(2, 4, 8), metavar="LIST",
                        help="numbers of ranks that share the model, with commas between (default: 2,4,8)")  # fmt: skip
    parser.add_argument("--scheme", choices=("int8", "rate", "lossless"),
                        help="the scheme for a model that is not compressed "
                             "(default: int8; rate with --bits)")  # fmt: skip
    parser.add_argument("--bits", type=bits, metavar="B", help="bits per weight of scheme rate, 1 to 8")
    parser.add_argument("--coder", choices=TILED_CODERS, help="entropy coder (default: huffman)")
    parser.add_argument("--exclude", action="append", default=[], metavar="GLOB",
                        help="leave matching layers uncompressed (may be repeated)")  # fmt: skip
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model, or that its config names; without it, such a model "
                             "is refused")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """``wcodec ranks``"""
    from .._models.ranks import plan_ranks

    a = arguments
    encoding: dict[str, Any] = {"scheme": a.scheme, "bits": a.bits}
    report = plan_ranks(
        a.model, a.ranks, exclude=a.exclude, trust_remote_code=a.trust_remote_code, coder=a.coder,
        **{name: value for name, value in encoding.items() if value is not None},
    )  # fmt: skip
    if a.json:
        put(document("ranks", {"path": a.model, **report.to_dict()}))
        return 0
    of = "compressed bytes of the file" if report.measured else "weights taken to be normally distributed"
    say(f"{safe(report.model)}: {fmt.plural(report.parameters, 'parameter')}; {of}\n\n{report.table()}")
    for count, why in report.refused:
        say(f"{count} ranks: {safe(why)}")
    return 0
