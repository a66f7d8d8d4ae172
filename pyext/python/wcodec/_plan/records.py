"""Records of a plan: tensors, recipes that were tried, the quality that was measured, the statistics it goes by."""

from __future__ import annotations

from dataclasses import dataclass

from .._core import format as fmt


@dataclass(frozen=True)
class PlannedTensors:
    """Some tensors of a plan: those of a role, or a single one."""

    name: str
    """The tensor's name, or what all of the role have in common, with ``*`` for numbers."""
    tensors: int
    weights: int
    scheme: str
    bits: float | None
    """Stored bits per weight, the index not counted; ``None`` without weights."""
    stored_bytes: int
    share: float
    """Part of the bytes of the file, 0 to 1."""
    step: float | None
    """Over those of others: the geometric mean; ``None`` where nothing is quantized to a rate."""
    error: float | None
    """Root mean square of decoded - source over that of the source."""
    kl: float | None
    """The quality loss of these tensors alone, on a few windows, in nats per token; ``None`` where that was not
    measured."""

    def _cells(self) -> tuple[str, ...]:
        return (
            self.name,
            f"{self.tensors:,}",
            f"{self.weights:,}",
            self.scheme,
            fmt.number(self.step, 2),
            fmt.number(self.bits),
            fmt.size(self.stored_bytes),
            f"{100 * self.share:.1f} %",
            fmt.number(self.error, 4),
            fmt.figure(self.kl, 5),
        )


@dataclass(frozen=True)
class Candidate:
    """A recipe that was tried, and what it did; quality loss is ``None`` where it was not measured."""

    recipe: str
    bits_asked: float | None
    bits_stored: float
    """Bits per weight of the tensors that are encoded, header and index not counted."""
    file_bytes: int
    kl: float | None
    perplexity: float | None
    top1_agreement: float | None
    taken: bool

    def _cells(self) -> tuple[str, ...]:
        agreement = "-" if self.top1_agreement is None else f"{100 * self.top1_agreement:.2f} %"
        return (
            self.recipe,
            fmt.number(self.bits_asked),
            fmt.number(self.bits_stored),
            fmt.size(self.file_bytes),
            fmt.figure(self.kl, 5),
            fmt.figure(self.perplexity),
            agreement,
            "taken" if self.taken else "",
        )


@dataclass(frozen=True)
class MeasuredQuality:
    """The quality of the recipe that was taken, measured on the weights that its container decodes to."""

    kl: float
    """Mean of ``KL(original || compressed)``, nats per token."""
    kl_error: float
    """Standard error of that mean, by what windows of the text differ."""
    perplexity: float
    original_perplexity: float
    top1_agreement: float
    tokens: int
    windows: int
    window: int
    text_sha256: str
    """SHA-256 of the whole text's token ids, as 64-bit little-endian numbers."""
    dtype: str
    """The dtype that the model computed in."""


@dataclass(frozen=True)
class StatisticsFile:
    """The statistics that a saved plan goes by."""

    file: str
    sha256: str
    """Their :attr:`wcodec.Statistics.digest`."""
