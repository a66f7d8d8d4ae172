"""Bytes of weights that each rank is planned to hold, by `wcodec.plan_ranks`.

vLLM divides every matrix among its ranks, embeddings and heads too. transformers leaves some whole, and which these are
depends on its version, so that what its plan replicates is divided for vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from . import models

if TYPE_CHECKING:
    from wcodec._models.ranks import RankBytes, RanksReport


@cache
def _report(folder: Path, scheme: str | None, ranks: int) -> RanksReport:
    import wcodec

    options = {} if scheme is None else models.options_of(scheme) or {}
    return wcodec.plan_ranks(folder, [ranks], **options)


def _row(report: RanksReport, ranks: int) -> RankBytes | None:
    """The row of so many ranks; nothing where transformers cannot share the model among them."""
    return next((row for row in report.rows if row.ranks == ranks), None)


def _plans(folder: Path, scheme: str, ranks: int, of: Callable[[RanksReport, int], int | None]) -> dict[str, int]:
    """The bytes of a rank as `plan_bytes`; and as `config_bytes` those that were known before anything was encoded."""
    out = {"plan_bytes": of(_report(folder, None, ranks), ranks)}
    beside = folder.with_name("bf16")
    if scheme != "bf16" and (beside / "config.json").exists():
        out["config_bytes"] = of(_report(beside, scheme, ranks), ranks)
    return {name: size for name, size in out.items() if size is not None}


def of_transformers(folder: Path, scheme: str, ranks: int) -> dict[str, int]:
    """The bytes that a rank is to hold, `plan_bytes`, and `config_bytes`, those that were planned before anything was
    encoded. Nothing where so many ranks cannot share the model.

    :param folder: of that scheme; the one of bf16 is beside it.
    """

    def held(report: RanksReport, ranks: int) -> int | None:
        row = _row(report, ranks)
        return None if row is None else row.uncompressed if scheme == "bf16" else row.total

    return _plans(folder, scheme, ranks, held)


def of_vllm(folder: Path, scheme: str, ranks: int) -> dict[str, int]:
    """As :func:`of_transformers`, with all matrices divided."""

    def divided(report: RanksReport, ranks: int) -> int | None:
        row, one = _row(report, ranks), _row(report, 1)
        if row is None or one is None:
            return None
        if scheme == "bf16":
            return round((one.uncompressed - one.plain) / ranks) + one.plain
        return row.shared + round(row.replicated / ranks) + row.plain

    return _plans(folder, scheme, ranks, divided)
