"""Carrying a plan out: what :func:`wcodec.compress` does with a budget or a quality."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import _api
from .._errors import OutputExistsError
from .._measure import _models
from .._measure._models import StepCallback
from .._models._original import is_model
from .._options import path_of
from .._progress import ProgressCallback
from .._reports import CompressionReport
from . import _loading
from ._make import plan
from ._plan_report import PlanReport


def compress_by_plan(
    src: Any,
    dst: str | os.PathLike[str],
    progress: bool | ProgressCallback,
    options: dict[str, Any],
    planning: dict[str, Any] | None = None,
) -> CompressionReport:
    """Plans, and encodes what was planned.

    :param planning: further options of :func:`wcodec.plan`.
    """
    target = Path(path_of(dst))
    overwrite = bool(options.get("overwrite"))
    if not overwrite and os.path.lexists(target):
        # Planning takes long: better now than at its end.
        raise OutputExistsError(f"{target} exists (pass overwrite=True, or --overwrite, to replace it)", file=target)
    known = {key: value for key, value in options.items() if key != "overwrite"}
    known["device"] = _place(src, known)
    tell: bool | StepCallback = progress if isinstance(progress, bool) else _as_steps(progress)
    found = plan(src, **known, **(planning or {}), progress=tell)
    return write(src, target, found, overwrite=overwrite, progress=progress)


def _place(src: Any, options: dict[str, Any]) -> Any:
    """Where a plan measures: as asked for, or on a GPU where there is one that has room. Without a model that runs,
    torch need not be there."""
    device = options.get("device")
    runs = options.get("text") is not None or options.get("calibrate") is not None
    if not runs:
        return device if device not in (None, "auto") else "cpu"
    if device is None and is_model(src):
        return _models.device_of(src)
    from .._calibrate._amount import bytes_of, chosen_place

    return chosen_place(device, bytes_of(Path(path_of(src))) if isinstance(src, str | os.PathLike) else 0)


def write(
    src: Any, dst: Path, plan: PlanReport, *, overwrite: bool = False, progress: bool | ProgressCallback = True
) -> CompressionReport:
    """Encodes what was planned. The report has the plan."""
    source = _loading.tensors_of(src) if is_model(src) else src
    report = _api.compress(source, dst, **plan.options(), overwrite=overwrite, progress=progress)
    return replace(report, plan=plan)


def _as_steps(progress: ProgressCallback) -> StepCallback:
    """A callback of encoding as one of measuring."""
    return lambda done, total: progress("measuring", done, total)
