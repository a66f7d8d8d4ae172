"""Adapters that call each library: a module for each, whose ``prepare`` changes a model in bf16 in place."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ..catalogue import Variant
from .base import Ready

Prepare = Callable[[object, Variant, str], Ready]


def find(peer: str) -> Prepare:
    """The function that prepares models for a peer. Its library is imported here and nowhere else."""
    prepare: Prepare = importlib.import_module(f"{__name__}.{peer}_").prepare
    return prepare
