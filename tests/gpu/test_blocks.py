"""Blocks of Llama's kind in four launches, on a GPU: near the exact result, the same bits however they are launched.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_helpers
import pytest
import torch.nn.functional as F
import wcodec
import wcodec.nn
from gpu_helpers import torch
from wcodec.nn._fusion import launches
from wcodec.nn._fusion.launches import Launch, Norm
from wcodec.nn._weights.crossover import Kind
from wcodec.nn._weights.fused import Fused
from wcodec.nn._weights.prefetch_order import PrefetchOrder
from wcodec.nn._weights.providers_gpu import GpuProvider

from tests.gpu.test_products import SCHEMES, WAYS, container, error, fits, poisoned, weights

# pytest looks for fixtures in the module.
gpu, compiler = gpu_helpers.gpu, gpu_helpers.compiler

DTYPES = (torch.bfloat16, torch.float16)
# Nothing was measured of it, so that launches take as many vectors as there are kernels for.
KIND = Kind("int8", "none", "none")


def parts(decoder: wcodec.GpuDecoder, names: tuple[str, ...], dtype: torch.dtype) -> list[Fused]:
    return [
        Fused(decoder, name, tuple(decoder.info(name).shape), dtype, PrefetchOrder(0), decoder.most_vectors(name), KIND)
        for name in names
    ]


@pytest.mark.parametrize(
    ("scheme", "way"), [(s, w) for s in ("rows", "blocks", "scalar", "trellis") for w in WAYS if fits(s, w)]
)
def test_launches_do_what_is_around(scheme: str, way: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    # Scales of blocks are of whole blocks of columns.
    hidden, inner = (1088, 2112) if scheme == "blocks" else (1040, 2064)
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    tensors = {name: weights(shape, generator) for name, shape in shapes.items()}
    decoder = wcodec.GpuDecoder(container(tmp_path, tensors, **WAYS[way], **SCHEMES[scheme]))
    assert [decoder.can_fuse(name) for name in shapes] == [None] * 3
    exact = {name: decoder.decode(name, torch.float32).double() for name in shapes}
    for dtype in DTYPES:
        bias = (torch.randn(inner, generator=generator) * 0.1).to("cuda", dtype)
        first = Launch(parts(decoder, ("gate", "up"), dtype), [bias, None], gated=True)
        last = Launch(parts(decoder, ("down",), dtype), [None])
        both = Launch(parts(decoder, ("gate", "up"), dtype), [None, None])
        gain = (torch.rand(hidden, generator=generator) + 0.5).to("cuda", dtype)
        for count in (1, 3, 8, 16):
            h = torch.randn((count, hidden), generator=generator).to("cuda", dtype) * 3
            norm = Norm(gain, 0.25, 1e-5)
            scaled = norm.scaled(h)
            rms = (h.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
            normed = h.double() * gain.double() / rms

            poisoned(count * inner, dtype)
            y = first.normed(h, scaled, norm).view(count, inner)
            want = F.silu(normed @ exact["gate"].T + bias.double()) * (normed @ exact["up"].T)
            # Results of torch's modules, each step rounded.
            x = (gain * (h.float() / rms.float()).to(dtype)).to(dtype)
            linear = [F.linear(x, exact[n].to(dtype), b) for n, b in (("gate", bias), ("up", None))]
            plain = F.silu(linear[0]) * linear[1]
            assert error(y, want) <= error(plain, want), (scheme, dtype, count)

            poisoned(2 * count * inner, dtype)
            flat = both.normed(h, scaled, norm).split([count * inner] * 2)
            for part, name in zip(flat, ("gate", "up"), strict=True):
                want = normed @ exact[name].T
                plain = F.linear(x, exact[name].to(dtype))
                assert error(part.view(count, inner), want) <= error(plain, want)

            poisoned(count * hidden, dtype)
            z, again = last.added(y, h, norm)
            want = h.double() + y.double() @ exact["down"].T
            plain = h + F.linear(y, exact["down"].to(dtype))
            assert error(z, want) <= 1.05 * error(plain, want)
            assert again is not None and torch.equal(again, norm.scaled(z))
            alone, nothing = last.added(y, h, None)
            assert nothing is None and torch.equal(alone, z)

            # Bits are the same for fewer vectors (but not for one alone), in another stream, and from a graph.
            assert torch.equal(first.normed(h[-2:], scaled[-2:], norm), y[-2:].view(-1))
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                aside = first.normed(h, scaled, norm)
            graphs = []
            for _ in range(6):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = first.normed(h, scaled, norm)
                graphs.append((graph, captured))
            torch.cuda.synchronize()
            assert torch.equal(aside, y.view(-1))
            for graph, captured in graphs:
                for _ in range(2):
                    captured.fill_(float("nan"))
                    graph.replay()
                    assert torch.equal(captured, y.view(-1))
    decoder.check()


@pytest.mark.parametrize("scheme", ("rows", "scalar", "trellis"))
def test_gates_and_residuals_of_many_tokens(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if no number of tokens were faster with decoded weights.
    monkeypatch.setattr(launches.crossover, "tokens", lambda *_: 1 << 10)
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    shapes = {"gate": (2064, 1040), "up": (2064, 1040), "down": (1040, 2064)}
    tensors = {name: weights(shape, generator) for name, shape in shapes.items()}
    decoder = wcodec.GpuDecoder(container(tmp_path, tensors, **WAYS["quad"], **SCHEMES[scheme]))
    most = decoder.most_vectors("gate")
    exact = {name: decoder.decode(name, torch.float32).double() for name in shapes}
    for dtype in DTYPES:
        first = Launch(parts(decoder, ("gate", "up"), dtype), [None, None], gated=True)
        last = Launch(parts(decoder, ("down",), dtype), [None])
        assert first.limit == most * 1040
        norm = Norm(torch.rand(1040, generator=generator).to("cuda", dtype), 0.5, 1e-5)
        for count in (n for n in (13, 17, 31, 64, 65, 128) if n <= most):
            h = torch.randn((count, 1040), generator=generator).to("cuda", dtype)
            poisoned(count * 2064, dtype)
            y = first.all(h).view(count, 2064)
            want = F.silu(h.double() @ exact["gate"].T) * (h.double() @ exact["up"].T)
            plain = F.silu(F.linear(h, exact["gate"].to(dtype))) * F.linear(h, exact["up"].to(dtype))
            assert error(y, want) <= error(plain, want), (scheme, dtype, count)
            z, scaled = last.added(y, h, norm)
            want = h.double() + y.double() @ exact["down"].T
            assert error(z, want) <= 1.05 * error(h + F.linear(y, exact["down"].to(dtype)), want)
            assert scaled is not None and torch.equal(scaled, norm.scaled(z))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = first.all(h)
            captured.fill_(float("nan"))
            graph.replay()
            assert torch.equal(captured, y.view(-1))
        # The norm of more is a step of its own.
        if most > wcodec.ProductBatch.MOST_NORMED:
            h = torch.zeros((wcodec.ProductBatch.MOST_NORMED + 1, 1040), dtype=dtype, device="cuda")
            with pytest.raises(wcodec.WcodecError, match="behind a norm"):
                first.normed(h, h, norm)
    decoder.check()


def test_large_activations_in_float16(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = {"w": weights((128, 512), generator) * 1e-2}
    decoder = wcodec.GpuDecoder(container(tmp_path, tensors, scheme="rate", bits=4.0, coder="huffman"))
    launch = Launch(parts(decoder, ("w",), torch.float16), [None])
    gain = torch.full((512,), 6.0, device="cuda", dtype=torch.float16)
    for size in (1e4, 6e4, 1e-3):
        h = (torch.rand((2, 512), generator=generator, dtype=torch.float64) * size).to("cuda", torch.float16)
        norm = Norm(gain, 1 / 8, 1e-6)
        y = launch.normed(h, norm.scaled(h), norm).view(2, 128)
        normed = h.double() * 6 / (h.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        assert error(y, normed @ decoder.decode("w", torch.float32).double().T) < 2**-9


def test_damaged_gates_give_nan(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = {name: weights((512, 2048), generator) for name in ("gate", "up")}
    path = container(tmp_path, tensors, scheme="rate", bits=4.0, coder="huffman")
    h = torch.ones((2, 2048), dtype=torch.bfloat16, device="cuda")
    norm = Norm(torch.ones(2048, dtype=torch.bfloat16, device="cuda"), 1.0, 1e-5)
    found = 0
    for name in tensors:
        with wcodec.open(path) as opened:
            (data,) = [s for s in opened[name].segments if s.role == "data"]
        stored = bytearray(path.read_bytes())
        middle = data.offset + data.length // 2
        stored[middle : middle + 16] = bytes(255 - b for b in stored[middle : middle + 16])
        broken = tmp_path / "broken.wcodec"
        broken.write_bytes(stored)
        decoder = wcodec.GpuDecoder(broken, check=False)
        launch = Launch(parts(decoder, ("gate", "up"), torch.bfloat16), [None, None], gated=True)
        for _ in range(2):
            nan = launch.normed(h, h, norm).view(2, 512).isnan()
            assert (nan.view(2, -1, 16).float().mean(-1) % 1 == 0).all() and not nan.all()
        if nan.any():
            found += 1
            with pytest.raises(wcodec.CorruptError, match=f"tensor '{name}'"):
                decoder.check()
    assert found


def llama(dtype: torch.dtype, kind: str = "Llama", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(9)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.04 + (1 if p.dim() == 1 else 0))
    model = model.to("cuda", dtype)
    wcodec.compress_(model, calibrate=False, progress=False, fused=False, coder="huffman", **options)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", (None, 4.0))
def test_models_in_blocks(bits: float | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(dtype, **({} if bits is None else {"bits": bits}))
    made: list[Any] = []
    monkeypatch.setattr(Launch, "added", counted(made, Launch.added))
    ids = torch.randint(0, 1000, (2, 7), device="cuda")
    with torch.no_grad():
        exact = _exact(model)(ids).logits
        decoded = model(ids).logits
        wcodec.nn.fuse_(model, groups=False, blocks=False)
        alone = model(ids).logits
        wcodec.nn.fuse_(model, blocks=False)
        assert torch.equal(model(ids).logits, alone)
        assert not made
        wcodec.nn.fuse_(model)
        fused = model(ids).logits
        assert len(made) == 8
        bound = 2e-2 if dtype == torch.bfloat16 else 3e-3
        assert error(fused, exact) <= 1.05 * error(decoded, exact) and error(fused, decoded.double()) < bound
        assert torch.equal(model(ids).logits, fused)
        # Nothing is handed on from block to block here, and bits are the same.
        with torch.inference_mode():
            assert torch.equal(model(ids).logits, fused)
        # A sequence alone gives what it gives beside others: products do; attention of torch may not.
        assert error(model(ids[:1]).logits, fused[:1].double()) < bound
        repeats_in_a_graph(model, ids[:, :1].clone())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ("Llama", "Qwen2"))
def test_blocks_of_many_tokens(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded weights, one product for q, k and v, and norms of one kernel."""
    model = llama(dtype, kind)
    ids = torch.randint(0, 1000, (2, wcodec.ProductBatch.MOST // 2 + 1), device="cuda")
    below: list[Any] = []
    real = GpuProvider.apply_below
    monkeypatch.setattr(GpuProvider, "apply_below", lambda *args: below.append(real(*args)) or below[-1])
    with torch.no_grad():
        exact = _exact(model)(ids).logits
        decoded = model(ids).logits
        wcodec.nn.fuse_(model, blocks=False)
        assert torch.equal(model(ids).logits, decoded) and not below
        wcodec.nn.fuse_(model)
        fused = model(ids).logits
        assert len(below) == 4 and all(y.shape == (*ids.shape, 768) for y in below)
        bound = 2e-2 if dtype == torch.bfloat16 else 3e-3
        assert error(fused, exact) <= 1.05 * error(decoded, exact) and error(fused, decoded.double()) < bound
        assert torch.equal(model(ids).logits, fused)
        with torch.inference_mode():
            assert torch.equal(model(ids).logits, fused)
        x = ids.clone()
        want = model(x, use_cache=False).logits
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x, use_cache=False).logits
        out.fill_(7)
        # An eager pass in between has the other memory.
        model(ids[:, :20])
        graph.replay()
        assert torch.equal(out, want)
        x.fill_(3)
        graph.replay()
        assert torch.equal(out, model(x, use_cache=False).logits)
        # A prompt, and tokens behind it.
        text = model.generate(ids, max_new_tokens=6, do_sample=False)
        assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), text)


def test_blocks_without_loss_keep_their_bits() -> None:
    model = llama(torch.bfloat16, scheme="lossless")
    ids = [torch.randint(0, 1000, (1, tokens), device="cuda") for tokens in (3, 40)]
    with torch.no_grad():
        want = [model(i).logits for i in ids]
        wcodec.nn.fuse_(model)
        assert all(torch.equal(model(i).logits, logits) for i, logits in zip(ids, want, strict=True))


def repeats_in_a_graph(model: Any, x: torch.Tensor) -> None:
    """A captured step gives what the model gives, again and again, and for other tokens."""
    want = model(x, use_cache=False).logits
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x, use_cache=False).logits
    for _ in range(2):
        out.fill_(7)
        graph.replay()
        assert torch.equal(out, want)
    x.fill_(3)
    graph.replay()
    assert torch.equal(out, model(x, use_cache=False).logits)


def counted(made: list[Any], method: Any) -> Any:
    def counted(self: Any, *args: Any) -> Any:
        made.append(args)
        return method(self, *args)

    return counted


def _exact(model: Any) -> Any:
    """The model in float64, on the CPU for what a GPU has no kernels for."""
    import copy

    exact = copy.deepcopy(model).to(torch.float32)
    wcodec.decompress_(exact)
    return exact.double()


@pytest.mark.parametrize("blocks", (False, True), ids=("layers", "blocks"))
@pytest.mark.parametrize("bits", (None, 4.0))
def test_the_same_bits_in_every_residency(bits: float | None, blocks: bool, tmp_path: Path) -> None:
    model = llama(torch.bfloat16, **({} if bits is None else {"bits": bits}))
    wcodec.save_pretrained(model, tmp_path / "model")
    # Loaded as the others, it has their rotations, too: in float32.
    model = wcodec.load_model(tmp_path / "model", device="cuda", dtype=torch.bfloat16, progress=False)
    wcodec.nn.fuse_(model, groups=blocks, blocks=blocks)
    ids = [torch.randint(0, 1000, shape, device="cuda") for shape in ((1, 1), (2, 7), (1, 40), (1, 1), (1, 16))]
    with torch.no_grad():
        want = [model(i).logits for i in ids]
    for residency, budget in (("host", None), ("disk", None), ("auto", "17MB" if bits is None else "12.5MB")):
        other = wcodec.load_model(
            tmp_path / "model", device="cuda", dtype=torch.bfloat16, residency=residency, vram_budget=budget,
            fused=False, progress=False,
        )  # fmt: skip
        with torch.no_grad():
            decoded = other(ids[0]).logits
            wcodec.nn.fuse_(other, groups=blocks, blocks=blocks)
            kept = set()
            for _ in range(3):
                for i, logits in zip(ids, want, strict=True):
                    assert torch.equal(other(i).logits, logits), residency
                kept.add(torch.cuda.memory_allocated())
        assert not torch.equal(decoded, want[0]) and len(kept) == 1
        layer = other.model.layers[1].mlp.down_proj
        assert layer.residency != "device" or residency == "auto"


def test_compiled_models_in_blocks(compiler: None) -> None:
    model = llama(torch.bfloat16)
    wcodec.nn.fuse_(model)
    ids = torch.randint(0, 1000, (1, 1), device="cuda")
    with torch.no_grad():
        want = model(ids, use_cache=False).logits
        compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert error(compiled(ids, use_cache=False).logits, want.double()) < 0.02


def test_graphs_keep_what_they_write_to() -> None:
    model = llama(torch.float16)
    wcodec.nn.fuse_(model)
    x = torch.randint(0, 1000, (1, 1), device="cuda")
    with torch.no_grad():
        want = model(x, use_cache=False).logits
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x, use_cache=False).logits
        # Other launches for the same layers; and what took the memory of those before.
        wcodec.nn.fuse_(model, False)
        wcodec.nn.fuse_(model)
        model.to("cuda")
        model(x, use_cache=False)
        taken = [torch.full((256,), -1, dtype=torch.int32, device="cuda") for _ in range(64)]
        graph.replay()
        assert torch.equal(out, want) and all(bool((t == -1).all()) for t in taken)
        # A weight that changes counts in graphs, too.
        model.model.layers[1].input_layernorm.weight.data.mul_(1.5)
        graph.replay()
        assert torch.equal(out, model(x, use_cache=False).logits) and not torch.equal(out, want)


def test_graphs_that_are_there_at_the_end() -> None:
    program = """
import torch, wcodec, wcodec.nn
layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).to("cuda", torch.bfloat16)
wcodec.compress_(layers, progress=False, coder="huffman")
graphs = []
with torch.no_grad():
    x = torch.randn(1, 256, device="cuda", dtype=torch.bfloat16)
    for fused in (False, True):
        wcodec.nn.fuse_(layers, fused)
        layers(x)
        for _ in range(20):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                layers(x)
torch.keep = graphs
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr


def test_gates_and_values_of_two_kernels_and_many_threads(tmp_path: Path) -> None:
    import threading

    generator = torch.Generator().manual_seed(7)
    tensors = {name: weights((1024, 512), generator) for name in ("gate", "up")}
    path = container(tmp_path, tensors, scheme="int8", coder="huffman", rules={"up": {"coder": "rans"}})
    decoder = wcodec.GpuDecoder(path)
    launch = Launch(parts(decoder, ("gate", "up"), torch.bfloat16), [None, None], gated=True)
    h = torch.randn((4, 512), generator=generator).to("cuda", torch.bfloat16)
    norm = Norm(torch.ones(512, dtype=torch.bfloat16, device="cuda"), 1.0, 1e-5)
    want = launch.normed(h, h, norm)
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not torch.equal(launch.normed(h, h, norm), want):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_arrival_counters_are_of_one_stream() -> None:
    counters = launches.ArrivalCounters(100, torch.device("cuda", 0))
    first, second = counters.counters(1), counters.counters(2)
    assert first.data_ptr() != second.data_ptr() and counters.counters(1) is first
    assert first.numel() == 7 and not first.any()
    counters.forget(1)
    assert counters.counters(1) is not first
