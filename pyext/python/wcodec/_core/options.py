"""Arguments of the public functions, checked and put into the form that the native module takes."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from .._native import check_encode_options, residencies
from .errors import InputError
from .option_table import (
    CODERS,
    DEFAULT_BLOCK,
    OPTIONS,
    PURPOSE_CODERS,
    PURPOSES,
    RULE_KEYS,
    SCALES,
    SCHEMES,
    TILED_CODERS,
    Option,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native import _DecodeOptions, _EncodeOptions, _Way

DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes that models compute in, and that a cache can keep keys and values in."""
AUTO = "auto"
"""The size of a cache that takes as much as there is memory for, and the residency that is chosen for each tensor."""
RESIDENCIES = (*residencies(), AUTO)
"""Places of compressed weights: GPU memory, pinned host memory, the file, or where they fit."""
_LONGEST_SHOWN = 200


def shown(value: object) -> str:
    """``repr`` of what was given, for a message: in short, and whatever it is."""
    try:
        text = repr(value)
    except Exception:
        # As that of a number with more digits than Python writes.
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def is_unicode(text: str) -> bool:
    """Whether it has no halves of characters, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_of(what: str, value: object) -> str:
    """Text that a file can hold."""
    if not isinstance(value, str):
        raise InputError(f"{what} must be text, not {shown(value)} (convert it with str)", code="I318")
    if not is_unicode(value):
        raise InputError(
            f"{what} has characters that are no Unicode: {shown(value)} (leave out lone surrogates)", code="I318"
        )
    return value


def choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    """The value, if it is one of the choices."""
    if value not in choices:
        raise InputError(f"unknown {what} {shown(value)} (use {', '.join(choices[:-1])} or {choices[-1]})", code="I302")
    return value


def count(what: str, value: int | None, minimum: int = 1, limit: int = 2**63) -> int | None:
    """A whole number of at least ``minimum`` and below ``limit``, or ``None``."""
    if value is None:
        return None
    number = as_whole(value)
    if number is None or number < minimum:
        raise InputError(f"{what} must be a whole number of at least {minimum}, not {shown(value)}", code="I308")
    if number >= limit:
        raise InputError(f"{what} is too large: {shown(value)} (use a smaller number)", code="I308")
    return number


def as_whole(value: Any) -> int | None:
    """A whole number of any type, such as NumPy's; ``None`` for anything else, an array of one among it."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


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
        match = _SIZE.fullmatch(value)
        # "3G" alone could mean either.
        if match is None or (match[2] and not value.strip().lower().endswith("b")):
            raise InputError(f"{what} must be a size, not {shown(value)} ({advice})", code="I309")
        power = " KMGT".index(match[2].upper()) if match[2] else 0
        integer, _, fraction = match[1].partition(".")
        unit = (1024 if match[3] else 1000) ** power
        # In whole numbers: floats would lose bytes of large sizes.
        bytes_ = int(integer) * unit + int(fraction or "0") * unit // 10 ** len(fraction)
    else:
        number = as_whole(value)
        if number is None:
            raise InputError(f"{what} must be a size, not {shown(value)} ({advice})", code="I309")
        bytes_ = number
    if bytes_ < minimum:
        raise InputError(f"{what} must be at least {minimum} bytes, not {shown(value)} ({advice})", code="I309")
    return bytes_


def patterns(what: str, value: str | Iterable[str]) -> list[str]:
    """Glob patterns; a single string is one pattern, not a sequence of letters."""
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(p, str) and is_unicode(p) for p in texts):
        raise InputError(
            f"{what} takes glob patterns, not {shown(value)} (pass text such as '*.mlp.*', or a list of texts)",
            code="I316",
        )
    return texts


# Characters that a pattern does not read as themselves.
_SPECIAL = frozenset("*?[]{}\\")


def exactly(name: str) -> str:
    """The glob pattern that matches this name only.

    >>> exactly("layers.0.w"), exactly("w{0}")
    ('layers.0.w', 'w[{]0[}]')
    """
    return "".join(f"[{c}]" if c in _SPECIAL else c for c in name)


def path_of(value: str | os.PathLike[str]) -> str:
    """A path as text."""
    try:
        path = os.fspath(value)
    except TypeError:
        raise InputError(
            f"a path must be text or a pathlib.Path, not {shown(value)} (give the file's name)", code="I218"
        ) from None
    if not isinstance(path, str):
        raise InputError(f"a path must be text, not {shown(value)} (os.fsdecode makes text of it)", code="I218")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InputError(
            f"no file can have this name: {shown(path)} (leave out lone surrogates)", code="I218"
        ) from None
    return path


# Under which a file of statistics describes them, and where it does.
STATISTICS_KEY = "wcodec.statistics"
_LONGEST_HEADER = 100_000_000
_DESCRIPTION = 1 << 16


# The values of ``calibrate`` that are no place of a text: all statistics, of texts of many kinds and of what the model
# writes, or of the latter alone; or those for factors of columns alone.
MIXED_TEXT, OWN_TEXT, COLUMNS = "mixed", "self", "columns"
TEXTS = (MIXED_TEXT, OWN_TEXT)


def calibration(value: Any) -> Any:
    """``calibrate`` as it is meant: ``True`` is text of many kinds, and ``False`` no calibration.

    >>> calibration(True), calibration(False), calibration(None), calibration("text.txt")
    ('mixed', None, None, 'text.txt')
    """
    return (MIXED_TEXT if value else None) if isinstance(value, bool) else value


def is_statistics_file(value: Any) -> bool:
    """Whether ``calibrate`` names a file of statistics, and not a text to collect them on: by its ending, or by what
    the file says of itself."""
    if not isinstance(value, str | os.PathLike):
        return False
    return str(value).endswith(".safetensors") or has_statistics(value)


def has_statistics(path: str | os.PathLike[str]) -> bool:
    """Whether a file says of itself that it has statistics."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            # The description comes first in the header, in quotes that are quoted.
            return length < _LONGEST_HEADER and STATISTICS_KEY.encode() in file.read(min(length, _DESCRIPTION))
    except (OSError, ValueError):
        return False


def coder_for(optimize: str, coder: str | None = None) -> str:
    """The coder that is asked for, or the one that goes with a purpose.

    >>> coder_for("speed"), coder_for("size"), coder_for("size", "zstd")
    ('huffman', 'rans', 'zstd')
    """
    purpose = _purpose(optimize)
    return choice("coder", PURPOSE_CODERS[purpose][0] if coder is None else coder, CODERS)


def has_trellis(optimize: str, coder: str | None = None) -> bool:
    """Whether a purpose has levels of scheme ``rate`` chosen by a trellis, where nothing is said of that."""
    return PURPOSE_CODERS[_purpose(optimize)][1] and coder_for(optimize, coder) in TILED_CODERS


def _purpose(optimize: str) -> str:
    return choice("purpose", optimize, PURPOSES)


def _way(
    scheme: str | None,
    scale: str,
    block: int | None,
    bits: float | None,
    trellis: bool | None,
    coder: str | None,
    optimize: str,
) -> _Way:
    """The way weights are encoded: scheme ``int8`` unless another one is asked for, ``rate`` if bits are."""
    if scheme is None:
        scheme = "int8" if bits is None and trellis is None else "rate"
    choice("scheme", _no_number(scheme), SCHEMES)
    for name, value in (("bits", bits), ("trellis", trellis)):
        if value is not None and scheme != "rate":
            raise InputError(
                f"{name}={shown(value)} only goes with scheme='rate', not with scheme={shown(scheme)} "
                f"(leave {name} out, or change scheme)",
                code="I307",
            )
    if scheme == "rate" and scale != "row":
        raise InputError(f"scheme rate has scales by row, not scale={shown(scale)} (leave scale out)", code="I307")
    if block is not None and scale != "block":
        raise InputError(
            f"block={shown(block)} only goes with scale='block', not with scale={shown(scale)} "
            "(leave block out, or change scale)",
            code="I307",
        )
    size = count("block", block)
    return {
        "scheme": scheme,
        "scale": choice("scale", scale, SCALES),
        "block": DEFAULT_BLOCK if size is None else size,
        "bits": None if bits is None else number("bits", bits),
        "trellis": has_trellis(optimize, coder) if trellis is None else bool(trellis),
        "coder": coder_for(optimize, coder),
    }


_BITS_AS_SCHEME = re.compile(r"\s*([1-8](?:\.[0-9]{1,9})?)[-_ ]?(?:b|bits?|bpw)?\s*", re.IGNORECASE)


def _no_number(scheme: Any) -> Any:
    """The scheme, if it is not meant to be the bits, which are another argument."""
    match = None if isinstance(scheme, bool) else _BITS_AS_SCHEME.fullmatch(str(scheme))
    if match is not None:
        raise InputError(
            f"scheme={shown(scheme)} is a number of bits, and no scheme (pass bits={match[1]})", code="I304"
        )
    return scheme


def number(what: str, value: Any) -> float:
    """A finite number, of any type."""
    try:
        parsed = float(value) if not isinstance(value, str | bytes | bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        parsed = math.nan
    if not math.isfinite(parsed):
        raise InputError(f"{what} must be a number, not {shown(value)} (pass a finite one)", code="I308")
    return parsed


def _rules(rules: Mapping[str, Any] | None, coder: str | None, optimize: str) -> list[tuple[str, _Way]]:
    """The ways to encode weights whose names match patterns; the first pattern that matches counts."""
    if not isinstance(rules, Mapping | None):
        raise InputError(f"rules must map patterns to schemes, not be {shown(rules)} (pass a dictionary)", code="I310")
    parsed = []
    for pattern, rule in (rules or {}).items():
        options = {"scheme": rule} if isinstance(rule, str) else rule
        if not isinstance(options, Mapping) or not set(options) <= set(RULE_KEYS):
            raise InputError(
                f"a rule must be a scheme or a dictionary of {', '.join(RULE_KEYS)}, not {shown(rule)} "
                "(such as {'bits': 3.5} or 'lossless')",
                code="I310",
            )
        defaults = {**{name: OPTIONS[name].default for name in RULE_KEYS}, "coder": coder}
        resolved = _way(**{**defaults, **options}, optimize=optimize)
        parsed.append((patterns("rules", text_of("a pattern of rules", pattern))[0], resolved))
    return parsed


def _steps(_: str, steps: Mapping[str, float] | None) -> dict[str, float]:
    if not isinstance(steps, Mapping | None):
        raise InputError(
            f"steps must map names of tensors to numbers, not be {shown(steps)} (pass a dictionary)", code="I311"
        )
    return {text_of("a name in steps", name): number("a step", step) for name, step in (steps or {}).items()}


def _columns(_: str, columns: Mapping[str, Any] | None) -> dict[str, npt.NDArray[np.float32]]:
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise InputError(
            f"columns must map names of tensors to arrays, not be {shown(columns)} (pass a dictionary)", code="I311"
        )
    return {text_of("a name in columns", name): _factors(name, values) for name, values in columns.items()}


def _factors(name: str, values: Any) -> npt.NDArray[np.float32]:
    import numpy as np

    if hasattr(values, "detach"):
        # A torch tensor, perhaps on a GPU or of a dtype that NumPy has not.
        values = values.detach().float().cpu().numpy()
    try:
        return np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the factors of the columns of '{name}' must be numbers, not {shown(values)} (pass an array)", code="I311"
        ) from error


def _metadata(_: str, value: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(value, Mapping | None):
        raise InputError(f"metadata must map text to text, not be {shown(value)} (pass a dictionary)", code="I318")
    added = dict(value or {})
    for key, text in added.items():
        text_of("a key of metadata", key)
        text_of("metadata", text)
    return added


def _level(_: str, value: Any) -> int:
    level = as_whole(value)
    if level is None:
        raise InputError(f"level must be a whole number, not {shown(value)}", code="I308")
    if abs(level) >= 2**31:
        # The native module, which knows the levels, cannot be given it.
        raise InputError(f"zstd is not used at level {shown(value)} (use 1 to 19)", code="I313")
    return level


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "columns": _columns,
    "level": _level,
    "metadata": _metadata,
    "number": lambda name, value: None if value is None else number(name, value),
    "patterns": patterns,
    "steps": _steps,
    "switch": lambda _, value: bool(value),
}


def _checked(option: Option, value: Any) -> Any:
    """The value of an option as the native module takes it."""
    if option.kind == "choice":
        return None if value is None else choice(option.name, value, option.choices)
    if option.kind == "count":
        return count(option.name, value, limit=option.limit)
    return _CHECKS[option.kind](option.name, value)


def encode_options(**given: Any) -> _EncodeOptions:
    """All options of encoding, those of :data:`OPTIONS`, with the defaults filled in: those that ``optimize`` says,
    where it is for them to say. Numbers that no tensor can be encoded with are refused here, before any work."""
    if unknown := given.keys() - OPTIONS.keys():
        raise TypeError(f"encode_options() has no option {', '.join(sorted(unknown))}")
    values = {name: given.get(name, option.default) for name, option in OPTIONS.items()}
    purpose, coder = _purpose(values["optimize"]), values["coder"]
    together: dict[str, Any] = {
        "optimize": purpose,
        "way": _way(**{name: values[name] for name in RULE_KEYS}, optimize=purpose),
        "rules": _rules(values["rules"], coder, purpose),
        "coder_of_few": coder_for(PURPOSES[1]) if coder is None and purpose == PURPOSES[0] else None,
    }
    alone = [option for name, option in OPTIONS.items() if option.native is not None and name not in together]
    options = cast("_EncodeOptions", {**together, **{o.name: _checked(o, values[o.name]) for o in alone}})
    # Numbers of each tensor are many, and are none that it looks at.
    check_encode_options({**options, "steps": {}, "columns": {}})
    return options


def decode_options(threads: int | None = None, isa: str | None = None, check: bool = True) -> _DecodeOptions:
    """All options, with the defaults filled in."""
    return {
        "threads": count("threads", threads),
        "isa": None if isa is None else text_of("isa", isa),
        "verify": bool(check),
    }
