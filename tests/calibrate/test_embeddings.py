"""The costs of errors in embeddings, alone and tied to a head, and the steps that come of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import SMALL, TEXT, collect, gpt2, llama  # noqa: E402
from wcodec._calibrate.embeddings import EmbeddingCosts  # noqa: E402
from wcodec._calibrate.records import SiteRecord, UnitRecord  # noqa: E402
from wcodec._calibrate.statistics import Statistics  # noqa: E402

WINDOWS = TEXT[:3]


def gemma() -> Any:
    """It multiplies what it looks up by the root of its width."""
    torch.manual_seed(4)
    config = transformers.GemmaConfig(**SMALL, head_dim=16)
    return transformers.GemmaForCausalLM(config).eval()


def changes_of(model: Any, name: str, seed: int) -> Any:
    """For each token, what a small change of its row alone changes of the loss that ``collect`` takes, by torch's own
    gradients, and the row: ``float32 [texts, tokens, cols]``."""
    table = model.get_parameter(name)
    found: list[Any] = []
    module = next(one for one in model.modules() if isinstance(one, torch.nn.Embedding) and one.weight is table)

    def looked_up(module: Any, args: Any, output: Any) -> Any:
        # A row of its own for each token, multiplied as the module does it.
        rows = torch.nn.functional.embedding(args[0], table.detach()).requires_grad_(True)
        found.append(rows)
        return rows * (output.detach() / rows.detach()).nan_to_num(1.0)

    hook = module.register_forward_hook(looked_up)
    logits = model(WINDOWS).logits.flatten(0, 1)
    hook.remove()
    drawn = torch.multinomial(torch.softmax(logits.detach(), -1), 1, generator=torch.Generator().manual_seed(seed))
    loss = torch.nn.functional.cross_entropy(logits, drawn[:, 0], reduction="sum")
    (gradient,) = torch.autograd.grad(loss, found)
    return gradient, found[0].detach()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (llama, "model.embed_tokens.weight"),
        (lambda: llama(tie_word_embeddings=True), "model.embed_tokens.weight"),
        (gpt2, "transformer.wte.weight"),
        (gpt2, "transformer.wpe.weight"),
        (gemma, "model.embed_tokens.weight"),
    ],
)
def test_costs_are_gradients_times_rows(make: Any, name: str) -> None:
    model = make()
    unit = collect(model, WINDOWS, seed=11).units[name]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    gradient, rows = changes_of(model, name, 11)
    # First tokens do not count.
    want = (gradient.square().sum(-1) * rows.square().mean(-1))[..., 1:].sum()
    assert unit.embedding == pytest.approx(float(want), rel=1e-3) and unit.embedding > 0
    # A table that is no head is not multiplied with.
    is_head = model.get_output_embeddings().weight is model.get_parameter(name)
    assert (unit.sensitivity > 0) == is_head and (unit.site is None) != is_head


def costs_of(make: Any, texts: int, tokens: int) -> tuple[EmbeddingCosts, Any]:
    """Costs of an embedding of 9 rows whose output ``make`` gives, from ids ``[texts, tokens]``, and what each token
    adds, ``float32 [texts, tokens]``."""
    torch.manual_seed(6)
    table = torch.nn.Embedding(9, 4)
    table.weight.requires_grad_(False)
    costs = EmbeddingCosts({"table": table})
    ids = torch.randint(9, (texts, tokens))
    factors = torch.randn(texts, tokens, 4)
    with costs.watching(ids):
        make(table, ids, factors).sum().backward()
    return costs, factors.square().sum(-1) * table(ids).square().mean(-1)


@pytest.mark.parametrize(("texts", "tokens"), [(3, 5), (1, 5), (5, 3)])
def test_first_tokens_are_those_of_each_text_however_they_lie(texts: int, tokens: int) -> None:
    for make in (
        lambda table, ids, factors: table(ids) * factors,
        # XLNet has tokens first.
        lambda table, ids, factors: table(ids.t().contiguous()) * factors.transpose(0, 1),
    ):
        costs, added = costs_of(make, texts, tokens)
        assert costs["table"] == pytest.approx(float(added[:, 1:].sum())) and costs.tokens["table"] == texts * tokens
    # Neither texts nor tokens, as the codebooks of speech: all of them count.
    costs, added = costs_of(lambda table, ids, factors: table(ids[:, :, None]) * factors[:, :, None], texts, tokens)
    assert costs["table"] == pytest.approx(float(added.sum()))


def test_a_row_for_all_tokens_and_code_without_gradients() -> None:
    costs, _ = costs_of(lambda table, ids, factors: table(torch.tensor(2)) * factors, 2, 3)
    assert costs["table"] > 0 and costs.tokens["table"] == 1

    def without(table: Any, ids: Any, factors: Any) -> Any:
        with torch.no_grad():
            seen = table(ids)
        return seen * factors.requires_grad_(True)

    assert costs_of(without, 2, 3)[0]["table"] == 0


def test_a_module_around_an_embedding_leaves_its_gradients() -> None:
    class Around(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: Any) -> Any:
            return 2 * self.inner(ids)

    model = llama()
    model.model.embed_tokens = Around(model.model.embed_tokens)
    assert collect(model).units["model.embed_tokens.inner.weight"].embedding > 0


def test_names_of_embeddings_go_with_their_costs(tmp_path: Path) -> None:
    # Its checkpoints have other names than its parameters.
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**SMALL), vision_config=vision, image_token_id=89
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    hashes = set()
    for options in ({"gradients": False}, {"gradients": False, "full": False}, {"full": False}):
        made = collect(model, **options)
        made.save(tmp_path / "s.safetensors", overwrite=True)
        found = wcodec.Statistics.load(tmp_path / "s.safetensors")
        assert found.names == made.names and all(
            part in found.units for parts in found.names.values() for part in parts
        )
        hashes.add(found.model_hash)
    assert len(hashes) == 1
    table = "language_model.model.embed_tokens.weight"
    assert found.units[table].embedding > 0 and found.names["model.language_model.embed_tokens.weight"] == (table,)
    # There was no picture.
    assert "no token reached it" in [why for name, why in found.report.fallbacks.items() if "vision" in name]


def test_what_was_not_looked_at_has_no_costs() -> None:
    model = llama()
    assert "model.embed_tokens.weight" not in collect(model, gradients=False).units
    assert EmbeddingCosts({"a": model.model.embed_tokens})["a"] == 0
    hidden = [unit for name, unit in collect(model).units.items() if "layers" in name]
    assert hidden and not any(unit.embedding for unit in hidden)


def statistics_of(sensitivity: float, embedding: float, left: float = 0.25) -> Statistics:
    """Those of a matrix of a layer, and of a table that is a head."""
    sites = {"in": SiteRecord(8, 0, 100, left)}
    units = {
        "layer": UnitRecord(4, 8, False, "layer", False, "in", 100, 100.0),
        "table": UnitRecord(4, 8, False, "head", False, "in", 100, sensitivity, embedding),
    }
    return Statistics(units, sites, {}, {}, source="self", tokens=100, text_hash="", model_hash="")


def test_a_table_pays_for_both_of_its_uses() -> None:
    def step(sensitivity: float, embedding: float) -> float:
        factors = statistics_of(sensitivity, embedding).factors()
        return factors["table"] / factors["layer"]

    assert step(100, 0) == pytest.approx(1)
    # Later columns make up for three quarters of an error of the head, and for nothing of what is looked up.
    assert step(100, 75) == pytest.approx(0.5)
    assert step(0, 25) == pytest.approx(1)


def test_the_share_of_the_loss_has_both_uses() -> None:
    shares = statistics_of(100, 200).shares()
    assert shares["table"] == pytest.approx(0.75) and shares["layer"] == pytest.approx(0.25)


def test_embeddings_of_their_own_get_steps(tmp_path: Any) -> None:
    model = llama(hidden_size=64, intermediate_size=128, vocab_size=500)
    statistics = collect(model, TEXT)
    name = "model.embed_tokens.weight"
    unit = statistics.units[name]
    assert name not in statistics.report.fallbacks and unit.tokens == 200
    weights = {key: value.detach() for key, value in model.state_dict().items() if value.dim() == 2}
    sizes = {}
    for times in (1.0, 1e6):
        units = {**statistics.units, name: UnitRecord(**{**vars(unit), "embedding": unit.embedding * times})}
        other = Statistics(units, statistics.sites, statistics._moments, statistics.names, statistics._rows,
                           source="text", tokens=200, text_hash="", model_hash="")  # fmt: skip
        path = tmp_path / "m.wcodec"
        wcodec.compress(weights, path, bits=4, calibrate=other, overwrite=True)
        with wcodec.open(path) as container:
            sizes[times] = container[name].bits_per_weight
    assert sizes[1e6] > sizes[1.0] + 1
