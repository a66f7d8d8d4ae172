"""Gradients through compressed layers on a GPU: those of the decoded weights, within the rounding of one product;
nothing that was decoded is kept.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import copy
import gc
from typing import Any

import gpu_helpers
import pytest
import small_models
import wcodec
from gpu_helpers import torch
from wcodec.nn import CompressedLinear
from wcodec.nn._weights import providers, providers_gpu

from tests.gpu.test_models import compressed, decoded, prompt, small

peft = pytest.importorskip("peft")

gpu, coder, compiler = gpu_helpers.gpu, gpu_helpers.coder, gpu_helpers.compiler
DEVICE = "cuda"
RESIDENCIES = ("device", "host")


def linear(inputs: int, outputs: int, bias: bool = True, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(inputs, outputs, bias).to(DEVICE, torch.bfloat16).requires_grad_(False)


def near(found: Any, grad: Any, weight: Any, roundings: int = 4) -> bool:
    """Whether a gradient is as near to the exact one as bfloat16 allows."""
    error = (found.double() - grad.double() @ weight.double()).abs()
    bound = (grad.double().abs() @ weight.double().abs()) * roundings * torch.finfo(torch.bfloat16).eps
    return bool((error <= bound + 1e-30).all())


def gradient(layer: Any, x: Any, grad: Any) -> Any:
    x = x.detach().requires_grad_()
    layer(x).backward(grad)
    return x.grad


@pytest.mark.parametrize("shape", [(3,), (40,), (2, 24), (0,)], ids=str)
def test_a_layer(coder: str, shape: tuple[int, ...]) -> None:
    layer = CompressedLinear.from_linear(linear(512, 384), coder=coder)
    layer.bias.requires_grad_()
    x = torch.randn((*shape, 512), device=DEVICE, dtype=torch.bfloat16)
    grad = torch.randn((*shape, 384), device=DEVICE, dtype=torch.bfloat16)
    found = gradient(layer, x, grad)
    assert found.dtype == torch.bfloat16 and found.shape == x.shape and near(found, grad, layer.weight)
    exact = grad.double().flatten(0, -2).sum(0)
    torch.testing.assert_close(layer.bias.grad.double(), exact, rtol=2e-2, atol=0.1)


def test_products_of_few_tokens_have_gradients_too() -> None:
    model = torch.nn.Sequential(linear(512, 384))
    wcodec.compress_(model, progress=False)
    wcodec.nn.fuse_(model)
    layer = model[0]
    layer.bias.requires_grad_()
    x = torch.randn(4, 512, device=DEVICE, dtype=torch.bfloat16)
    grad = torch.randn(4, 384, device=DEVICE, dtype=torch.bfloat16)
    assert near(gradient(layer, x, grad), grad, layer.weight) and layer.bias.grad is not None


@pytest.mark.parametrize("tokens", (20, 90))
def test_large_weights_are_decoded_in_slices(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "SLICE_BYTES", 1 << 18)
    layer = CompressedLinear.from_linear(linear(512, 2000, bias=False))
    x = torch.randn(2, tokens, 512, device=DEVICE, dtype=torch.bfloat16)
    grad = torch.randn(2, tokens, 2000, device=DEVICE, dtype=torch.bfloat16)
    assert near(layer(x), x, layer.weight.t())
    assert near(gradient(layer, x, grad), grad, layer.weight)
    assert isinstance(layer._weights.provider[0], providers_gpu.GpuSlicedProvider)


def trained(model: Any, ids: Any) -> dict[str, Any]:
    model.zero_grad()
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    return {name: p.grad.float().clone() for name, p in model.named_parameters() if p.requires_grad}


def alike(left: dict[str, Any], right: dict[str, Any], limit: float = 0.03) -> bool:
    """Whether gradients of a model differ by no more than roundings of bfloat16 do, layer after layer."""
    return left.keys() == right.keys() and all(
        (left[k] - right[k]).norm() <= limit * right[k].norm() + 1e-6 for k in left
    )


def with_norms(model: Any) -> Any:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    return model.train()


@pytest.mark.parametrize("options", [{"residency": r} for r in RESIDENCIES] + [{"cache": "2MB"}], ids=str)
def test_a_model(options: dict[str, Any]) -> None:
    original = small()
    model, plain = with_norms(compressed(original, **options)), with_norms(decoded(original))
    ids = prompt(length=48)
    want = trained(plain, ids)
    assert alike(trained(model, ids), want)
    model.enable_input_require_grads()
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert alike(trained(model, ids), want)
    model.gradient_checkpointing_disable()
    with torch.autocast("cuda", torch.bfloat16):
        assert alike(trained(model, ids), want)


def test_experts() -> None:
    original = small_models.mixtral().to(DEVICE, torch.bfloat16)
    plain = with_norms(decoded(original))
    plain.set_experts_implementation("eager")
    ids = prompt(length=40) % 90
    assert alike(trained(with_norms(compressed(original)), ids), trained(plain, ids), 0.1)


@pytest.mark.usefixtures("compiler")
def test_a_compiled_model() -> None:
    original = small(layers=2)
    model = with_norms(compressed(original))
    ids = prompt(length=48)
    want = trained(model, ids)
    run = torch.compile(model, backend="aot_eager")
    model.zero_grad()
    run(ids, labels=ids, use_cache=False).loss.backward()
    found = {name: p.grad.float() for name, p in model.named_parameters() if p.requires_grad}
    assert alike(found, want)


def test_nothing_decoded_is_kept() -> None:
    layers = [linear(1024, 1024, bias=False, seed=i) for i in range(16)]
    model = torch.nn.Sequential(*layers)
    weights = sum(layer.weight.nbytes for layer in layers)
    wcodec.compress_(model, progress=False, fused=False)
    del layers
    x = torch.randn(8, 1024, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    model(x).sum().backward()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model(x).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < weights / 8


def test_lora() -> None:
    original = small()
    curves = []
    for each in (compressed(original), decoded(original)):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(each, config).train()
        adapters = [p for p in model.parameters() if p.requires_grad]
        assert {p.device.type for p in adapters} == {"cuda"}
        optimizer, ids, curve = torch.optim.AdamW(adapters, lr=1e-2), prompt(length=48), []
        for _ in range(8):
            loss = model(ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    torch.testing.assert_close(*curves, rtol=0.05, atol=0.05)
    assert curves[0][-1] < curves[0][0]


def test_a_layer_that_moves() -> None:
    layer = CompressedLinear.from_linear(linear(256, 128, bias=False))
    x = torch.randn(20, 256, device=DEVICE, dtype=torch.bfloat16)
    grad = torch.randn(20, 128, device=DEVICE, dtype=torch.bfloat16)
    on_cpu = copy.deepcopy(layer).cpu()
    assert near(gradient(layer, x, grad), grad, layer.weight)
    assert near(gradient(on_cpu, x.cpu(), grad.cpu()).to(DEVICE), grad, layer.weight)
