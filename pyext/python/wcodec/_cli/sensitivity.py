"""``wcodec sensitivity``: which layers suffer most from fewer bits, and the command that gives them more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .._core.option_table import MOST_BITS
from .._core.options import exactly
from .._core.paths import files_of
from .arguments import bits, original, positive
from .next_step import encode_command, show_next
from .output import document, figures, prose, put, save_plot, say, show_progress, tabulate

if TYPE_CHECKING:
    from .._plan import SensitivityReport

_DEFINED = (
    "share: part of the quality loss of all layers, by the Fisher information. KL alone: mean KL(original || "
    "quantized) in nats per token when only this layer is quantized and everything else is exact."
)
# Layers that the second command names, and bits that they get more.
_NAMED, _MORE_BITS = 3, 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = f"{_DEFINED}\n\n{parser.epilog}"
    parser.add_argument("model", metavar="MODEL", help="the folder of a checkpoint")
    parser.add_argument("--bits", type=bits, default=3.0, metavar="B",
                        help="bits per weight of the quantization that is tried, 1 to 8 (default: 3)")  # fmt: skip
    parser.add_argument("--text", metavar="FILE",
                        help="a file of UTF-8 text to run the model on (default: text of many kinds, and text that it "
                             "writes to measure on)")  # fmt: skip
    parser.add_argument("--statistics", metavar="FILE",
                        help="use these statistics of wcodec calibrate, and collect none")  # fmt: skip
    parser.add_argument("--save", metavar="OUT",
                        help="keep the statistics that are collected, for wcodec encode --calibrate OUT")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --save if it exists")
    parser.add_argument("--tokens", type=positive, metavar="N",
                        help="tokens to collect them on (default: 32768; on a CPU fewer for large models)")  # fmt: skip
    parser.add_argument("--top", type=positive, default=10, metavar="N", help="layers to show (default: 10)")
    parser.add_argument("--measure", type=_count, metavar="N",
                        help="layers to measure the quality loss of, not only estimate it; 0 for none (default: "
                             "those that are shown)")  # fmt: skip
    parser.add_argument("--plot", metavar="OUT", help="draw layers and roles into a picture, such as layers.png")
    parser.add_argument("--device", metavar="DEVICE",
                        help="cpu, cuda or cuda:N (default: a GPU that has room, otherwise the CPU)")  # fmt: skip
    original(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON, with all layers")


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


def run(arguments: argparse.Namespace) -> int:
    """``wcodec sensitivity``"""
    from .. import _plan
    from .._gpu import torch as _torch
    from .models import _quiet_loading, _running

    a = arguments
    _torch.require()
    if a.save is not None:
        from .._calibrate.file import check_place

        # Before the model runs for minutes.
        check_place(a.save, a.overwrite, [*files_of(a.model), *([] if a.text is None else [a.text])])
    _quiet_loading(a.quiet)
    with _running(a.model):
        report = _plan.sensitivity(
            a.model, a.bits, text=None if a.text is None else Path(a.text), statistics=a.statistics, tokens=a.tokens,
            measure=a.top if a.measure is None else a.measure, tokenizer=a.tokenizer, device=a.device, dtype=a.dtype,
            threads=a.threads, trust_remote_code=a.trust_remote_code, progress=show_progress(a.quiet),
        )  # fmt: skip
    if a.save is not None:
        report.statistics.save(a.save, overwrite=a.overwrite)
    if a.plot is not None:
        save_plot(report.plot, a.plot, [*files_of(a.model), *([] if a.text is None else [a.text])])
    if a.json:
        put(document("sensitivity", {"saved": a.save, "plot": a.plot, **report.to_dict()}))
        return 0
    _print(a, report)
    return 0


def _print(a: argparse.Namespace, report: SensitivityReport) -> None:
    top = report.top(a.top)
    figures(top._facts())
    say()
    tabulate(*top._table())
    prose(_DEFINED, "aside")
    if a.plot is not None:
        prose(f"{a.plot}: written")
    say()
    rate = f"{a.bits:g}"
    statistics_file = a.save or a.statistics
    trusted = ["--trust-remote-code"] if a.trust_remote_code else []
    data = [statistics_file] if statistics_file is not None else [] if a.text is None else [a.text]
    more = "" if statistics_file is not None else "; --save FILE keeps what was collected for it"
    show_next(
        encode_command(a.model, f"{rate}bit", "--bits", rate, "--calibrate", *data, *trusted),
        f"bits go where they matter, at {rate} bits in all{more}",
    )
    named = [row.name for row in top.rows[:_NAMED]]
    if named and a.bits < MOST_BITS:
        more_bits = f"{min(a.bits + _MORE_BITS, MOST_BITS):g}"
        rules = [part for name in named for part in ("--rule", f"{exactly(name)}={more_bits}")]
        show_next(
            encode_command(a.model, f"{rate}bit", "--bits", rate, *rules, *trusted),
            "or by hand and not calibrated",
        )
