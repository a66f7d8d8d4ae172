"""Other tools' words, and what wcodec calls the same: for messages about arguments that nobody knows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

# Letters of a mistyped word that must agree. Below this, guesses mislead: "--force" was answered with "--rule".
_LIKE = 0.7

_CODE = re.compile(r" \[([A-Z]\d{3})\]$")

COMMANDS = {
    **dict.fromkeys(("compress", "compress_", "convert", "quantize", "quantize_", "quant", "pack"), "encode"),
    **dict.fromkeys(("decompress", "decompress_", "dequantize", "unpack", "extract", "restore"), "decode"),
    **dict.fromkeys(("info", "list", "ls", "open", "show", "stat", "stats", "summary", "view"), "inspect"),
    **dict.fromkeys(("check", "test", "validate"), "verify"),
    **dict.fromkeys(("run", "complete", "completion", "infer", "predict"), "generate"),
    **dict.fromkeys(("evaluate", "perplexity", "ppl"), "eval"),
    **dict.fromkeys(("benchmark", "speed", "time", "profile"), "bench"),
    **dict.fromkeys(("server", "api", "host"), "serve"),
    **dict.fromkeys(("talk", "repl", "interactive"), "chat"),
    **dict.fromkeys(("ui", "gui", "explore", "browse"), "tui"),
    **dict.fromkeys(("upload", "publish"), "push"),
    "diff": "compare",
    "why": "explain",
    "calibration": "calibrate",
    "pareto": "frontier",
    "manual": "man",
}
"""Commands by their names in other tools and in Python."""

# The first counts that the command has; a text without dashes is a hint that is told as it is.
_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--force", "-f", "--yes", "-y", "--replace", "--clobber", "--exist-ok"), ("--overwrite",)),
    **dict.fromkeys(
        ("--out", "--outdir", "--output-dir", "--output-path", "--outfile", "--out-file", "--dst", "--dest",
         "--destination", "--save-dir", "--to"),
        ("--output", "--plot"),
    ),
    **dict.fromkeys(
        ("--quantize", "--quantization", "--quant", "--quant-bits", "--nbits", "--wbits", "--w-bits", "--num-bits",
         "--bits-per-weight", "--bpw", "--precision", "--load-in-4bit", "--load-in-8bit", "--4bit", "--8bit"),
        ("--bits",),
    ),
    **dict.fromkeys(("--format", "--method", "--qtype", "--quant-method", "--quant-type"), ("--scheme", "--json")),
    **dict.fromkeys(("--exact", "--lossless", "--bit-exact"), ("--scheme lossless",)),
    **dict.fromkeys(("--calibrate", "--calibration", "--calib", "--imatrix"), ("--calibrate", "--statistics")),
    **dict.fromkeys(("--dataset", "--data", "--corpus", "--calibration-data"), ("--text", "--calibrate", "--prompts")),
    **dict.fromkeys(("--size", "--target-size", "--max-size", "--target"), ("--budget", "--sort stored")),
    **dict.fromkeys(("--ignore", "--skip-layers", "--skip-modules", "--not"), ("--exclude",)),
    **dict.fromkeys(("--jobs", "-j", "--num-threads", "--workers", "--cpus", "--nproc"), ("--threads",)),
    **dict.fromkeys(("--silent", "-s", "--no-progress", "--no-progress-bar"), ("--quiet",)),
    **dict.fromkeys(("--gpu", "--cuda", "--use-gpu", "--gpus"), ("--device cuda",)),
    **dict.fromkeys(
        ("--max-tokens", "--max-new", "--n-predict", "--num-predict", "--max-length", "--length", "--n-tokens", "-n"),
        ("--max-new-tokens", "--new-tokens", "--top"),
    ),
    **dict.fromkeys(("--temp", "--sample", "--do-sample"), ("--temperature",)),
    **dict.fromkeys(("--topp", "--nucleus"), ("--top-p",)),
    **dict.fromkeys(("--topk",), ("--top-k",)),
    **dict.fromkeys(("--system-prompt", "--sys", "-sys", "--instructions"), ("--system",)),
    **dict.fromkeys(("--input", "-i", "--message", "--query", "--question"), ("--prompt",)),
    **dict.fromkeys(("--file", "--prompt-file", "--batch-file"), ("--prompts", "--text")),
    **dict.fromkeys(("--reference", "--original", "--base", "--base-model", "--ref"), ("--baseline", "--against")),
    **dict.fromkeys(("--against",), ("--baseline",)),
    **dict.fromkeys(("--baseline",), ("--against",)),
    **dict.fromkeys(("--order", "--sort-by", "--order-by"), ("--sort",)),
    **dict.fromkeys(("--grep", "--pattern", "--name", "--match", "--layers"), ("--filter", "--include")),
    **dict.fromkeys(("--limit", "--head", "--count"), ("--top",)),
    **dict.fromkeys(("--full", "--verbose", "-v", "-a", "--everything", "--long", "-l"), ("--all",)),
    **dict.fromkeys(("--offload", "--cpu-offload", "--offload-folder"), ("--residency",)),
    **dict.fromkeys(("--gpu-memory", "--max-memory", "--vram", "--gpu-memory-utilization"), ("--vram-budget",)),
    **dict.fromkeys(("--address", "--listen", "--bind"), ("--host",)),
    **dict.fromkeys(("--backend",), ("--engine",)),
}  # fmt: skip
_OF_THE_CPU = ("encode", "decode", "inspect", "compare", "roundtrip", "plan", "ranks")
_POSITIONAL = ("--model", "-m", "--model-path", "--model-id", "--src", "--source", "--path", "--input", "--file")

# Formats of other tools, and how much each is of what.
_FORMATS = {
    **dict.fromkeys(("nf4", "fp4", "int4", "uint4", "q4", "awq", "gptq", "4bit", "4-bit", "w4a16"), "4"),
    **dict.fromkeys(("nf3", "int3", "q3", "3bit", "3-bit"), "3"),
    **dict.fromkeys(("int2", "q2", "2bit", "2-bit"), "2"),
    **dict.fromkeys(("int5", "q5", "5bit"), "5"),
    **dict.fromkeys(("int6", "q6", "6bit", "fp6"), "6"),
}
_EIGHT = ("8bit", "8-bit", "q8", "w8a16", "w8a8", "fp8", "uint8")
_EXACT = ("bf16", "bfloat16", "fp16", "float16", "f16", "16bit", "16-bit", "none", "exact", "dfloat11", "df11")

_SORTS = {
    **dict.fromkeys(("size", "bytes", "largest"), "stored"),
    **dict.fromkeys(("bpw", "bits/weight", "bit"), "bits"),
    **dict.fromkeys(("loss", "rmse", "rms", "worst"), "error"),
    **dict.fromkeys(("compression", "saved"), "ratio"),
    "type": "dtype",
    "layer": "name",
}


def sort_column(text: str) -> str:
    """A column by what others call it.

    >>> sort_column("size"), sort_column("ratio")
    ('stored', 'ratio')
    """
    return _SORTS.get(text, text)


def like(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; dashes at the beginning do not count, since all options share them.

    >>> like("inpsect", ["encode", "inspect"]), like("--force", ["--rule", "--coder"])
    ('inspect', None)
    """
    bare = {name.lstrip("-"): name for name in known}
    matches = difflib.get_close_matches(word.lstrip("-"), list(bare), 1, _LIKE)
    return bare[matches[0]] if matches else None


def for_option(command: str, word: str, value: str | None, known: Sequence[str], takes: str | None) -> str | None:
    """Advice on an option that a command has not.

    :param word: the option as it was typed, without a value.
    :param value: the word that followed it.
    :param known: the options that the command has.
    :param takes: the name of the command's first argument.
    """
    if word in ("--device", "--gpu", "--cuda") and command in _OF_THE_CPU and "--device" not in known:
        others = "; calibrate has --device" if command == "encode" else ""
        return f"{command} works on the CPU{others}"
    if word == "--chat" and "--chat" not in known:
        return "wcodec chat MODEL talks to a model"
    for name in _OPTIONS.get(word, ()):
        bare = name.split(" ")[0]
        if bare in known and bare != word:
            return f"use {name}{_meaning(word, bare)}"
    if word in _POSITIONAL and takes is not None:
        return f"name {takes} without an option: wcodec {command} {value or takes}"
    near = like(word, known)
    return None if near is None else f"did you mean {near}?"


def _meaning(word: str, name: str) -> str:
    if name == "--overwrite":
        return " to replace what is there"
    if name == "--bits":
        return " N, such as --bits 4"
    if name == "--statistics":
        return " FILE, with what wcodec calibrate wrote"
    return ""


def for_choice(option: str, value: str, known: Sequence[str]) -> str | None:
    """Advice on a value that an option does not take."""
    if option == "--scheme":
        lower = value.lower().partition("_")[0]
        if lower in _FORMATS:
            return f"--bits {_FORMATS[lower]} is the {_FORMATS[lower]}-bit scheme; wcodec frontier compares it with NF4"
        if lower in _EIGHT:
            return "--scheme int8 has 8 bits before entropy coding; --bits takes any number from 1 to 8"
        if lower in _EXACT:
            return "--scheme lossless keeps every bit, in two thirds of the size"
    near = like(value, known)
    return None if near is None else f"did you mean {near}?"


def for_command(value: str, known: Sequence[str], rest: Sequence[str]) -> str | None:
    """Advice on a command that there is not.

    :param rest: the arguments after it.
    """
    meant = COMMANDS.get(value.lower())
    if meant in known:
        line = " ".join(["wcodec", str(meant), *rest])
        return f"did you mean {meant}? ({line})" if rest else f"did you mean {meant}?"
    near = like(value, known)
    return None if near is None else f"did you mean {near}?"


def code_of(message: str) -> tuple[str, str | None]:
    """A message of the package and the code that stands at its end.

    >>> code_of("m: the file exists (use --overwrite) [O103]")
    ('m: the file exists (use --overwrite)', 'O103')
    """
    found = _CODE.search(message)
    return (message, None) if found is None else (message[: found.start()], found[1])


def advice_of(message: str) -> tuple[str, str | None]:
    """A message of the package in its two parts: what is wrong, and the advice in parentheses at the end.

    >>> advice_of("m: the file exists (use --overwrite (or -f))")
    ('m: the file exists', 'use --overwrite (or -f)')
    >>> advice_of("no advice")
    ('no advice', None)
    """
    if not message.endswith(")"):
        return message, None
    depth = 0
    for at in range(len(message) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(message[at], 0)
        if depth == 0:
            head = message[:at].rstrip()
            return (head, message[at + 1 : -1]) if head else (message, None)
    return message, None
