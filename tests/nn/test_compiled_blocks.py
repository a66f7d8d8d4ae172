"""Regional compilation: blocks that are alike share a program, whatever layers they have, and use their own weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import wcodec
from torch import nn
from wcodec.nn import CompressedLayer

BLOCKS = 10


class Sum(nn.Linear):
    """Adds its bias to a rounded product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T + self.bias


class Twice(nn.Linear):
    """Computes in its own way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Bare(nn.Module):
    """Multiplies with two parameters of its own."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(64, 64) / 8) for _ in "ab")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.a).relu() @ self.b


class Block(nn.Module):
    """A layer and what is around it."""

    def __init__(self, make: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer = make(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.layer(x))


class Ids(nn.Module):
    """Looks rows of a table up."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table((x.abs() * 10).long().clamp(max=99)).sum(-2)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forgets functions that other tests compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compressed(make: Callable[..., nn.Module], dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(make) for _ in range(BLOCKS))).to(dtype).eval()
    wcodec.compress_(model, progress=False)
    assert sum(isinstance(m, CompressedLayer) for m in model.modules()) == BLOCKS
    return model


KINDS = [nn.Linear, Sum, Twice, Bare, Ids]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_blocks_that_are_alike_share_a_program(kind: Callable[..., nn.Module]) -> None:
    from torch._dynamo.testing import CompileCounter

    model, counter = compressed(kind), CompileCounter()
    x = torch.randn(3, 64)
    with torch.no_grad():
        wanted = model(x)
        for block in model:
            block.compile(backend=counter, fullgraph=True)
        assert torch.equal(model(x), wanted)
        # One for the first, and one for all others.
        assert counter.frame_count <= 2
        assert torch.equal(model(x + 1), model(x + 1)) and counter.frame_count <= 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_whole_model_is_one_program(kind: Callable[..., nn.Module]) -> None:
    from torch._dynamo.testing import CompileCounter

    model, counter = compressed(kind), CompileCounter()
    x = torch.randn(3, 64)
    with torch.no_grad():
        wanted = model(x)
        assert torch.equal(torch.compile(model, backend=counter, fullgraph=True)(x), wanted)
    assert counter.frame_count == 1


def test_gradients_of_blocks() -> None:
    model = compressed(nn.Linear)
    plain = copy.deepcopy(model)
    for block in model:
        block.compile(backend="aot_eager")
    a, b = (torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in "ab")
    model(a).sum().backward()
    plain(b).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_layers_are_found_again_after_they_moved_and_not_after_they_went() -> None:
    model = compressed(nn.Linear)
    before = model[0].layer._handle
    model.half().float()
    assert model[0].layer._handle.shape == before.shape and before.numel() == 0
    assert copy.deepcopy(model)[0].layer._handle.shape != before.shape
    keys = {block.layer._handle.shape for block in model}
    assert len(keys) == BLOCKS
    model.to("meta")
    assert model[0].layer._handle.device.type == "meta"
