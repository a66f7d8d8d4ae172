"""Arguments of the command ``wcodec``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from .._core.colors import MEASURES
from .._core.option_table import CODERS, PURPOSES, SCALES
from .._native import __version__
from . import more, running
from .arguments import choices as _choices
from .arguments import positive as _positive
from .arguments import rates as _rates
from .arguments import trust
from .calibrate import add_options as calibrate_arguments
from .checks import CHECKS
from .encoding import add_options, add_rules
from .hints import sort_column
from .parsing import Parser
from .plan_arguments import frontier_arguments, plan_arguments, target_arguments
from .push import arguments as push_arguments
from .ranks import arguments as ranks_arguments
from .sensitivity import add_options as sensitivity_arguments
from .shell import add_shell_options

_DESCRIPTION = "Smaller LLMs that run from their compressed weights."

# As wcodec-tui has them, and the order of the file.
_SORTS = (
    "name", "file", "shape", "dtype", "scheme", "coder", "original", "stored", "ratio", "bits", "error", "entropy",
    "over",
)  # fmt: skip
# Options of all commands that encode files, in the order of the help.
_TUNING = ("block", "layout", "level", "tile")
_PATTERNS = ("include", "exclude", "transpose")


def build_parser() -> Parser:
    """The parser; ``run(arguments)`` of what it reads runs what was asked for."""
    parser = Parser(prog="wcodec", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser._actions[0].help = "show this help; --help --all shows everything"
    parser.add_argument("--version", action="version", version=f"wcodec {__version__}")
    # Nothing of these is a command, and none is needed for them.
    add_shell_options(parser)
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)

    def add(name: str, run: str, summary: str, example: str) -> Parser:
        sub: Parser = subparsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"Example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub._actions[0].help = "show this help; --help --all shows every option"
        sub.set_defaults(run=_command(run), check=CHECKS.get(name), parser=sub)
        return sub

    _encode(add(
        "encode", "commands.encode", "compress a model: a folder, a file, or a name on the Hugging Face Hub",
        "wcodec encode path/to/model small/ --bits 4",
    ))  # fmt: skip
    _decode(add(
        "decode", "commands.decode", "turn a .wcodec file back into .safetensors",
        "wcodec decode model.wcodec -o model.safetensors",
    ))  # fmt: skip
    plan_arguments(add(
        "plan", "plan.plan", "find the best bits per layer for a size or a quality, without writing",
        "wcodec plan path/to/model --budget '4.2 bits' --text held-out.txt",
    ))  # fmt: skip
    calibrate_arguments(add(
        "calibrate", "calibrate.calibrate", "collect statistics once, for better quality at the same size",
        "wcodec calibrate path/to/model -o statistics.safetensors",
    ))  # fmt: skip
    running.chat(add(
        "chat", "chat.run", "talk to a model",
        "wcodec chat small/ --temperature 0.7",
    ))  # fmt: skip
    running.generate(add(
        "generate", "generate.run", "complete prompts; with --baseline beside the original",
        "wcodec generate small/ 'The function' --baseline path/to/model",
    ))  # fmt: skip
    running.serve(add(
        "serve", "serve.run", "start an OpenAI-compatible server, vLLM's or transformers'",
        "wcodec serve small/ --port 8000",
    ))  # fmt: skip
    _inspect(add(
        "inspect", "inspect.run", "show what each layer costs",
        "wcodec inspect model.wcodec --sort stored --filter '*mlp*'",
    ))  # fmt: skip
    more.tui(add("tui", "more.run_tui", "the same, interactively", "wcodec tui model.wcodec"))
    _compare(add(
        "compare", "compare.run", "show what differs between two .wcodec files",
        "wcodec compare rans.wcodec zstd.wcodec",
    ))  # fmt: skip
    running.evaluate(add(
        "eval", "models.evaluate", "measure perplexity on a text, and the distance from the original",
        "wcodec eval path/to/model --text held-out.txt --baseline path/to/original --json",
    ))  # fmt: skip
    running.bench(add(
        "bench", "models.bench", "measure tokens per second, beside the original",
        "wcodec bench path/to/model --baseline path/to/original --batch 1,8 --device cuda",
    ))  # fmt: skip
    frontier_arguments(add(
        "frontier", "plan.frontier", "measure quality at several sizes, beside NF4, INT4 and int8",
        "wcodec frontier path/to/model --text held-out.txt --bits 4,3.5,3 --plot frontier.png",
    ))  # fmt: skip
    _verify(add(
        "verify", "commands.verify", "check for damage; with --against, that it matches its original",
        "wcodec verify model.wcodec --against path/to/model --json",
    ))  # fmt: skip
    _doctor(add("doctor", "doctor.run", "show what works on this machine", "wcodec doctor --json"))
    ranks_arguments(add(
        "ranks", "ranks.run", "show what each of several GPUs would hold of a model that they share",
        "wcodec ranks path/to/model --ranks 2,4,8 --bits 4",
    ))  # fmt: skip
    _roundtrip(add(
        "roundtrip", "roundtrip.run",
        "encode to a temporary folder, decode, and compare bit for bit with independent NumPy arithmetic",
        "wcodec roundtrip path/to/model --coder rans,huffman --scale all --json report.json",
    ))  # fmt: skip
    sensitivity_arguments(add(
        "sensitivity", "sensitivity.run", "show which layers suffer most from fewer bits, and measure it",
        "wcodec sensitivity path/to/model --bits 3 --save statistics.safetensors --plot layers.png",
    ))  # fmt: skip
    push_arguments(add(
        "push", "push.run", "upload the folder of a compressed model to the Hugging Face Hub",
        "wcodec push small/ me/small-4bit --private",
    ))  # fmt: skip
    more.explain(add("explain", "more.run_explain", "explain the code of an error, or list all", "wcodec explain F101"))
    more.completions(add(
        "completions", "more.run_completions", "print completions for a shell", "source <(wcodec completions bash)",
    ))  # fmt: skip
    add("man", "more.run_man", "print the manual page", "wcodec man > ~/.local/share/man/man1/wcodec.1")
    more.help_arguments(add("help", "more.run_help", "show help, of a command too", "wcodec help encode --all"))
    add("version", "more.run_version", "print the version", "wcodec version")
    return parser


def _command(place: str) -> Callable[[argparse.Namespace], int]:
    """Runs a subcommand, which is a function of a module beside this one; only the module that is used is imported."""

    def run(arguments: argparse.Namespace) -> int:
        module, function = place.split(".")
        status: int = getattr(import_module(f".{module}", __package__), function)(arguments)
        return status

    return run


def _common(parser: argparse.ArgumentParser, json: str = "print the report as JSON") -> None:
    add_options(parser, "threads")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar; print only problems, or JSON")
    if json:
        parser.add_argument("--json", action="store_true", help=json)


def _encode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="a .safetensors file, the folder of a checkpoint or, for a folder "
                                                   "OUT/, a name on the Hugging Face Hub")  # fmt: skip
    parser.add_argument("out", nargs="?", metavar="OUT",
                        help="the .wcodec file to write or, with / at its end, the folder of a compressed model, which "
                             "runs")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="OUT", help="the same, as an option")
    parser.add_argument("--revision", metavar="REV", help="the branch, tag or commit of a name on the Hub")
    add_options(parser, "scheme", "bits", "trellis")
    target_arguments(parser, required=False)
    parser.add_argument("--plan", metavar="PLAN.json",
                        help="encode by a plan of wcodec plan --save PLAN.json, without measuring again")  # fmt: skip
    parser.add_argument("--device", metavar="DEVICE",
                        help="the device for calibration and plans: cpu, cuda or cuda:N (default: a GPU that has "
                             "room, otherwise the CPU)")  # fmt: skip
    add_options(parser, "bits_per_tensor")
    add_rules(parser)
    add_options(parser, "scale", "optimize", "coder", "table_bits", *_TUNING, *_PATTERNS, "skip")
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model, for OUT/, --calibrate, --budget and --quality; "
                             "without it, such a model is refused")  # fmt: skip
    add_options(parser, "overwrite")
    # One of the two is always meant; other options have no default, so that those that were given are known.
    parser.set_defaults(optimize=PURPOSES[0])
    _common(parser)


def _decode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .wcodec file, or the folder of a compressed model")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the .safetensors file to write")
    add_options(parser, "overwrite")
    parser.add_argument("--partial", action="store_true",
                        help="decode what is there, if the file with the rest of the model is missing")  # fmt: skip
    trust(parser)
    _common(parser, json="")


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a .wcodec, .safetensors or .gguf file, the folder of a compressed model or of a checkpoint, or a "
        "repository on the Hub (OWNER/NAME, OWNER/NAME/FILE.gguf); only headers are read",
    )
    parser.add_argument("--filter", metavar="TEXT",
                        help="only tensors whose names contain this text or match this regular expression, in capitals "
                             "or not; as in wcodec-tui")  # fmt: skip
    parser.add_argument("--sort", choices=_SORTS, type=sort_column, metavar="COLUMN",
                        help=f"one of {', '.join(_SORTS)}: by this column, the most interesting rows first (the worst "
                             "ratio, the largest size), as in wcodec-tui; file is as stored (default: name, module by "
                             "module)")  # fmt: skip
    parser.add_argument("--top", type=_positive, metavar="N",
                        help="only the first N tensors, as --sort orders them")  # fmt: skip
    parser.add_argument("--all", action="store_true",
                        help="every tensor, not only sums by role, the largest tensors and the largest "
                             "errors")  # fmt: skip
    parser.add_argument("--summary", action="store_true", help="only sums by role and of the whole file")
    parser.add_argument("--plot", metavar="OUT",
                        help="also draw layers and roles as a heat map, into a picture like heatmap.png")  # fmt: skip
    parser.add_argument("--by", choices=MEASURES, metavar="WHAT",
                        help=f"with --plot, the measure: {', '.join(MEASURES)} (default: bits)")  # fmt: skip
    trust(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .wcodec file, or the folder of a compressed model")
    parser.add_argument("--against", metavar="SRC", help="the checkpoint that it was made from")
    parser.add_argument("--device", default="cpu", metavar="DEVICE",
                        help="cuda or cuda:N: also compare what this GPU decodes with what the CPU does")  # fmt: skip
    trust(parser)
    _common(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a .wcodec file")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--all", action="store_true", help="every tensor, also those that are the same in both")
    trust(parser)
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def _roundtrip(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="a .safetensors file, or the folder of a checkpoint")
    parser.add_argument("--scheme", choices=("int8", "rate", "lossless"),
                        help="int8, rate, or lossless (default: int8, or rate with --bits)")  # fmt: skip
    parser.add_argument("--bits", type=_rates, metavar="LIST",
                        help="bits per weight to try with scheme rate, 1 to 8, with commas between "
                             "(default: 4)")  # fmt: skip
    add_options(parser, "trellis")
    parser.add_argument(
        "--coder",
        type=_choices(CODERS),
        default=list(CODERS),
        metavar="LIST",
        help=f"all (default), or some of {', '.join(CODERS)}, with commas between; for scheme rate all is without raw, "
        "and with a trellis without zstd",
    )
    parser.add_argument("--scale", type=_choices(SCALES), metavar="LIST",
                        help=f"with scheme int8, all (default), or some of {', '.join(SCALES)}, with commas "
                             "between")  # fmt: skip
    add_options(parser, *_TUNING, *_PATTERNS)
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, and say where it is")
    parser.add_argument("--json", nargs="?", const="-", metavar="OUT",
                        help="print the report as JSON, or write it to the file OUT")  # fmt: skip
    _common(parser, json="")


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="show everything that was found and tried, line by line")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
