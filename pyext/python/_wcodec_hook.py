"""Waiting for transformers without importing wcodec: `wcodec_hook.pth` imports this module whenever Python starts, so
that ``AutoModel.from_pretrained`` takes compressed folders in programs that know nothing of wcodec.

It must cost next to nothing, import nothing that Python has not loaded already, and never raise. wcodec itself is
imported when transformers meets a model that says ``quant_method: wcodec``. ``WCODEC_NO_HOOK=1`` switches it off.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# The module of transformers that is asked whether it knows a method of quantization.
_QUANTIZERS = "transformers.quantizers.auto"


class Waiting:
    """A finder that waits for modules, calls a function once one was imported, and leaves after the last."""

    def __init__(self, functions: "dict[str, Callable[[], None]]") -> None:
        self._functions = functions

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Nothing, unless it is a module that is waited for."""
        if fullname not in self._functions:
            return None
        from importlib.machinery import PathFinder

        function = self._functions.pop(fullname)
        if not self._functions and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _calling(spec.loader, function)
        return spec


def wait(functions: "dict[str, Callable[[], None]]") -> None:
    """Calls functions when the modules that they are for are imported."""
    sys.meta_path.insert(0, Waiting(functions))


def _calling(loader: "Any", function: "Callable[[], None]") -> "Any":
    """A loader that calls a function once ``loader`` has run the module."""
    from importlib.abc import Loader

    class Calling(Loader):
        def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
            found: ModuleType | None = loader.create_module(spec)
            return found

        def exec_module(self, module: "ModuleType") -> None:
            loader.exec_module(module)
            function()

    return Calling()


def _at_start() -> None:
    if os.environ.get("WCODEC_NO_HOOK", "0") not in ("", "0") or "wcodec" in sys.modules:
        return
    # Python may read a .pth twice, by two names of its folder.
    if not any(isinstance(finder, Waiting) for finder in sys.meta_path):
        wait({_QUANTIZERS: _ask_later})


def _ask_later() -> None:
    """Has wcodec imported when transformers meets its method, so that nobody else pays for it."""
    module = sys.modules.get(_QUANTIZERS)
    # Loading asks the first. Programs that look at the settings themselves ask the second, as lm-eval does.
    for name, function in (("AutoHfQuantizer", "supports_quant_method"), ("AutoQuantizationConfig", "from_dict")):
        kind = getattr(module, name, None)
        asked = getattr(kind, function, None)
        if asked is not None:
            setattr(kind, function, staticmethod(_importing(asked)))


def _importing(asked: "Callable[..., Any]") -> "Callable[..., Any]":
    """A function of settings that has wcodec imported before it answers for its method."""

    def answer(quantization_config_dict: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        given = quantization_config_dict
        method = given.get("quant_method") if isinstance(given, dict) else getattr(given, "quant_method", None)
        if method == "wcodec":
            _import()
        return asked(given, *args, **kwargs)

    return answer


def _import() -> None:
    """Imports wcodec, which registers its method; says why where that fails: transformers then stops by itself."""
    try:
        import wcodec  # noqa: F401
    except Exception as error:
        import warnings

        warnings.warn(f"wcodec cannot be imported, which this model needs: {error}", stacklevel=4)
