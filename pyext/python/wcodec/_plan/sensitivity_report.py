"""Which layers of a model suffer most from fewer bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, overload

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.report import TableReport, plain

if TYPE_CHECKING:
    from .._calibrate.statistics import Statistics
    from .._plot.sensitivity import SensitivityPlots

_HEADINGS = ("layer", "weights", "error", "share", "KL, estimated", "KL alone")
# Columns that a narrow terminal shows last.
_DISPENSABLE = ("weights", "error", "KL, estimated")


@dataclass(frozen=True)
class LayerSensitivity:
    """The quality loss that quantizing one tensor causes while all others are exact."""

    name: str
    weights: int
    error: float
    """Root mean square of the errors over that of the weights."""
    share: float | None
    """Part of the quality loss of all tensors, 0 to 1, by the Fisher information, and by what was measured where that
    is not known; ``None`` where neither is."""
    estimated_kl: float | None
    """``KL(original || quantized)`` by the Fisher information, nats per token."""
    kl: float | None
    """``KL(original || quantized)`` as measured; ``None`` where it was not."""
    kl_error: float | None
    """Standard error of that, by what windows of the text differ."""

    def _cells(self) -> tuple[str, ...]:
        share = "-" if self.share is None else f"{100 * self.share:.1f} %"
        give_or_take = "" if self.kl_error is None else f" ± {self.kl_error:.5f}"
        return (
            self.name.removesuffix(".weight"),
            f"{self.weights:,}",
            fmt.number(self.error, 3),
            share,
            fmt.figure(self.estimated_kl, 5),
            fmt.figure(self.kl, 5) + give_or_take,
        )


@dataclass(frozen=True, repr=False)
class SensitivityReport(TableReport, Sequence[LayerSensitivity]):
    """The result of :func:`wcodec.sensitivity`: a sequence of layers, those that suffer most first."""

    model: str
    bits: float
    """Bits per weight of the quantization that was tried."""
    rows: tuple[LayerSensitivity, ...]
    """Those that were measured by what was measured, then the others by what is estimated."""
    tensors: int
    """Number of tensors in all, rows or not."""
    kl: float | None
    """KL with all of them quantized, measured; ``None`` where nothing was."""
    source: str
    """Text that the model ran on: ``mixed`` for many kinds, ``self`` for what it wrote, ``text``, or ``token ids``."""
    tokens: int
    """Tokens that the Fisher information is of."""
    measured_tokens: int
    """Tokens that quality loss was measured on."""
    seconds: float
    statistics: Statistics = field(repr=False, compare=False)
    """Statistics that were collected, for ``wcodec.compress(..., calibrate=report.statistics)``."""

    def top(self, n: int = 10) -> SensitivityReport:
        """The ``n`` layers that suffer most, as a report."""
        return replace(self, rows=self.rows[: max(n, 0)])

    plot: ClassVar[Accessor[SensitivityPlots]] = Accessor(
        "wcodec._plot.sensitivity:SensitivityPlots",
        "Plots: ``report.plot()`` is ``report.plot.heatmap()``, and there is ``report.plot.top()``.",
    )

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> LayerSensitivity: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LayerSensitivity, ...]: ...
    def __getitem__(self, index: int | slice) -> LayerSensitivity | tuple[LayerSensitivity, ...]:
        return self.rows[index]

    def __iter__(self) -> Iterator[LayerSensitivity]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return plain(self, skip=("statistics",))

    def _table(self) -> fmt.Parts:
        return _HEADINGS, [row._cells() for row in self.rows], 1, _DISPENSABLE

    def _facts(self) -> list[tuple[str, str]]:
        shown = [row.share for row in self.rows if row.share is not None]
        facts = [
            ("model", self.model),
            ("bits/weight", f"{self.bits:g}, from weights alone"),
            ("rows", f"{len(self.rows):,} of {fmt.plural(self.tensors, 'tensor')}, {100 * sum(shown):.0f} % of damage"),
            ("estimated on", f"{fmt.plural(self.tokens, 'token')} ({self.source})"),
        ]
        if self.kl is not None:
            kl = fmt.figure(self.kl, 5)
            facts.append(("KL of all", f"{kl} nats/token, measured on {self.measured_tokens:,} tokens"))
        return [*facts, ("seconds", fmt.number(self.seconds, 1))]

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.top().table()}"
