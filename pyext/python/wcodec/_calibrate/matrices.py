"""The matrices of a model, each with its steps and with what is known of its input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._file.sources import torch_tensor
from .factor import Feedback
from .statistics import Statistics, feedback_for


@dataclass(frozen=True)
class Matrix:
    """A matrix to quantize, with outputs as rows, and its steps up to the constant that all matrices share."""

    name: str
    weight: torch.Tensor
    steps: torch.Tensor
    feedback: Feedback | None
    """``None`` where nothing is known of its input."""


class Matrices:
    """The matrices of a model, with what statistics say of each, one at a time.

    :param weights: arrays or tensors as a checkpoint has them, by name; read anew each time they are needed.
    """

    def __init__(
        self, weights: Mapping[str, Any], statistics: Statistics, *, trellis: bool, device: torch.device
    ) -> None:
        self._weights, self._statistics, self._trellis, self._device = weights, statistics, trellis, device
        self._factors = statistics.factors()

    def __getitem__(self, name: str) -> Matrix:
        weight = torch_tensor(name, self._weights[name]).to(self._device)
        unit = self._statistics.units.get(name)
        if unit is not None and unit.transposed:
            weight = weight.t()
        rms = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32) / math.sqrt(max(weight.shape[1], 1))
        feedback = feedback_for(
            self._statistics, name, trellis=self._trellis, device=self._device, shape=tuple(weight.shape)
        )
        return Matrix(name, weight, rms * self._factors.get(name, 1.0), feedback)
