"""transformers' own loading of models that :func:`wcodec.save_pretrained` wrote.

``AutoModelForCausalLM.from_pretrained(folder)`` finds the method ``wcodec`` in the folder's config, and needs a
quantizer of that name: :func:`register` gives it one. Importing wcodec calls it when transformers is there already, or
is imported later; transformers itself is never imported for that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ._errors import InputError, UnsupportedError

METHOD = "wcodec"


def register() -> None:
    """Makes the quantization method ``wcodec`` known to transformers. Calling it again does nothing.

    :raises UnsupportedError: if transformers is not installed, or is too old to take methods of others.
    """
    try:
        from transformers.quantizers import auto
        from transformers.quantizers.base import HfQuantizer
        from transformers.utils.quantization_config import QuantizationConfigMixin
    except ImportError:
        raise UnsupportedError("transformers is not installed (pip install torch transformers accelerate)") from None
    from .nn import CompressedLayer
    from .nn._placement import checked_settings

    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    if not hasattr(auto, "register_quantizer"):
        raise UnsupportedError("this transformers takes no other quantization methods (install version 5 or later)")

    class WCodecConfig(QuantizationConfigMixin):  # type: ignore[misc]
        """What a model's config says about its compressed weights.

        :param file: the ``.wcodec`` file in the model's folder.
        :param residency: ``device``, ``host`` or ``auto``, as for :func:`wcodec.compress_`.
        :param vram_budget: for ``auto``, a size as for :func:`wcodec.compress_`.
        :param cache: a size as for :func:`wcodec.compress_`.
        :raises InputError: for a residency that there is not, a size that is none, a budget without ``auto``.
        """

        def __init__(
            self,
            file: str = "model.wcodec",
            residency: str = "device",
            scheme: str = "",
            coder: str = "",
            vram_budget: int | str | None = None,
            cache: int | str | None = None,
            **_: Any,
        ) -> None:
            checked_settings(residency, vram_budget, cache)
            self.quant_method = METHOD
            self.file, self.residency, self.scheme, self.coder = file, residency, scheme, coder
            self.vram_budget, self.cache = vram_budget, cache

    class WCodecQuantizer(HfQuantizer):  # type: ignore[misc]
        """Puts compressed layers into a model before transformers reads the few weights that are left."""

        requires_calibration = False

        def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
            _put_layers(model, self.quantization_config, kwargs)

        def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
            layers = [m for m in model.modules() if isinstance(m, CompressedLayer)]
            for layer in layers:
                layer._bare = False
            for store in {id(layer._store): layer._store for layer in layers}.values():
                store.prepare()
            model.requires_grad_(False)
            return model

        def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
            """Not by transformers: :func:`wcodec.save_pretrained` saves."""
            return False

        @property
        def is_trainable(self) -> bool:
            """Adapters beside compressed weights train, such as PEFT's; ``Trainer`` asks for some."""
            return True

        @property
        def is_compileable(self) -> bool:
            """The layers are operators that ``torch.compile`` takes."""
            return True

        def _dequantize(self, model: Any, dtype: Any = None) -> Any:
            from ._models._replace import decompress_

            decompress_(model)
            return model if dtype is None else model.to(dtype)

    for made in (WCodecConfig, WCodecQuantizer):
        # Pickles of models find the classes by this module and their names.
        made.__qualname__ = made.__name__
        globals()[made.__name__] = made
    auto.register_quantization_config(METHOD)(WCodecConfig)
    auto.register_quantizer(METHOD)(WCodecQuantizer)


def __getattr__(name: str) -> Any:
    """The classes, for a pickle that is read before transformers is imported."""
    if name in ("WCodecConfig", "WCodecQuantizer"):
        register()
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _put_layers(model: Any, config: Any, options: dict[str, Any]) -> None:
    """Replaces layers of a model without weights by those of its folder's container."""
    import torch

    from ._container import Container
    from ._models._find import groups, routed
    from ._models._load import stored_candidates
    from ._models._names import match, tie
    from ._models._replace import replace
    from .nn import CompressedLayer
    from .nn._layer import computing_dtype
    from .nn._placement import checked_settings
    from .nn._store import Store

    files = options.get("checkpoint_files") or []
    if not files:
        raise InputError("there is no model.safetensors beside the .wcodec file (save it with wcodec.save_pretrained)")
    device = _single_device(options.get("device_map"))
    # The model was built in the dtype that is wanted.
    dtype = computing_dtype(next(p.dtype for p in model.parameters() if p.is_floating_point()))
    path = Path(files[0]).parent / Path(config.file).name
    container = Container.open(path)
    tie(model)
    found = match(model, container)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, key in found.whole.items():
        if name in parameters and container[key].shape != tuple(parameters[name].shape):
            raise InputError(
                f"the container is not that of this model: {name} is {list(container[key].shape)}, not "
                f"{list(parameters[name].shape)} (put the config.json and the .wcodec file of one model together)",
                file=str(path),
                tensor=key,
            )
    candidates = stored_candidates(model, found, container, dtype)
    if found.extra or not candidates:
        what = f"it has {', '.join(found.extra[:5])}" if found.extra else "it has none of its layers"
        raise InputError(
            f"the container is not that of this {type(model).__name__}: {what} "
            "(put the config.json and the .wcodec file of one model together)",
            file=str(path),
        )
    settings = checked_settings(config.residency, config.vram_budget, config.cache)
    store = Store(container, groups(candidates), routed=routed(model, candidates), **settings)
    replace(model, candidates, store, dtype=dtype, device=torch.device(device))
    for layer in model.modules():
        if isinstance(layer, CompressedLayer):
            layer._bare = True
    # Layers that share a stored tensor are tied by that; transformers ties parameters.
    left = dict(model.named_parameters(remove_duplicate=False))
    tied = getattr(model, "all_tied_weights_keys", {})
    model.all_tied_weights_keys = {k: v for k, v in tied.items() if k in left and v in left}


def _single_device(device_map: Any) -> Any:
    """The one device of a map of transformers; the CPU if none is given."""
    import torch

    if device_map is None:
        # Not torch's default device: that is "meta" while transformers builds a model.
        return torch.device("cpu")
    places = {str(place) for place in device_map.values()} if isinstance(device_map, dict) else {str(device_map)}
    if len(places) != 1 or not places <= {"cpu", *(p for p in places if p.startswith("cuda") or p.isdigit())}:
        raise InputError(
            f"compressed layers go to one device, not {', '.join(sorted(places))} (pass device_map='cuda' or 'cpu')"
        )
    place = places.pop()
    if place == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cuda", int(place)) if place.isdigit() else torch.device(place)
