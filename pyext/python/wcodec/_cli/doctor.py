"""``wcodec doctor``: in short for people, complete with ``--all`` and as JSON."""

from __future__ import annotations

import argparse
import re
from importlib import metadata

from .._api.doctor import DoctorReport, doctor
from .._core import format as fmt
from .._core.terminal import columns, has_colors, paint, pairs, wrapped
from .._native import safe
from .output import document, prose, put, say, show

_Line = tuple[str, str, str | None]


def run(arguments: argparse.Namespace) -> int:
    """``wcodec doctor``"""
    report = doctor()
    if arguments.json:
        put(document("doctor", report.to_dict()))
    elif arguments.all:
        show(_complete(report))
    else:
        _short(report)
    return 0 if report else 1


def _short(report: DoctorReport) -> None:
    """A line for each thing that matters here, then the verdict."""
    lines = [("wcodec", f"{report.version}, Python {report.python}, {report.system}", None), _cpu(report)]
    lines += _gpus(report)
    lines += [_torch(report), _package("transformers", "pip install 'wcodec[transformers]'"), _nvcomp(report)]
    most, colors = columns(), has_colors()
    size = max(len(name) for name, _, _ in lines)
    for name, text, style in lines:
        line = wrapped(f"{name.ljust(size)}  {safe(text)}", most, " " * (size + 2))
        show(line if style is None else line[: size + 2] + paint(line[size + 2 :], style, colors))
    say()
    prose(_verdict(report), "good" if report.ok and not _wrong(report) else "bad")
    prose("(wcodec doctor --all shows everything that was tried)")


def _cpu(report: DoctorReport) -> _Line:
    failed = [check for check in report.checks if "GPU" not in check.name and not check.ok]
    if failed or report.cpu["problem"]:
        return "CPU", f"NO: {failed[0].detail if failed else report.cpu['problem']}", "bad"
    return "CPU", f"{report.cpu['used']}: ready", "good"


def _gpus(report: DoctorReport) -> list[_Line]:
    if not report.devices:
        problem = report.driver["problem"]
        library = re.search(r"\S*libcuda\S*?(?=:|\s|$)", problem or "")
        # No driver is no fault of a machine without a GPU.
        missing = f" ({library[0]} is missing)" if library else ""
        remark = problem if problem and not library else f"optional: needs an NVIDIA driver{missing}"
        return [("GPU", f"none found; {remark}" if problem else "none found; optional: needs an NVIDIA GPU", None)]
    lines: list[_Line] = []
    for device in report.devices:
        n = device["ordinal"]
        # That of zstd needs nvCOMP, which has a line of its own.
        failed = [c for c in report.checks if c.name.endswith(f"GPU {n}") and not c.ok and "zstd" not in c.name]
        what = f"{device['name']}, {fmt.size(device['memory'])}"
        if device["problem"] or failed:
            lines.append((f"GPU {n}", f"{what}: NO: {device['problem'] or failed[0].detail}", "bad"))
        else:
            lines.append((f"GPU {n}", f"{what}: ready", "good"))
    return lines


def _torch(report: DoctorReport) -> _Line:
    facts = report.torch
    if not facts["version"]:
        return "torch", "not installed; models need it (pip install 'wcodec[torch,transformers]')", None
    if facts["problem"]:
        return "torch", f"{facts['version']}: NO: {facts['problem']}", "bad"
    return "torch", f"{facts['version']}: ready", "good"


def _package(name: str, advice: str) -> _Line:
    try:
        return name, f"{metadata.version(name)}: ready", "good"
    except metadata.PackageNotFoundError:
        return name, f"not installed; models need it ({advice})", None


def _nvcomp(report: DoctorReport) -> _Line:
    if report.nvcomp["version"]:
        return "nvCOMP", f"{report.nvcomp['version']}: ready", "good"
    advice = re.search(r"pip install [\w-]+", report.nvcomp["problem"] or "")
    how = f" ({advice[0]})" if advice and report.devices else ""
    return "nvCOMP", f"not installed; optional: only for coder zstd on a GPU{how}", None


def _wrong(report: DoctorReport) -> bool:
    """Whether something that is there does not work."""
    return any(style == "bad" for _, _, style in [_cpu(report), *_gpus(report), _torch(report)])


def _verdict(report: DoctorReport) -> str:
    if not report.ok:
        return "The CPU side does not work."
    if not report.devices:
        return "Everything works on the CPU. Nothing on a GPU: there is none."
    if _wrong(report):
        return "Everything works on the CPU, not everything on the GPU."
    return "Everything works, on the CPU and on the GPU."


def _complete(report: DoctorReport) -> str:
    """The lines of ``str(report)``, broken where they fit; what works is green, and what does not is red."""
    most, colors = columns(), has_colors()
    checks = [(c.name, "works" if c.ok else f"NO: {c.detail}") for c in report.checks]
    facts = report._facts()
    least = max(len(name) for name, _ in [*facts, *checks])
    lines = [*pairs(facts, most, least=least).split("\n"), "", *pairs(checks, most, least=least).split("\n")]
    styled = []
    for line in lines:
        name, gap, answer = line.partition("  ")
        style = "bad" if "  NO: " in line else "good" if answer.strip() == "works" else None
        styled.append(line if style is None else name + gap + paint(answer, style, colors))
    return "\n".join(styled)
