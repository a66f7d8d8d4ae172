"""Computations of the plug-in of vLLM on a GPU: merged layers, tables and experts of a rank, eager, in CUDA graphs and
compiled. vLLM itself is not needed.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import torch
from wcodec._integrations.vllm import ops
from wcodec._integrations.vllm.deferred import Placeholder
from wcodec._integrations.vllm.experts import RankExperts
from wcodec._integrations.vllm.parts import Linear
from wcodec._integrations.vllm.rank import Rank
from wcodec._integrations.vllm.weights import Weights

F = torch.nn.functional
gpu = gpu_helpers.gpu
DTYPE = torch.bfloat16
WIDTH, EXPERTS, INNER = 256, 4, 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vllm")
    torch.manual_seed(5)
    tensors = {
        "q": torch.randn(256, WIDTH) / 16,
        "k": torch.randn(64, WIDTH) / 16,
        "table": torch.randn(1000, WIDTH),
        **{f"experts.up.{i}": torch.randn(2 * INNER, WIDTH) / 16 for i in range(EXPERTS)},
        **{f"experts.down.{i}": torch.randn(WIDTH, INNER) / 11 for i in range(EXPERTS)},
    }
    wcodec.compress({k: v.to(DTYPE) for k, v in tensors.items()}, place / "model.wcodec", progress=False)
    return place


def rank_of(folder: Path, fused: bool) -> tuple[Rank, dict[str, Any], dict[str, Any]]:
    """A rank on the GPU, the folder's tensors without data, and decoded."""
    weights = Weights(folder)
    decoded = {name: weights.container[name].torch(DTYPE).cuda() for name in weights.container}
    device = torch.device("cuda", torch.cuda.current_device())
    return Rank(weights, device, {}, fused=fused), dict(weights), decoded


def merged(folder: Path, fused: bool) -> tuple[Linear, Any]:
    """Rows of two matrices, cut in the middle, and padding; and the weight that they are."""
    rank, found, decoded = rank_of(folder, fused)
    weight = Placeholder("qk", (192, WIDTH), DTYPE)
    weight.parameter.data[:128].copy_(found["q"].narrow(0, 128, 128))
    weight.parameter.data[128:160].copy_(found["k"].narrow(0, 32, 32))
    taken: list[Linear] = []
    assert rank.linear(weight, taken.append)
    rank.make()
    parts = decoded["q"][128:], decoded["k"][32:], torch.zeros(32, WIDTH, dtype=DTYPE, device="cuda")
    return taken[0], torch.cat(parts)


def captured(run: Any) -> tuple[Any, Any]:
    """A graph of what ``run`` does, and the output of its replays."""
    with torch.no_grad():
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run()
    return graph, out


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 100])
def test_merged_layers(folder: Path, fused: bool, tokens: int) -> None:
    layer, weight = merged(folder, fused)
    x, bias = torch.randn(tokens, WIDTH, dtype=DTYPE, device="cuda"), torch.randn(192, dtype=DTYPE, device="cuda")
    found = layer.product(x, bias)
    assert torch.allclose(found.float(), F.linear(x.float(), weight.float(), bias.float()), atol=0.03, rtol=0.02)
    graph, out = captured(lambda: layer.product(x, bias))
    out.fill_(7)
    graph.replay()
    assert torch.equal(out, found)


def test_tables(folder: Path) -> None:
    rank, found, decoded = rank_of(folder, False)
    weight = Placeholder("table", (500, WIDTH), DTYPE)
    weight.parameter.data.copy_(found["table"].narrow(0, 500, 500))
    taken: list[Linear] = []
    assert rank.linear(weight, taken.append, looked_up=True)
    rank.make()
    ids = torch.tensor([0, 499, 17, 17], device="cuda")
    expected = decoded["table"][500:][ids]
    assert torch.equal(taken[0].look_up(ids), expected)
    graph, out = captured(lambda: taken[0].look_up(ids))
    out.fill_(7)
    graph.replay()
    assert torch.equal(out, expected)


def test_experts(folder: Path) -> None:
    rank, found, decoded = rank_of(folder, False)
    first, second = (
        Placeholder("w13", (EXPERTS, 2 * INNER, WIDTH), DTYPE),
        Placeholder("w2", (EXPERTS, WIDTH, INNER), DTYPE),
    )
    first.parameter.data.copy_(found["experts.up"])
    second.parameter.data.copy_(found["experts.down"])
    taken: list[RankExperts] = []

    def activation(x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    assert rank.experts(first, second, activation, None, 0.5, taken.append)
    rank.make()
    x = torch.randn(9, WIDTH, dtype=DTYPE, device="cuda")
    shares, ids = torch.rand(9, 2, device="cuda"), torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(9)]).cuda()
    expected = torch.zeros(9, WIDTH, device="cuda")
    for token in range(9):
        for share, number in zip(shares[token], ids[token].tolist(), strict=True):
            inner = activation(F.linear(x[token].float(), decoded[f"experts.up.{number}"].float()))
            expected[token] += share * F.linear(inner, decoded[f"experts.down.{number}"].float())
    close = {"atol": 0.1, "rtol": 0.05}
    assert torch.allclose(taken[0].mix(x, shares, ids).float(), expected, **close)
    graph, out = captured(lambda: taken[0].mix(x, shares, ids))
    for order in (ids, ids.flip(1)):
        # Routes of tokens may change from one replay to the next.
        ids.copy_(order.clone())
        out.fill_(7)
        graph.replay()
        assert torch.allclose(out.float(), taken[0].mix(x, shares, ids).float(), **close)


def test_compiled_into_graphs(folder: Path) -> None:
    layer, weight = merged(folder, False)
    marked = ops.marker(layer, DTYPE, torch.device("cuda"))

    def run(x: Any) -> Any:
        return ops.linear(x * 2, marked, None, 192) + 1

    x = torch.randn(5, WIDTH, dtype=DTYPE, device="cuda")
    with torch.inference_mode():
        found = torch.compile(run, fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            out = found(x)
        assert torch.allclose(out.float(), F.linear(x.float() * 2, weight.float()) + 1, atol=0.03, rtol=0.02)
