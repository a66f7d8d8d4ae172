"""Inputs of a plan: tensors of a model, and statistics of a calibration, from wherever they are."""

from __future__ import annotations

from typing import Any, Protocol

from .._core.errors import InputError
from .._core.options import calibration, is_statistics_file, shown
from .recipe import COLUMNS_ONLY, STEPS_ONLY


class Factors(Protocol):
    """The part of a calibration's :class:`Statistics` that concerns steps."""

    def factors(self) -> dict[str, float]:
        """Steps of tensors by name, as multiples of those of others."""
        ...


def tensors_of(model: Any) -> dict[str, Any]:
    """The tensors of a model in memory: stacks of experts one by one, tied ones once."""
    from .._models.find import find

    stacks = {n for c in find(model, [], [], True)[0] if c.kind == "experts" for n in c.parameters}
    out: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        if name in stacks:
            out.update((f"{name}.{i}", parameter.detach()[i]) for i in range(parameter.shape[0]))
        else:
            out[name] = parameter.detach()
    return out


def is_given(calibrate: Any) -> bool:
    """Whether statistics are there already, in memory or in a file."""
    return callable(getattr(calibrate, "factors", None)) or is_statistics_file(calibrate)


def factors_of(calibrate: Any, model: Any = None, tokenizer: Any = None, **options: Any) -> Factors | None:
    """Statistics of a calibration, if there is one: those that are given, in a file, or to be collected from a model.

    :param options: further ones of :func:`wcodec.collect_statistics`.
    """
    calibrate = calibration(calibrate)
    if calibrate is None or callable(getattr(calibrate, "factors", None)):
        factors: Factors | None = calibrate
        return factors
    from .._calibrate.collect import statistics_of

    def measured() -> Any:
        if model is None:
            raise InputError(
                f"statistics must be there already, or a model that is measured, not {shown(calibrate)} "
                "(pass what collect_statistics found, a .safetensors file of it, or a text to measure on)",
                code="I625",
            )
        return model

    return statistics_of(measured, calibrate, tokenizer, **options)


def has_columns(statistics: Factors) -> bool:
    """Whether there are sizes of inputs, which factors of columns go by."""
    return bool(getattr(statistics, "columns", False))


def name_without_feedback(statistics: Factors) -> str:
    """The name of a recipe that uses of statistics what takes no error feedback."""
    return STEPS_ONLY if getattr(statistics, "gradients", True) else COLUMNS_ONLY


def has_feedback(statistics: Factors | None) -> bool:
    """Whether there are second moments, which error feedback needs."""
    return bool(getattr(statistics, "full", False))
