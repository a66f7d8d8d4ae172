"""The tensors of a container as a model has them: those that are quantized as the checkpoint had them are values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from .._file import quantized as _quantized
from .._file.container import Container
from .._gpu import torch as _torch


class Values(Mapping[str, torch.Tensor]):
    """The tensors that models can have, each decoded when it is asked for: codes become values, and their scales are
    not there.

    :raises UnsupportedError: if the container has weights that another method has quantized.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._quantized = _quantized.of_container(container)
        self._names = dict.fromkeys(self._quantized.names(list(container)))
        self._dtype = _torch.dtype_of(self._quantized.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def has_scales(self, *keys: str) -> bool:
        """Whether any of these says nothing by itself."""
        return any(key in self._quantized.tensors for key in keys)

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape, without decoding it."""
        quantized = self._quantized.tensors.get(key)
        return self._container[key].shape if quantized is None else quantized.shape

    def __getitem__(self, key: str) -> torch.Tensor:
        quantized = self._quantized.tensors.get(key)
        if quantized is None:
            return self._container[key].torch()
        codes, scales = (self._container[name].torch() for name in (quantized.codes, quantized.scales))
        return quantized.values(codes, scales, self._dtype)


__all__ = ["Values"]
