"""Subcommands that are little more than a call of the package."""

from __future__ import annotations

import argparse

from .. import _api, _doctor
from .. import _format as fmt
from .._errors import CorruptError
from .._reports import COMPARISON_HEADINGS, comparison_row
from .output import document, show_progress


def encode(arguments: argparse.Namespace) -> int:
    """``wcodec encode``"""
    a = arguments
    report = _api.compress(
        a.src, a.output, scheme=a.scheme, scale=a.scale, block=a.block, coder=a.coder, layout=a.layout, level=a.level,
        tile=a.tile, include=a.include, exclude=a.exclude, skip=a.skip, transpose=a.transpose, threads=a.threads,
        overwrite=a.overwrite, progress=show_progress(a.quiet),
    )  # fmt: skip
    if a.json:
        print(document("encode", report.to_dict()))
    elif not a.quiet:
        print(
            f"{a.output}: {fmt.size(report.original_bytes)} -> {fmt.size(report.stored_bytes)}, "
            f"ratio {fmt.number(report.ratio)}, {fmt.number(report.bits_per_weight)} bits/weight, "
            f"{fmt.plural(len(report.tensors), 'tensor')}, {report.seconds:.1f} s"
        )
    return 0


def decode(arguments: argparse.Namespace) -> int:
    """``wcodec decode``"""
    a = arguments
    _api.decompress(a.file, a.output, threads=a.threads, overwrite=a.overwrite, trusted=a.trust,
                    progress=show_progress(a.quiet))  # fmt: skip
    if not a.quiet:
        print(f"{a.output}: written")
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
        print(document("verify", body) if a.json else f"damaged: {error}")
        return 1
    if a.json:
        print(document("verify", report.to_dict()))
        return 0 if report else 1
    for tensor in report.problems:
        print(f"{tensor.status}: {tensor.name}: {tensor.detail}")
    if report.damage:
        print(f"damaged: {report.damage}")
    if not a.quiet:
        errors = [t.max_error for t in report.tensors if t.max_error is not None]
        largest = f", largest error {max(errors):.3g}" if errors else ""
        verdict = "ok" if report else fmt.plural(len(report.problems) + bool(report.damage), "problem")
        where = "" if report.device == "cpu" else f", {report.device} and CPU compared"
        print(f"{a.file}: {fmt.plural(len(report.tensors), 'tensor')}, {verdict}{largest}{where}")
    return 0 if report else 1


def compare(arguments: argparse.Namespace) -> int:
    """``wcodec compare``"""
    a = arguments
    comparison = _api.compare(a.a, a.b, trusted=a.trust)
    if a.json:
        print(document("compare", {"a": a.a, "b": a.b, **comparison.to_dict()}))
        return 0 if comparison else 1
    print(fmt.text_table(COMPARISON_HEADINGS, map(comparison_row, comparison.tensors), left=2))
    for tensor in comparison.tensors:
        if tensor.detail:
            print(f"{tensor.name}: {tensor.detail}")
    print("same" if comparison else "different")
    return 0 if comparison else 1


def doctor(arguments: argparse.Namespace) -> int:
    """``wcodec doctor``"""
    report = _doctor.doctor()
    print(document("doctor", report.to_dict()) if arguments.json else report)
    return 0 if report else 1
