"""What compression costs in quality: damage against bits, and plans that meet a size or a bound of damage."""

from ._frontier import frontier
from ._frontier_report import FrontierReport, FrontierRow
from ._recipe import Recipe

__all__ = ["FrontierReport", "FrontierRow", "Recipe", "frontier"]
