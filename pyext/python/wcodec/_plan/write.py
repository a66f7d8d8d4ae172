"""Carrying a plan out: the source and the options that :func:`wcodec.compress` then has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .._core.errors import InputError
from .._core.option_table import OPTIONS
from .._core.options import path_of, shown
from .._core.paths import refuse_existing
from .._core.progress import ProgressCallback
from .._models import running
from .._models.original import is_model
from .._models.running import StepCallback
from . import loading
from .file import check_source, statistics_for
from .make import plan
from .plan_report import PlanReport

# Options that may stand beside a plan: they change nothing of how tensors are encoded.
_BESIDE_A_PLAN = ("plan", "overwrite", "threads", "metadata", "device", "trust_remote_code", "progress", "calibrate")


def planned(
    src: Any, dst: str | os.PathLike[str], progress: bool | ProgressCallback, options: dict[str, Any]
) -> tuple[Any, dict[str, Any], PlanReport]:
    """Plans by a budget or a quality: the source and the options to encode it with, and the plan.

    :param dst: the file that is to be written.
    """
    target = Path(path_of(dst))
    overwrite = bool(options.get("overwrite"))
    # Planning takes long: better now than at its end.
    refuse_existing(target, overwrite)
    known = {key: value for key, value in options.items() if key != "overwrite"}
    known["device"] = _place(src, known)
    tell: bool | StepCallback = progress if isinstance(progress, bool) else _as_steps(progress)
    report = plan(src, **known, progress=tell)
    return tensors_of(src), {**report.options(), "overwrite": overwrite, "progress": progress}, report


def _place(src: Any, options: dict[str, Any]) -> Any:
    """The device of a plan: as asked for, or a GPU where there is one that has room. Without a model that runs,
    torch need not be there."""
    device = options.get("device")
    runs = options.get("text") is not None or options.get("calibrate") is not None
    if not runs:
        return device if device not in (None, "auto") else "cpu"
    if device is None and is_model(src):
        return running.device_of(src)
    from .._calibrate.amount import bytes_of, chosen_place

    return chosen_place(device, bytes_of(Path(path_of(src))) if isinstance(src, str | os.PathLike) else 0)


def as_planned(
    src: Any, plan: PlanReport | str | os.PathLike[str], options: dict[str, Any]
) -> tuple[Any, dict[str, Any], PlanReport]:
    """The source and the options to encode it with, by a plan that was made before.

    :param plan: the plan, or the file that it was saved in.
    :param options: all that :func:`wcodec.compress` was called with.
    :raises InputError: if the plan is of another model, or an option says something else than it does.
    """
    if not isinstance(plan, PlanReport | str | os.PathLike):
        raise InputError(
            f"plan must be a PlanReport or the file that one was saved in, not {shown(plan)} (see wcodec.plan)",
            code="I635",
        )
    for name, value in options.items():
        default = OPTIONS[name].default if name in OPTIONS else None
        if name not in _BESIDE_A_PLAN and _says_something(value, default):
            raise InputError(
                f"{name}={shown(value)} does not go with a plan, which says how tensors are encoded (leave it out, or "
                "plan again with it)",
                code="I307",
            )
    report = plan if isinstance(plan, PlanReport) else PlanReport.load(plan)
    check_source(report, src)
    statistics = statistics_for(report, options.get("calibrate"))
    given = {name: options.get(name) for name in ("overwrite", "threads", "trust_remote_code", "progress")}
    carried = {**report.options(), **{k: v for k, v in given.items() if v is not None}}
    carried["metadata"] = {**carried["metadata"], **(options.get("metadata") or {})}
    if statistics is not None:
        carried.update(calibrate=statistics, device=options.get("device") or carried.get("device"))
    return tensors_of(src), carried, report


def _says_something(value: Any, default: Any) -> bool:
    """Whether an option was given: no patterns and no rules are as good as none."""
    if value is default or isinstance(value, list | tuple | dict) and not value:
        return False
    # Equality of arrays and the like is no single answer.
    return bool(value != default) if isinstance(value, str | int | float) else True


def tensors_of(src: Any) -> Any:
    """A source for :func:`wcodec.compress`, of one that may be a model."""
    return loading.tensors_of(src) if is_model(src) else src


def _as_steps(progress: ProgressCallback) -> StepCallback:
    """A callback of encoding as one of measuring."""
    return lambda done, total: progress("measuring", done, total)
