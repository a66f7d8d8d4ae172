"""Waiting for transformers: the quantization method ``wcodec`` is registered when its module of quantizers is imported.

Nothing here imports more than every Python has loaded, since it runs whenever wcodec is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# The module of transformers that keeps the list of quantizers.
_MODULE = "transformers.quantizers.auto"


def install() -> None:
    """Registers now if transformers' quantizers are imported already, otherwise when they are."""
    if _MODULE in sys.modules:
        _register()
    elif not any(isinstance(finder, _Hook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hook())


def _register() -> None:
    from ._errors import UnsupportedError
    from ._transformers import register

    try:
        register()
    except UnsupportedError:
        # An old transformers loads its own models as before; register() says what is wrong with it.
        pass


class _Hook:
    """A finder that leaves when transformers' module of quantizers is looked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _registering(spec.loader)
        return spec


def _registering(loader: Any) -> Any:
    """A loader that registers the method once `loader` has run the module."""
    from importlib.abc import Loader

    class Registering(Loader):
        def create_module(self, spec: ModuleSpec) -> ModuleType | None:
            found: ModuleType | None = loader.create_module(spec)
            return found

        def exec_module(self, module: ModuleType) -> None:
            loader.exec_module(module)
            _register()

    return Registering()
