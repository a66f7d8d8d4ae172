"""Subcommands that are little more than a call of the package."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from .. import _api, _doctor, _native
from .. import _format as fmt
from .._container import Container
from .._errors import CorruptError
from .._metadata import lines as plan_facts
from .._options import DEFAULT_LEVEL
from .._reports import COMPARISON_HEADINGS, ComparedTensor, TensorInfo, comparison_row
from .._roles import role_of
from .._terminal import columns, has_colors, paint, pairs
from .output import document, prose, put, say, show, show_progress, tabulate


def encode(arguments: argparse.Namespace) -> int:
    """``wcodec encode``"""
    a = arguments
    planned = {"budget": a.budget, "quality": a.quality, "text": None if a.text is None else Path(a.text),
               "calibrate": a.statistics}  # fmt: skip
    report = _api.compress(
        a.src, a.output, **planned, scheme=a.scheme, bits=a.bits, trellis=a.trellis, bits_per_tensor=a.bits_per_tensor,
        rules=dict(a.rule), scale=a.scale or "row", block=a.block, coder=a.coder or "rans", layout=a.layout or "pair",
        level=DEFAULT_LEVEL if a.level is None else a.level, tile=a.tile,
        table_bits=a.table_bits, include=a.include, exclude=a.exclude, skip=a.skip, transpose=a.transpose,
        threads=a.threads, overwrite=a.overwrite, trust_remote_code=a.trust_remote_code,
        progress=show_progress(a.quiet),
    )  # fmt: skip
    if a.json:
        put(document("encode", report.to_dict()))
    elif not a.quiet:
        prose(
            f"{a.output}: {fmt.size(report.original_bytes)} -> {fmt.size(report.stored_bytes)}, "
            f"ratio {fmt.number(report.ratio)}, {fmt.number(report.bits_per_weight)} bits/weight, "
            f"{fmt.plural(len(report.tensors), 'tensor')}, {report.seconds:.1f} s"
        )
        if report.rate is not None:
            # What counted towards the bits that were asked for.
            prose(f"scheme rate: {report.rate}")
        if report.plan is not None:
            for name, fact in plan_facts(report.plan.metadata()):
                prose(f"{name}: {fact}")
    return 0


def decode(arguments: argparse.Namespace) -> int:
    """``wcodec decode``"""
    a = arguments
    _api.decompress(a.file, a.output, threads=a.threads, overwrite=a.overwrite, partial=a.partial, trusted=a.trust,
                    progress=show_progress(a.quiet))  # fmt: skip
    if not a.quiet:
        prose(f"{a.output}: written")
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
        errors = [t.max_error for t in report.tensors if t.max_error is not None]
        largest = f", largest error {max(errors):.3g}" if errors else ""
        verdict = "ok" if report else fmt.plural(len(report.problems) + bool(report.damage), "problem")
        where = "" if report.device == "cpu" else f", {report.device} and CPU compared"
        prose(
            f"{a.file}: {fmt.plural(len(report.tensors), 'tensor')}, {verdict}{largest}{where}",
            "good" if report else "bad",
        )
    return 0 if report else 1


def compare(arguments: argparse.Namespace) -> int:
    """``wcodec compare``"""
    a = arguments
    with Container.open(a.a, trusted=a.trust) as first, Container.open(a.b, trusted=a.trust) as second:
        comparison = _native.compare(first._open, second._open)
        facts = first._open.facts(), second._open.facts()
    if a.json:
        put(document("compare", {"a": a.a, "b": a.b, "same": comparison.same()}), comparison.json())
        return 0 if comparison.same() else 1
    _compared(comparison, facts)
    prose("same" if comparison.same() else "different", "good" if comparison.same() else "bad")
    return 0 if comparison.same() else 1


def _compared(comparison: _native.Comparison, facts: tuple[_native.Facts, _native.Facts]) -> None:
    """Sums by role, then a line for each tensor."""
    found = comparison.rows()
    sums: dict[str, _Side] = {}
    for name, status, _, *places in found:
        side = sums.setdefault(role_of(name), _Side())
        side.statuses[status] += 1
        for i, place in enumerate(places):
            if place is not None:
                side.places[i].append(place)
    if len(sums) < len(found):
        tabulate(_ROLE_HEADINGS, [(role, *side.cells(facts)) for role, side in sums.items()], 2, _ROLE_DISPENSABLE)
        say()
    most, colors = columns(), has_colors()
    if most is None and not colors:
        show(comparison.table().rstrip("\n"))
        return
    rows = []
    for name, status, detail, *places in found:
        a, b = (None if p is None else TensorInfo._at(f, p) for f, p in zip(facts, places, strict=True))
        rows.append(ComparedTensor(name, status, a, b, detail))
    tabulate(COMPARISON_HEADINGS, map(comparison_row, rows), 2, ("bits/weight a", "bits/weight b", "stored a"))
    # Of all layers mostly the same.
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.detail:
            alike.setdefault((role_of(row.name), row.detail), []).append(row.name)
    for (role, detail), names in alike.items():
        prose(f"{names[0] if len(names) == 1 else f'{role} ({len(names):,})'}: {detail}")


_ROLE_HEADINGS = ("role", "status", "tensors", "stored a", "stored b", "bits/weight a", "bits/weight b")
_ROLE_DISPENSABLE = ("bits/weight a", "stored a", "tensors")


class _Side:
    """Tensors of one role in two files."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.places: tuple[list[int], list[int]] = ([], [])

    def cells(self, facts: tuple[_native.Facts, _native.Facts]) -> tuple[str, ...]:
        """Their status, how many there are, and what they take."""
        stored, bits = [], []
        for side, places in zip(facts, self.places, strict=True):
            figures = side.figures(places)
            total = sum(figure[3] for figure in figures)
            stored.append(fmt.size(total) if figures else "-")
            bits.append(fmt.number(fmt.bits(total, sum(figure[1] for figure in figures))))
        alike = len(self.statuses) == 1
        status = next(iter(self.statuses)) if alike else ", ".join(f"{n:,} {s}" for s, n in self.statuses.items())
        return status, f"{self.statuses.total():,}", *stored, *bits


def doctor(arguments: argparse.Namespace) -> int:
    """``wcodec doctor``"""
    report = _doctor.doctor()
    if arguments.json:
        put(document("doctor", report.to_dict()))
    else:
        show(_doctored(report))
    return 0 if report else 1


def _doctored(report: _doctor.DoctorReport) -> str:
    """What ``str(report)`` has, in lines that fit; what works is green, and what does not is red."""
    most, colors = columns(), has_colors()
    checks = [(c.name, "works" if c.ok else f"NO: {c.detail}") for c in report.checks]
    facts = report._facts()
    least = max(len(name) for name, _ in [*facts, *checks])
    lines = [*pairs(facts, most, least=least).split("\n"), "", *pairs(checks, most, least=least).split("\n")]
    styled = []
    for line in lines:
        name, gap, said = line.partition("  ")
        style = "bad" if "  NO: " in line else "good" if said.strip() == "works" else None
        styled.append(line if style is None else name + gap + paint(said, style, colors))
    return "\n".join(styled)
