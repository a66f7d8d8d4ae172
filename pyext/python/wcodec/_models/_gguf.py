"""Models in GGUF files: their config and tokenizer as transformers reads them, and their weights under the names that
the model has.

transformers says which tensor is which parameter and how llama.cpp's conversion changed it (heads are permuted, some
norms are shifted); the package ``gguf`` is needed for that. The weights are read by the native module, tensor by
tensor.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import _quantized, _torch
from .._errors import FormatError, InputError, UnsupportedError
from .._foreign import MOST_LAYERS, by_transformers
from .._gguf import GgufFile, GgufTensor
from . import _gguf_config
from ._checkpoint import Checkpoint

_FLOATS = ("F64", "F32", "F16", "BF16")
# Tensors with which transformers calculates: whatever they are stored in, that is done in float32.
_COMPUTED = ("norm", "ssm_a")
# Folders of models in memory, which read their tokenizers from there: until the process ends.
_kept: list[tempfile.TemporaryDirectory[str]] = []


class GgufModel:
    """A model in a file, and a folder with its config and its tokenizer, as transformers writes them.

    :param dtype: what its weights become, whatever they are stored in; as :attr:`wcodec._gguf.GgufFile.dtype` says if
        left out.
    :raises UnsupportedError: if the package ``gguf`` is missing, or transformers does not know the architecture.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
        self.file = GgufFile(path)
        self.file.check()
        self.dtype = dtype or _torch.dtype_of(self.file.dtype)
        _require()
        layers = self.file.metadata.get(f"{self.file.architecture}.block_count", "0")
        if not layers.isdigit() or int(layers) > min(MOST_LAYERS, len(self.file.tensors)):
            raise InputError(
                f"{path}: it says {layers} layers, and there are {len(self.file.tensors)} tensors (download it again)",
                file=self.file.path,
            )
        self._folder = tempfile.TemporaryDirectory(prefix="wcodec-gguf-")
        self.folder = Path(self._folder.name)
        _describe(self.file, self.folder, self.dtype)

    def __enter__(self) -> GgufModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def keep(self) -> None:
        """Keeps the folder until the process ends."""
        _kept.append(self._folder)

    def checkpoint(self, model: Any) -> GgufCheckpoint:
        """The weights, under the names of a model of this config."""
        return GgufCheckpoint(self.file, model, self.dtype)

    def calibrated(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options with the statistics that ``calibrate`` asks for. Unless they are given, the model runs."""
        if options.get("calibrate") is None:
            return options
        from .._calibrate import is_given, statistics_of
        from ._original import original_model

        options = dict(options)
        device, calibrate = options.get("device") or "cpu", options["calibrate"]
        collecting = {"tokens": options.pop("calibration_tokens", None), "progress": options.get("progress") is True}
        found = statistics_of(
            lambda: original_model(self.file.path, device, "auto")[0],
            calibrate,
            **({} if is_given(calibrate) else collecting),
        )
        return {**options, "calibrate": found}

    def metadata(self) -> dict[str, str]:
        """What the file says of where it comes from."""
        found = self.file.metadata.items()
        return {key: value for key, value in found if key.startswith("general.") and not value.startswith("list of ")}


class GgufCheckpoint(Checkpoint):
    """The tensors of a GGUF file under the names of a model, each read and decoded when it is asked for.

    Matrices are in one dtype, whatever they are stored in; vectors stay as they are.

    :param model: a model without weights.
    """

    is_local = False

    def __init__(self, file: GgufFile, model: Any, dtype: torch.dtype) -> None:
        self.path, self.files = file.path, [file.path.name]
        self.quantized = _quantized.NOTHING
        self._file, self._wanted = file, dtype
        self._word = _word(dtype)
        self._shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        with by_transformers(file.path, "cannot name its weights"):
            self._processor, self._map = _mapping(file, model)
        self._sources = self._found()
        self._stack: tuple[str, torch.Tensor] | None = None

    def _found(self) -> dict[str, list[GgufTensor]]:
        """By the names of parameters, the tensors that they are made of; tensors that no parameter is made of, such as
        tables of rotations, are left out, as transformers does."""
        out: dict[str, list[GgufTensor]] = {}
        for tensor in self._file.tensors:
            # Experts have no ending in a model.
            name = self._map.get(tensor.name) or self._map.get(tensor.name.removesuffix(".weight"))
            if name is not None:
                out.setdefault(name, []).append(tensor)
        return out

    def __iter__(self) -> Any:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, key: object) -> bool:
        return key in self._sources

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape in the model, without reading it; as the file has it where that cannot be."""
        parts, shape = self._sources[key], self._shapes.get(key)
        fits = shape is not None and int(np.prod(shape, dtype=object)) == sum(part.elements for part in parts)
        return shape if fits and shape is not None else parts[0].shape

    def is_float(self, key: str) -> bool:
        """Whether a tensor has elements that are rounded when it is encoded."""
        return all(part.dtype is None or part.dtype in _FLOATS for part in self._sources[key])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrices."""
        return self._wanted

    def dtype_name(self, key: str) -> str:
        """The dtype of a tensor's values, as safetensors files call it."""
        if not self.is_float(key):
            return self._sources[key][0].dtype or "F32"
        return self._word if len(self.shape(key)) > 1 else "F32"

    def of_stack(self, key: str, index: int) -> torch.Tensor:
        """One matrix of a stack, which is kept for the next ones."""
        if self._stack is None or self._stack[0] != key:
            self._stack = None
            self._stack = key, self[key]
        stack = self._stack[1]
        if index == len(stack) - 1:
            self._stack = None
        return stack[index].clone()

    def stored(self, name: str, index: int | None = None) -> torch.Tensor:
        """A tensor, or one entry of its first dimension."""
        return self[name] if index is None else self.of_stack(name, index)

    def __getitem__(self, key: str) -> torch.Tensor:
        parts = self._sources[key]
        moved = all(len(part.shape) > 1 and not any(word in part.name for word in _COMPUTED) for part in parts)
        word = self._word if moved else "F32"
        stored = {part.dtype or word for part in parts}
        # Where values are only moved, the bits of bfloat16 may be taken for whole numbers; they take half of float32.
        as_bits = moved and stored == {"BF16"}
        parsed: dict[str, dict[str, torch.Tensor]] = {"tensors": {}}
        made: torch.Tensor | None = None
        with by_transformers(self.path, f"cannot make '{key}' of it"):
            for part in parts:
                data = self._file.read(part.name, word)
                alike = moved and len(stored) == 1
                values = data.view(np.int16) if as_bits else _numbers(data, part.dtype or word, alike)
                result = self._processor.process(
                    weights=values.reshape(part.shape), name=part.name, tensor_key_mapping=self._map,
                    parsed_parameters=parsed,
                )  # fmt: skip
                # Where several tensors make one, or a name of its own is wanted, transformers puts it there.
                given = None if result.name is None else torch.from_numpy(np.ascontiguousarray(result.weights))
                made = parsed["tensors"].get(key) if given is None else given
        if made is None or tuple(made.shape) != self.shape(key):
            there = None if made is None else list(made.shape)
            raise FormatError(
                f"{self.path}: '{key}' would be {there}, not {list(self.shape(key))} (upgrade transformers)",
                file=self.path,
                tensor=key,
            )
        if as_bits:
            made = made.view(torch.bfloat16)
        return made.to(self._wanted) if made.is_floating_point() and made.dim() > 1 else made


def _word(dtype: torch.dtype) -> str:
    return {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]


def _numbers(data: np.ndarray[Any, Any], dtype: str, as_stored: bool) -> np.ndarray[Any, Any]:
    """Bytes as numbers: floating point as it is stored, or as float32, which NumPy has in place of bfloat16, too."""
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    kind = {"F": "f", "I": "i", "U": "u"}[dtype[0]]
    values = data.view(f"<{kind}{int(dtype[1:]) // 8}")
    return values if as_stored or dtype not in _FLOATS else values.astype(np.float32)


def _require() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedError("models need transformers (pip install torch transformers accelerate)")
    if importlib.util.find_spec("gguf") is None:
        raise UnsupportedError(
            "the names of a GGUF file's weights are found by the package gguf, which is not installed (pip install "
            "gguf; or name an output that ends with .wcodec, which keeps the file's own names)"
        )


def _mapping(file: GgufFile, model: Any) -> tuple[Any, Mapping[str, str]]:
    """What undoes llama.cpp's changes, and parameters of a model by the names of the file's tensors."""
    from transformers import modeling_gguf_pytorch_utils as rules

    kind = rules.TENSOR_PROCESSORS.get(file.architecture, rules.TensorProcessor)
    processor = kind(config=model.config.get_text_config().to_dict())
    return processor, rules.get_gguf_hf_weights_map(model, processor)


def _describe(file: GgufFile, folder: Path, dtype: torch.dtype) -> None:
    """Writes the config and the tokenizer of a file."""
    import transformers

    where, name = os.fspath(file.path.absolute().parent), file.path.name
    try:
        with by_transformers(file.path, "makes no config of it"):
            config = transformers.AutoConfig.from_pretrained(where, gguf_file=name)
    except FormatError as error:
        raise UnsupportedError(
            f"{error} (transformers {transformers.__version__} reads the architectures that it knows; an output that "
            f"ends with .wcodec is made of any file: this is {file.architecture!r})",
            file=file.path,
        ) from None
    with by_transformers(file.path, "makes no config of it"):
        if not config.architectures:
            config.architectures = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
        config.dtype = dtype
        _gguf_config.restore(file, config)
        config.save_pretrained(folder)
        ids = {key: getattr(config, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        transformers.GenerationConfig(**ids).save_pretrained(folder)
    try:
        with by_transformers(file.path, "makes no tokenizer of it"):
            transformers.AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(folder)
    except FormatError as error:
        warnings.warn(f"{error}: the model goes without one", UserWarning, stacklevel=2)


__all__ = ["GgufCheckpoint", "GgufModel"]
