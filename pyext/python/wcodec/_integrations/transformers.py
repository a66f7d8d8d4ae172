"""transformers' own loading of models with compressed weights.

``AutoModelForCausalLM.from_pretrained(folder)`` finds the method ``wcodec`` in the config of a folder that was saved
so, or is given a :class:`WCodecConfig` and compresses while it loads; both need a quantizer of that name:
:func:`register` gives transformers one. Importing wcodec calls it when transformers is there already, or is imported
later; transformers itself is never imported for that.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._core.coding import CodingOptions
from .._core.errors import InputError, UnsupportedError
from .._core.keywords import given, keywords
from . import from_pretrained

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from .._core.coding import Calibration, Rules

METHOD = "wcodec"
# The module by which pickles of models find the classes, whatever it imports them from.
_PICKLED = "wcodec._transformers"
# Options of it that are not the encoder's.
_CALIBRATION = ("calibrate", "calibration_tokens", "device", "feedback")
# Settings that a config need not say.
_DEFAULTS = (("embeddings", True), ("optimize", "speed"), ("fused", True))


class _ConfigOptions(CodingOptions, total=False):
    """Keywords of a config beside those in its signature."""

    device: str | torch.device | None
    """The device that calibration computes on."""
    quant_method: str
    """``wcodec``, as files of configs say."""


@keywords()
def register() -> None:
    """Makes the quantization method ``wcodec`` known to transformers. Calling it again does nothing.

    :raises UnsupportedError: if transformers is not installed, or is too old to take methods of others.
    """
    try:
        from transformers.quantizers import auto
        from transformers.quantizers.base import HfQuantizer
        from transformers.utils.quantization_config import QuantizationConfigMixin
    except ImportError:
        raise UnsupportedError(
            "transformers is not installed (pip install torch transformers accelerate)", code="U202"
        ) from None
    from ..nn import CompressedLayer
    from ..nn._weights.placement import checked_settings

    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    if not hasattr(auto, "register_quantizer"):
        raise UnsupportedError(
            "this transformers takes no other quantization methods (install version 5 or later)", code="U204"
        )

    class WCodecConfig(QuantizationConfigMixin):  # type: ignore[misc]
        """Settings for transformers to compress a model that it loads, or a folder's record of its compressed weights::

            from transformers import AutoModelForCausalLM
            model = AutoModelForCausalLM.from_pretrained(
                "path/to/model", quantization_config=wcodec.WCodecConfig(bits=4), device_map="cuda"
            )
            model.save_pretrained("model-compressed")
            model = AutoModelForCausalLM.from_pretrained("model-compressed", device_map="cuda")

        Weights are compressed tensor by tensor while they are read: the model is never in memory as it was.

        :param scheme: as for :func:`wcodec.compress_`, as is all that follows; ``rate`` where ``bits`` are given.
        :param bits: with scheme ``rate``, bits per weight, 1 to 8.
        :param coder: ``rans``, ``huffman``, ``zstd`` or ``raw``; what ``optimize`` says if left out.
        :param calibrate: with scheme ``rate``, statistics or what they are collected on; as for
            :func:`wcodec.load_model`, the weights alone choose if it is left out.
        :param trellis: with scheme ``rate``, whether levels are chosen by a trellis.
        :param rules: other encodings for layers whose names match a pattern.
        :param residency: ``device``, ``host``, ``auto``, or for a folder that is compressed already ``disk``. If left
            out, ``auto`` with a budget, and otherwise as the folder says, or ``device``.
        :param vram_budget: for ``auto``, a size.
        :param ram_budget: for ``auto``, a size.
        :param cache: a size, or ``auto``.
        :param include: glob patterns of layers to compress; all if left out.
        :param exclude: glob patterns of layers to leave as they are.
        :param embeddings: whether embeddings are compressed.
        :param file: the ``.wcodec`` file of a folder that was saved.
        :param optimize: ``speed`` or ``size``.
        :param fused: whether GPUs multiply few tokens straight from compressed weights.
        :param options: options that few need, by name: see :class:`CodingOptions`; and ``device``, where calibration
            computes.
        :raises InputError: for options that there are not or that make no sense, before anything is read.

        With a folder that is compressed already, ``residency``, ``vram_budget``, ``ram_budget`` and ``cache`` count
        instead of what it says; asking for another encoding is an error.
        """

        @keywords(_ConfigOptions, name="WCodecConfig")
        def __init__(
            self,
            scheme: str | None = None,
            bits: float | None = None,
            coder: str | None = None,
            residency: str | None = None,
            vram_budget: int | str | None = None,
            cache: int | str | None = None,
            include: str | Iterable[str] = (),
            exclude: str | Iterable[str] = (),
            embeddings: bool = True,
            file: str | None = None,
            ram_budget: int | str | None = None,
            *,
            calibrate: Calibration | None = None,
            trellis: bool | None = None,
            rules: Rules | None = None,
            optimize: str = "speed",
            fused: bool = True,
            **options: Unpack[_ConfigOptions],
        ) -> None:
            from .._core.options import patterns

            checked_settings(residency, vram_budget, cache, ram_budget)
            options.pop("quant_method", None)
            others = given({"calibrate": None if calibrate is False else calibrate, "trellis": trellis, "rules": rules})
            self.quant_method = METHOD
            self.scheme, self.bits, self.coder, self.residency = scheme, bits, coder, residency
            self.vram_budget, self.ram_budget, self.cache, self.file = vram_budget, ram_budget, cache, file
            self.include, self.exclude = patterns("include", include), patterns("exclude", exclude)
            self.embeddings, self.optimize, self.options = bool(embeddings), optimize, {**others, **options}
            self.fused = bool(fused)
            _check(self)

        @classmethod
        def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
            """The config that ``config.json`` describes. Settings that a later version may have added are left out."""
            known = {*inspect.signature(cls.__init__).parameters, "options"} - {"self"}
            record = {name: value for name, value in config_dict.items() if name in known}
            record.update(record.pop("options", None) or {})
            if not record.get("file"):
                record["file"] = "model.wcodec"
            # It says how weights were encoded, which need not be how they could be.
            budgets = record.get("vram_budget") or record.get("ram_budget")
            config = cls(residency=record.get("residency", "auto" if budgets else "device"), **_settings(record))
            for name in ("scheme", "bits", "coder", "file"):
                setattr(config, name, record.get(name, getattr(config, name)))
            return (config, kwargs) if return_unused_kwargs else config

        def encoding(self) -> dict[str, Any]:
            """Options for :func:`wcodec.compress`."""
            bits = {} if self.bits is None else {"bits": self.bits}
            coding = {"optimize": self.optimize, "coder": self.coder}
            return {"scheme": self.scheme, **coding, **bits, **self.options}

        def to_dict(self) -> dict[str, Any]:
            """The settings that JSON can hold, without those that were left out."""
            options = {k: v for k, v in self.options.items() if isinstance(v, str | int | float | bool | dict | list)}
            values = {**{k: v for k, v in self.__dict__.items() if k != "options"}, **options}
            values.pop("of_quantized", None)
            return {k: v for k, v in values.items() if v not in (None, []) and (k, v) not in _DEFAULTS}

    class WCodecQuantizer(HfQuantizer):  # type: ignore[misc]
        """Puts compressed layers into a model before transformers reads the few weights that are left."""

        requires_calibration = False
        _device_map: Any = None

        def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
            super().__init__(quantization_config, **kwargs)
            # The checkpoint's own config describes its quantized codes, not compressed weights.
            if getattr(quantization_config, "of_quantized", False):
                self.pre_quantized = False

        def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
            from .._models import parallel
            from . import quantizer

            self._device_map = kwargs.get("device_map")
            put = quantizer.put_layers if self.pre_quantized else quantizer.compress_layers
            with parallel.together(parallel.ranks_of(model)):
                parallel.check(model, self.pre_quantized)
                put(model, self.quantization_config, kwargs)

        def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
            from .._models import device_map as _device_map
            from .._models import parallel
            from ..nn._fusion.fuse import arrange

            rank = parallel.ranks_of(model)
            with parallel.together(rank):
                parallel.check(model, self.pre_quantized)
                _device_map.settle(model, self._device_map)
                if rank is not None:
                    parallel.divide(model, rank)
                layers = [m for m in model.modules() if isinstance(m, CompressedLayer)]
                for layer in layers:
                    layer._bare = False
                for store in {id(layer._store): layer._store for layer in layers}.values():
                    store.prepare()
                if self.quantization_config.fused:
                    arrange(model)
            model.requires_grad_(False)
            return model

        def validate_environment(self, *args: Any, **kwargs: Any) -> None:
            """Takes note of the device map that transformers has made, if it has.

            :raises InputError: for entries that compressed layers cannot follow.
            """
            from .._models.device_map import check_map

            if self.pre_quantized:
                # A direct registration may have come before transformers' module was there.
                from_pretrained.install()
                from_pretrained.check()
            device_map = kwargs.get("device_map")
            if isinstance(device_map, dict):
                check_map(device_map)
                self._device_map = device_map

        def param_element_size(self, model: Any, param_name: str, param: Any) -> float:
            """Bytes of an element: of what stands for a compressed weight, all of its compressed bytes."""
            from .._models.device_map import element_size

            element = element_size(model, param_name, param)
            size: float = super().param_element_size(model, param_name, param) if element is None else element
            return size

        # Plans for several ranks stay as they are: compressed layers follow them. Before 5.21 they are those of the
        # config, from then on those of the model.

        def update_tp_plan(self, config: Any) -> Any:
            """The config as it is."""
            return config

        def update_ep_plan(self, config: Any) -> Any:
            """The config as it is."""
            return config

        def update_parallel_plan(self, model: Any, plan: dict[str, str]) -> None:
            """Nothing."""

        def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
            """False: transformers does not save it, since the model's ``save_pretrained`` is ours."""
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
            from .._models.replace import decompress_

            decompress_(model)
            return model if dtype is None else model.to(dtype)

    for made in (WCodecConfig, WCodecQuantizer):
        made.__module__, made.__qualname__ = _PICKLED, made.__name__
        globals()[made.__name__] = made
    auto.register_quantization_config(METHOD)(WCodecConfig)
    auto.register_quantizer(METHOD)(WCodecQuantizer)
    _take_quantized(auto.AutoHfQuantizer, WCodecConfig)


def _take_quantized(kind: Any, config: type[Any]) -> None:
    """Has transformers take a :class:`WCodecConfig` for a checkpoint that is quantized already, whose config says how:
    it refuses a config of another class, and what can be dequantized and what cannot is for the reader to say."""
    merge = kind.merge_quantization_configs

    def merged(cls: Any, quantization_config: Any, quantization_config_from_args: Any) -> Any:
        stored_config = quantization_config
        method = (
            stored_config.get("quant_method")
            if isinstance(stored_config, dict)
            else getattr(stored_config, "quant_method", None)
        )
        if isinstance(quantization_config_from_args, config):
            made = copy.copy(quantization_config_from_args)
            if method == METHOD:
                return _settled(stored_config, made)
            made.of_quantized = True
            return made
        return merge(quantization_config, quantization_config_from_args)

    kind.merge_quantization_configs = classmethod(merged)


def _settled(stored_config: Any, asked: Any) -> Any:
    """A config of compressed weights, with what was asked for of where they are.

    :raises InputError: if another encoding was asked for.
    """
    from .._models.already import is_left_out

    config = (
        copy.copy(stored_config)
        if isinstance(stored_config, type(asked))
        else type(asked).from_dict(dict(stored_config))
    )
    encoding = {"scheme": asked.scheme, "bits": asked.bits, "coder": asked.coder if asked.coder != "rans" else None}
    more = {"include": asked.include, "exclude": asked.exclude, **asked.options}
    other = [name for name, value in encoding.items() if value not in (None, getattr(config, name))]
    other += [name for name, value in more.items() if not is_left_out(value)]
    other += [] if asked.embeddings else ["embeddings"]
    if other:
        raise InputError(
            f"WCodecConfig: the model is compressed already, so that {', '.join(f'{name}=' for name in other)} has no "
            "meaning (leave it out, or encode the original again)",
            code="I305",
        )
    residency = asked.residency
    if residency is None and (asked.vram_budget is not None or asked.ram_budget is not None):
        residency = "auto"
    if residency is not None:
        # Budgets of the folder go with its own residency.
        config.residency, config.vram_budget, config.ram_budget = residency, asked.vram_budget, asked.ram_budget
    if asked.cache is not None:
        config.cache = asked.cache
    return config


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config that say where weights are."""
    return {name: given.get(name) for name in ("vram_budget", "ram_budget", "cache")}


def _check(config: Any) -> None:
    """Raises what is wrong with a config, before a model is read."""
    from .._core.option_table import LEAST_BITS, MOST_BITS
    from .._core.options import encode_options

    if isinstance(config.bits, int | float) and not LEAST_BITS <= config.bits <= MOST_BITS:
        raise InputError(f"{config.bits} bits per weight (ask for {LEAST_BITS:g} to {MOST_BITS:g})", code="I308")
    encode_options(**{name: value for name, value in config.encoding().items() if name not in _CALIBRATION})


def __getattr__(name: str) -> Any:
    """The classes, which need transformers: for those who ask, and a pickle that is read before it is imported."""
    if name in ("WCodecConfig", "WCodecQuantizer"):
        register()
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
