"""A plan: how each tensor is to be encoded, what was tried, and what was measured."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.metadata import PLAN_KEY, QUALITY_KEY, finite, rounded
from .._core.report import Report
from .file import load, save
from .recipe import Recipe
from .records import Candidate, MeasuredQuality, PlannedTensors, StatisticsFile

if TYPE_CHECKING:
    from .._plot.reports import PlanPlots

_TRIED = ("recipe", "bits asked", "bits stored", "file", "KL, nats/token", "perplexity", "same top token", "")
_ROWS = ("tensors", "number", "weights", "scheme", "step", "bits", "stored", "share", "error", "KL alone")
# Columns that a narrow terminal leaves out, the most dispensable first.
_DISPENSABLE = ("weights", "number", "step", "scheme", "share", "error")


@dataclass(frozen=True, repr=False)
class PlanReport(Report):
    """The choice of :func:`wcodec.plan`, and the reasons for it."""

    target: str
    recipe: Recipe
    file_bytes: int
    """The approximate size of the whole file: its index may differ by some bytes."""
    bits: float
    """Bits per weight of the tensors that are encoded, header and index not counted."""
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
        save(self, path, overwrite)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> PlanReport:
        """Reads what :meth:`save` wrote.

        :raises FormatError: if the file is another one, or contradicts itself.
        """
        return PlanReport(**load(path))

    plot: ClassVar[Accessor[PlanPlots]] = Accessor(
        "wcodec._plot.reports:PlanPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.bits()``, and, where damage was measured, "
        "``report.plot.candidates()``.",
    )

    def options(self) -> dict[str, Any]:
        """Arguments of :func:`wcodec.compress` that carry the plan out: the recipe, what else was asked for, and the
        metadata."""
        metadata = {**(self._options.get("metadata") or {}), **self.metadata()}
        options = {**self._options, "metadata": metadata}
        if options.get("calibrate") is None:
            # A recipe by weights alone stays one, where calibration is the default.
            options["calibrate"] = False
        return options

    def metadata(self) -> dict[str, str]:
        """The plan and the quality that it reached, as the container's metadata record them."""
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
        metadata = {PLAN_KEY: _compact(plan)}
        if self.quality is not None:
            record = {k: rounded(v) if isinstance(v, float) else v for k, v in asdict(self.quality).items()}
            metadata[QUALITY_KEY] = _compact({"version": 1, **record})
        return metadata

    def frontier(self) -> str:
        """The candidates that were tried, as an aligned table of text."""
        return fmt.text_table(_TRIED, [c._cells() for c in self.candidates])

    def _tables(self, tensors: bool = False) -> list[fmt.Parts]:
        tried = [c._cells() for c in self.candidates]
        planned = [self.roles, sorted(self.tensors, key=_by_number)] if tensors else [self.roles]
        return [
            (_TRIED, tried, 1, ("same top token", "bits asked", "perplexity")),
            *((_ROWS, [row._cells() for row in rows], 1, _DISPENSABLE) for rows in planned),
        ]

    def _summary(self) -> str:
        return "what was tried, and what is stored how"

    def table(self, *, tensors: bool = False) -> str:
        """The planned tensors, as an aligned table of text: a line for each role, or for each tensor."""
        return fmt.text_table(_ROWS, [row._cells() for row in (self.tensors if tensors else self.roles)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON; of steps and statistics only whether there are any."""
        return super().to_dict()

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
                ("KL", f"{fmt.figure(q.kl, 5)} nats/token, give or take {fmt.figure(q.kl_error, 5)}"),
                ("perplexity", f"{fmt.figure(q.original_perplexity)} -> {fmt.figure(q.perplexity)}"),
                ("same top token", f"{100 * q.top1_agreement:.2f} %"),
                ("text", f"{q.windows} windows of {q.window} tokens, SHA-256 {q.text_sha256[:16]}"),
            ]
        else:
            facts.append(("damage", "not measured (pass a text)"))
        return [*facts, ("seconds", fmt.number(self.seconds, 1))]


def _by_number(row: PlannedTensors) -> list[tuple[bool, int, str]]:
    """A key by which layer 2 comes before layer 10."""
    parts = re.split(r"([0-9]+)", row.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _compact(value: Any) -> str:
    return json.dumps(finite(value), separators=(",", ":"))
