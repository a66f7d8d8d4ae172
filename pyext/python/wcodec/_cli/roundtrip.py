"""``wcodec roundtrip``: encode, decode, and compare bit for bit with :mod:`._cli.reference`."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._api import files
from .._core import format as fmt
from .._core.errors import CorruptError, FormatError, InputError, UnsupportedError
from .._core.option_table import DEFAULT_BITS, DEFAULT_BLOCK, DEFAULT_LEVEL, PURPOSES, SCALES, SCHEMES
from .._core.options import has_trellis
from .._core.paths import output
from .._file import quantized
from .._file.container import Container, TensorEntry
from .._native import safe
from . import rates, reference
from .output import document, prose, put, show_progress, tabulate, tell

# Enough to see what is wrong; a broken coder differs everywhere.
_MAX_DIFFERENCES = 20
_HEADINGS = ("coder", "scale", "result", "original", "stored", "ratio", "bits/weight", "encode s", "decode s")
# The verdict on a file without differences, by scheme.
_EQUAL = {
    "int8": "symbols, scales and values equal bit for bit",
    "rate": "values equal bit for bit in every way to decode them, errors and bits as stated",
    "lossless": "equal bit for bit",
}


@dataclass(frozen=True)
class _Case:
    """A combination to try."""

    scheme: str
    coder: str
    scale: str = "row"
    bits: float | None = None

    def __str__(self) -> str:
        """The choices besides the coder, for file names and people."""
        return self.scale if self.scheme == "int8" else self.scheme if self.bits is None else f"{self.bits:g} bits"


def run(arguments: argparse.Namespace) -> int:
    """Runs every combination that was asked for, and reports."""
    with ExitStack() as stack:
        report = None
        if arguments.json not in (None, "-"):
            # Before the work, which may take long: a name that cannot be written to is refused now.
            inputs = _native.checkpoint(arguments.src, False)[1]
            report = stack.enter_context(output(arguments.json, report=True, inputs=inputs, overwrite=True))
        return _run(arguments, report)


def _refuse_values(path: str, cases: list[_Case]) -> None:
    """Refuses a checkpoint of which other values are encoded than its file has: there is no reference of these."""
    if all(case.scheme in ("lossless", "raw") for case in cases) or not quantized.of_checkpoint(path).tensors:
        return
    raise UnsupportedError(
        f"{path}: its weights are quantized, and roundtrip cannot check the values that scheme {cases[0].scheme} "
        "encodes (use --scheme lossless, or encode it and run wcodec verify --against)",
        file=path,
        code="U302",
    )


def _run(arguments: argparse.Namespace, report: _native.Output | None) -> int:
    folder = Path(tempfile.mkdtemp(prefix="wcodec-roundtrip-"))
    try:
        # References that one granularity has for all coders are computed once, and remembered as digests.
        known: dict[str, dict[str, dict[str, bytes]]] = {}
        cases = _ways(arguments)
        _refuse_values(arguments.src, cases)
        results = [_combination(arguments, case, folder, known.setdefault(case.scale, {})) for case in cases]
    finally:
        if arguments.keep:
            tell(f"wcodec: kept {safe(str(folder))}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    ok = all(result["ok"] for result in results)
    if arguments.json:
        text = document("roundtrip", {"source": arguments.src, "ok": ok, "combinations": results})
        if report is None:
            put(text)
        else:
            report.write(f"{text}\n".encode())
            report.finish()
    if arguments.json != "-":
        _print(results, ok, arguments.quiet)
    return 0 if ok else 1


def _print(results: list[dict[str, Any]], ok: bool, quiet: bool) -> None:
    for result in results:
        for d in result["differences"]:
            what = result["scale"] or _asked(result) or result["scheme"]
            prose(f"{result['coder']}, {what}: {d['tensor'] or 'all'}: {d['what']}: {d['detail']}", "bad")
    if quiet:
        return
    rows = [
        (
            r["coder"],
            r["scale"] or _asked(r) or "none",
            "equal" if r["ok"] else "DIFFERS",
            fmt.size(r["original_bytes"]),
            fmt.size(r["stored_bytes"]),
            fmt.number(r["ratio"]),
            fmt.number(r["bits_per_weight"]),
            fmt.number(r["encode_seconds"], 2),
            fmt.number(r["decode_seconds"], 2),
        )
        for r in results
    ]
    first = results[0]
    headings = _HEADINGS if first["scheme"] != "rate" else (_HEADINGS[0], "asked for", *_HEADINGS[2:])
    tabulate(headings, rows, 3, ("decode s", "encode s", "original", "ratio"))
    if first["scheme"] == "rate":
        for r in results:
            error = "unknown" if r["error"] is None else f"{r['error']:.4f}"
            of_weights = fmt.number(r["rate_bits_per_weight"], 3)
            prose(f"{r['coder']}, {_asked(r)}: {of_weights} bits/weight of the weights, relative error {error}")
    what = "quantized" if first["scheme"] == "int8" else first["scheme"]
    counts = f"{first[what]:,} {what} and {first['raw']:,} raw tensors"
    prose(f"{counts}: {_EQUAL[first['scheme']] if ok else 'differences found'}", "good" if ok else "bad")


def _asked(result: dict[str, Any]) -> str | None:
    """The bits that were asked for, and how; none without."""
    bits = result["bits"]
    return None if bits is None else f"{bits:g} bits{', trellis' if result['trellis'] else ''}"


def _ways(a: argparse.Namespace) -> list[_Case]:
    """The combinations to try, in order."""
    scheme = a.scheme or ("int8" if a.bits is None and a.trellis is None else "rate")
    if scheme == "rate":
        coders = rates.coders(a.coder, a.trellis)
        return [_Case(scheme, coder, bits=bits) for bits in a.bits or (DEFAULT_BITS,) for coder in coders]
    if a.bits is not None or a.trellis is not None:
        option = "--bits" if a.bits is not None else "--trellis"
        raise InputError(
            f"{option} only goes with scheme rate, not with {scheme} (leave it out, or change --scheme)", code="I307"
        )
    # Without scales there is one way.
    scales = (a.scale or SCALES) if scheme == "int8" else ["row"]
    return [_Case(scheme, coder, scale) for scale in scales for coder in a.coder]


def _combination(
    a: argparse.Namespace, case: _Case, folder: Path, known: dict[str, dict[str, bytes]]
) -> dict[str, Any]:
    scale, block = case.scale, a.block or DEFAULT_BLOCK
    name = f"{case.coder}-{str(case).replace(' ', '-')}"
    encoded, decoded = folder / f"{name}.wcodec", folder / f"{name}.safetensors"
    progress = show_progress(a.quiet)
    report = files.compress(
        a.src, encoded, scheme=case.scheme, bits=case.bits, calibrate=False, trellis=a.trellis, scale=scale,
        block=block if scale == "block" else None, coder=case.coder, layout=a.layout,
        level=DEFAULT_LEVEL if a.level is None else a.level, tile=a.tile,
        include=a.include, exclude=a.exclude, transpose=a.transpose, threads=a.threads, progress=progress,
    )  # fmt: skip
    begin = time.perf_counter()
    differences: list[dict[str, str]] = []
    counts = dict.fromkeys(SCHEMES, 0)
    judge, seconds = rates.Judge(a.threads), None
    try:
        files.decompress(encoded, decoded, threads=a.threads, trusted=True, progress=progress)
        seconds = time.perf_counter() - begin
        source, restored = reference.Checkpoint(a.src), reference.Checkpoint(decoded)
        with Container.open(encoded, trusted=True) as container:
            for name, what in _names(source, restored, container):
                _note(differences, name, "name", what)
            for name in source.tensors:
                if name in container and name in restored.tensors:
                    entry = container[name]
                    counts[entry.scheme] += 1
                    _check(entry, source, restored, scale, block, known, judge, differences)
            if case.bits is not None:
                for what, detail in judge.target(case.bits, report.rate):
                    _note(differences, "", what, detail)
    except (CorruptError, FormatError) as error:
        # A file that was just written cannot be read back: the very failure that this command looks for.
        _note(differences, error.tensor or "", "decode", str(error))
    if not a.keep:
        encoded.unlink()
        decoded.unlink(missing_ok=True)
    return {
        "coder": case.coder,
        "scheme": case.scheme,
        "scale": (f"block {block}" if scale == "block" else scale) if case.scheme == "int8" else None,
        "bits": case.bits,
        "trellis": has_trellis(PURPOSES[0], case.coder) if case.bits and a.trellis is None else a.trellis,
        "ok": not differences,
        "tensors": len(report.tensors),
        "quantized": counts["int8"],
        "rate": counts["rate"],
        "lossless": counts["lossless"],
        "raw": counts["raw"],
        "original_bytes": report.original_bytes,
        "stored_bytes": report.stored_bytes,
        "ratio": report.ratio,
        "bits_per_weight": report.bits_per_weight,
        "rate_bits_per_weight": None if report.rate is None else report.rate.bits_per_weight,
        "error": None if report.rate is None else report.rate.error,
        "encode_seconds": report.seconds,
        "decode_seconds": seconds,
        "differences": differences,
    }


def _names(
    source: reference.Checkpoint, restored: reference.Checkpoint, container: Container
) -> Iterator[tuple[str, str]]:
    for name in source.tensors:
        for where, names in (("the container", container), ("the decoded file", restored.tensors)):
            if name not in names:
                yield name, f"missing from {where}"
    for name in {*container, *restored.tensors} - set(source.tensors):
        yield name, "not in the source"


def _note(differences: list[dict[str, str]], tensor: str, what: str, detail: str) -> None:
    if len(differences) < _MAX_DIFFERENCES:
        differences.append({"tensor": tensor, "what": what, "detail": detail})


def _check(
    entry: TensorEntry,
    source: reference.Checkpoint,
    restored: reference.Checkpoint,
    scale: str,
    block: int,
    known: dict[str, dict[str, bytes]],
    judge: rates.Judge,
    differences: list[dict[str, str]],
) -> None:
    """Compares one tensor, and notes what differs."""
    name = entry.name
    kind = source.dtype(name), source.shape(name)
    for got_kind in ((entry.dtype, entry.shape), (restored.dtype(name), restored.shape(name))):
        if got_kind != kind:
            _note(differences, name, "shape", f"{got_kind}, not {kind}")
            return
    if not entry.makes_symbols:
        if not np.array_equal(source.data(name), restored.data(name)):
            _note(differences, name, "bytes", _first(source.data(name), restored.data(name)))
        return
    if entry.scheme == "rate":
        for what, detail in judge.check(entry, source, restored):
            _note(differences, name, what, detail)
        return
    view = reference.View(entry.count * entry.rows, entry.cols, entry.row_axis)
    want = known.get(name)
    if want is None:
        want = reference.digests(reference.encode(source.data(name), entry.dtype, view, scale, block))
        known[name] = want
    digests = reference.Digests()
    parts = _parts(entry, restored, view)
    for what, flat in parts.items():
        digests.feed(what, flat) if what == "scales" else _feed(digests, what, view, flat)
    for what, digest in digests.result().items():
        if digest != want[what]:
            slices = reference.encode(source.data(name), entry.dtype, view, scale, block)
            expected = np.concatenate([getattr(part, what).reshape(-1) for part in slices])
            flat = parts[what] if what == "scales" else view.of(parts[what]).reshape(-1)
            _note(differences, name, what, _first(expected, flat))


def _parts(entry: TensorEntry, restored: reference.Checkpoint, view: reference.View) -> dict[str, npt.NDArray[Any]]:
    """Results of the native code for a tensor: symbols and values in the tensor's order, scales in that of the rows."""
    scales = entry.scales()
    if entry.row_axis == 1:
        scales = scales.T
    kind = np.dtype(reference._BITS[entry.dtype])
    return {
        "symbols": np.ascontiguousarray(entry.symbols()).reshape(-1),
        "scales": np.ascontiguousarray(scales).reshape(-1),
        "values": restored.data(entry.name).view(kind),
    }


def _feed(digests: reference.Digests, what: str, view: reference.View, flat: npt.NDArray[Any]) -> None:
    for part in view.slices(view.of(flat)):
        digests.feed(what, part)


def _first(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> str:
    """The first place where two arrays differ."""
    if expected.shape != actual.shape:
        return f"{actual.size} elements, not {expected.size}"
    bits = f"u{expected.dtype.itemsize}"
    places = np.flatnonzero(expected.view(bits) != actual.view(bits))
    if not places.size:
        return "digests differ, arrays do not"
    at = int(places[0])
    return f"{places.size:,} of {expected.size:,} differ, first at {at}: {actual[at]}, not {expected[at]}"
