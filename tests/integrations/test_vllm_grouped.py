"""Experts for many tokens in the plug-in of vLLM: which rows each expert gets, and where its results go.

Decoding, and the kernel that adds results up, are replaced; on a GPU all of it runs in ``tests/gpu/test_vllm.py``.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")

from wcodec._integrations.vllm import grouped, routed  # noqa: E402
from wcodec._integrations.vllm.experts import RankExperts  # noqa: E402
from wcodec.nn._weights import expert_groups  # noqa: E402
from wcodec.nn._weights.memory_estimate import MemoryEstimate  # noqa: E402
from wcodec.nn._weights.store import Store  # noqa: E402

from .test_vllm_routed import STREAM, Router, activation  # noqa: E402

EXPERTS, WIDTH, INNER = 5, 24, 16
CPU = torch.device("cpu")


class Group:
    """Stands for experts that are decoded together, and counts how often they are."""

    def __init__(self, first: Any, second: Any) -> None:
        self.matrices, self.count = (first, second), 0

    def decoded(self) -> Any:
        self.count += 1
        return self.matrices


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(11)
    monkeypatch.setattr(routed, "_router", lambda ordinal: Router())
    monkeypatch.setattr(grouped, "_current_stream", lambda ordinal: STREAM)


def made(shares_first: bool = False, together: bool = False, sizes: tuple[int, ...] = (2, 2, 1)) -> Any:
    """Experts in groups of so many, and their matrices."""
    first = (torch.randn(EXPERTS, 2 * INNER, WIDTH) / 4).half()
    second = (torch.randn(EXPERTS, WIDTH, INNER) / 4).half()
    groups, at = [], 0
    for size in sizes:
        some = slice(at, at + size)
        groups.append((range(at, at + size), Group(first[some], second[some])))
        at += size
    store: Any = SimpleNamespace(lock=threading.RLock())
    experts = grouped.GroupedExperts(store, CPU, groups, torch.float16, activation, shares_first, together)
    return experts, first, second, [group for _, group in groups]


def expected(x: Any, shares: Any, ids: Any, first: Any, second: Any, shares_first: bool) -> Any:
    out = torch.zeros(x.shape)
    for token, (of, numbers) in enumerate(zip(shares.float(), ids.tolist(), strict=True)):
        for share, number in zip(of, numbers, strict=True):
            if not 0 <= number < EXPERTS:
                continue
            before, behind = (share, 1) if shares_first else (1, share)
            inner = activation(first[number].float() @ (x[token].float() * before))
            out[token] += behind * (second[number].float() @ inner)
    return out


@pytest.mark.parametrize("tokens", [1, 7, 200])
@pytest.mark.parametrize("shares_first", [False, True])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("sizes", [(2, 2, 1), (5,), (1, 1, 1, 1, 1)])
def test_each_token_gets_its_experts(tokens: int, shares_first: bool, together: bool, sizes: tuple[int, ...]) -> None:
    if together and grouped._grouped_mm is None:
        pytest.skip("this torch multiplies no several matrices at once")
    experts, first, second, _ = made(shares_first, together, sizes)
    x = torch.randn(tokens, WIDTH).half()
    # More than one column of a wider tensor; some lead to no expert.
    ids = torch.randint(-1, EXPERTS + 1, (tokens, 6))[:, :3].int()
    shares = torch.rand(tokens, 3)
    assert experts.takes(x, shares, ids)
    want = expected(x, shares, ids, first, second, shares_first)
    found = experts.mix(x, shares, ids)
    assert found.shape == x.shape and found.dtype == x.dtype
    assert torch.allclose(found.float(), want, atol=0.02, rtol=0.02)


def test_groups_without_tokens_are_not_decoded() -> None:
    experts, first, second, groups = made()
    x, shares, ids = torch.randn(9, WIDTH).half(), torch.rand(9, 2), torch.tensor([[4, -1]] * 9)
    found = experts.mix(x, shares, ids)
    assert torch.allclose(found.float(), expected(x, shares, ids, first, second, False), atol=0.02, rtol=0.02)
    assert [group.count for group in groups] == [0, 0, 1]
    assert not experts.mix(x, shares, torch.full((9, 2), -1)).any()
    assert [group.count for group in groups] == [0, 0, 1]


def test_what_is_taken() -> None:
    experts, *_ = made()
    x, shares, ids = torch.randn(3, WIDTH).half(), torch.rand(3, 2), torch.zeros(3, 2, dtype=torch.int32)
    assert experts.takes(x, shares, ids) and experts.takes(x, shares.half(), ids)
    assert not experts.takes(x.float(), shares, ids) and not experts.takes(x, shares.double(), ids)
    assert not experts.takes(x[:0], shares[:0], ids[:0])
    assert not experts.takes(x, shares.clone().requires_grad_(), ids)
    assert not experts.takes(x.requires_grad_(), shares, ids)
    with torch.no_grad():
        assert experts.takes(x, shares, ids)


def test_groups_are_only_of_experts_on_a_gpu() -> None:
    # Nothing of the store is asked for.
    store: Any = SimpleNamespace()
    assert grouped.grouped_experts(store, CPU, [((), ())], torch.float32, activation, False) is None
    store = SimpleNamespace(entry=None)
    assert grouped.grouped_experts(store, CPU, [((), ())], torch.float16, activation, False) is None


@pytest.fixture
def layer() -> RankExperts:
    """Five experts of a container, on a CPU; each takes 2,304 bytes in a half precision."""
    shapes = {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
    tensors = {f"{name}.{i}": torch.randn(shape).half() for name, shape in shapes.items() for i in range(EXPERTS)}
    names = [((f"gate.{i}", f"up.{i}"), (f"down.{i}",)) for i in range(EXPERTS)]
    groups = [(*first, *second) for first, second in names]
    store = Store(wcodec.open(wcodec.compress_to_bytes(tensors)[0]), groups, routed=list(tensors))
    return RankExperts(store, names, activation, None, dtype=torch.float16, device=CPU)


@pytest.mark.parametrize(("bound", "counted"), [(1 << 20, 5 * 2304), (5000, 5000), (100, 2304)])
def test_memory_of_groups_is_counted_on_a_gpu(
    layer: RankExperts, monkeypatch: pytest.MonkeyPatch, bound: int, counted: int
) -> None:
    monkeypatch.setattr(expert_groups, "GROUP_BYTES", bound)
    store, spare = layer._store, 2 * expert_groups.ALIGN
    assert expert_groups.bytes_of_a_group(store, layer._names, torch.float16) == counted + spare
    again = RankExperts(store, layer._names, activation, None, dtype=torch.float16, device=CPU)
    users = [again._weights]
    units = MemoryEstimate(store.tensor_groups, torch.device("cuda", 0), users).units
    assert len(units) == EXPERTS
    assert {unit.scratch for unit in units} == {max(counted + spare, 3 * 1024)}
    # A CPU decodes one expert at a time, and so does any device in float32.
    assert {unit.scratch for unit in MemoryEstimate(store.tensor_groups, CPU, users).units} == {3 * 1024}
    single = RankExperts(store, layer._names, activation, None, dtype=torch.float32, device=CPU)
    assert single._weights.at_once == 0


def test_launches_go_when_a_layer_moves(layer: RankExperts) -> None:
    kept: Any = (object(), None, None)
    layer._launches = kept
    layer.to(torch.bfloat16)
    assert layer._launches is None
