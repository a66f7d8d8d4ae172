"""Encoding as ``calibrate`` says: by statistics of the model, or by the weights alone where it says nothing. torch is
imported for the first only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._core.errors import UnsupportedError
from .._core.options import COLUMNS, calibration
from .._core.progress import ProgressCallback
from .._core.reports import CompressionReport
from .._file.container import Container
from .._file.encode import OF_CALIBRATION, by_weights, to_container
from .._file.sources import Source
from .._file.write import to_bytes
from .._gpu import torch as _torch
from .._models import running
from .by_default import ByDefault

if TYPE_CHECKING:
    from .._file.encode import Encoding


@contextmanager
def encoding_of(
    src: Source, options: Mapping[str, Any], progress: bool | ProgressCallback = False
) -> Iterator[Encoding]:
    """The encoding of a source.

    :param options: as for :func:`wcodec.compress`, those of calibration among them.
    """
    calibrate = calibration(options.get("calibrate"))
    default = calibrate if isinstance(calibrate, ByDefault) else None
    if calibrate is None or (default is not None and not _has_what_models_need(default)):
        with by_weights(options, progress) as encoding:
            yield encoding
        return
    _torch.require()
    from .encode import prepared

    given = {key: options[key] for key in OF_CALIBRATION if key in options and key != "calibrate"}
    options = {key: value for key, value in options.items() if key not in OF_CALIBRATION}
    tokens = given.pop("calibration_tokens", None)
    if options.get("scheme") is None and options.get("bits") is None and options.get("trellis") is None:
        options = {**options, "scheme": "rate"}
    wanted = calibrate if default is None else COLUMNS
    with prepared(src, wanted, options, tokens=tokens, default=default, progress=progress, **given) as encoding:
        yield encoding


def _has_what_models_need(default: ByDefault) -> bool:
    try:
        running.require_transformers()
    except UnsupportedError as error:
        default.failed(error)
        return False
    return True


def compress_to_bytes(
    src: Source, options: Mapping[str, Any], progress: bool | ProgressCallback = False
) -> tuple[bytes, CompressionReport]:
    """The bytes of a file, and the report."""
    with encoding_of(src, options, progress) as encoding:
        return to_bytes(src, encoding)


def compress_in_memory(src: Source, *, progress: bool | ProgressCallback = False, **options: Any) -> Container:
    """Encodes for use at once."""
    with encoding_of(src, options, progress) as encoding:
        return to_container(src, encoding)
