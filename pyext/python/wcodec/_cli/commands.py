"""Subcommands that are little more than a call of the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import _api, _doctor, _native
from .. import _format as fmt
from .._container import Container
from .._errors import CorruptError
from .._metadata import lines as plan_facts
from .._native import safe
from .output import document, put, say, show_progress


def encode(arguments: argparse.Namespace) -> int:
    """``wcodec encode``"""
    a = arguments
    planned = {"budget": a.budget, "quality": a.quality, "text": None if a.text is None else Path(a.text),
               "calibrate": a.statistics}  # fmt: skip
    report = _api.compress(
        a.src, a.output, **planned, scheme=a.scheme, bits=a.bits, trellis=a.trellis, bits_per_tensor=a.bits_per_tensor,
        rules=dict(a.rule), scale=a.scale, block=a.block, coder=a.coder, layout=a.layout, level=a.level, tile=a.tile,
        table_bits=a.table_bits, include=a.include, exclude=a.exclude, skip=a.skip, transpose=a.transpose,
        threads=a.threads, overwrite=a.overwrite, progress=show_progress(a.quiet),
    )  # fmt: skip
    if a.json:
        put(document("encode", report.to_dict()))
    elif not a.quiet:
        say(
            f"{safe(a.output)}: {fmt.size(report.original_bytes)} -> {fmt.size(report.stored_bytes)}, "
            f"ratio {fmt.number(report.ratio)}, {fmt.number(report.bits_per_weight)} bits/weight, "
            f"{fmt.plural(len(report.tensors), 'tensor')}, {report.seconds:.1f} s"
        )
        if report.rate is not None:
            # What counted towards the bits that were asked for.
            say(f"scheme rate: {report.rate}")
        if report.plan is not None:
            for name, fact in plan_facts(report.plan.metadata()):
                say(safe(f"{name}: {fact}"))
    return 0


def decode(arguments: argparse.Namespace) -> int:
    """``wcodec decode``"""
    a = arguments
    _api.decompress(a.file, a.output, threads=a.threads, overwrite=a.overwrite, partial=a.partial, trusted=a.trust,
                    progress=show_progress(a.quiet))  # fmt: skip
    if not a.quiet:
        say(f"{safe(a.output)}: written")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """``wcodec verify``"""
    a = arguments
    try:
        report = _api.verify(a.file, a.against, device=a.device, threads=a.threads, trusted=a.trust,
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
            say(safe(f"damaged: {error}"))
        return 1
    if a.json:
        put(document("verify", report.to_dict()))
        return 0 if report else 1
    for tensor in report.problems:
        say(safe(f"{tensor.status}: {tensor.name}: {tensor.detail}"))
    if report.damage:
        say(safe(f"damaged: {report.damage}"))
    if not a.quiet:
        errors = [t.max_error for t in report.tensors if t.max_error is not None]
        largest = f", largest error {max(errors):.3g}" if errors else ""
        verdict = "ok" if report else fmt.plural(len(report.problems) + bool(report.damage), "problem")
        where = "" if report.device == "cpu" else f", {report.device} and CPU compared"
        say(f"{safe(a.file)}: {fmt.plural(len(report.tensors), 'tensor')}, {verdict}{largest}{where}")
    return 0 if report else 1


def compare(arguments: argparse.Namespace) -> int:
    """``wcodec compare``"""
    a = arguments
    with Container.open(a.a, trusted=a.trust) as first, Container.open(a.b, trusted=a.trust) as second:
        comparison = _native.compare(first._open, second._open)
    if a.json:
        put(document("compare", {"a": a.a, "b": a.b, "same": comparison.same()}), comparison.json())
        return 0 if comparison.same() else 1
    say(comparison.table() + ("same" if comparison.same() else "different"))
    return 0 if comparison.same() else 1


def doctor(arguments: argparse.Namespace) -> int:
    """``wcodec doctor``"""
    report = _doctor.doctor()
    if arguments.json:
        put(document("doctor", report.to_dict()))
    else:
        say(str(report))
    return 0 if report else 1
