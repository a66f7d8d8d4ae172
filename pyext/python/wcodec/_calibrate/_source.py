"""Where statistics come from: they are given, in a file, or a model is to be measured for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._options import calibration, is_statistics_file
from ._collect import collect_statistics
from ._statistics import Statistics


def statistics_of(model: Callable[[], Any], calibrate: Any, tokenizer: Any = None, **options: Any) -> Statistics:
    """Statistics that are given, saved in a file, or to be collected: by what the model writes (``"self"``), on a text
    or on token ids.

    :param model: a function that gives the model, which is called only where statistics are to be collected.
    :param options: further ones of :func:`wcodec.collect_statistics`.
    """
    calibrate = calibration(calibrate)
    if isinstance(calibrate, Statistics):
        return calibrate
    if is_statistics_file(calibrate):
        return Statistics.load(calibrate)
    return collect_statistics(model(), tokenizer, calibrate, **options)


def is_given(calibrate: Any) -> bool:
    """Whether statistics are there already, in memory or in a file."""
    return isinstance(calibrate, Statistics) or is_statistics_file(calibrate)
