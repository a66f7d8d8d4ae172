"""Values for architectures that no rule makes small and whole."""

from __future__ import annotations

from typing import Any

CARE: dict[str, dict[str, Any]] = {}
"""By architecture, arguments of its configuration; those of a configuration within it are a dictionary."""
