"""Waiting for transformers and PEFT: the quantization method ``wcodec`` is registered when transformers' module of
quantizers is imported, LoRA on compressed layers when PEFT's is.

Nothing here imports more than every Python has loaded, since it runs whenever wcodec is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def install() -> None:
    """Registers now what is imported already, all else when it is."""
    waiting = {module: register for module, register in _REGISTERED.items() if module not in sys.modules}
    for module, register in _REGISTERED.items():
        if module in sys.modules:
            register()
    if waiting and not any(isinstance(finder, _Hook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hook(waiting))


def _register_quantizer() -> None:
    from ._errors import UnsupportedError
    from ._transformers import register

    try:
        register()
    except UnsupportedError:
        # An old transformers loads its own models as before; register() says what is wrong with it.
        pass


def _register_lora() -> None:
    from ._peft import register

    try:
        register()
    except (ImportError, AttributeError):
        # Another PEFT than those that are known refuses compressed layers in its own words.
        pass


def _take_containers() -> None:
    from ._from_pretrained import install as take

    take()


# By the module that keeps transformers' list of quantizers, the one that finds and reads files, and the one that makes
# PEFT's layers.
_REGISTERED: dict[str, Callable[[], None]] = {
    "transformers.quantizers.auto": _register_quantizer,
    "transformers.modeling_utils": _take_containers,
    "peft.tuners.lora.model": _register_lora,
}


class _Hook:
    """A finder that waits for modules, and leaves when all of them were looked for."""

    def __init__(self, waiting: dict[str, Callable[[], None]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        from importlib.machinery import PathFinder

        register = self._waiting.pop(fullname)
        if not self._waiting:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _registering(spec.loader, register)
        return spec


def _registering(loader: Any, register: Callable[[], None]) -> Any:
    """A loader that registers something once `loader` has run the module."""
    from importlib.abc import Loader

    class Registering(Loader):
        def create_module(self, spec: ModuleSpec) -> ModuleType | None:
            found: ModuleType | None = loader.create_module(spec)
            return found

        def exec_module(self, module: ModuleType) -> None:
            loader.exec_module(module)
            register()

    return Registering()
