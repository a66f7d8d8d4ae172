"""Statistics as a file: safetensors, with a description in its metadata. The content of a file is not trusted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._core import paths
from .._core.errors import FormatError, InputError, UnsupportedError
from .._core.options import STATISTICS_KEY, has_statistics, path_of
from .moments import Packed, packed_elements, sizes
from .records import SiteRecord, UnitRecord

if TYPE_CHECKING:
    from .statistics import Statistics

# The second version may have inputs of which it is only known how large they are; the third has costs of rows, and the
# fourth those of embeddings.
_VERSIONS = (1, 2, 3, 4)
# More inputs than any layer has.
_WIDEST = 1 << 24
# Bytes that are handed to the operating system at once.
_PIECE = 1 << 26
# Exceptions that Python raises for a description with unexpected content.
_CONTRADICTIONS = (AttributeError, KeyError, IndexError, OverflowError, RecursionError, TypeError, ValueError)
# The largest accepted sum of second moments, which are summed in float32.
_LARGEST = 1e37
# The bits of 1.01 as float16.
_MOST = 0x3C0A
_DTYPES = {torch.float32: "F32", torch.float16: "F16"}


def save(statistics: Statistics, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Writes the file, whole or not at all. It replaces no file of another kind, which may be the model's."""
    check_place(path, overwrite)
    tensors: list[torch.Tensor] = []
    header: dict[str, Any] = {"__metadata__": {STATISTICS_KEY: json.dumps(description_of(statistics))}}
    at = 0
    for place, site in enumerate(statistics.sites):
        for number, block in enumerate(statistics._moments[site]):
            parts = {"diagonal": block.diagonal, "correlations": block.strips}
            for what in _parts(statistics.sites[site]):
                tensor = parts[what]
                end = at + tensor.nbytes
                header[_name(place, number, what)] = {
                    "dtype": _DTYPES[tensor.dtype],
                    "shape": list(tensor.shape),
                    "data_offsets": [at, end],
                }
                tensors.append(tensor)
                at = end
    for place, name in enumerate(statistics.units):
        costs = statistics._rows.get(name)
        if costs is not None:
            header[_name_of_rows(place)] = {
                "dtype": "F32",
                "shape": [len(costs)],
                "data_offsets": [at, at + costs.nbytes],
            }
            tensors.append(costs)
            at += costs.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with paths.output(path, overwrite=overwrite) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            data = tensor.contiguous().view(torch.uint8).numpy()
            for begin in range(0, len(data), _PIECE):
                out.write(data[begin : begin + _PIECE].tobytes())
        out.finish()


def description_of(statistics: Statistics) -> dict[str, Any]:
    """The metadata of a file of statistics: everything but second moments."""
    return {
        "version": _version_of(statistics),
        "source": statistics.source,
        "tokens": statistics.tokens,
        "text_hash": statistics.text_hash,
        "model_hash": statistics.model_hash,
        "sites": {name: [s.cols, s.width, s.tokens, s.left] for name, s in statistics.sites.items()},
        "units": {
            name: [
                *(u.rows, u.cols, u.transposed, u.kind, u.expert, u.site, u.tokens, u.sensitivity),
                *([u.embedding] if u.embedding else []),
            ]
            for name, u in statistics.units.items()
        },
        "names": {name: list(parts) for name, parts in statistics.names.items()},
    }


def _version_of(statistics: Statistics) -> int:
    """The first version that can say what these do, which more readers know."""
    if any(unit.embedding for unit in statistics.units.values()):
        return _VERSIONS[3]
    if statistics._rows:
        return _VERSIONS[2]
    return _VERSIONS[any(not site.width for site in statistics.sites.values())]


def check_place(path: str | os.PathLike[str], overwrite: bool, inputs: Iterable[str] = ()) -> None:
    """Whether statistics can be written there: before they are collected, which takes minutes.

    :param inputs: the files that are read for it.
    """
    place = path_of(path)
    with paths.output(place, inputs=inputs, overwrite=overwrite):
        pass
    if os.path.isfile(place) and os.path.getsize(place) and not has_statistics(place):
        raise InputError(
            f"{place}: there is something else than statistics, which is not replaced (choose another name)",
            file=place,
            code="I102",
        )


def _name(site: int, block: int, what: str) -> str:
    return f"{site}.{block}.{what}"


def _name_of_rows(unit: int) -> str:
    return f"{unit}.rows"


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Opens the file, and checks what it says of itself: arguments of :class:`Statistics`."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UnsupportedError("safetensors is not installed (pip install safetensors)", code="U203") from None
    place = path_of(path)
    paths.regular(Path(place))
    try:
        opened: Any = safe_open(place, framework="pt")
        text = (opened.metadata() or {}).get(STATISTICS_KEY)
        keys = set(opened.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise FormatError(
            f"{place}: not a file of statistics: {error} (collect them again)", file=place, code="F105"
        ) from None
    if text is None:
        raise FormatError(
            f"{place}: a safetensors file without statistics (name the file that Statistics.save wrote)",
            file=place,
            code="F105",
        )
    try:
        document = json.loads(text)
        version = _whole(document["version"])
        if version in _VERSIONS:
            return _checked(document, version, opened, keys)
    except _CONTRADICTIONS + (SafetensorError,) as error:
        raise FormatError(
            f"{place}: statistics that contradict themselves: {error} (collect them again)", file=place, code="F106"
        ) from None
    raise UnsupportedError(
        f"{place}: statistics of version {version} (install a newer wcodec, or collect them again)",
        file=place,
        code="U106",
    )


def _must(fits: bool, reason: str) -> None:
    if not fits:
        raise ValueError(reason)


def _parts(site: SiteRecord) -> tuple[str, ...]:
    """The tensors of each block of an input."""
    return ("diagonal", "correlations") if site.width else ("diagonal",)


def _checked(document: Any, version: int, opened: Any, keys: set[str]) -> dict[str, Any]:
    """The arguments that a description gives. Raises whatever Python raises of what does not fit, or ``ValueError``."""
    narrowest = 1 if version < _VERSIONS[1] else 0
    sites = {_text(name): _site(value, narrowest) for name, value in document["sites"].items()}
    units = {_text(name): _unit(value, sites, version) for name, value in document["units"].items()}
    names = {_text(name): tuple(map(_text, parts)) for name, parts in document["names"].items()}
    for name, parts in names.items():
        _must(bool(parts) and name not in units, f"the name {name!r} is not another one")
        _must(len({(units[part].cols, units[part].site) for part in parts}) == 1, f"the inputs of {name!r} differ")
    moments: dict[str, list[Packed]] = {}
    left = set(keys)
    for place, (name, site) in enumerate(sites.items()):
        moments[name] = []
        for number, begin in enumerate(range(0, site.cols, site.width or site.cols)):
            size = min(site.width or site.cols, site.cols - begin)
            shapes = {"diagonal": ("F32", [size]), "correlations": ("F16", [packed_elements(size)])}
            arrays = {}
            for what in _parts(site):
                expected = shapes[what]
                key = _name(place, number, what)
                _must(key in left, f"tensor {key} is missing")
                left.remove(key)
                part = opened.get_slice(key)
                _must((part.get_dtype(), list(part.get_shape())) == expected, f"tensor {key} does not fit its inputs")
                # Its bytes are mapped, and read when they are used.
                arrays[what] = opened.get_tensor(key)
            diagonal = _sizes_of(arrays["diagonal"], f"second moments of {name!r}")
            if not site.width:
                moments[name].append(sizes(diagonal))
                continue
            _must(_are_correlations(arrays["correlations"]), f"correlations of {name!r} are beyond 1")
            moments[name].append(Packed(diagonal, arrays["correlations"]))
    rows: dict[str, torch.Tensor] = {}
    for place, (name, unit) in enumerate(units.items() if version >= _VERSIONS[2] else ()):
        key = _name_of_rows(place)
        if key not in left:
            continue
        left.remove(key)
        part = opened.get_slice(key)
        fits = (part.get_dtype(), list(part.get_shape())) == ("F32", [unit.rows])
        _must(fits, f"tensor {key} does not fit the outputs of {name!r}")
        rows[name] = _sizes_of(opened.get_tensor(key), f"costs of rows of {name!r}")
    _must(not left, f"{len(left)} tensors belong to nothing")
    return {
        "units": units,
        "sites": sites,
        "moments": moments,
        "names": names,
        "rows": rows,
        "source": _text(document["source"]),
        "tokens": _whole(document["tokens"], 1),
        "text_hash": _text(document["text_hash"]),
        "model_hash": _text(document["model_hash"]),
    }


def _sizes_of(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A tensor of mean squares, if it is one."""
    fine = bool(torch.isfinite(tensor).all()) and not bool((tensor < 0).any())
    fine = fine and float(tensor.sum(dtype=torch.float64)) < _LARGEST
    _must(fine, f"{name} are negative or not finite")
    return tensor


def _are_correlations(strips: torch.Tensor) -> bool:
    """Whether all are from -1 to 1, with what float16 and sums of many inputs make of 1; NaN is not."""
    # As whole numbers, which magnitudes of floats can be compared as: nothing is computed with what may be anything.
    bits = strips.reshape(-1).view(torch.int16)
    return all(int((piece & 0x7FFF).max()) <= _MOST for piece in bits.split(_PIECE))


def _text(value: Any) -> str:
    _must(isinstance(value, str), f"{type(value).__name__} where text belongs")
    return str(value)


def _flag(value: Any) -> bool:
    _must(isinstance(value, bool), f"{type(value).__name__} where true or false belongs")
    return bool(value)


def _whole(value: Any, least: int = 0, most: int = 2**62) -> int:
    _must(isinstance(value, int) and not isinstance(value, bool) and least <= value <= most, "a count that is none")
    return int(value)


def _real(value: Any, most: float = math.inf) -> float:
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    _must(math.isfinite(number) and number >= 0, "a number that is negative or not finite")
    _must(number <= most, "a part that is more than the whole")
    return number


def _site(value: Any, narrowest: int) -> SiteRecord:
    cols, width, tokens, left = value
    cols = _whole(cols, 1, _WIDEST)
    return SiteRecord(cols, _whole(width, narrowest, cols), _whole(tokens), _real(left, 1.01))


def _unit(value: Any, sites: dict[str, SiteRecord], version: int) -> UnitRecord:
    rows, cols, transposed, kind, expert, site, tokens, sensitivity, *embedding = value
    _must(len(embedding) <= (version >= _VERSIONS[3]), "a matrix with more numbers than it has")
    cols = _whole(cols, 1, _WIDEST)
    _must(site is None or sites[_text(site)].cols == cols, f"second moments of {cols} inputs are of others")
    record = UnitRecord(
        *(_whole(rows, 1, 2**40), cols, _flag(transposed), _text(kind), _flag(expert), site),
        _whole(tokens),
        _real(sensitivity),
        *map(_real, embedding),
    )
    _must(math.isfinite(record.fisher), "costs beyond all numbers")
    return record
