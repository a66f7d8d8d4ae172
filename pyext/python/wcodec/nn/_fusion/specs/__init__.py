"""Descriptions of decoder layers, one file for each kind of architecture.

A file states any of ``BLOCKS``, ``NORMS``, ``MLPS`` and ``ATTENTIONS``: tuples of what :mod:`wcodec.nn._spec` has. All
files of this folder are read, so that another architecture is another file.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from ..spec import AttentionSpec, BlockSpec, MlpSpec, NormSpec


@functools.cache
def _stated(name: str) -> tuple[Any, ...]:
    files = sorted(member.name for member in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{file}") for file in files]
    return tuple(spec for module in modules for spec in getattr(module, name, ()))


def blocks() -> tuple[BlockSpec, ...]:
    """All kinds of decoder layers."""
    return _stated("BLOCKS")


def norms() -> tuple[NormSpec, ...]:
    """All kinds of norms."""
    return _stated("NORMS")


def mlps() -> tuple[MlpSpec, ...]:
    """All kinds of MLPs."""
    return _stated("MLPS")


def attentions() -> tuple[AttentionSpec, ...]:
    """All kinds of attention."""
    return _stated("ATTENTIONS")
