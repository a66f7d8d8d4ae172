"""Which sections a row has, and in which order."""

from __future__ import annotations

from typing import Any


def planned(settings: dict[str, Any]) -> list[str]:
    """Names of sections in the order in which they run: the dear ones last, so that a limit of time costs least.

    >>> planned({"batches": [1, 8], "sections": ["quality", "eager", "captured", "compiled"]})
    ['quality', 'eager/1', 'captured/1', 'captured/8', 'eager/8', 'compiled/1', 'compiled/8']
    """
    wanted, (first, *others) = settings["sections"], settings["batches"]
    out = [kind for kind in ("quality", "load") if kind in wanted]
    out += [f"{kind}/{first}" for kind in ("eager", "captured") if kind in wanted]
    out += ["prefill"] if "prefill" in wanted else []
    out += [f"{kind}/{batch}" for batch in others for kind in ("captured", "eager") if kind in wanted]
    return out + [f"compiled/{batch}" for batch in settings["batches"] if "compiled" in wanted]
