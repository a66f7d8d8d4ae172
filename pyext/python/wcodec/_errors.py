"""Errors, at the path by which the native module finds them."""

from ._core.errors import from_native

__all__ = ["from_native"]
