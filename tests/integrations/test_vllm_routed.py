"""Products with routed experts in the plug-in of vLLM: what the native half is asked for.

It is replaced by one that does the same with the addresses that it gets, on the CPU. What the kernels do is in
``codec/src/gpu/emulated/``, and both together in ``tests/gpu/test_vllm.py``.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import wcodec

torch = pytest.importorskip("torch")

from wcodec._integrations.vllm import routed  # noqa: E402

F = torch.nn.functional
EXPERTS, WIDTH, INNER, STREAM = 5, 24, 16, 0x5EED


def memory(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """The memory at an address, as an array."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype).reshape(shape)


def halves(address: int, shape: tuple[int, ...]) -> Any:
    """The memory at an address, as a tensor of float16."""
    return torch.from_numpy(memory(address, shape, np.float16))


class Router:
    """A stand-in for the kernels around the products."""

    def route(self, call: dict[str, Any], stream: int) -> None:
        assert stream == STREAM and call["slots"] % 16 == 0
        count, experts, most = call["count"], call["experts"], call["most"]
        ids = memory(call["ids"], (count,), np.int64 if call["wide"] else np.int32)
        if call["places"]:
            places = memory(call["places"], (call["named"],), np.int32)
            ids = np.where((ids >= 0) & (ids < call["named"]), places[np.clip(ids, 0, call["named"] - 1)], -1)
        ids = np.where((ids >= 0) & (ids < experts), ids, experts)
        order = [route for route in np.argsort(ids, kind="stable") if ids[route] < experts]
        positions = memory(call["positions"], (count,), np.int32)
        positions[:] = -1
        positions[order] = np.arange(len(order))
        memory(call["rows"], (count,), np.uint32)[: len(order)] = np.array(order, dtype=np.uint32) // call["each"]
        slots = []
        for expert in range(experts):
            own = positions[ids == expert]
            slots += [(expert, own[at], min(most, len(own) - at), 0) for at in range(0, len(own), most)]
        some = min(experts, count)
        table = memory(call["slots"], (some + (count - some) // most, 4), np.uint32)
        table[:] = 0
        table[: len(slots)] = np.array(slots, dtype=np.uint32).reshape(-1, 4)

    def combine(self, call: dict[str, Any], stream: int) -> None:
        assert stream == STREAM and call["dtype"] == "F16"
        tokens, each, cols = call["tokens"], call["each"], call["cols"]
        positions = memory(call["positions"], (tokens, each), np.int32)
        y = halves(call["y"], (tokens * each, cols)).float()
        kind = {"F32": np.float32, "F16": np.float16}[call["share_dtype"]]
        shares = memory(call["shares"], (tokens, each), kind) if call["shares"] else np.ones((tokens, each))
        out = halves(call["out"], (tokens, cols))
        for token in range(tokens):
            some = [(y[p], float(s)) for p, s in zip(positions[token], shares[token], strict=True) if p >= 0]
            out[token] = sum((v * s for v, s in some), torch.zeros(cols)).half()


class Products:
    """A stand-in for the launches of one matrix of all experts."""

    def __init__(self, matrices: list[Any]) -> None:
        self.matrices = matrices

    def most(self, tokens: int, routes: int) -> int:
        assert routes >= tokens
        return 8 if tokens <= 8 else 32

    def multiply(self, x: int, stride: int, rows: int, slots: int, count: int, most: int, y: int, stream: int) -> None:
        assert stream == STREAM
        outputs = self.matrices[0].shape[0]
        for expert, begin, routes, _ in memory(slots, (count, 4), np.uint32).tolist():
            assert routes <= most
            for position in range(begin, begin + routes):
                row = int(memory(rows, (position + 1,), np.uint32)[position]) if rows else position
                vector = halves(x + row * stride * 2, (stride,)).float()
                halves(y + position * outputs * 2, (outputs,))[:] = (self.matrices[expert] @ vector).half()


class Decoder:
    """A stand-in for a GPU's decoder of the experts' matrices, by name."""

    def __init__(self, matrices: dict[str, Any]) -> None:
        self.matrices, self.device, self._native = matrices, SimpleNamespace(index=0), self
        self.unfused: set[str] = set()
        self.failure: Exception | None = None

    @property
    def names(self) -> list[str]:
        return list(self.matrices)

    def multiplies(self, dtype: Any) -> bool:
        return dtype is torch.float16

    def can_fuse(self, name: str) -> str | None:
        return "layout byte" if name in self.unfused else None

    def info(self, name: str) -> Any:
        return SimpleNamespace(shape=self.matrices[name].shape)

    def prepare_routed(self, experts: list[list[tuple[str, None, int, int]]], dtype: str) -> Products:
        assert dtype == "F16"
        if self.failure is not None:
            raise self.failure
        return Products([torch.cat([self.matrices[name] for name, _, _, _ in parts]) for parts in experts])


def activation(x: Any) -> Any:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    torch.manual_seed(9)
    monkeypatch.setattr(routed, "_current_stream", lambda ordinal: STREAM)
    monkeypatch.setattr(routed, "_router", lambda ordinal: Router())
    monkeypatch.setattr(routed, "is_capturing", lambda: False)
    shapes = {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
    return Decoder({f"{name}.{i}": torch.randn(shape) / 4 for name, shape in shapes.items() for i in range(EXPERTS)})


NAMES = [((f"gate.{i}", f"up.{i}"), (f"down.{i}",)) for i in range(EXPERTS)]


def made(decoder: Decoder, places: Any = None, shares_first: bool = False) -> routed.RoutedExperts:
    return routed.RoutedExperts(decoder, NAMES, torch.float16, activation, places, shares_first)


@pytest.mark.parametrize("tokens", [1, 8, 30])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shares_first", [False, True])
@pytest.mark.parametrize("places", [None, [3, -1, 0, 1, -1, 4, 2]])
def test_routed_experts(
    decoder: Decoder, tokens: int, wide: bool, shares_first: bool, places: list[int] | None
) -> None:
    experts = made(decoder, None if places is None else torch.tensor(places, dtype=torch.int32), shares_first)
    x = torch.randn(tokens, WIDTH).half()
    # More than one column of a wider tensor.
    ids = torch.randint(-1, EXPERTS if places is None else len(places), (tokens, 6))[:, :3]
    ids = ids.long() if wide else ids.int()
    shares = torch.rand(tokens, 3).to(torch.float16 if wide else torch.float32)
    assert experts.takes(x, shares, ids)
    expected = torch.zeros(tokens, WIDTH)
    for token in range(tokens):
        for share, number in zip(shares[token].float(), ids[token].tolist(), strict=True):
            number = number if places is None or number < 0 else places[number]
            if number < 0:
                continue
            first = torch.cat([decoder.matrices[f"gate.{number}"], decoder.matrices[f"up.{number}"]])
            before, behind = (share, 1) if shares_first else (1, share)
            inner = activation(first @ (x[token].float() * before))
            expected[token] += behind * (decoder.matrices[f"down.{number}"] @ inner)
    found = experts.mix(x, shares, ids)
    assert found.shape == x.shape and found.dtype == x.dtype
    assert torch.allclose(found.float(), expected, atol=0.02, rtol=0.02)


def test_what_is_taken(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = made(decoder)

    def takes(
        tokens: int, each: int = 2, x: Any = torch.float16, shares: Any = torch.float32, ids: Any = torch.int32
    ) -> bool:
        tensors = torch.zeros(tokens, WIDTH, dtype=x), torch.zeros(tokens, each, dtype=shares)
        return experts.takes(*tensors, torch.zeros(tokens, each, dtype=ids))

    assert takes(1) and takes(160) and takes(4, shares=torch.float16)
    # More than 64 routes for each of five experts.
    assert not takes(161) and not takes(0)
    assert not takes(4, x=torch.float32) and not takes(4, shares=torch.bfloat16) and not takes(4, ids=torch.int16)
    x = torch.zeros(4, WIDTH, dtype=torch.float16, requires_grad=True)
    assert not experts.takes(x, torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.int32))
    monkeypatch.setattr(routed, "is_capturing", lambda: True)
    assert takes(161) and takes(512, 8) and not takes(513, 8)


def test_experts_that_kernels_do_not_take(decoder: Decoder) -> None:
    store: Any = SimpleNamespace(
        fuses=True,
        decoder=lambda name, device: decoder,
        entry=lambda name: SimpleNamespace(name=name.removeprefix("alias.")),
        residency_of=lambda names, device: "device",
        is_cached=lambda names, device: False,
    )

    def found(dtype: Any = torch.float16, device: str = "cuda:0", names: Any = NAMES) -> routed.RoutedExperts | None:
        return routed.routed_experts(store, torch.device(device), names, dtype, activation, None, False)

    assert found() is not None and found(device="cpu") is None and found(torch.bfloat16) is None
    tied = [(first, (f"alias.{second[0]}",)) for first, second in NAMES]
    assert found(names=tied) is not None
    for name, value, usual in (
        ("fuses", False, True),
        ("residency_of", lambda names, device: "host", store.residency_of),
        ("is_cached", lambda names, device: True, store.is_cached),
    ):
        setattr(store, name, value)
        assert found() is None
        setattr(store, name, usual)
    decoder.unfused = {"down.4"}
    assert found() is None
    decoder.unfused = set()
    elsewhere = decoder.matrices.pop("up.2")
    assert found() is None
    decoder.matrices["up.2"] = elsewhere
    decoder.failure = wcodec.InputError("no kernel multiplies with routed experts", code="I435")
    assert found() is None
    decoder.failure = wcodec.InputError("another mistake", code="I221")
    with pytest.raises(wcodec.InputError, match="another mistake"):
        found()
