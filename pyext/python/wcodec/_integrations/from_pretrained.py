"""The way of transformers' ``from_pretrained`` to the weights of a folder that has them all in its container.

The folder's config names the container as the file of weights (``transformers_weights``), and transformers refuses a
file that it does not know: nobody gets a model of random weights. Two functions of transformers are told of it here:
the one that finds files takes the container, fetched from the Hub with the options of the call, and the one that reads
them is given what is not compressed, as if it were of a ``.safetensors`` file. Compressed layers are put in between, by
the quantizer.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    import torch

ENDING = ".wcodec"
# The attribute of a model by which the quantizer hands on what transformers is to read.
_LEFT = "_wcodec_left"


def install() -> None:
    """Has transformers take containers for files of weights. Calling it again does nothing."""
    from transformers import modeling_utils

    kind = modeling_utils.PreTrainedModel
    find = getattr(modeling_utils, "_get_resolved_checkpoint_files", None)
    read = inspect.getattr_static(kind, "_load_pretrained_model", None)
    if not callable(find) or not isinstance(read, staticmethod | classmethod) or hasattr(find, "_wcodec"):
        # Another transformers is refused by check(), when a folder is loaded.
        return
    modeling_utils._get_resolved_checkpoint_files = _finding(find)
    kind._load_pretrained_model = type(read)(_reading(read.__func__))


def check() -> None:
    """Whether transformers takes containers.

    :raises UnsupportedError: if it has other functions than those that are known.
    """
    from transformers import __version__, modeling_utils

    if not hasattr(getattr(modeling_utils, "_get_resolved_checkpoint_files", None), "_wcodec"):
        raise UnsupportedError(
            f"transformers {__version__} finds the files of a model in a way that this wcodec does not know (load it "
            "with wcodec.load_model, or install transformers 5.24)",
            code="U205",
        )


def _finding(find: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(find)

    @functools.wraps(find)
    def finding(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        file, place = given.get("transformers_explicit_filename"), given.get("pretrained_model_name_or_path")
        if not isinstance(file, str) or not file.endswith(ENDING) or place is None or given.get("gguf_file"):
            return find(*args, **kwargs)
        return [str(_container(os.fspath(place), file, given.get("download_kwargs") or {}))], None

    finding._wcodec = True  # type: ignore[attr-defined]
    return finding


def _container(place: str, file: str, options: Mapping[str, Any]) -> Path:
    """The container of a folder or a repository.

    :raises FileMissingError: if it cannot be had.
    """
    from .._models import hub

    names = ("revision", "subfolder", "token", "cache_dir", "local_files_only", "force_download", "proxies")
    wanted = hub.Options(**{name: options[name] for name in names if options.get(name) is not None})
    if os.path.isdir(place):
        return hub.container_in(Path(place, wanted.subfolder), file)
    return hub.fetched(place, file, wanted)


def _reading(read: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(read)

    @functools.wraps(read)
    def given(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        files = call.arguments.get("checkpoint_files") or []
        if call.arguments.get("state_dict") is not None or not str(next(iter(files), "")).endswith(ENDING):
            return read(*args, **kwargs)
        left = call.arguments["model"].__dict__.pop(_LEFT, None)
        if left is None:
            raise InputError(
                f"{files[0]}: the config names it as the file of weights, and does not say that they are compressed "
                "(put the config.json back that was saved with it)",
                file=str(files[0]),
                code="I512",
            )
        call.arguments["state_dict"] = left
        return read(*call.args, **call.kwargs)

    return given


def hand_on(model: Any, left: Left) -> None:
    """Has transformers read these tensors into a model."""
    model.__dict__[_LEFT] = left


class Left(Mapping[str, "Slice"]):
    """Tensors of a container that transformers reads, by their names. They have the methods that it calls on slices of
    a ``.safetensors`` file.

    :param dtypes: by name, the dtype that the model has some of them in. transformers leaves a tensor of a compressed
        model as it is stored where it knows it by another name.
    """

    def __init__(
        self,
        names: list[str],
        tensors: Mapping[str, torch.Tensor],
        shape: Callable[[str], Any],
        dtypes: Mapping[str, torch.dtype],
    ) -> None:
        self._names, self._tensors, self._shape = dict(zip(names, names, strict=True)), tensors, shape
        self._dtypes = dtypes

    def __getitem__(self, key: str) -> Slice:
        key = self._names[key]
        return Slice(key, self._tensors, tuple(self._shape(key)), self._dtypes.get(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Slice:
    """A tensor that is decoded when a part of it is asked for."""

    def __init__(
        self, key: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype | None
    ) -> None:
        self._key, self._tensors, self._dtype, self.shape = key, tensors, dtype, shape

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Its dtype, as ``.safetensors`` files call it."""
        from .._gpu import torch as _torch

        return _torch.name_of(self._value(), self._key)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._value()[index]

    def _value(self) -> torch.Tensor:
        value = self._tensors[self._key]
        return value if self._dtype is None else value.to(self._dtype)


__all__ = ["Left", "Slice", "check", "hand_on", "install"]
