"""What ``torch.compile`` leaves as it is: a module of its own, which is imported where something is compiled."""

from __future__ import annotations

from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def compute(experts: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What experts compute."""
    return experts._compute(args, kwargs)
