"""The container behind compressed layers, and who decodes from it where."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..._core import format as fmt
from ..._core.errors import InputError
from ..._file.container import Container, TensorEntry
from ..._gpu import host
from .budget import Budget
from .cached import CachedProvider, decode_apart
from .device_state import DeviceState
from .memory_estimate import MemoryEstimate
from .of_layer import LayerWeights
from .placement import Placement, Settings, caches_by_itself, checked_settings, refuse_disk
from .prefetch_order import PrefetchOrder
from .providers import CpuProvider, WeightProvider
from .providers_gpu import GpuProvider
from .tensor_groups import TensorGroups
from .workspace import workspace


class Store:
    """Compressed tensors that layers share: an open container, and decoders for the GPUs that its layers are on.

    It never changes what it holds, so copies of layers share it. Pickled, it is the whole container.

    Which tensors are in a GPU's memory, streamed to it or kept decoded is settled for each device when the first weight
    is decoded there, from the layers that are on it then; when layers come, go or change their dtype, anew.

    :param groups: names of tensors that are decoded together; a tensor without a group is one of its own.
    :param residency: place of compressed bytes while layers are on a GPU: ``device``, ``host``, ``disk`` or ``auto``.
    :param routed: those of experts, of which only the routed ones are decoded; a mapping says how often for each token.
    :param vram_budget: for ``auto``, bytes of the device that the model may take; what is free, if left out.
    :param cache: bytes of each device that weights may take that stay decoded; ``None`` for none of a GPU, and of a CPU
        what is free when the first weight is decoded, less a fifth.
    :param others: bytes of the model's weights that are not compressed, where :meth:`serve` is not told of the model.
    :param ram_budget: for ``auto``, bytes of the host's memory that compressed weights may take; what is free, if left
        out. The rest is read from disk.
    :param fuses: whether GPUs multiply a few tokens with weights that stay compressed.
    """

    def __init__(
        self,
        container: Container,
        groups: Iterable[Sequence[str]] = (),
        residency: str = "device",
        routed: Iterable[str] | Mapping[str, float] = (),
        vram_budget: int | str | None = None,
        cache: int | str | None = 0,
        others: int = 0,
        ram_budget: int | str | None = None,
        fuses: bool = False,
    ) -> None:
        self.container = container
        self.tensor_groups = TensorGroups(container, groups, routed)
        self.settings: Settings = checked_settings(residency, vram_budget, cache, ram_budget)
        if container.path is None:
            refuse_disk(self.settings)
        self.lock = threading.RLock()
        self.fuses = fuses
        # The bytes of weights that stay decoded on a CPU by themselves, beyond which memory was short.
        self._most: int | None = None
        self._budget = Budget(self.settings["vram_budget"], others, self.settings["ram_budget"])
        # Changed under the lock only. Readers without it find the state that is there, or none.
        self._devices: dict[torch.device, DeviceState] = {}
        # Weakly, so that a layer that is gone keeps nothing on a GPU.
        self._users: weakref.WeakSet[LayerWeights] = weakref.WeakSet()

    @classmethod
    def from_bytes(cls, data: bytes, *arguments: Any, **settings: Any) -> Store:
        """A store in memory; ``arguments`` and ``settings`` are those of the class, behind the container."""
        return cls(Container.open(data), *arguments, **settings)

    @property
    def residency(self) -> str:
        """The residency that was asked for; :meth:`residency_of` gives the one that was chosen."""
        return self.settings["residency"]

    def saved_settings(self) -> dict[str, str]:
        """The settings as text for a config; those that are not set are left out."""
        settings = self.settings
        settings_text = {"residency": settings["residency"]}
        for name, budget in (("vram_budget", settings["vram_budget"]), ("ram_budget", settings["ram_budget"])):
            if budget is not None:
                settings_text[name] = fmt.exact_size(budget)
        if settings["cache"] is not None:
            settings_text["cache"] = fmt.exact_size(settings["cache"])
        return settings_text

    # Stored tensors

    def entry(self, name: str) -> TensorEntry:
        """The stored tensor of that name, a tied one resolved."""
        return self.tensor_groups.entry(name)

    def bytes_of(self, names: Iterable[str]) -> bytes:
        """A container with only these tensors, compressed as they are."""
        return self.container.extract(self.tensor_groups.stored_with(names))

    # Layers that use it

    def register(self, user: LayerWeights) -> None:
        """Takes note of a layer that decodes from here."""
        with self.lock:
            self._users.add(user)
            placed = self._placed(user.device)
            if placed is not None and any(self.entry(name).name not in placed.names for name in user.tensors):
                self._unsettle(user.device)

    def leave(self, user: LayerWeights) -> None:
        """Takes note that a layer decodes from elsewhere."""
        with self.lock:
            self._users.discard(user)

    def serve(self, model: torch.nn.Module) -> None:
        """Takes note of the model whose other weights take memory, too."""
        self._budget.serve(model)

    def fuse(self, fuses: bool) -> None:
        """Says whether GPUs multiply a few tokens with weights that stay compressed."""
        with self.lock:
            if self.fuses == fuses:
                return
            self.fuses = fuses
            for device, state in self._devices.items():
                state.providers.clear()
                for user in self._users_on(device):
                    user.forget()
                if device.type == "cuda":
                    # Providers that multiply with what is compressed take none before they decode.
                    workspace(device).release()

    def moved(self, before: torch.device, after: torch.device) -> None:
        """A layer went to another device or dtype: lets go of what was kept where it was, if nobody is there any more
        or if it was chosen for sizes that are no longer so."""
        with self.lock:
            if not self._users_on(before):
                self._forget(before)
            for device in {before, after}:
                self._unsettle(device)

    def caches(self, device: torch.device) -> bool:
        """Whether weights may stay decoded on a device."""
        cache = self.settings["cache"]
        if cache is not None:
            return cache > 0
        return device.type == "cpu" and caches_by_itself(self.settings)

    def _room(self, device: torch.device) -> int:
        """Bytes that weights may take which stay decoded on a device; what there is of them already is let go of."""
        cache = self.settings["cache"]
        if cache is not None:
            return cache
        room = self._budget.of_cache() if self.caches(device) else 0
        if self.residency == "auto":
            # Before any are decoded, all compressed ones are to be in memory.
            room -= sum(entry.stored_bytes for entry in self.container.stored)
        return max(room if self._most is None else min(room, self._most), 0)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes of decoded weights can stay on the CPU: always, where somebody has said how many."""
        return self.settings["cache"] is not None or self._budget.has_room(size)

    def stop_caching(self, device: torch.device) -> None:
        """Has no more weights stay decoded than do now, since memory is short; for whoever has the lock."""
        self._most = self.cached_bytes(device)
        self._unsettle(device)

    def _chooses(self, device: torch.device) -> bool:
        """Whether what is kept where depends on sizes."""
        return self.residency == "auto" or self.caches(device)

    def _unsettle(self, device: torch.device) -> None:
        """Has what is where on a device decided anew."""
        if self._chooses(device):
            self._forget(device)
        elif device in self._devices:
            # Nothing changes for those that are there: decoders of others are added to theirs.
            self._devices[device].placement = None

    def _forget(self, device: torch.device) -> None:
        dropped = self._devices.pop(device, None)
        if dropped is not None:
            dropped.forget()
        for user in self._users_on(device):
            user.forget()

    def _users_on(self, device: torch.device) -> list[LayerWeights]:
        return [user for user in self._users if user.device == device]

    def _memory_estimate(self, device: torch.device) -> MemoryEstimate:
        return MemoryEstimate(self.tensor_groups, device, self._users_on(device))

    def _device_state(self, device: torch.device) -> DeviceState:
        """The state kept for a device; the caller holds the lock."""
        state = self._devices.get(device)
        if state is None:
            state = self._devices[device] = DeviceState(self.tensor_groups, device)
        return state

    # Placement on devices

    def placement(self, device: torch.device) -> Placement:
        """The tensors that are streamed to a device, and those that stay decoded there."""
        with self.lock:
            state = self._device_state(device)
            if state.placement is None:
                estimate = self._memory_estimate(device)
                room = self._room(device)
                state.placement = estimate.placement(
                    self.settings, room, lambda: self._budget.of(device), self._budget.of_host
                )
                if device.type == "cpu":
                    state.read_ahead(state.placement)
            return state.placement

    def _is_placed(self, device: torch.device) -> bool:
        """Whether providers depend on what is where."""
        reads = device.type == "cpu" and self.residency in ("disk", "auto")
        return reads or self.caches(device)

    def _placed(self, device: torch.device) -> Placement | None:
        """The :meth:`placement`, if it is settled; None otherwise."""
        state = self._devices.get(device)
        return None if state is None else state.placement

    def _existing_provider(self, name: str, device: torch.device, dtype: torch.dtype) -> WeightProvider | None:
        """The provider of a stored tensor, if there is one. A caller that waited with ``_devices[device]`` at hand
        would keep decoders that others have let go of."""
        state = self._devices.get(device)
        return None if state is None else state.providers.get((name, dtype))

    def residency_of(self, names: Iterable[str], device: torch.device) -> str:
        """The place of a layer's compressed bytes, ``device``, ``host`` or ``disk``: ``disk`` if some are read from
        there, ``host`` if some are streamed. With ``auto`` it is ``auto`` until that is settled, by the first weight
        that is decoded; bytes that the CPU reads through the system's page cache are on the ``host``."""
        if self.residency != "auto":
            return self.residency
        placed = self._placed(device)
        if placed is None:
            return "auto"
        stored = {self.entry(name).name for name in names}
        if not placed.disk.isdisjoint(stored):
            return "disk"
        return "device" if device.type == "cuda" and placed.streamed.isdisjoint(stored) else "host"

    # Decoding

    def decoded(self, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor with the decoded weight, for whoever wants to keep it."""
        name = self.entry(name).name
        provider = self._existing_provider(name, device, dtype)
        # A copy that somebody wants once is no reason to keep a weight that nobody asked to be kept.
        if isinstance(provider, CachedProvider) and (
            self.settings["cache"] is not None or provider.held(name) is not None
        ):
            return provider.weights()[provider.names.index(name)].clone()
        if device.type != "cuda" or name in self.placement(device).cached:
            return decode_apart(self, [name], device, dtype)[0]
        decoder = self.decoder(name, device)
        out: torch.Tensor = decoder.decode(name, dtype)
        decoder.check()
        return out

    def rows(self, name: str, dtype: torch.dtype, rows: tuple[int, int] | None) -> torch.Tensor:
        """The tensor, or a slice of its rows, decoded by the CPU."""
        entry = self.entry(name)
        if entry.name in self.tensor_groups.scaled:
            return self.tensor_groups.scaled.rows(entry, dtype, rows)
        return entry.torch(dtype) if rows is None else entry.torch_rows(*rows, dtype)

    def provider(
        self, name: str, device: torch.device, dtype: torch.dtype, cut: bool = True
    ) -> tuple[WeightProvider, int]:
        """The provider that decodes a layer's weight, and the layer's place in it.

        :param cut: whether slices of dimension 0 are slices of the layer's outputs, so that it can be cut into them.
        """
        name = self.entry(name).name
        with self.lock:
            if self.container._native is None:
                raise InputError(
                    "the container of this layer is closed (open it again and load the model)", code="I221"
                )
            state = self._device_state(device)
            provider = state.providers.get((name, dtype))
            if provider is None:
                cached = self.placement(device).cached if self._is_placed(device) else {}
                self._foresee(state, device, cached)
                provider = state.providers.get((name, dtype)) or state.new_provider(self, name, dtype, cut, cached)
            return provider, provider.names.index(name)

    def _foresee(self, state: DeviceState, device: torch.device, cached: Mapping[str, int]) -> None:
        """Makes the providers of all layers that the CPU reads from disk, in the order of the model, so that reading
        ahead follows it from the beginning. The order of experts is not known."""
        if not state.reads_ahead or state.foreseen:
            return
        state.foreseen = True
        wanted: dict[str, LayerWeights] = {}
        for user in self._users_on(device):
            if user.planned and not user.looked_up:
                wanted.update((self.entry(n).name, user) for n in user.tensors if n not in self.tensor_groups.routed)
        for name in self.tensor_groups.in_order(wanted):
            user = wanted[name]
            if (name, user.dtype) not in state.providers:
                state.new_provider(self, name, user.dtype, user.cut, cached)

    def decoder(self, name: str, device: torch.device) -> Any:
        """The decoder of a GPU that has this tensor; made at the first call, for all layers on that GPU."""
        name = self.entry(name).name
        with self.lock:
            state = self._device_state(device)
            decoder = state.decoder(name)
            if decoder is None:
                placed = self.placement(device)
                decoder = state.make_decoders(name, self._names_on(device), placed)
            return decoder

    def _names_on(self, device: torch.device) -> list[str]:
        """Stored tensors of the layers on a device, with all that is decoded with them."""
        return self.tensor_groups.together(name for user in self._users_on(device) for name in user.tensors)

    def prefetch_order(self, device: torch.device, names: Sequence[str]) -> PrefetchOrder:
        """The order in which a device's batches are used. Only those that are streamed are fetched ahead, and no
        experts: which of them come next is not known."""
        if self.placement(device).streamed.isdisjoint(names) or not self.tensor_groups.routed.keys().isdisjoint(names):
            return PrefetchOrder(0)
        return self._device_state(device).prefetch_order

    def reads_from_disk(self, device: torch.device) -> bool:
        """Whether some tensors are read from disk whenever they are decoded on a device."""
        placed = self._placed(device)
        return placed is not None and bool(placed.disk)

    def expect(self, experts: Sequence[Sequence[str]], device: torch.device, dtype: torch.dtype) -> None:
        """Has the tensors of these experts read from disk, which are decoded next, in this order."""
        with self.lock:
            state = self._device_state(device)
            providers = dict.fromkeys(
                self.provider(name, device, dtype, cut=False)[0] for names in experts for name in names
            )
        if device.type == "cpu":
            state.prefetch_queue.expect(
                [provider.read_key for provider in providers if isinstance(provider, CpuProvider)]
            )
            return
        for provider in providers:
            if isinstance(provider, GpuProvider):
                provider.prefetch()

    def check_budget(self) -> None:
        """Raises now, before anything is sent to a GPU, if a budget that the user gave is too small."""
        if self.settings["vram_budget"] is not None or self.settings["ram_budget"] is not None:
            with self.lock:
                devices = {user.device for user in self._users if user.device.type in ("cuda", "cpu")}
            for device in devices:
                self.placement(device)

    def prepare(self) -> None:
        """Makes the decoders and providers of every layer that is on a GPU, so that what is missing is said early, and
        decodes what stays decoded."""
        wanted: dict[str, set[tuple[torch.device, torch.dtype, bool]]] = {}
        with self.lock:
            users = list(self._users)
        for user in users:
            if user.device.type == "cuda" and user.planned and not user.looked_up:
                for name in user.tensors:
                    wanted.setdefault(self.entry(name).name, set()).add((user.device, user.dtype, user.cut))
        for name in self.tensor_groups.in_order(wanted):
            for device, dtype, cut in wanted[name]:
                provider, _ = self.provider(name, device, dtype, cut)
                if isinstance(provider, CachedProvider):
                    provider.weights()

    @property
    def device_bytes(self) -> int:
        """Memory of GPUs that the decoders hold."""
        return sum(decoder.device_bytes for decoder in self._all_decoders())

    @property
    def host_bytes(self) -> int:
        """Pinned memory of the host that holds compressed bytes (residency ``host``), or that those on disk pass
        through."""
        return sum(getattr(decoder, "host_bytes", 0) for decoder in self._all_decoders())

    @property
    def host_ring_bytes(self) -> int:
        """Memory of the host that compressed bytes pass through on their way from disk."""
        facts = None if self.container._native is None else self.container._open.ahead_facts()
        pinned = sum(getattr(decoder, "host_ring_bytes", 0) for decoder in self._all_decoders())
        return pinned + (0 if facts is None else facts[0])

    def disk_bytes(self, device: torch.device) -> int:
        """Bytes of compressed tensors that are read from disk whenever they are decoded for a device."""
        placed = self._placed(device)
        return 0 if placed is None else sum(self.entry(name).stored_bytes for name in placed.disk)

    def _all_decoders(self) -> list[Any]:
        # Other threads make some meanwhile.
        with self.lock:
            return [decoder for state in self._devices.values() for decoder in state.decoders]

    def ring_bytes(self, device: torch.device) -> int:
        """Memory of a GPU that the decoder of what is streamed to it holds."""
        with self.lock:
            state = self._devices.get(device)
            decoders = [] if state is None else list(state.decoders)
        return sum(d.device_bytes for d in decoders if isinstance(getattr(d, "unscaled", d), host.HostDecoder))

    def is_cached(self, names: Iterable[str], device: torch.device) -> bool:
        """Whether weights of a layer stay decoded, or will once they are."""
        placed = self._placed(device)
        return placed is not None and any(self.entry(name).name in placed.cached for name in names)

    def cached_bytes(self, device: torch.device) -> int:
        """Memory of a device that weights take which stay decoded."""
        with self.lock:
            state = self._devices.get(device)
            return 0 if state is None else state.cached_bytes

    def kept(self, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor | None:
        """The weight itself, where it stays decoded and has been."""
        name = self.entry(name).name
        provider = self._existing_provider(name, device, dtype)
        return provider.held(name) if isinstance(provider, CachedProvider) else None

    def clear_cache_entries(self, names: Iterable[str], device: torch.device) -> None:
        """Drops what stays decoded of any of these weights on a device; for whoever has the lock."""
        state = self._devices.get(device)
        if state is not None:
            state.clear_cache_entries(names)

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        settings, tensor_groups = self.settings, self.tensor_groups
        # The copy is in memory.
        residency = "host" if settings["residency"] == "disk" else settings["residency"]
        saved = residency, tensor_groups.routed, settings["vram_budget"], settings["cache"], self._budget.others
        return Store.from_bytes, (
            self.bytes_of(self.container), tensor_groups.groups, *saved, settings["ram_budget"], self.fuses
        )  # fmt: skip
