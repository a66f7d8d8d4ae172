"""Modules of other classes, weights that decode when they are used and operators of equal blocks, on a GPU.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import copy
from typing import Any

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import torch
from wcodec.nn import CompressedEmbedding, CompressedLinear, CompressedModule

F = torch.nn.functional
# pytest looks for fixtures in the module.
gpu = gpu_helpers.gpu
DEVICE = "cuda"


class Own(torch.nn.Module):
    """Stacks, one of them with fewer matrices, a matrix that is viewed as a stack, and one of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(6, 96, 64) / 8)
        self.down = torch.nn.Parameter(torch.randn(4, 64, 96) / 8)
        self.bias = torch.nn.Parameter(torch.randn(6, 96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for index in torch.arange(6, device=x.device)[:, None]:
            h = F.relu(F.linear(x, self.up[index[0]], self.bias[index[0]]))
            out = out + h @ self.down[int(index[0]) % 4].T
        return out + torch.bmm(x.expand(4, -1, -1), self.down @ self.up[:4]).sum(0)


class Whole(torch.nn.Module):
    """Matrices that are compressed as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4 * 32, 64) / 8)
        self.v = torch.nn.Parameter(torch.randn(16, 4, 64) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.linear(x, self.w.view(-1, 32, 64)[1]) @ self.w.view(4, 32, 64)[3]
        return h + x @ self.w[:64] + torch.einsum("td,knd->tk", x, self.v).sum()


class Scaled(torch.nn.Embedding):
    """Rows times a factor."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(ids)


class Model(torch.nn.Module):
    """All of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.own, self.whole = Scaled(1000, 64), Own(), Whole()
        self.head = torch.nn.Linear(64, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.whole(self.own(self.table(ids))))


def pair(dtype: torch.dtype = torch.bfloat16, **options: Any) -> tuple[Any, Any]:
    """A compressed model, and the same with decoded weights."""
    torch.manual_seed(0)
    model = Model().to(DEVICE, dtype).eval()
    report = wcodec.compress_(model, progress=False, fused=False, **options)
    assert len(report.replaced) == 4
    plain = copy.deepcopy(model)
    wcodec.decompress_(plain)
    return model, plain


IDS = torch.tensor([3, 999, 3, 17])


@pytest.mark.parametrize("residency", ["device", "host", "auto"])
@pytest.mark.parametrize("cache", [None, "1MB"])
def test_modules_of_other_classes(residency: str, cache: str | None) -> None:
    model, plain = pair(residency=residency, cache=cache)
    ids = IDS.to(DEVICE)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(model(ids), plain(ids))
    assert isinstance(model.own, CompressedModule) and model.own.up.is_cuda


def test_they_move_and_train() -> None:
    model, plain = pair(torch.float32)
    x, y = (torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE).requires_grad_() for _ in "xy")
    for part in ("own", "whole"):
        model.get_submodule(part)(x).sum().backward()
        plain.get_submodule(part)(y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    moved = model.to("cpu").to(DEVICE)
    with torch.no_grad():
        assert torch.equal(moved(IDS.to(DEVICE)), plain(IDS.to(DEVICE)))


def test_weights_that_are_read() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48).to(DEVICE, torch.bfloat16)
    layer = CompressedLinear.from_linear(linear)
    true = layer.to_linear().weight.detach()
    assert layer.weight.is_cuda and layer.weight.device == true.device and torch.equal(layer.weight, true)
    x = torch.randn(3, 64, device=DEVICE).bfloat16()
    assert torch.equal(F.linear(x, layer.weight), F.linear(x, true)) and torch.equal(layer.weight.cpu(), true.cpu())
    table = CompressedEmbedding.from_embedding(torch.nn.Embedding(1000, 64).to(DEVICE))
    assert torch.equal(F.embedding(IDS.to(DEVICE), table.weight), table(IDS.to(DEVICE)))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_equal_blocks_share_a_program(mode: str) -> None:
    """Also where torch captures graphs: each block has its own."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(6)]
    model = torch.nn.Sequential(*blocks).to(DEVICE, torch.bfloat16).eval()
    wcodec.compress_(model, progress=False)
    x = torch.randn(2, 64, device=DEVICE).bfloat16()
    # It counts for the whole process.
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    with torch.no_grad():
        wanted = model(x)
        for block in model:
            block.compile(mode=mode)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            found = model(x).clone()
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
    assert graphs["unique_graphs"] - before <= 2
    torch._dynamo.reset()
