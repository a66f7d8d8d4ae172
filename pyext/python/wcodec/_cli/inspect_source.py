"""``wcodec inspect`` of what is not compressed yet: ``.safetensors`` and ``.gguf`` files, folders of checkpoints, and
repositories on the Hugging Face Hub, all by their headers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .._core import format as fmt
from .._core.errors import InputError
from .._core.options import is_unicode
from .._core.roles import role_of
from .._file import gguf, hub_headers
from .._file.headers import INT8_BITS, Headers, SourceTensor, of_path
from .._native import matching, safe
from .output import document, prose, put, say, tabulate

# Tensors that are shown where nothing was said about it.
_LARGEST = 5
_TENSORS = ("tensor", "shape", "dtype", "weights", "bytes", "of file", "bits/weight")
_ROLES = ("role", "tensors", "dtype", "weights", "bytes", "of file", "bits/weight")
_DISPENSABLE = ("weights", "tensors", "of file")
_BITS = 4
# The largest first, but for text.
_ORDERS: dict[str, Callable[[SourceTensor], Any]] = {
    "name": lambda t: t.name, "shape": lambda t: -t.elements, "dtype": lambda t: t.dtype,
    "original": lambda t: -t.bytes, "stored": lambda t: -t.bytes, "bits": lambda t: -(t.bits_per_weight or 0),
}  # fmt: skip
# Metadata that says what a file is.
_FACTS = ("general.name", "general.architecture", "general.size_label", "general.license")


def is_source(name: str) -> bool:
    """Whether there is something else than a container at a path, or it can be a repository."""
    path = Path(name)
    if path.is_dir():
        names = [p.name for p in path.iterdir()]
        return not any(n.endswith(".wcodec") for n in names) and any(
            n.endswith((".safetensors", ".gguf")) for n in names
        )
    if path.is_file():
        return path.suffix == ".safetensors" or gguf.is_gguf(path)
    return hub_headers.is_name(name)


def run(arguments: argparse.Namespace) -> int:
    """Prints sums by role and the largest tensors, those that were asked for, or everything as JSON."""
    a = arguments
    if a.plot is not None:
        raise InputError(f"{a.file}: it has no layers that are compressed, of which --plot could draw the bits "
                         "(encode it first; wcodec-tui shows its weights)", file=a.file, code="I306")  # fmt: skip
    headers = hub_headers.of_repository(a.file) if hub_headers.is_name(a.file) else of_path(a.file)
    shown = headers.tensors
    if a.filter is not None:
        names = [tensor.name for tensor in shown]
        shown = [shown[i] for i in matching(a.filter, names)] if is_unicode(a.filter) else []
    is_filtered = a.filter is not None or a.sort is not None or a.top is not None
    if a.sort not in (None, "file"):
        if a.sort not in _ORDERS:
            raise InputError(
                f"--sort {a.sort} is for .wcodec files (take one of file, {', '.join(_ORDERS)})", code="I306"
            )
        shown = sorted(shown, key=_ORDERS[a.sort])
    if a.json:
        put(document("inspect", _record(headers, shown[: a.top])))
        return 0
    if not shown and a.filter is not None:
        raise InputError(
            f"no tensor's name has {a.filter!r} (without --filter all are shown)", file=a.file, code="I317"
        )
    if not is_filtered:
        _show_roles(headers)
        shown = sorted(shown, key=lambda t: -t.bytes)[:_LARGEST]
    if not a.summary and shown:
        if not is_filtered:
            say()
        _show_tensors(headers, shown[: a.top])
    say()
    _facts(headers, len(shown[: a.top]) if is_filtered else None)
    return 0


def _show_roles(headers: Headers) -> None:
    groups: dict[str, list[SourceTensor]] = {}
    for tensor in headers.tensors:
        groups.setdefault(role_of(tensor.name), []).append(tensor)
    order = sorted(groups.items(), key=lambda group: -sum(t.bytes for t in group[1]))
    rows = [(safe(role), f"{len(group):,}", _dtypes(group), *_figures(headers, group)) for role, group in order]
    tabulate(_ROLES, rows, 1, _DISPENSABLE)


def _show_tensors(headers: Headers, tensors: list[SourceTensor]) -> None:
    rows = [(safe(t.name), fmt.shape(t.shape), safe(t.dtype), *_figures(headers, [t])) for t in tensors]
    tabulate(_TENSORS, rows, 3, _DISPENSABLE)


def _figures(headers: Headers, tensors: Iterable[SourceTensor]) -> tuple[str, str, str, str]:
    tensors = list(tensors)
    elements, size = sum(t.elements for t in tensors), sum(t.bytes for t in tensors)
    share = f"{100 * size / headers.length:.1f} %" if headers.length else "-"
    return f"{elements:,}", fmt.size(size), share, fmt.number(fmt.bits(size, elements))


def _dtypes(tensors: Iterable[SourceTensor]) -> str:
    return ", ".join(dict.fromkeys(safe(t.dtype) for t in tensors))


def _facts(headers: Headers, shown: int | None) -> None:
    for key in _FACTS:
        if value := headers.metadata.get(key):
            prose(f"{key.partition('.')[2]}: {safe(value)}")
    if shown is not None and shown < len(headers.tensors):
        prose(f"{fmt.plural(shown, 'tensor')} of {len(headers.tensors):,} shown; totals are of the whole")
    prose(
        f"{headers.kind}, {fmt.plural(len(headers.tensors), 'tensor')}, {headers.elements:,} weights: "
        f"{fmt.size(headers.length)}, {fmt.number(fmt.bits(headers.length, headers.elements))} bits/weight"
    )
    for remark in headers.remarks:
        prose(remark)
    would = " · ".join(f"{scheme} about {fmt.size(size)}" for scheme, size in _would(headers).items())
    prose(f"encoded it would be: {would}")


def _would(headers: Headers) -> dict[str, int]:
    """Bytes that the tensors would take, encoded, by what is known of trained models."""
    return {"int8": headers.bytes_with(INT8_BITS), f"{_BITS} bits": headers.bytes_with(_BITS)}


def _record(headers: Headers, shown: list[SourceTensor]) -> dict[str, Any]:
    int8_bytes, rate_bytes = _would(headers).values()
    return {
        "path": headers.place,
        "kind": headers.kind,
        "metadata": dict(headers.metadata),
        "remarks": list(headers.remarks),
        "totals": {
            "tensors": len(headers.tensors),
            "elements": headers.elements,
            "stored_bytes": headers.length,
            "overhead_bytes": headers.length - sum(t.bytes for t in headers.tensors),
            "bits_per_weight": fmt.bits(headers.length, headers.elements),
        },
        "estimates": {"int8_bytes": int8_bytes, "rate_4_bits_bytes": rate_bytes},
        "tensors": [{**t.to_dict(), "role": role_of(t.name)} for t in shown],
    }
