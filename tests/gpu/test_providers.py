"""Ownership of the memory that weights are decoded into on a GPU: streams, graphs, growth. The CPU plays a GPU."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import wcodec
from wcodec import _native
from wcodec.nn import CompressedLinear
from wcodec.nn._weights import providers as _providers
from wcodec.nn._weights import providers_gpu, workspace
from wcodec.nn._weights.prefetch_order import PrefetchOrder
from wcodec.nn._weights.providers_gpu import GpuProvider, GpuSlicedProvider
from wcodec.nn._weights.workspace import Space, Workspace

WEIGHTS = {name: torch.randn(32, 16, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("abcdef")}


class Entry:
    def __init__(self, name: str) -> None:
        self.name, self.shape, self.row_axis, self.cut = name, tuple(WEIGHTS[name].shape), 0, 16


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
    fuses = False

    def __init__(self, ahead: int = 0) -> None:
        self.one, self.line = Decoder(), PrefetchOrder(ahead)

    def entry(self, name: str) -> Entry:
        return Entry(name)

    def decoder(self, name: str, device: Any) -> Decoder:
        return self.one

    def prefetch_order(self, device: Any, names: Any) -> PrefetchOrder:
        return self.line

    def decoded(self, name: str, device: Any, dtype: Any) -> torch.Tensor:
        return WEIGHTS[name]


@dataclass
class Here:
    """Stream and capture that the test says it is in."""

    stream: int = 0
    capture: int = 0
    pool: Any = None
    # A stream that another thread captures.
    elsewhere: int | None = None


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Workspace:
    found = Workspace.__new__(Workspace)
    found.index, found.device, found.lock = 0, torch.device("cpu"), threading.RLock()
    found.streams, found.graphs, found._capture = found_space(0), weakref.WeakValueDictionary(), (0, None)
    found.wanted = 0
    here, waits, kept = Here(), [], []
    for module in (providers_gpu, workspace):
        monkeypatch.setattr(module, "workspace", lambda device: found)
    monkeypatch.setattr(workspace, "_current_stream", lambda index: here.stream)
    monkeypatch.setattr(workspace, "_is_capturing", lambda: here.capture > 0)
    monkeypatch.setattr(_native, "gpu_capture", lambda index, stream: here.capture)
    monkeypatch.setattr(_native, "gpu_keep", lambda index, stream, what: kept.append((here.capture, what)))
    monkeypatch.setattr(_native, "DeviceMemory", lambda index, size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(Workspace, "_pool", lambda self: here.pool)

    def follow(index: int, stream: int, other: int) -> bool:
        waits.append((stream, other))
        return here.elsewhere != other

    monkeypatch.setattr(_native, "gpu_follow", follow)
    found.here, found.waits, found.kept = here, waits, kept  # type: ignore[attr-defined]
    return found


def found_space(size: int) -> Space:
    with torch.inference_mode():
        return Space(torch.empty(size, dtype=torch.uint8))


def views(provider: GpuProvider, where: Space) -> list[torch.Tensor]:
    return where.prepared[provider._number][0]


def call(provider: _providers.WeightProvider, name: str) -> None:
    x = torch.randn(3, 16)
    out = provider.apply(F.linear, provider.names.index(name), x, None)
    torch.testing.assert_close(out, F.linear(x, WEIGHTS[name]))


def providers(store: FakeStore) -> tuple[GpuProvider, GpuProvider]:
    device = torch.device("cpu")
    return tuple(GpuProvider(store, names, device, torch.float32) for names in (("a", "b"), ("c", "d")))  # type: ignore


def test_who_has_few_tokens_needs_no_memory_for_decoded_weights(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Few:
        """Products with a weight for up to two tokens."""

        limit = 2 * 16

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            return F.linear(x, WEIGHTS[self.name], bias)

    with_kernels = {"a", "b", "c"}
    made = lambda store, name, *_: Few(name) if name in with_kernels else None  # noqa: E731
    monkeypatch.setattr(providers_gpu, "fused", made)
    store, device = FakeStore(), torch.device("cpu")
    provider = GpuProvider(store, ("a", "b"), device, torch.float32)  # type: ignore[arg-type]
    sliced = providers_gpu.GpuSlicedProvider(store, "c", device, torch.float32)  # type: ignore[arg-type]
    for made_plan, name in ((provider, "a"), (provider, "b"), (sliced, "c")):
        x = torch.randn(2, 16)
        found = made_plan.apply(F.linear, made_plan.names.index(name), x, None)
        torch.testing.assert_close(found, F.linear(x, WEIGHTS[name]))
    assert space.bytes == 0 and not store.one.log
    # More tokens take it then; and with a layer that no kernel multiplies with it is taken at once, as before.
    call(provider, "b")
    assert space.bytes > 0 and store.one.log == [("a", "b")]
    before = space.bytes
    other = GpuProvider(store, ("c", "d", "e"), device, torch.float32)  # type: ignore[arg-type]
    assert space.bytes > before
    # It is not taken from those that are prepared to decode there.
    del provider, made_plan
    gc.collect()
    taken = space.bytes
    space.release()
    assert space.bytes == taken
    del other
    gc.collect()
    space.release()
    assert space.bytes == 0


def test_a_graph_that_is_the_first_to_decode_has_memory_for_all(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Few:
        limit = 16

        def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> None:
            raise AssertionError("so many are decoded for")

    monkeypatch.setattr(providers_gpu, "fused", lambda *_: Few())
    store, device = FakeStore(), torch.device("cpu")
    sizes = (("a",), ("b", "c"), ("d", "e", "f"))
    made = [GpuProvider(store, names, device, torch.float32) for names in sizes]  # type: ignore[arg-type]
    assert space.bytes == 0
    space.here.capture = 1
    for provider in made:
        call(provider, provider.names[0])
    assert len({id(where) for _, where in space.kept}) == 1 and not space.streams.buffer.numel()


def test_a_group_is_decoded_when_another_was(space: Any) -> None:
    store = FakeStore()
    one, two = providers(store)
    for provider, name in ((one, "a"), (one, "b"), (one, "a"), (two, "d"), (one, "b"), (two, "c")):
        call(provider, name)
    assert store.one.log == [("a", "b"), ("c", "d"), ("a", "b"), ("c", "d")]
    first, second = (views(provider, space.streams)[0].untyped_storage() for provider in (one, two))
    assert first.data_ptr() == second.data_ptr()


def test_another_stream_waits_and_decodes_again(space: Any) -> None:
    store = FakeStore()
    one, _ = providers(store)
    call(one, "a")
    space.here.stream = 7
    call(one, "a")
    assert store.one.log == [("a", "b")] * 2 and space.waits == [(7, 0)]


def test_what_was_prepared_in_another_stream_is_waited_for(space: Any) -> None:
    """Preparing may take memory of torch, which that stream may be using still; other memory is nobody's before."""
    store = FakeStore()
    space.here.stream = 3
    one, _ = providers(store)
    assert not space.waits
    space.here.stream = 7
    call(one, "a")
    assert space.waits == [(7, 3)]


def test_a_stream_that_is_being_captured_is_not_waited_for(space: Any) -> None:
    """A stream that waited for it would be a part of the graph. Its work before it was captured has the old memory."""
    store = FakeStore()
    one, two = providers(store)
    call(one, "a")
    old = space.streams
    before = old.buffer.clone()
    space.here.stream, space.here.elsewhere = 7, 0
    call(two, "c")
    call(one, "b")
    assert space.waits == [(7, 0)] and space.streams is not old and torch.equal(old.buffer, before)
    assert space.streams.buffer.data_ptr() != old.buffer.data_ptr()
    # In the graph there is nothing to wait for, and afterwards all is as usual.
    space.here.stream, space.here.capture, space.here.elsewhere = 0, 1, None
    call(one, "a")
    assert space.waits == [(7, 0)]
    space.here.capture = 0
    call(one, "a")
    assert space.waits == [(7, 0), (0, 7)]


def test_what_failed_to_decode_is_decoded_again(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    one, two = providers(store)
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
    def none_left(index: int, size: int) -> Any:
        raise wcodec.DeviceError("none left")

    monkeypatch.setattr(_native, "DeviceMemory", none_left)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 30))
    with pytest.raises(wcodec.DeviceError, match=r"4.00 KiB are needed, and 1.00 MiB of 1.00 GiB are free"):
        providers(FakeStore())
    assert space.streams.buffer.numel() == 0


def test_graphs_decode_for_themselves(space: Any) -> None:
    store = FakeStore()
    one, two = providers(store)
    call(one, "a")
    for capture in (1, 2):
        space.here.capture = capture
        call(one, "a")
        call(one, "b")
    assert store.one.log == [("a", "b")] * 3 and not space.waits
    # A replay writes to memory that nobody else has, so that what was decoded before is still there.
    (_, first), (_, second) = space.kept
    places = {where.buffer.data_ptr() for where in (space.streams, first, second)}
    assert len(places) == 3
    with torch.inference_mode():
        first.buffer.zero_()
        second.buffer.zero_()
    space.here.capture = 0
    call(one, "b")
    call(two, "c")
    assert store.one.log[3:] == [("c", "d")]


def test_graphs_of_one_pool_share_memory(space: Any) -> None:
    store = FakeStore()
    one, two = providers(store)
    call(one, "a")
    for capture, pool in ((1, "x"), (2, "x"), (3, "y")):
        space.here.capture, space.here.pool = capture, pool
        call(one, "a")
        call(two, "c")
    # Each graph decodes for itself, and keeps the memory; those of one pool never run at the same time.
    assert store.one.log == [("a", "b")] + [("a", "b"), ("c", "d")] * 3
    assert [capture for capture, _ in space.kept] == [1, 2, 3]
    assert space.kept[0][1] is space.kept[1][1] is not space.kept[2][1]
    assert space.bytes == 3 * space.streams.buffer.numel()
    # It goes with the graphs.
    space.kept.clear()
    gc.collect()
    assert not space.graphs and space.bytes == space.streams.buffer.numel()


def test_streams_of_one_capture_take_turns(space: Any) -> None:
    store = FakeStore()
    one, two = providers(store)
    space.here.capture = 5
    for stream, provider, name in ((1, one, "a"), (2, two, "c"), (2, two, "d"), (1, one, "b")):
        space.here.stream = stream
        call(provider, name)
    assert space.waits == [(2, 1), (1, 2)] and store.one.log == [("a", "b"), ("c", "d"), ("a", "b")]


def test_a_plan_that_is_gone_leaves_nothing_in_the_memory(space: Any) -> None:
    store = FakeStore()
    one, two = providers(store)
    space.here.capture = 1
    call(one, "a")
    graph = space.kept[0][1]
    assert set(space.streams.prepared) == {one._number, two._number} and set(graph.prepared) == {one._number}
    number = two._number
    del one
    gc.collect()
    assert set(space.streams.prepared) == {number} and not graph.prepared


def test_experts_hold_the_memory_until_they_have_computed(space: Any) -> None:
    """Another thread decodes before or after them, and never between."""
    store = FakeStore()
    one, two = providers(store)
    store.lock = threading.RLock()  # type: ignore[attr-defined]
    begun, out = threading.Event(), []
    other = threading.Thread(target=lambda: (begun.wait(), call(two, "c")))
    other.start()
    with workspace.exclusive(store, torch.device("cuda", 0)):
        weights = one.apply_all(lambda found: found)
        begun.set()
        other.join(0.2)
        assert other.is_alive()
        out.append(weights[0].clone())
    other.join(10)
    assert torch.equal(out[0], WEIGHTS["a"]) and store.one.log == [("a", "b"), ("c", "d")]


def test_the_memory_grows(space: Any) -> None:
    store = FakeStore()
    one, _ = providers(store)
    call(one, "a")
    first = weakref.ref(space.streams.buffer.untyped_storage())
    large = GpuProvider(store, ("a", "b", "c", "d", "e"), torch.device("cpu"), torch.float32)
    # Calls prepared for the old memory do not hold it.
    gc.collect()
    assert first() is None
    call(one, "b")
    call(large, "e")
    call(one, "a")
    here = views(one, space.streams)[0].untyped_storage()
    assert here.data_ptr() == space.streams.buffer.untyped_storage().data_ptr()
    space.here.capture = 1
    call(one, "a")
    captured = space.kept[0][1].buffer
    space.here.capture = 0
    space.reserve(1 << 20)
    assert space.kept[0][1].buffer is captured and space.streams.buffer.numel() == 1 << 20


def test_slices(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_providers, "SLICE_BYTES", 16 * 16 * 4)
    store = FakeStore()
    one, _ = providers(store)
    sliced = GpuSlicedProvider(store, "f", torch.device("cpu"), torch.float32)
    for _ in range(2):
        call(one, "a")
        call(sliced, "f")
    call(one, "b")
    assert store.one.log == [("a", "b"), ("f",), ("f",), ("a", "b"), ("f",), ("f",), ("a", "b")]
    # The largest slice, not the tensor, takes memory.
    assert sliced._size == 16 * 16 * 4


def test_weights_that_lie_one_below_the_other_are_one_factor(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    provider = GpuProvider(store, ("a", "b", "c"), torch.device("cpu"), torch.float32)
    x, bias = torch.randn(2, 3, 16), torch.randn(64)
    for begin in (0, 1):
        below = torch.cat([WEIGHTS[name] for name in provider.names[begin : begin + 2]])
        for given in (None, bias):
            out = provider.apply_below(begin, 2, x, given)
            assert out is not None
            torch.testing.assert_close(out, F.linear(x, below, given))
    assert store.one.log == [("a", "b", "c")]
    call(provider, "c")
    assert store.one.log == [("a", "b", "c")]
    # Not where there is a gap between them, or rows of two lengths.
    monkeypatch.setitem(WEIGHTS, "a", torch.randn(33, 16))
    monkeypatch.setitem(WEIGHTS, "d", torch.randn(32, 12))
    for names in (("a", "b"), ("b", "d")):
        other = GpuProvider(store, names, torch.device("cpu"), torch.float32)
        assert other.apply_below(0, 2, x, None) is None
    assert GpuSlicedProvider(store, "f", torch.device("cpu"), torch.float32).apply_below(0, 1, x, None) is None


def test_what_comes_next_is_fetched(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_providers, "SLICE_BYTES", 16 * 16 * 4)
    store = FakeStore(ahead=1)
    one, two = providers(store)
    sliced = GpuSlicedProvider(store, "f", torch.device("cpu"), torch.float32)
    for provider, name in ((one, "a"), (one, "b"), (two, "c"), (sliced, "f"), (one, "a")):
        call(provider, name)
    # One group ahead; the slices one by one; and from the end back to the start.
    assert store.one.fetched == [("c", "d"), ("f",), ("f",), ("a", "b"), ("c", "d")]


def test_a_gradient_decodes_again(space: Any) -> None:
    store = FakeStore()
    one, two = providers(store)
    grad = torch.randn(3, 32)
    for provider, name in ((two, "c"), (one, "b"), (one, "a"), (two, "d")):
        out = provider.gradient(lambda g, w: g.mm(w), provider.names.index(name), grad)
        assert torch.equal(out, grad.mm(WEIGHTS[name]))
    assert store.one.log == [("c", "d"), ("a", "b"), ("c", "d")]


def test_autograd_takes_memory_that_is_shared(space: Any) -> None:
    layer = CompressedLinear.from_linear(torch.nn.Linear(16, 32))
    layer.bias.requires_grad_()
    one, two = providers(FakeStore())
    x = torch.randn(5, 16, requires_grad=True)
    layer._weights.provider = (one, 1)
    out = layer(x)
    call(two, "c")
    out.backward(torch.ones(5, 32))
    torch.testing.assert_close(x.grad, WEIGHTS["b"].sum(0).expand(5, 16))
    assert torch.equal(layer.bias.grad, torch.full((32,), 5.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gradient_of_slices_is_their_sum(space: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(_providers, "SLICE_BYTES", 1)
    store = FakeStore()
    provider = GpuSlicedProvider(store, "a", torch.device("cpu"), torch.float32)
    grad = torch.randn(2, 3, 32).to(dtype)
    out = provider.gradient(lambda g, w: g @ w.to(dtype), 0, grad)
    # Each slice is rounded once, and their sum once more; sums of float32 are rounded on the way, too, in any order.
    weight = WEIGHTS["a"].to(dtype).float()
    error, bound = (out.float() - grad.float() @ weight).abs(), grad.float().abs() @ weight.abs()
    assert bool((error <= bound * torch.finfo(dtype).eps * (8 if dtype == torch.float32 else 1)).all())
    assert out.dtype == dtype and store.one.log == [("a",), ("a",)] and space.streams.owner is None


def test_the_prefetch_order_drops_providers_that_are_gone() -> None:
    class Batch:
        slots = 1

        def __init__(self, name: str) -> None:
            self.name = name

        def prefetch(self) -> None:
            fetched.append(self.name)

    class Owner:
        pass

    fetched: list[str] = []
    prefetch_order = PrefetchOrder(2)
    owners: dict[str, Any] = {name: Owner() for name in "abcd"}
    for name, owner in owners.items():
        prefetch_order.replace(owner, [Batch(name), Batch(name + "2")])
    prefetch_order.follow(owners["a"])
    assert fetched == ["b", "b2"]
    kept = weakref.ref(prefetch_order._links[owners["b"]][0].batch)
    del owners["b"], owner
    prefetch_order.follow(owners["a"])
    assert fetched[2:] == ["c", "c2"] and kept() is None
    prefetch_order.replace(owners["a"], [Batch("new")])
    prefetch_order.follow_part(owners["d"], 1)
    assert fetched[4:] == ["new", "c"]


def test_passes_of_few_tokens_are_fetched_in_the_order_of_the_last() -> None:
    class Batch:
        def __init__(self, name: str) -> None:
            self.name = name

        def slots(self) -> int:
            return len(self.name) - 1

        def prefetch(self) -> None:
            fetched.append(self.name)

    fetched: list[str] = []
    prefetch_order = PrefetchOrder(2)
    # Weights that take no slot are where kernels read them.
    assert prefetch_order.link(Batch("-")) is None and PrefetchOrder(0).link(Batch("ab")) is None
    names = ("qkv", "out", "gate", "down")
    links = {name: prefetch_order.link(Batch(name)) for name in names}

    def run(*order: str) -> list[str]:
        fetched.clear()
        for name in order:
            link = links[name]
            assert link is not None
            prefetch_order.used(link)
        return list(fetched)

    assert run(*names) == []
    # From the end back to the start, which the first pass could not know.
    assert run(*names) == ["out", "gate", "gate", "down", "down", "qkv", "qkv", "out"]
    # Another thread knows what this one saw, and does not stand where this one does.
    thread = threading.Thread(target=run, args=("gate",))
    thread.start()
    thread.join()
    assert fetched == ["down", "qkv"]
    # Another order is followed once it was seen; what is gone is not fetched.
    assert run("qkv", "gate", "down") == ["out", "gate", "down", "qkv", "qkv", "gate"]
    del links["gate"]
    gc.collect()
    assert run("qkv", "out", "down", "qkv") == ["qkv", "out", "out", "down"]
