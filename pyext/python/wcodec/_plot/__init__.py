"""Plots of containers, their entries and reports, with matplotlib: ``container.plot()``, ``report.plot()``.

A call draws the default picture, ``x.plot.kind()`` another, and ``x.plot`` shows which there are.

Every function takes ``ax``, the axes to draw into, makes new ones if it is left out, and returns them. Text, ticks and
background are matplotlib's: they follow its style, such as ``plt.style.use("dark_background")``. The colours of the
data are of middle lightness, and read well on light and on dark.
"""

from .container import ContainerPlots
from .entry import EntryPlots
from .frontier import FrontierPlots
from .measure import BenchPlots, EvalPlots, KvCachePlots, MemoryPlots
from .replace import ReplacePlots
from .reports import (
    ComparisonPlots,
    CompressionPlots,
    DoctorPlots,
    PlanPlots,
    RanksPlots,
    StatisticsPlots,
    StatisticsReportPlots,
    VerifyPlots,
)
from .sensitivity import SensitivityPlots

__all__ = [
    "BenchPlots",
    "ComparisonPlots",
    "CompressionPlots",
    "ContainerPlots",
    "DoctorPlots",
    "EntryPlots",
    "EvalPlots",
    "FrontierPlots",
    "KvCachePlots",
    "MemoryPlots",
    "PlanPlots",
    "RanksPlots",
    "ReplacePlots",
    "SensitivityPlots",
    "StatisticsPlots",
    "StatisticsReportPlots",
    "VerifyPlots",
]
