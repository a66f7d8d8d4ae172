"""Subcommands that weigh bits against quality loss: ``wcodec frontier`` and ``wcodec plan``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import _plan
from .._core.option_table import PURPOSES
from .._core.paths import files_of
from . import calibration
from .models import _quiet_loading, _running
from .next_step import encode_command, show_next
from .output import document, figures, prose, put, save_plot, say, show_progress, tabulate


def frontier(arguments: argparse.Namespace) -> int:
    """``wcodec frontier``"""
    a = arguments
    _quiet_loading(a.quiet)
    given = calibration.value_of(a)
    with _running(a.model):
        report = _plan.frontier(
            a.model, Path(a.text), bits=a.bits, coder=a.coder, calibrate=given,
            calibration_tokens=a.tokens, **_measuring(a),
        )  # fmt: skip
    if a.plot:
        save_plot(report.plot.kl, a.plot, [*files_of(a.model), a.text, *calibration.file_of(a)])
    if a.json:
        put(document("frontier", {"text": a.text, **report.to_dict()}))
    elif a.csv:
        say(report.csv().rstrip("\n"))
    else:
        figures(report._facts())
        say()
        tabulate(*report._table())
    return 0


def plan(arguments: argparse.Namespace) -> int:
    """``wcodec plan``"""
    a = arguments
    _quiet_loading(a.quiet)
    with _running(a.model):
        report = _plan.plan(
            a.model, budget=a.budget, quality=a.quality, text=None if a.text is None else Path(a.text),
            calibrate=calibration.value_of(a), calibration_tokens=a.tokens,
            trellis=a.trellis, optimize=a.optimize, coder=a.coder, include=a.include,
            exclude=a.exclude, skip=a.skip, **_measuring(a),
        )  # fmt: skip
    if a.save is not None:
        report.save(a.save, overwrite=a.overwrite)
    if a.json:
        put(document("plan", {"model": a.model, "text": a.text, "saved": a.save, **report.to_dict()}))
        return 0
    for part in report._tables(a.tensors):
        tabulate(*part)
        say()
    figures(report._facts())
    if a.text is not None:
        prose(
            "KL alone: the quality loss if only these tensors are quantized and everything else is exact, nats/token",
            "aside",
        )
    say()
    if a.save is None:
        show_next(
            encode_command(a.model, "planned", *_planned_again(a)),
            "to encode it; --save PLAN.json keeps the plan, so that nothing is measured again",
        )
    else:
        show_next(encode_command(a.model, "planned", "--plan", a.save), "to encode it")
    return 0


def _planned_again(a: argparse.Namespace) -> list[str]:
    """Options of ``wcodec encode`` that make the same plan."""
    arguments = ["--budget", a.budget] if a.budget is not None else ["--quality", a.quality]
    for name in ("text", "statistics", "device"):
        value = getattr(a, name)
        if value is not None and (name, value) != ("device", "cpu"):
            arguments += [f"--{name}", value]
    if a.calibrate not in (None, "none"):
        arguments += ["--calibrate", a.calibrate]
    if a.tokens is not None:
        arguments += ["--tokens", str(a.tokens)]
    if a.trellis is not None:
        arguments.append("--trellis" if a.trellis else "--no-trellis")
    if a.optimize != PURPOSES[0]:
        arguments += ["--optimize", a.optimize]
    if a.coder is not None:
        arguments += ["--coder", a.coder]
    for name in ("include", "exclude", "skip"):
        arguments += [part for pattern in getattr(a, name) for part in (f"--{name}", pattern)]
    if a.trust_remote_code:
        arguments.append("--trust-remote-code")
    return arguments


def _measuring(a: argparse.Namespace) -> dict[str, Any]:
    """Options of running an original model on a text."""
    return {
        "windows": a.windows or 24, "tokenizer": a.tokenizer, "device": a.device, "dtype": a.dtype,
        "threads": a.threads, "trust_remote_code": a.trust_remote_code, "progress": show_progress(a.quiet),
    }  # fmt: skip
