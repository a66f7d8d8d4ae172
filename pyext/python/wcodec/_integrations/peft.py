"""PEFT's LoRA on compressed layers.

PEFT takes layers of others by a mapping that each config has (``LoraConfig._register_custom_module``), and asks it when
it makes a layer. :func:`register` has the mapping filled in there, so that nobody need do that for each config, also
not where PEFT reads one from a file. It also keeps PEFT from decoding a weight to ask for its device, and from what
would be wrong without a word. Importing wcodec calls it when PEFT's LoRA is there already, or is imported later;
PEFT itself is never imported for that.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

# The module of PEFT that makes LoRA's layers.
MODULE = "peft.tuners.lora.model"


def register() -> None:
    """Makes PEFT's LoRA take compressed layers. Calling it again does nothing."""
    from peft.tuners import tuners_utils
    from peft.utils.other import ModulesToSaveWrapper

    kind: Any = sys.modules[MODULE].LoraModel
    if getattr(kind._replace_module, "_wcodec", False):
        return
    expand = tuners_utils._maybe_include_all_linear_layers
    create, replace, update = kind._create_new_module, kind._replace_module, ModulesToSaveWrapper.update

    @functools.wraps(expand)
    def expand_all_linear(config: Any, model: Any) -> Any:
        wanted = getattr(config, "target_modules", None)
        config = expand(config, model)
        if isinstance(wanted, str) and wanted.lower() == "all-linear" and "wcodec.nn" in sys.modules:
            from .peft_layers import all_linear, in_their_own_way

            targets = {*config.target_modules, *all_linear(config, model)}
            config.target_modules = targets - in_their_own_way(model)
        return config

    @functools.wraps(create)
    def create_new_module(lora_config: Any, adapter_name: str, target: Any, **kwargs: Any) -> Any:
        if _is_compressed(target):
            from .peft_layers import mapping

            lora_config._register_custom_module(mapping(target, kwargs.get("parameter_name")))
        return create(lora_config, adapter_name, target, **kwargs)

    @functools.wraps(replace)
    def replace_module(self: Any, parent: Any, child_name: str, new_module: Any, child: Any) -> None:
        # Adapters that were merged have an uncompressed layer by then.
        if not _is_compressed(child) and type(child).__module__ != "wcodec._integrations.peft_layers":
            return replace(self, parent, child_name, new_module, child)
        from .peft_layers import replace_module

        return replace_module(self, parent, child_name, new_module, child)

    @functools.wraps(update)
    def update_saved(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A copy of a compressed layer would be saved, and never trained.
        if "wcodec.nn" in sys.modules:
            from .peft_layers import check_trained

            check_trained(self.original_module)
        return update(self, *args, **kwargs)

    _refuse_tokens()
    replace_module._wcodec = True  # type: ignore[attr-defined]
    kind._create_new_module = staticmethod(create_new_module)
    kind._replace_module = replace_module
    ModulesToSaveWrapper.update = update_saved
    tuners_utils._maybe_include_all_linear_layers = expand_all_linear


def _refuse_tokens() -> None:
    """Has PEFT refuse to train some rows of a compressed table when the layer for that is made: it would fail later, in
    words that help nobody."""
    try:
        from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
    except ImportError:
        # A PEFT without such layers.
        return
    make = TrainableTokensLayer.__init__

    @functools.wraps(make)
    def init(self: Any, base_layer: Any, *args: Any, **kwargs: Any) -> None:
        if _is_compressed(base_layer):
            from .peft_layers import check_tokens

            check_tokens(base_layer)
        make(self, base_layer, *args, **kwargs)

    TrainableTokensLayer.__init__ = init


def _is_compressed(module: Any) -> bool:
    """Whether that is a compressed layer, or an adapter of one."""
    if "wcodec.nn" not in sys.modules:
        return False
    from ..nn import CompressedLayer

    return isinstance(getattr(module, "base_layer", module), CompressedLayer)
