"""``wcodec roundtrip``: encode, decode, and compare bit for bit with :mod:`._cli.reference`."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _api, _native
from .. import _format as fmt
from .._container import Container, TensorEntry
from .._errors import CorruptError, FormatError
from .._files import output
from .._native import safe
from .._options import DEFAULT_BLOCK, SCHEMES
from . import reference
from .output import document, put, say, show_progress, tell

# Enough to see what is wrong; a broken coder differs everywhere.
_MAX_DIFFERENCES = 20
_HEADINGS = ("coder", "scale", "result", "original", "stored", "ratio", "bits/weight", "encode s", "decode s")


def run(arguments: argparse.Namespace) -> int:
    """Runs every combination that was asked for, and reports."""
    with ExitStack() as stack:
        report = None
        if arguments.json not in (None, "-"):
            # Before the work, which may take long: a name that cannot be written to is refused now.
            inputs = _native.checkpoint(arguments.src, False)[1]
            report = stack.enter_context(output(arguments.json, report=True, inputs=inputs, overwrite=True))
        return _run(arguments, report)


def _run(arguments: argparse.Namespace, report: _native.Output | None) -> int:
    folder = Path(tempfile.mkdtemp(prefix="wcodec-roundtrip-"))
    try:
        # Without scales there is one way.
        scales = arguments.scale if arguments.scheme == "int8" else ["row"]
        results = [result for scale in scales for result in _scale(arguments, scale, folder)]
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
            say(
                safe(
                    f"{result['coder']}, {result['scale'] or result['scheme']}: "
                    f"{d['tensor']}: {d['what']}: {d['detail']}"
                )
            )
    if quiet:
        return
    rows = [
        (
            r["coder"],
            r["scale"] or "none",
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
    say(fmt.text_table(_HEADINGS, rows, left=3))
    first = results[0]
    what = "quantized" if first["scheme"] == "int8" else first["scheme"]
    equal = "symbols, scales and values equal bit for bit" if first["scheme"] == "int8" else "equal bit for bit"
    counts = f"{first[what]:,} {what} and {first['raw']:,} raw tensors"
    say(f"{counts}: {equal if ok else 'differences found'}")


def _scale(arguments: argparse.Namespace, scale: str, folder: Path) -> Iterator[dict[str, Any]]:
    """All coders with one granularity. The reference is computed once, and remembered as digests."""
    known: dict[str, dict[str, bytes]] = {}
    for coder in arguments.coder:
        yield _combination(arguments, scale, coder, folder, known)


def _combination(
    a: argparse.Namespace, scale: str, coder: str, folder: Path, known: dict[str, dict[str, bytes]]
) -> dict[str, Any]:
    block = a.block or DEFAULT_BLOCK
    encoded, decoded = folder / f"{coder}-{scale}.wcodec", folder / f"{coder}-{scale}.safetensors"
    progress = show_progress(a.quiet)
    report = _api.compress(
        a.src, encoded, scheme=a.scheme, scale=scale, block=block if scale == "block" else None, coder=coder,
        layout=a.layout, level=a.level, tile=a.tile, include=a.include, exclude=a.exclude, transpose=a.transpose,
        threads=a.threads, progress=progress,
    )  # fmt: skip
    begin = time.perf_counter()
    differences: list[dict[str, str]] = []
    counts = dict.fromkeys(SCHEMES, 0)
    seconds = None
    try:
        _api.decompress(encoded, decoded, threads=a.threads, trusted=True, progress=progress)
        seconds = time.perf_counter() - begin
        source, restored = reference.Checkpoint(a.src), reference.Checkpoint(decoded)
        with Container.open(encoded, trusted=True) as container:
            for name, what in _names(source, restored, container):
                _note(differences, name, "name", what)
            for name in source.tensors:
                if name in container and name in restored.tensors:
                    entry = container[name]
                    counts[entry.scheme] += 1
                    _check(entry, source, restored, scale, block, known, differences)
    except (CorruptError, FormatError) as error:
        # What was just written cannot be read back: the very failure that this command looks for.
        _note(differences, error.tensor or "", "decode", str(error))
    if not a.keep:
        encoded.unlink()
        decoded.unlink(missing_ok=True)
    return {
        "coder": coder,
        "scheme": a.scheme,
        "scale": (f"block {block}" if scale == "block" else scale) if a.scheme == "int8" else None,
        "ok": not differences,
        "tensors": len(report.tensors),
        "quantized": counts["int8"],
        "lossless": counts["lossless"],
        "raw": counts["raw"],
        "original_bytes": report.original_bytes,
        "stored_bytes": report.stored_bytes,
        "ratio": report.ratio,
        "bits_per_weight": report.bits_per_weight,
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
    view = reference.View(entry.count * entry.rows, entry.cols, entry.row_axis)
    want = known.get(name)
    if want is None:
        want = reference.digests(reference.encode(source.data(name), entry.dtype, view, scale, block))
        known[name] = want
    got = reference.Digests()
    parts = _parts(entry, restored, view)
    for what, flat in parts.items():
        got.feed(what, flat) if what == "scales" else _feed(got, what, view, flat)
    for what, digest in got.result().items():
        if digest != want[what]:
            slices = reference.encode(source.data(name), entry.dtype, view, scale, block)
            expected = np.concatenate([getattr(part, what).reshape(-1) for part in slices])
            flat = parts[what] if what == "scales" else view.of(parts[what]).reshape(-1)
            _note(differences, name, what, _first(expected, flat))


def _parts(entry: TensorEntry, restored: reference.Checkpoint, view: reference.View) -> dict[str, npt.NDArray[Any]]:
    """What the native code made of a tensor: symbols and values in the tensor's order, scales in that of the rows."""
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


def _first(expected: npt.NDArray[Any], got: npt.NDArray[Any]) -> str:
    """The first place where two arrays differ."""
    if expected.shape != got.shape:
        return f"{got.size} elements, not {expected.size}"
    bits = f"u{expected.dtype.itemsize}"
    places = np.flatnonzero(expected.view(bits) != got.view(bits))
    if not places.size:
        return "digests differ, arrays do not"
    at = int(places[0])
    return f"{places.size:,} of {expected.size:,} differ, first at {at}: {got[at]}, not {expected[at]}"
