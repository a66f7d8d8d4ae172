"""The bytes that layers on a device need there, and the placement that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from ... import _native
from ..._gpu import decoder
from .of_layer import LayerWeights
from .placement import (
    Placement,
    Settings,
    Takes,
    Unit,
    choose_cached,
    choose_on_disk,
    choose_streamed,
    refuse_budget,
    ring_bytes,
)
from .providers import ALIGN, decoded_bytes, is_sliced, slices
from .tensor_groups import TensorGroups


class MemoryEstimate:
    """Tensors, dtypes and units of the layers that are on a device now."""

    def __init__(self, tensor_groups: TensorGroups, device: torch.device, users: Sequence[LayerWeights]) -> None:
        self._tensor_groups, self._device = tensor_groups, device
        self._names = tensor_groups.together(name for user in users for name in user.tensors)
        self.dtypes = self._dtypes(users)
        self.units = self._units(users)

    def placement(
        self,
        settings: Settings,
        cache: int,
        budget: Callable[[], tuple[int, int, str]],
        ram: Callable[[], tuple[int | None, str]],
    ) -> Placement:
        """The placement: tensors that are streamed to the device, and from where, and those that stay decoded there.

        :param cache: bytes of the device that may be taken by weights that stay decoded.
        :param budget: as :meth:`Budget.of`; called only where it decides.
        :param ram: as :meth:`Budget.of_host`; called only where it decides.
        """
        gpu = self._device.type == "cuda"
        residency = settings["residency"]
        names = frozenset(name for unit in self.units for name in unit.names)
        # Weights that stay decoded need not be streamed: that is where `auto` gains most.
        where = "cpu" if not gpu else "host" if residency == "auto" else residency
        cached = choose_cached(self.units, cache, where)
        cached_units = set(cached)
        rest = [unit for unit in self.units if unit not in cached_units]
        streamed: list[Unit] = []
        if gpu and residency in ("host", "disk"):
            streamed = [unit for unit in rest if not unit.looked_up]
        elif gpu and residency == "auto":
            streamed = choose_streamed(rest, cached, self.takes(), *budget())
        disk: list[Unit] = []
        from_host = streamed if gpu else [unit for unit in rest if not unit.looked_up]
        if residency == "disk":
            disk = from_host
        elif residency == "auto" and from_host:
            disk = self._on_disk(from_host, *ram())
        entry = self._tensor_groups.entry
        return Placement(
            names,
            frozenset(name for unit in streamed for name in unit.names),
            frozenset(name for unit in disk for name in unit.names),
            {n: decoded_bytes(entry(n), self.dtypes[n]) for unit in cached for n in unit.names},
        )

    def _on_disk(self, units: list[Unit], budget: int | None, what: str) -> list[Unit]:
        """The units that the host has no memory for."""
        if budget is None:
            return []
        takes = self.takes_of_host()
        if self._tensor_groups.container.path is not None:
            return choose_on_disk(units, takes, budget, what)
        # Their bytes are in memory anyway; for a GPU they are pinned there once more.
        if self._device.type == "cuda" and what == "ram_budget" and (least := takes(units, [])) > budget:
            refuse_budget(what, budget, least, "allow more, or load the model from a file, which it can be read from")
        return []

    def takes_of_host(self) -> Takes:
        """A function for the bytes of the host's memory, pinned for a GPU, that units take if some stay there and
        others are read from disk."""
        if self._device.type != "cuda":
            return lambda resident, disk: (
                sum(u.held for u in resident) + ring_bytes(max((u.held for u in disk), default=0))
            )
        names = [name for unit in self.units for name in unit.names]
        sizes = _native.DeviceSizes(self._tensor_groups.container._open, names)
        places = {name: i for i, name in enumerate(names)}

        def takes(resident: Sequence[Unit], disk: Sequence[Unit]) -> int:
            ring = ring_bytes(max((unit.held for unit in (*resident, *disk)), default=0))
            held, read = (
                [places[name] for unit in some_units for name in unit.names] for some_units in (resident, disk)
            )
            return sizes.pinned(held, read, decoder.gpu_options(ring=ring))

        return takes

    def takes(self) -> Takes:
        """A function for the bytes that decoders of the units hold on the GPU."""
        names = [name for unit in self.units for name in unit.names]
        sizes = _native.DeviceSizes(self._tensor_groups.container._open, names)
        places = {name: i for i, name in enumerate(names)}
        index = self._device.index

        def takes(resident: Sequence[Unit], streamed: Sequence[Unit]) -> int:
            total = 0
            for group, on_host in ((resident, False), (streamed, True)):
                if group:
                    ring = ring_bytes(max(unit.held for unit in group)) if on_host else None
                    indices = [places[name] for unit in group for name in unit.names]
                    total += sizes.total(indices, on_host, index, decoder.gpu_options(ring=ring))
            return total

        return takes

    def _dtypes(self, users: Sequence[LayerWeights]) -> dict[str, torch.dtype]:
        """The dtype that each stored tensor is decoded to, the widest of those wanted."""
        ordered = sorted(users, key=lambda user: user.dtype.itemsize)
        dtypes = dict.fromkeys(self._names, ordered[-1].dtype if ordered else torch.float32)
        for user in ordered:
            dtypes.update((self._tensor_groups.entry(name).name, user.dtype) for name in user.tensors)
        return dtypes

    def _units(self, users: Sequence[LayerWeights]) -> list[Unit]:
        """The units that the layers need, in the order of the model, each stored tensor once."""
        entry = self._tensor_groups.entry
        # Embeddings stay on the device: their rows are needed at once, and at random.
        looked_up = {entry(n).name for user in users if user.looked_up for n in user.tensors}
        # A head that is tied to an embedding is in both sets.
        self._multiplied = {entry(n).name for user in users if not user.looked_up for n in user.tensors}
        # Layers that decode several blocks at a time on a GPU.
        self._at_once = {entry(n).name: user.at_once for user in users if user.at_once for n in user.tensors}
        wanted = self._names
        held = self._tensor_groups.held(wanted)
        left = dict.fromkeys(wanted)
        units = []
        single = ((name,) for name in wanted if name in looked_up)
        for group in (*single, *self._tensor_groups.groups, *((n,) for n in wanted)):
            stored_names = tuple(n for n in dict.fromkeys(entry(name).name for name in group) if n in left)
            if stored_names:
                for name in stored_names:
                    del left[name]
                units.append(self._unit(stored_names, held, not looked_up.isdisjoint(stored_names)))
        return units

    def _unit(self, names: tuple[str, ...], held: Mapping[str, int], looked_up: bool) -> Unit:
        entries = [self._tensor_groups.entry(name) for name in names]
        together, at_once = 0, [0]
        if self._device.type == "cuda":
            at_once += [self._at_once.get(name, 0) for name in names]
        for entry in entries:
            dtype = self.dtypes[entry.name]
            if is_sliced(entry, dtype):
                rows = next(slices(entry, dtype))[1]
                at_once.append(rows * entry.shape[1] * dtype.itemsize)
            else:
                together += -(-decoded_bytes(entry, dtype) // ALIGN) * ALIGN
        return Unit(
            names,
            stored=sum(entry.stored_bytes for entry in entries),
            held=sum(held[entry.name] for entry in entries),
            decoded=sum(decoded_bytes(entry, self.dtypes[entry.name]) for entry in entries),
            scratch=max(together, *at_once),
            use=max(self._tensor_groups.routed.get(name, 1.0) for name in names),
            looked_up=looked_up,
            multiplied=not self._multiplied.isdisjoint(names),
        )


def ring_of(tensor_groups: TensorGroups, names: Iterable[str]) -> int:
    """Bytes of the ring that these stored tensors pass through."""
    left = tensor_groups.held(list(names))
    blocks = [sum(left.pop(tensor_groups.entry(n).name, 0) for n in group) for group in tensor_groups.groups]
    return ring_bytes(max(*blocks, *left.values(), 0))
