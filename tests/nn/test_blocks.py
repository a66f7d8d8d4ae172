"""Layers that are launched together, and blocks of Llama's kind: which modules they are found in, and that a model
computes what it did. Launches are played by torch, in float64, where the kernels' tests need a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import wcodec
import wcodec.nn
from wcodec.nn._fusion import blocks, groups, halves, launches, recognize
from wcodec.nn._fusion.spec import NormSpec
from wcodec.nn._layers import pattern

transformers = pytest.importorskip("transformers")
from transformers.utils.deprecation import deprecate_kwarg  # noqa: E402

_log: list[str] = []
ACTIVATIONS: dict[str, Any] = {
    "none": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu_squared": lambda x: F.relu(x) ** 2,
}


class Played:
    """A launch that torch computes, of so many tokens at most."""

    tokens = 16

    def __init__(self, layers: Any, epilogue: Any) -> None:
        self.layers, self.epilogue = layers, epilogue
        self.limit = self.tokens * layers[0].in_features

    def _products(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for layer in self.layers:
            bias = None if layer.bias is None else layer.bias.double()
            found.append(F.linear(x.double(), layer.weight.double(), bias))
        return found

    def all(self, x: torch.Tensor) -> torch.Tensor:
        _log.append(f"all {len(self.layers)}")
        return torch.cat([y.reshape(-1) for y in self._joined(self._products(x))]).to(x.dtype)

    def normed(self, h: torch.Tensor, scaled: torch.Tensor, norm: Any) -> torch.Tensor:
        _log.append(f"normed {len(self.layers)}")
        assert torch.equal(scaled, norm.scaled(h))
        by = 1 / norm.scale / (h.double().pow(2).mean(-1, keepdim=True) + norm.epsilon).sqrt()
        parts = self._products(scaled.double() * by)
        return torch.cat([y.reshape(-1) for y in self._joined(parts)]).to(h.dtype)

    def _joined(self, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        activate = ACTIVATIONS[self.epilogue.activation]
        if not self.epilogue.gated:
            return [activate(y) for y in parts]
        gate, value = parts[0].chunk(2, -1) if self.epilogue.packed else parts
        return [activate(gate) * value]

    def added(self, x: torch.Tensor, residual: torch.Tensor, norm: Any, multiplier: float = 1.0) -> Any:
        _log.append("added" if norm is None else "added and scaled")
        y = (residual.double() + self._products(x)[0] * multiplier).to(residual.dtype)
        return y, None if norm is None else norm.scaled(y)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    def make_launch(layers: Any, epilogue: Any = launches.NO_EPILOGUE) -> Any:
        for layer in layers:
            layer._weights.provider or layer._weights.prepared()
        return Played(layers, epilogue), [(layer, layer._weights.provider) for layer in layers]

    monkeypatch.setattr(launches, "make_launch", make_launch)
    monkeypatch.setattr(groups, "KINDS", {"cpu"})
    monkeypatch.setattr(blocks, "KINDS", {"cpu"})
    _log.clear()
    yield _log


def llama(kind: str = "Llama", dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    torch.manual_seed(5)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 101,
        "max_position_embeddings": 64,
    }
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **more})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.08 + (1 if p.dim() == 1 else 0))
    model = model.to(dtype)
    wcodec.compress_(model, progress=False, fused=False)
    return model


IDS = torch.tensor([[5, 17, 3, 99, 4], [1, 2, 3, 4, 5]])
BLOCK = ["normed 3", "added and scaled", "normed 2", "added and scaled"]


@pytest.mark.parametrize("kind", ("Llama", "Qwen2", "Qwen3", "Mistral"))
def test_blocks_compute_what_they_did(kind: str, played: list[str]) -> None:
    model = llama(kind)
    with torch.no_grad():
        want = model(IDS).logits
        assert wcodec.nn.fuse_(model) == 22
        got = model(IDS).logits
        assert played == BLOCK + BLOCK + [*BLOCK[:3], "added"]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        # A word at a time, with the words before in a cache.
        played.clear()
        wanted = model.generate(IDS, max_new_tokens=4, do_sample=False)
        assert played.count("normed 2") == 12
        wcodec.nn.fuse_(model, blocks=False)
        played.clear()
        torch.testing.assert_close(model(IDS).logits, want, rtol=1e-5, atol=1e-5)
        assert played == ["all 3", "all 2"] * 3
        assert torch.equal(model.generate(IDS, max_new_tokens=4, do_sample=False), wanted)
        played.clear()
        wcodec.nn.fuse_(model, groups=False, blocks=False)
        assert torch.equal(model(IDS).logits, want) and not played
        wcodec.nn.fuse_(model)
        wcodec.nn.fuse_(model, False)
        assert torch.equal(model(IDS).logits, want) and not played


def test_what_is_not_taken(played: list[str]) -> None:
    model = llama()
    wcodec.nn.fuse_(model)
    # Gradients, training, autocast.
    want = model(IDS).logits
    assert not played
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            model(IDS)
        assert not played
        # Dropout is not in the launches of a block, and layers have none.
        model.train()(IDS)
        assert played == ["all 3", "all 2"] * 3
        model.eval()
        played.clear()
        # A block with a hook runs as before; blocks without one are fused.
        seen: list[Any] = []
        hook = model.model.layers[1].self_attn.register_forward_hook(lambda m, a, y: seen.append(y))
        got = model(IDS).logits
        # The block's modules run one by one, with those of one input still together.
        assert len(seen) == 1 and played == [*BLOCK, "all 3", "all 2", *BLOCK[:3], "added"], played
        hook.remove()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        hook = model.model.layers[1].self_attn.k_proj.register_forward_pre_hook(lambda m, a: seen.append(a))
        torch.testing.assert_close(model(IDS).logits, want, rtol=1e-4, atol=1e-4)
        assert len(seen) == 2
        hook.remove()


@pytest.mark.parametrize("kind", ("Llama", "Qwen2", "Qwen3", "Mistral"))
def test_blocks_of_many_tokens(kind: str, played: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(kind)
    ids = torch.arange(34).view(2, 17)
    normed: list[Any] = []
    monkeypatch.setattr(halves, "_rms_norm", lambda h, *more: normed.append(h) or F.rms_norm(h, *more))
    with torch.no_grad():
        want = model(ids, output_hidden_states=True)
        wcodec.nn.fuse_(model)
        got = model(ids, output_hidden_states=True)
        assert not played and len(normed) == 6
        # Inputs of a block are not changed by it.
        for a, b in zip(got.hidden_states, want.hidden_states, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-4)
        with torch.inference_mode():
            assert torch.equal(model(ids).logits, got.logits)
        # Then a token at a time, behind those.
        normed.clear()
        texts = model.generate(ids, max_new_tokens=3, do_sample=False)
        assert len(normed) == 6 and played.count("normed 2") == 6
        wcodec.nn.fuse_(model, False)
        assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), texts)
        assert torch.equal(model(ids).logits, want.logits) and len(normed) == 6
        # Without a norm of torch's, the module's own is asked.
        wcodec.nn.fuse_(model)
        monkeypatch.setattr(halves, "_rms_norm", None)
        torch.testing.assert_close(model(ids).logits, want.logits, rtol=1e-4, atol=1e-4)


def test_weights_that_change_after_fusing(played: list[str]) -> None:
    """Norms and biases are the modules' as they are when a prompt comes."""
    model = llama("Qwen2", torch.bfloat16)
    ids = torch.arange(17)[None]
    with torch.no_grad():
        plain = copy.deepcopy(model)
        wcodec.nn.fuse_(model)
        model(ids)
        for each in (model, plain):
            block = each.model.layers[1]
            block.self_attn.q_proj.bias.data = block.self_attn.q_proj.bias.data.float() + 0.5
            block.self_attn.v_proj.bias.data += 1
            block.input_layernorm.weight = torch.nn.Parameter(block.input_layernorm.weight * 2)
            block.post_attention_layernorm.variance_epsilon = 0.5
        want = plain(ids).logits
        torch.testing.assert_close(model(ids).logits, want, rtol=0.05, atol=0.05 * float(want.abs().max()))
        before = llama("Qwen2", torch.bfloat16)(ids).logits
        assert float((before - want).norm() / want.norm()) > 0.2


def test_halves_of_many_tokens(played: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A half that launches cannot do is done by its modules, for many tokens, too."""
    model = llama()
    ids = torch.arange(17)[None]
    normed: list[Any] = []
    monkeypatch.setattr(halves, "_rms_norm", lambda h, *more: normed.append(h) or F.rms_norm(h, *more))
    with torch.no_grad():
        want = model(ids).logits
        for name in ("self_attn.q_proj", "mlp.down_proj"):
            with monkeypatch.context() as patched:
                patched.setattr(launches, "make_launch", _without(model, name, launches.make_launch))
                wcodec.nn.fuse_(model)
                normed.clear()
                torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-4)
            assert len(normed) == 3


def _without(model: Any, name: str, make_launch: Any) -> Any:
    """No launches for the layers of that name."""
    apart = [block.get_submodule(name) for block in model.model.layers]
    return lambda layers, epilogue=launches.NO_EPILOGUE: None if layers[0] in apart else make_launch(layers, epilogue)


def test_tensors_that_change_between_blocks(played: list[str]) -> None:
    model = llama()
    with torch.no_grad():
        hook = model.model.layers[0].register_forward_hook(lambda m, a, y: y.mul_(0.5))
        want = model(IDS).logits
        wcodec.nn.fuse_(model)
        torch.testing.assert_close(model(IDS).logits, want, rtol=1e-4, atol=1e-4)
        hook.remove()
    # Inference mode counts no changes: nothing is handed on there.
    with torch.inference_mode():
        played.clear()
        model(IDS)
        assert played == [*BLOCK[:3], "added"] * 3


def test_adapters_are_not_passed_by(played: list[str]) -> None:
    peft = pytest.importorskip("peft")
    model = llama()
    wcodec.nn.fuse_(model)
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    with torch.no_grad():
        got = tuned.eval()(IDS).logits
        assert not played
        wcodec.nn.fuse_(model, False)
        assert torch.equal(tuned(IDS).logits, got)
        with tuned.disable_adapter():
            assert not torch.equal(tuned(IDS).logits, got)


def test_copies_moves_and_other_weights(played: list[str]) -> None:
    model = llama()
    wcodec.nn.fuse_(model)
    with torch.no_grad():
        want = model(IDS).logits
        played.clear()
        twin = copy.deepcopy(model)
        assert torch.equal(twin(IDS).logits, want) and played == BLOCK + BLOCK + [*BLOCK[:3], "added"]
        twin.model.layers[0].input_layernorm.weight.mul_(2)
        assert torch.equal(model(IDS).logits, want) and not torch.equal(twin(IDS).logits, want)
        other = llama("Llama", initializer_range=0.5)
        with torch.no_grad():
            other.model.norm.weight.mul_(3)
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(IDS).logits, other(IDS).logits, rtol=1e-4, atol=1e-4)
        half = model.to(torch.bfloat16)
        played.clear()
        assert half(IDS).logits.dtype == torch.bfloat16 and played[:4] == BLOCK
        assert "LlamaDecoderLayer" in repr(model) and type(model.model.layers[0]).__name__ == "LlamaDecoderLayer"


def test_gains_in_float16_are_divided(played: list[str]) -> None:
    model = llama(dtype=torch.float16)
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight.fill_(7.0)
        want = model.float()(IDS).logits
        model.half()
        wcodec.nn.fuse_(model)
        torch.testing.assert_close(model(IDS).logits.float(), want, rtol=2e-2, atol=2e-2)
        block = model.model.layers[1].__dict__["_wcodec_block"]
        norm = block.halves["attention"].before.get(block.layers[0])
        assert norm.scale == 1 / 8 and norm.scaled(torch.ones(1, 64, dtype=torch.float16))[0, 0] == 7 / 8
        # Another weight counts at once, however it came there.
        for weight in (20.0, 0.5):
            model.model.layers[1].input_layernorm.weight.data.fill_(weight)
            got = model(IDS).logits.float()
            torch.testing.assert_close(got, model.float()(IDS).logits, rtol=2e-2, atol=2e-2)
            model.half()


def test_threads_do_not_take_each_others_results(played: list[str]) -> None:
    model = llama()
    inputs = [torch.randint(0, 101, (1, 6), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    with torch.no_grad():
        want = [model(ids).logits for ids in inputs]
    wcodec.nn.fuse_(model)
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(6):
                if not torch.allclose(model(inputs[i]).logits, want[i], rtol=1e-4, atol=1e-4):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and not any(m._served for m in model.modules() if isinstance(m, wcodec.nn.CompressedLinear))


def test_compiled_models_see_one_operator(played: list[str]) -> None:
    model = llama()
    wcodec.nn.fuse_(model)
    with torch.no_grad():
        want = model(IDS).logits
        played.clear()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(IDS, use_cache=False).logits, want, rtol=1e-4, atol=1e-4)
        # Nothing is handed on from block to block.
        assert played == [*BLOCK[:3], "added"] * 3
        wcodec.nn.fuse_(model, blocks=False)
        torch._dynamo.reset()
        played.clear()
        torch.testing.assert_close(compiled(IDS, use_cache=False).logits, want, rtol=1e-4, atol=1e-4)
        assert played == ["all 3", "all 2"] * 3


def test_a_served_layer_wants_its_own_tensor(played: list[str]) -> None:
    model = llama()
    layer = model.model.layers[0].self_attn.q_proj
    x, y = torch.zeros(1, 64), torch.ones(1, 64)
    from wcodec.nn._layers.served import Serving, serve_result

    with Serving([layer], [serve_result(layer, x, y)]), pytest.raises(wcodec.InputError, match="another tensor"):
        layer(x.clone())
    with torch.no_grad(), Serving([layer], [serve_result(layer, x, y)]):
        assert layer(x) is y and layer(x) is not y
    assert not layer._served


def test_code_says_which_layers_read_one_tensor() -> None:
    class Both(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return self.a(x) + self.b(x) * self.c(y) + self.d(y).relu()

    class Changed(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            a = self.a(x)
            x = x + a
            return self.b(x)

    class InPlace(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            a = self.a(x)
            x.add_(1)
            return a + self.b(x)

    class Indexed(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            a = self.a(x)
            x[0] = 0
            return a + self.b(x)

    class Sometimes(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            y = self.a(x)
            if y.sum() > 0:
                y = y + self.b(x)
            return y + sum(self.c(x) for _ in range(2))

    class Twice(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return self.a(x) + self.a(x) + self.b(x)

    class Alias(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            a, y = self.a(x), x
            y = x
            y += 1
            return a + self.b(x)

    class Told(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            a = self.a(x)
            F.relu(x, inplace=True)
            return a + self.b(x)

    class Cast(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                a = self.a(x)
            return a + self.b(x)

    def wrapped(forward: Any) -> Any:
        @functools.wraps(forward)
        def twice(self: Any, x: Any) -> Any:
            return 2 * forward(self, x)

        return twice

    class Decorated(torch.nn.Module):
        @wrapped
        def forward(self, x: Any) -> Any:
            return self.a(x) + self.b(x)

    class Renamed(torch.nn.Module):
        @deprecate_kwarg("z", "99.0", new_name="x")
        def forward(self, x: Any) -> Any:
            return self.a(x) + self.b(x)

    def another(old_name: str, version: str) -> Any:
        return wrapped

    assert {s.argument: set(s.names) for s in pattern.siblings(Renamed)} == {"x": {"a", "b"}}

    class LikeRenamed(torch.nn.Module):
        deprecate_kwarg = another

        @deprecate_kwarg("z", "99.0")
        def forward(self, x: Any) -> Any:
            return self.a(x) + self.b(x)

    found = {s.argument: set(s.names) for s in pattern.siblings(Both)}
    assert found == {"x": {"a", "b"}, "y": {"c", "d"}}
    for kind in (
        Changed,
        InPlace,
        Indexed,
        Sometimes,
        Twice,
        Alias,
        Told,
        Cast,
        Decorated,
        LikeRenamed,
        torch.nn.Linear,
    ):
        assert pattern.siblings(kind) == (), kind


def test_blocks_are_known_by_their_code() -> None:
    from transformers.models.gemma2 import modeling_gemma2
    from transformers.models.llama import modeling_llama
    from transformers.models.olmo2 import modeling_olmo2
    from transformers.models.qwen3 import modeling_qwen3

    for module, name in ((modeling_llama, "Llama"), (modeling_qwen3, "Qwen3")):
        form = recognize.block_form(getattr(module, f"{name}DecoderLayer"))
        assert form is not None
        call = form.calls["self_attn"]
        assert ("attention_mask", "attention_mask") in call.keywords and call.rest == "kwargs"
        assert recognize.attention_form(getattr(module, f"{name}Attention")) is not None
        assert recognize.mlp_form(getattr(module, f"{name}MLP")) is not None
        assert recognize.norm_form(getattr(module, f"{name}RMSNorm")) is not None
    # Norms behind, and gains of 1 + w.
    olmo = recognize.block_form(modeling_olmo2.Olmo2DecoderLayer)
    assert olmo is not None and olmo.spec.attention.before is None and olmo.spec.attention.behind is not None
    gemma = recognize.block_form(modeling_gemma2.Gemma2DecoderLayer)
    assert gemma is not None and gemma.spec.mlp.behind == "post_feedforward_layernorm"
    norm = recognize.norm_form(modeling_gemma2.Gemma2RMSNorm)
    assert norm is not None and norm.offset == 1


def test_code_is_known_up_to_names() -> None:
    class Renamed(torch.nn.Module):
        def forward(self, hidden_states: Any, mask: Any = None, **rest: Any) -> Any:
            before = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            hidden_states, weights = self.self_attn(hidden_states=hidden_states, attention_mask=mask, **rest)
            hidden_states = before + hidden_states
            before = hidden_states
            hidden_states = self.post_attention_layernorm(hidden_states)
            hidden_states = self.mlp(hidden_states)
            return before + hidden_states

    class Swapped(torch.nn.Module):
        def forward(self, hidden_states: Any) -> Any:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            _, hidden_states = self.self_attn(hidden_states=hidden_states)
            hidden_states = residual + hidden_states
            residual = hidden_states
            hidden_states = self.post_attention_layernorm(hidden_states)
            hidden_states = self.mlp(hidden_states)
            return residual + hidden_states

    class Twice(torch.nn.Module):
        def forward(self, hidden_states: Any) -> Any:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            hidden_states, _ = self.self_attn(hidden_states=hidden_states)
            hidden_states = residual + hidden_states
            residual = hidden_states
            hidden_states = self.post_attention_layernorm(hidden_states)
            hidden_states = self.mlp(self.mlp(hidden_states))
            return residual + hidden_states

    class Given(torch.nn.Module):
        def forward(self, hidden_states: Any) -> Any:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            hidden_states, _ = self.self_attn(hidden_states=hidden_states, scale=1 / 2)
            hidden_states = residual + hidden_states
            residual = hidden_states
            hidden_states = self.post_attention_layernorm(hidden_states)
            hidden_states = self.mlp(hidden_states)
            return residual + hidden_states

    form = recognize.block_form(Renamed)
    assert form is not None and form.calls["self_attn"] == ((("attention_mask", "mask"),), "rest")
    for kind in (Swapped, Twice, Given):
        assert recognize.block_form(kind) is None, kind


def test_arguments_by_their_earlier_names(played: list[str]) -> None:
    """transformers 5.24 calls the cache ``cache`` and still takes ``past_key_values``."""
    model = llama()
    wcodec.nn.fuse_(model)
    layer, h = model.model.layers[0], torch.randn(1, 5, 64)
    form = recognize.block_form(transformers.models.llama.modeling_llama.LlamaDecoderLayer)
    assert form is not None
    known = [keyword for keyword, _ in form.calls["self_attn"].keywords if keyword in ("cache", "past_key_values")]
    places = model.model.rotary_emb(h, torch.arange(5)[None])
    results = []
    for name in (*known, *form.earlier):
        played.clear()
        cache = transformers.DynamicCache(config=model.config)
        warns = pytest.warns(FutureWarning, match=name) if name in form.earlier else contextlib.nullcontext()
        with torch.no_grad(), warns:
            results.append(layer(h, position_embeddings=places, **{name: cache}))
        assert cache.get_seq_length() == 5
        assert ("normed 3" in played) == (name in known)
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-5)


def test_what_is_replaced_after_fusing(played: list[str]) -> None:
    model = llama()
    wcodec.nn.fuse_(model)
    block = model.model.layers[0]
    with torch.no_grad():
        want = model(IDS).logits

        class SiLU(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x * torch.sigmoid(1.7 * x)

        before = block.mlp.act_fn
        block.mlp.act_fn = SiLU()
        other = model(IDS).logits
        wcodec.nn.fuse_(model, False)
        torch.testing.assert_close(model(IDS).logits, other, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(other, want, atol=1e-3)
        # One of that name is not the one that is meant.
        wcodec.nn.fuse_(model)
        assert "mlp" not in block.__dict__["_wcodec_block"].first
        block.mlp.act_fn = before
        wcodec.nn.fuse_(model)
        seen: list[Any] = []
        hook = block.mlp.act_fn.register_forward_hook(lambda m, a, y: seen.append(y))
        torch.testing.assert_close(model(IDS).logits, want, rtol=1e-4, atol=1e-4)
        assert len(seen) == 1
        hook.remove()
        everywhere = torch.nn.modules.module.register_module_forward_hook(lambda m, a, y: seen.append(type(m).__name__))
        model(IDS)
        everywhere.remove()
        assert seen.count("LlamaRMSNorm") == 7
        # Outputs that transformers asked for once do not slow down what comes later.
        model(IDS, output_hidden_states=True)
        played.clear()
        model(IDS)
        assert played[:4] == BLOCK


def test_classes_that_change_after_fusing(played: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    model = llama()
    wcodec.nn.fuse_(model)
    for kind in (modeling_llama.LlamaMLP, modeling_llama.LlamaRMSNorm, modeling_llama.LlamaAttention):
        plain = kind.forward
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(kind, "forward", lambda *a, plain=plain, **k: _doubled(plain(*a, **k)))
            got = model(IDS).logits
            wcodec.nn.fuse_(model, False)
            torch.testing.assert_close(model(IDS).logits, got, rtol=1e-4, atol=1e-4)
            # Code that is not known, or not to be had, is run as it is.
            wcodec.nn.fuse_(model)
            torch.testing.assert_close(model(IDS).logits, got, rtol=1e-4, atol=1e-4)
        wcodec.nn.fuse_(model)


def _doubled(found: Any) -> Any:
    return (found[0] * 2, *found[1:]) if isinstance(found, tuple) else found * 2


def test_attention_in_another_dtype_is_an_error(played: list[str]) -> None:
    def wide(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        return value.float().repeat_interleave(2, 1).transpose(1, 2), None

    transformers.AttentionInterface.register("wide", wide)
    model = llama(dtype=torch.bfloat16)
    model.set_attn_implementation("wide")
    with torch.no_grad():
        for fused in (False, True):
            wcodec.nn.fuse_(model, fused)
            with pytest.raises(wcodec.InputError, match="float32"):
                model(IDS)
    assert not any(m._served for m in model.modules() if isinstance(m, wcodec.nn.CompressedLinear))


def test_another_activation_is_not_fused(played: list[str]) -> None:
    model = llama(hidden_act="quick_gelu")
    with torch.no_grad():
        want = model(IDS).logits
        wcodec.nn.fuse_(model)
        torch.testing.assert_close(model(IDS).logits, want, rtol=1e-4, atol=1e-4)
    assert played[:3] == ["normed 3", "added", "all 2"]


def test_a_gain_is_that_of_the_norm_as_it_is_now() -> None:
    """It is kept from call to call, and both the norm and the layer may change meanwhile."""
    norm: Any = torch.nn.Module()
    norm.weight = torch.nn.Parameter(torch.ones(8), requires_grad=False)
    norm.variance_epsilon = 1e-5
    layer: Any = SimpleNamespace(_dtype=torch.float32, _device=torch.device("cpu"), in_features=8)
    gain = halves.Gain(norm, NormSpec(""))
    kept = gain.get(layer)
    assert kept is not None and gain.get(layer) is kept and kept.gain.data_ptr() == norm.weight.data_ptr()
    norm.variance_epsilon = 1e-3
    assert gain.get(layer).epsilon == 1e-3
    norm.weight.data = torch.full((8,), 2.0)
    assert torch.equal(gain.get(layer).gain, torch.full((8,), 2.0))
    layer._device = torch.device("meta")
    assert gain.get(layer) is None
    layer._device = torch.device("cpu")
    norm.half()
    assert gain.get(layer) is None
    layer._dtype = torch.float16
    assert gain.get(layer).gain.dtype is torch.float16
    assert copy.deepcopy(gain)._last is None
    assert gain.get(SimpleNamespace(**{**vars(layer), "in_features": 4})) is None
