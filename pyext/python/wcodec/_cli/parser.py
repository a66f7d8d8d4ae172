"""Arguments of the command ``wcodec``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from .. import __version__
from .._colors import MEASURES
from .._errors import InputError
from .._options import CODERS, DEFAULT_BLOCK, DEFAULT_LEVEL, DTYPES, LAYOUTS, SCALES, SCHEMES, size
from .arguments import bits as _bits
from .arguments import choices as _choices
from .arguments import counts as _counts
from .arguments import positive as _positive
from .arguments import rates as _rates
from .calibrate import add_options as calibrate_arguments
from .checks import CHECKS
from .parsing import Parser
from .plan_arguments import frontier_arguments, plan_arguments, target_arguments
from .ranks import arguments as ranks_arguments
from .shell import add_shell_options

_DESCRIPTION = "Entropy-coded weights for large language models."
_EPILOG = """\
examples:
  wcodec encode model.safetensors -o model.wcodec       quantize and compress
  wcodec encode path/to/model -o model/ --bits 4        to 4 bits, as a folder
  wcodec inspect model.wcodec                           what is in it, its cost
  wcodec verify model.wcodec --against model.safetensors
  wcodec decode model.wcodec -o restored.safetensors
  wcodec generate path/to/model --prompt 'Once'         run it, compressed
  wcodec eval path/to/model --text held-out.txt --baseline path/to/model
  wcodec bench path/to/model --baseline path/to/model   its speed
  wcodec frontier path/to/model --text held-out.txt     what fewer bits cost
  wcodec ranks path/to/model --ranks 2,4                on several GPUs
  wcodec doctor                                         what works here

SRC is a .safetensors file or the folder of a checkpoint. MODEL is a .wcodec
file or folder, or the folder of a checkpoint, which is compressed in memory;
running models needs torch, transformers and accelerate. Ratios are original /
stored bytes (larger is better), and bits/weight counts all that is stored.

exit status: 0 equal or done, 1 difference or damage, 2 error,
130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP
"""

# As wcodec-tui has them, and the order of the file.
_SORTS = (
    "name", "file", "shape", "dtype", "scheme", "coder", "original", "stored", "ratio", "bits", "error", "entropy",
    "over",
)  # fmt: skip


def build_parser() -> Parser:
    """The parser; ``run(arguments)`` of what it reads runs what was asked for."""
    parser = Parser(
        prog="wcodec", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"wcodec {__version__}")
    # Nothing of these is a command, and none is needed for them.
    add_shell_options(parser)
    subparsers = parser.add_subparsers(metavar="COMMAND")

    def add(name: str, run: str, summary: str, example: str) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=_command(run), check=CHECKS.get(name), parser=sub)
        return sub

    _encode(add(
        "encode", "commands.encode", "compress a checkpoint into one .wcodec file",
        "wcodec encode path/to/model -o model.wcodec --scale block --exclude '*embed*'",
    ))  # fmt: skip
    _decode(add(
        "decode", "commands.decode", "decode a .wcodec file into .safetensors",
        "wcodec decode model.wcodec -o model.safetensors",
    ))  # fmt: skip
    _inspect(add(
        "inspect", "inspect.run", "show what a .wcodec file holds, without reading its weights",
        "wcodec inspect model.wcodec --sort stored --filter '*mlp*'",
    ))  # fmt: skip
    _verify(add(
        "verify", "commands.verify", "check every hash, and optionally the contents against the original",
        "wcodec verify model.wcodec --against path/to/model --json",
    ))  # fmt: skip
    _compare(add(
        "compare", "commands.compare", "compare what two .wcodec files decode to",
        "wcodec compare rans.wcodec zstd.wcodec",
    ))  # fmt: skip
    _roundtrip(add(
        "roundtrip", "roundtrip.run",
        "encode to a temporary folder, decode, and compare bit for bit with independent NumPy arithmetic",
        "wcodec roundtrip path/to/model --coder rans,huffman --scale all --json report.json",
    ))  # fmt: skip
    _generate(add(
        "generate", "models.generate", "continue a prompt with a model whose layers are compressed",
        "wcodec generate path/to/model --prompt 'The function' --device cuda --residency host",
    ))  # fmt: skip
    _eval(add(
        "eval", "models.evaluate", "measure a model's perplexity on a text, and how far it is from the original",
        "wcodec eval path/to/model --text held-out.txt --baseline path/to/original --json",
    ))  # fmt: skip
    _bench(add(
        "bench", "models.bench", "measure how fast a model reads prompts and writes tokens, beside the original",
        "wcodec bench path/to/model --baseline path/to/original --batch 1,8 --device cuda",
    ))  # fmt: skip
    frontier_arguments(add(
        "frontier", "plan.frontier", "measure what fewer bits cost a model, beside NF4, INT4 and int8",
        "wcodec frontier path/to/model --text held-out.txt --bits 4,3.5,3 --plot frontier.png",
    ))  # fmt: skip
    calibrate_arguments(add(
        "calibrate", "calibrate.calibrate", "measure on a model what scheme rate can go by",
        "wcodec calibrate path/to/model -o statistics.safetensors",
    ))  # fmt: skip
    plan_arguments(add(
        "plan", "plan.plan", "choose bits for a budget or a bound of damage, and show what that costs, without writing",
        "wcodec plan path/to/model --budget '4.2 bits' --text held-out.txt",
    ))  # fmt: skip
    ranks_arguments(add(
        "ranks", "ranks.run", "show what each of several GPUs would hold of a model that they share",
        "wcodec ranks path/to/model --ranks 2,4,8 --bits 4",
    ))  # fmt: skip
    _doctor(add(
        "doctor", "commands.doctor", "show what works here, on the CPU and on GPUs, and how to get what does not",
        "wcodec doctor --json",
    ))  # fmt: skip
    return parser


def _command(place: str) -> Callable[[argparse.Namespace], int]:
    """What runs a subcommand: a function of a module beside this one; only the module that is used is imported."""

    def run(arguments: argparse.Namespace) -> int:
        module, function = place.split(".")
        status: int = getattr(import_module(f".{module}", __package__), function)(arguments)
        return status

    return run


def _rule(text: str) -> tuple[str, dict[str, object]]:
    """A pattern, and how what matches it is encoded."""
    pattern, _, way = text.rpartition("=")
    rule: dict[str, object] = {}
    for part in way.split(","):
        part = part.strip()
        if part in CODERS and part != "raw":
            rule["coder"] = part
        elif part in SCHEMES:
            rule["scheme"] = part
        elif part == "trellis":
            rule["trellis"] = True
        else:
            try:
                rule["bits"] = _bits(part)
            except argparse.ArgumentTypeError:
                known = ", ".join((*SCHEMES, "trellis", *(c for c in CODERS if c != "raw")))
                raise argparse.ArgumentTypeError(f"{part!r} is neither bits from 1 to 8 nor one of {known}") from None
    if not pattern:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pattern, '=' and how what matches it is encoded")
    return pattern, rule


def _size(text: str) -> int | None:
    try:
        return size("it", text)
    except InputError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 3GB or 512MiB") from None


def _common(parser: argparse.ArgumentParser, json: str = "print the report as JSON") -> None:
    parser.add_argument("--threads", type=_positive, metavar="N", help="threads to use (default: all cores)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar; print only problems, or JSON")
    if json:
        parser.add_argument("--json", action="store_true", help=json)


def _trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trust", action="store_true",
                        help="open .wcodec files without the bounds that keep one from taking far more memory than it "
                             "has bytes: for files whose origin you know")  # fmt: skip


def _patterns(parser: argparse.ArgumentParser, skip: bool = True) -> None:
    options = {
        "include": "quantize only tensors that match (may be repeated; the others are stored as they are)",
        "exclude": "store matching tensors as they are",
        "transpose": "matching matrices are stored [in, out], as GPT-2's Conv1D: scales go along the other axis",
    }
    if skip:
        options["skip"] = "leave matching tensors out"
    for name, text in options.items():
        parser.add_argument(f"--{name}", action="append", default=[], metavar="GLOB", help=text)


def _tuning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--block", type=_positive, metavar="N",
                        help=f"block size with --scale block, a multiple of 16 (default: {DEFAULT_BLOCK})")  # fmt: skip
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="layout of the symbols (default: pair; quad, with huffman, is for products of one token on a GPU)",
    )
    parser.add_argument("--level", type=int, metavar="N",
                        help=f"level of coder zstd, 1 to 19 (default: {DEFAULT_LEVEL})")  # fmt: skip
    parser.add_argument("--tile", type=_positive, metavar="N",
                        help="columns of a tile, a multiple of 64 (default: by shape)")  # fmt: skip


def _trellis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trellis",
        action=argparse.BooleanOptionalAction,
        help="choose levels of scheme rate by a trellis, or do not: better at the same bits, a little slower to encode "
        "and to decode (default: with coders rans and huffman)",
    )


def _encode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="a .safetensors file, or the folder of a checkpoint")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="the .wcodec file to write, or with / at its end the folder of a compressed model",
    )
    parser.add_argument("--scheme", choices=SCHEMES,
                        help="int8 quantizes floats, rate too, to as many --bits as are asked for, lossless keeps "
                             "every bit in two thirds of bfloat16's room, raw keeps every tensor as it is (default: "
                             "int8, or rate with --bits)")  # fmt: skip
    parser.add_argument("--bits", type=_bits, metavar="B",
                        help="bits per weight with scheme rate, 1 to 8, everything counted that is stored for the "
                             "weights of the whole model (default: 4)")  # fmt: skip
    _trellis(parser)
    target_arguments(parser, required=False)
    parser.add_argument(
        "--bits-per-tensor", action="store_true", help="give --bits to every tensor, not to all together"
    )
    parser.add_argument("--rule", action="append", default=[], type=_rule, metavar="GLOB=WAY",
                        help="encode matching tensors in another way (may be repeated; the first that matches counts): "
                             "a scheme or a number of bits, and with commas behind it trellis or a coder, such as "
                             "'*.down_proj.*=4.5,trellis' or 'lm_head.*=lossless,huffman'")  # fmt: skip
    parser.add_argument("--scale", choices=SCALES, help="what shares a scale (default: row)")
    parser.add_argument("--coder", choices=CODERS, help="entropy coder (default: rans)")
    parser.add_argument(
        "--table-bits",
        type=_positive,
        metavar="P",
        help="log2 of the slots of tables: 11 or 12, with coder huffman 8 to 12 (default: 12)",
    )
    _tuning(parser)
    _patterns(parser)
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model of a folder, where a model is built: for OUT/, "
                             "--budget, --quality")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    _common(parser)


def _decode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .wcodec file, or the folder of a compressed model")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the .safetensors file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--partial", action="store_true",
                        help="decode what is there, if the file with the rest of the model is missing")  # fmt: skip
    _trust(parser)
    _common(parser, json="")


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .wcodec file, or the folder of a compressed model")
    parser.add_argument("--filter", metavar="TEXT",
                        help="only tensors whose names contain this text or match this regular expression, in capitals "
                             "or not; as in wcodec-tui")  # fmt: skip
    parser.add_argument("--sort", choices=_SORTS, metavar="COLUMN",
                        help=f"one of {', '.join(_SORTS)}: by this column, the most interesting rows first (the worst "
                             "ratio, the largest size), as in wcodec-tui; file is as stored (default: name, module by "
                             "module)")  # fmt: skip
    parser.add_argument("--top", type=_positive, metavar="N",
                        help="only the first N tensors, as --sort orders them (default: all)")  # fmt: skip
    parser.add_argument("--summary", action="store_true", help="only sums by role and of the whole file")
    parser.add_argument("--plot", metavar="OUT",
                        help="also draw layers and roles as a heat map, into a picture like heatmap.png")  # fmt: skip
    parser.add_argument("--by", choices=MEASURES, metavar="WHAT",
                        help=f"with --plot, what it shows: {', '.join(MEASURES)} (default: bits)")  # fmt: skip
    _trust(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .wcodec file, or the folder of a compressed model")
    parser.add_argument("--against", metavar="SRC", help="the checkpoint that it was made from")
    parser.add_argument("--device", default="cpu", metavar="DEVICE",
                        help="cuda or cuda:N: also compare what this GPU decodes with what the CPU does")  # fmt: skip
    _trust(parser)
    _common(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a .wcodec file")
    parser.add_argument("b", metavar="B", help="another one")
    _trust(parser)
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def _roundtrip(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="a .safetensors file, or the folder of a checkpoint")
    parser.add_argument("--scheme", choices=("int8", "rate", "lossless"),
                        help="int8, rate, or lossless (default: int8, or rate with --bits)")  # fmt: skip
    parser.add_argument("--bits", type=_rates, metavar="LIST",
                        help="bits per weight to try with scheme rate, 1 to 8, with commas between "
                             "(default: 4)")  # fmt: skip
    _trellis(parser)
    parser.add_argument(
        "--coder",
        type=_choices(CODERS),
        default=list(CODERS),
        metavar="LIST",
        help=f"all (default), or some of {', '.join(CODERS)}, with commas between; all that there are for scheme rate "
        "are those that can have what is asked for",
    )
    parser.add_argument("--scale", type=_choices(SCALES), metavar="LIST",
                        help=f"with scheme int8, all (default), or some of {', '.join(SCALES)}, with commas "
                             "between")  # fmt: skip
    _tuning(parser)
    _patterns(parser, skip=False)
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, and say where it is")
    parser.add_argument("--json", nargs="?", const="-", metavar="OUT",
                        help="print the report as JSON, or write it to the file OUT")  # fmt: skip
    _common(parser, json="")


def _running(parser: argparse.ArgumentParser, baseline: str) -> None:
    parser.add_argument("model", metavar="MODEL", help="a .wcodec file or folder, or the folder of a checkpoint")
    parser.add_argument("--baseline", metavar="FOLDER", help=baseline)
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--residency", choices=("device", "host", "disk", "auto"),
                        help="keep compressed bytes in the GPU's memory, in the host's, on disk (to be read while the "
                             "model runs, also on a CPU), or where they fit, in this order (default: as the model was "
                             "saved, or device)")  # fmt: skip
    parser.add_argument("--vram-budget", type=_size, metavar="SIZE",
                        help="memory of the GPU that the model may take, such as 3GB or 512MiB, with --residency auto, "
                             "which it implies; activations and the cache of keys and values come on top (default: "
                             "what is free, less a tenth of it all)")  # fmt: skip
    parser.add_argument("--ram-budget", type=_size, metavar="SIZE",
                        help="memory of the host for compressed weights, with --residency auto, which it implies; the "
                             "rest is read from disk (default: what is free, less a tenth of it all)")  # fmt: skip
    parser.add_argument("--cache", type=_size, metavar="SIZE",
                        help="memory in which some layers stay decoded, those that save most time (default: as the "
                             "model was saved, or none)")  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, help="what to compute in (default: what the model's config says)")
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model, its baseline or its tokenizer, or that their configs "
                             "name; without it, such a model is refused")  # fmt: skip


def _fused(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--fused",
        action="store_true",
        help="on a GPU, multiply up to 16 tokens straight from compressed weights (default there)",
    )
    either.add_argument(
        "--no-fused",
        action="store_true",
        help="decode weights first: results are those of the decoded model bit for bit",
    )


def _ending(parser: argparse.ArgumentParser, tokenizer: bool = True) -> None:
    _trust(parser)
    if tokenizer:
        parser.add_argument("--tokenizer", metavar="FOLDER", help="where the tokenizer is (default: with the model)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar; print only results")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _generate(parser: argparse.ArgumentParser) -> None:
    _running(parser, "a checkpoint whose text is shown beside the model's")
    _fused(parser)
    parser.add_argument(
        "--prompt",
        required=True,
        metavar="TEXT",
        help="what to continue; '-' reads standard input, and an empty one begins anew",
    )
    parser.add_argument("--max-new-tokens", type=_positive, default=64, metavar="N",
                        help="tokens to write at most, the likeliest each time (default: 64)")  # fmt: skip
    parser.add_argument("--kv-cache-dtype", choices=DTYPES,
                        help="what keys and values are kept in, and attention runs in if it is wider than the model's "
                             "(default: the model's)")  # fmt: skip
    _ending(parser)


def _eval(parser: argparse.ArgumentParser) -> None:
    _running(parser, "the checkpoint to compare with: KL divergence, agreement on the likeliest token")
    parser.add_argument("--text", required=True, metavar="FILE", help="a file of UTF-8 text")
    parser.add_argument("--window", type=_positive, metavar="N",
                        help="tokens of context at most (default: 512, or what the model takes)")  # fmt: skip
    parser.add_argument("--stride", type=_positive, metavar="N",
                        help="tokens between the beginnings of windows (default: half a window)")  # fmt: skip
    parser.add_argument("--max-tokens", type=_positive, metavar="N", help="only the first so many tokens of the text")
    _ending(parser)


def _bench(parser: argparse.ArgumentParser) -> None:
    _running(parser, "the checkpoint to measure beside it, in the same run")
    _fused(parser)
    parser.add_argument("--batch", type=_counts, default=(1, 8, 32), metavar="LIST",
                        help="sequences at once, with commas between (default: 1,8,32)")  # fmt: skip
    for name, default, what in (
        ("prompt-tokens", 128, "tokens of each prompt"),
        ("new-tokens", 64, "tokens to write after it, at least 2"),
        ("repeats", 5, "how often each is measured"),
    ):
        parser.add_argument(f"--{name}", type=_positive, default=default, metavar="N",
                            help=f"{what} (default: {default})")  # fmt: skip
    parser.add_argument("--profile", action="store_true", help="also show where the time goes, and each layer's")
    _ending(parser, tokenizer=False)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
