"""The base class of all layers with compressed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from ..._core import format as fmt
from ..._core.errors import InputError
from ..._file.container import TensorEntry
from .._weights.of_layer import LayerWeights
from .._weights.store import Store
from . import ops
from .gradients import Frozen, InputLayout, back
from .served import Serve
from .weight import CompressedWeight, Source

# The key of a layer's compressed weight in a state dict, behind the layer's name.
STATE_KEY = "wcodec"
_is_compiling = torch.compiler.is_compiling


class CompressedLayer(torch.nn.Module):  # type: ignore[misc]
    """A layer whose weight is compressed. For its kinds see :class:`CompressedLinear` and :class:`CompressedEmbedding`.

    A state dict holds the weight as the bytes of a ``.wcodec`` container, in a tensor of uint8 named ``wcodec``; where
    the layer has the same weight already, loading it changes nothing; another one it has to itself, outside of its
    model's ``vram_budget`` and ``cache``. ``to``, ``half`` and their like change the dtype that the layer computes in,
    and the device that decodes; never what is stored.
    """

    # Whether the weight is looked up by rows.
    looked_up: ClassVar[bool] = False
    # Whether it is decoded with others of its block, ahead of its turn.
    planned: ClassVar[bool] = True
    # Whether the weight's dimension 0 is that of the outputs, so that a large one can be cut into slices of it.
    cut: ClassVar[bool] = True
    # Set while transformers loads a model: what it finds in a state dict it wants to read from its own files.
    _bare = False
    # transformers leaves alone what says so, where it draws weights at random.
    _is_hf_initialized = True
    # With tensor parallelism, transformers hands over this rank's tensors, and takes its part of the result.
    _hf_quantized_needs_local_tp: ClassVar[bool] = True
    # Which of how many ranks the layer's weight is a part for, if it is one.
    _part: tuple[int, int] | None = None

    def __init__(self, store: Store, tensor: str, shape: tuple[int, ...], dtype: Any, device: Any) -> None:
        # The initializers of other classes that a layer may be of are not called.
        torch.nn.Module.__init__(self)
        self.tensor = tensor
        # Functions by thread that give the layer's next result instead of the layer.
        self._served: dict[int, Serve] = {}
        # An empty tensor that goes where the layer goes: it says which device and dtype are wanted.
        marker = torch.empty(0, dtype=computing_dtype(dtype), device=device)
        self.register_buffer("_marker", marker, persistent=False)
        self._expect(store.entry(tensor), shape)
        self._attach_to(store)

    def _attach_to(self, store: Store) -> None:
        self._read_marker()
        kind = {"cut": self.cut, "planned": self.planned, "looked_up": self.looked_up}
        self._weights = LayerWeights(store, self.tensors, self._device, self._dtype, **kind)
        self._handle = ops.register(self, self._device)

    @property
    def _store(self) -> Store:
        return self._weights.store

    # Description

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the layer needs, in its container."""
        return (self.tensor,)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the parameters that are compressed, in the module."""
        return ("weight",)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of these parameters."""
        return {"weight": self.entry.shape}

    @property
    def device(self) -> torch.device:
        """The device that decodes and computes."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the weight is decoded to."""
        return self._dtype

    @property
    def weight(self) -> torch.Tensor:
        """The weight: a :class:`CompressedWeight`, which is decoded when its values are used, anew for each read."""
        if _is_compiling():
            return ops.weight(self._handle, 0, self.entry.shape, self._dtype)
        return CompressedWeight(_OfLayer(self), self.entry.shape, self._dtype, self._device)

    def _own_weight(self, dtype: torch.dtype | None = None, place: int = 0) -> torch.Tensor:
        """The decoded weight, in a tensor of its own.

        :param place: which of several.
        """
        return self._store.decoded(self.tensor, self._device, dtype or self._dtype)

    @property
    def entry(self) -> TensorEntry:
        """The weight's entry in the container."""
        return self._store.entry(self.tensor)

    @property
    def scheme(self) -> str:
        """The scheme by which the weight became bytes: ``int8`` or ``raw``."""
        return self.entry.scheme

    @property
    def coder(self) -> str:
        """The coder of the bytes: ``rans``, ``huffman``, ``zstd`` or ``raw``."""
        return self.entry.coder

    @property
    def residency(self) -> str:
        """The place of the compressed bytes while the layer is on a GPU: ``device``, ``host`` or ``disk``; ``auto``
        until that is settled, when the first of them is decoded."""
        return "device" if self.looked_up else self._store.residency_of(self.tensors, self._device)

    @property
    def cached(self) -> bool:
        """Whether the weight is one of those that stay decoded (``cache`` of :func:`wcodec.compress_`); settled when
        the first weight is decoded on the layer's device."""
        return self._store.is_cached(self.tensors, self._device)

    @property
    def stored_bytes(self) -> int:
        """Bytes that the weight takes in the container, everything counted."""
        return self.entry.stored_bytes + self._store.tensor_groups.scaled.bytes_of(self.entry.name)[0]

    @property
    def original_bytes(self) -> int:
        """Bytes of the weight before it was compressed."""
        return self.entry.original_bytes + self._store.tensor_groups.scaled.bytes_of(self.entry.name)[1]

    @property
    def elements(self) -> int:
        """The number of elements of the weight."""
        return sum(math.prod(self._store.entry(name).shape) for name in self.tensors)

    @property
    def part(self) -> tuple[int, int] | None:
        """The rank and how many there are, where ranks share the layer (tensor parallelism) and ``weight`` is this
        rank's part of it; none otherwise."""
        return self._part

    def extra_repr(self) -> str:
        entry = self.entry
        scale = "" if entry.scale is None else f"/{entry.scale}"
        ratio = fmt.number(fmt.ratio(self.original_bytes, self.stored_bytes))
        return (
            f"{self._form()}{self._rank_form()}, dtype={self._dtype}, scheme={entry.scheme}{scale}, "
            f"coder={entry.coder}, stored={fmt.size(self.stored_bytes)}, ratio={ratio}"
            f"{', cached' if self.cached else ''}"
        )

    def _form(self) -> str:
        raise NotImplementedError

    def _rank_form(self) -> str:
        return "" if self._part is None else f", rank {self._part[0]} of {self._part[1]}"

    def _expect(self, entry: TensorEntry, shape: tuple[int, ...]) -> None:
        if entry.shape != shape:
            raise InputError(
                f"tensor '{entry.name}': it has shape {list(entry.shape)}, and the layer {list(shape)} "
                "(open the container of this model)",
                tensor=entry.name,
                code="I541",
            )

    # Running

    def _rows_of(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Rows of the weight, if they can be decoded without the others."""
        return None

    def _refuse(self, what: str, advice: str, *, code: str) -> InputError:
        return InputError(f"layer of tensor '{self.tensor}': {what} ({advice})", code=code, tensor=self.tensor)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Refused for this layer alone, whose weight cannot be trained; ``requires_grad_`` of a model is for all
        parameters that there are, such as a layer's ``bias``.

        :raises InputError: if gradients are wanted.
        """
        if requires_grad:
            raise self._refuse(
                "compressed weights cannot be trained",
                "train adapters beside them, such as peft's LoRA, or wcodec.decompress_ the layer first",
                code="I531",
            )
        return super().requires_grad_(False)

    def _source(self) -> Any:
        return self._store

    def _replaced(self) -> InputError:
        return self._refuse(
            "its weight was replaced between the forward and the backward pass",
            "load weights before or after both",
            code="I537",
        )

    def _read_marker(self) -> None:
        marker = self._marker
        self._dtype: torch.dtype = marker.dtype
        self._device: torch.device = marker.device
        self._kind: str = marker.device.type

    def _settle(self) -> None:
        self._read_marker()
        self._handle = ops.moved(self._handle, self._device)
        self._weights.settle(self._device, self._dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self._device
        super()._apply(fn, recurse)
        if self._marker.device.type not in ("cpu", "cuda", "meta"):
            where = self._marker.device
            super()._apply(lambda t: t.to(before), recurse)
            raise self._refuse(f"nothing decodes on {where}", "use 'cpu' or 'cuda'", code="I320")
        computing_dtype(self._marker.dtype)
        self._settle()
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            self._take(value)
        else:
            super().__setattr__(name, value)

    def _take(self, value: Any) -> None:
        """Takes a weight that somebody sets: tying sets the one that is there already.

        :raises InputError: for any other.
        """
        if isinstance(value, CompressedWeight) and not value._owned and value._source.same_as(self):
            return
        raise self._refuse(
            "its weight is compressed and cannot be replaced",
            "wcodec.decompress_ the layer first, or keep it as it is with compress_(exclude=...)",
            code="I532",
        )

    def _replicate_for_data_parallel(self) -> Any:
        raise self._refuse(
            "torch.nn.DataParallel copies layers for each batch, and this one is compressed",
            "run one process for each GPU, as torch.nn.parallel.DistributedDataParallel does, or load the model with "
            "device_map",
            code="I534",
        )

    # Copies and files

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in self.__dict__.items() if k not in ("_handle", "_weights")}
        return {**state, "_served": {}, "_store": self._store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        store: Store = state["_store"]
        super().__setstate__({k: v for k, v in state.items() if k != "_store"})
        self._attach_to(store)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._bare:
            return
        data = self._store.bytes_of(self.tensors)
        destination[prefix + STATE_KEY] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + STATE_KEY
        other_values = {k: v for k, v in state_dict.items() if k != key}
        super()._load_from_state_dict(
            other_values, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        data = state_dict.get(key)
        if data is None:
            if strict:
                missing_keys.append(key)
            return
        try:
            # A layer with other weights has a store of its own: no budget and no cache are divided among such.
            residency = "host" if self._store.residency in ("host", "disk") else "device"
            cache = None if self._store.settings["cache"] is None else 0
            data = data.cpu().numpy().tobytes()
            self._replace(Store.from_bytes(data, residency=residency, cache=cache, fuses=self._store.fuses))
        except Exception as error:
            error_msgs.append(f"{key}: {error}")

    def _replace(self, store: Store) -> None:
        """Takes the weight of another container, unless it is the same: then layers stay decoded together."""
        scales = set(store.tensor_groups.scaled.scales_of(store.container))
        stored = [entry for entry in store.container.stored if entry.name not in scales]
        if len(stored) != 1:
            raise InputError(
                f"a layer has one compressed tensor, not {len(stored)} (load the state of this layer)", code="I541"
            )
        own_entry = self.entry
        self._expect(stored[0], own_entry.shape)
        if _all_contents(store, stored[0]) == _all_contents(self._store, own_entry):
            return
        self.tensor = stored[0].name
        self._weights.join(store, self.tensors)

    def _replace_all(
        self, store: Store, groups: Sequence[Sequence[str]], routed: Iterable[str] | Mapping[str, float], what: str
    ) -> None:
        """As :meth:`_replace`, for a layer of several tensors, which the other container has under the same names."""
        for name in self.tensors:
            if name not in store.container:
                raise InputError(f"tensor '{name}' is missing (load the state of {what})", tensor=name, code="I541")
        self._expect_all(store)
        if any(contents(store.entry(name)) != contents(self._store.entry(name)) for name in self.tensors):
            settings: dict[str, Any] = {"cache": store.settings["cache"], "fuses": store.fuses}
            self._weights.join(Store(store.container, groups, store.residency, routed, **settings), self.tensors)

    def _expect_all(self, store: Store) -> None:
        raise NotImplementedError


class _OfLayer(Source):
    """The values of a :class:`CompressedWeight` of a layer; as the layer was when it was read."""

    def __init__(self, layer: CompressedLayer) -> None:
        self.layer, self._store, self._tensor = layer, layer._store, layer.tensor
        self._device, self._dtype = layer._device, layer._dtype

    def same_as(self, layer: CompressedLayer) -> bool:
        """Whether this is the weight of that layer, too."""
        return self._store is layer._store and self._store.entry(self._tensor).name == layer.entry.name

    def value(self) -> torch.Tensor:
        return self._store.decoded(self._tensor, self._device, self._dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor | None:
        layer: CompressedLayer = self.layer
        if layer._store is not self._store or (layer._device, layer._dtype) != (self._device, self._dtype):
            return None
        return layer._rows_of(ids)

    def frozen(self) -> Frozen:
        return FrozenMatrix(self.layer, self.value)


class FrozenMatrix:
    """A compressed matrix that something multiplies with, where gradients pass through: it is decoded for the product,
    and again for the gradient."""

    def __init__(self, layer: CompressedLayer, value: Callable[[], torch.Tensor]) -> None:
        self._layer, self._value = layer, value

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(
            x, self._value().to(x.dtype) if torch.is_autocast_enabled(x.device.type) else self._value(), bias
        )

    def _input_gradient(self, grad: torch.Tensor, layout: InputLayout | None) -> torch.Tensor:
        return back(grad, self._value().to(grad.dtype).t(), layout)

    def _source(self) -> Any:
        return self._layer._source()

    def _replaced(self) -> InputError:
        return self._layer._replaced()


def _all_contents(store: Store, entry: TensorEntry) -> list[tuple[Any, ...]]:
    """The :func:`contents` of an entry and of the scales beside it."""
    return [contents(store.entry(name)) for name in store.tensor_groups.stored_with([entry.name])]


def contents(entry: TensorEntry) -> tuple[Any, ...]:
    """Equal for tensors that are stored alike."""
    facts = (entry.dtype, entry.shape, entry.scheme, entry.scale, entry.coder, entry.layout, entry.shift, entry.tile)
    return (*facts, *((s.role, s.length, s.hash) for s in entry.segments))


def computing_dtype(dtype: Any) -> torch.dtype:
    """A dtype that layers compute in."""
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if torch_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InputError(
            f"compressed layers compute in float32, float16 or bfloat16, not in {dtype} (use one of them)", code="I522"
        )
    return torch_dtype
