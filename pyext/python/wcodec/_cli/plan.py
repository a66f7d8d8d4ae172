"""Subcommands that weigh bits against damage: ``wcodec frontier`` and ``wcodec plan``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import _format as fmt
from .. import _plan
from .._errors import FileError, InputError
from .models import _quiet_loading, _running
from .output import document, put, say, show_progress


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
        _save(report.plot.kl(), a.plot)
    if a.json:
        put(document("frontier", {"text": a.text, **report.to_dict()}))
    elif a.csv:
        say(report.csv().rstrip("\n"))
    else:
        say(fmt.text_table(("figure", "value"), report._facts(), left=2))
        say(f"\n{report.table()}")
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
    say(report.frontier())
    say(f"\n{report.table(tensors=a.tensors)}\n")
    say(fmt.text_table(("figure", "value"), report._facts(), left=2))
    return 0


def _measuring(a: argparse.Namespace) -> dict[str, Any]:
    """Options of running an original model on a text."""
    return {
        "windows": a.windows, "tokenizer": a.tokenizer, "device": a.device, "dtype": a.dtype, "threads": a.threads,
        "trust_remote_code": a.trust_remote_code, "progress": show_progress(a.quiet),
    }  # fmt: skip


def _save(ax: Any, path: str) -> None:
    """Writes a picture; what its ending is called decides what it is."""
    try:
        ax.figure.savefig(path, dpi=150)
    except ValueError as error:
        raise InputError(f"{path}: no picture of this kind can be drawn: {error} (end the name in .png)") from None
    except OSError as error:
        raise FileError(f"{path}: the picture cannot be written: {error.strerror} (choose another place)") from None
