"""What ``torch.compile`` leaves as it is. A module of its own, since with it torch's compiler is imported, which takes
seconds: only models with experts need it."""

from __future__ import annotations

from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def compute(experts: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What experts compute."""
    return experts._compute(args, kwargs)
