"""Experts that few tokens are routed to, multiplied with together. Kernels are played by torch on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import wcodec
import wcodec.nn
from small_models import mixtral
from wcodec.nn._layers import pattern
from wcodec.nn._layers.routed import Routed
from wcodec.nn.experts import CompressedExperts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
nn = torch.nn


class Batch:
    """As `ProductBatch` with a vector for each factor."""

    def __init__(self, decoder: Decoder, factors: list[Any], vectors: list[int]) -> None:
        self.decoder, self.factors, self.vectors, self.slots = decoder, factors, vectors, 1

    def run(self, x: Any, count: int) -> Any:
        assert count == 1 and x.is_contiguous()
        self.decoder.log.append([name for name, _ in self.factors])
        pairs = zip(self.factors, self.vectors, strict=True)
        return torch.cat([x[v].float() @ self.decoder.weight(name).t().float() for (name, _), v in pairs]).to(x.dtype)

    def prefetch(self) -> None:
        self.decoder.log.append("prefetch")


class Decoder:
    def __init__(self, layer: CompressedExperts) -> None:
        self.layer = layer
        self.log: list[Any] = []

    def weight(self, name: str) -> Any:
        return self.layer._store.entry(name).torch(torch.float32)

    def most_vectors(self, name: str) -> int:
        return 16

    def products(self, factors: list[Any], dtype: Any, vectors: list[int]) -> Batch:
        return Batch(self, factors, vectors)


@pytest.fixture(scope="module")
def layer() -> CompressedExperts:
    model = mixtral()
    wcodec.compress_(model, include="*experts*", scheme="int8", fused=False)
    found = model.model.layers[0].mlp.experts
    assert isinstance(found, CompressedExperts)
    return found


def routes(tokens: int, seed: int, each: int = 2) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((tokens, 32), generator=generator)
    chosen = torch.stack([torch.randperm(4, generator=generator)[:each] for _ in range(tokens)])
    return x, chosen, torch.rand((tokens, each), generator=generator)


def together(layer: CompressedExperts) -> tuple[Routed, Decoder]:
    form = pattern.expert_form(layer._of)
    assert form is not None
    decoder = Decoder(layer)
    return Routed(layer, decoder, form), decoder  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", (1, 3, 8))
def test_two_launches_give_what_the_loop_over_experts_gives(layer: CompressedExperts, tokens: int) -> None:
    routed, decoder = together(layer)
    for seed in range(5):
        x, chosen, weights = routes(tokens, seed)
        decoder.log.clear()
        got = routed(layer, x, chosen, weights)
        torch.testing.assert_close(got, layer(x, chosen, weights), rtol=1e-4, atol=1e-6)
        launches = [one for one in decoder.log if one != "prefetch"]
        # Only those that tokens are routed to, in the order of the tokens.
        assert [len(names) for names in launches] == [2 * tokens * layer._parts[0], 2 * tokens * layer._parts[1]]
        wanted = [layer._names[e][: layer._parts[0]] for e in chosen.flatten().tolist()]
        assert launches[0] == [name for names in wanted for name in names]


def test_experts_that_others_have_add_nothing(layer: CompressedExperts) -> None:
    routed, _ = together(layer)
    x, chosen, weights = routes(4, 9)
    # One token has no expert here.
    chosen[1, 0] = chosen[2, 0] = chosen[2, 1] = 4
    got = routed(layer, x, chosen, weights)
    torch.testing.assert_close(got, layer(x, chosen, weights), rtol=1e-4, atol=1e-6)
    assert not got[2].any()
    assert not routed(layer, x, torch.full_like(chosen, 4), weights).any()


def test_launches_of_a_route_are_kept_and_not_without_end(layer: CompressedExperts) -> None:
    routed, _ = together(layer)
    x, chosen, weights = routes(1, 3)
    routed(layer, x, chosen, weights)
    kept = list(routed._launches.values())
    routed(layer, x, chosen, weights)
    assert list(routed._launches.values()) == kept
    for seed in range(300):
        routed(layer, *routes(3, seed))
    assert len(routed._launches) == 64


def test_what_is_too_much_or_odd_is_left_to_the_original(layer: CompressedExperts) -> None:
    routed, _ = together(layer)
    x, chosen, weights = routes(9, 1)
    assert routed(layer, x, chosen, weights) is None, "18 vectors"
    x, chosen, weights = routes(2, 1)
    assert routed(layer, x.double(), chosen, weights) is None
    assert routed(layer, x[None], chosen, weights) is None
    assert routed(layer, x, chosen[:1], weights[:1]) is None
    assert routed(layer, x, chosen + 4, weights) is None, "no such expert"
    assert routed(layer, x[:0], chosen[:0], weights[:0]) is None


def test_on_a_cpu_nothing_changes() -> None:
    model = mixtral()
    wcodec.compress_(model, scheme="int8", fused=False)
    plain = copy.deepcopy(model)
    # 4 linear layers in each of 2 blocks, the head, and 2 modules of experts.
    count = wcodec.nn.fuse_(model)
    assert count == sum(isinstance(m, (wcodec.nn.CompressedLinear, CompressedExperts)) for m in model.modules())
    ids = torch.arange(1, 7)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, plain(ids).logits)


class Older:
    """As transformers had them before 5.23."""

    def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        final_hidden_states = torch.zeros_like(hidden_states)
        with torch.no_grad():
            expert_mask = torch.nn.functional.one_hot(top_k_index, num_classes=self.num_experts)
            expert_mask = expert_mask.permute(2, 1, 0)
            expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert_idx in expert_hit:
            expert_idx = expert_idx[0]
            if expert_idx == self.num_experts:
                continue
            top_k_pos, token_idx = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[token_idx]
            gate, up = nn.functional.linear(current_state, self.gate_up_proj[expert_idx]).chunk(2, dim=-1)
            current_hidden_states = self.act_fn(gate) * up
            current_hidden_states = nn.functional.linear(current_hidden_states, self.down_proj[expert_idx])
            current_hidden_states = current_hidden_states * top_k_weights[token_idx, top_k_pos, None]
            final_hidden_states.index_add_(0, token_idx, current_hidden_states.to(final_hidden_states.dtype))
        return final_hidden_states


class Clamping(Older):
    """One step more."""

    def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        final_hidden_states = torch.zeros_like(hidden_states)
        hidden_states = hidden_states.clamp(max=1)
        return final_hidden_states + hidden_states


def test_forms_are_known_by_their_code() -> None:
    from transformers.models.mixtral import modeling_mixtral
    from transformers.models.nemotron_h import modeling_nemotron_h

    found = pattern.expert_form(modeling_mixtral.MixtralExperts)
    assert found == pattern.ExpertForm(is_custom=False)
    assert pattern.expert_form(modeling_nemotron_h.NemotronHExperts) is None, "no gates"
    assert pattern.expert_form(torch.nn.Linear) is None
    assert pattern.expert_form(Older) == found and pattern.expert_form(Clamping) is None
    x = torch.randn(3, 8)

    class Clamped:
        def _apply_gate(self, x: Any) -> Any:
            return x[..., ::2].clamp(max=1) * x[..., 1::2]

    own = pattern.ExpertForm(is_custom=True).join(Clamped(), x)
    assert torch.equal(own, x[..., ::2].clamp(max=1) * x[..., 1::2])
