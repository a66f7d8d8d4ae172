"""Tokens that engines generated, given to transformers with the same weights: how far each is from the largest logit.

Tokens are compared by logits, and not by themselves: sums in another order round differently, and after one token that
differs all others do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FACTOR = 3.0
"""An engine's tokens may be this many times further from the largest logit than bf16's own in the same mode."""
STEPS = 4.0
"""A gap below so many steps of bf16 at the largest logit is rounding, however near bf16's own tokens were."""


@dataclass(frozen=True)
class Gap:
    """Distance of tokens from the largest logit."""

    largest: float
    """The distance of the token that is furthest."""
    deviation: float
    """The standard deviation of all logits, which says what a distance means."""
    top: float
    """The largest logit."""
    tokens: int
    same: int
    """Tokens that have the largest logit."""


def limit(found: Gap, own: Gap | None, factor: float = FACTOR) -> float:
    """The largest gap that is accepted.

    :param own: the gap of bf16's tokens in the same mode. Where there is none, as for bf16 itself, it is half of the
        logits' deviation: tokens of an engine that computes something else are several deviations away.

    >>> limit(Gap(0.5, 1.0, 5.0, 100, 90), Gap(0.25, 1.0, 5.0, 100, 97))
    0.75
    >>> limit(Gap(0.5, 1.0, 8.0, 100, 90), Gap(0.0, 1.0, 8.0, 100, 100))
    0.125
    >>> limit(Gap(0.5, 1.0, 8.0, 100, 90), None)
    0.5
    """
    return found.deviation / 2 if own is None else max(factor * own.largest, STEPS * found.top / 256)


def gap_of(logits_of: Callable[[list[int]], Any], found: dict[str, Any]) -> Gap:
    """The gap of the answers in one file.

    :param logits_of: gives the logits at each position of a sequence.
    """
    import torch

    largest, top, same, count, all_logits = 0.0, 0.0, 0, 0, []
    for prompt, answer in zip(found["prompts"], found["answers"], strict=True):
        logits = logits_of(prompt + answer)[len(prompt) - 1 : -1].float()
        chosen = logits.gather(-1, torch.tensor(answer, device=logits.device)[:, None])[:, 0]
        gaps = logits.max(-1).values - chosen
        largest, top = max(largest, float(gaps.max())), max(top, float(logits.abs().max()))
        same, count = same + int((gaps == 0).sum()), count + len(answer)
        all_logits.append(logits.std())
    return Gap(largest, float(torch.stack(all_logits).mean()), top, count, same)


def load(folder: Path, scheme: str, device: str) -> Callable[[list[int]], Any]:
    """The folder's model in transformers, as a function from tokens to logits."""
    import torch

    if scheme == "bf16":
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    else:
        import wcodec

        model = wcodec.load_model(folder, device=device, dtype=torch.bfloat16)

    def logits(ids: list[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([ids], device=device)).logits[0]

    return logits


def measure(folder: Path, scheme: str, files: list[Path], device: str, tell: Callable[..., None]) -> None:
    """Tells the gap of each file of tokens."""
    logits = load(folder, scheme, device)
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        tell("gap", **found["key"], **asdict(gap_of(logits, found)))


def judged(lines: list[dict[str, Any]], factor: float = FACTOR) -> list[dict[str, Any]]:
    """The gaps among all results, each with what is accepted and whether it is within."""
    gaps = {key_of(line): Gap(**{k: line[k] for k in Gap.__annotations__}) for line in lines if line["kind"] == "gap"}
    out = []
    for key, found in gaps.items():
        model, scheme, mode, ranks, card = key
        own = None if scheme == "bf16" else gaps.get((model, "bf16", mode, ranks, card))
        most = limit(found, own, factor)
        out.append({
            "model": model, "scheme": scheme, "mode": mode, "ranks": ranks, "limit": card, "gap": found.largest,
            "deviation": found.deviation, "accepted": most, "fine": found.largest <= most,
            "same": found.same, "tokens": found.tokens,
        })  # fmt: skip
    return out


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """The fields by which results are compared."""
    return tuple(line[name] for name in ("model", "scheme", "mode", "ranks", "limit"))
