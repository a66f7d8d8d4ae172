"""Encoding options for weights that are encoded already: they are refused, and never left unread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core.errors import InputError
from .._core.options import number, shown
from .._file.container import Container

# Bits per weight that are so near to the stored ones ask for no other encoding.
_SAME_BITS = 0.05


def refuse_encoding(
    container: Container, place: Path | str, options: Mapping[str, Any], embeddings: bool = True
) -> None:
    """Raises options that ask for another encoding than that of a container. Those that ask for what it has are fine.

    :param options: keywords of :func:`wcodec.load_model`; what was left out is ``None`` or empty.
    """
    asked = {name: value for name, value in options.items() if not is_left_out(value)}
    if not embeddings:
        asked["embeddings"] = False
    other = [name for name, value in asked.items() if not _has(container, name, value)]
    if other:
        given = ", ".join(f"{name}={shown(asked[name])}" for name in other)
        raise InputError(
            f"{place}: it is compressed already, so that {given} has no meaning "
            f"(leave {'it' if len(other) == 1 else 'them'} out, or encode the original again)",
            file=place,
            code="I305",
        )


def is_left_out(value: Any) -> bool:
    """Whether it is nothing, or a list, a text or the like with nothing in it."""
    return value is None or (isinstance(value, list | tuple | set | str | dict) and not value)


def _has(container: Container, name: str, value: Any) -> bool:
    """Whether everything that is encoded has the scheme, the coder or the bits that are asked for."""
    encoded = [entry for entry in container.stored if entry.scheme != "raw"]
    if name in ("scheme", "coder"):
        return bool(encoded) and {getattr(entry, name) for entry in encoded} == {value}
    rated = [entry for entry in encoded if entry.scheme == "rate"]
    weights = sum(entry.elements for entry in rated)
    if name != "bits" or not weights:
        return False
    return abs(8 * sum(entry.stored_bytes for entry in rated) / weights - number("bits", value)) <= _SAME_BITS


__all__ = ["is_left_out", "refuse_encoding"]
