"""Weights that an engine cuts and puts together before there are any data.

An engine's loaders take a tensor of a file, narrow it to what their rank has, and copy that into a part of a parameter.
Here both are tensors on the meta device: the one stands for tensors of a container, the other for a layer's weight, and
a copy is written down instead of done. So the engine's own rules say what goes where, for merged matrices, replicas and
experts as for all else, and nothing is read that a rank has no use for.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..._core.errors import InputError

# Virtual tensors by the address of a storage. Each holds its storage, so that no other one has its address meanwhile.
_known: weakref.WeakValueDictionary[int, Virtual] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Region:
    """A rectangle of rows and columns, of what lies in memory as rows of a given width.

    :param transposed: whether it is seen with its columns as rows.
    """

    rows: tuple[int, int]
    cols: tuple[int, int]
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The shape as it is seen, transposed or not."""
        sizes = self.rows[1] - self.rows[0], self.cols[1] - self.cols[0]
        return (sizes[1], sizes[0]) if self.transposed else sizes


class Virtual:
    """Something without data that has a shape, and tensors that stand for parts of it."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.name = name
        self.shape = shape
        base = torch.empty(shape, dtype=dtype, device="meta")
        self.tensor: Deferred = base.as_subclass(Deferred)
        self._address = base.untyped_storage()._cdata
        _known[self._address] = self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor."""
        dtype: torch.dtype = self.tensor.dtype
        return dtype

    def region(self, view: torch.Tensor) -> Region:
        """Which rectangle a view of the tensor is; matrices of a stack lie below each other.

        :raises InputError: if it is none.
        """
        region = self._rectangle(view)
        if region is None:
            raise InputError(
                f"'{self.name}': the engine cuts it into a part of shape {list(view.shape)} and strides "
                f"{list(view.stride())}, which is no rectangle of it (run this model without compression)",
                tensor=self.name,
                code="I539",
            )
        return region

    def _rectangle(self, view: torch.Tensor) -> Region | None:
        width = self.shape[-1]
        with torch._C.DisableTorchFunctionSubclass():
            while view.dim() > 2 and view.shape[0] == 1:
                view = view[0]
            shape, stride, offset = tuple(view.shape), tuple(view.stride()), view.storage_offset()
        if len(shape) != 2 or 0 in shape:
            return None
        row, col = divmod(offset, width)
        if (stride[1] == 1 or shape[1] == 1) and (stride[0] == width or shape[0] == 1):
            return Region((row, row + shape[0]), (col, col + shape[1])) if col + shape[1] <= width else None
        if stride[0] == 1 and (stride[1] == width or shape[1] == 1) and col + shape[0] <= width:
            return Region((row, row + shape[1]), (col, col + shape[0]), transposed=True)
        return None


class Source(Virtual):
    """A tensor of a file.

    :param read: decodes a rectangle of it.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, read: Callable[[Region], torch.Tensor]
    ) -> None:
        super().__init__(name, shape, dtype)
        self.read = read

    def data(self, view: torch.Tensor) -> torch.Tensor:
        """The data of a view."""
        region = self._rectangle(view)
        with torch._C.DisableTorchFunctionSubclass():
            shape, stride, offset = tuple(view.shape), tuple(view.stride()), view.storage_offset()
        if region is not None:
            return self.read(region).reshape(shape)
        full = self.read(Region((0, math.prod(self.shape[:-1])), (0, self.shape[-1])))
        return torch.as_strided(full.contiguous(), shape, stride, offset).clone()


@dataclass(frozen=True)
class Copy:
    """A copy into a part of a placeholder, recorded instead of done."""

    where: Region
    source: Source | None
    """None where it was an ordinary tensor."""
    part: Region | None
    tensor: torch.Tensor | None


class Placeholder(Virtual):
    """A weight of a layer, and all that was copied into it, in order. A part that is copied again counts once, as last.

    ``parameter`` is what the layer has meanwhile: a parameter without data.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(name, shape, dtype)
        self.parameter = torch.nn.Parameter(self.tensor, requires_grad=False)
        self.copies: list[Copy] = []
        # Whether a part of it is none: of a vocabulary that has less rows than there are ranks.
        self._empty = False

    def check(self, padded: bool = False) -> None:
        """Raises if there are rows that nothing was copied into, which would be zeros.

        :param padded: whether some are meant to be, as those of a vocabulary beyond its words.
        """
        seen = torch.zeros(math.prod(self.shape[:-1]), dtype=torch.int64)
        for copy in self.copies:
            seen[slice(*copy.where.rows)] += copy.where.cols[1] - copy.where.cols[0]
        missing = int((seen < self.shape[-1]).sum())
        if missing and not (padded and (self.copies or self._empty)):
            raise InputError(
                f"'{self.name}': the folder has nothing for {missing:,} of its {len(seen):,} rows "
                "(save the model again)",
                tensor=self.name,
                code="I507",
            )

    def copy(self, view: torch.Tensor, other: torch.Tensor) -> None:
        """Notes ``view.copy_(other)``."""
        if tuple(view.shape) != tuple(other.shape):
            raise InputError(
                f"'{self.name}': {list(other.shape)} is copied into {list(view.shape)} (the config of a folder belongs "
                "to its weights: save both again)",
                tensor=self.name,
                code="I539",
            )
        if 0 in view.shape:
            self._empty = True
            return
        if view.dim() == 3:
            for own_part, its in zip(view, other, strict=True):
                self.copy(own_part, its)
            return
        where = self.region(view)
        source = virtual(other)
        if isinstance(source, Source):
            made = Copy(where, source, source.region(other), None)
        else:
            made = Copy(where, None, None, other.detach().to("cpu", copy=True))
        self.copies = [copy for copy in self.copies if copy.where != where]
        self.copies.append(made)


def virtual(tensor: object) -> Virtual | None:
    """The virtual tensor that a deferred tensor stands for; None for any other tensor."""
    if not isinstance(tensor, Deferred):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return _known.get(tensor.untyped_storage()._cdata)


class Deferred(torch.Tensor):  # type: ignore[misc]
    """Stands for a part of a :class:`Virtual`. Views are such parts too; a source gives its data to all else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "copy_":
            return _copied(*args, **kwargs)
        target = virtual(args[0]) if args else None
        if target is not None and name == "__setitem__" and isinstance(args[2], torch.Tensor):
            _copied(args[0][args[1]], args[2])
            return None
        changed = target if target is not None and _changes(name, args) else virtual(kwargs.get("out"))
        if changed is not None:
            raise InputError(
                f"'{changed.name}': the model's loader changes it in place, by {name} (run this model without "
                "compression)",
                tensor=changed.name,
                code="I539",
            )
        if target is not None and (name in _KEPT or (name in _CLEARED and isinstance(target, Placeholder))):
            return args[0]
        if not any(isinstance(virtual(value), Source) for value in _flat((args, kwargs))):
            return super().__torch_function__(func, types, args, kwargs)
        try:
            result = super().__torch_function__(func, types, args, kwargs)
        except (NotImplementedError, RuntimeError):
            return func(*_with_data(args), **_with_data(kwargs))
        if all(virtual(out) is not None for out in _flat(result) if isinstance(out, Deferred)):
            return result
        return func(*_with_data(args), **_with_data(kwargs))


def _changes(name: str, args: Any) -> bool:
    """Whether a function changes its first argument, in a way that is not noted. Zeros are what is there anyway."""
    if name in ("__setitem__", "fill_"):
        return bool(args[-1] != 0)
    in_place = name.endswith("_") and not name.startswith("__")
    return name in _AUGMENTED or (in_place and name not in (*_CLEARED, *_HARMLESS))


_AUGMENTED = {"__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__iand__", "__ior__", "__ixor__"}
_HARMLESS = {"requires_grad_", "detach_", "share_memory_"}
# Functions that give a deferred tensor itself: it has no data that could lie otherwise, or elsewhere.
_KEPT = {"contiguous", "clone", "pin_memory"}
# Placeholders are zero wherever nothing is copied into them, so that clearing them changes nothing.
_CLEARED = {"fill_", "zero_"}


def _flat(value: Any) -> Iterator[Any]:
    """All that is in it."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from _flat(one)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


def _copied(target: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    place = virtual(target)
    if isinstance(place, Placeholder):
        place.copy(target, other)
        return target
    if place is not None:
        raise InputError(
            f"'{place.name}': a tensor of a file is written to (load it once)", tensor=place.name, code="I539"
        )
    return target.copy_(_with_data(other), *args, **kwargs)


def _with_data(value: Any) -> Any:
    """The value with its data, and all that is in it."""
    if isinstance(value, tuple | list):
        return type(value)(_with_data(one) for one in value)
    if isinstance(value, dict):
        return {key: _with_data(one) for key, one in value.items()}
    if not isinstance(value, Deferred):
        return value
    source = virtual(value)
    if isinstance(source, Source):
        return source.data(value)
    name = source.name if source is not None else "a weight"
    raise InputError(
        f"'{name}': its data are asked for before there are any (run this model without compression)", code="I539"
    )
