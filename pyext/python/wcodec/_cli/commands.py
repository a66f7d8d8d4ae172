"""Subcommands that are little more than a call of the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._api import files
from .._core import format as fmt
from .._core.errors import CorruptError
from .._core.metadata import lines as plan_facts
from .._core.reports import VerifyReport
from .._core.tensor_info import error_of
from .._file import gguf
from .._file.container import Container
from . import calibration
from .beginning import announce, duration, next_command, seconds
from .encoding import given_options
from .output import document, prose, put, show_progress


def encode(arguments: argparse.Namespace) -> int:
    """``wcodec encode``"""
    a = arguments
    announce(a.src, a.quiet)
    calibration.announce(a, a.src)
    planned = {"budget": a.budget, "quality": a.quality, "text": None if a.text is None else Path(a.text),
               "calibrate": calibration.choice_of(a), "calibration_tokens": a.tokens,
               "device": a.device, "plan": a.plan}  # fmt: skip
    with calibration.telling(a):
        report = files.compress(
            a.src, a.output, **planned, **given_options(a), trust_remote_code=a.trust_remote_code, revision=a.revision,
            progress=show_progress(a.quiet),
        )  # fmt: skip
    if a.json:
        put(document("encode", {**report.to_dict(), "seconds": seconds()}))
    elif not a.quiet:
        # The bits that were asked for count quantized weights, not the whole file.
        alone = "" if report.rate is None else f" (quantized weights alone: {fmt.number(report.rate.bits_per_weight)})"
        prose(
            f"{a.output}: {fmt.size(report.original_bytes)} -> {fmt.size(report.stored_bytes)}, "
            f"ratio {fmt.number(report.ratio)}, {fmt.number(report.bits_per_weight)} bits/weight{alone}, "
            f"{fmt.plural(len(report.tensors), 'tensor')}, {duration()}"
        )
        if (remark := gguf.remark(a.src, report.stored_bytes)) is not None:
            prose(remark)
        if report.plan is not None:
            for name, fact in plan_facts(report.plan.metadata()):
                prose(f"{name}: {fact}")
        if (command := next_command(a.output)) is not None:
            prose(f"next: {command}")
    return 0


def decode(arguments: argparse.Namespace) -> int:
    """``wcodec decode``"""
    a = arguments
    files.decompress(a.file, a.output, threads=a.threads, overwrite=a.overwrite, partial=a.partial, trusted=a.trust,
                    progress=show_progress(a.quiet))  # fmt: skip
    if not a.quiet:
        prose(f"{a.output}: written")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """``wcodec verify``"""
    a = arguments
    try:
        report = files.verify(a.file, a.against, device=a.device, threads=a.threads, trusted=a.trust,
                             progress=show_progress(a.quiet))  # fmt: skip
    except CorruptError as error:
        # Damage that keeps the file from being opened is still what this command looks for.
        if error.file not in (None, a.file):
            raise
        body = {"path": a.file, "against": a.against, "ok": False, "damage": str(error), "tensors": [],
                "device": a.device}  # fmt: skip
        if a.json:
            put(document("verify", body))
        else:
            prose(f"damaged: {error}", "bad")
        return 1
    if a.json:
        put(document("verify", report.to_dict()))
        return 0 if report else 1
    for tensor in report.problems:
        prose(f"{tensor.status}: {tensor.name}: {tensor.detail}", "bad")
    if report.damage:
        prose(f"damaged: {report.damage}", "bad")
    if not a.quiet:
        problems = len(report.problems) + bool(report.damage)
        verdict = _in_order(report, a.file, a.trust) if report else fmt.plural(problems, "problem")
        where = "" if report.device == "cpu" else f"; {report.device} and CPU give the same"
        prose(
            f"{a.file}: {verdict}{where if report else ''} ({fmt.plural(len(report.tensors), 'tensor')})",
            "good" if report else "bad",
        )
    return 0 if report else 1


def _in_order(report: VerifyReport, file: str, trusted: bool) -> str:
    """Says in words that nothing is wrong; quantized weights differ from their original by intent."""
    if report.against is None:
        return "ok: the file is undamaged"
    made = "ok: the file is undamaged and was made from this checkpoint"
    compared = {t.name: t for t in report.tensors if t.max_error}
    largest = max((t.max_error or 0.0 for t in compared.values()), default=0.0)
    if not compared:
        return f"{made} (bit for bit)"
    with Container.open(file, trusted=trusted) as container:
        entries = [entry for entry in container.stored if entry.name in compared]
    stated = error_of(entries) if all(entry.error is not None for entry in entries) else None
    if stated is not None:
        error = f"relative RMS error {stated:.2g}"
    else:
        squares = sum((compared[e.name].rms_error or 0.0) ** 2 * e.elements for e in entries)
        error = f"RMS error {(squares / max(sum(e.elements for e in entries), 1)) ** 0.5:.2g}"
    return f"{made} (quantized: {error}, largest deviation {largest:.2g})"
