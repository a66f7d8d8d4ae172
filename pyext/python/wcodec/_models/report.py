"""Reports of which layers were replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.report import Report
from .._native import safe

if TYPE_CHECKING:
    from .._plot.replace import ReplacePlots


@dataclass(frozen=True)
class ReplacedLayer:
    """One layer whose weight is compressed now."""

    name: str
    """The module's name in the model."""
    kind: str
    """The class that took its place."""
    dtype: str
    """The dtype that it computes in, as torch writes it."""
    shape: tuple[int, ...]
    scheme: str
    coder: str
    original_bytes: int
    stored_bytes: int
    tied_to: str | None
    """The layer that shares its weight and counts its bytes."""


@dataclass(frozen=True)
class SkippedLayer:
    """One layer that stayed as it was."""

    name: str
    why: str
    bytes: int
    by_choice: bool = False
    """Whether ``include``, ``exclude`` or ``embeddings`` leave it out."""
    vectors: bool = False
    """Whether it has no matrix at all: norms and the like, which stay in every model."""


@dataclass(frozen=True, repr=False)
class ReplaceReport(Report):
    """The result of :func:`wcodec.compress_`. Bytes are those of parameters and compressed weights, tied ones once."""

    replaced: tuple[ReplacedLayer, ...]
    skipped: tuple[SkippedLayer, ...]
    """All other modules that have parameters: those with matrices first, then those without (``vectors``)."""
    bytes_before: int
    """Bytes of all the model's parameters before."""
    bytes_after: int
    """Bytes of the compressed weights and of the parameters that are left."""
    seconds: float

    @property
    def left_bytes(self) -> int:
        """Bytes of the parameters that stayed as they were: those of ``skipped``, and biases of replaced layers."""
        return self.bytes_after - self.stored_bytes

    @property
    def original_bytes(self) -> int:
        """Bytes of the replaced weights before."""
        return sum(layer.original_bytes for layer in self.replaced if layer.tied_to is None)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the replaced weights now."""
        return sum(layer.stored_bytes for layer in self.replaced if layer.tied_to is None)

    @property
    def ratio(self) -> float | None:
        """Original bytes per stored byte of the replaced weights (larger is better)."""
        return fmt.ratio(self.original_bytes, self.stored_bytes)

    @property
    def bytes_by_dtype(self) -> dict[str, tuple[int, int]]:
        """Bytes of the replaced weights before and now, by dtype."""
        out: dict[str, tuple[int, int]] = {}
        for layer in self.replaced:
            if layer.tied_to is None:
                before, now = out.get(layer.dtype, (0, 0))
                out[layer.dtype] = (before + layer.original_bytes, now + layer.stored_bytes)
        return out

    plot: ClassVar[Accessor[ReplacePlots]] = Accessor(
        "wcodec._plot.replace:ReplacePlots",
        "Plots: ``report.plot()``, the same as ``report.plot.memory()``.",
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        by_dtype = {k: list(v) for k, v in self.bytes_by_dtype.items()}
        return {**asdict(self), "ratio": self.ratio, "left_bytes": self.left_bytes, "bytes_by_dtype": by_dtype}

    def _facts(self) -> list[tuple[str, str]]:
        kinds = Counter(layer.kind for layer in self.replaced)
        facts = [
            ("replaced", ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())),
            ("skipped", f"{sum(not s.vectors for s in self.skipped):,}"),
            (
                "left",
                f"{fmt.size(self.left_bytes)} ({fmt.number(100 * self.left_bytes / max(self.bytes_before, 1))} %)",
            ),
            ("model", f"{fmt.size(self.bytes_before)} -> {fmt.size(self.bytes_after)}"),
        ]
        facts += [(k, f"{fmt.size(a)} -> {fmt.size(b)}") for k, (a, b) in self.bytes_by_dtype.items()]
        return [*facts, ("ratio", fmt.number(self.ratio)), ("seconds", fmt.number(self.seconds, 2))]

    def __repr__(self) -> str:
        lines = [safe(f"  skipped {s.name} ({fmt.size(s.bytes)}): {s.why}") for s in self.skipped if not s.vectors]
        if vectors := [s.bytes for s in self.skipped if s.vectors]:
            lines.append(f"  {fmt.plural(len(vectors), 'module')} without a matrix ({fmt.size(sum(vectors))})")
        return "\n".join([super().__repr__(), *lines])

    def _tables(self) -> list[fmt.Parts]:
        rows = [
            (r.name, r.kind, fmt.shape(r.shape), r.dtype, f"{r.scheme}, {r.coder}",
             fmt.size(r.original_bytes), "tied to " + r.tied_to if r.tied_to else fmt.size(r.stored_bytes))
            for r in self.replaced
        ]  # fmt: skip
        rows += [(s.name, "skipped", "", "", s.why, fmt.size(s.bytes), "") for s in self.skipped]
        return [(("layer", "kind", "shape", "dtype", "how", "original", "stored"), rows, 5, ())]

    def _summary(self) -> str:
        return fmt.plural(len(self.replaced) + len(self.skipped), "layer")
