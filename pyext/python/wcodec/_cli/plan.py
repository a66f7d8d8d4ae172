"""Subcommands that weigh bits against damage: ``wcodec frontier`` and ``wcodec plan``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import _plan
from .._errors import InputError
from .._files import files_of
from .models import _quiet_loading, _running
from .output import document, figures, put, save_plot, say, show_progress, tabulate


def frontier(arguments: argparse.Namespace) -> int:
    """``wcodec frontier``"""
    a = arguments
    _quiet_loading(a.quiet)
    calibrate = None if a.calibrate == "none" else a.calibrate if a.calibrate == "self" else Path(a.calibrate)
    if a.statistics is not None and calibrate is not None:
        raise InputError("--statistics and --calibrate exclude each other (leave one of them out)")
    with _running(a.model):
        report = _plan.frontier(
            a.model, Path(a.text), bits=a.bits, coder=a.coder, calibrate=calibrate or a.statistics,
            **_measuring(a),
        )  # fmt: skip
    if a.plot:
        save_plot(report.plot.kl, a.plot, [*files_of(a.model), a.text, *([a.statistics] if a.statistics else [])])
    if a.json:
        put(document("frontier", {"text": a.text, **report.to_dict()}))
    elif a.csv:
        say(report.csv().rstrip("\n"))
    else:
        figures(report._facts())
        say()
        tabulate(*report._parts())
    return 0


def plan(arguments: argparse.Namespace) -> int:
    """``wcodec plan``"""
    a = arguments
    _quiet_loading(a.quiet)
    with _running(a.model):
        report = _plan.plan(
            a.model, budget=a.budget, quality=a.quality, text=None if a.text is None else Path(a.text),
            calibrate=a.statistics, trellis=a.trellis, coder=a.coder, include=a.include, exclude=a.exclude,
            skip=a.skip, **_measuring(a),
        )  # fmt: skip
    if a.json:
        put(document("plan", {"model": a.model, "text": a.text, **report.to_dict()}))
        return 0
    for part in report._parts(a.tensors):
        tabulate(*part)
        say()
    figures(report._facts())
    return 0


def _measuring(a: argparse.Namespace) -> dict[str, Any]:
    """Options of running an original model on a text."""
    return {
        "windows": a.windows or 24, "tokenizer": a.tokenizer, "device": a.device, "dtype": a.dtype,
        "threads": a.threads, "trust_remote_code": a.trust_remote_code, "progress": show_progress(a.quiet),
    }  # fmt: skip
