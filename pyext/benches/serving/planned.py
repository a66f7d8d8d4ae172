"""Bytes of weights that each rank is planned to hold, by `wcodec.plan_ranks`.

vLLM divides every matrix among its ranks, embeddings and heads too. transformers leaves some whole, and which these are
depends on its version, so that what its plan replicates is divided for vLLM.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import models

if TYPE_CHECKING:
    from wcodec import RanksReport


@cache
def _report(folder: Path, scheme: str | None, ranks: int) -> RanksReport:
    import wcodec

    options = {} if scheme is None else models.options_of(scheme) or {}
    return wcodec.plan_ranks(folder, [ranks], **options)


def _row(report: RanksReport, ranks: int) -> Any:
    [row] = [row for row in report.rows if row.ranks == ranks]
    return row


def of_transformers(folder: Path, scheme: str, ranks: int) -> dict[str, int]:
    """The bytes of a rank as `plan_bytes`; and as `config_bytes` those that were known before anything was encoded.

    :param folder: of that scheme. A folder without weights beside it, of bf16, says what the config alone does.
    """
    plain, beside = scheme == "bf16", folder.with_name("bf16")
    if plain:
        return {"plan_bytes": _row(_report(folder, None, ranks), ranks).uncompressed}
    out = {"plan_bytes": _row(_report(folder, None, ranks), ranks).total}
    if (beside / "config.json").exists():
        out["config_bytes"] = _row(_report(beside, scheme, ranks), ranks).total
    return out


def of_vllm(folder: Path, scheme: str, ranks: int) -> dict[str, int]:
    """As :func:`of_transformers`, with all matrices divided."""
    plain, beside = scheme == "bf16", folder.with_name("bf16")
    if plain:
        one = _row(_report(folder, None, ranks), 1)
        return {"plan_bytes": round((one.uncompressed - one.plain) / ranks) + one.plain}

    def divided(report: RanksReport) -> int:
        row = _row(report, ranks)
        return int(row.shared + round(row.replicated / ranks) + row.plain)

    out = {"plan_bytes": divided(_report(folder, None, ranks))}
    if (beside / "config.json").exists():
        out["config_bytes"] = divided(_report(beside, scheme, ranks))
    return out
