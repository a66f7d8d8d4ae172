"""Factors of columns by the sizes of inputs: collecting them, the recipe, and what it saves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from outlier_channels import divergence, give_outliers  # noqa: E402
from small_models import TEXT, collect, gpt2, llama, mixtral  # noqa: E402
from wcodec._calibrate import amount  # noqa: E402
from wcodec._calibrate import collect as _collect  # noqa: E402
from wcodec._calibrate import columns as recipe  # noqa: E402
from wcodec._calibrate import text as _text  # noqa: E402
from wcodec._calibrate.statistics import has_moments, moments_of, sizes_of  # noqa: E402

SIZES = {"full": False, "gradients": False}


def inputs_of(model: Any, module: str, ids: Any = TEXT) -> Any:
    """Inputs of a layer, ``[texts, tokens, cols]``."""
    found: list[Any] = []
    hook = model.get_submodule(module).register_forward_hook(lambda module, args, output: found.append(args[0]))
    with torch.no_grad():
        model(ids)
    hook.remove()
    return found[0].detach().view(*ids.shape, -1)


# Collecting


@pytest.mark.parametrize("options", [SIZES, {"full": False}, {"gradients": False}, {}])
def test_every_kind_of_statistics_has_the_sizes_of_inputs(options: dict[str, bool]) -> None:
    model = llama()
    statistics = collect(model, **options)
    assert statistics.columns and statistics.full == options.get("full", True)
    assert statistics.gradients == options.get("gradients", True)
    for name in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
        found = sizes_of(statistics, f"{name}.weight")
        assert found is not None and found[1] == 200
        want = inputs_of(model, name).flatten(0, 1).square().mean(0)
        # Second moments count tokens by gradients, if these are known.
        assert torch.allclose(found[0], want, rtol=1e-4) == (options != {})
        assert has_moments(statistics, f"{name}.weight") == options.get("full", True)
    # No step says anything where nothing was learned of them.
    assert bool(statistics.factors()) == options.get("gradients", True)


def test_sizes_alone_take_no_gradients_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr(torch.Tensor, "backward", lambda *a, **k: pytest.fail("gradients are taken"))
    statistics = collect(model, **SIZES)
    assert statistics.nbytes == 0 and "none: columns only" in repr(statistics) and not statistics.report.fallbacks
    assert all(unit.sensitivity == 0 for unit in statistics.units.values())
    assert {unit.site for unit in statistics.units.values()} == set(statistics.sites)


def test_a_model_is_measured_while_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, written = llama(), []
    sampled = _text.sampled
    monkeypatch.setattr(_text, "sampled", lambda *a: written.extend(sampled(*a)) or written)
    done: list[tuple[int, int]] = []
    statistics = wcodec.collect_statistics(
        model, windows=6, length=11, progress=lambda *told: done.append(told), **SIZES
    )
    assert statistics.source == "self" and statistics.tokens == 66 and done[-1] == (60, 60)
    name = "model.layers.1.mlp.down_proj"
    squares = inputs_of(model, name, torch.stack(written)[:, :-1]).square()
    # First tokens count as in windows of 512 tokens, which have one.
    weight = 11 / 512
    want = (weight * squares[:, 0].sum(0) + squares[:, 1:].sum((0, 1))) / (6 * (weight + 9))
    found = sizes_of(statistics, f"{name}.weight")
    assert found is not None and torch.allclose(found[0], want, rtol=1e-3) and found[1] == 60


def test_few_tokens_are_looked_at_in_short_texts() -> None:
    model, cpu = llama(), torch.device("cpu")
    assert amount.pieces(model, None, None, None, cpu, few=True) == amount.Pieces(64, 64)
    assert amount.pieces(model, None, None, 512, cpu, few=True) == amount.Pieces(32, 16)
    assert amount.pieces(model, 7, 9, None, cpu, few=True) == amount.Pieces(7, 9)


def test_columns_of_transposed_weights_are_inputs() -> None:
    model = gpt2()
    statistics = collect(model, **SIZES)
    found = sizes_of(statistics, "transformer.h.0.mlp.c_proj.weight", (32, 128))
    want = inputs_of(model, "transformer.h.0.mlp.c_proj").flatten(0, 1).square().mean(0)
    assert found is not None and torch.allclose(found[0], want, rtol=1e-4)
    with pytest.raises(wcodec.InputError, match=r"the statistics are of \[32, 128\]"):
        sizes_of(statistics, "transformer.h.0.mlp.c_proj.weight", (128, 32))


def test_rare_experts_have_the_inputs_of_their_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixtral()
    plain = collect(model, **SIZES)
    tokens = plain.report.tokens
    monkeypatch.setattr(_collect, "FEW_TOKENS", 1 + max(tokens.values()))
    statistics = collect(model, **SIZES)
    layer = "model.layers.0.block_sparse_moe.experts"
    pooled = statistics.sites["model.layers.0.mlp.experts.gate_up_proj"]
    assert pooled.tokens == 400 and pooled.width == 0
    all_inputs = [sizes_of(statistics, f"{layer}.{e}.{w}.weight") for e in range(4) for w in ("w1", "w3")]
    assert all(found is not None and torch.equal(found[0], all_inputs[0][0]) for found in all_inputs)  # type: ignore[index]
    own = [sizes_of(plain, f"{layer}.{e}.w1.weight") for e in range(4)]
    mean = sum(found[0] * found[1] for found in own if found is not None) / 400
    assert torch.allclose(all_inputs[0][0], mean, rtol=1e-3)  # type: ignore[index]
    # The second matrices have inputs of their own, however few.
    for expert in range(4):
        name = f"{layer}.{expert}.w2.weight"
        assert (sizes_of(statistics, name) is not None) == (tokens[name] > 0)
        one, other = sizes_of(statistics, name), sizes_of(plain, name)
        assert one is None or other is not None and torch.equal(one[0], other[0])


def test_files_keep_sizes_and_earlier_ones_may_have_none(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    for model in (llama(), mixtral(), gpt2()):
        for options in (SIZES, {"full": False}):
            made = collect(model, **options)
            made.save(path, overwrite=True)
            assert (b'\\"version\\": 2' if options == SIZES else b'\\"version\\": 4') in path.read_bytes()[:1000]
            found = wcodec.Statistics.load(path)
            assert (found.units, found.sites, repr(found)) == (made.units, made.sites, repr(made))
            for site in made.sites:
                assert torch.equal(moments_of(found, site)[0].diagonal, moments_of(made, site)[0].diagonal)
    # An earlier version wrote of steps only that nothing refers to an input.
    made = collect(llama(), full=False)
    units = {
        name: type(unit)(**{**vars(unit), "site": None, "embedding": 0.0})
        for name, unit in made.units.items()
        if unit.sensitivity
    }
    about = {"source": "self", "tokens": 9, "text_hash": "", "model_hash": ""}
    wcodec.Statistics(units, {}, {}, made.names, **about).save(path, overwrite=True)
    assert b'\\"version\\": 1' in path.read_bytes()[:1000]
    found = wcodec.Statistics.load(path)
    assert not found.columns and found.gradients and "none: steps only" in repr(found)
    assert sizes_of(found, "model.layers.0.mlp.down_proj.weight") is None


# The recipe


def weights_of(weight: Any) -> recipe.Weights:
    return recipe.measured(weight)


def test_columns_with_larger_inputs_get_finer_steps() -> None:
    torch.manual_seed(4)
    sizes = torch.exp2(2 * torch.randn(256))
    weights = weights_of(torch.randn(512, 256))
    found = recipe.factors_of(sizes, weights, 100.0)
    assert found is not None and float(found.log2().mean()) == pytest.approx(0, abs=1e-3)
    assert torch.equal(found, found.to(torch.bfloat16).to(torch.float32))
    slope = (found.log2() * sizes.log2()).sum() / sizes.log2().square().sum()
    assert float(slope) == pytest.approx(-recipe.POWER, rel=0.02)
    assert recipe.left(found, sizes) < 0.5
    # Few tokens are half of the evidence, and half of the power.
    few = recipe.factors_of(sizes, weights, 100.0, tokens=16)
    assert few is not None and torch.allclose(few.log2(), found.log2() / 2, atol=0.01)


def test_factors_that_do_not_pay_are_left_out() -> None:
    torch.manual_seed(4)
    alike = 1 + 0.1 * torch.rand(256)
    sizes = torch.exp2(2 * torch.randn(256))
    assert recipe.factors_of(alike, weights_of(torch.randn(64, 256)), 100.0) is None
    assert recipe.factors_of(sizes, weights_of(torch.randn(16, 256)), 100.0) is None
    assert recipe.factors_of(torch.zeros(256), weights_of(torch.randn(512, 256)), 100.0) is None
    assert recipe.factors_of(sizes, weights_of(torch.full((512, 256), torch.nan)), 100.0) is None


def test_no_weight_leaves_the_range_of_symbols() -> None:
    torch.manual_seed(4)
    sizes = torch.ones(256)
    sizes[3] = 1e6
    weight = torch.randn(512, 256)
    weight[:, 3] *= 3
    weight[7, 3] = 40
    rms = weight.square().mean(1).sqrt()
    for farthest in (100.0, 30.0):
        found = recipe.factors_of(sizes, weights_of(weight), farthest)
        assert found is not None and float(found[3]) < 1
        most = float((weight / found / rms[:, None])[:, 3].abs().max())
        assert most < farthest
    # A largest weight without any room leaves its column the step of the others.
    assert recipe.factors_of(sizes, weights_of(weight), 8.0) is None
    silent = recipe.factors_of(torch.cat([sizes[:-1], torch.zeros(1)]), weights_of(weight), 100.0)
    assert silent is not None and bool(torch.isfinite(silent).all()) and float(silent.max()) < 2


# Savings


@pytest.fixture(scope="module")
def trained(model: Path) -> Iterator[tuple[Any, Any]]:
    """The model of the repository, and text that it has not seen."""
    original = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    text = transformers.AutoTokenizer.from_pretrained(model)((model / "heldout.txt").read_text("utf-8"))
    ids = torch.tensor(text["input_ids"])
    yield original, torch.stack([ids[i : i + 256] for i in range(len(ids) // 2, len(ids) - 256, len(ids) // 14)])


def encoded(model: Any, **options: Any) -> tuple[dict[str, Any], int, float]:
    """Matrices of the layers as they come back, how many have factors, and their bits."""
    weights = {n: p.detach() for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n}
    data, report = wcodec.compress_to_bytes(weights, progress=False, **options)
    assert report.rate is not None
    with wcodec.open(data) as container:
        found = {name: container[name].torch() for name in weights}
        return found, sum(container[name].columns for name in weights), report.rate.bits_per_weight


@pytest.mark.parametrize("bits", [3.0, 3.5])
def test_outlier_channels_cost_little(trained: Any, bits: float) -> None:
    model, windows = trained
    with give_outliers(model):
        statistics = wcodec.collect_statistics(model, **SIZES)
        lost = {}
        for kind, options in {"plain": {}, "columns": {"calibrate": statistics}}.items():
            changed, factors, found = encoded(model, bits=bits, **options)
            assert found == pytest.approx(bits, rel=5e-3) and (factors > 10) == (kind == "columns")
            lost[kind] = divergence(model, windows, changed) * 4 ** (found - bits)
    # 0.09 of it at 3 bits, 0.05 at 3.5.
    assert lost["columns"] < 0.15 * lost["plain"], lost


def test_error_feedback_has_factors_too(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, windows = trained
    with give_outliers(model):
        statistics = wcodec.collect_statistics(model, windows=16, length=128)
        lost, kinds = {}, {"columns": {"feedback": False}, "both": {}}
        for kind, options in kinds.items():
            changed, factors, found = encoded(model, bits=3.0, calibrate=statistics, **options)
            assert found == pytest.approx(3.0, rel=5e-3)
            lost[kind] = divergence(model, windows, changed) * 4 ** (found - 3.0), factors
        monkeypatch.setattr(recipe, "factors_of", lambda *a: None)
        changed, factors, found = encoded(model, bits=3.0, calibrate=statistics)
        lost["feedback"] = divergence(model, windows, changed) * 4 ** (found - 3.0), factors
    assert lost["both"][0] < 0.98 * min(lost["columns"][0], lost["feedback"][0]), lost
    assert lost["both"][1] > 3 and lost["feedback"][1] == 0, lost


@pytest.mark.parametrize("bits", [3.0, 3.5])
def test_nothing_is_lost_without_outliers(trained: Any, bits: float) -> None:
    model, windows = trained
    statistics = wcodec.collect_statistics(model, **SIZES)
    lost = {}
    for kind, options in {"plain": {}, "columns": {"calibrate": statistics}}.items():
        changed, _, found = encoded(model, bits=bits, **options)
        lost[kind] = divergence(model, windows, changed) * 4 ** (found - bits)
    # One bit pattern and another differ by 3 %.
    assert lost["columns"] < 1.04 * lost["plain"], lost
