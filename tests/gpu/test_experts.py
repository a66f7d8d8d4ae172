"""Experts of mixtures on a GPU, multiplied with straight from their compressed weights.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_helpers
import pytest
import wcodec
import wcodec.nn
from gpu_helpers import torch

# pytest looks for fixtures in the module.
gpu = gpu_helpers.gpu

EXPERTS, EACH, WIDE, INNER = 8, 2, 256, 192


def mixture(**options: Any) -> Any:
    """A mixture whose experts are compressed."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(gpu_helpers.seed())
    config = transformers.MixtralConfig(
        hidden_size=WIDE, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=97, max_position_embeddings=64, num_local_experts=EXPERTS, num_experts_per_tok=EACH,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, experts_implementation="eager",
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                # Not uniform: of such weights int8 has nothing to code.
                p.copy_(torch.randn(p.shape) * 0.05 * (1 + 8 * (torch.rand(p.shape) < 0.002)))
    model = model.to("cuda", torch.bfloat16)
    wcodec.compress_(model, calibrate=False, progress=False, fused=False, **{"coder": "huffman", **options})
    return model


def experts_of(model: Any) -> Any:
    return model.model.layers[0].mlp.experts


def routes(tokens: int) -> tuple[Any, Any, Any]:
    x = torch.randn((tokens, WIDE), device="cuda", dtype=torch.bfloat16)
    chosen = torch.stack([torch.randperm(EXPERTS)[:EACH] for _ in range(tokens)]).cuda()
    return x, chosen, torch.rand((tokens, EACH), device="cuda", dtype=torch.bfloat16)


def computed(layer: Any, x: Any, chosen: Any, weights: Any) -> Any:
    """The exact result: in float64, with weights that are not rounded."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for token, experts in enumerate(chosen.tolist()):
        for place, expert in enumerate(experts):
            names = layer._names[expert]
            matrices = [layer._store.entry(name).torch(torch.float32).double().cuda() for name in names]
            split = layer._parts[0]
            gate, up = (torch.cat(matrices[:split]) @ x[token].double()).chunk(2)
            value = torch.cat(matrices[split:]) @ (torch.nn.functional.silu(gate) * up)
            out[token] += value * weights[token, place].double()
    return out


def error(y: Any, exact: Any) -> float:
    return float((y.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize(
    "options",
    ({}, {"layout": "quad"}, {"bits": 4.0, "layout": "quad", "table_bits": 10}, {"bits": 3.5, "coder": "rans"}),
    ids=("int8", "int8 quad", "rate quad", "rate rans"),
)
def test_experts_are_multiplied_with_together(options: dict[str, Any]) -> None:
    model = mixture(**options)
    layer = experts_of(model)
    with torch.inference_mode():
        most = min(layer._store.decoder(name, layer._device).most_vectors(name) for name in layer.tensors)
        for tokens in (n for n in (1, 2, 5, 8, 20, 32) if n * EACH <= most):
            given = routes(tokens)
            wcodec.nn.fuse_(model, False)
            decoded = layer(*given)
            wcodec.nn.fuse_(model)
            torch.full((1 << 16,), float("nan"), dtype=torch.bfloat16, device="cuda")
            fused = layer(*given)
            assert layer._routed_product[1] is not None, "no kernel multiplies with them"
            want = computed(layer, *given)
            # Less is rounded on the way.
            assert error(fused, want) <= 1.05 * error(decoded, want) < 0.02
            assert torch.equal(layer(*given), fused)
        # Too many tokens are decoded for, as before.
        many = routes(33)
        wcodec.nn.fuse_(model, False)
        want = layer(*many)
        wcodec.nn.fuse_(model)
        assert torch.equal(layer(*many), want)
    ids = torch.arange(1, 9, device="cuda")[None]
    # Random weights may well choose the token that ends a text.
    out = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    assert out.shape == (1, 14)


def test_experts_that_are_streamed_give_the_same_bits(tmp_path: Path) -> None:
    model = mixture()
    wcodec.save_pretrained(model, tmp_path / "model")
    given = routes(3)
    results = []
    for residency in ("device", "host", "disk"):
        loaded = wcodec.load_model(tmp_path / "model", device="cuda", residency=residency, dtype=torch.bfloat16)
        layer = experts_of(loaded)
        wcodec.nn.fuse_(loaded)
        with torch.inference_mode():
            results += [layer(*given) for _ in range(3)]
            assert layer._routed_product[1] is not None
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_damaged_expert_is_named_and_spoils_no_other(tmp_path: Path) -> None:
    tensors = {name: torch.randn(64, 512) for name in ("expert.0", "expert.1")}
    path = tmp_path / "experts.wcodec"
    wcodec.compress(tensors, path, scheme="rate", bits=4.0, coder="huffman", layout="quad", progress=False)
    with wcodec.open(path) as opened:
        (data,) = [s for s in opened["expert.1"].segments if s.role == "data"]
    found = 0
    for place in range(data.offset, data.offset + data.length - 8, data.length // 7):
        stored = bytearray(path.read_bytes())
        stored[place : place + 8] = bytes(255 - b for b in stored[place : place + 8])
        (tmp_path / "broken.wcodec").write_bytes(stored)
        decoder = wcodec.GpuDecoder(tmp_path / "broken.wcodec", check=False)
        x = torch.randn((2, 512), device="cuda", dtype=torch.bfloat16)
        wrong, right = decoder.products([("expert.1", None), ("expert.0", None)], vectors=[1, 0])(x)
        assert torch.isfinite(right).all()
        if wrong.isnan().any():
            found += 1
            with pytest.raises(wcodec.CorruptError, match="tensor 'expert.1'"):
                decoder.check()
    assert found >= 3


def test_each_factor_has_its_vector() -> None:
    names = ("a", "b", "c")
    # Large enough that a table pays for itself, whatever the numbers are: what is stored raw no kernel multiplies with.
    shapes = {n: ((n == "b") * 32 + 48, 1280) for n in names}
    tensors = {n: torch.randn(s) * 0.05 * (1 + 8 * (torch.rand(s) < 0.003)) for n, s in shapes.items()}
    decoder = wcodec.GpuDecoder(wcodec.compress_to_bytes(tensors, coder="huffman", layout="quad")[0])
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn((16, 1280), device="cuda", dtype=dtype)
        order = [("c", 15), ("a", 0), ("b", 7), ("a", 3)]
        products = decoder.products([(n, None) for n, _ in order], dtype, [v for _, v in order])
        for (name, vector), got in zip(order, products(x), strict=True):
            assert torch.equal(got, decoder.products([(name, None)], dtype)(x[vector])[0])
    with pytest.raises(wcodec.InputError, match="vector 15 of 3 vectors"):
        products(x[:3])
    with pytest.raises(wcodec.InputError, match="for each factor"):
        decoder.products([("a", None)], dtype, [wcodec.ProductBatch.MOST])
