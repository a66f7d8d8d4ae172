"""Gradients through compressed layers, on the CPU: those of the dequantized model, bit for bit."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import pytest
import small_models
import torch
import wcodec
from torch.utils.checkpoint import checkpoint
from wcodec.nn import CompressedConv1D, CompressedEmbedding, CompressedLinear
from wcodec.nn._layers.gradients import InputLayout
from wcodec.nn._weights import providers

from tests.nn.test_layers import heavy, linear

transformers = pytest.importorskip("transformers")

IDS = torch.arange(2 * 12).view(2, 12) * 7 % 90
SHAPES = [(64,), (5, 64), (1, 64), (0, 64), (2, 3, 64), (2, 1, 64), (1, 4, 64), (2, 0, 64), (2, 2, 3, 64)]


def pair(bias: bool = True, dtype: torch.dtype = torch.float32, outputs: int = 48) -> tuple[Any, Any]:
    """A compressed layer and an ordinary one with the weight that it decodes to."""
    layer = CompressedLinear.from_linear(linear(64, outputs, bias, dtype))
    return layer, layer.to_linear()


def gradients(module: Any, x: Any, seed: int = 5) -> list[Any]:
    """The output, and the gradients of the input and of what else wants one, for a random loss."""
    x = x.detach().requires_grad_()
    out = module(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    wanted = [x, *(p for p in module.parameters() if p.requires_grad)]
    for tensor in wanted:
        tensor.grad = None
    (out * weights).sum().backward()
    return [out.detach(), *(tensor.grad for tensor in wanted)]


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in zip(left, right, strict=True)
    )


def views(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Inputs of one shape that lie in memory in several ways."""
    torch.manual_seed(len(shape))
    x = torch.randn(shape, dtype=dtype)
    found = [x, torch.randn((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2]]
    for order in (tuple(range(len(shape)))[::-1], (*range(1, len(shape)), 0)):
        back = [order.index(i) for i in range(len(shape))]
        found.append(torch.randn([shape[i] for i in order], dtype=dtype).permute(back))
    return found + ([x[:1].expand(shape)] if shape[0] else [])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", ["none", "frozen", "trained"])
def test_gradients_are_those_of_the_decoded_weight(shape: tuple[int, ...], dtype: torch.dtype, bias: str) -> None:
    layer, plain = pair(bias != "none", dtype)
    if bias == "trained":
        layer.bias.requires_grad_()
        plain.bias.requires_grad_()
    for x in views(shape, dtype):
        assert same(gradients(layer, x), gradients(plain, x)), x.stride()


def test_sums_are_in_the_order_of_torch() -> None:
    # Inputs for which torch's products have other bits than the usual one.
    layer, plain = pair()
    x = torch.randn(2, 3, 64)[:, :1]
    assert not InputLayout(x).joins and same(gradients(layer, x), gradients(plain, x))
    layer = CompressedLinear.from_linear(linear(320, 1100, dtype=torch.bfloat16))
    for x in (torch.randn(320, 40).t(), torch.randn(320, 4, 10).permute(1, 2, 0)):
        x = x.bfloat16()
        assert InputLayout(x).by_columns and same(gradients(layer, x), gradients(layer.to_linear(), x))


@pytest.mark.parametrize("outputs", [1, 300])
def test_gradients_of_other_losses(outputs: int) -> None:
    # A sum's gradient has no memory of its own, a transposed one's lies the other way round.
    layer, plain = pair(outputs=outputs)
    for loss in (lambda y: y.sum(), lambda y: y.mT.contiguous().square().sum(), lambda y: y[..., 0].sum()):
        found = []
        for module in (layer, plain):
            x = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
            found.append(torch.autograd.grad(loss(module(x)), x))
        assert same(*map(list, found))


@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 64), (0, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_conv1d(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    conv = transformers.pytorch_utils.Conv1D(48, 64).to(dtype)
    layer = CompressedConv1D.from_conv1d(conv)
    plain = layer.to_conv1d()
    for module in (layer, plain):
        module.bias.requires_grad_()
    x = torch.randn(shape, dtype=dtype)
    assert same(gradients(layer, x), gradients(plain, x))
    if len(shape) == 2:
        assert same(gradients(layer, x.t().contiguous().t()), gradients(plain, x.t().contiguous().t()))


def test_layouts() -> None:
    assert not InputLayout(torch.empty(2, 3)).by_columns and InputLayout(torch.empty(3, 2).t()).by_columns
    assert InputLayout(torch.empty(64, 2, 3).permute(1, 2, 0)).by_columns
    assert not InputLayout(torch.empty(3, 2, 4).transpose(0, 1)).joins and InputLayout(torch.empty(3, 2, 4)).joins


def test_large_weights_are_decoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = linear(64, 200)
    monkeypatch.setattr(providers, "SLICE_BYTES", 4 * 64 * 48)
    layer = CompressedLinear.from_linear(plain)
    whole = layer.to_linear()
    for x in (torch.randn(3, 64), torch.randn(2, 50, 64), torch.randn(64)):
        assert same(gradients(layer, x)[1:], gradients(whole, x)[1:])
    provider = layer._weights.provider[0]
    assert isinstance(provider, providers.SlicedProvider) and len(provider._slices) == 5


@pytest.mark.parametrize("cache", [0, "1MB"])
def test_a_weight_is_decoded_again_and_not_kept(cache: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(*[linear(64, 64) for _ in range(3)])
    wcodec.compress_(model, cache=cache, progress=False)
    kept: list[torch.Tensor] = []
    x = torch.randn(4, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = model(x).sum()
    assert not any(t.numel() >= 64 * 64 for t in kept)
    decoded: list[str] = []
    store = model[0]._store
    rows = type(store).rows
    monkeypatch.setattr(type(store), "rows", lambda self, name, *a: decoded.append(name) or rows(self, name, *a))
    providers._held = None
    out.backward()
    assert bool(decoded) == (cache == 0) and x.grad is not None
    reference = copy.deepcopy(model)
    wcodec.decompress_(reference)
    assert torch.equal(x.grad, torch.autograd.grad(reference(x).sum(), x)[0])


def models(make: Any = small_models.llama, **options: Any) -> tuple[Any, Any]:
    """A model with compressed layers and the same one with ordinary layers; norms are trained in both."""
    model = make()
    wcodec.compress_(model, progress=False, **options)
    reference = copy.deepcopy(model)
    wcodec.decompress_(reference)
    for each in (model, reference):
        for name, parameter in each.named_parameters():
            parameter.requires_grad_("norm" in name or "ln_" in name)
        each.train()
    return model, reference


def trained(model: Any, **options: Any) -> dict[str, torch.Tensor]:
    loss = model(IDS, labels=IDS, use_cache=False, **options).loss
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    assert all(grad is not None and grad.abs().sum() > 0 for grad in found.values())
    return {"loss": loss.detach(), **found}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_a_llama() -> None:
    model, reference = models()
    want = trained(reference)
    assert len(want) == 6 and equal(trained(model), want)
    # Adapters in front of checkpoints have transformers do this.
    model.enable_input_require_grads()
    assert model.get_input_embeddings()(IDS).requires_grad and equal(trained(model), want)
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert equal(trained(model), want)


def test_a_gpt2() -> None:
    model, reference = models(lambda: small_models.gpt2().apply(without_dropout))
    assert any(isinstance(m, CompressedConv1D) for m in model.modules())
    for each in (model, reference):
        for parameter in each.parameters():
            parameter.requires_grad_(parameter.dim() == 1)
    assert "transformer.h.0.mlp.c_fc.bias" in trained(reference)
    assert equal(trained(model), trained(reference))


def without_dropout(module: torch.nn.Module) -> None:
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts(dtype: torch.dtype) -> None:
    model, reference = models(lambda: small_models.mixtral().to(dtype))
    reference.set_experts_implementation("eager")
    for each in (model, reference):
        for name, parameter in each.named_parameters():
            parameter.requires_grad_("norm" in name or "gate.weight" in name)
    kept: list[torch.Tensor] = []
    want = trained(reference)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        assert equal(trained(model), want)
    assert not any(tuple(t.shape[-2:]) in ((96, 32), (32, 96), (48, 32), (32, 48)) for t in kept)
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        assert equal(trained(model), want)
    if dtype == torch.float32:
        model.gradient_checkpointing_disable()
        with torch.autocast("cpu", torch.bfloat16):
            assert equal(trained(model), trained(reference))


def test_matrices_of_experts_are_tensors_for_all_else() -> None:
    model, _ = models(small_models.mixtral)
    experts = next(m for m in model.modules() if type(m).__name__ == "CompressedExperts")
    x = torch.randn(3, 32, requires_grad=True)
    want = experts.gate_up_proj[1]
    found = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        matrix = self.gate_up_proj[1]
        found.append(type(matrix).__name__)
        assert matrix.shape == want.shape and torch.equal(torch.nn.functional.linear(x, weight=matrix), x @ want.t())
        return x @ matrix.t() + torch.matmul(x, torch.transpose(matrix, 0, 1))

    experts._forward = forward
    (grad,) = torch.autograd.grad(experts(x).sum(), x)
    assert found == ["RecordedMatrix"] and torch.allclose(grad[0], 2 * want.sum(0), atol=1e-4)


def test_autocast() -> None:
    layer = CompressedLinear.from_linear(linear(64, 48))
    low = copy.deepcopy(layer).to(torch.bfloat16).to_linear()
    x = torch.randn(2, 3, 64)
    layer.bias.requires_grad_()
    low.bias.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(layer, x)
    want = gradients(low, x.bfloat16())
    assert [g.dtype for g in found] == [torch.bfloat16, torch.float32, torch.float32]
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(found, want, strict=True))
    # A model, with checkpoints whose backward pass is inside and outside.
    model, reference = models()
    with torch.autocast("cpu", torch.bfloat16):
        want = trained(reference)
        assert equal(trained(model), want)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
        assert equal(trained(model), want)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_compiled(name: str) -> None:
    torch._dynamo.reset()
    model, _ = models(lambda: getattr(small_models, name)().apply(without_dropout))
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() == 1)
    want = trained(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    logits = compiled(IDS, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten())
    loss.backward()
    torch.testing.assert_close(loss, want["loss"])
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, want[key], atol=1e-6, rtol=1e-4)
    torch._dynamo.reset()


def test_compiled_models_run_their_experts_as_they_are() -> None:
    torch._dynamo.reset()
    model, _ = models(small_models.mixtral)
    want = trained(model)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(IDS).logits, model(IDS).logits)
    assert want.keys() == (found := trained_by(compiled, model)).keys()
    for key, grad in want.items():
        torch.testing.assert_close(found[key], grad, atol=1e-6, rtol=1e-4)
    torch._dynamo.reset()


def trained_by(compiled: Any, model: Any) -> dict[str, torch.Tensor]:
    loss = compiled(IDS, labels=IDS, use_cache=False).loss
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters() if p.requires_grad}}


def test_operators_say_what_they_do() -> None:
    layer, _ = pair()
    layer.bias.requires_grad_()
    x = torch.randn(2, 3, 64, requires_grad=True)
    torch.library.opcheck(torch.ops.wcodec.linear, (x, layer.bias, layer._handle, 48))
    torch.library.opcheck(torch.ops.wcodec.linear_gradient, (torch.randn(2, 48), layer._handle, 64))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_around_layers(reentrant: bool) -> None:
    model = torch.nn.Sequential(linear(64, 64), torch.nn.GELU(), linear(64, 64))
    wcodec.compress_(model, progress=False)
    x = torch.randn(4, 64)
    want = gradients(model, x)
    assert same(gradients(lambda_of(lambda v: checkpoint(model, v, use_reentrant=reentrant)), x), want)


def lambda_of(function: Any) -> Any:
    module = torch.nn.Module()
    module.forward = function
    return module


def test_what_is_not_recorded() -> None:
    layer, _ = pair()
    x = torch.randn(2, 64, requires_grad=True)
    with torch.no_grad():
        assert not layer(x).requires_grad
    assert not layer(x.detach()).requires_grad
    with torch.inference_mode():
        assert layer.train()(x).is_inference()
    table = CompressedEmbedding.from_embedding(torch.nn.Embedding(100, 64))
    assert not table(torch.tensor([3])).requires_grad


def test_refusals() -> None:
    layer, _ = pair()
    with pytest.raises(wcodec.InputError, match=r"'weight': compressed weights cannot be trained \(.*LoRA"):
        layer.requires_grad_()
    assert layer.requires_grad_(False) is layer
    model = torch.nn.Sequential(layer, torch.nn.LayerNorm(48))
    model.requires_grad_(True)
    assert layer.bias.requires_grad and len(list(model.parameters())) == 3
    x = torch.randn(2, 64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
    out = layer(x)
    layer.load_state_dict(CompressedLinear.from_linear(linear(64, 48, dtype=torch.bfloat16)).float().state_dict())
    with pytest.raises(wcodec.InputError, match="replaced between"):
        out.sum().backward()


def test_graphs_end_with_what_they_are_of() -> None:
    layer, _ = pair()
    out = layer(torch.randn(2, 64, requires_grad=True))
    del layer
    gc.collect()
    out.sum().backward()


def test_threads() -> None:
    model, reference = models()
    want = torch.autograd.grad(reference.model(IDS).last_hidden_state.sum(), reference.model.norm.weight)
    found: list[bool] = []

    def work() -> None:
        for _ in range(5):
            out = model.model(IDS).last_hidden_state.sum()
            found.append(torch.equal(torch.autograd.grad(out, model.model.norm.weight)[0], want[0]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 15


def test_input_gradients_of_a_whole_model() -> None:
    model, reference = models()
    x = heavy(2 * 12, 32).view(2, 12, 32)
    found = [
        torch.autograd.grad(each(inputs_embeds=v, labels=IDS, use_cache=False).loss, v)[0]
        for each in (model, reference)
        for v in [x.clone().requires_grad_()]
    ]
    assert torch.equal(*found)
