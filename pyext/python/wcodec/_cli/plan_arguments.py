"""Arguments of the commands that weigh bits against quality loss."""

from __future__ import annotations

import argparse

from .._core.option_table import CODERS, PURPOSES, TILED_CODERS
from . import calibration
from .arguments import choices, original, positive, rates
from .encoding import add_options


def _measuring(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of commands that run an original model on a text."""
    parser.add_argument("--windows", type=positive, metavar="N",
                        help="windows of 512 tokens, spread over the text's second half (default: 24)")  # fmt: skip
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N")
    original(parser)


def frontier_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``wcodec frontier``."""
    parser.add_argument("model", metavar="MODEL", help="the folder of a checkpoint")
    parser.add_argument("--text", required=True, metavar="FILE", help="a file of UTF-8 text, new to the model")
    parser.add_argument("--bits", type=rates, default=(4.0, 3.5, 3.0), metavar="LIST",
                        help="bits per weight, 1 to 8, with commas between (default: 4,3.5,3)")  # fmt: skip
    known = tuple(coder for coder in CODERS if coder != "raw")
    parser.add_argument(
        "--coder",
        type=choices(known),
        default=list(TILED_CODERS),
        metavar="LIST",
        help=f"all, or some of {', '.join(known)}, with commas between (default: {','.join(TILED_CODERS)})",
    )
    calibration.add_options(parser, none=True)
    parser.add_argument("--plot", metavar="OUT", help="draw KL against bits into a picture, such as frontier.png")
    _measuring(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print the table as CSV")
    form.add_argument("--json", action="store_true", help="print the report as JSON")


def target_arguments(parser: argparse.ArgumentParser, required: bool) -> None:
    """Adds the arguments for a plan's target, and for the text that it is measured on."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--budget", metavar="SIZE",
                       help="instead of --bits: the size of the file, such as 600MB, or bits per weight of the "
                            "encoded tensors, such as '4.2 bits'")  # fmt: skip
    group.add_argument("--quality", metavar="BOUND",
                       help="instead of --bits: as few bits as keep the KL divergence from the original below a "
                            "bound, such as 'kl<=0.02' (nats per token)")  # fmt: skip
    parser.add_argument("--text", metavar="FILE", help="a file of UTF-8 text to measure the quality loss on")
    calibration.add_options(parser, default=not required)


def plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``wcodec plan``."""
    parser.add_argument("model", metavar="MODEL", help="the folder of a checkpoint")
    target_arguments(parser, required=True)
    parser.add_argument("--save", metavar="PLAN.json", help="save the plan, for wcodec encode --plan PLAN.json")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --save if it exists")
    parser.add_argument("--tensors", action="store_true",
                        help="show every tensor, not only roles. 'KL alone' is the quality loss when only those "
                             "tensors are quantized and everything else is exact")  # fmt: skip
    parser.add_argument("--trellis", action=argparse.BooleanOptionalAction,
                        help="choose levels by a trellis (default: no; with --optimize size yes, where that is "
                             "best)")  # fmt: skip
    parser.add_argument("--optimize", choices=PURPOSES, default=PURPOSES[0],
                        help="speed or size, as for encode (default: speed)")  # fmt: skip
    parser.add_argument("--coder", choices=TILED_CODERS, help="entropy coder (default: by --optimize)")
    add_options(parser, "include", "exclude", "skip")
    _measuring(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
