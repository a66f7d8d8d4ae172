"""Factored second moments that are kept from one pass over the matrices to the next."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..nn._weights.budget import gpu_memory, host_memory
from .factor import Feedback

# The part of the free memory that they may take.
_SHARE = 8


class FeedbackCache:
    """Feedback by input and device. A search for the rate needs it for all matrices several times, in the same order.
    The first ones are kept, as many as fit, and the last one, since matrices that share an input follow each other."""

    def __init__(self) -> None:
        self._kept: dict[object, Feedback] = {}
        self._last: tuple[object, Feedback] | None = None
        # Bytes that are left for more, by device.
        self._room: dict[torch.device, int] = {}

    def get(self, key: object, device: torch.device, make: Callable[[], Feedback]) -> Feedback:
        """The feedback of a key, which ``make`` computes if it is not kept."""
        # Another encoding by the same statistics may clear this meanwhile.
        known, last = self._kept.get(key), self._last
        if known is not None:
            return known
        if last is not None and last[0] == key:
            return last[1]
        del last
        # Not two at once in memory.
        self._last = None
        room = self._room.get(device)
        if room is None:
            room = _free_bytes(device) // _SHARE
        feedback = make()
        size = feedback.nbytes
        self._room[device] = room
        if size <= room:
            self._room[device] = room - size
            self._kept[key] = feedback
        else:
            self._last = key, feedback
        return feedback

    def clear(self) -> None:
        """Gives all memory back."""
        self._kept.clear()
        self._room.clear()
        self._last = None


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return gpu_memory(device)[0]
    return host_memory()[0] or 0
