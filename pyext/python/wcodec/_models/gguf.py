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
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._core.errors import FormatError, InputError, UnsupportedError
from .._core.foreign import MOST_LAYERS, by_transformers, cause
from .._core.options import shown
from .._file import quantized
from .._file.gguf import GgufFile
from .._gpu import torch as _torch
from . import gguf_config
from .checkpoint import Checkpoint
from .gguf_rules import FLOATS, rules_for

# Folders of models in memory, which read their tokenizers from there: until the process ends.
_kept: list[tempfile.TemporaryDirectory[str]] = []


class GgufModel:
    """A model in a file, and a folder with its config and its tokenizer, as transformers writes them.

    :param dtype: the dtype of its weights, whatever they are stored in; if left out, as
        :attr:`wcodec._file.gguf.GgufFile.dtype` says.
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
                code="I507",
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

    def metadata(self) -> dict[str, str]:
        """The file's statements of its origin."""
        items = self.file.metadata.items()
        return {key: value for key, value in items if key.startswith("general.") and not value.startswith("list of ")}


class GgufCheckpoint(Checkpoint):
    """The tensors of a GGUF file under the names of a model, each read and decoded when it is asked for.

    Matrices are in one dtype, whatever they are stored in; vectors stay as they are.

    :param model: a model without weights.
    """

    is_local = False

    def __init__(self, file: GgufFile, model: Any, dtype: torch.dtype) -> None:
        self.path, self.files = file.path, [file.path.name]
        self.quantized = quantized.NOTHING
        self._wanted = dtype
        self._shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        with by_transformers(file.path, "cannot name its weights"):
            self._rules = rules_for(file, model, _word(dtype))
        self._sources = self._rules.sources
        self._stack: tuple[str, torch.Tensor] | None = None

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
        return all(part.dtype is None or part.dtype in FLOATS for part in self._sources[key])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrices."""
        return self._wanted

    def dtype_name(self, key: str) -> str:
        """The dtype of a tensor's values, as safetensors files call it."""
        if not self.is_float(key):
            return self._sources[key][0].dtype or "F32"
        return _word(self._wanted) if len(self.shape(key)) > 1 else "F32"

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
        with by_transformers(self.path, f"cannot make '{key}' of it"):
            made = self._rules.value(key)
        if made is None or tuple(made.shape) != self.shape(key):
            made_shape = None if made is None else list(made.shape)
            raise FormatError(
                f"{self.path}: '{key}' would be {made_shape}, not {list(self.shape(key))} (upgrade transformers)",
                file=self.path,
                tensor=key,
                code="F113",
            )
        return made.to(self._wanted) if made.is_floating_point() and made.dim() > 1 else made


def _word(dtype: torch.dtype) -> str:
    return {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]


def _require() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedError("models need transformers (pip install torch transformers accelerate)", code="U202")
    if importlib.util.find_spec("gguf") is None:
        raise UnsupportedError(
            "the package gguf, which reads the names of a GGUF file's weights, is not installed (pip install gguf; or "
            "name an output that ends with .wcodec, which keeps the file's own names)",
            code="U203",
        )


def _describe(file: GgufFile, folder: Path, dtype: torch.dtype) -> None:
    """Writes the config and the tokenizer of a file."""
    import transformers

    where, name = os.fspath(file.path.absolute().parent), file.path.name
    try:
        config = transformers.AutoConfig.from_pretrained(where, gguf_file=name)
        what = ""
    except Exception as error:
        what = cause(error)
    if what:
        raise UnsupportedError(
            f"{file.path}: transformers {transformers.__version__} makes no config of a GGUF file of architecture "
            f"{shown(file.architecture)}: {what} (upgrade transformers; or name an output that ends with .wcodec, "
            "which keeps the file's own names)",
            file=file.path,
            code="U304",
        )
    with by_transformers(file.path, "makes no config of it"):
        if not config.architectures:
            config.architectures = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
        config.dtype = dtype
        gguf_config.restore(file, config)
        config.save_pretrained(folder)
        ids = {key: getattr(config, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        transformers.GenerationConfig(**ids).save_pretrained(folder)
    try:
        with by_transformers(file.path, "makes no tokenizer of it"):
            transformers.AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(folder)
    except FormatError as error:
        warnings.warn(f"{error}: the model goes without one", UserWarning, stacklevel=2)


__all__ = ["GgufCheckpoint", "GgufModel"]
