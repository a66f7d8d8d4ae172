"""The memory of a GPU that weights are decoded into, and who has decoded into it.

Decoded weights belong to their *owner* until the next one decodes. Several models, threads and streams use the same
memory, in turns. CUDA graphs have memory of their own, since they run whenever they are replayed, without notice.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ... import _native
from ..._core import format as fmt
from ..._core.errors import DeviceError
from ..._gpu import torch as _torch

if TYPE_CHECKING:
    from .store import Store

# Faster than the public ways, which run for every layer and token; a torch without CUDA may not have them.
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_is_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_workspaces: weakref.WeakValueDictionary[int, Workspace] = weakref.WeakValueDictionary()
_registry_lock = threading.Lock()
# Graphs that are there at the end let go of what they keep on another thread, which must not wait for the interpreter.
atexit.register(_native.gpu_end)

Epoch = tuple[int, int]
"""The scope in which decoded weights are valid: a stream and, during the capture of a graph, its number (0: none)."""


def memory(device: torch.device, size: int) -> torch.Tensor:
    """So many bytes of a GPU, of unknown contents, that are not torch's.

    torch's would be of the pool that is in use at the moment, as ``torch.compile`` has one for its graphs and knows all
    that is in it, and of the current stream, so that others had to wait for what that did there before. This memory is
    nobody's before, and the driver frees it only when no work uses it any more, of any stream.
    """
    if not size:
        return torch.empty(0, dtype=torch.uint8, device=device)
    device_memory = _torch.with_spare(device, lambda: _native.DeviceMemory(device.index, size))
    return torch.as_tensor(device_memory, device=device)


class Space:
    """A piece of that memory, and what was prepared for it: launches and views, by the number of the provider that they
    are of. They go with it."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self.owner: object | None = None
        # None as long as nobody has decoded there.
        self.epoch: Epoch | None = None
        self.prepared: dict[int, Any] = {}


class Workspace:
    """The memory of one GPU. All models on it share it, and hold it: it goes with the last of them."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = torch.device("cuda", index)
        # Held from decoding until the product is in the stream.
        self.lock = threading.RLock()
        # Memory for work that runs at once, in streams, and is not captured in a graph.
        self.streams = self._space(0)
        # Bytes that providers will need which have taken none yet.
        self.wanted = 0
        # Memory for graphs, by torch's pool that theirs is from: graphs of one pool share memory, and so are never
        # replayed at the same time. Only the graphs keep it alive.
        self.graphs: weakref.WeakValueDictionary[Any, Space] = weakref.WeakValueDictionary()
        # The last capture: its number, and its pool.
        self._capture: tuple[int, Any] = (0, None)

    def _space(self, size: int) -> Space:
        # Autograd keeps no count of changes for tensors of inference mode, which saves work at each decoding.
        with torch.inference_mode():
            return Space(memory(self.device, size))

    def reserve(self, size: int) -> None:
        """Makes sure of the memory for what is done at once."""
        if self.streams.buffer.numel() < size:
            # The old one goes first, so that no two take memory at once.
            self.streams = self._space(0)
            try:
                self.streams = self._space(size)
            except DeviceError:
                free, total = torch.cuda.mem_get_info(self.device)
                raise DeviceError(
                    f"{self.device}: no memory to decode a block of layers into: {fmt.size(size)} are needed, and "
                    f"{fmt.size(free)} of {fmt.size(total)} are free (free some, or use residency='host')",
                    code="D201",
                ) from None

    def release(self) -> None:
        """Lets go of the memory for what is done at once, if nobody has prepared to decode there."""
        with self.lock:
            if not self.streams.prepared:
                self.streams = self._space(0)

    def enter(self, size: int) -> Space:
        """The memory for the caller, of at least so many bytes. It is the turn of torch's current stream, which waits
        for what another one did there; what that has decoded counts no more."""
        stream = _current_stream(self.index)
        # Another GPU's stream may be the one that is being captured.
        number = _native.gpu_capture(self.index, stream) if _is_capturing() else 0
        if number:
            space = self._of_graph(number, stream, size)
        else:
            if self.streams.buffer.numel() < size:
                self.reserve(size)
            space = self.streams
        epoch = (stream, number)
        return space if space.epoch == epoch else self._turn(space, epoch)

    def _turn(self, space: Space, epoch: Epoch) -> Space:
        before = space.epoch
        # Work in a capture has nothing to wait for outside of it.
        if before is not None and before[1] == epoch[1] and not _native.gpu_follow(self.index, epoch[0], before[0]):
            # A graph is being captured in the other stream, where nobody can wait for what was there before: this one
            # goes on elsewhere.
            space = self.streams = self._space(space.buffer.numel())
        space.owner = None
        space.epoch = epoch
        return space

    def _of_graph(self, number: int, stream: int, size: int) -> Space:
        if self._capture[0] != number:
            # A capture of others than torch has no pool, and memory of its own.
            self._capture = (number, self._pool() or ("capture", number))
        pool = self._capture[1]
        space = self.graphs.get(pool)
        if space is None or space.buffer.numel() < size:
            # The size is at least that of the memory outside of graphs, so that it need not grow.
            wanted = max(size, self.wanted, self.streams.buffer.numel())
            space = self.graphs[pool] = self._space(wanted)
        if space.epoch is None or space.epoch[1] != number:
            _native.gpu_keep(self.index, stream, space)
        return space

    def _pool(self) -> Any:
        """torch's pool that memory is taken from at this moment, if it is a graph's."""
        probe = torch.empty(1, dtype=torch.uint8, device=self.device)
        place = probe.data_ptr()
        try:
            segments = torch.cuda.memory_snapshot()
        except RuntimeError:
            # Other allocators than torch's usual one do not tell.
            return None
        for segment in segments:
            if segment["device"] == self.index and 0 <= place - segment["address"] < segment["total_size"]:
                pool = tuple(segment.get("segment_pool_id", (0, 0)))
                return pool if any(pool) else None
        return None

    @property
    def bytes(self) -> int:
        """Bytes of all its memory, that of graphs with it."""
        return self.streams.buffer.numel() + sum(space.buffer.numel() for space in list(self.graphs.values()))


def is_capturing() -> bool:
    """Whether torch's current stream is being captured."""
    return bool(_is_capturing and _is_capturing())


def workspace(device: torch.device) -> Workspace:
    """The one of that GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with _registry_lock:
        shared = _workspaces.get(index)
        if shared is None:
            shared = _workspaces[index] = Workspace(index)
        return shared


def scratch_bytes(device: torch.device) -> int:
    """Bytes of the memory of a GPU which weights are decoded into."""
    with _registry_lock:
        shared = None if device.index is None else _workspaces.get(device.index)
    return 0 if shared is None else shared.bytes


@contextmanager
def exclusive(store: Store, device: torch.device) -> Iterator[None]:
    """While this lasts, what this thread has decoded on a GPU stays what it is."""
    # In this order, as where providers are made: a thread that had the workspace and wanted the store would wait for
    # one that has the store and wants the workspace.
    with store.lock:
        if device.type != "cuda":
            yield
            return
        with workspace(device).lock:
            yield


def keep_in_graph(device: torch.device, value: object, known: int) -> int:
    """Has the graph that is being captured in the current stream keep an object, unless ``known`` says that it does;
    what to say next time."""
    if device.type != "cuda" or not is_capturing():
        return known
    index = torch.cuda.current_device() if device.index is None else device.index
    stream = _current_stream(index)
    number = _native.gpu_capture(index, stream)
    if number and number != known:
        _native.gpu_keep(index, stream, value)
    return number or known
