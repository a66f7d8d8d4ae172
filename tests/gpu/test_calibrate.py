"""Calibration on a GPU: the symbols that a CPU finds, and statistics of a model that comes there and goes back.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import torch

transformers = pytest.importorskip("transformers")

from wcodec._calibrate import factor as _factor  # noqa: E402
from wcodec._calibrate.quantize import quantize  # noqa: E402
from wcodec._calibrate.replay import Replays  # noqa: E402
from wcodec._calibrate.statistics import feedback_for  # noqa: E402

gpu = gpu_helpers.gpu


def inputs(cols: int) -> Any:
    x = torch.randn(4 * cols, cols) @ torch.randn(cols, cols) / cols**0.5 + torch.randn(4 * cols, cols)
    return x.T @ x / len(x)


@pytest.mark.parametrize("trellis", [False, True])
@pytest.mark.parametrize("fed", [False, True])
def test_a_gpu_finds_the_symbols_that_a_cpu_finds(trellis: bool, fed: bool) -> None:
    torch.manual_seed(1)
    # Columns that are no multiple of what a launch has.
    for rows, cols in ((64, 300), (48, 64), (64, 300)):
        h, weight = inputs(cols), torch.randn(rows, cols)
        found = []
        for device in ("cpu", "cuda"):
            known = _factor.feedback([(0, h.to(device))], trellis) if fed else None
            step = torch.full((rows,), 0.3, device=device)
            found.append(quantize(weight.to(device), known, step=step, tile=128, trellis=trellis))
        one, other = found
        # Sums of products come in another order there, and a tie falls the other way once in a while.
        assert (one.levels == other.levels.cpu()).float().mean() > 0.98
        assert torch.allclose(one.scales.float(), other.scales.cpu().float(), rtol=0.02)
        assert abs(one.bits / other.bits - 1) < 0.01
    again = quantize(weight.cuda(), known, step=step, tile=128, trellis=trellis)
    assert torch.equal(again.levels, other.levels) and torch.equal(again.scales, other.scales)


@pytest.mark.parametrize("trellis", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_a_graph_chooses_what_launches_one_by_one_choose(trellis: bool, columns: bool) -> None:
    torch.manual_seed(3)
    replays = Replays()
    # Two matrices of a shape share a graph, and others have one of their own.
    for rows, cols, widths in ((48, 300, [300]), (48, 300, [300]), (48, 300, [160, 140]), (80, 64, [64])):
        blocks = [(sum(widths[:i]), inputs(width).cuda()) for i, width in enumerate(widths)]
        known = _factor.feedback(blocks, trellis)
        if columns:
            known = known.divided(torch.rand(cols, device="cuda") + 0.5)
        weight, step = torch.randn(rows, cols, device="cuda"), torch.full((rows,), 0.3, device="cuda")
        arguments = {"step": step, "tile": 128, "trellis": trellis}
        launched = quantize(weight, known, **arguments)
        replayed = quantize(weight, known, **arguments, replays=replays)
        assert torch.equal(replayed.levels, launched.levels) and torch.equal(replayed.scales, launched.scales)
        some = torch.arange(0, rows, 3)
        prices = launched.prices
        launched = quantize(weight, known, **arguments, rows=some, prices=prices)
        replayed = quantize(weight, known, **arguments, rows=some, prices=prices, replays=replays)
        assert torch.equal(replayed.levels, launched.levels) and torch.equal(replayed.scales, launched.scales)
    # Three shapes have two graphs each: for all rows, from which prices are learned too, and for some.
    assert replays.graphs == 6
    # In another stream, which has graphs of its own.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        replayed = quantize(weight, known, **arguments, rows=some, prices=prices, replays=replays)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(replayed.levels, launched.levels) and replays.graphs == 7


def test_a_walk_that_cannot_be_captured_is_launched() -> None:
    torch.manual_seed(4)
    # A graph of the caller, which draws numbers.
    drawn, graph = torch.empty(5, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn.copy_(torch.rand(5, device="cuda"))
    replays, calls = Replays(), []
    known = _factor.feedback([(0, inputs(64).cuda())], True)
    x, weights, prices = (torch.rand(*shape, device="cuda") for shape in ((64, 8), (64,), (128,)))

    def walk(x: Any, blocks: Any, column_weights: Any, prices: Any) -> Any:
        # The host waits for a number, which no graph can have.
        calls.append(float(x.sum()))
        return (x * blocks[0].feed.sum()).round().to(torch.int8)

    for _ in range(2):
        found = replays(walk, "waits", x, known.blocks, weights, prices)
        assert torch.equal(found, walk(x, known.blocks, weights, prices))
    assert replays.graphs == 0
    # Numbers can be drawn, and the caller's graph still draws from the numbers that the caller seeds.
    assert torch.randn(5, device="cuda").isfinite().all()
    seen = []
    for seed in (1, 1, 2):
        torch.cuda.manual_seed(seed)
        graph.replay()
        seen.append(drawn.tolist())
    assert seen[0] == seen[1] != seen[2]


def test_threads_capture_one_after_the_other() -> None:
    known = _factor.feedback([(0, inputs(64).cuda())], True)

    def walk(x: Any, blocks: Any, column_weights: Any, prices: Any) -> Any:
        for _ in range(50):
            x = x + blocks[0].feed.sum()
        return x.round().to(torch.int16)

    def work(seed: int) -> int:
        replays, stream = Replays(), torch.cuda.Stream()
        for rows in range(8, 24):
            with torch.cuda.stream(stream):
                generator = torch.Generator("cuda").manual_seed(seed + rows)
                x = torch.rand((64, rows), device="cuda", generator=generator)
                weights, prices = (torch.ones(n, device="cuda") for n in (64, 128))
                found = replays(walk, "threads", x, known.blocks, weights, prices)
                assert torch.equal(found, walk(x, known.blocks, weights, prices))
        return replays.graphs

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [16] * 4


def test_memory_of_graphs_comes_back() -> None:
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().cuda()
    statistics = wcodec.collect_statistics(model, data=torch.randint(0, 300, (6, 64)))
    weights = {name: p.detach() for name, p in model.named_parameters() if p.dim() == 2}
    taken = []
    for _ in range(4):
        wcodec.compress_to_bytes(weights, scheme="rate", bits=4.0, calibrate=statistics, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        taken.append(torch.cuda.memory_reserved())
    # The first one loads what libraries keep.
    assert taken[1] == taken[2] == taken[3]


def test_a_model_is_measured_on_the_gpu_and_goes_back() -> None:
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 300, (6, 64))
    there = wcodec.collect_statistics(model, data=ids, device="cuda")
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    here = wcodec.collect_statistics(model, data=ids)
    assert there.text_hash == here.text_hash and there.model_hash == here.model_hash
    # Other predictions are drawn there.
    for name, factor in here.factors().items():
        assert there.factors()[name] == pytest.approx(factor, rel=0.2)
    # Tokens count by gradients of what is drawn, and all alike without gradients.
    there = wcodec.collect_statistics(model, data=ids, device="cuda", gradients=False)
    here = wcodec.collect_statistics(model, data=ids, gradients=False)
    for name in here.units:
        one, other = (feedback_for(s, name, trellis=True) for s in (here, there))
        assert one is not None and other is not None
        scale = float(one.blocks[0].moments.abs().max())
        assert torch.allclose(one.blocks[0].moments, other.blocks[0].moments, atol=5e-3 * scale)
    sampled = wcodec.collect_statistics(model.cuda(), windows=3, full=False)
    assert sampled.tokens == 3 * 64 and not sampled.full
