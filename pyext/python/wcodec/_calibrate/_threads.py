"""One thread for what is too small for several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_before = 1


@contextmanager
def one_thread(device: torch.device, narrow: bool) -> Iterator[None]:
    """torch computes with one thread, where that is on the CPU and of something narrow. With more, each small step
    would wait for the last of them, and for whatever else keeps its core busy."""
    global _inside, _before
    if device.type != "cpu" or not narrow:
        yield
        return
    with _lock:
        if not _inside:
            _before = torch.get_num_threads()
        _inside += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            # Part of the setting is the whole process's: that of who came first is everybody's.
            torch.set_num_threads(_before)
