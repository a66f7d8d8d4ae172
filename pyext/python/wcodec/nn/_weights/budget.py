"""The budget of a GPU's memory, and of the host's, that a model may take."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch

from ..._gpu import torch as _torch
from .workspace import scratch_bytes

# The part of the host's free memory that decoded weights leave free, where nobody says how much they may take.
_SPARE = 5


class Budget:
    """The bytes that a model's compressed layers may take, with all else that it has.

    :param asked: bytes that the user allows; what is free, if none are given.
    :param others: bytes of the model's weights that are not compressed, as long as :meth:`serve` is not told of the
        model.
    :param ram: bytes of the host's memory that the user allows for compressed weights; what is free, if none are given.
    """

    def __init__(self, asked: int | None, others: int, ram: int | None = None) -> None:
        self.others = others
        self._asked, self._ram = asked, ram
        self._spare = 0
        self._model: weakref.ref[torch.nn.Module] | None = None

    def serve(self, model: torch.nn.Module) -> None:
        """Takes note of the model whose other weights take memory, too."""
        self._model = weakref.ref(model)
        self.others = plain_bytes(model)

    def of(self, device: torch.device) -> tuple[int, int, str]:
        """Bytes of the device that the model may take, those of it that are not compressed, and what to call it."""
        model = None if self._model is None else self._model()
        if model is not None:
            self.others = plain_bytes(model)
        if self._asked is not None:
            return self._asked, self.others, "vram_budget"
        free, total = gpu_memory(device)
        # Weights of the model that are there count with it.
        own_bytes = self.others if model is None else plain_bytes(model, device)
        own_bytes += scratch_bytes(device)
        return free + own_bytes - total // 10, self.others, f"what may be taken of {device}"

    def of_cache(self) -> int:
        """Bytes of the host's memory for weights that stay decoded: the free bytes, less a fifth, which
        :meth:`has_room` leaves free from then on; none where the system does not tell."""
        free, _ = host_memory()
        self._spare = (free or 0) // _SPARE
        return (free or 0) - self._spare

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more leave free what :meth:`of_cache` has left free."""
        free, _ = host_memory()
        return free is not None and free - size >= self._spare

    def of_host(self) -> tuple[int | None, str]:
        """Bytes of the host's memory that compressed weights may take, or None where nobody says, and what to call
        it."""
        if self._ram is not None:
            return self._ram, "ram_budget"
        free, total = host_memory()
        return (None if free is None else max(free - (total or 0) // 10, 0)), "what may be taken of the host's memory"


def gpu_memory(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU's memory that are free, those among it that torch's allocator merely caches, and all of them."""
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total


def host_memory() -> tuple[int | None, int | None]:
    """Bytes of the host's memory that this process may still take, and all that it may have; a limit of its control
    group counts. None where the system does not tell."""
    free, total = _meminfo()
    limit, used = _group_memory()
    if limit is not None and (total is None or limit < total):
        total = limit
        free = limit - used if free is None else min(free, limit - used)
    return (None if free is None else max(free, 0)), total


def _meminfo() -> tuple[int | None, int | None]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines()
        sizes = {key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines) if rest}
        return sizes.get("MemAvailable"), sizes.get("MemTotal")
    except (OSError, ValueError, IndexError):
        return None, None


def _group_memory(
    root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")
) -> tuple[int | None, int]:
    """The least limit of this process's control group and those above it, and what of it is taken beyond recall."""
    try:
        lines = process.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None, 0
    least: tuple[int | None, int] = (None, 0)
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        second = not controllers
        if not second and "memory" not in controllers.split(","):
            continue
        top = root if second else root / "memory"
        # Beyond the high mark the system slows a process down to win memory back.
        limits = ("memory.max", "memory.high") if second else ("memory.limit_in_bytes",)
        usage = "memory.current" if second else "memory.usage_in_bytes"
        group = top / path.lstrip("/")
        # In a container its own group is the top, whatever it is called outside.
        for place in (group, *group.parents) if group.is_dir() else (top,):
            limit_values = [number for name in limits if (number := _number(place / name)) is not None]
            limit, used = min(limit_values, default=None), _number(place / usage)
            if limit is not None and used is not None and (least[0] is None or limit < least[0]):
                # Pages of files count as used, and are given back.
                least = limit, max(used - _cached_files(place), 0)
            if place == top:
                break
    return least


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        # A file that says "max", or is missing, sets no limit.
        return None


def _cached_files(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        sizes = {key: int(value) for key, _, value in (line.partition(" ") for line in lines)}
    except (OSError, ValueError):
        return 0
    return sizes.get("total_inactive_file", sizes.get("inactive_file", 0))


def plain_bytes(model: torch.nn.Module, device: torch.device | None = None) -> int:
    """Bytes of the parameters and buffers of a model (on one device), those that are shared once."""
    sizes: dict[Any, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        # Parameters of lazy modules have no size yet.
        if not torch.nn.parameter.is_lazy(tensor) and (device is None or tensor.device == device):
            key = id(tensor) if tensor.device.type == "meta" else _torch.identity(tensor) or id(tensor)
            sizes[key] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())
