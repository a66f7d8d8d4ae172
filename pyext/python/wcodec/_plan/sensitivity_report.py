"""Which layers of a model suffer most from fewer bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, overload

from .._core import format as fmt
from .._core.accessor import Accessor
from .._measure.reports import _shown

if TYPE_CHECKING:
    from .._calibrate.statistics import Statistics
    from .._plot.sensitivity import SensitivityPlots

_HEADINGS = ("layer", "weights", "error", "share", "KL, estimated", "KL alone")
# Columns that a narrow terminal shows last.
_DISPENSABLE = ("weights", "error", "KL, estimated")


@dataclass(frozen=True)
class LayerSensitivity:
    """The damage that quantizing one tensor does to the model while all others are exact."""

    name: str
    weights: int
    error: float
    """Root mean square of the errors over that of the weights."""
    share: float | None
    """Part of the damage of all tensors, 0 to 1, by the Fisher information, and of an embedding, of which that says
    nothing, by what was measured; ``None`` where neither is known."""
    estimated_kl: float | None
    """``KL(original || quantized)`` by the Fisher information, nats per token."""
    kl: float | None
    """``KL(original || quantized)`` as measured; ``None`` where it was not."""
    kl_error: float | None
    """Standard error of that, by what windows of the text differ."""

    def _cells(self) -> tuple[str, ...]:
        share = "-" if self.share is None else f"{100 * self.share:.1f} %"
        measured = _shown(self.kl, 5) if self.kl_error is None else f"{_shown(self.kl, 5)} ± {self.kl_error:.5f}"
        return (
            self.name.removesuffix(".weight"),
            f"{self.weights:,}",
            fmt.number(self.error, 3),
            share,
            _shown(self.estimated_kl, 5),
            measured,
        )


@dataclass(frozen=True, repr=False)
class SensitivityReport(Sequence[LayerSensitivity]):
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
    """Text that the model ran on: ``self`` for text that it wrote, ``text``, or ``token ids``."""
    tokens: int
    """Tokens that the Fisher information is of."""
    measured_tokens: int
    """Tokens that damage was measured on."""
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

    def table(self) -> str:
        """The rows as an aligned table of text."""
        return fmt.text_table(_HEADINGS, [row._cells() for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        record = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "statistics"}
        return {**record, "rows": [asdict(row) for row in self.rows]}

    def _parts(self) -> fmt.Parts:
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
            facts.append(("KL of all", f"{_shown(self.kl, 5)} nats/token, measured on {self.measured_tokens:,} tokens"))
        return [*facts, ("seconds", fmt.number(self.seconds, 1))]

    def __repr__(self) -> str:
        return f"SensitivityReport({fmt.facts(self._facts())})\n{self.top().table()}"

    def _repr_html_(self) -> str:
        table = fmt.html_table(_HEADINGS, [row._cells() for row in self.rows])
        return fmt.html_block("SensitivityReport", self._facts(), table)
