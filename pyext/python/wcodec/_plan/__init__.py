"""The cost of compression in quality: rate-distortion curves, and plans that meet a size or a bound of quality loss."""

from .frontier import frontier
from .frontier_report import FrontierReport, FrontierRow
from .make import plan
from .plan_report import PlanReport
from .recipe import Recipe
from .records import Candidate, MeasuredQuality, PlannedTensors
from .sensitivity import sensitivity
from .sensitivity_report import LayerSensitivity, SensitivityReport

__all__ = [
    "Candidate",
    "FrontierReport",
    "FrontierRow",
    "LayerSensitivity",
    "MeasuredQuality",
    "PlanReport",
    "PlannedTensors",
    "Recipe",
    "SensitivityReport",
    "frontier",
    "plan",
    "sensitivity",
]
