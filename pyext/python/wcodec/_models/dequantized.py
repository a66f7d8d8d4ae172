"""Models of checkpoints that are quantized already, as values: whatever transformers needs to run them as they are, a
GPU or another package, is not needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .checkpoint import Checkpoint


def is_quantized(config: Any) -> bool:
    """Whether a config says that the weights are quantized, by this package or another."""
    parts = (config, config.get_text_config() if hasattr(config, "get_text_config") else config)
    raw_records = (getattr(part, key, None) for part in parts for key in ("quantization_config", "compression_config"))
    records = [record if isinstance(record, dict) else vars(record) for record in raw_records if record]
    return any(record.get("quant_method") != "wcodec" for record in records)


def dequantized_model(
    config: Any,
    folder: Path,
    dtype: Any,
    trust_remote_code: bool = False,
    weights: Callable[[Any], Checkpoint] | None = None,
) -> Any:
    """The model of a folder, on the CPU.

    :param dtype: the dtype that it computes in; ``"auto"`` for what the config says.
    :param weights: a function that gives the weights of a model of that config, where they are not in the folder.
    :raises UnsupportedError: if its weights are of a method that is not dequantized.
    """
    from .checkpoint import Checkpoint
    from .finish import check_written, describe
    from .names import matched
    from .plain import set_parameters
    from .skeleton import as_ever, skeleton
    from .source import computing_dtype_of

    checkpoint = None if weights else Checkpoint(folder)
    compute = computing_dtype_of(config, folder, None if dtype == "auto" else dtype)
    with as_ever():
        model = skeleton(config, compute, folder, trust_remote_code)
        if checkpoint is None:
            assert weights is not None
            checkpoint = weights(model)
        matching = matched(model, checkpoint)
        set_parameters(model, matching, checkpoint.__getitem__, torch.device("cpu"))
        check_written(model, str(folder))
        describe(model, folder)
    return model.eval()


__all__ = ["dequantized_model", "is_quantized"]
