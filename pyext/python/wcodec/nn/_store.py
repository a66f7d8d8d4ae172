"""The container behind compressed layers, and where its planes are while a model runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .. import _api, _gpu, _host
from .._container import Container, TensorEntry
from .._errors import InputError
from .._options import choice
from ._plans import CpuPlan, Plan, SlicedPlan, is_sliced
from ._plans_gpu import Chain, GpuPlan, GpuSlicedPlan

RESIDENCIES = ("device", "host")
# Batches that are copied to the device ahead of the one that computes.
_AHEAD = 2
# What a tensor may take in the ring besides its stored bytes.
_MORE = 1 << 10


class Store:
    """Compressed tensors that layers share: an open container, and decoders for the GPUs that its layers are on.

    It never changes what it holds, so copies of layers share it. Pickled, it is the whole container.

    :param groups: names of tensors that are decoded together; a tensor without a group is one of its own.
    :param routed: those of experts, of which only the routed ones are decoded.
    :param residency: where compressed bytes are while layers are on a GPU: ``device`` or ``host``.
    """

    def __init__(
        self,
        container: Container,
        groups: Iterable[Sequence[str]] = (),
        residency: str = "device",
        routed: Iterable[str] = (),
    ) -> None:
        self.container = container
        self.routed = frozenset(routed)
        self.residency = checked_residency(residency)
        self.lock = threading.RLock()
        self._groups = [tuple(group) for group in groups]
        self._group_of = {name: group for group in self._groups for name in group}
        self._entries: dict[str, TensorEntry] = {}
        self._plans: dict[tuple[str, torch.device, torch.dtype], Plan] = {}
        self._decoders: dict[torch.device, list[Any]] = {}
        self._chains: dict[torch.device, Chain] = {}
        # Layers by identity: modules compare that way, and a layer that is gone keeps nothing on a GPU.
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def from_bytes(
        cls, data: bytes, groups: Iterable[Sequence[str]] = (), residency: str = "device", routed: Iterable[str] = ()
    ) -> Store:
        """A store in memory."""
        return cls(Container.open(data), groups, residency, routed)

    # What is stored

    def entry(self, name: str) -> TensorEntry:
        """The stored tensor of that name, a tied one resolved."""
        found = self._entries.get(name)
        if found is None:
            found = self.container[name]
            if found.alias_of is not None:
                found = self.container[found.alias_of]
            self._entries[name] = found
        return found

    def bytes_of(self, names: Iterable[str]) -> bytes:
        """A container with only these tensors, compressed as they are."""
        return self.container.extract(list(names))

    # Who uses it

    def register(self, layer: Any) -> None:
        with self.lock:
            self._users.add(layer)

    def release(self, device: torch.device) -> None:
        """Lets go of what is kept for a device that no layer is on any more."""
        with self.lock:
            if any(layer.device == device for layer in self._users):
                return
            for key in [k for k in self._plans if k[1] == device]:
                del self._plans[key]
            self._decoders.pop(device, None)
            self._chains.pop(device, None)

    # Decoding

    def decoded(self, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor with the decoded weight, for whoever wants to keep it."""
        if device.type != "cuda":
            return self.rows(name, dtype, None).to(device)
        decoder = self.decoder(name, device)
        out: torch.Tensor = decoder.decode(self.entry(name).name, dtype)
        decoder.check()
        return out

    def rows(self, name: str, dtype: torch.dtype, rows: tuple[int, int] | None) -> torch.Tensor:
        """The tensor, or a slice of its rows, decoded by the CPU."""
        entry = self.entry(name)
        return entry.torch(dtype) if rows is None else entry.torch_rows(*rows, dtype)

    def plan(self, name: str, device: torch.device, dtype: torch.dtype, cut: bool = True) -> tuple[Plan, int]:
        """How to get at a layer's weight, and the layer's place in that plan.

        :param cut: whether slices of dimension 0 are slices of the layer's outputs, so that it can be cut into them.
        """
        name = self.entry(name).name
        with self.lock:
            if self.container._native is None:
                raise InputError("the container of this layer is closed (open it again and load the model)")
            found = self._plans.get((name, device, dtype))
            if found is None:
                found = self._new_plan(name, device, dtype, cut)
                self._plans.update(((n, device, dtype), found) for n in found.names)
            return found, found.names.index(name)

    def _new_plan(self, name: str, device: torch.device, dtype: torch.dtype, cut: bool) -> Plan:
        gpu = device.type == "cuda"
        large = is_sliced(self.entry(name), dtype)
        if large and cut:
            return GpuSlicedPlan(self, name, device, dtype) if gpu else SlicedPlan(self, name, dtype)
        members = (name,) if large else self._group_of.get(name, (name,))
        stored = dict.fromkeys(self.entry(n).name for n in members)
        whole = tuple(n for n in stored if n == name or not is_sliced(self.entry(n), dtype))
        return GpuPlan(self, whole, device, dtype) if gpu else CpuPlan(self, whole, dtype)

    def decoder(self, name: str, device: torch.device) -> Any:
        """The decoder of a GPU that has this tensor; made at the first call, for all layers on that GPU."""
        name = self.entry(name).name
        with self.lock:
            decoders = self._decoders.setdefault(device, [])
            for decoder in decoders:
                if name in decoder.names:
                    return decoder
            has = {n for decoder in decoders for n in decoder.names}
            resident: dict[str, None] = {}
            streamed: dict[str, None] = {}
            # What is looked up stays on the device: rows of an embedding are needed at once, and at random.
            looked_up = {self.entry(u.tensor).name for u in self._users if u.device == device and u.looked_up}
            for wanted in [name, *self._names_on(device)]:
                if wanted not in has:
                    stay = self.residency == "device" or wanted in looked_up
                    (resident if stay else streamed)[wanted] = None
            if resident:
                decoders.append(_gpu.GpuDecoder(self.container, list(resident), device))
            if streamed:
                decoders.append(_host.HostDecoder(self.container, list(streamed), device, ring=self._ring(streamed)))
            return next(decoder for decoder in decoders if name in decoder.names)

    def _ring(self, names: Iterable[str]) -> int:
        """Bytes of a ring with place for the largest group four times: one that computes, and those on their way."""
        streamed = {name: self.entry(name).stored_bytes + _MORE for name in names}
        blocks = (sum(streamed.pop(self.entry(n).name, 0) for n in group) for group in self._groups)
        return 4 * max(max(blocks, default=0), max(streamed.values(), default=0), _MORE)

    def chain(self, device: torch.device, names: Sequence[str]) -> Chain:
        """The order in which a device's batches are used. Only residency ``host`` fetches ahead, and no experts: which
        of them come next is not known."""
        if not self.routed.isdisjoint(names):
            return Chain(0)
        return self._chains.setdefault(device, Chain(_AHEAD if self.residency == "host" else 0))

    def _names_on(self, device: torch.device) -> list[str]:
        """Stored tensors of the layers on a device, with all that is decoded with them, in the container's order."""
        used: set[str] = set()
        for layer in self._users:
            if layer.device == device:
                for name in layer.tensors:
                    stored = self.entry(name).name
                    used.update(self.entry(n).name for n in self._group_of.get(stored, (stored,)))
        return [n for n in self.container if n in used]

    def prepare(self) -> None:
        """Makes the decoders and plans of every layer that is on a GPU, so that what is missing is said early."""
        users: dict[str, set[tuple[torch.device, torch.dtype, bool]]] = {}
        for layer in list(self._users):
            if layer.device.type == "cuda" and not layer.looked_up:
                for name in layer.tensors:
                    users.setdefault(self.entry(name).name, set()).add((layer.device, layer.dtype, layer.cut))
        # In the order of the model, which is that of the groups.
        place = {self.entry(n).name: i for i, n in enumerate(n for group in self._groups for n in group)}
        for name in sorted(users, key=lambda n: place.get(n, len(place))):
            for device, dtype, cut in users[name]:
                self.plan(name, device, dtype, cut)

    @property
    def device_bytes(self) -> int:
        """Memory of GPUs that the decoders hold."""
        return sum(decoder.device_bytes for decoders in self._decoders.values() for decoder in decoders)

    @property
    def host_bytes(self) -> int:
        """Pinned memory of the host that holds compressed bytes (residency ``host``)."""
        found = (getattr(d, "host_bytes", 0) for decoders in self._decoders.values() for d in decoders)
        return sum(found)

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        data = self.bytes_of(self.container)
        return Store.from_bytes, (data, self._groups, self.residency, self.routed)


def checked_residency(residency: str) -> str:
    """The residency, if there is one of that name."""
    return choice("residency", residency, RESIDENCIES)


def compress_tensors(tensors: dict[str, torch.Tensor], **options: Any) -> Container:
    """These tensors, compressed in memory."""
    return Container.open(_api.compress_to_bytes(tensors, **options)[0])


def computing_dtype(dtype: Any) -> torch.dtype:
    """A dtype that layers compute in."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found not in (torch.float32, torch.float16, torch.bfloat16):
        raise InputError(f"compressed layers compute in float32, float16 or bfloat16, not in {dtype} (use one of them)")
    return found
