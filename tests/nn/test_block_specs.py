"""Decoder layers of many architectures: which halves of them launches do, and that a model computes what it did. Here
launches are played by torch, as in test_blocks; on a GPU tests/gpu/test_block_specs does the same with kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import wcodec
import wcodec.nn
from wcodec.nn._fusion import blocks, norms, recognize, specs
from wcodec.nn._fusion.halves import activation_of
from wcodec.nn._fusion.launches import Norm

from tests.nn.test_blocks import IDS, Played, played  # noqa: F401  (pytest looks for fixtures in the module)

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
NEXT = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "layer_types": ["full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
# Launches of a layer: norms in front of products, norms by themselves, residuals behind products.
LLAMA = ["normed 3", "added and scaled", "normed 2", "added"]
BEHIND = ["normed 3", "all 1", "norm and scaled", "normed 2", "all 1", "norm"]
CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "llama": ("Llama", {}, LLAMA),
    "gemma2": ("Gemma2", {"query_pre_attn_scalar": 16}, BEHIND),
    "gemma3": ("Gemma3Text", {"query_pre_attn_scalar": 16}, BEHIND),
    "olmo2": ("Olmo2", {}, ["all 3", "all 1", "norm", "all 2", "all 1", "norm"]),
    "cohere": ("Cohere", {}, ["norm", "all 3", "added", "norm", "all 2", "added"]),
    "cohere2": ("Cohere2", {}, ["norm", "all 3", "added", "norm", "all 2", "added"]),
    "phi3": ("Phi3", {}, ["normed 1", "added and scaled", "normed 1", "added"]),
    "granite": ("Granite", {"residual_multiplier": 0.22, "embedding_multiplier": 12.0}, LLAMA),
    "glm": ("Glm", {"partial_rotary_factor": 0.5}, ["normed 3", "added and scaled", "normed 1", "added"]),
    "glm4": ("Glm4", {"partial_rotary_factor": 0.5}, [*BEHIND[:3], "normed 1", *BEHIND[4:]]),
    "arcee": ("Arcee", {"hidden_act": "relu2"}, ["normed 3", "added and scaled", "normed 1", "added"]),
    "gelu": ("Llama", {"hidden_act": "gelu"}, LLAMA),
    "mixtral": ("Mixtral", EXPERTS, ["normed 3", "added"]),
    "granitemoe": ("GraniteMoe", {**EXPERTS, "residual_multiplier": 0.5}, ["normed 3", "added"]),
    "qwen3_next": ("Qwen3Next", NEXT, ["normed 3", "added"]),
}


def small(name: str, **more: Any) -> Any:
    """A compressed model of that case, whose random weights are of a trained one's size."""
    kind, options, _ = CASES[name]
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **options, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            one = parameter.dim() == 1 and float(parameter.mean()) > 0.5
            parameter.copy_(torch.randn_like(parameter) * 0.08 + (1 if one else 0))
    model.float()
    wcodec.compress_(model, progress=False, fused=False)
    return model


def norms_by_torch(log: list[str]) -> Any:
    """The work of the kernel of norms, in float64."""

    def run(x: Any, norm: Norm, residual: Any = None, multiplier: float = 1.0, after: Norm | None = None) -> Any:
        log.append("norm" if after is None else "norm and scaled")
        wide = x.double() - (x.double().mean(-1, keepdim=True) if norm.kind == "layer" else 0)
        wide = wide / (wide.pow(2).mean(-1, keepdim=True) + norm.epsilon).sqrt()
        wide = wide * (norm.gain.double() + norm.offset) * multiplier
        y = (wide if residual is None else wide + residual.double()).to(x.dtype)
        return y, None if after is None else after.scaled(y)

    return run


@pytest.mark.parametrize("name", CASES)
def test_models_compute_what_they_did(name: str, played: list[str], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(norms, "run", norms_by_torch(played))
    model = small(name)
    first = model.model.layers[0]
    many = torch.arange(34).view(2, 17)
    with torch.no_grad():
        want, wanted = model(IDS).logits, model(many).logits
        text = model.generate(IDS, max_new_tokens=4, do_sample=False)
        wcodec.nn.fuse_(model)
        played.clear()
        torch.testing.assert_close(model(IDS).logits, want, rtol=2e-4, atol=2e-4)
        expected = CASES[name][2]
        # The first layer's last launch prepares for the next one, where that has an RMSNorm in front.
        assert [entry.removesuffix(" and scaled") for entry in played[: len(expected)]] == [
            entry.removesuffix(" and scaled") for entry in expected
        ]
        assert played[: len(expected) - 1] == expected[:-1]
        torch.testing.assert_close(model(many).logits, wanted, rtol=2e-4, atol=2e-4)
        assert torch.equal(model.generate(IDS, max_new_tokens=4, do_sample=False), text)
        # A hook of a norm sees it run.
        seen: list[Any] = []
        norm = next(module for module in first.modules() if "Norm" in type(module).__name__)
        hook = norm.register_forward_hook(lambda m, a, y: seen.append(y))
        torch.testing.assert_close(model(IDS).logits, want, rtol=2e-4, atol=2e-4)
        hook.remove()
        assert seen
        wcodec.nn.fuse_(model, False)
        assert torch.equal(model(IDS).logits, want)


@pytest.mark.parametrize("name", ("llama", "gemma3", "cohere", "phi3"))
def test_norms_of_many_tokens_are_steps_of_their_own(
    name: str,
    played: list[str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Launches that take more tokens than divide their results by a norm: all but the norms is as with few."""
    monkeypatch.setattr(norms, "run", norms_by_torch(played))
    monkeypatch.setattr(Played, "tokens", 64)
    model = small(name)
    ids = torch.arange(34).view(2, 17)
    with torch.no_grad():
        want = model(ids).logits
        wcodec.nn.fuse_(model)
        played.clear()
        torch.testing.assert_close(model(ids).logits, want, rtol=2e-4, atol=2e-4)
        steps = [step for few in CASES[name][2] for step in _of_many(few)]
        assert played[: len(steps)] == steps and len(played) == 2 * len(steps)
        played.clear()
        model(ids[:, :8])
        assert played[: len(CASES[name][2]) - 1] == CASES[name][2][:-1]


def _of_many(step: str) -> list[str]:
    """The steps of many tokens that do what a step of few does."""
    step = step.removesuffix(" and scaled")
    return ["norm", step.replace("normed", "all")] if step.startswith("normed") else [step]


def test_a_layer_with_linear_attention_is_done_by_its_modules(played: list[str]) -> None:  # noqa: F811
    model = small("qwen3_next")
    wcodec.nn.fuse_(model)
    linear = blocks.taken_apart(model.model.layers[1])
    assert not isinstance(linear, str) and not linear.first
    assert linear.halves["attention"].reason == "attention Qwen3NextGatedDeltaNet"
    assert linear.halves["mlp"].reason == "MLP Qwen3NextSparseMoeBlock"
    full = blocks.taken_apart(model.model.layers[0])
    assert not isinstance(full, str) and set(full.first) == {"attention"}


def test_scalars_count_as_they_are(played: list[str]) -> None:  # noqa: F811
    """A multiplier that is changed after fusing is the module's own, which then runs as it is."""
    model = small("granite")
    wcodec.nn.fuse_(model)
    with torch.no_grad():
        before = model(IDS).logits
        model.model.layers[0].residual_multiplier = 0.7
        got = model(IDS).logits
        wcodec.nn.fuse_(model, False)
        torch.testing.assert_close(got, model(IDS).logits, rtol=2e-4, atol=2e-4)
        assert not torch.allclose(got, before, atol=1e-3)


def test_dropout_that_drops_is_not_passed_by(played: list[str]) -> None:  # noqa: F811
    model = small("phi3", resid_pdrop=0.5)
    wcodec.nn.fuse_(model)
    block = model.model.layers[0].__dict__["_wcodec_block"]
    with torch.no_grad():
        model(IDS)
        assert played[:1] == ["normed 1"]
        model.model.layers[0].resid_attn_dropout.train()
        assert not block.takes(model.model.layers[0], torch.zeros(1, 5, 64))


def test_activations_are_known_by_what_they_compute() -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    formulas = {
        "silu": x * torch.sigmoid(x),
        "gelu_tanh": 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "gelu": 0.5 * x * (1 + torch.erf(x / 2**0.5)),
        "relu": x.clamp(min=0),
        "relu_squared": x.clamp(min=0) ** 2,
    }
    found = set()
    for name in ACT2FN:
        function = None if name in ("prelu", "xielu") else ACT2FN[name]
        known = activation_of(function)
        if known is not None:
            torch.testing.assert_close(function(x), formulas[known], rtol=1e-9, atol=1e-12)
            found.add(known)
    assert found == set(formulas)
    # A function that is clipped, or has another constant, is none of them.
    assert activation_of(ACT2FN["gelu_10"]) is None and activation_of(ACT2FN["quick_gelu"]) is None


def test_norms_with_another_helper_are_not_known() -> None:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

    class Halved(Gemma2RMSNorm):
        def _norm(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) / 2

    assert recognize.norm_form(Gemma2RMSNorm).offset == 1  # type: ignore[union-attr]
    assert recognize.norm_form(Halved) is None


def test_descriptions_stand_for_codes_of_their_own() -> None:
    codes = [spec.code for spec in specs.blocks()]
    assert len(set(codes)) == len(codes) >= 9
    for stated in (specs.norms(), specs.mlps(), specs.attentions()):
        assert len(set(map(repr, stated))) == len(stated) > 1


def test_the_table_of_decoder_layers() -> None:
    from tests.sweep import blocks as script

    layers = {name: script.layers_of(name) for name in ("llama", "mixtral", "qwen3_next", "gpt2")}
    fused = {name: [one.fused for one in found] for name, found in layers.items()}
    assert fused == {
        "llama": [script.WHOLE],
        "mixtral": [script.ATTENTION],
        "qwen3_next": [script.ATTENTION, script.GROUPS],
        "gpt2": [script.NONE],
    }
    text = script.table(layers)
    assert (
        "| whole | 1 |" in text and "- Llama" in text and "| a mixture of experts in the place of an MLP | 3 |" in text
    )
