"""The report of rate-distortion curves: a plain record that prints well, and that plots itself."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.report import TableReport

if TYPE_CHECKING:
    from .._plot.frontier import FrontierPlots

_HEADINGS = (
    "recipe", "coder", "bits asked", "bits stored", "index", "KL, nats/token", "of NF4's", "perplexity",
    "same top token", "encode s",
)  # fmt: skip
# Columns that a narrow terminal leaves out, the most dispensable first.
_DISPENSABLE = ("encode s", "index", "of NF4's", "same top token", "bits asked", "coder")


@dataclass(frozen=True)
class FrontierRow:
    """One recipe at one number of bits."""

    recipe: str
    """``weights alone``, ``Fisher steps``, ``error feedback``, ``int8``, or the name of a reference."""
    kind: str
    """``rate``, ``int8`` or ``reference``."""
    trellis: bool
    coder: str | None
    bits_asked: float | None
    bits_stored: float
    """Bits per weight of everything but header and index: symbols, signs, scales, tables, offsets, padding."""
    bits_index: float
    """Bits per weight of the index."""
    kl: float
    """Mean of ``KL(original || quantized)``, nats per token."""
    kl_error: float
    """Standard error of this mean, by what windows of the text differ; recipes are compared on the same windows."""
    kl_relative: float | None
    """``kl`` as a multiple of that of NF4."""
    perplexity: float
    top1_agreement: float
    """Fraction of tokens at which both find the same token most likely, 0 to 1."""
    encode_seconds: float

    @property
    def label(self) -> str:
        """The recipe, and whether levels are chosen by a trellis."""
        return f"{self.recipe}, trellis" if self.trellis else self.recipe

    def _cells(self) -> tuple[str, ...]:
        return (
            self.label,
            self.coder or "-",
            fmt.number(self.bits_asked, 2),
            fmt.number(self.bits_stored),
            fmt.number(self.bits_index),
            fmt.figure(self.kl, 5),
            fmt.number(self.kl_relative),
            fmt.figure(self.perplexity),
            f"{100 * self.top1_agreement:.2f} %",
            fmt.number(self.encode_seconds, 2),
        )


@dataclass(frozen=True, repr=False)
class FrontierReport(TableReport):
    """The result of :func:`wcodec.frontier`."""

    model: str
    tensors: int
    """Matrices that were quantized."""
    weights: int
    """Weights of these."""
    windows: int
    window: int
    """Tokens of each window."""
    text_hash: str
    """SHA-256 of the text's token ids, as 64-bit little-endian numbers."""
    baseline_perplexity: float
    dtype: str
    """The dtype that the model computed in."""
    device: str
    rows: tuple[FrontierRow, ...]

    plot: ClassVar[Accessor[FrontierPlots]] = Accessor(
        "wcodec._plot.frontier:FrontierPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.kl()``.",
    )

    def row(
        self, recipe: str, bits: float | None = None, *, trellis: bool | None = None, coder: str | None = None
    ) -> FrontierRow:
        """The first row with this recipe and, where they are given, these bits asked for, with or without trellis, and
        this coder; a ``KeyError`` if there is none."""
        for row in self.rows:
            if (
                row.recipe == recipe
                and (bits is None or row.bits_asked is not None and math.isclose(row.bits_asked, bits))
                and trellis in (None, row.trellis)
                and coder in (None, row.coder)
            ):
                return row
        raise KeyError(f"{recipe} at {bits} bits")

    def _table(self) -> fmt.Parts:
        return _HEADINGS, [row._cells() for row in self.rows], 2, _DISPENSABLE

    def csv(self) -> str:
        """The rows as CSV, with a heading."""
        out = io.StringIO()
        writer = csv.DictWriter(out, [f.name for f in fields(FrontierRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, self.rows))
        return out.getvalue()

    def _summary(self) -> str:
        return fmt.plural(len(self.rows), "row")

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("model", self.model),
            ("quantized", f"{fmt.plural(self.tensors, 'tensor')} of {self.weights:,} weights"),
            ("text", f"{self.windows} windows of {self.window} tokens, SHA-256 {self.text_hash[:16]}"),
            ("perplexity", fmt.figure(self.baseline_perplexity)),
            ("computed in", f"{self.dtype} on {self.device}"),
        ]

    def __repr__(self) -> str:
        best = [
            (f"{row.label} at {row.bits_stored:.2f} bits", f"{fmt.figure(row.kl, 5)} nats/token")
            for row in self.rows
            if row.coder in (None, "rans")
        ]
        return f"FrontierReport({fmt.facts([*self._facts(), *best])})"
