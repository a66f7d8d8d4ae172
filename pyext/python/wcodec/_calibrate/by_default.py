"""The calibration that nobody has to ask for: by columns, where that takes seconds and people see the difference.

Commands and Python's functions decide by the same code. It tells by the logger :data:`LOGGER` what it does, and warns
where a model that should be calibrated cannot be. torch is imported only where a model is to run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import format as fmt
from .._core.errors import InputError
from .._core.foreign import is_causal
from .._core.option_table import DEFAULT_BITS, LEAST_BITS
from .._core.options import calibration, path_of
from .._core.paths import is_path

if TYPE_CHECKING:
    import torch

LOGGER = "wcodec.calibration"
"""The name of the logger that says what a calibration does."""
_log = logging.getLogger(LOGGER)
# Up to so many bits calibration makes a difference that people see.
_FEW_BITS = 5.0
# The part of free memory that weights may take for a calibration that nobody asked for.
_PART_OF_MEMORY = 0.6
# Bytes of a model that calibrates in seconds on a CPU.
_SMALL = 1 << 30
# A config.json is a few KB.
_LONGEST_CONFIG = 1 << 22
# Options that say by hand what a calibration would choose, or that are of one that was asked for.
_BY_HAND = ("step", "steps", "columns", "feedback", "calibration_tokens")
_TO_PLAN = ("budget", "quality")


@dataclass(frozen=True)
class ByDefault:
    """The value of ``calibrate`` where nothing was said: by columns, and by weights alone where the model does not
    run."""

    model: str
    bits: float

    def begin(self, size: int, place: torch.device, *, is_loaded: bool) -> None:
        """Says what comes.

        :param size: bytes of the model's weights.
        :param is_loaded: whether they are in memory.
        :raises InputError: if there is no memory for them.
        """
        from ..nn._weights.budget import host_memory

        available = host_memory()[0]
        on_cpu = place.type == "cpu"
        if on_cpu and not is_loaded and available is not None and size > _PART_OF_MEMORY * available:
            raise InputError(
                f"the model has {fmt.size(size)}, and {fmt.size(available)} of memory are free "
                "(--calibrate columns, or calibrate='columns', does it all the same)",
                code="I624",
            )
        time = "seconds" if not on_cpu or size < _SMALL else "a minute or more on a CPU"
        _log.info(
            "calibrating %s by columns: this takes %s (--no-calibrate, or calibrate=False, leaves it out; --calibrate, "
            "or calibrate=True, loses still less, and takes minutes)",
            self.model,
            time,
        )

    def failed(self, error: Exception) -> None:
        """Says why weights alone are encoded."""
        self._warn((str(error).strip() or type(error).__name__).splitlines()[0])

    def is_no_folder(self) -> None:
        """Says so of a source that is a file."""
        self._warn("that takes the folder of a whole model (name that)")

    def is_on_hub(self, folder: Path) -> None:
        """Says that a model on the Hub is not fetched for it.

        :param folder: the place of its config.
        """
        if _is_of_causal(folder):
            _log.info("%s", self._why("a model on the Hub is not fetched to run, but read tensor by tensor"))

    def _warn(self, why: str) -> None:
        _log.warning("%s", self._why(why))

    def _why(self, why: str) -> str:
        return f"not calibrated: {why}; {self.bits:g} bits lose much less with it"


def chosen(src: Any, options: Mapping[str, Any]) -> Any:
    """The value of ``calibrate`` for a source: as was asked for, or the default where nothing was said; ``None`` for
    the weights alone.

    :param options: all that :func:`wcodec.compress` was called with.
    """
    if options.get("calibrate") is not None:
        return calibration(options["calibrate"])
    # A plan that was made has its own statistics, or none.
    planned = any(options.get(name) is not None for name in _TO_PLAN)
    default = None if planned else _gain(options, path_of(src) if isinstance(src, str | os.PathLike) else "")
    if options.get("plan") is not None or (default is None and not planned):
        return None
    if not isinstance(src, str | os.PathLike):
        if isinstance(src, Mapping):
            _log.info("not calibrated: a mapping of tensors is no model that could run")
        return None
    if default is not None and _is_on_hub(src):
        return default
    place = Path(path_of(src), options.get("subfolder") or "")
    if not _is_of_causal(place if place.is_dir() else place.parent) or _is_told(planned, options) or default is None:
        return None
    if not place.is_dir():
        default.is_no_folder()
        return None
    return default


def chosen_in_memory(model: Any, options: Mapping[str, Any]) -> Any:
    """The value of ``calibrate`` for a model in memory, likewise: the default is for one that surely runs as it is."""
    if options.get("calibrate") is not None:
        return calibration(options["calibrate"])
    default = _gain(options, f"this {type(model).__name__}")
    if default is None or not _runs_as_it_is(model) or _is_told(False, options):
        return None
    return default


def applies(src: Any, options: Mapping[str, Any]) -> bool:
    """Whether the default is a calibration of this source, if its model runs here."""
    if any(options.get(name) is not None for name in ("calibrate", "plan", *_TO_PLAN)):
        return False
    is_folder = isinstance(src, str | os.PathLike) and os.path.isdir(src)
    return is_folder and _gain(options, "") is not None and _why_not(options) is None and _is_of_causal(Path(src))


def _gain(options: Mapping[str, Any], model: str) -> ByDefault | None:
    """The default for options that ask for few bits, and choose nothing by hand."""
    if any(options.get(name) is not None for name in _BY_HAND) or options.get("scheme") not in (None, "rate"):
        return None
    bits = options.get("bits")
    if bits is None:
        bits = DEFAULT_BITS if options.get("scheme") == "rate" or options.get("trellis") is not None else math.inf
    try:
        number = float(bits)
    except (TypeError, ValueError):
        # Refused where weights are encoded.
        return None
    return ByDefault(model, number) if LEAST_BITS <= number <= _FEW_BITS else None


def _is_told(planned: bool, options: Mapping[str, Any]) -> bool:
    """Whether it is not for a model, for a reason that is told then."""
    why = "plans are only where it is asked for (--calibrate, or calibrate=True)" if planned else _why_not(options)
    if why is not None:
        _log.info("not calibrated: %s", why)
    return why is not None


def _why_not(options: Mapping[str, Any]) -> str | None:
    """The reason for which options do not go with a calibration."""
    rules = options.get("rules")
    if isinstance(rules, Mapping) and any(map(_has_bits, rules.values())):
        return "rules have bits of their own, and calibration one number for all tensors"
    return "each tensor is to have the same bits" if options.get("bits_per_tensor") else None


def _has_bits(rule: Any) -> bool:
    if not isinstance(rule, Mapping):
        return bool(rule == "rate")
    if rule.get("scheme") is not None:
        return bool(rule["scheme"] == "rate")
    return rule.get("bits") is not None or rule.get("trellis") is not None


def _is_on_hub(src: str | os.PathLike[str]) -> bool:
    return isinstance(src, str) and not os.path.lexists(src) and not is_path(src)


def _is_of_causal(folder: Path) -> bool:
    """Whether a folder's config names a causal language model, without importing what could say for sure."""
    place = folder / "config.json"
    try:
        if not place.is_file() or place.stat().st_size > _LONGEST_CONFIG:
            return False
        config = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(config, dict) or config.get("is_encoder_decoder") is True:
        # Its decoder alone reads no text.
        return False
    names = config.get("architectures")
    return isinstance(names, list) and any(map(is_causal, names))


def _runs_as_it_is(model: Any) -> bool:
    """Whether a model is a causal language model of transformers, on one device, as it was loaded: not compressed, not
    quantized, without adapters, and not in training."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return False
    if not type(model).__module__.startswith("transformers.") or not is_causal(type(model).__name__):
        return False
    if getattr(model.config, "is_encoder_decoder", False):
        return False
    from .._models.dequantized import is_quantized
    from .._models.parallel import sizes_of
    from ..nn import CompressedLayer

    if getattr(model, "hf_quantizer", None) is not None or is_quantized(model.config):
        return False
    if getattr(model, "_hf_peft_config_loaded", False) or any(m.training for m in model.modules()):
        return False
    if (getattr(model, "_tp_size", None) or 1) > 1 or sizes_of(model.config):
        return False
    if any(hasattr(m, "_hf_hook") or m._compiled_call_impl is not None for m in model.modules()):
        return False
    if any(isinstance(m, CompressedLayer) or m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        # Hooks of others would see text that is not for them.
        return False
    import torch

    parameters = list(model.parameters())
    places = {p.device for p in parameters}
    plain = all(type(p) is torch.nn.Parameter and p.is_floating_point() for p in parameters)
    return plain and len(places) == 1 and torch.device("meta") not in places
