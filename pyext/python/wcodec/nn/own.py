"""Modules that compute in their own way with compressed weights: mixtures of any kind, layers of other classes."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from .._core import format as fmt
from .._core.classes import derived
from .._core.errors import InputError
from ._layers import ops
from ._layers.gradients import Frozen
from ._layers.layer import CompressedLayer, FrozenMatrix
from ._layers.weight import CompressedWeight, Source
from ._weights.providers import has_rows, stacked
from ._weights.store import Store
from .embedding import CompressedEmbedding
from .experts import _computing, _thread

_is_compiling = torch.compiler.is_compiling
# The module of transformers that has the forward that chooses.
_CHOOSES = "transformers.integrations.moe"
Names = Mapping[str, Sequence[Sequence[str]]]


class CompressedModule(CompressedLayer):
    """A module of a class of its own, some of whose parameters are compressed: its forward reads them as
    :class:`CompressedWeight`, which decodes what is used of them. A stack ``[experts, ., .]`` is decoded expert by
    expert if they are asked for one by one; if an operation takes the whole stack, all are decoded for it.

    Its objects pass for those of the original class. Made by :func:`wcodec.compress_` and :func:`wcodec.load_model`.
    """

    cut = False
    planned = False
    _held: dict[str, tuple[tuple[str, ...], ...]]
    _shapes: dict[str, tuple[int, ...]]
    _order: tuple[str, ...]
    # Whether all are compressed as a whole; and their names. The compiler looks at these, which are alike in blocks
    # that are.
    _wholes: bool
    _keys: tuple[str, ...]
    _of: type[Any]

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all its tensors, expert by expert."""
        return tuple(name for expert in _by_expert(self._held) for name in expert)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the parameters that are compressed, in the module."""
        return self._keys

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of these parameters."""
        return self._shapes

    @property
    def stored_bytes(self) -> int:
        """Bytes that its weights take in the container, everything counted."""
        return sum(self._store.entry(name).stored_bytes for name in self.tensors)

    @property
    def original_bytes(self) -> int:
        """Bytes of its weights before they were compressed."""
        return sum(self._store.entry(name).original_bytes for name in self.tensors)

    @property
    def weight(self) -> Any:
        """The weight, if it has one of that name."""
        if "weight" in self._keys:
            return self._read("weight")
        return self.__getattr__("weight")

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_keys", ()):
            return self._read(name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_keys", ()):
            self._take(value)
        else:
            torch.nn.Module.__setattr__(self, name, value)

    def _read(self, key: str) -> torch.Tensor:
        if _is_compiling():
            return ops.weight(self._handle, self._keys.index(key), self._shapes[key], self._dtype)
        return CompressedWeight(_OfModule(self, key), self._shapes[key], self._dtype, self._device)

    def _own_weight(self, dtype: torch.dtype | None = None, place: int = 0) -> torch.Tensor:
        return self._whole(self._keys[place], dtype)

    def _whole(self, key: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A parameter, decoded, in a tensor of its own."""
        dtype = dtype or self._dtype
        matrices = [self._matrix(names, self._device, dtype) for names in self._held[key]]
        return matrices[0] if self._is_whole(key) else torch.stack(matrices)

    def _is_whole(self, key: str) -> bool:
        """Whether a parameter is one tensor, and not as many as it has matrices."""
        return len(self._held[key]) == 1

    def _matrix(self, names: Sequence[str], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        store = self._store
        computing = device.type != "cuda" and self in getattr(_thread, "computing", {})
        if computing or store.settings["cache"]:
            # Weights that stay decoded are decoded by their provider; so are the matrices of one expert, together.
            # Those that the CPU decodes are valid as long as a reference to them is held.
            providers = [self._weights.provider_of(name, dtype, device) for name in names]
            if computing:
                return stacked([provider.apply_all(operator.itemgetter(place)) for provider, place in providers])
        return stacked([store.decoded(name, device, dtype) for name in names])

    def rename(self, names: Mapping[str, str]) -> None:
        """Has its tensors under other names, of a store that has the same there."""
        self.__dict__["_held"] = {
            key: tuple(tuple(names[name] for name in parts) for parts in held) for key, held in self._held.items()
        }

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _computing(self, False):
            if not torch.is_grad_enabled():
                return _own_forward(self._of)(self, *args, **kwargs)
            with torch.autograd.graph.saved_tensors_hooks(_pack_saved, _unpack_saved):
                return _own_forward(self._of)(self, *args, **kwargs)

    def to_module(self) -> torch.nn.Module:
        """The original module, with decoded weights."""
        out: torch.nn.Module = object.__new__(self._of)
        torch.nn.Module.__init__(out)
        private_names = set(_MINE) | set(torch.nn.Module().__dict__)
        out.__dict__.update((k, v) for k, v in self.__dict__.items() if k not in private_names)
        out._modules.update(self._modules)
        out._non_persistent_buffers_set = set(self._non_persistent_buffers_set) - {"_marker"}
        out._buffers.update((k, v) for k, v in self._buffers.items() if k != "_marker")
        for key in self._order:
            if key in self._held:
                out._parameters[key] = torch.nn.Parameter(self._whole(key), requires_grad=False)
            else:
                out._parameters[key] = self._parameters[key]
        return out.train(self.training)

    # Copies and files

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_finder", None)
        return state

    def _expect_all(self, store: Store) -> None:
        """Raises where tensors do not make up the parameters."""
        for key, shape in self._shapes.items():
            each = shape if self._is_whole(key) else shape[1:]
            for names in self._held[key]:
                entries = [store.entry(name) for name in names]
                if len(entries) == 1 and entries[0].shape == each:
                    continue
                rows, columns = each[-2:]
                if any(len(e.shape) != 2 or e.shape[1] != columns for e in entries):
                    self._expect(entries[0], each)
                if sum(entry.shape[0] for entry in entries) != rows:
                    raise InputError(
                        f"tensor '{entries[0].name}': too few or many rows for {[rows, columns]} "
                        "(open the container of this model)",
                        tensor=entries[0].name,
                        code="I541",
                    )

    def _replace(self, store: Store) -> None:
        self._replace_all(store, _by_expert(self._held), self._store.tensor_groups.routed, "this module")

    def _form(self) -> str:
        shown = ", ".join(f"{key}={fmt.shape(shape)}" for key, shape in self._shapes.items())
        return f"{self._of.__name__}({shown})"


class CompressedTable(CompressedModule):
    """A :class:`CompressedModule` that is an embedding: rows are looked up."""

    looked_up: ClassVar[bool] = True

    def _rows_of(self, ids: torch.Tensor) -> torch.Tensor | None:
        (names,) = self._held["weight"]
        if len(names) != 1:
            return None
        finder = self.__dict__.get("_finder")
        where = self._store, self._dtype, self._device
        if finder is None or (finder._store, finder._dtype, finder._device) != where:
            place = {"dtype": self._dtype, "device": self._device}
            finder = CompressedEmbedding(self._store, names[0], *self._shapes["weight"], **place)
            # No module of its own for whoever walks over modules.
            self.__dict__["_finder"] = finder
        return finder._look_up(ids)


class _OfModule(Source):
    """The values of a module's parameter, or of one matrix of it; as the module was when it was read."""

    def __init__(self, module: CompressedModule, key: str, index: int | None = None) -> None:
        self.layer = self._module = module
        self._key, self._index = key, index
        self._store, self._device, self._dtype = module._store, module._device, module._dtype

    def same_as(self, layer: CompressedLayer) -> bool:
        """Whether this is a weight of that module."""
        return self._module is layer and self._index is None

    def value(self) -> torch.Tensor:
        module = self._module
        held = module._held[self._key]
        names_of_matrices = held if self._index is None else held[self._index : self._index + 1]
        matrices = [module._matrix(names, self._device, self._dtype) for names in names_of_matrices]
        is_single = self._index is not None or module._is_whole(self._key)
        value = matrices[0] if is_single else torch.stack(matrices)
        _remember(value, self)
        return value

    def rows(self, ids: torch.Tensor) -> torch.Tensor | None:
        module = self._module
        now = (module._store, module._device, module._dtype)
        return module._rows_of(ids) if now == (self._store, self._device, self._dtype) else None

    def part(self, index: int) -> CompressedWeight | None:
        module = self._module
        if self._index is not None or module._is_whole(self._key):
            return None
        return CompressedWeight(
            _OfModule(module, self._key, index), module._shapes[self._key][1:], self._dtype, self._device
        )

    def cut(self, count: int) -> Source | None:
        module, held = self._module, self._module._held[self._key]
        if self._index is not None or not module._is_whole(self._key) or len(held[0]) != 1:
            return None
        entry = self._store.entry(held[0][0])
        rows = entry.shape[0] // count
        return _Below(self, rows) if has_rows(entry) and rows % entry.cut == 0 else None

    def frozen(self) -> Frozen | None:
        shape = self._module._shapes[self._key]
        is_single = len(shape) == 2 if self._index is None else len(shape) == 3
        return FrozenMatrix(self._module, self.value) if is_single else None


class _Below(Source):
    """The values of a matrix that is viewed as a stack of matrices of so many rows; or of one of these."""

    def __init__(self, of: _OfModule, rows: int, index: int | None = None) -> None:
        self._of, self._rows, self._index = of, rows, index
        self.layer = self._module = of._module
        self._store = of._store

    def value(self) -> torch.Tensor:
        of = self._of
        if self._index is None:
            whole = of.value()
            return whole.view(-1, self._rows, whole.shape[1])
        (name,) = of._module._held[of._key][0]
        rows = (self._index * self._rows, (self._index + 1) * self._rows)
        if of._device.type == "cuda":
            decoder = of._store.decoder(name, of._device)
            value: torch.Tensor = decoder.decode(name, of._dtype, rows=rows)
            decoder.check()
        else:
            value = of._store.rows(name, of._dtype, rows).to(of._device)
        _remember(value, self)
        return value

    def part(self, index: int) -> CompressedWeight | None:
        if self._index is not None:
            return None
        shape = (self._rows, self._module._shapes[self._of._key][1])
        return CompressedWeight(_Below(self._of, self._rows, index), shape, self._of._dtype, self._of._device)

    def frozen(self) -> Frozen | None:
        return None if self._index is None else FrozenMatrix(self._module, self.value)


def _by_expert(held: Mapping[str, Sequence[Sequence[str]]]) -> list[list[str]]:
    """Names of tensors, those of one expert together."""
    most = max(len(matrices) for matrices in held.values())
    return [[n for matrices in held.values() if i < len(matrices) for n in matrices[i]] for i in range(most)]


# Decoded weights that are alive, by where they lie, and where their values are: autograd keeps the latter.
_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _Decoded:
    """Says what a decoded weight was made of; it lives as long as the tensor."""

    def __init__(self, source: _OfModule | _Below, bytes: int) -> None:
        self.source, self.bytes = source, bytes


def _remember(tensor: torch.Tensor, source: _OfModule | _Below) -> None:
    if torch.is_grad_enabled():
        storage = tensor.untyped_storage()
        tensor._wcodec_decoded = note = _Decoded(source, storage.nbytes())
        _alive[storage.data_ptr()] = note


def _pack_saved(tensor: torch.Tensor) -> Any:
    """Gives autograd what it keeps of a tensor: for decoded weights, and views of them, how to decode them again."""
    if not _alive or tensor.layout is not torch.strided or isinstance(tensor, CompressedWeight):
        return tensor
    note = _alive.get(tensor.untyped_storage().data_ptr())
    if note is None or tensor.untyped_storage().nbytes() != note.bytes or tensor.requires_grad:
        return tensor
    return note.source, tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _unpack_saved(saved: Any) -> torch.Tensor:
    if not isinstance(saved, tuple):
        tensor: torch.Tensor = saved
        return tensor
    source, size, stride, offset, dtype = saved
    if source._module._store is not source._store:
        raise source._module._replaced()
    with torch.no_grad():
        return source.value().view(dtype).as_strided(size, stride, offset)


_MINE = (
    *("_held", "_shapes", "_order", "_wholes", "_keys", "_of", "_weights", "tensor", "_handle", "_dtype", "_device"),
    *("_kind", "_served", "_part", "training", "_bare", "_finder"),
)


def compressed_module(module: torch.nn.Module, store: Store, names: Names, dtype: Any, device: Any) -> CompressedModule:
    """A module like ``module`` whose parameters of these names are tensors of a store: for each, those of its matrix,
    or of each matrix of a stack, one below the other."""
    of: Any = type(module)
    kind: Any = _kind_of(of)
    wrapper: CompressedModule = kind.__new__(kind)
    shapes = {key: tuple(getattr(module, key).shape) for key in names}
    held = {key: tuple(tuple(parts) for parts in of) for key, of in names.items()}
    first = next(iter(held.values()))[0][0]
    wrapper.__dict__.update(_held=held, _shapes=shapes, _order=tuple(module._parameters), _of=type(module))
    wrapper.__dict__.update(_keys=tuple(held), _wholes=all(len(matrices) == 1 for matrices in held.values()))
    CompressedLayer.__init__(wrapper, store, first, store.entry(first).shape, dtype, device)
    wrapper._expect_all(store)
    own_names = set(wrapper.__dict__)
    wrapper.__dict__.update((k, v) for k, v in module.__dict__.items() if k not in own_names)
    wrapper._parameters.update((k, p) for k, p in module._parameters.items() if k not in held)
    wrapper._modules.update(module._modules)
    wrapper._buffers.update(module._buffers)
    wrapper._non_persistent_buffers_set |= module._non_persistent_buffers_set
    # transformers has the class make those that are without values yet, when it has loaded a model.
    wrapper._is_hf_initialized = not any(b is not None and b.device.type == "meta" for b in module._buffers.values())
    wrapper.training = module.training
    return wrapper


@functools.cache
def _kind_of(kind: type[Any]) -> Any:
    """A class of modules that are both: a compressed layer, and one of the original class."""
    base = CompressedTable if issubclass(kind, torch.nn.Embedding) else CompressedModule

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() and not self._wholes:
            from ._layers.uncompiled import compute

            return compute(self, args, kwargs)
        if _is_compiling():
            return _own_forward(self._of)(self, *args, **kwargs)
        return self._compute(args, kwargs)

    both = type(base.__name__, (base, kind), {})
    return derived(both, {"forward": forward, "__doc__": base.__doc__}, _kind_of, kind)


def _own_forward(kind: type[Any]) -> Callable[..., Any]:
    """The forward of a class; of transformers' experts, which choose among several, that of the class itself."""
    forward: Any = kind.forward
    chooses = getattr(forward, "__globals__", {}).get("__name__") == _CHOOSES
    plain_forward: Callable[..., Any] = forward.__wrapped__ if chooses else forward
    return plain_forward
