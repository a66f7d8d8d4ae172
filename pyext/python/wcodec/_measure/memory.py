"""Memory that is taken, and what of it is the model's."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._core.keywords import keywords
from .._gpu import devices
from .._gpu import torch as _torch
from .._models import running
from .reports import LayerPlace, MemoryPart, MemoryReport

if TYPE_CHECKING:
    import torch


@keywords()
def measure_vram(
    model: Any = None, *, device: str | torch.device | None = None, reset_peak: bool = False
) -> MemoryReport:
    """Memory that is taken now, and the most that was.

    On a GPU: what torch's allocator gave out (``allocated``), what it holds for that (``reserved``), both peaks, and
    what is taken on the whole device (``used``), where other processes count too. On the CPU: this process's resident
    memory and its peak, and no figures of torch. With a model, its parts are named: compressed bytes, weights that are
    not compressed, buffers, the memory that weights are decoded into, and weights that stay decoded. Compressed bytes
    that are read from a file as they are needed (layers on the CPU) are named as well, but need not all be resident.

    Example::

        wcodec.measure_vram(reset_peak=True)
        model.generate(**inputs)
        print(wcodec.measure_vram(model).peak_allocated)

    :param device: the device to measure; the model's device if left out, or torch's current GPU, or the CPU without
        one.
    :param reset_peak: begins counting torch's peaks anew, after this report.
    :raises DeviceError: for a GPU that cannot be used.
    """
    torch = _torch.require()
    if model is not None:
        running.check_model(model)
    place = _device(model, device)
    parts = tuple(_parts(model)) if model is not None else ()
    layers = tuple(_layers(model)) if model is not None else ()
    if place.type != "cuda":
        used, peak = _process_memory()
        return MemoryReport(str(place), None, None, None, None, used, peak, _machine_memory(), parts, layers)
    cuda = torch.cuda
    free, total = cuda.mem_get_info(place)
    report = MemoryReport(
        device=str(place),
        allocated=cuda.memory_allocated(place),
        reserved=cuda.memory_reserved(place),
        peak_allocated=cuda.max_memory_allocated(place),
        peak_reserved=cuda.max_memory_reserved(place),
        used=total - free,
        peak_used=None,
        total=total,
        parts=parts,
        layers=layers,
    )
    if reset_peak:
        cuda.reset_peak_memory_stats(place)
    return report


def _device(model: Any, device: Any) -> torch.device:
    torch = _torch.require()
    if device is None:
        if model is not None:
            device = running.device_of(model)
        else:
            device = "cuda" if torch.cuda.is_available() else "cpu"
    number = devices.parse(device)
    return torch.device("cpu") if number is None else devices.torch_device(number)


def _parts(model: Any) -> Iterator[MemoryPart]:
    """The purposes of the model's bytes, largest first; bytes that are shared count once."""
    sizes: Counter[tuple[str, str]] = Counter()
    seen: set[Any] = set()

    def add(name: str, place: Any, size: int) -> None:
        if size:
            sizes[name, str(place)] += size

    def once(key: Any) -> bool:
        new = key not in seen
        seen.add(key)
        return new

    for store, device, layers in _stores(model):
        # Names of stored tensors: tied layers share one.
        stored = {store.entry(name).name: layer for layer in layers for name in layer.tensors}
        looked_up = sum(store.entry(name).stored_bytes for name, layer in stored.items() if layer.looked_up)
        others = sum(store.entry(name).stored_bytes for name, layer in stored.items() if not layer.looked_up)
        on_disk = store.disk_bytes(device)
        add("compressed layers, read when needed", "disk", on_disk)
        if device.type != "cuda":
            add("compressed embeddings", device, looked_up)
            add("compressed layers", device, others - on_disk)
            add("ring for layers on disk", device, store.host_ring_bytes)
            continue
        # The decoders hold these bytes, and none before they were made.
        held = store.device_bytes
        add("compressed embeddings", device, min(looked_up, held))
        others = max(held - looked_up, 0)
        # With `auto` some of it is compressed bytes, and some the ring that others pass through.
        ring = 0 if store.residency == "device" else others
        if store.residency == "auto":
            ring = store.ring_bytes(device)
        add("compressed layers", device, others - ring)
        add("ring for streamed layers", device, ring)
        host_ring = store.host_ring_bytes
        add("compressed layers", "cpu (pinned)", store.host_bytes - host_ring)
        add("ring for layers on disk", "cpu (pinned)", host_ring)
    for device, size in _caches(model):
        add("decoded-layer cache", device, size)
    for what, tensors in (("weights as they are", model.parameters()), ("buffers", model.buffers())):
        for tensor in tensors:
            if tensor.device.type != "meta" and once(_torch.identity(tensor)):
                add(what, tensor.device, tensor.numel() * tensor.element_size())
    # This memory belongs to no single model: all models on a GPU decode into it.
    workspace_module = sys.modules.get("wcodec.nn._weights.workspace")
    for space in list(getattr(workspace_module, "_workspaces", {}).values()):
        add("decoded weights (shared scratch)", space.device, space.bytes)
    for (name, place), size in sizes.most_common():
        yield MemoryPart(name, size, place)


def _layers(model: Any) -> Iterator[LayerPlace]:
    """Compressed layers as they follow each other; tied ones once."""
    nn = sys.modules.get("wcodec.nn")
    seen = set()
    for name, module in model.named_modules():
        if nn is not None and isinstance(module, nn.CompressedLayer) and (id(module._store), module.tensor) not in seen:
            seen.add((id(module._store), module.tensor))
            yield LayerPlace(name, module.stored_bytes, module.residency, module.cached, module.looked_up)


def _stores(model: Any) -> Iterator[tuple[Any, torch.device, list[Any]]]:
    """Containers that compressed layers share, the device that the layers are on, and the layers."""
    by_store: dict[tuple[int, str], tuple[Any, torch.device, list[Any]]] = {}
    nn = sys.modules.get("wcodec.nn")
    for module in model.modules():
        # Without that module there is no compressed layer.
        if nn is not None and isinstance(module, nn.CompressedLayer):
            store = module._store
            by_store.setdefault((id(store), str(module.device)), (store, module.device, []))[2].append(module)
    yield from by_store.values()


def _caches(model: Any) -> Iterator[tuple[torch.device, int]]:
    """Devices where weights stay decoded, and the bytes of them."""
    nn = sys.modules.get("wcodec.nn")
    layers = [m for m in model.modules() if nn is not None and isinstance(m, nn.CompressedLayer)]
    for (_, device), store in {(id(m._store), m.device): m._store for m in layers}.items():
        yield device, store.cached_bytes(device)


def _process_memory() -> tuple[int | None, int | None]:
    """Resident memory of this process and its peak, in bytes."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return tuple(int(lines[k].split()[0]) * 1024 for k in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        pass
    try:
        import resource
    except ImportError:
        return None, None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes here, others kibibytes.
    return None, peak if sys.platform == "darwin" else peak * 1024


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
