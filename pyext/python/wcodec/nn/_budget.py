"""How much of a GPU's memory a model may take."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .. import _torch
from ._workspace import scratch_bytes


class Budget:
    """What a model's compressed layers may take, with all else that it has.

    :param asked: bytes that the user allows; what is free, if none are given.
    :param others: bytes of the model's weights that are not compressed, as long as :meth:`serve` is not told of the
        model.
    """

    def __init__(self, asked: int | None, others: int) -> None:
        self.others = others
        self._asked = asked
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
        free, total = torch.cuda.mem_get_info(device)
        # What torch only keeps in store is free too; and what is there of the model already is counted with it.
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        there = self.others if model is None else plain_bytes(model, device)
        there += scratch_bytes(device)
        return free + spare + there - total // 10, self.others, f"what may be taken of {device}"


def plain_bytes(model: torch.nn.Module, device: torch.device | None = None) -> int:
    """Bytes of the parameters and buffers of a model (on one device), those that are shared once."""
    sizes: dict[Any, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if device is None or tensor.device == device:
            key = id(tensor) if tensor.device.type == "meta" else _torch.identity(tensor) or id(tensor)
            sizes[key] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())
