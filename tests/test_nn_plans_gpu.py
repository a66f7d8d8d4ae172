"""Who owns the memory that weights are decoded into on a GPU: streams, graphs, growth. A GPU is played by the CPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import wcodec
from wcodec.nn import _plans, _plans_gpu
from wcodec.nn._plans_gpu import Chain, GpuPlan, GpuSlicedPlan, Workspace

WEIGHTS = {name: torch.randn(32, 16, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("abcdef")}


class Entry:
    def __init__(self, name: str) -> None:
        self.name, self.shape, self.row_axis = name, tuple(WEIGHTS[name].shape), 0


class Batch:
    slots = 1

    def __init__(self, decoder: Decoder, targets: list[Any]) -> None:
        self.decoder, self.targets = decoder, targets

    def launch(self) -> None:
        self.decoder.log.append(tuple(t[0] for t in self.targets))
        with torch.inference_mode():
            for name, out, *rows in self.targets:
                begin, end = rows[0] if rows else (0, WEIGHTS[name].shape[0])
                out.copy_(WEIGHTS[name][begin:end])

    def prefetch(self) -> None:
        self.decoder.fetched.append(tuple(t[0] for t in self.targets))


class Decoder:
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.fetched: list[Any] = []

    def prepare(self, targets: list[Any]) -> Batch:
        return Batch(self, targets)


class FakeStore:
    def __init__(self, ahead: int = 0) -> None:
        self.one, self.line = Decoder(), Chain(ahead)

    def entry(self, name: str) -> Entry:
        return Entry(name)

    def decoder(self, name: str, device: Any) -> Decoder:
        return self.one

    def chain(self, device: Any, names: Any) -> Chain:
        return self.line

    def decoded(self, name: str, device: Any, dtype: Any) -> torch.Tensor:
        return WEIGHTS[name]


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Workspace:
    found = Workspace.__new__(Workspace)
    found.index, found.device, found.lock = 0, torch.device("cpu"), threading.RLock()
    found.buffer = torch.empty(0, dtype=torch.uint8)
    found.owner, found.epoch, found.captured, found._kept = None, (0, 0), False, []
    here = [0, 0]
    monkeypatch.setattr(_plans_gpu, "workspace", lambda device: found)
    monkeypatch.setattr(Workspace, "enter", lambda self: (here[0], here[1]))
    found.here = here  # type: ignore[attr-defined]
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: type("S", (), {"wait_stream": waits.append})())
    found.waits = waits  # type: ignore[attr-defined]
    return found


def call(plan: _plans.Plan, name: str) -> None:
    x = torch.randn(3, 16)
    out = plan.apply(F.linear, plan.names.index(name), x, None)
    torch.testing.assert_close(out, F.linear(x, WEIGHTS[name]))


def plans(store: FakeStore) -> tuple[GpuPlan, GpuPlan]:
    device = torch.device("cpu")
    return tuple(GpuPlan(store, names, device, torch.float32) for names in (("a", "b"), ("c", "d")))  # type: ignore


def test_a_group_is_decoded_when_another_was(space: Any) -> None:
    store = FakeStore()
    one, two = plans(store)
    for plan, name in ((one, "a"), (one, "b"), (one, "a"), (two, "d"), (one, "b"), (two, "c")):
        call(plan, name)
    assert store.one.log == [("a", "b"), ("c", "d"), ("a", "b"), ("c", "d")]
    assert one._views[0].untyped_storage().data_ptr() == two._views[0].untyped_storage().data_ptr()


def test_another_stream_waits_and_decodes_again(space: Any) -> None:
    store = FakeStore()
    one, _ = plans(store)
    call(one, "a")
    space.here[0] = 7
    call(one, "a")
    assert store.one.log == [("a", "b")] * 2 and space.waits == [0]


def test_what_failed_to_decode_is_decoded_again(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    one, two = plans(store)
    call(two, "c")

    def fail(self: Batch) -> None:
        raise RuntimeError("no launch")

    with monkeypatch.context() as broken:
        broken.setattr(Batch, "launch", fail)
        with pytest.raises(RuntimeError, match="no launch"):
            call(one, "a")
    call(one, "a")
    call(two, "d")
    assert store.one.log == [("c", "d"), ("a", "b"), ("c", "d")]


def test_memory_that_is_not_there(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: Workspace, size: int) -> torch.Tensor:
        if size:
            raise torch.cuda.OutOfMemoryError("none left")
        return torch.empty(0, dtype=torch.uint8)

    monkeypatch.setattr(Workspace, "_memory", none_left)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 30))
    with pytest.raises(wcodec.DeviceError, match=r"4.00 KiB are needed, and 1.00 MiB of 1.00 GiB are free"):
        plans(FakeStore())
    assert space.buffer.numel() == 0


def test_graphs_decode_for_themselves(space: Any) -> None:
    store = FakeStore()
    one, two = plans(store)
    call(one, "a")
    for capture in (1, 2):
        space.here[:] = [0, capture]
        call(one, "a")
        call(one, "b")
    assert store.one.log == [("a", "b")] * 3 and not space.waits
    # A replay may have come between any two calls: each decodes its own layer.
    space.here[:] = [0, 0]
    for _ in range(2):
        with torch.inference_mode():
            space.buffer.zero_()
        call(one, "b")
    call(two, "c")
    assert store.one.log[3:] == [("b",), ("b",), ("c",)]


def test_the_memory_grows(space: Any) -> None:
    store = FakeStore()
    one, _ = plans(store)
    call(one, "a")
    first = space.buffer
    large = GpuPlan(store, ("a", "b", "c", "d", "e"), torch.device("cpu"), torch.float32)
    assert space.buffer is not first and not space._kept
    call(one, "b")
    call(large, "e")
    call(one, "a")
    assert one._views[0].untyped_storage().data_ptr() == space.buffer.untyped_storage().data_ptr()
    space.here[1] = 1
    call(one, "a")
    captured = space.buffer
    space.reserve(1 << 20)
    assert space._kept[-1] is captured


def test_slices(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plans, "SLICE_BYTES", 16 * 16 * 4)
    store = FakeStore()
    one, _ = plans(store)
    sliced = GpuSlicedPlan(store, "f", torch.device("cpu"), torch.float32)
    for _ in range(2):
        call(one, "a")
        call(sliced, "f")
    call(one, "b")
    assert store.one.log == [("a", "b"), ("f",), ("f",), ("a", "b"), ("f",), ("f",), ("a", "b")]
    # The largest slice, not the tensor, takes memory.
    assert sliced._size == 16 * 16 * 4


def test_what_comes_next_is_fetched(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plans, "SLICE_BYTES", 16 * 16 * 4)
    store = FakeStore(ahead=1)
    one, two = plans(store)
    sliced = GpuSlicedPlan(store, "f", torch.device("cpu"), torch.float32)
    for plan, name in ((one, "a"), (one, "b"), (two, "c"), (sliced, "f"), (one, "a")):
        call(plan, name)
    # One group ahead; the slices one by one; and from the end back to the start.
    assert store.one.fetched == [("c", "d"), ("f",), ("f",), ("a", "b"), ("c", "d")]
