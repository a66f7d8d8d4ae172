"""Which sections a row has, and in which order."""

from __future__ import annotations

from typing import Any


def planned(settings: dict[str, Any]) -> list[str]:
    """Names of sections in the order in which they run. Captured and compiled sections come last: they take longest, so
    that a limit of time costs least, and layers may behave differently outside of graphs once they were captured.

    >>> planned({"batches": [1, 8], "sections": ["quality", "eager", "captured", "compiled"]})
    ['quality', 'eager/1', 'eager/8', 'captured/1', 'captured/8', 'compiled/1', 'compiled/8']
    """
    wanted, batches = settings["sections"], settings["batches"]
    out = [kind for kind in ("quality", "load") if kind in wanted]
    out += [f"eager/{batch}" for batch in batches if "eager" in wanted]
    out += ["prefill"] if "prefill" in wanted else []
    return out + [f"{kind}/{batch}" for kind in ("captured", "compiled") if kind in wanted for batch in batches]
