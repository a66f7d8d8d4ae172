"""Recipes: how the weights of a model are encoded, as a small object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._core.option_table import PURPOSES
from .._core.options import coder_for

WEIGHTS_ALONE = "weights alone"
COLUMNS_ONLY = "columns"
STEPS_ONLY = "Fisher steps"
FEEDBACK = "error feedback"


@dataclass(frozen=True)
class Recipe:
    """A way to encode the weights of a model: options of :func:`wcodec.compress` under a name.

    >>> from wcodec import Recipe
    >>> Recipe("weights alone", bits=3.5, trellis=True).options()
    {'coder': 'huffman', 'bits': 3.5, 'trellis': True}
    """

    name: str
    scheme: str | None = None
    bits: float | None = None
    trellis: bool | None = None
    coder: str = coder_for(PURPOSES[0])
    steps: Mapping[str, float] | None = field(default=None, repr=False)
    """Steps of tensors by name, as multiples of those of others."""
    statistics: Any = field(default=None, repr=False)
    """Statistics of a calibration, for error feedback."""
    feedback: bool | None = None
    """``False`` for no more of the statistics than factors of columns, and steps if they say something of these."""
    rules: Mapping[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of :func:`wcodec.compress`; those that say nothing are left out."""
        options = {
            "scheme": self.scheme,
            "coder": self.coder,
            "bits": self.bits,
            "trellis": self.trellis,
            "steps": None if self.steps is None else dict(self.steps),
            "calibrate": self.statistics,
            "feedback": self.feedback,
            "rules": None if self.rules is None else dict(self.rules),
        }
        return {key: value for key, value in options.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: of steps and statistics only whether there are any."""
        known = {key: value for key, value in self.options().items() if key != "calibrate"}
        return {
            **known,
            "name": self.name,
            "steps": self.steps is not None,
            "statistics": self.statistics is not None,
        }
