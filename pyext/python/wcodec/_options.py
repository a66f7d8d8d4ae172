"""Arguments of the public functions, checked and put into the form that the native module takes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ._errors import InputError

if TYPE_CHECKING:
    from ._native import _DecodeOptions, _EncodeOptions

SCHEMES = ("int8", "raw")
SCALES = ("row", "tensor", "block")
CODERS = ("rans", "huffman", "zstd", "raw")
LAYOUTS = ("byte", "pair")
DEFAULT_BLOCK = 128
DEFAULT_LEVEL = 3


def choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    """The value, if it is one of the choices."""
    if value not in choices:
        raise InputError(f"unknown {what} {value!r} (use {', '.join(choices[:-1])} or {choices[-1]})")
    return value


def count(what: str, value: int | None, minimum: int = 1) -> int | None:
    """A whole number of at least ``minimum``, or ``None``."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < minimum:
        raise InputError(f"{what} must be a whole number of at least {minimum}, not {value!r}")
    if value.__index__() >= 2**63:
        raise InputError(f"{what} is too large: {value!r} (use a smaller number)")
    return value.__index__()


_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(?:([KMGT])(i?))?(?:B|bytes)?\s*", re.IGNORECASE)


def size(what: str, value: int | str | None, minimum: int = 0) -> int | None:
    """Bytes, of a whole number or of text with a unit: ``KB`` and its like are powers of 1,000, ``KiB`` of 1,024.

    >>> size("cache", "512MB"), size("cache", "1.5 GiB"), size("cache", 4096), size("cache", None)
    (512000000, 1610612736, 4096, None)

    :raises InputError: for anything else, and for less than ``minimum`` bytes.
    """
    if value is None:
        return None
    advice = "use bytes, or text such as '3GB' or '512MiB'"
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        # "3G" alone could mean either.
        if found is None or (found[2] and not value.strip().lower().endswith("b")):
            raise InputError(f"{what} must be a size, not {value!r} ({advice})")
        power = " KMGT".index(found[2].upper()) if found[2] else 0
        whole, _, part = found[1].partition(".")
        unit = (1024 if found[3] else 1000) ** power
        # In whole numbers: floats would lose bytes of large sizes.
        bytes_ = int(whole) * unit + int(part or "0") * unit // 10 ** len(part)
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{what} must be a size, not {value!r} ({advice})")
    else:
        bytes_ = value.__index__()
    if bytes_ < minimum:
        raise InputError(f"{what} must be at least {minimum} bytes, not {value!r} ({advice})")
    return bytes_


def patterns(what: str, value: str | Iterable[str]) -> list[str]:
    """Glob patterns; a single string is one pattern, not a sequence of letters."""
    found = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(p, str) for p in found):
        raise InputError(f"{what} takes glob patterns, not {value!r} (pass text such as '*.mlp.*', or a list of texts)")
    return found


def path_of(value: str | os.PathLike[str]) -> str:
    """A path as text."""
    path = os.fspath(value)
    if not isinstance(path, str):
        raise InputError(f"a path must be text, not {value!r} (os.fsdecode makes text of it)")
    return path


def encode_options(
    *,
    scheme: str = "int8",
    scale: str = "row",
    block: int | None = None,
    coder: str = "rans",
    layout: str = "pair",
    level: int = DEFAULT_LEVEL,
    frame: int | None = None,
    tile: int | None = None,
    table_bits: int | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    transpose: str | Iterable[str] = (),
    threads: int | None = None,
    overwrite: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> _EncodeOptions:
    """All options, with the defaults filled in."""
    if block is not None and scale != "block":
        raise InputError(
            f"block={block!r} only goes with scale='block', not with scale={scale!r} (leave block out, or change scale)"
        )
    added = dict(metadata or {})
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in added.items()):
        raise InputError("metadata must map text to text (convert its keys and values with str)")
    size = count("block", block)
    if isinstance(level, bool) or not isinstance(level, int):
        raise InputError(f"level must be a whole number, not {level!r}")
    if abs(level) >= 2**31:
        # The native module, which knows the levels, cannot be given it.
        raise InputError(f"zstd is not used at level {level} (use 1 to 19)")
    return {
        "scheme": choice("scheme", scheme, SCHEMES),
        "scale": choice("scale", scale, SCALES),
        "block": DEFAULT_BLOCK if size is None else size,
        "coder": choice("coder", coder, CODERS),
        "layout": choice("layout", layout, LAYOUTS),
        "level": level,
        "frame": count("frame", frame),
        "tile": count("tile", tile),
        "table_bits": count("table_bits", table_bits),
        "include": patterns("include", include),
        "exclude": patterns("exclude", exclude),
        "skip": patterns("skip", skip),
        "transpose": patterns("transpose", transpose),
        "threads": count("threads", threads),
        "overwrite": bool(overwrite),
        "metadata": added,
    }


def decode_options(threads: int | None = None, isa: str | None = None, check: bool = True) -> _DecodeOptions:
    """All options, with the defaults filled in."""
    return {"threads": count("threads", threads), "isa": isa, "verify": bool(check)}
