"""Waiting for transformers and PEFT: the quantization method ``wcodec`` is registered when transformers' module of
quantizers is imported, LoRA on compressed layers when PEFT's is.

Nothing here imports more than every Python has loaded, since it runs whenever wcodec is imported. If nobody imports
it, `_wcodec_hook` does when transformers needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from _wcodec_hook import wait

if TYPE_CHECKING:
    from collections.abc import Callable

_waiting: set[str] = set()


def install() -> None:
    """Registers now what is imported already, all else when it is."""
    for module, register in _REGISTERED.items():
        if module in sys.modules:
            register()
    functions = {m: f for m, f in _REGISTERED.items() if m not in sys.modules and m not in _waiting}
    if functions:
        _waiting.update(functions)
        wait(functions)


def _register_quantizer() -> None:
    from .._core.errors import UnsupportedError
    from .transformers import register

    try:
        register()
    except UnsupportedError:
        # An old transformers loads its own models as before; register() says what is wrong with it.
        pass


def _register_lora() -> None:
    from .peft import register

    try:
        register()
    except (ImportError, AttributeError):
        # Another PEFT than those that are known refuses compressed layers in its own words.
        pass


def _take_containers() -> None:
    from .from_pretrained import install as take

    take()


# Registrations by module: the one that keeps transformers' list of quantizers, the one that finds and reads files, and
# the one that makes PEFT's layers.
_REGISTERED: dict[str, Callable[[], None]] = {
    "transformers.quantizers.auto": _register_quantizer,
    "transformers.modeling_utils": _take_containers,
    "peft.tuners.lora.model": _register_lora,
}
