"""Arguments of the commands that run models."""

from __future__ import annotations

import argparse

from .._core.option_table import SCHEMES
from .._core.options import DTYPES, RESIDENCIES
from .arguments import bits, bits_or_list, bytes_of, bytes_or_auto, counts, fraction, positive, trust, whole
from .parsing import Parser

NEW_TOKENS = 64
CHAT_TOKENS = 512
PORT = 8000
ENGINES = ("vllm", "transformers")


def _model(parser: argparse.ArgumentParser, what: str = "the folder of a checkpoint") -> None:
    parser.add_argument("model", metavar="MODEL", help=f"a .wcodec file or folder, {what}, or a name on the Hub")


def _place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--residency", choices=RESIDENCIES,
                        help="the place of compressed weights: device (GPU memory), host (CPU offload), disk (also "
                             "on a CPU), or auto, which fills these in this order (default: as the model was saved, "
                             "or device)")  # fmt: skip
    parser.add_argument("--vram-budget", type=bytes_of, metavar="SIZE",
                        help="GPU memory for the model, such as 3GB or 512MiB; the rest is offloaded (implies "
                             "--residency auto). Activations and the cache of keys and values come on top (default: "
                             "the free memory, less a tenth of all)")  # fmt: skip
    parser.add_argument("--ram-budget", type=bytes_of, metavar="SIZE",
                        help="host memory for compressed weights; the rest is read from disk (implies --residency "
                             "auto; default: the free memory, less a tenth of all)")  # fmt: skip
    parser.add_argument("--cache", type=bytes_or_auto, metavar="SIZE",
                        help="memory for layers that stay decoded, which saves time; auto is none on a GPU, and on "
                             "a CPU the free memory, less a fifth (default: as the "
                             "model was saved, or auto)")  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, help="the dtype to compute in (default: that of the model's config)")
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model, its baseline or its tokenizer, or that their configs "
                             "name; without it, such a model is refused")  # fmt: skip


def _encoding(parser: argparse.ArgumentParser, *, sizes: bool = False) -> None:
    """Adds the options by which a checkpoint is compressed in memory.

    :param sizes: whether ``--bits`` takes several sizes, to be tried in turn.
    """
    parser.add_argument("--scheme", choices=SCHEMES,
                        help="for a checkpoint, which is compressed in memory: int8 (default), rate (default with "
                             "--bits), lossless, or raw")  # fmt: skip
    if sizes:
        parser.add_argument("--bits", type=bits_or_list, metavar="B",
                            help="for a checkpoint: bits per weight, 1 to 8. A list, such as 4,6,int8,lossless, "
                                 "finds the first size whose answers are all the original's")  # fmt: skip
    else:
        parser.add_argument("--bits", type=bits, metavar="B",
                            help="for a checkpoint: bits per weight, 1 to 8")  # fmt: skip
    parser.add_argument("--exclude", action="append", default=[], metavar="GLOB",
                        help="for a checkpoint: leave matching layers uncompressed (may be repeated)")  # fmt: skip


def _fused(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--fused",
        action="store_true",
        help="on a GPU, multiply up to 16 or 128 tokens straight from compressed weights (default there)",
    )
    either.add_argument(
        "--no-fused",
        action="store_true",
        help="decode weights first: results are those of the decoded model bit for bit",
    )


def _baseline(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--baseline", metavar="FOLDER", help=what)


def _sampling(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--temperature", type=fraction, metavar="T",
                        help="how freely tokens are drawn; 0 always takes the likeliest "
                             f"(default: {default})")  # fmt: skip
    parser.add_argument("--top-p", type=fraction, metavar="P",
                        help="draw from the likeliest tokens that have so much of the probability, 0 to 1")  # fmt: skip
    parser.add_argument("--top-k", type=whole, metavar="K", help="draw from so many of the likeliest tokens")
    parser.add_argument("--repetition-penalty", type=fraction, metavar="X",
                        help="above 1, tokens that were there already become less likely")  # fmt: skip
    parser.add_argument("--seed", type=whole, metavar="N", help="the same seed draws the same tokens")


def _ending(parser: argparse.ArgumentParser, tokenizer: bool = True, json: bool = True) -> None:
    trust(parser)
    if tokenizer:
        parser.add_argument(
            "--tokenizer", metavar="FOLDER", help="the folder of the tokenizer (default: that of the model)"
        )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar; print only results")
    if json:
        parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _kv_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kv-cache-dtype", choices=DTYPES,
                        help="the dtype of cached keys and values; attention runs in it, too, if it is wider than "
                             "the model's (default: the model's)")  # fmt: skip


def chat(parser: Parser) -> None:
    """Arguments of ``wcodec chat``."""
    _model(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message, such as 'You are a poet.'")
    _sampling(parser, "the model's own settings")
    parser.add_argument("--max-new-tokens", type=positive, default=CHAT_TOKENS, metavar="N",
                        help=f"tokens of an answer at most (default: {CHAT_TOKENS})")  # fmt: skip
    _encoding(parser)
    _place(parser)
    _fused(parser)
    _ending(parser, json=False)


def generate(parser: Parser) -> None:
    """Arguments of ``wcodec generate``."""
    _model(parser)
    parser.add_argument("text", nargs="?", metavar="PROMPT",
                        help="the text to continue; '-' reads standard input, "
                             "and an empty one begins anew")  # fmt: skip
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the same, as an option")
    parser.add_argument("--prompts", metavar="FILE",
                        help="a file with a prompt in each line; one that ends with .jsonl has objects with the key "
                             "prompt")  # fmt: skip
    parser.add_argument("--chat", action="store_true",
                        help="prompts are messages: apply the chat template of the model's tokenizer")  # fmt: skip
    _baseline(parser, "a checkpoint whose text is shown beside the model's, and whose tokens are compared")
    parser.add_argument("--max-new-tokens", type=positive, default=NEW_TOKENS, metavar="N",
                        help=f"tokens to write at most (default: {NEW_TOKENS})")  # fmt: skip
    _sampling(parser, "0")
    _encoding(parser, sizes=True)
    _place(parser)
    _fused(parser)
    _kv_cache(parser)
    _ending(parser)


def serve(parser: Parser) -> None:
    """Arguments of ``wcodec serve``."""
    parser.passes_on = "after"
    _model(parser)
    parser.add_argument("--engine", choices=ENGINES,
                        help="the server to start: vllm or transformers (default: vllm, where it is installed, "
                             "or transformers)")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                        help="the address to listen on; 0.0.0.0 is for other "
                             "machines, too (default: 127.0.0.1)")  # fmt: skip
    parser.add_argument("--port", type=positive, default=PORT, metavar="N", help=f"the port (default: {PORT})")
    parser.add_argument("--device", metavar="DEVICE",
                        help="for transformers: cpu, cuda or cuda:N (default: a GPU where there is one)")  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, help="the dtype to compute in (default: that of the model's config)")
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run code that comes with the model; without it, such a model is refused")  # fmt: skip
    more = "wcodec serve small/ -- --max-model-len 4096    after two dashes: the server's own"
    parser.epilog = f"{parser.epilog}\n  {more}"


def evaluate(parser: Parser) -> None:
    """Arguments of ``wcodec eval``."""
    _model(parser)
    parser.add_argument("--text", required=True, metavar="FILE", help="a file of UTF-8 text")
    _baseline(parser, "the checkpoint to compare with: KL divergence, agreement on the likeliest token")
    parser.add_argument("--window", type=positive, metavar="N",
                        help="tokens of context at most (default: 512, or what the model takes)")  # fmt: skip
    parser.add_argument("--stride", type=positive, metavar="N",
                        help="tokens between the beginnings of windows (default: half a window)")  # fmt: skip
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="only the first so many tokens of the text")
    _encoding(parser)
    _place(parser)
    _fused(parser)
    _ending(parser)


def bench(parser: Parser) -> None:
    """Arguments of ``wcodec bench``."""
    _model(parser)
    _baseline(parser, "the checkpoint to measure beside it, in the same run")
    parser.add_argument("--batch", type=counts, default=(1, 8, 32), metavar="LIST",
                        help="sequences at once, with commas between (default: 1,8,32)")  # fmt: skip
    for name, default, what in (
        ("prompt-tokens", 128, "tokens of each prompt"),
        ("new-tokens", 64, "tokens to write after it, at least 2"),
        ("repeats", 5, "measurements of each"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N",
                            help=f"{what} (default: {default})")  # fmt: skip
    parser.add_argument("--profile", action="store_true", help="also show the time of each part and layer")
    _encoding(parser)
    _place(parser)
    _fused(parser)
    _ending(parser, tokenizer=False)
