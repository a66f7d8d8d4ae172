"""A store's state for one device: decoders, providers for each dtype, weights that stay decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..._gpu import decoder as _gpu_decoder
from ..._gpu import host
from .budget import host_memory
from .cached import CachedProvider, CacheEntry
from .memory_estimate import ring_of
from .placement import Placement
from .prefetch_order import PrefetchOrder
from .prefetch_queue import PrefetchQueue
from .providers import CpuProvider, SlicedProvider, WeightProvider, is_sliced
from .providers_gpu import GpuProvider, GpuSlicedProvider
from .tensor_groups import TensorGroups

if TYPE_CHECKING:
    from .store import Store

# Batches that are copied to the device ahead of the one that computes; of those that are read from disk more, so that
# disks always have something to do.
_AHEAD = 2
_AHEAD_OF_DISK = 4


class DeviceState:
    """A store's state for one device, changed only under the store's lock. It has no reference to the store: with one,
    a model that is gone would keep memory of a GPU until Python's next collection of reference cycles."""

    def __init__(self, tensor_groups: TensorGroups, device: torch.device) -> None:
        self._tensor_groups, self._device = tensor_groups, device
        # None until it is settled. Replaced as a whole, so that threads need no lock to read it.
        self.placement: Placement | None = None
        self.providers: dict[tuple[str, torch.dtype], WeightProvider] = {}
        self.decoders: list[Any] = []
        self.prefetch_order = PrefetchOrder(_AHEAD)
        self.prefetch_queue = PrefetchQueue(tensor_groups.container)
        self._cache_entries: dict[tuple[str, ...], CacheEntry] = {}
        # Whether the file is read ahead for the CPU.
        self.reads_ahead = False
        # Whether providers of all layers that are read so were made.
        self.foreseen = False

    def new_provider(
        self, store: Store, name: str, dtype: torch.dtype, cut: bool, cached: Mapping[str, int]
    ) -> WeightProvider:
        """Makes the provider for a stored tensor in that dtype, and for what is decoded with it.

        :param cut: as in :meth:`Store.provider`.
        :param cached: the tensors that stay decoded, each with its decoded bytes.
        """
        provider = self._make_provider(store, name, dtype, cut, cached)
        self.providers.update(((n, dtype), provider) for n in provider.names)
        return provider

    def _make_provider(
        self, store: Store, name: str, dtype: torch.dtype, cut: bool, cached: Mapping[str, int]
    ) -> WeightProvider:
        entry, device = self._tensor_groups.entry, self._device
        gpu = device.type == "cuda"
        large = is_sliced(entry(name), dtype)
        if large and cut and name not in cached:
            return (
                GpuSlicedProvider(store, name, device, dtype)
                if gpu
                else SlicedProvider(store, name, dtype, self.prefetch_queue)
            )
        members = (name,) if large else self._tensor_groups.group_of(name)
        stored = dict.fromkeys(entry(n).name for n in members)
        undivided = tuple(n for n in stored if n == name or not is_sliced(entry(n), dtype))
        undivided = tuple(n for n in undivided if (n in cached) == (name in cached))
        if name in cached:
            cache_entry = self._cache_entries.setdefault(undivided, CacheEntry(sum(cached[n] for n in undivided)))
            return CachedProvider(store, undivided, device, dtype, cache_entry, cut)
        return (
            GpuProvider(store, undivided, device, dtype)
            if gpu
            else CpuProvider(store, undivided, dtype, self.prefetch_queue)
        )

    def decoder(self, name: str) -> Any:
        """The decoder that has this stored tensor; none if there is none yet."""
        for decoder in self.decoders:
            if name in decoder.names:
                return decoder
        return None

    def make_decoders(self, name: str, names: Iterable[str], placed: Placement) -> Any:
        """Makes decoders for a stored tensor and for those of ``names`` that have none and need one; the one of
        ``name``."""
        has = {n for decoder in self.decoders for n in decoder.names}
        wanted = [n for n in (name, *names) if n not in has and (n == name or n not in placed.cached)]
        resident = [n for n in dict.fromkeys(wanted) if n not in placed.streamed]
        streamed = [n for n in dict.fromkeys(wanted) if n in placed.streamed]
        container, device, scaled = self._tensor_groups.container, self._device, self._tensor_groups.scaled
        if resident:
            self.decoders.append(scaled.decoder(_gpu_decoder.GpuDecoder(container, resident, device)))
        if streamed:
            options: dict[str, Any] = {"ring": ring_of(self._tensor_groups, streamed)}
            if disk := [n for n in streamed if n in placed.disk]:
                options |= {"from_disk": disk, "direct": pays_directly(self._tensor_groups, disk)}
                # Experts take slots of the ring, too.
                self.prefetch_order.depth = _AHEAD if self._tensor_groups.routed else _AHEAD_OF_DISK
            self.decoders.append(scaled.decoder(host.HostDecoder(container, streamed, device, **options)))
        return next(decoder for decoder in self.decoders if name in decoder.names)

    def read_ahead(self, placed: Placement) -> None:
        """Has the file's tensors that the CPU decodes read by threads."""
        container = self._tensor_groups.container
        if not placed.disk and not self.reads_ahead:
            return
        names = [n for n in container if n in placed.disk]
        self.reads_ahead = bool(names)
        ring = ring_of(self._tensor_groups, names) if names else 0
        container._open.read_ahead(names, ring, bool(names) and pays_directly(self._tensor_groups, names), None)
        self.prefetch_queue.ring = ring

    def forget(self) -> None:
        """Ends what was begun for the device."""
        if self.reads_ahead:
            self.read_ahead(Placement())

    @property
    def cached_bytes(self) -> int:
        """Memory that weights take which stay decoded."""
        return sum(cache_entry.bytes for cache_entry in self._cache_entries.values())

    def clear_cache_entries(self, names: Iterable[str]) -> None:
        """Drops what stays decoded of any of these weights."""
        wanted = set(names)
        for group, cache_entry in self._cache_entries.items():
            if not wanted.isdisjoint(group):
                cache_entry.held = None


def pays_directly(tensor_groups: TensorGroups, names: Iterable[str]) -> bool:
    """Whether tensors are best read beside the system's page cache: where they are more than it can well hold."""
    free, _ = host_memory()
    return free is None or 2 * sum(tensor_groups.entry(name).stored_bytes for name in names) > free
