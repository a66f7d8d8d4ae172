"""``wcodec calibrate``: statistics of a model for scheme ``rate``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._core import format as fmt
from .._core.options import MIXED_TEXT, TEXTS, has_statistics
from .._core.paths import files_of, refuse_existing
from .._native import safe
from .arguments import positive
from .next_step import encode_command, show_next
from .output import document, put, say, show_progress, tabulate

if TYPE_CHECKING:
    from .._calibrate.statistics import Statistics

# Layers of the ranking at the end.
_SHOWN = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("model", metavar="MODEL", help="the folder of a checkpoint")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the .safetensors file to write")
    parser.add_argument("--text", dest="data", metavar="FILE", default=MIXED_TEXT,
                        help="a file of UTF-8 text to run the model on, best of the kind that it is for; "
                             "mixed, texts of many kinds and what the model writes (default); or self, what it writes "
                             "alone")  # fmt: skip
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--tokens", type=positive, metavar="N",
                        help="tokens to look at (default: 32768; with --columns-only 4096; on a CPU fewer for large "
                             "models)")  # fmt: skip
    amount.add_argument("--windows", type=int, metavar="N", help="or so many pieces of text, of --length tokens each")
    parser.add_argument("--length", type=int, metavar="N",
                        help="tokens of a piece of text (default: 64 where the model writes it; 512 of a text, or "
                             "fewer if it is short; 128 of wcodec's texts with --columns-only)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of random draws (default: 0)")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--columns-only", action="store_true",
                      help="only the sizes of each tensor's inputs, for factors of columns: seconds, without "
                           "gradients")  # fmt: skip
    only.add_argument("--steps-only", action="store_true",
                      help="the same, and the importance of each tensor: seconds, and a small file. Error feedback "
                           "needs the second moments of inputs, which this leaves out")  # fmt: skip
    parser.add_argument("--memory", metavar="SIZE",
                        help="memory for sums of second moments; more passes if that is "
                             "not enough (default: 16GB)")  # fmt: skip
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model; without it, such a model is refused")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar; print only problems, or JSON")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def calibrate(arguments: argparse.Namespace) -> int:
    """``wcodec calibrate``"""
    from .._gpu import torch as _torch
    from .._models.original import original_model

    a = arguments
    _torch.require()
    from .._calibrate.collect import collect_statistics
    from .._calibrate.file import check_place

    # Before the model runs for minutes.
    refuse_existing(a.output, a.overwrite)
    read = [name for name in files_of(a.model) if not has_statistics(name)]
    check_place(a.output, a.overwrite, [*read, *([] if a.data in TEXTS else [a.data])])
    model, _ = original_model(a.model, a.device, "auto", a.trust_remote_code)
    statistics = collect_statistics(
        model, data=a.data if a.data in TEXTS else Path(a.data), windows=a.windows, length=a.length, tokens=a.tokens,
        seed=a.seed, full=not (a.steps_only or a.columns_only), gradients=not a.columns_only, memory=a.memory or "16GB",
        trust_remote_code=a.trust_remote_code, progress=show_progress(a.quiet),
    )  # fmt: skip
    statistics.save(a.output, overwrite=a.overwrite)
    size = os.path.getsize(a.output)
    report = statistics.report
    if a.json:
        body = {
            "model": a.model, "output": a.output, "bytes": size, "tokens": statistics.tokens,
            "source": statistics.source, "text_hash": statistics.text_hash, "full": statistics.full,
            "gradients": statistics.gradients, "columns": statistics.columns,
            "tensors": len(report.tokens), "fallbacks": report.fallbacks, "blocks": report.blocks,
        }  # fmt: skip
        put(document("calibrate", body))
    elif not a.quiet:
        say(f"{safe(a.output)}: {fmt.size(size)}, {fmt.plural(statistics.tokens, 'token')} ({statistics.source})")
        say(safe(str(report)))
        if statistics.gradients:
            _rank(a, statistics)
    return 0


def _rank(a: argparse.Namespace, statistics: Statistics) -> None:
    """The layers that matter most, and the command that gives them more bits."""
    shares = list(statistics.shares().items())[:_SHOWN]
    say()
    rows = [(name.removesuffix(".weight"), f"{100 * share:.1f} %") for name, share in shares]
    tabulate(("layers that matter most", "share of the quality loss"), rows)
    say()
    trusted = ["--trust-remote-code"] if a.trust_remote_code else []
    show_next(
        encode_command(a.model, "3bit", "--bits", "3", "--calibrate", a.output, *trusted),
        "which gives them more bits (wcodec sensitivity measures what each does)",
    )
