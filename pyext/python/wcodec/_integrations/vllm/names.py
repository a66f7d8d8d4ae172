"""Names of a checkpoint for the parameters of a model of transformers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch

from ..._core.errors import WcodecError
from ..._core.foreign import cause, class_of

_log = logging.getLogger(__name__)


def as_saved(config: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as transformers would save them: since version 5 some models have other names than their checkpoints,
    and experts in stacks. Tensors without such a name stay, as all do where transformers does not know the model."""
    try:
        return _reverted(config, dict(tensors))
    except WcodecError:
        raise
    except Exception as error:
        _log.warning("names are taken as they are in the file, since transformers cannot say others (%s)", cause(error))
        return dict(tensors)


def _reverted(config: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    config = copy.deepcopy(config)
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    kind = class_of(config)
    if kind is None:
        return tensors
    with torch.device("meta"):
        model = kind._from_config(config)
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known.update(name for name, _ in model.named_buffers())
    # Tensors of a folder that was encoded have a checkpoint's names already.
    others = {name: tensor for name, tensor in tensors.items() if name not in known}
    reverted = revert_weight_conversion(model, {name: t for name, t in tensors.items() if name in known})
    return {**others, **reverted}
