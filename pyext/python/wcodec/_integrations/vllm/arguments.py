"""Changes to vLLM's settings for compressed models.

vLLM chooses a loader by a load format, not by a model: engines for compressed models get our loader here, unasked.
"""

from __future__ import annotations

import functools
from typing import Any

from ..._core.errors import InputError, UnsupportedError

FORMAT = "wcodec"
# Formats that name no other way of having the weights than that of the folder.
_PLAIN = ("auto", "hf", "safetensors", FORMAT)
_SETTINGS = ("residency", "vram_budget", "cache", "fused", "decode_embeddings")


def install() -> None:
    """Has all engines set up for compressed models. Calling it again does nothing."""
    from vllm.engine.arg_utils import EngineArgs

    made = EngineArgs.create_engine_config
    if getattr(made, "_wcodec", False):
        return

    @functools.wraps(made)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = made(self, *args, **kwargs)
        if config.model_config is not None and config.model_config.quantization == FORMAT:
            adapt(config)
        return config

    create_engine_config._wcodec = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config


def adapt(config: Any) -> None:
    """Changes the settings of an engine for a compressed model.

    :raises InputError: for settings of compressed models that there are not.
    :raises UnsupportedError: for what does not go together with compressed weights.
    """
    settings = engine_settings(config)
    load = config.load_config
    if load.load_format not in _PLAIN:
        raise UnsupportedError(
            f"compressed weights are not loaded by the format '{load.load_format}' (leave --load-format out)",
            code="U502",
        )
    load.load_format = FORMAT
    _refuse_offloading(config)
    if config.parallel_config.enable_eplb:
        raise UnsupportedError(
            "compressed experts cannot be moved between ranks (leave --enable-eplb out)", code="U504"
        )
    if getattr(config.model_config, "enable_sleep_mode", False):
        raise UnsupportedError("compressed weights do not sleep (leave --enable-sleep-mode out)", code="U504")
    residency = settings.get("residency") or record_of(config.model_config).get("residency")
    if residency not in (None, "device"):
        # Streamed layers cannot be in a CUDA graph.
        from vllm.config import CUDAGraphMode

        config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE


def engine_settings(config: Any) -> dict[str, Any]:
    """The settings in ``additional_config={"wcodec": {...}}``."""
    additional = config.additional_config
    settings = additional.get("wcodec", {}) if isinstance(additional, dict) else {}
    if not isinstance(settings, dict) or set(settings) - set(_SETTINGS):
        raise InputError(
            f"additional_config: 'wcodec' takes {', '.join(_SETTINGS)}, not {settings} (change --additional-config)",
            code="I540",
        )
    if settings.get("vram_budget") is not None and settings.get("residency") is None:
        # A budget says which residency is meant, whatever the folder has.
        return {**settings, "residency": "auto"}
    return settings


def record_of(model_config: Any) -> dict[str, Any]:
    """The folder's record of compressed weights; some models have it in the language model's config alone."""
    for config in (model_config.hf_config, model_config.hf_text_config):
        record = getattr(config, "quantization_config", None)
        if isinstance(record, dict):
            return record
    return {}


def _refuse_offloading(config: Any) -> None:
    offload = config.offload_config
    used = offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0
    if used:
        raise UnsupportedError(
            "vLLM's offloading moves no compressed weights (leave it out; --additional-config "
            '\'{"wcodec": {"residency": "host"}}\' keeps them in the host\'s memory)',
            code="U503",
        )
