"""Experts of mixtures whose weights are compressed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from .._core import format as fmt
from .._core.errors import InputError
from ._layers.gradients import InputLayout, Through, any_wanted, back
from ._layers.layer import CompressedLayer
from ._layers.routed import MOST_ROUTED, Routed, routed
from ._weights.providers import stacked
from ._weights.store import Store
from ._weights.workspace import exclusive

_is_compiling = torch.compiler.is_compiling
STACKS = ("gate_up_proj", "down_proj")
# Parameters of the forward of known classes of experts (`pattern.expert_form`).
_ARGUMENTS = ("hidden_states", "top_k_index", "top_k_weights")

# The experts that each thread computes.
_thread = threading.local()


@contextmanager
def _computing(experts: CompressedLayer, recording: bool) -> Iterator[None]:
    """While this lasts, the experts compute in this thread, and torch records gradients or not."""
    before: dict[CompressedLayer, bool] = getattr(_thread, "computing", {})
    _thread.computing = {**before, experts: recording}
    try:
        yield
    finally:
        _thread.computing = before


class ExpertStack:
    """Stands where a module of experts had a parameter ``[experts, out, in]``: ``stack[i]`` decodes expert ``i``, anew
    at each read."""

    # Classes of transformers give each stack values unless it says that it has them.
    _is_hf_initialized = True

    def __init__(self, owner: CompressedExperts, place: int, shape: tuple[int, ...]) -> None:
        self._owner, self._place, self._shape = owner, place, shape

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole stack."""
        return torch.Size(self._shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that experts are decoded to."""
        return self._owner.dtype

    @property
    def device(self) -> torch.device:
        """The device that decodes."""
        return self._owner.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def is_meta(self) -> bool:
        """Whether it is on the meta device."""
        return self.device.type == "meta"

    @property
    def requires_grad(self) -> bool:
        """Never: compressed weights are frozen."""
        return False

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one of its dimensions, as of a tensor."""
        return self.shape if dim is None else self._shape[dim]

    def dim(self) -> int:
        """The number of dimensions, as of a tensor."""
        return len(self._shape)

    def numel(self) -> int:
        """The number of elements, as of a tensor."""
        return math.prod(self._shape)

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, index: Any) -> Any:
        if self._owner._is_recording():
            return RecordedMatrix(self._owner, int(index), self._place)
        return self._owner._matrices(int(index))[self._place]


class RecordedMatrix:
    """Stands for ``stack[i]`` while experts compute and gradients are recorded: a matrix that
    ``torch.nn.functional.linear`` takes, decoded for that, and again in the backward pass. For all else it is a decoded
    tensor, which autograd may keep."""

    def __init__(self, owner: CompressedExperts, index: int, place: int) -> None:
        self._owner, self._index, self._place = owner, index, place

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and len(args) > 1 and isinstance(args[0], torch.Tensor) and isinstance(args[1], cls):
            x, matrix = args[0], args[1]
            bias = args[2] if len(args) > 2 else kwargs.get("bias")
            kind = x.device.type
            if torch.is_autocast_enabled(kind):
                dtype = torch.get_autocast_dtype(kind)
                # The cast is that of autocast, but where autograd sees it.
                x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
            return Through.apply(x, bias, matrix) if any_wanted((x, bias)) else matrix._product(x, bias)
        args, kwargs = tree_map(lambda value: value._decoded() if isinstance(value, cls) else value, (args, kwargs))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return getattr(self._decoded(), name)

    def _decoded(self) -> torch.Tensor:
        return self._owner._decoded(self._index)[self._place]

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, self._owner._matrices(self._index)[self._place], bias)

    def _input_gradient(self, grad: torch.Tensor, layout: InputLayout | None) -> torch.Tensor:
        owner = self._owner
        with exclusive(owner._store, owner._device):
            weight = owner._expert(self._index)[self._place].to(grad.dtype)
            return back(grad, weight.t(), layout)

    def _source(self) -> Any:
        return self._owner._store

    def _replaced(self) -> InputError:
        return self._owner._replaced()


class CompressedExperts(CompressedLayer):
    """The experts of a mixture (transformers keeps them as stacks ``gate_up_proj`` and ``down_proj``), compressed one
    by one: only those that tokens are routed to are decoded, each with its matrices together.

    The computation is that of the original class, expert by expert ("eager" in transformers). Made by
    :func:`wcodec.compress_` and :func:`wcodec.load_model`.

    :param names: for each expert, the tensors of its matrices in the container, in the order of the
        stacks: ``gate_up_proj``, ``down_proj``.
    :param parts: the number of these tensors that are, one below the other, a matrix of each stack.
    """

    cut = False

    def __init__(
        self,
        store: Store,
        names: list[tuple[str, ...]],
        experts: torch.nn.Module,
        *,
        parts: tuple[int, ...] = (1, 1),
        dtype: Any = torch.float32,
        device: Any = "cpu",
    ) -> None:
        self._names = names
        self._parts = parts
        self._of: type[Any] = type(experts)
        self._stacks = {stack: tuple(getattr(experts, stack).shape) for stack in STACKS}
        self._forward: Callable[..., Any] = _eager_of(self._of)
        # The launches for few tokens, once they were looked for.
        self._routed_product: tuple[Any, Routed | None] | None = None
        super().__init__(store, names[0][0], store.entry(names[0][0]).shape, dtype, device)
        self._expect_all(store)
        own_names = set(self.__dict__)
        self.__dict__.update((k, v) for k, v in experts.__dict__.items() if k not in own_names)
        for key, module in experts._modules.items():
            self.add_module(key, module)
        self._attach()

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors of all experts."""
        return tuple(name for expert in self._names for name in expert)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the parameters that are compressed, in the module."""
        return STACKS

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of these parameters."""
        return self._stacks

    @property
    def stored_bytes(self) -> int:
        """Bytes that the experts take in the container, everything counted."""
        return sum(self._store.entry(name).stored_bytes for name in self.tensors)

    @property
    def original_bytes(self) -> int:
        """Bytes of the experts before they were compressed."""
        return sum(self._store.entry(name).original_bytes for name in self.tensors)

    @property
    def weight(self) -> torch.Tensor:
        """Refused: experts have no single weight."""
        raise AttributeError("experts have no single weight (read gate_up_proj[i] and down_proj[i])")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original module's result for the same arguments. Gradients pass through to the hidden states and to the
        weights of routing; experts are decoded again in the backward pass. ``torch.compile`` leaves the module as it
        is: the experts to decode are known only when it runs."""
        if _is_compiling():
            # Imported here, since it imports torch's compiler, which takes seconds; a program that compiles has it.
            from ._layers.uncompiled import compute

            return compute(self, args, kwargs)
        return self._compute(args, kwargs)

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[0] if args else kwargs.get("hidden_states")
        recording = isinstance(given, torch.Tensor) and any_wanted((given,))
        if self._store.fuses and not recording and (product := self._fused(args, kwargs)) is not None:
            return product
        with exclusive(self._store, self._device), _computing(self, recording):
            self._foresee((*args, *kwargs.values()))
            return self._forward(self, *args, **kwargs)

    def _fused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The result for few tokens, where kernels multiply with the experts' weights as they are stored."""
        given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        values = [given.get(name) for name in _ARGUMENTS]
        if len(args) + len(kwargs) != len(_ARGUMENTS) or not all(isinstance(v, torch.Tensor) for v in values):
            return None
        x, routed_to, weights = cast("list[torch.Tensor]", values)
        if routed_to.numel() > MOST_ROUTED or any_wanted((weights,)) or torch.is_autocast_enabled(self._kind):
            return None
        decoder = self._store.decoder(self._names[0][0], self._device) if self._device.type == "cuda" else None
        # Decoders change when layers come or go.
        key = (decoder, self._dtype)
        if self._routed_product is None or self._routed_product[0] != key:
            self._routed_product = (key, None if decoder is None else routed(self))
        routed_product = self._routed_product[1]
        return None if routed_product is None else routed_product(self, x, routed_to, weights)

    def _foresee(self, values: tuple[Any, ...]) -> None:
        """Has the experts that tokens are routed to read from disk before the first of them is decoded."""
        if not self._store.reads_from_disk(self._device):
            return
        for value in values:
            if isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32):
                # The forward takes them in this order.
                experts = [i for i in value.unique().tolist() if 0 <= i < len(self._names)]
                self._store.expect([self._names[i] for i in experts], self._device, self._dtype)
                return

    def _is_recording(self) -> bool:
        """Whether this thread computes with the experts now, and torch records gradients."""
        recording: bool = getattr(_thread, "computing", {}).get(self, False)
        return recording

    def to_experts(self) -> torch.nn.Module:
        """The original module, with decoded weights."""
        out: torch.nn.Module = object.__new__(self._of)
        torch.nn.Module.__init__(out)
        private_names = set(_PRIVATE) | set(torch.nn.Module().__dict__) | set(STACKS)
        out.__dict__.update((k, v) for k, v in self.__dict__.items() if k not in private_names)
        for key, module in self._modules.items():
            out.add_module(key, module)
        for place, stack in enumerate(STACKS):
            parts = [self._decoded(i)[place] for i in range(len(self._names))]
            out.register_parameter(stack, torch.nn.Parameter(torch.stack(parts), requires_grad=False))
        return out.train(self.training)

    def _decoded(self, index: int) -> tuple[torch.Tensor, ...]:
        """The decoded matrices of an expert, one for each stack, in tensors of their own."""
        return self._stacked([self._store.decoded(n, self._device, self._dtype) for n in self._names[index]])

    def _matrices(self, index: int) -> tuple[torch.Tensor, ...]:
        """The decoded matrices of an expert, one for each stack: in shared memory while these experts compute and keep
        others from decoding there, otherwise in tensors of their own."""
        return self._expert(index) if self in getattr(_thread, "computing", {}) else self._decoded(index)

    def _expert(self, index: int) -> tuple[torch.Tensor, ...]:
        """The matrices of :meth:`_decoded` in memory that is shared: valid until another weight is decoded. The caller
        has to keep others from that (:func:`exclusive`)."""
        return self._stacked(self._weights.together(self._names[index]))

    def _stacked(self, weights: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors of an expert, put together to one matrix for each stack."""
        out, at = [], 0
        for parts in self._parts:
            out.append(stacked(weights[at : at + parts]))
            at += parts
        return tuple(out)

    def _expect_all(self, store: Store) -> None:
        """Raises where tensors do not make up the matrices."""
        for expert in self._names:
            at = 0
            for parts, shape in zip(self._parts, self._stacks.values(), strict=True):
                entries = [store.entry(name) for name in expert[at : at + parts]]
                at += parts
                rows = sum(entry.shape[0] for entry in entries if entry.shape)
                if any(len(e.shape) != 2 or e.shape[1] != shape[2] for e in entries) or rows != shape[1]:
                    self._expect(entries[0], tuple(shape[1:]))
                    raise InputError(
                        f"tensor '{entries[0].name}': too few or many rows for {list(shape[1:])} "
                        "(open the container of this model)",
                        tensor=entries[0].name,
                        code="I541",
                    )

    def _attach(self) -> None:
        for place, (stack, shape) in enumerate(self._stacks.items()):
            self.__dict__[stack] = ExpertStack(self, place, tuple(shape))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for key in (*STACKS, "_forward", "_routed_product"):
            state.pop(key, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forward = _eager_of(self._of)
        self._routed_product = None
        self._attach()

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            # A module's properties that raise this end up here, and would be said not to be there.
            raise AttributeError("experts have no single weight (read gate_up_proj[i] and down_proj[i])")
        # Methods of the original class that its forward calls.
        attribute = getattr(self.__dict__.get("_of"), name, None)
        if callable(attribute) and not name.startswith("__"):
            return attribute.__get__(self)
        return super().__getattr__(name)

    def _replace(self, store: Store) -> None:
        self._replace_all(store, self._names, self.tensors, "these experts")

    def _form(self) -> str:
        return f"{len(self._names)} x {', '.join(fmt.shape(tuple(s[1:])) for s in self._stacks.values())}"


_PRIVATE = (
    *(
        "_names",
        "_parts",
        "_of",
        "_stacks",
        "_forward",
        "_routed_product",
        "_weights",
        "tensor",
        "_handle",
        "_dtype",
        "_device",
    ),
    *("_kind", "training"),
)


def eager_forward(experts: torch.nn.Module) -> Callable[..., Any] | None:
    """The forward of a module of experts that computes expert by expert; none if it is not one that can be compressed.

    It must have stacks ``[experts, out, in]`` that the forward indexes, without biases.
    """
    stacks = [experts._parameters.get(name) for name in STACKS]
    if any(stack is None or stack.dim() != 3 for stack in stacks):
        return None
    if getattr(experts, "is_transposed", False) or getattr(experts, "has_bias", False):
        return None
    return getattr(type(experts).forward, "__wrapped__", None)


def _eager_of(kind: type[Any]) -> Callable[..., Any]:
    eager_forward: Callable[..., Any] = kind.forward.__wrapped__
    return eager_forward
