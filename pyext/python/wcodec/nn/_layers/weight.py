"""The tensor that stands for a compressed weight: it is asked for its shape, dtype and device for nothing, and decodes
when its values are used."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from ..._core.errors import InputError
from .gradients import Frozen, Through, any_wanted

T = TypeVar("T")
_AS_IT_IS = torch._C.DisableTorchFunctionSubclass
_READ_ROWS = (torch.ops.aten.embedding.default,)
# Operators whose result is their argument, for whoever only asks for its shape.
_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
# Functions of tensors that are not operators of torch: they read memory, or make something of the object.
_OF_MEMORY = {
    *("numpy", "tolist", "item", "data_ptr", "untyped_storage", "storage", "_typed_storage", "storage_type"),
    *("__array__", "__dlpack__", "__dlpack_device__", "__cuda_array_interface__", "__reduce_ex__", "__repr__"),
    *("__format__", "is_shared", "share_memory_", "is_pinned", "pin_memory"),
}


class Source:
    """Knows where the values of a compressed weight are."""

    layer: Any = None
    """The compressed layer whose weight it is; none where that is not known."""

    def value(self) -> torch.Tensor:
        """All of them, in a tensor of their own."""
        raise NotImplementedError

    def rows(self, ids: torch.Tensor) -> torch.Tensor | None:
        """The rows of these ids, if they can be had without the others."""
        return None

    def part(self, index: int) -> CompressedWeight | None:
        """A weight for one matrix of a stack, if this is a stack of matrices that are compressed one by one."""
        return None

    def cut(self, count: int) -> Source | None:
        """A matrix as a stack of so many that lie one below the other, if these can be decoded one by one."""
        return None

    def frozen(self) -> Frozen | None:
        """An object that multiplies with the weight where gradients pass through, without keeping it decoded."""
        return None

    def same_as(self, layer: Any) -> bool:
        """Whether this is the weight of that layer."""
        return False


class _Given(Source):
    """Values that are decoded already, as the compiler has them."""

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value

    def value(self) -> torch.Tensor:
        return self._value


class CompressedWeight(torch.Tensor):  # type: ignore[misc]
    """A tensor whose values are compressed: ``layer.weight`` of a compressed layer.

    >>> import torch, wcodec.nn
    >>> layer = wcodec.nn.CompressedLinear.from_linear(torch.nn.Linear(64, 32))
    >>> layer.weight.shape, layer.weight.dtype, isinstance(layer.weight, torch.Tensor)
    (torch.Size([32, 64]), torch.float32, True)
    >>> torch.equal(layer.weight, layer.to_linear().weight)
    True

    ``shape``, ``dtype``, ``device`` and their like are known without decoding. Operations on the values decode all of
    them, at most once for each object, and make ordinary tensors; so do copies, pickles and ``numpy()``. Writing into
    it is an error, since nobody would find the values there: ``layer.weight.clone()`` is a tensor to write into, and
    ``torch.nn.Parameter(layer.weight)`` a parameter of its own.
    """

    _source: Source
    # The decoded tensor, once there is one, for all that share it.
    _box: list[torch.Tensor]
    # Whether it is a parameter of somebody else's.
    _owned: bool
    # transformers leaves alone what says so, where it draws weights at random.
    _is_hf_initialized = True
    # Its elements can be read, though they are in another tensor.
    _gives_elements = True

    @staticmethod
    def __new__(
        cls, source: Source, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> CompressedWeight:
        """``source`` has the values, which may be decoded later."""
        weight: CompressedWeight = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=dtype, device=device, requires_grad=False
        )
        weight._source, weight._box, weight._owned = source, [], False
        return weight

    def __init__(self, *_: Any) -> None:
        super().__init__()

    @property
    def _is_param(self) -> bool:
        return self._owned

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        # A parameter of somebody else's, who may train it. It has values of its own.
        if value and not self._owned:
            self._box = [plain(self).clone()]
        self._owned = value

    def _with(self, box: list[torch.Tensor]) -> CompressedWeight:
        weight = CompressedWeight(self._source, self.shape, self.dtype, self.device)
        weight._box = box
        return weight

    # Python's side

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" or not args:
            with _AS_IT_IS():
                return func(*args, **kwargs)
        first = args[0]
        if func is F.linear and _has_gradients(args, kwargs) and (product := _through(args, kwargs)) is not None:
            return product
        if isinstance(first, cls):
            if name == "__set__" and getattr(getattr(func, "__self__", None), "__name__", "") == "data":
                raise first._unwritable()
            if name == "__getitem__" and len(args) == 2 and (part := first._part(args[1])) is not None:
                return part
            if name in ("__iter__", "unbind") and (parts := first._parts(*args[1:], **kwargs)) is not None:
                return iter(parts) if name == "__iter__" else tuple(parts)
            if name in ("view", "reshape") and (stack := first._stack(*args[1:], **kwargs)) is not None:
                return stack
            if name == "__deepcopy__":
                return first._copied(args[1])
            if name == "__setitem__" and not first._owned:
                raise first._unwritable()
            if name in _OF_MEMORY or name == "__setitem__":
                return func(*plain((args, kwargs))[0], **kwargs)
        with _AS_IT_IS():
            return func(*args, **kwargs)

    def _part(self, index: Any) -> CompressedWeight | None:
        if isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype in (torch.int64, torch.int32):
            index = int(index)
        if self._box or type(index) is not int or self.dim() < 3:
            return None
        count = self.shape[0]
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {count}")
        return self._source.part(index % count)

    def _parts(self, dim: int = 0) -> list[CompressedWeight] | None:
        if dim != 0 or self._part(0) is None:
            return None
        return [part for i in range(self.shape[0]) if (part := self._part(i)) is not None]

    def _stack(self, *shape: Any, **keywords: Any) -> CompressedWeight | None:
        """The matrix viewed as a stack of matrices of as many columns, as some experts are stored."""
        if keywords or self._box or self.dim() != 2:
            return None
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        if len(wanted) != 3 or not all(type(n) is int for n in wanted) or sum(n < 0 for n in wanted) > 1:
            return None
        try:
            stack_shape = torch.empty(self.shape, device="meta").view(wanted).shape
        except RuntimeError:
            # torch says what is wrong with it.
            return None
        source = self._source.cut(stack_shape[0]) if stack_shape[2] == self.shape[1] else None
        return None if source is None else CompressedWeight(source, stack_shape, self.dtype, self.device)

    def _copied(self, memo: dict[int, Any]) -> torch.Tensor:
        duplicate = copy.deepcopy(plain(self).detach(), memo)
        if self._owned:
            duplicate = torch.nn.Parameter(duplicate, requires_grad=self.requires_grad)
        memo[id(self)] = duplicate
        return duplicate

    def _unwritable(self) -> InputError:
        layer = self._source.layer
        if layer is None:
            return InputError("a compressed weight cannot be written to (take weight.clone())", code="I532")
        refused: InputError = layer._refuse(
            "its weight is compressed and cannot be written to",
            "take weight.clone(), or wcodec.decompress_ the layer first",
            code="I532",
        )
        return refused

    # torch's side

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, cls):
            if func in _SAME:
                return first._with(first._box)
            if func in _READ_ROWS and not first._box and (rows := first._source.rows(args[1])) is not None:
                return rows
        written = [] if not func._schema.is_mutable else _written(func, args, kwargs)
        for value in written:
            if not value._owned:
                raise value._unwritable()
        result = func(*plain(args), **plain(kwargs))
        return written[0] if written and func._schema.returns and isinstance(result, torch.Tensor) else result

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_decoded"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], _: Any, size: Any, stride: Any) -> torch.Tensor:
        value = inner["_decoded"]
        return CompressedWeight(_Given(value), size, value.dtype, value.device)

    @property
    def _decoded(self) -> torch.Tensor:
        box = self._box
        if not box:
            box.append(self._source.value())
        return box[0]


def plain(values: T) -> T:
    """These values, whatever holds them, with decoded tensors for compressed ones."""
    if isinstance(values, CompressedWeight):
        return values._decoded
    if type(values) is torch.Tensor or type(values) is torch.nn.Parameter:
        return values
    decoded: T = tree_map(lambda value: value._decoded if isinstance(value, CompressedWeight) else value, values)
    return decoded


def _has_gradients(args: Any, kwargs: Any) -> bool:
    return any_wanted([v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)])


def _through(args: Any, kwargs: Any) -> torch.Tensor | None:
    """The product of ``torch.nn.functional.linear`` with a compressed weight that autograd does not keep decoded."""
    given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    x, weight, bias = given.get("input"), given.get("weight"), given.get("bias")
    if not isinstance(weight, CompressedWeight) or weight.requires_grad or isinstance(x, CompressedWeight):
        return None
    frozen = None if weight._box else weight._source.frozen()
    if frozen is None or not isinstance(x, torch.Tensor) or isinstance(bias, CompressedWeight):
        return None
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        # The cast is that of autocast, but where autograd sees it.
        x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
    product: torch.Tensor = Through.apply(x, bias, frozen)
    return product


def _written(func: Any, args: Any, kwargs: Any) -> list[CompressedWeight]:
    """Compressed weights among the arguments that an operator writes to."""
    weights: list[CompressedWeight] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        weights += [
            v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, CompressedWeight)
        ]
    return weights
