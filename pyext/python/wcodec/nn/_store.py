"""The container behind compressed layers, and where its planes are while a model runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .. import _api, _gpu_decoder, _host, _native, _torch
from .. import _format as fmt
from .._container import Container, TensorEntry
from .._errors import InputError
from ._cached import CachedPlan, Shelf, decode_apart
from ._placement import (
    Placement,
    Settings,
    Takes,
    Unit,
    checked_settings,
    choose_cached,
    choose_streamed,
    ring_bytes,
)
from ._plans import ALIGN, CpuPlan, Plan, SlicedPlan, decoded_bytes, is_sliced, slices
from ._plans_gpu import Chain, GpuPlan, GpuSlicedPlan
from ._workspace import scratch_bytes

# Batches that are copied to the device ahead of the one that computes.
_AHEAD = 2


class Store:
    """Compressed tensors that layers share: an open container, and decoders for the GPUs that its layers are on.

    It never changes what it holds, so copies of layers share it. Pickled, it is the whole container.

    Which tensors are in a GPU's memory, streamed to it or kept decoded is settled for each device when the first weight
    is decoded there, from the layers that are on it then; when layers come, go or change their dtype, anew.

    :param groups: names of tensors that are decoded together; a tensor without a group is one of its own.
    :param residency: where compressed bytes are while layers are on a GPU: ``device``, ``host`` or ``auto``.
    :param routed: those of experts, of which only the routed ones are decoded; a mapping says how often for each token.
    :param vram_budget: for ``auto``, bytes of the device that the model may take; what is free, if left out.
    :param cache: bytes of each device that weights may take that stay decoded.
    :param others: bytes of the model's weights that are not compressed, where :meth:`serve` is not told of the model.
    """

    def __init__(
        self,
        container: Container,
        groups: Iterable[Sequence[str]] = (),
        residency: str = "device",
        routed: Iterable[str] | Mapping[str, float] = (),
        vram_budget: int | str | None = None,
        cache: int | str | None = None,
        others: int = 0,
    ) -> None:
        self.container = container
        self.routed = dict(routed) if isinstance(routed, Mapping) else dict.fromkeys(routed, 1.0)
        self.settings: Settings = checked_settings(residency, vram_budget, cache)
        self.lock = threading.RLock()
        self._groups = [tuple(group) for group in groups]
        self._group_of = {name: group for group in self._groups for name in group}
        self._entries: dict[str, TensorEntry] = {}
        self._plans: dict[tuple[str, torch.device, torch.dtype], Plan] = {}
        self._decoders: dict[torch.device, list[Any]] = {}
        self._chains: dict[torch.device, Chain] = {}
        self._placements: dict[torch.device, Placement] = {}
        self._shelves: dict[torch.device, dict[tuple[str, ...], Shelf]] = {}
        # Layers by identity: modules compare that way, and a layer that is gone keeps nothing on a GPU.
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._others = others

    @classmethod
    def from_bytes(cls, data: bytes, *arguments: Any, **settings: Any) -> Store:
        """A store in memory; ``arguments`` and ``settings`` are those of the class, behind the container."""
        return cls(Container.open(data), *arguments, **settings)

    @property
    def residency(self) -> str:
        """What was asked for; :meth:`residency_of` says what became of it."""
        return self.settings["residency"]

    def saved_settings(self) -> dict[str, str]:
        """The settings as text for a config; those that are not set are left out."""
        settings = self.settings
        found = {"residency": settings["residency"]}
        if settings["vram_budget"] is not None:
            found["vram_budget"] = fmt.exact_size(settings["vram_budget"])
        if settings["cache"]:
            found["cache"] = fmt.exact_size(settings["cache"])
        return found

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
        """Takes note of a layer that decodes from here."""
        with self.lock:
            self._users.add(layer)
            placed = self._placements.get(layer.device)
            if placed is not None and any(self.entry(name).name not in placed.names for name in layer.tensors):
                self._unsettle(layer.device)

    def serve(self, model: torch.nn.Module) -> None:
        """Takes note of the model whose other weights take memory, too."""
        self._model = weakref.ref(model)
        self._others = plain_bytes(model)

    def moved(self, before: torch.device, after: torch.device) -> None:
        """A layer went to another device or dtype: lets go of what was kept where it was, if nobody is there any more
        or if it was chosen for sizes that are no longer so."""
        with self.lock:
            if not self._layers_on(before):
                self._forget(before)
            for device in {before, after}:
                self._unsettle(device)

    @property
    def _chooses(self) -> bool:
        """Whether what is kept where depends on sizes."""
        return self.residency == "auto" or self.settings["cache"] > 0

    def _unsettle(self, device: torch.device) -> None:
        """Has what is where on a device decided anew."""
        if self._chooses:
            self._forget(device)
        else:
            # Nothing changes for those that are there: decoders of others are added to theirs.
            self._placements.pop(device, None)

    def _forget(self, device: torch.device) -> None:
        for key in [k for k in self._plans if k[1] == device]:
            del self._plans[key]
        for kept in (self._decoders, self._chains, self._placements, self._shelves):
            kept.pop(device, None)
        for layer in self._layers_on(device):
            layer._plan = None

    def _layers_on(self, device: torch.device) -> list[Any]:
        # A layer that took other weights has another store.
        return [layer for layer in self._users if layer.device == device and layer._store is self]

    # What is where

    def placement(self, device: torch.device) -> Placement:
        """What is streamed to a device, and what stays decoded there."""
        with self.lock:
            found = self._placements.get(device)
            if found is None:
                found = self._placements[device] = self._place(device)
            return found

    def residency_of(self, names: Iterable[str], device: torch.device) -> str:
        """Where the compressed bytes of a layer are, ``device`` or ``host``: ``host`` if some are streamed. With
        ``auto`` it is ``auto`` until that is settled, by the first weight that is decoded on a GPU."""
        if self.residency != "auto":
            return self.residency
        placed = self._placements.get(device) if device.type == "cuda" else None
        if placed is None:
            return "auto"
        return "device" if placed.streamed.isdisjoint(self.entry(name).name for name in names) else "host"

    def _place(self, device: torch.device) -> Placement:
        dtypes = self._dtypes_on(device)
        units = self._units(device, dtypes)
        names = frozenset(name for unit in units for name in unit.names)
        gpu = device.type == "cuda"
        # What is not decoded again need not be streamed: that is where `auto` gains most.
        where = "cpu" if not gpu else "device" if self.residency == "device" else "host"
        cached = choose_cached(units, self.settings["cache"], where)
        chosen = set(cached)
        rest = [unit for unit in units if unit not in chosen]
        streamed: list[Unit] = []
        if gpu and self.residency == "host":
            streamed = [unit for unit in rest if not unit.looked_up]
        elif gpu and self.residency == "auto":
            streamed = choose_streamed(rest, cached, self._takes(device, units), *self._budget(device))
        return Placement(
            names,
            frozenset(name for unit in streamed for name in unit.names),
            {n: decoded_bytes(self.entry(n), dtypes[n]) for unit in cached for n in unit.names},
        )

    def _units(self, device: torch.device, dtypes: Mapping[str, torch.dtype]) -> list[Unit]:
        """What the layers on a device need, in the order of the model, each stored tensor once."""
        # What is looked up stays on the device: rows of an embedding are needed at once, and at random.
        looked_up = {self.entry(n).name for layer in self._layers_on(device) if layer.looked_up for n in layer.tensors}
        wanted = self._names_on(device)
        held = self._held(wanted)
        left = dict.fromkeys(wanted)
        units = []
        for group in (*((name,) for name in wanted if name in looked_up), *self._groups, *((n,) for n in wanted)):
            stored_names = tuple(n for n in dict.fromkeys(self.entry(name).name for name in group) if n in left)
            if stored_names:
                for name in stored_names:
                    del left[name]
                units.append(self._unit(stored_names, dtypes, held, not looked_up.isdisjoint(stored_names)))
        return units

    def _dtypes_on(self, device: torch.device) -> dict[str, torch.dtype]:
        """The dtype that each stored tensor is decoded to, the widest of those wanted."""
        layers = sorted(self._layers_on(device), key=lambda layer: layer.dtype.itemsize)
        found = dict.fromkeys(self._names_on(device), layers[-1].dtype if layers else torch.float32)
        for layer in layers:
            found.update((self.entry(name).name, layer.dtype) for name in layer.tensors)
        return found

    def _unit(
        self, names: tuple[str, ...], dtypes: Mapping[str, torch.dtype], held: Mapping[str, int], looked_up: bool
    ) -> Unit:
        entries = [self.entry(name) for name in names]
        together, at_once = 0, [0]
        for entry in entries:
            dtype = dtypes[entry.name]
            if is_sliced(entry, dtype):
                rows = next(slices(entry, dtype))[1]
                at_once.append(rows * entry.shape[1] * dtype.itemsize)
            else:
                together += -(-decoded_bytes(entry, dtype) // ALIGN) * ALIGN
        return Unit(
            names,
            stored=sum(entry.stored_bytes for entry in entries),
            held=sum(held[entry.name] for entry in entries),
            decoded=sum(decoded_bytes(entry, dtypes[entry.name]) for entry in entries),
            scratch=max(together, *at_once),
            use=max(self.routed.get(name, 1.0) for name in names),
            looked_up=looked_up,
        )

    def _held(self, names: Sequence[str]) -> dict[str, int]:
        """Bytes that each of these stored tensors takes in a decoder's memory or in the ring."""
        return dict(zip(names, _native.DeviceSizes(self.container._open, list(names)).images(), strict=True))

    def _takes(self, device: torch.device, units: Sequence[Unit]) -> Takes:
        """What decoders of units hold on a GPU."""
        names = [name for unit in units for name in unit.names]
        sizes = _native.DeviceSizes(self.container._open, names)
        places = {name: i for i, name in enumerate(names)}

        def takes(resident: Sequence[Unit], streamed: Sequence[Unit]) -> int:
            total = 0
            for chosen, on_host in ((resident, False), (streamed, True)):
                if chosen:
                    ring = ring_bytes(max(unit.held for unit in chosen)) if on_host else None
                    which = [places[name] for unit in chosen for name in unit.names]
                    total += sizes.total(which, on_host, device.index, _gpu_decoder.gpu_options(ring=ring))
            return total

        return takes

    def _budget(self, device: torch.device) -> tuple[int, int, str]:
        """Bytes of the device that the model may take, those of it that are not compressed, and what to call it."""
        model = None if self._model is None else self._model()
        if model is not None:
            self._others = plain_bytes(model)
        budget = self.settings["vram_budget"]
        if budget is not None:
            return budget, self._others, "vram_budget"
        free, total = torch.cuda.mem_get_info(device)
        # What torch only keeps in store is free too; and what is there of the model already is counted with it.
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        there = self._others if model is None else plain_bytes(model, device)
        there += scratch_bytes(device)
        return free + spare + there - total // 10, self._others, f"what may be taken of {device}"

    # Decoding

    def decoded(self, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor with the decoded weight, for whoever wants to keep it."""
        name = self.entry(name).name
        plan = self._plans.get((name, device, dtype))
        if isinstance(plan, CachedPlan):
            return plan.weights()[plan.names.index(name)].clone()
        if device.type != "cuda" or name in self.placement(device).cached:
            return decode_apart(self, [name], device, dtype)[0]
        decoder = self.decoder(name, device)
        out: torch.Tensor = decoder.decode(name, dtype)
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
        cached = self.placement(device).cached if self.settings["cache"] else {}
        if large and cut and name not in cached:
            return GpuSlicedPlan(self, name, device, dtype) if gpu else SlicedPlan(self, name, dtype)
        members = (name,) if large else self._group_of.get(name, (name,))
        stored = dict.fromkeys(self.entry(n).name for n in members)
        whole = tuple(n for n in stored if n == name or not is_sliced(self.entry(n), dtype))
        whole = tuple(n for n in whole if (n in cached) == (name in cached))
        if name in cached:
            shelf = self._shelves.setdefault(device, {}).setdefault(whole, Shelf(sum(cached[n] for n in whole)))
            return CachedPlan(self, whole, device, dtype, shelf, cut)
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
            placed = self.placement(device)
            wanted = [
                n for n in (name, *self._names_on(device)) if n not in has and (n == name or n not in placed.cached)
            ]
            resident = [n for n in dict.fromkeys(wanted) if n not in placed.streamed]
            streamed = [n for n in dict.fromkeys(wanted) if n in placed.streamed]
            if resident:
                decoders.append(_gpu_decoder.GpuDecoder(self.container, resident, device))
            if streamed:
                decoders.append(_host.HostDecoder(self.container, streamed, device, ring=self._ring(streamed)))
            return next(decoder for decoder in decoders if name in decoder.names)

    def _ring(self, names: Iterable[str]) -> int:
        """Bytes of the ring that these tensors pass through."""
        left = self._held(list(names))
        blocks = [sum(left.pop(self.entry(n).name, 0) for n in group) for group in self._groups]
        return ring_bytes(max(*blocks, *left.values(), 0))

    def chain(self, device: torch.device, names: Sequence[str]) -> Chain:
        """The order in which a device's batches are used. Only those that are streamed are fetched ahead, and no
        experts: which of them come next is not known."""
        if self.placement(device).streamed.isdisjoint(names) or not self.routed.keys().isdisjoint(names):
            return Chain(0)
        return self._chains.setdefault(device, Chain(_AHEAD))

    def _names_on(self, device: torch.device) -> list[str]:
        """Stored tensors of the layers on a device, with all that is decoded with them, in the container's order."""
        used: set[str] = set()
        for layer in self._layers_on(device):
            for name in layer.tensors:
                stored = self.entry(name).name
                used.update(self.entry(n).name for n in self._group_of.get(stored, (stored,)))
        return [n for n in self.container if n in used]

    def check_budget(self) -> None:
        """Raises now, before anything is sent to a GPU, if a budget that the user gave is too small."""
        if self.settings["vram_budget"] is not None:
            with self.lock:
                devices = {layer.device for layer in self._users if layer.device.type == "cuda"}
            for device in devices:
                self.placement(device)

    def prepare(self) -> None:
        """Makes the decoders and plans of every layer that is on a GPU, so that what is missing is said early, and
        decodes what stays decoded."""
        users: dict[str, set[tuple[torch.device, torch.dtype, bool]]] = {}
        with self.lock:
            layers = list(self._users)
        for layer in layers:
            if layer.device.type == "cuda" and not layer.looked_up:
                for name in layer.tensors:
                    users.setdefault(self.entry(name).name, set()).add((layer.device, layer.dtype, layer.cut))
        # In the order of the model, which is that of the groups.
        place = {self.entry(n).name: i for i, n in enumerate(n for group in self._groups for n in group)}
        for name in sorted(users, key=lambda n: place.get(n, len(place))):
            for device, dtype, cut in users[name]:
                plan, _ = self.plan(name, device, dtype, cut)
                if isinstance(plan, CachedPlan):
                    plan.weights()

    @property
    def device_bytes(self) -> int:
        """Memory of GPUs that the decoders hold."""
        return sum(decoder.device_bytes for decoder in self._all_decoders())

    @property
    def host_bytes(self) -> int:
        """Pinned memory of the host that holds compressed bytes (residency ``host``)."""
        return sum(getattr(decoder, "host_bytes", 0) for decoder in self._all_decoders())

    def _all_decoders(self) -> list[Any]:
        # Other threads make some meanwhile.
        with self.lock:
            return [decoder for decoders in self._decoders.values() for decoder in decoders]

    def ring_bytes(self, device: torch.device) -> int:
        """Memory of a GPU that the decoder of what is streamed to it holds."""
        with self.lock:
            decoders = list(self._decoders.get(device, ()))
        return sum(d.device_bytes for d in decoders if isinstance(d, _host.HostDecoder))

    def is_cached(self, names: Iterable[str], device: torch.device) -> bool:
        """Whether weights of a layer stay decoded, or will once they are."""
        placed = self._placements.get(device)
        return placed is not None and any(self.entry(name).name in placed.cached for name in names)

    def cached_bytes(self, device: torch.device) -> int:
        """Memory of a device that weights take which stay decoded."""
        with self.lock:
            return sum(shelf.bytes for shelf in self._shelves.get(device, {}).values())

    def clear_shelves(self, names: Iterable[str], device: torch.device) -> None:
        """Drops what stays decoded of any of these weights on a device."""
        wanted = set(names)
        for shelved, shelf in self._shelves.get(device, {}).items():
            if not wanted.isdisjoint(shelved):
                shelf.held = None

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self.settings
        arguments = (settings["residency"], self.routed, settings["vram_budget"], settings["cache"], self._others)
        return Store.from_bytes, (self.bytes_of(self.container), self._groups, *arguments)


def plain_bytes(model: torch.nn.Module, device: torch.device | None = None) -> int:
    """Bytes of the parameters and buffers of a model (on one device), those that are shared once."""
    sizes: dict[Any, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if device is None or tensor.device == device:
            key = id(tensor) if tensor.device.type == "meta" else _torch.identity(tensor) or id(tensor)
            sizes[key] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())


def compress_tensors(tensors: dict[str, torch.Tensor], **options: Any) -> Container:
    """These tensors, compressed in memory."""
    return _api.compress_in_memory(tensors, **options)


def computing_dtype(dtype: Any) -> torch.dtype:
    """A dtype that layers compute in."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found not in (torch.float32, torch.float16, torch.bfloat16):
        raise InputError(f"compressed layers compute in float32, float16 or bfloat16, not in {dtype} (use one of them)")
    return found
