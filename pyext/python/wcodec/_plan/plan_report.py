"""A plan: how each tensor is to be encoded, what was tried, and what was measured."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.metadata import PLAN_KEY, QUALITY_KEY, finite, rounded
from .._measure.reports import _shown
from .recipe import Recipe

if TYPE_CHECKING:
    from .._plot.reports import PlanPlots

_TRIED = ("recipe", "bits asked", "bits stored", "file", "KL, nats/token", "perplexity", "same top token", "")
_ROWS = ("tensors", "number", "weights", "scheme", "step", "bits", "stored", "share", "error", "KL alone")
# What a narrow terminal shows last.
_DISPENSABLE = ("weights", "number", "step", "scheme", "share", "error")


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
    """What these tensors do alone, on a few windows, in nats per token; ``None`` where that was not measured."""

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
            _shown(self.kl, 5),
        )


@dataclass(frozen=True)
class Candidate:
    """A recipe that was tried, and what it did; damage is ``None`` where it was not measured."""

    recipe: str
    bits_asked: float | None
    bits_stored: float
    """Per weight of the tensors that are encoded, header and index not counted."""
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
            _shown(self.kl, 5),
            _shown(self.perplexity),
            agreement,
            "taken" if self.taken else "",
        )


@dataclass(frozen=True)
class MeasuredQuality:
    """What was measured of the recipe that was taken, decoded from its container."""

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
    """Of the whole text's token ids, as 64-bit little-endian numbers."""
    dtype: str
    """What the model computed in."""


@dataclass(frozen=True)
class StatisticsFile:
    """The statistics that a saved plan goes by."""

    file: str
    sha256: str
    """Their :attr:`wcodec.Statistics.digest`."""


@dataclass(frozen=True, repr=False)
class PlanReport:
    """What :func:`wcodec.plan` chose, and why."""

    target: str
    recipe: Recipe
    file_bytes: int
    """Of the whole file, about: its index may differ by some bytes."""
    bits: float
    """Per weight of the tensors that are encoded, header and index not counted."""
    candidates: tuple[Candidate, ...]
    """Everything that was measured on all windows, or that was encoded where nothing is measured."""
    roles: tuple[PlannedTensors, ...]
    tensors: tuple[PlannedTensors, ...]
    quality: MeasuredQuality | None
    """``None`` where no text was given."""
    seconds: float
    statistics_file: StatisticsFile | None = None
    """The statistics that the plan goes by, if it was read from a file."""
    _options: dict[str, Any] = field(default_factory=dict, repr=False)
    _shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the plan into a file of JSON, for ``wcodec.compress(..., plan=path)``, ``wcodec encode --plan`` and
        :meth:`load`. Statistics that it goes by, and that are in no file yet, are saved beside it.

        :param path: its name ends in ``.json``.
        :raises FileError: if there is a file, and ``overwrite`` was not asked for.
        """
        from .file import save

        save(self, path, overwrite)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> PlanReport:
        """Reads what :meth:`save` wrote.

        :raises FormatError: if the file is another one, or contradicts itself.
        """
        from .file import load

        return load(path)

    plot: ClassVar[Accessor[PlanPlots]] = Accessor(
        "wcodec._plot.reports:PlanPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.bits()``, and, where damage was measured, "
        "``report.plot.candidates()``.",
    )

    def options(self) -> dict[str, Any]:
        """Arguments of :func:`wcodec.compress` that carry the plan out: the recipe, what else was asked for, and the
        metadata."""
        metadata = {**(self._options.get("metadata") or {}), **self.metadata()}
        return {**self._options, "metadata": metadata}

    def metadata(self) -> dict[str, str]:
        """What the container says of the plan."""
        tried = [{k: rounded(v) if isinstance(v, float) else v for k, v in asdict(c).items()} for c in self.candidates]
        plan = {
            "version": 1,
            "target": self.target,
            "recipe": self.recipe.name,
            "scheme": self.recipe.scheme,
            "bits": self.recipe.bits,
            "trellis": bool(self.recipe.trellis),
            "candidates": tried,
        }
        found = {PLAN_KEY: _compact(plan)}
        if self.quality is not None:
            record = {k: rounded(v) if isinstance(v, float) else v for k, v in asdict(self.quality).items()}
            found[QUALITY_KEY] = _compact({"version": 1, **record})
        return found

    def frontier(self) -> str:
        """What was tried, as an aligned table of text."""
        return fmt.text_table(_TRIED, [c._cells() for c in self.candidates])

    def _parts(self, tensors: bool) -> Iterator[fmt.Parts]:
        yield _TRIED, [c._cells() for c in self.candidates], 1, ("same top token", "bits asked", "perplexity")
        yield _ROWS, [row._cells() for row in self.roles], 1, _DISPENSABLE
        if tensors:
            yield _ROWS, [row._cells() for row in sorted(self.tensors, key=_by_number)], 1, _DISPENSABLE

    def table(self, *, tensors: bool = False) -> str:
        """What is stored how, as an aligned table of text: a line for each role, or for each tensor."""
        return fmt.text_table(_ROWS, [row._cells() for row in (self.tensors if tensors else self.roles)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON; of steps and statistics only whether there are any."""
        record = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
        return {
            **record,
            "recipe": self.recipe.to_dict(),
            "candidates": [asdict(c) for c in self.candidates],
            "roles": [asdict(row) for row in self.roles],
            "tensors": [asdict(row) for row in self.tensors],
            "quality": None if self.quality is None else asdict(self.quality),
            "statistics_file": None if self.statistics_file is None else asdict(self.statistics_file),
        }

    def _facts(self) -> list[tuple[str, str]]:
        trellis = ", trellis" if self.recipe.trellis else ""
        at = "" if self.recipe.bits is None else f" at {self.recipe.bits:.3f} bits asked for"
        facts = [
            ("asked for", self.target),
            ("taken", f"{self.recipe.name}{trellis}{at}"),
            ("file", f"{fmt.size(self.file_bytes)}, {self.bits:.3f} bits/weight of the encoded tensors"),
        ]
        if (q := self.quality) is not None:
            facts += [
                ("KL", f"{_shown(q.kl, 5)} nats/token, give or take {_shown(q.kl_error, 5)}"),
                ("perplexity", f"{_shown(q.original_perplexity)} -> {_shown(q.perplexity)}"),
                ("same top token", f"{100 * q.top1_agreement:.2f} %"),
                ("text", f"{q.windows} windows of {q.window} tokens, SHA-256 {q.text_sha256[:16]}"),
            ]
        else:
            facts.append(("damage", "not measured (pass a text)"))
        return [*facts, ("seconds", fmt.number(self.seconds, 1))]

    def __repr__(self) -> str:
        return f"PlanReport({fmt.facts(self._facts())})"

    def _repr_html_(self) -> str:
        tried = fmt.html_table(_TRIED, [c._cells() for c in self.candidates])
        roles = fmt.html_table(_ROWS, [row._cells() for row in self.roles])
        return fmt.html_block("PlanReport", self._facts(), tried + roles, "what was tried, and what is stored how")


def _by_number(row: PlannedTensors) -> list[tuple[bool, int, str]]:
    """A key by which layer 2 comes before layer 10."""
    parts = re.split(r"([0-9]+)", row.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _compact(value: Any) -> str:
    return json.dumps(finite(value), separators=(",", ":"))
