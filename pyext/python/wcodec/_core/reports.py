"""Reports on files and on work that was done: plain records that print well.

Loading a model needs none of them, so they stand apart from :mod:`wcodec._core.tensor_info`, which it needs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from . import format as fmt
from .accessor import Accessor
from .metadata import lines as plan_facts
from .report import Report, plain
from .tensor_info import TensorInfo, error_of, tensor_table_html

if TYPE_CHECKING:
    from .._native import Comparison as NativeComparison
    from .._native import Facts
    from .._plan import PlanReport
    from .._plot.reports import ComparisonPlots, CompressionPlots, VerifyPlots


@dataclass(frozen=True)
class RateSummary:
    """The space that the tensors of scheme ``rate`` take in a file."""

    tensors: int
    weights: int
    stored_bytes: int
    """Symbols, signs, scales, tables and offsets: everything but the index."""
    bits_per_weight: float
    error: float | None
    """Root mean square of decoded - source over that of the source: the mean square over tensors, each as it counts;
    ``None`` where it is not known of all of them."""

    @classmethod
    def _of(cls, tensors: Iterable[TensorInfo]) -> RateSummary | None:
        rate_tensors = [t for t in tensors if t.scheme == "rate"]
        if not rate_tensors:
            return None
        weights, stored = sum(t.elements for t in rate_tensors), sum(t.stored_bytes for t in rate_tensors)
        error = None if any(t.error is None for t in rate_tensors) else error_of(rate_tensors)
        return cls(len(rate_tensors), weights, stored, 8 * stored / weights, error)

    def __str__(self) -> str:
        bits = fmt.number(self.bits_per_weight, 3)
        return f"{bits} bits/weight over {fmt.plural(self.tensors, 'tensor')} of {fmt.plural(self.weights, 'weight')}"


@dataclass(frozen=True, repr=False)
class CompressionReport(Report):
    """The result of :func:`wcodec.compress`.

    ``original_bytes`` are the tensors' bytes in the source (tied ones once), ``stored_bytes`` the length of the file.
    """

    path: str | None
    tensors: tuple[TensorInfo, ...]
    aliases: dict[str, str]
    original_bytes: int
    stored_bytes: int
    seconds: float
    plan: PlanReport | None = None
    """The plan by which bits were chosen, if a budget or a quality was asked for."""

    @property
    def elements(self) -> int:
        """Number of weights."""
        return sum(t.elements for t in self.tensors)

    @property
    def ratio(self) -> float | None:
        """Original bytes per stored byte (larger is better)."""
        return fmt.ratio(self.original_bytes, self.stored_bytes)

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits per weight, the whole file counted."""
        return fmt.bits(self.stored_bytes, self.elements)

    @property
    def rate(self) -> RateSummary | None:
        """The space that tensors of scheme ``rate`` take, those that count towards the bits that were asked for;
        ``None`` if there are none."""
        return RateSummary._of(self.tensors)

    plot: ClassVar[Accessor[CompressionPlots]] = Accessor(
        "wcodec._plot.reports:CompressionPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.heatmap()`` and ``.sizes()``.",
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        rate = self.rate
        return {
            "path": self.path,
            "original_bytes": self.original_bytes,
            "stored_bytes": self.stored_bytes,
            "ratio": self.ratio,
            "bits_per_weight": self.bits_per_weight,
            "rate": None if rate is None else asdict(rate),
            "seconds": self.seconds,
            "plan": None if self.plan is None else self.plan.to_dict(),
            "aliases": dict(self.aliases),
            "tensors": [t.to_dict() for t in self.tensors],
        }

    def _facts(self) -> list[tuple[str, str]]:
        schemes = Counter(t.scheme for t in self.tensors)
        facts = [
            ("tensors", ", ".join(f"{n:,} {s}" for s, n in schemes.items()) or "0"),
            ("original", fmt.size(self.original_bytes)),
            ("stored", fmt.size(self.stored_bytes)),
            ("ratio", fmt.number(self.ratio)),
            ("bits/weight", fmt.number(self.bits_per_weight)),
            ("seconds", fmt.number(self.seconds, 2)),
        ]
        if self.aliases:
            facts.insert(1, ("tied", str(len(self.aliases))))
        if rate := self.rate:
            facts.append(("scheme rate", str(rate)))
        if self.plan is not None:
            facts += plan_facts(self.plan.metadata())
        return facts if self.path is None else [("file", self.path), *facts]

    def _repr_html_(self) -> str:
        table = tensor_table_html(self.tensors, len(self.tensors))
        return fmt.html_block("CompressionReport", self._facts(), table, fmt.plural(len(self.tensors), "tensor"))

    @classmethod
    def _from_native(cls, path: str | None, text: str) -> CompressionReport:
        record = json.loads(text)
        tensors = tuple(TensorInfo._from_native(t) for t in record.pop("tensors"))
        return cls(path=path, tensors=tensors, **record)


@dataclass(frozen=True)
class VerifiedTensor:
    """The verdict on one tensor."""

    name: str
    status: str
    """``ok``, ``damaged``, ``unsupported`` (by this version), ``differs`` (from the original, or between a GPU and the
    CPU), ``missing`` (from the file) or ``extra`` (not in the original)."""
    detail: str
    max_error: float | None
    """Largest difference from the original, where one was given."""
    rms_error: float | None


@dataclass(frozen=True, repr=False)
class VerifyReport(Report):
    """The result of :func:`wcodec.verify`. True in a condition if everything is in order."""

    path: str | None
    against: str | None
    ok: bool
    damage: str | None
    """Damage that concerns no tensor, such as bytes in padding."""
    tensors: tuple[VerifiedTensor, ...]
    device: str = "cpu"
    """The GPU whose results were compared with the CPU's, or ``cpu``."""

    def __bool__(self) -> bool:
        return self.ok

    @property
    def problems(self) -> tuple[VerifiedTensor, ...]:
        """The tensors that are not ``ok``."""
        return tuple(t for t in self.tensors if t.status != "ok")

    plot: ClassVar[Accessor[VerifyPlots]] = Accessor(
        "wcodec._plot.reports:VerifyPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.status()`` and, against an original, ``.error()``.",
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return asdict(self)

    def _facts(self) -> list[tuple[str, str]]:
        counts = Counter(t.status for t in self.tensors)
        facts = [("verdict", "ok" if self.ok else "NOT ok")]
        facts += [("file", self.path)] if self.path else []
        facts += [("against", self.against)] if self.against else []
        facts += [("device", self.device)] if self.device != "cpu" else []
        facts.append(("tensors", ", ".join(f"{n:,} {s}" for s, n in counts.items()) or "0"))
        return [*facts, ("damage", self.damage)] if self.damage else facts

    def _repr_html_(self) -> str:
        problems = self.problems
        rows = ((t.name, t.status, t.detail) for t in problems)
        table = fmt.html_table(("tensor", "status", "detail"), rows, 3, count=len(problems)) if problems else ""
        return fmt.html_block(
            "VerifyReport", self._facts(), table, fmt.plural(len(problems), "problem"), problem=not self.ok
        )

    @classmethod
    def _from_native(cls, path: str | None, against: str | None, text: str) -> VerifyReport:
        record = json.loads(text)
        names = [f.name for f in fields(VerifiedTensor)]
        tensors = tuple(VerifiedTensor(**{n: t[n] for n in names}) for t in record["tensors"])
        return cls(path, against, record["ok"], record["damage"], tensors)

    def _with_gpu(self, device: str, results: list[dict[str, str]]) -> VerifyReport:
        """The report, with what a GPU makes of the tensors."""
        wrong = {t["name"]: t for t in results if t["status"] != "ok"}

        def judged(tensor: VerifiedTensor) -> VerifiedTensor:
            verdict = wrong.get(tensor.name)
            if verdict is None:
                return tensor
            detail = f"{tensor.detail}; {verdict['detail']}" if tensor.detail else verdict["detail"]
            return replace(tensor, status=verdict["status"], detail=detail)

        return replace(self, ok=self.ok and not wrong, tensors=tuple(map(judged, self.tensors)), device=device)


@dataclass(frozen=True)
class ComparedTensor:
    """One tensor in two containers."""

    name: str
    status: str
    """``same``, ``differs``, ``only_a`` or ``only_b``."""
    a: TensorInfo | None
    b: TensorInfo | None
    detail: str


@dataclass(frozen=True, repr=False)
class Comparison(Report):
    """The result of :func:`wcodec.compare`. True in a condition if both decode to the same."""

    same: bool
    tensors: tuple[ComparedTensor, ...]

    def __bool__(self) -> bool:
        return self.same

    plot: ClassVar[Accessor[ComparisonPlots]] = Accessor(
        "wcodec._plot.reports:ComparisonPlots",
        "Plots: ``comparison.plot()``, the same as ``comparison.plot.status()`` and ``.sizes()``.",
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return {"same": self.same, "tensors": [plain(t, last=("a", "b")) for t in self.tensors]}

    def _sides(self) -> tuple[list[TensorInfo | None], list[TensorInfo | None]]:
        return [t.a for t in self.tensors], [t.b for t in self.tensors]

    def _facts(self) -> list[tuple[str, str]]:
        counts = Counter(t.status for t in self.tensors)
        stored = [sum(side.stored_bytes for side in sides if side) for sides in self._sides()]
        return [
            ("verdict", "same" if self.same else "different"),
            ("tensors", ", ".join(f"{n:,} {s}" for s, n in counts.items()) or "0"),
            ("stored", " and ".join(map(fmt.size, stored))),
        ]

    def _repr_html_(self) -> str:
        # Tensors that differ come first.
        rows = map(comparison_row, sorted(self.tensors, key=lambda t: t.status == "same"))
        table = fmt.html_table(COMPARISON_HEADINGS, rows, 2, count=len(self.tensors))
        return fmt.html_block(
            "Comparison", self._facts(), table, fmt.plural(len(self.tensors), "tensor"), problem=not self.same
        )

    @classmethod
    def _from_native(cls, native: NativeComparison, facts: tuple[Facts, Facts]) -> Comparison:
        tensors = []
        for name, status, detail, *places in native.rows():
            a, b = (None if p is None else TensorInfo._at(f, p) for f, p in zip(facts, places, strict=True))
            tensors.append(ComparedTensor(name, status, a, b, detail))
        return cls(native.same(), tuple(tensors))


COMPARISON_HEADINGS = ("tensor", "status", "stored a", "stored b", "bits/weight a", "bits/weight b")


def comparison_row(tensor: ComparedTensor) -> tuple[str, ...]:
    """One line of the table of a comparison."""
    sides = (tensor.a, tensor.b)
    stored = ["-" if s is None else fmt.size(s.stored_bytes) for s in sides]
    bits = ["-" if s is None else fmt.number(s.bits_per_weight) for s in sides]
    return (tensor.name, tensor.status, *stored, *bits)


@dataclass(frozen=True)
class LayerStats:
    """Figures of one layer that :class:`wcodec.Encoder` or :class:`wcodec.Decoder` worked on."""

    rows: int
    cols: int
    original_bytes: int
    stored_bytes: int
    format: str
    seconds: float

    @property
    def ratio(self) -> float | None:
        """Original bytes per stored byte (larger is better)."""
        return fmt.ratio(self.original_bytes, self.stored_bytes)

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits per weight, everything counted."""
        return fmt.bits(self.stored_bytes, self.rows * self.cols)
