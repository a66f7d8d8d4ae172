"""Statements of a container on its plan, its calibration and its quality: three keys of its metadata, of JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .options import COLUMNS, MIXED_TEXT, OWN_TEXT

PLAN_KEY = "wcodec.plan"
CALIBRATION_KEY = "wcodec.calibration"
QUALITY_KEY = "wcodec.quality"
# By the source of statistics, the tokens that they are of.
_OF_SOURCE = {OWN_TEXT: " that the model wrote", MIXED_TEXT: " of many kinds of text"}


def quality_of(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The measured quality, if the metadata hold it in the form that this package writes."""
    record = _object(metadata.get(QUALITY_KEY))
    numbers = [record.get(key) for key in ("kl", "perplexity", "original_perplexity", "top1_agreement", "tokens")]
    return record if all(_is_number(value) for value in numbers) else None


def plan_of(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The plan, if the metadata hold it in that form."""
    record = _object(metadata.get(PLAN_KEY))
    return record if isinstance(record.get("recipe"), str) and isinstance(record.get("target"), str) else None


def calibration_of(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The tokens that the file was calibrated on, and their source, if the metadata hold them in that form."""
    record = _object(metadata.get(CALIBRATION_KEY))
    tokens = record.get("tokens")
    return record if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens < 1 << 64 else None


def lines(metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """Facts for people: of what container has them, the plan, the calibration and what was measured.

    >>> lines({"wcodec.plan": '{"recipe": "weights alone", "target": "4 bits", "bits": 4.0}'})
    [('plan', 'weights alone, for 4 bits')]
    >>> lines({"wcodec.calibration": '{"tokens": 2048, "source": "self"}'})
    [('calibrated', 'on 2,048 tokens that the model wrote')]
    >>> lines({"wcodec.calibration": '{"tokens": 2048, "source": "self", "kind": "columns"}'})
    [('calibrated', 'by columns alone, on 2,048 tokens that the model wrote')]
    >>> lines({"wcodec.calibration": '{"tokens": 32768, "source": "mixed"}'})
    [('calibrated', 'on 32,768 tokens of many kinds of text')]
    """
    facts = []
    plan, quality = plan_of(metadata), quality_of(metadata)
    if plan is not None:
        facts.append(("plan", f"{plan['recipe']}, for {plan['target']}"))
    calibration = calibration_of(metadata)
    if calibration is not None:
        written = _OF_SOURCE.get(str(calibration.get("source")), "")
        columns = "by columns alone, " if calibration.get("kind") == COLUMNS else ""
        facts.append(("calibrated", f"{columns}on {calibration['tokens']:,} tokens{written}"))
    if quality is not None:
        facts.append((
            "measured",
            f"KL {quality['kl']:.3g} nats/token, perplexity {quality['original_perplexity']:.4f} -> "
            f"{quality['perplexity']:.4f}, same top token {100 * quality['top1_agreement']:.2f} %, of "
            f"{quality['tokens']:,} tokens (text {str(quality.get('text_sha256') or '?')[:16]})",
        ))  # fmt: skip
    return facts


def finite(value: Any) -> Any:
    """Plain values as JSON can have them: ``None`` for a number that is none or has no end, such as the perplexity of a
    model that predicts nothing."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rounded(value: float) -> float:
    """A value to six digits: more than measuring has."""
    return float(f"{value:.6g}")


def _object(text: str | None) -> dict[str, Any]:
    # Others may have written it: whatever it is, a file opens.
    try:
        record = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        # An integer of hundreds of digits.
        return False
