"""Decoder layers of many architectures on a GPU: what launches give beside what modules give, and the same bits in
a captured graph; kernels of norms beside torch's.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gpu_helpers
import pytest
import torch.nn.functional as F
import wcodec
import wcodec.nn
from gpu_helpers import torch
from wcodec.nn._fusion import norms
from wcodec.nn._fusion.launches import Launch, Norm

from tests.gpu.test_blocks import DTYPES, counted, parts, repeats_in_a_graph
from tests.gpu.test_products import SCHEMES, WAYS, container, error, fits, poisoned, weights
from tests.nn.test_block_specs import CASES

# pytest looks for fixtures in the module.
gpu = gpu_helpers.gpu

ACTIVATIONS: dict[str, Any] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x) ** 2,
}
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "pad_token_id": 0,
}


def model_of(name: str, dtype: torch.dtype) -> Any:
    transformers = pytest.importorskip("transformers")
    kind, options, _ = CASES[name]
    torch.manual_seed(9)
    sizes = {**SIZES, **options}
    sizes["num_hidden_layers"] = len(options.get("layer_types", range(SIZES["num_hidden_layers"])))
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            one = parameter.dim() == 1 and float(parameter.mean()) > 0.5
            parameter.copy_(torch.randn_like(parameter) * 0.04 + (1 if one else 0))
    model = model.to("cuda", dtype)
    wcodec.compress_(model, progress=False, fused=False, coder="huffman")
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_captured_steps_beside_modules(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name, dtype)
    ids = torch.randint(0, 1000, (2, 7), device="cuda")
    made: list[Any] = []
    for method in ("normed", "all"):
        monkeypatch.setattr(Launch, method, counted(made, getattr(Launch, method)))
    with torch.no_grad():
        exact = copy.deepcopy(model).to(torch.float32)
        wcodec.decompress_(exact)
        # Experts are multiplied by an operator that has no float64.
        exact = exact(ids).logits.double()
        decoded = model(ids).logits
        wcodec.nn.fuse_(model)
        fused = model(ids).logits
        mixture = any(part in name for part in ("moe", "mixtral", "next"))
        if mixture:
            # Rounding chooses between two experts that are nearly as likely, and a whole token differs.
            assert error(fused, decoded.double()) < 0.25
        else:
            bound = 3e-2 if dtype == torch.bfloat16 else 4e-3
            assert error(fused, exact) <= 1.1 * error(decoded, exact) and error(fused, decoded.double()) < bound
        assert torch.equal(model(ids).logits, fused)
        assert made
        x = ids[:, :1].clone()
        if mixture:
            # The host looks at which experts were chosen, and no graph does.
            model(x, use_cache=False)
        else:
            repeats_in_a_graph(model, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ("rms", "layer"))
def test_norms_by_a_kernel(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    for count, cols in ((1, 64), (3, 1021), (16, 4096), (40, 9000)):
        x = (torch.randn((count, cols), generator=generator) * 2 + 0.5).to("cuda", dtype)
        residual = torch.randn((count, cols), generator=generator).to("cuda", dtype)
        gain = (torch.randn(cols, generator=generator) * 0.1).to("cuda", dtype)
        norm = Norm(gain, 1.0, 1e-5, 1.0, kind)
        after = Norm((gain * 3).contiguous(), 0.25, 1e-6, 1.0)
        wide = x.double() - (x.double().mean(-1, keepdim=True) if kind == "layer" else 0)
        want = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + gain.double())
        poisoned(count * cols, dtype)
        y, scaled = norms.run(x, norm, residual, 0.5, after)
        last = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
        exact = want * 0.5 + residual.double()
        assert ((y.double() - exact).abs() <= exact.abs() * last * 1.01 + 1e-5).all()
        assert scaled is not None and torch.equal(scaled, after.scaled(y))
        alone, nothing = norms.run(x, norm)
        assert nothing is None and ((alone.double() - want).abs() <= want.abs() * last * 1.01 + 1e-5).all()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured, again = norms.run(x, norm, residual, 0.5, after)
        captured.fill_(7)
        graph.replay()
        assert torch.equal(captured, y) and again is not None and torch.equal(again, scaled)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("scheme", "way"), [(s, w) for s in ("rows", "trellis") for w in WAYS if fits(s, w)])
def test_launches_with_activations(scheme: str, way: str, activation: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    hidden, inner = 1040, 2064
    tensors = {"gate": weights((inner, hidden), generator), "up": weights((inner, hidden), generator)}
    tensors["both"] = torch.cat([tensors["gate"], tensors["up"]])
    decoder = wcodec.GpuDecoder(container(tmp_path, tensors, **WAYS[way], **SCHEMES[scheme]))
    exact = {name: decoder.decode(name, torch.float32).double() for name in tensors}
    function = ACTIVATIONS[activation]
    for dtype in DTYPES:
        bias = (torch.randn(2 * inner, generator=generator) * 0.1).to("cuda", dtype)
        pair = Launch(parts(decoder, ("gate", "up"), dtype), [None, None], gated=True, activation=activation)
        packed = Launch(parts(decoder, ("both",), dtype), [bias], gated=True, packed=True, activation=activation)
        single = Launch(parts(decoder, ("up",), dtype), [None], activation=activation)
        for count in (1, 5, 16):
            x = torch.randn((count, hidden), generator=generator).to("cuda", dtype)
            up = x.double() @ exact["up"].T
            want = function(x.double() @ exact["gate"].T) * up
            for got, right in (
                (pair.all(x), want),
                (single.all(x), function(up)),
                (packed.all(x), _packed(function, x.double() @ exact["both"].T + bias.double())),
            ):
                rounded = right.to(dtype)
                assert error(got.view(right.shape), right) <= 1.05 * error(rounded, right) + 1e-5, (activation, count)
    decoder.check()


def _packed(function: Any, y: torch.Tensor) -> torch.Tensor:
    gate, value = y.chunk(2, -1)
    return function(gate) * value
