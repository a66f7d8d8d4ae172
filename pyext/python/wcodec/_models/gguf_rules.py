"""Tensors of a GGUF file under the names of a model, and as the model has them, by transformers' rules.

transformers has two kinds of them. For new architectures there are conversions, as for checkpoints; for all others,
functions of NumPy undo llama.cpp's changes.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from .._file.gguf import GgufFile, GgufTensor
from .._gpu import torch as _torch
from .rules import Conversion

FLOATS = ("F64", "F32", "F16", "BF16")
# Tensors with which transformers calculates: whatever they are stored in, that is done in float32.
_COMPUTED = ("norm", "ssm_a")


class Rules(Protocol):
    """The rules for one file and one model."""

    sources: dict[str, list[GgufTensor]]
    """The tensors that parameters are made of, by the names of these. Tensors that no parameter is made of, such as
    tables of rotations, are left out, as transformers does."""

    def value(self, key: str) -> torch.Tensor | None:
        """A parameter's values; nothing if the rules make none of its tensors."""


def rules_for(file: GgufFile, model: Any, word: str) -> Rules:
    """The rules of transformers.

    :param word: safetensors' name of the dtype that blocks become.
    """
    try:
        from transformers.integrations.gguf import get_gguf_conversion_mapping, is_gguf_arch_supported
    except ImportError:
        # Versions that have functions alone.
        return _Processed(file, model, word)
    if not is_gguf_arch_supported(file.architecture):
        return _Processed(file, model, word)
    return _Converted(file, model, word, get_gguf_conversion_mapping(file.architecture, model.config))


class _Converted:
    """Conversions."""

    def __init__(self, file: GgufFile, model: Any, word: str, mapping: list[Any]) -> None:
        from transformers import core_model_loading as core

        self._file, self._word = file, word
        self.sources: dict[str, list[GgufTensor]] = {}
        self._conversions: dict[str, Conversion] = {}
        mapping = copy.deepcopy(mapping)
        renamings = [rule for rule in mapping if isinstance(rule, core.WeightRenaming)]
        converters = [rule for rule in mapping if isinstance(rule, core.WeightConverter)]
        known = model.state_dict()
        for tensor in file.tensors:
            name, pattern = core.rename_source_key(tensor.name, renamings, converters)
            if name not in known:
                continue
            self.sources.setdefault(name, []).append(tensor)
            if pattern is not None:
                converter = next(c for c in converters if pattern in c.source_patterns)
                conversion = self._conversions.setdefault(name, Conversion(converter, name, model))
                conversion.add(tensor.name, pattern)

    def value(self, key: str) -> torch.Tensor | None:
        """A parameter's values."""
        conversion = self._conversions.get(key)
        return self._read(self.sources[key][0].name) if conversion is None else conversion.value(key, self._read)

    def _read(self, name: str) -> torch.Tensor:
        tensor = self._file[name]
        return _torch.from_bytes(self._file.read(name, self._word), tensor.dtype or self._word, tensor.shape)


@contextmanager
def _one_table() -> Iterator[None]:
    """transformers makes the table of an architecture's names for each module of a model, which takes most of the time
    of a small one; here it is made once."""
    import gguf

    before = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = functools.cache(before)
    try:
        yield
    finally:
        gguf.get_tensor_name_map = before


class _Processed:
    """Functions of NumPy, whose matrices are only moved: the bits of bfloat16 are whole numbers there, which take half
    of float32."""

    def __init__(self, file: GgufFile, model: Any, word: str) -> None:
        from transformers import modeling_gguf_pytorch_utils as rules

        self._file, self._word = file, word
        kind = rules.TENSOR_PROCESSORS.get(file.architecture, rules.TensorProcessor)
        self._processor = kind(config=model.config.get_text_config().to_dict())
        with _one_table():
            self._names: Mapping[str, str] = rules.get_gguf_hf_weights_map(model, self._processor)
        self.sources: dict[str, list[GgufTensor]] = {}
        for tensor in file.tensors:
            # Experts have no ending in a model.
            name = self._names.get(tensor.name) or self._names.get(tensor.name.removesuffix(".weight"))
            if name is not None:
                self.sources.setdefault(name, []).append(tensor)

    def value(self, key: str) -> torch.Tensor | None:
        """A parameter's values."""
        parts = self.sources[key]
        moved = all(len(part.shape) > 1 and not any(word in part.name for word in _COMPUTED) for part in parts)
        word = self._word if moved else "F32"
        stored = {part.dtype or word for part in parts}
        as_bits, as_stored = moved and stored == {"BF16"}, moved and len(stored) == 1
        parsed: dict[str, dict[str, torch.Tensor]] = {"tensors": {}}
        made: torch.Tensor | None = None
        for part in parts:
            data = self._file.read(part.name, word)
            values = data.view(np.int16) if as_bits else _numbers(data, part.dtype or word, as_stored)
            result = self._processor.process(
                weights=values.reshape(part.shape), name=part.name, tensor_key_mapping=self._names,
                parsed_parameters=parsed,
            )  # fmt: skip
            # transformers puts the result there if several tensors make one.
            given = None if result.name is None else torch.from_numpy(np.ascontiguousarray(result.weights))
            made = parsed["tensors"].get(key) if given is None else given
        return made.view(torch.bfloat16) if as_bits and made is not None else made


def _numbers(data: np.ndarray[Any, Any], dtype: str, as_stored: bool) -> np.ndarray[Any, Any]:
    """Bytes as numbers: floating point as it is stored, or as float32, which NumPy has in place of bfloat16, too."""
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    kind = {"F": "f", "I": "i", "U": "u"}[dtype[0]]
    values = data.view(f"<{kind}{int(dtype[1:]) // 8}")
    return values if as_stored or dtype not in FLOATS else values.astype(np.float32)


__all__ = ["FLOATS", "Rules", "rules_for"]
