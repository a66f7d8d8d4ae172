"""How layers get at their weights on a GPU: one launch decodes a group, into memory that all groups share."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import _format as fmt
from .._errors import DeviceError
from ._plans import Plan, Product, decoded_bytes, joined, slices

if TYPE_CHECKING:
    from ._store import Store

# Weights begin at multiples of this: what torch's allocator gives, and what matrix products like.
ALIGN = 512
# Faster than the public ways, which run for every layer and token; a torch without CUDA may not have them.
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_is_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_workspaces: weakref.WeakValueDictionary[int, Workspace] = weakref.WeakValueDictionary()
_registry_lock = threading.Lock()


class Workspace:
    """The memory of one GPU that weights are decoded into, and who decoded last.

    All models on the GPU share it, and hold it: it goes with the last of them. Work of several streams takes turns.
    What is decoded belongs to ``owner`` until the next one decodes; ``epoch`` says where that counts: a stream, or one
    capture of a CUDA graph.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = torch.device("cuda", index)
        self.lock = threading.RLock()
        self.buffer = self._memory(0)
        self.owner: object | None = None
        self.epoch: tuple[int, int] = (0, 0)
        # A graph that was captured writes the memory whenever it is replayed, which nobody here notices: from then on
        # only a layer's own decoding, just before its product, is trusted.
        self.captured = False
        self._kept: list[torch.Tensor] = []

    def _memory(self, size: int) -> torch.Tensor:
        # Autograd keeps no count of changes for tensors of inference mode, which saves work at each decoding.
        with torch.inference_mode():
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def reserve(self, size: int) -> None:
        """Makes sure of the memory. Graphs that were captured keep what they have."""
        if self.buffer.numel() < size:
            if self.captured:
                self._kept.append(self.buffer)
            self.owner = None
            self.buffer = self._memory(0)
            try:
                self.buffer = self._memory(size)
            except torch.cuda.OutOfMemoryError:
                free, total = torch.cuda.mem_get_info(self.device)
                raise DeviceError(
                    f"{self.device}: no memory to decode a block of layers into: {fmt.size(size)} are needed, and "
                    f"{fmt.size(free)} of {fmt.size(total)} are free (free some, or use residency='host')"
                ) from None

    def enter(self) -> tuple[int, int]:
        """Where the caller is: torch's current stream and, while a graph is captured, that capture."""
        stream = _current_stream(self.index)
        return stream, (_capture_of(stream) if _is_capturing() else 0)

    def take(self, epoch: tuple[int, int]) -> None:
        """Notes that the memory is about to be overwritten in the current stream, after what reads it in another.
        Nobody owns it until somebody says so."""
        if epoch[1]:
            self.captured = True
        elif self.epoch[0] != epoch[0] and not self.epoch[1]:
            other = torch.cuda.ExternalStream(self.epoch[0], device=self.device)
            torch.cuda.current_stream(self.device).wait_stream(other)
        self.owner = None
        self.epoch = epoch


def workspace(device: torch.device) -> Workspace:
    """The one of that GPU."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with _registry_lock:
        found = _workspaces.get(index)
        if found is None:
            found = _workspaces[index] = Workspace(index)
        return found


def scratch_bytes(device: torch.device) -> int:
    """Bytes that the memory of a GPU has which weights are decoded into."""
    with _registry_lock:
        found = None if device.index is None else _workspaces.get(device.index)
    return 0 if found is None else found.buffer.numel()


_fresh = iter(range(-1, -(1 << 62), -1))


def _capture_of(stream: int) -> int:
    """A number of the capture that a stream is in: the driver's, or one that never comes again where it tells none."""
    global _driver_call
    if _driver_call is None:
        try:
            _driver_call = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
        except (OSError, AttributeError):
            _driver_call = False
    status, number = ctypes.c_int(), ctypes.c_uint64()
    if _driver_call:
        result = _driver_call(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None)
        if result == 0 and status.value == 1:
            return number.value + 1
    return next(_fresh)


_driver_call: Any = None


class GpuPlan(Plan):
    """Layers that are decoded together, by one launch, when one is called that is not decoded."""

    def __init__(self, store: Store, names: tuple[str, ...], device: torch.device, dtype: torch.dtype) -> None:
        self.names = names
        # What owns the workspace while this group is in it; not the plan, which the workspace need not keep alive.
        self._token = object()
        self._shapes = [store.entry(name).shape for name in names]
        self._dtype = dtype
        self._decoders = [store.decoder(name, device) for name in names]
        self._workspace = workspace(device)
        self._chain = store.chain(device, names)
        sizes = [-(-decoded_bytes(store.entry(name), dtype) // ALIGN) * ALIGN for name in names]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self._size = sum(sizes)
        self._buffer: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []
        self._batches: list[Any] = []
        self._single: dict[int, Any] = {}
        with self._workspace.lock:
            self._bind()

    def _bind(self) -> None:
        """Prepares the launches for the memory as it is."""
        self._workspace.reserve(self._size)
        buffer = self._workspace.buffer
        self._views = []
        for shape, offset in zip(self._shapes, self._offsets, strict=True):
            count = 1
            for extent in shape:
                count *= extent
            flat = buffer[offset : offset + count * self._dtype.itemsize].view(self._dtype)
            self._views.append(flat.view(shape))
        self._single = {}
        self._batches = []
        for decoder in dict.fromkeys(self._decoders):
            targets = [(n, v) for n, v, d in zip(self.names, self._views, self._decoders, strict=True) if d is decoder]
            self._batches.append(decoder.prepare(targets))
        self._chain.replace(self, self._batches)
        self._buffer = buffer

    def _decode_one(self, place: int, epoch: tuple[int, int]) -> None:
        """Decodes a layer alone, for where graphs may have written what was decoded before."""
        space = self._workspace
        if self._buffer is not space.buffer:
            self._bind()
        space.take(epoch)
        batch = self._single.get(place)
        if batch is None:
            batch = self._decoders[place].prepare([(self.names[place], self._views[place])])
            self._single[place] = batch
        batch.launch()

    def _decode(self, epoch: tuple[int, int]) -> None:
        """Decodes the group."""
        space = self._workspace
        if self._buffer is not space.buffer:
            self._bind()
        space.take(epoch)
        for batch in self._batches:
            batch.launch()
        # Only now: what raised has not decoded.
        space.owner = self._token
        if not epoch[1]:
            self._chain.follow(self)

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        space = self._workspace
        with space.lock:
            epoch = space.enter()
            if space.captured and not epoch[1]:
                self._decode_one(place, epoch)
            elif space.owner is not self._token or space.epoch != epoch:
                self._decode(epoch)
            return product(x, self._views[place], bias)

    def apply_all(self, product: Callable[[tuple[torch.Tensor, ...]], Any]) -> Any:
        space = self._workspace
        with space.lock:
            epoch = space.enter()
            if space.owner is not self._token or space.epoch != epoch or (space.captured and not epoch[1]):
                self._decode(epoch)
            return product(tuple(self._views))


class GpuSlicedPlan(Plan):
    """One large layer, decoded and multiplied a slice at a time."""

    def __init__(self, store: Store, name: str, device: torch.device, dtype: torch.dtype) -> None:
        self.names = (name,)
        entry = store.entry(name)
        self._store, self._device, self._dtype = store, device, dtype
        self._slices = list(slices(entry, dtype))
        self._width = entry.shape[1]
        self._rows = max(end - begin for begin, end in self._slices)
        self._size = self._rows * self._width * dtype.itemsize
        self._decoder = store.decoder(name, device)
        self._workspace = workspace(device)
        self._chain = store.chain(device, (name,))
        self._buffer: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []
        self._batches: list[Any] = []
        with self._workspace.lock:
            self._bind()

    def _bind(self) -> None:
        self._workspace.reserve(self._size)
        buffer = self._workspace.buffer
        whole = buffer[: self._size].view(self._dtype).view(self._rows, self._width)
        self._views = [whole[: end - begin] for begin, end in self._slices]
        self._batches = [
            self._decoder.prepare([(self.names[0], view, rows)])
            for view, rows in zip(self._views, self._slices, strict=True)
        ]
        self._chain.replace(self, self._batches)
        self._buffer = buffer

    def apply(self, product: Product, place: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        space = self._workspace
        with space.lock:
            epoch = space.enter()
            if self._buffer is not space.buffer:
                self._bind()
            # No slice outlives its product, so nobody owns the memory afterwards.
            space.take(epoch)

            def parts() -> Any:
                for i, (rows, batch) in enumerate(zip(self._slices, self._batches, strict=True)):
                    batch.launch()
                    if not epoch[1]:
                        self._chain.follow_part(self, i)
                    yield rows, self._views[i]

            return joined(product, parts(), self._slices[-1][1], x, bias)

    def apply_all(self, product: Callable[[tuple[torch.Tensor, ...]], Any]) -> Any:
        return product((self._store.decoded(self.names[0], self._device, self._dtype),))


class Chain:
    """The order in which the batches of a device are used, so that those in host memory are fetched ahead.

    It is the order in which the plans are made: that of the model, or of first use. Fetching ahead is a guess, and what
    was not fetched is fetched when it is decoded.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._batches: dict[Plan, list[Any]] = {}
        self._line: list[Any] = []
        self._at: dict[Plan, int] = {}

    def replace(self, plan: Plan, batches: list[Any]) -> None:
        """Notes a plan's batches, at its old place or at the end."""
        if not self._depth:
            return
        self._batches[plan] = [b for b in batches if b.slots]
        self._line = []
        for owner, own in self._batches.items():
            self._at[owner] = len(self._line)
            self._line.extend(own)

    def follow(self, plan: Plan) -> None:
        """The whole plan was launched: what comes next is fetched."""
        if self._depth and self._batches[plan]:
            self._fetch(self._at[plan] + len(self._batches[plan]) - 1)

    def follow_part(self, plan: Plan, part: int) -> None:
        """One batch of the plan was launched."""
        if self._depth and self._batches[plan]:
            self._fetch(self._at[plan] + part)

    def _fetch(self, last: int) -> None:
        total = len(self._line)
        for ahead in range(1, min(self._depth, total - 1) + 1):
            self._line[(last + ahead) % total].prefetch()
