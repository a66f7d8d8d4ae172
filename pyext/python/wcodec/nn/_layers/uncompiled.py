"""Code that ``torch.compile`` leaves as it is. It is a module of its own, imported only where something is compiled."""

from __future__ import annotations

from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def compute(experts: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output of the experts, computed outside the compiled graph."""
    return experts._compute(args, kwargs)
