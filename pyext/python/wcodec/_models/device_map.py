"""Compressed layers where accelerate puts a model's layers: on several devices, in the host's memory, on disk.

While transformers loads a model, its layers stay on no device until it is known which: a map such as ``"auto"`` follows
from sizes, which the layers say of themselves then. Layers that accelerate would offload, and bring back for each use,
stream their weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .._core.errors import InputError
from .._core.options import RESIDENCIES
from ..nn import CompressedLayer
from ..nn._weights.placement import checked_settings
from ..nn._weights.store import Store

_MARKER = "_marker"
# Places where accelerate keeps offloaded modules, and the residency that does the same for compressed layers.
_OFFLOADED = {"cpu": "host", "disk": "disk"}


def device_of(place: Any) -> torch.device:
    """A device as maps name it: a number, ``"cuda"``, ``"cpu"``."""
    if isinstance(place, int) or str(place).isdigit():
        return torch.device("cuda", int(place))
    if str(place) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    try:
        device = torch.device(str(place))
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(
            f"compressed layers cannot go to {place} (use 'cuda', numbers of GPUs, 'cpu' and 'disk' in device_map)",
            code="I520",
        )
    return device


def single(device_map: Any) -> torch.device | None:
    """The one device of a map of transformers, the CPU if there is no map; none if it has several, or is not made
    yet."""
    if device_map is None:
        # Not torch's default device: that is "meta" while transformers builds a model.
        return torch.device("cpu")
    if isinstance(device_map, dict):
        places = list(dict.fromkeys(str(place) for place in device_map.values()))
        # Modules that are kept on disk run on another device.
        return device_of(places[0]) if len(places) == 1 and places != ["disk"] else None
    if str(device_map) in ("auto", "balanced", "balanced_low_0", "sequential"):
        return None
    return device_of(device_map)


def main_device(device_map: Mapping[str, Any]) -> torch.device:
    """The device on which accelerate runs offloaded modules."""
    return device_of(next((place for place in device_map.values() if str(place) not in _OFFLOADED), "cpu"))


def check_map(device_map: Any) -> None:
    """Raises entries of a map that compressed layers have no residency for.

    :raises InputError: if there are such.
    """
    if not isinstance(device_map, dict):
        return
    main = main_device(device_map)
    for name, place in device_map.items():
        residency = _OFFLOADED.get(str(place))
        if residency is None:
            device_of(place)
        elif residency not in RESIDENCIES and str(place) != main.type:
            raise InputError(
                f"device_map has '{name}' on {place}, where compressed layers cannot stay (give GPUs or 'cpu' more of "
                "max_memory: 'cpu' streams from the host's memory)",
                code="I520",
            )


def weigh(model: torch.nn.Module) -> None:
    """Gives layers of a model that is being loaded something to be counted by: see :func:`element_size`."""
    for layer in _layers(model):
        marker = layer._buffers[_MARKER]
        layer._buffers[_MARKER] = torch.empty(1, dtype=marker.dtype, device="meta")


def element_size(model: Any, name: str, tensor: torch.Tensor) -> float | None:
    """Bytes of an element of a model's tensor, where that is what stands for a compressed weight. Layers that share one
    count each: on different devices each has its own."""
    owner, _, leaf = name.rpartition(".")
    if leaf != _MARKER or tensor.numel() != 1:
        return None
    layer = model.get_submodule(owner)
    return layer.stored_bytes if isinstance(layer, CompressedLayer) else None


def settle(model: torch.nn.Module, device_map: Any) -> None:
    """Puts the compressed layers of a model that was loaded where its map has them."""
    places = device_map if isinstance(device_map, dict) else {"": "cpu" if device_map is None else device_map}
    check_map(places)
    main = main_device(places)
    stores: dict[tuple[int, str], Store] = {}
    wanted: dict[tuple[int, str], list[CompressedLayer]] = {}
    devices: dict[CompressedLayer, torch.device] = {}
    for name, layer in _named(model):
        place = _place_of(name, places)
        offloaded = str(place) in _OFFLOADED and str(place) != main.type
        devices[layer] = main if offloaded or str(place) in _OFFLOADED else device_of(place)
        residency = _OFFLOADED[str(place)] if offloaded else layer._store.residency
        key = id(layer._store), residency
        stores[key] = layer._store
        wanted.setdefault(key, []).append(layer)
    for (_, residency), layers in wanted.items():
        store = stores[id(layers[0]._store), residency]
        _put(model, store, residency, layers, devices)


def _put(
    model: torch.nn.Module,
    store: Store,
    residency: str,
    layers: list[CompressedLayer],
    devices: dict[CompressedLayer, torch.device],
) -> None:
    tensor_groups = store.tensor_groups
    on: dict[torch.device, set[str]] = {}
    for layer in layers:
        on.setdefault(devices[layer], set()).update(tensor_groups.entry(name).name for name in layer.tensors)
    # Tensors that are decoded together are on one device, and of one residency.
    groups = [
        tuple(name for name in group if tensor_groups.entry(name).name in names)
        for group in tensor_groups.groups
        for names in on.values()
    ]
    groups = [group for group in groups if group]
    if residency != store.residency or groups != tensor_groups.groups:
        settings = store.settings
        if residency != store.residency:
            settings = checked_settings(residency, cache=settings["cache"])
        store = Store(store.container, groups, routed=tensor_groups.routed, **settings, fuses=store.fuses)
        store.serve(model)
    for layer in layers:
        marker = layer._buffers[_MARKER]
        layer._buffers[_MARKER] = torch.empty(0, dtype=marker.dtype, device=devices[layer])
        if layer._store is not store:
            layer._weights.join(store, layer.tensors)
        layer._settle()


def _place_of(name: str, places: Mapping[str, Any]) -> Any:
    """The entry of a map that a layer falls under: the longest that its name begins with."""
    parts = name.split(".")
    for count in range(len(parts), -1, -1):
        key = ".".join(parts[:count])
        if key in places:
            return places[key]
    raise InputError(
        f"device_map has no entry for '{name}' (add one for it, or \"\" for all that is left)", code="I520"
    )


def _named(model: torch.nn.Module) -> Iterator[tuple[str, CompressedLayer]]:
    return ((name, m) for name, m in model.named_modules() if isinstance(m, CompressedLayer))


def _layers(model: torch.nn.Module) -> Iterator[CompressedLayer]:
    return (layer for _, layer in _named(model))


__all__ = ["check_map", "device_of", "element_size", "main_device", "settle", "single", "weigh"]
