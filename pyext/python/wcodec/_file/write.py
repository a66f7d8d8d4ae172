"""Encoding a source into a file, or into the bytes of one, with a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _native
from .._core.reports import CompressionReport
from .sources import Source, native_source

if TYPE_CHECKING:
    from .encode import Encoding


def to_file(src: Source, dst: str, encoding: Encoding) -> CompressionReport:
    """Writes a file, which appears when it is complete."""
    options, levels, callback = encoding
    return CompressionReport._from_native(dst, _native.encode(native_source(src), dst, options, callback, levels))


def to_bytes(src: Source, encoding: Encoding) -> tuple[bytes, CompressionReport]:
    """The bytes of a file, and the report."""
    options, levels, callback = encoding
    data, text = _native.encode_to_bytes(native_source(src), options, callback, levels)
    return data, CompressionReport._from_native(None, text)
