"""Refusals before a command runs, and before torch is imported for it, which takes seconds: options that would
have no effect, of which whoever gives one expects something, and paths that are not there."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from .._core import paths
from .._core.errors import InputError
from .._core.option_table import TILED_CODERS
from .._core.options import TEXTS, coder_for
from .._core.paths import regular
from . import calibration
from .beginning import output_of
from .output import check_plan, check_plot


def _given(a: argparse.Namespace, name: str) -> bool:
    return getattr(a, name, None) not in (None, False, [], ())


def _useless(a: argparse.Namespace, names: Iterable[str], useless: bool, why: str, what: str) -> None:
    """Refuses options that were given although they are useless.

    :param why: the reason, after "has no effect".
    :param what: the remedy.
    """
    for name in names:
        if useless and _given(a, name):
            option = name.replace("_", "-")
            raise InputError(f"--{option} has no effect {why} (leave it out{what})", code="I306")


def encode(a: argparse.Namespace) -> None:
    """``wcodec encode``: options of coders and schemes that nothing uses."""
    a.output = output_of(a)
    calibration.check(a)
    if _given(a, "text"):
        paths.check(a.text, "file")
        regular(Path(a.text))
    if _given(a, "plan"):
        paths.check(a.plan, "file")
        regular(Path(a.plan))
    rules = [rule for _, rule in a.rule]
    coders = {coder_for(a.optimize, a.coder), *(rule.get("coder") for rule in rules)}
    schemes = {rule.get("scheme") or ("rate" if "bits" in rule else None) for rule in rules}
    if a.scheme == "raw" and not rules:
        _useless(a, ("coder", "layout", "level", "tile", "table_bits", "scale", "block"), True,
                "with --scheme raw, which stores tensors as they are", ", or change --scheme")  # fmt: skip
    _of_coders(a, coders, "with --coder {}")
    if a.scheme == "lossless" and "int8" not in schemes:
        _useless(a, ("scale", "block"), True, "with --scheme lossless, which has no scales", ", or change --scheme")
    rated = a.scheme == "rate" or _given(a, "bits") or a.trellis is not None or "rate" in schemes
    rated = rated or calibration.value_of(a) is not None
    planned = _given(a, "budget") or _given(a, "quality") or _given(a, "plan")
    idle = not planned and calibration.value_of(a) is None
    _useless(a, ("device",), idle and not calibration.is_default(a), "without --calibrate or a plan",
            ", or calibrate")  # fmt: skip
    _useless(a, ("bits_per_tensor",), not rated, "without --bits", ", or give --bits")


def roundtrip(a: argparse.Namespace) -> None:
    """``wcodec roundtrip``: options of coders and schemes that nothing uses."""
    _of_coders(a, set(a.coder), "with the coders that are tried: {}")
    scheme = a.scheme or ("int8" if a.bits is None and a.trellis is None else "rate")
    _useless(a, ("scale", "block"), scheme != "int8", f"with scheme {scheme}", ", or change --scheme")
    _useless(a, ("block",), a.scale is not None and "block" not in a.scale, "without scales by block",
            ", or try --scale block too")  # fmt: skip


def _of_coders(a: argparse.Namespace, coders: set[str | None], why: str) -> None:
    names = why.format(", ".join(sorted(c for c in coders if c)))
    tiled = not coders.isdisjoint(TILED_CODERS)
    _useless(a, ("layout", "tile", "table_bits"), not tiled, names, ", or take coder rans or huffman")
    _useless(a, ("level",), "zstd" not in coders, names, ", or take coder zstd")


def inspect(a: argparse.Namespace) -> None:
    """``wcodec inspect``: the ways to show things exclude each other."""
    if a.plot is not None:
        check_plot(a.plot)
    _useless(a, ("by",), a.plot is None, "without --plot", ", or name a picture with --plot")
    _useless(a, ("summary", "all"), a.json, "with --json, which has everything", ", or leave out --json")
    _useless(a, ("sort", "top", "all"), a.summary, "with --summary, which shows no tensors", ", or leave out --summary")


def _there(a: argparse.Namespace, *, hub: bool) -> None:
    """Whether everything that was named is there.

    :param hub: whether the model may be a repository on the Hugging Face Hub.
    """
    for name in ("model", "baseline", "tokenizer"):
        if _given(a, name):
            paths.check(getattr(a, name), hub=hub or name == "tokenizer")
    for name in ("text", "prompts"):
        if name == "text" and "prompts" in a:
            # That of generate is a prompt.
            continue
        if _given(a, name):
            paths.check(getattr(a, name), "file")
            regular(Path(getattr(a, name)))
    if hasattr(a, "statistics"):
        calibration.check_statistics(a.statistics)
    if hasattr(a, "calibrate"):
        calibration.check(a)


def running(a: argparse.Namespace) -> None:
    """Commands that run a model: on the CPU compressed bytes are in the page cache or read from disk, nowhere else."""
    _there(a, hub=True)
    if a.residency is None and a.ram_budget is not None:
        # As in Python, a budget says which residency is meant.
        a.residency = "auto"
    if a.residency not in ("disk", "auto"):
        _useless(a, ("residency",), a.device == "cpu", "on the CPU", ", take disk, or add --device cuda")
    _useless(a, ("vram_budget",), a.device == "cpu", "on the CPU", ", or add --device cuda")
    _useless(a, ("fused", "no_fused"), a.device == "cpu", "on the CPU, which decodes weights first",
            ", or add --device cuda")  # fmt: skip
    _useless(a, ("ram_budget",), a.residency != "auto", "without --residency auto", ", or add that")
    _useless(a, ("scheme", "bits", "exclude"), _is_compressed(a.model), "on a model that is compressed already",
            ", or name the original")  # fmt: skip


def _is_compressed(model: str) -> bool:
    path = Path(model)
    return path.suffix == ".wcodec" or (path.is_dir() and any(path.glob("*.wcodec")))


def generate(a: argparse.Namespace) -> None:
    """``wcodec generate``: prompts from one place."""
    ways = [a.text is not None, a.prompt is not None, a.prompts is not None]
    if not any(ways):
        a.parser.error(f'no prompt was given (such as: wcodec generate {a.model} "Once upon a time")')
    if sum(ways) > 1:
        a.parser.error("prompts come from one place (give one of PROMPT, --prompt and --prompts)")
    _useless(a, ("top_p", "top_k"), a.temperature == 0, "with --temperature 0, which takes the likeliest token",
            ", or take another temperature")  # fmt: skip
    if isinstance(a.bits, tuple):
        _useless(a, ("scheme",), True, "with a list of sizes in --bits, which names schemes, too", "")
        _useless(a, ("temperature",), True, "with a list of sizes in --bits: answers are compared, not drawn", "")
    running(a)


def chat(a: argparse.Namespace) -> None:
    """``wcodec chat``"""
    _useless(a, ("top_p", "top_k"), a.temperature == 0, "with --temperature 0, which takes the likeliest token",
            ", or take another temperature")  # fmt: skip
    running(a)


def serve(a: argparse.Namespace) -> None:
    """``wcodec serve``"""
    paths.check(a.model, hub=True)
    _useless(a, ("device",), a.engine == "vllm", "on vLLM, which runs on the GPUs that it sees",
            " and set CUDA_VISIBLE_DEVICES")  # fmt: skip


def calibrate(a: argparse.Namespace) -> None:
    """``wcodec calibrate``, whose text may be a name for some that is there already."""
    _there(a, hub=False)
    if a.data not in TEXTS:
        paths.check(a.data, "file")
        regular(Path(a.data))
    _useless(a, ("memory",), a.steps_only, "with --steps-only, which sums no second moments", "")
    _useless(a, ("memory",), a.columns_only, "with --columns-only, which sums no second moments", "")


def plan(a: argparse.Namespace) -> None:
    """``wcodec plan``: without a text no model runs."""
    _there(a, hub=False)
    _useless(a, ("overwrite",), a.save is None, "without --save", ", or give --save")
    if a.save is not None:
        check_plan(a.save, a.overwrite)
    _useless(a, ("windows", "dtype", "tokenizer"), a.text is None, "without a text to measure quality loss on",
            ", or give --text")  # fmt: skip


def frontier(a: argparse.Namespace) -> None:
    """``wcodec frontier``"""
    _there(a, hub=False)
    if a.plot is not None:
        check_plot(a.plot)


def sensitivity(a: argparse.Namespace) -> None:
    """``wcodec sensitivity``"""
    _there(a, hub=False)
    _useless(a, ("tokens", "save"), a.statistics is not None, "with --statistics, which are there already",
            ", or collect others")  # fmt: skip
    if a.plot is not None:
        check_plot(a.plot)


CHECKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "encode": encode,
    "roundtrip": roundtrip,
    "inspect": inspect,
    "chat": chat,
    "generate": generate,
    "serve": serve,
    "eval": running,
    "bench": running,
    "calibrate": calibrate,
    "plan": plan,
    "frontier": frontier,
    "sensitivity": sensitivity,
}
"""Checks by subcommand."""
