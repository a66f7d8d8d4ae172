"""What compression costs in quality: damage against bits, and plans that meet a size or a bound of damage."""

from ._frontier import frontier
from ._frontier_report import FrontierReport, FrontierRow
from ._make import plan
from ._plan_report import Candidate, MeasuredQuality, PlannedTensors, PlanReport
from ._recipe import Recipe
from ._sensitivity import sensitivity
from ._sensitivity_report import LayerSensitivity, SensitivityReport

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
