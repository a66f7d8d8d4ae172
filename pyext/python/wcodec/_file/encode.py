"""Encoding a source into a container for use at once, by options and levels that are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import _native
from .._core.errors import InputError
from .._core.options import encode_options
from .._core.progress import ProgressCallback, reporter
from .container import Container
from .sources import Source, native_source

if TYPE_CHECKING:
    from typing import TypeAlias

    from .._native import _ChooseLevels, _EncodeOptions

    Encoding: TypeAlias = "tuple[_EncodeOptions, _ChooseLevels | None, ProgressCallback | None]"
    """Options for the native encoder, the function that chooses levels where scheme ``rate`` is calibrated, and the
    one that is told of progress."""

OF_CALIBRATION = ("calibrate", "calibration_tokens", "feedback", "device", "model", "trust_remote_code")
"""Options that calibration takes by name, beside those of the encoder."""


@contextmanager
def by_weights(options: Mapping[str, Any], progress: bool | ProgressCallback = False) -> Iterator[Encoding]:
    """The encoding that the weights alone choose."""
    if options.get("calibration_tokens") is not None:
        raise InputError("calibration_tokens go with calibrate (pass calibrate=True, or leave them out)", code="I625")
    with reporter(progress, "encode") as callback:
        yield encode_options(**{k: v for k, v in options.items() if k not in OF_CALIBRATION}), None, callback


def to_container(src: Source, encoding: Encoding) -> Container:
    """A container in memory: takes less time and memory than to open the bytes of one."""
    options, levels, callback = encoding
    return Container(_native.encode_to_container(native_source(src), options, callback, levels))


def compress_in_memory(src: Source, *, progress: bool | ProgressCallback = False, **options: Any) -> Container:
    """Encodes by the weights alone, for use at once.

    :param options: those of :func:`wcodec.compress` but ``calibrate``.
    """
    with by_weights(options, progress) as encoding:
        return to_container(src, encoding)
