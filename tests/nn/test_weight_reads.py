"""``layer.weight``: asked for facts it decodes nothing, and used as a tensor it is the decoded one."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import wcodec
from wcodec.nn import CompressedConv1D, CompressedEmbedding, CompressedLinear, CompressedWeight
from wcodec.nn._weights.store import Store

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the tensors that were decoded: the CPU decodes all by this."""
    names: list[str] = []
    original = Store.rows

    def counted(self: Any, name: str, *args: Any) -> torch.Tensor:
        names.append(name)
        return original(self, name, *args)

    monkeypatch.setattr(Store, "rows", counted)
    yield names


def layer(dtype: torch.dtype = torch.float32) -> CompressedLinear:
    torch.manual_seed(0)
    return CompressedLinear.from_linear(torch.nn.Linear(64, 48).to(dtype))


FACTS: list[Callable[[torch.Tensor], Any]] = [
    *(lambda w, n=n: getattr(w, n) for n in ("dtype", "device", "shape", "ndim", "is_meta", "layout", "requires_grad")),
    *(lambda w, n=n: getattr(w, n)() for n in ("numel", "size", "dim", "stride", "is_floating_point", "is_contiguous")),
    lambda w: (len(w), w.size(0), w.nbytes, w.element_size(), w.itemsize, w.is_cuda, w.is_sparse, w.grad, w.is_leaf),
    lambda w: (w.data.dtype, w.detach().shape, w.data.device, w.storage_offset()),
    lambda w: isinstance(w, torch.Tensor) and torch.is_tensor(w) and torch.is_floating_point(w),
    lambda w: torch.promote_types(w.dtype, torch.float64),
    lambda w: (hasattr(w, "numel"), w.requires_grad_(False) is w, hash(w) == hash(w)),
    lambda w: w.to(w.dtype) is w and w.to(w.device) is w and w.contiguous() is w,
]


@pytest.mark.parametrize("place", range(len(FACTS)))
def test_facts_decode_nothing(place: int, decoded: list[str]) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48)
    wanted = FACTS[place](linear.weight.detach())
    found = FACTS[place](CompressedLinear.from_linear(linear).weight)
    assert found == wanted and not decoded


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "product": lambda w: F.linear(torch.ones(3, 64), w),
    "product with a bias": lambda w: F.linear(torch.ones(3, 64), w, torch.ones(48)),
    "matmul": lambda w: torch.ones(3, 64) @ w.T,
    "rmatmul": lambda w: w @ torch.ones(64),
    "addmm": lambda w: torch.addmm(torch.ones(48), torch.ones(2, 64), w.t()),
    "einsum": lambda w: torch.einsum("bi,oi->bo", torch.ones(2, 64), w),
    "rows": lambda w: w[3],
    "slice": lambda w: w[3:7, ::2],
    "ids": lambda w: w[torch.tensor([1, 1, 47])],
    "mask": lambda w: w[w.abs() > 0.05],
    "loop": lambda w: torch.stack(list(w)),
    "double": lambda w: w.double(),
    "half": lambda w: w.to(torch.float16),
    "float": lambda w: w.float(),
    "clone": lambda w: w.clone(),
    "sum": lambda w: (w.sum(), w.norm(), w.mean(0), w.abs().max()),
    "compare": lambda w: (w > 0, w == w),
    "join": lambda w: torch.cat([w, w]),
    "stack": lambda w: torch.stack([w, torch.ones(48, 64)]),
    "like": lambda w: torch.zeros_like(w),
    "view": lambda w: w.view(2, 24, 64),
    "reshape": lambda w: w.reshape(-1, 16, 4),
    "embedding": lambda w: F.embedding(torch.tensor([[1, 2], [47, 0]]), w),
    "numpy": lambda w: torch.from_numpy(np.asarray(w)),
    "numpy method": lambda w: torch.from_numpy(w.numpy()),
    "list": lambda w: torch.tensor(w.tolist()),
    "deepcopy": copy.deepcopy,
    "pickle": lambda w: pickle.loads(pickle.dumps(w)),
    "text": lambda w: torch.tensor([ord(c) for c in repr(w.detach().clone())]),
    "chunk": lambda w: torch.cat(w.chunk(3)[1:]),
    "parameter": lambda w: torch.nn.Parameter(w, requires_grad=False).data,
    "new": lambda w: w.new_ones(3),
    "vmap": lambda w: torch.stack(torch.unbind(w, 1)),
}


@pytest.mark.parametrize("use", USES)
def test_uses_are_those_of_the_decoded_weight(use: str) -> None:
    one = layer()
    true = one.to_linear().weight.detach()
    weight = one.weight
    found = USES[use](weight)
    wanted = USES[use](true)
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, wanted)), strict=True):
        assert torch.equal(a, b)
    if use not in ("parameter",):
        made = found if isinstance(found, tuple) else (found,)
        assert not any(isinstance(a, CompressedWeight) for a in made) or use in ("float",)


def test_values_are_decoded_once_for_each_object(decoded: list[str]) -> None:
    one = layer()
    weight = one.weight
    for _ in range(3):
        weight.sum()
    assert len(decoded) == 1
    # Tensors that share its memory share that, too.
    weight.data.mean()
    weight.detach().numpy()
    assert len(decoded) == 1
    one.weight.sum()
    assert len(decoded) == 2


def test_what_prints_it() -> None:
    one = layer()
    assert repr(one.weight) == repr(one.to_linear().weight.detach())
    assert f"{one.weight.sum():.3f}" == f"{one.to_linear().weight.sum():.3f}"


def test_files(tmp_path: Path) -> None:
    one = layer()
    true = one.to_linear().weight.detach()
    data = io.BytesIO()
    torch.save({"w": one.weight}, data)
    data.seek(0)
    assert torch.equal(torch.load(data, weights_only=True)["w"], true)
    safetensors.save_file({"w": one.weight}, tmp_path / "w.safetensors")
    assert torch.equal(safetensors.load_file(tmp_path / "w.safetensors")["w"], true)
    found = wcodec.open(wcodec.compress_to_bytes({"w": one.weight}, scheme="raw")[0])
    assert torch.equal(found["w"].torch(), true)
    assert CompressedLinear.from_linear(one).stored_bytes == one.stored_bytes


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.add_(1),
        lambda w: w.zero_(),
        lambda w: w.data.copy_(torch.ones(48, 64)),
        lambda w: torch.mul(w, 2, out=w),
        lambda w: setattr(w, "data", torch.ones(48, 64)),
        lambda w: w.__setitem__(0, 1.0),
        lambda w: torch.nn.init.normal_(w),
        lambda w: torch._foreach_add_([w], 1.0),
    ],
)
def test_writing_is_an_error_that_says_the_way(write: Callable[[torch.Tensor], Any]) -> None:
    one = layer()
    with pytest.raises(wcodec.InputError, match=r"cannot be written to.*weight\.clone\(\)"):
        write(one.weight)


def test_a_parameter_of_it_is_trained() -> None:
    one = layer()
    linear = torch.nn.Linear(64, 48)
    linear.weight = torch.nn.Parameter(one.weight)
    assert torch.equal(linear.weight, one.weight) and list(linear.parameters())[0] is linear.weight
    before = linear.weight.clone().detach()
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.5)
    linear(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(linear.weight.detach().clone(), before - 1.0)
    # The layer has its own.
    assert torch.equal(one.weight, before)
    assert torch.equal(copy.deepcopy(linear).weight, linear.weight)


def test_setting_it() -> None:
    one, other = layer(), layer()
    one.weight = one.weight
    for value in (torch.nn.Parameter(torch.ones(48, 64)), torch.ones(48, 64), other.weight, None):
        with pytest.raises(wcodec.InputError, match=r"cannot be replaced.*decompress_.*exclude"):
            one.weight = value


def test_gradients_pass_and_nothing_stays_decoded(decoded: list[str]) -> None:
    one = layer()
    weight = one.to_linear().weight.detach()
    x = torch.randn(5, 64, requires_grad=True)
    decoded.clear()
    out = F.linear(x, one.weight)
    assert len(decoded) == 1
    out.sum().backward()
    assert len(decoded) == 2
    y = x.detach().clone().requires_grad_()
    F.linear(y, weight).sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_tables_are_looked_up_by_rows(decoded: list[str]) -> None:
    torch.manual_seed(0)
    table = CompressedEmbedding.from_embedding(torch.nn.Embedding(2000, 64))
    ids = torch.tensor([[5, 1999], [5, 6]])
    wanted = table(ids)
    decoded.clear()
    assert torch.equal(F.embedding(ids, table.weight), wanted) and len(decoded) == 2


def test_conv1d() -> None:
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    one = CompressedConv1D.from_conv1d(pytorch_utils.Conv1D(48, 64))
    assert one.weight.shape == (64, 48) and torch.equal(one.weight, one.to_conv1d().weight)


def test_autocast_and_devices() -> None:
    one = layer()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(F.linear(torch.ones(2, 64), one.weight), F.linear(torch.ones(2, 64), one.weight.clone()))
    with torch.device("meta"):
        assert one.weight.device.type == "cpu" and torch.equal(one.weight.sum(), one.weight.clone().sum())
    with torch.inference_mode():
        assert torch.equal(one.weight + 1, one.weight.clone() + 1)
    half = copy.deepcopy(one).half()
    assert half.weight.dtype is torch.float16 and one.weight.dtype is torch.float32


class Reads(torch.nn.Module):
    """A module around a layer that looks at its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x.to(self.inner.weight.dtype))
        return y + F.linear(x, self.inner.weight) * self.inner.weight.shape[0]


def test_compiled(decoded: list[str]) -> None:
    from torch._dynamo.testing import CompileCounter

    model, x = Reads().eval(), torch.randn(3, 64)
    with torch.no_grad():
        wanted = model(x)
        torch._dynamo.reset()
        counter = CompileCounter()
        assert torch.equal(torch.compile(model, backend=counter, fullgraph=True)(x), wanted)
        assert counter.frame_count == 1
        # One that was read outside.
        weight = model.inner.weight
        product = torch.compile(lambda a: F.linear(a, weight), backend="eager")
        assert torch.equal(product(x), F.linear(x, model.inner.to_linear().weight))
    torch._dynamo.reset()
