"""Collecting statistics from models of several kinds, keeping them in files, and what comes of damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import TEXT, collect, gpt2, llama, mixtral  # noqa: E402
from wcodec._calibrate import collect as _collect  # noqa: E402
from wcodec._calibrate import statistics as _statistics  # noqa: E402
from wcodec._calibrate.factor import shrunk  # noqa: E402
from wcodec._calibrate.records import UnitRecord  # noqa: E402
from wcodec._calibrate.statistics import (  # noqa: E402
    Statistics,
    costs_of_rows,
    feedback_for,
    fisher_power,
    moments_of,
)
from wcodec._gpu import devices  # noqa: E402


def inputs_of(model: Any, modules: list[str]) -> dict[str, Any]:
    """All inputs of some layers, as hooks of torch see them."""
    found: dict[str, list[Any]] = {name: [] for name in modules}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: found[name].append(args[0].detach().reshape(-1, args[0].shape[-1]))
        )
        for name in modules
    ]
    with torch.no_grad():
        model(TEXT)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def test_second_moments_are_those_of_the_inputs() -> None:
    model = llama()
    statistics = collect(model, gradients=False)
    assert len(statistics.units) == 15 and statistics.full and statistics.tokens == 200
    # Layers with the same input share it.
    sites = {name: unit.site for name, unit in statistics.units.items()}
    attention, mlp = "model.layers.1.self_attn", "model.layers.1.mlp"
    assert {sites[f"{attention}.{x}_proj.weight"] for x in "qkv"} == {f"{attention}.q_proj"}
    assert sites[f"{mlp}.up_proj.weight"] == f"{mlp}.gate_proj" and len(statistics.sites) == 9
    for name, x in inputs_of(model, [f"{attention}.q_proj", f"{mlp}.down_proj", "lm_head"]).items():
        (kept,) = moments_of(statistics, name)
        assert torch.allclose(kept.dense(), x.T @ x / len(x), rtol=2e-3, atol=2e-3 * float(x.square().mean()))
        assert statistics.sites[name].tokens == 200
    bytes_ = sum(
        2 * min(128, n - i) * (n - i) + 4 * min(128, n - i)
        for n in (s.cols for s in statistics.sites.values())
        for i in range(0, n, 128)
    )
    assert statistics.nbytes == bytes_
    assert f"second moments: {bytes_ / 1024:.2f} KiB" in repr(statistics) and "15 tensors" in str(statistics.report)


def test_sensitivity_is_the_trace_of_the_fisher_information() -> None:
    model = llama()
    name = "model.layers.0.mlp.up_proj"
    layer = model.get_submodule(name)
    window = TEXT[:1]
    statistics = collect(model, window, seed=11)
    # Targets are drawn as `collect` draws them, and gradients are those of a layer's weight, token by token.
    with torch.no_grad():
        chances = torch.softmax(model(window).logits[0].float(), -1)
        drawn = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(11))[:, 0]
    kept: list[Any] = []
    hook = layer.register_forward_hook(lambda module, args, output: kept.append((args[0].detach(), output)))
    loss = torch.nn.functional.cross_entropy(model(window).logits[0].float(), drawn, reduction="sum")
    hook.remove()
    x, output = kept[0]
    (gradient,) = torch.autograd.grad(loss, output)
    squares = layer.weight.detach().square().mean(1, keepdim=True)
    want = sum(float((torch.outer(g, i).square() * squares).sum()) for g, i in zip(gradient[0], x[0], strict=True))
    assert statistics.units[f"{name}.weight"].sensitivity == pytest.approx(want, rel=1e-4)


def gradients_of(model: Any, window: Any, seed: int, modules: list[str]) -> dict[str, tuple[Any, Any]]:
    """Inputs of layers ``[tokens, cols]``, and gradients of their outputs, of targets drawn as `collect` draws them."""
    with torch.no_grad():
        chances = torch.softmax(model(window).logits[0].float(), -1)
        drawn = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(seed))[:, 0]
    kept: dict[str, tuple[Any, Any]] = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: kept.update({name: (args[0].detach()[0], output)})
        )
        for name in modules
    ]
    loss = torch.nn.functional.cross_entropy(model(window).logits[0].float(), drawn, reduction="sum")
    for hook in hooks:
        hook.remove()
    found = torch.autograd.grad(loss, [kept[name][1] for name in modules])
    return {name: (kept[name][0], gradient[0]) for name, gradient in zip(modules, found, strict=True)}


@pytest.mark.parametrize("memory", ["1GB", 4 * 48 * 48])
def test_tokens_count_by_the_root_of_what_errors_at_them_cost(memory: Any) -> None:
    model, window = llama(), TEXT[:1]
    attention, down = "model.layers.0.self_attn", "model.layers.1.mlp.down_proj"
    statistics = collect(model, window, seed=5, memory=memory)
    names = [f"{attention}.{x}_proj" for x in "qkv"]
    for site, layers in ((f"{attention}.q_proj", names), (down, [down])):
        costs = torch.zeros(window.shape[1])
        found = gradients_of(model, window, 5, layers)
        for name, (_, gradient) in found.items():
            costs += gradient.square() @ model.get_submodule(name).weight.detach().square().mean(1)
        weights = costs.sqrt() / costs.sqrt().mean()
        assert float(weights.max()) > 1.5
        x = found[site][0]
        want = (x * weights[:, None]).T @ x / len(x)
        blocks = moments_of(statistics, site)
        width = statistics.sites[site].width
        for i, block in enumerate(blocks):
            part = slice(i * width, (i + 1) * width)
            assert torch.allclose(block.dense(), want[part, part], rtol=3e-3, atol=3e-3 * float(want.diagonal().mean()))
        assert statistics.sites[site].tokens == window.shape[1]


def test_all_passes_have_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    # The memory of a GPU that is free differs from pass to pass.
    sizes = iter([4 * 90 * TEXT.shape[1] * 3, *[4 * 90 * TEXT.shape[1] * 2] * 99])
    monkeypatch.setattr(_collect, "_logits_bytes", lambda place: next(sizes))
    found: list[Any] = []
    weights = _collect.TokenCosts.weights

    def watched(self: Any, site: str, tokens: int) -> Any:
        found.append(weights(self, site, tokens))
        return found[-1]

    monkeypatch.setattr(_collect.TokenCosts, "weights", watched)
    collect(llama(), memory=4 * 48 * 48)
    assert len(found) > 9 and all(one is not None for one in found)


def test_costs_of_rows_are_gradients_times_inputs() -> None:
    model, window = llama(), TEXT[:1]
    name = "model.layers.1.self_attn.o_proj"
    statistics = collect(model, window, seed=3)
    x, gradient = gradients_of(model, window, 3, [name])[name]
    want = (gradient.square() * x.square().sum(1, keepdim=True)).mean(0)
    found = costs_of_rows(statistics, f"{name}.weight")
    assert found is not None and found[1] == window.shape[1]
    assert torch.allclose(found[0], want, rtol=1e-4)
    assert costs_of_rows(collect(model, gradients=False), f"{name}.weight") is None
    # Rows of a head are tokens, of which a text has few.
    assert statistics.units["lm_head.weight"].sensitivity > 0
    assert costs_of_rows(statistics, "lm_head.weight") is None
    # The outputs of GPT-2's matrices are their columns.
    wide = costs_of_rows(collect(gpt2()), "transformer.h.0.mlp.c_fc.weight")
    assert wide is not None and len(wide[0]) == gpt2().transformer.h[0].mlp.c_fc.weight.shape[1]


def test_a_model_is_left_as_it_was() -> None:
    for model in (llama(), mixtral(), gpt2()):
        model.train()
        model.get_input_embeddings().eval()
        before = {name: (p.requires_grad, p.clone()) for name, p in model.named_parameters()}
        modes = [module.training for module in model.modules()]
        with torch.no_grad():
            model.eval()
            logits = model(TEXT).logits
            for module, mode in zip(model.modules(), modes, strict=True):
                module.training = mode
        collect(model)
        assert [module.training for module in model.modules()] == modes
        after = dict(model.named_parameters())
        assert list(after) == list(before)
        for name, (wanted, value) in before.items():
            assert after[name].requires_grad == wanted and torch.equal(after[name], value) and after[name].grad is None
        model.eval()
        with torch.no_grad():
            assert torch.equal(model(TEXT).logits, logits)


def test_memory_makes_passes_and_changes_nothing() -> None:
    for model in (llama(), mixtral()):
        whole, parts = collect(model), collect(model, memory=48 * 48 * 4 + 1)
        assert whole.sites == parts.sites and whole.units == parts.units and whole.text_hash == parts.text_hash
        for site in whole.sites:
            for one, other in zip(moments_of(whole, site), moments_of(parts, site), strict=True):
                assert torch.equal(one.strips, other.strips) and torch.equal(one.diagonal, other.diagonal)


def test_progress_ends_at_the_total() -> None:
    for options in ({"memory": 48 * 48 * 4}, {"data": "self", "windows": 3}):
        told: list[tuple[int, ...]] = []
        collect(llama(), progress=lambda *told_now, told=told: told.append(told_now), **options)
        assert told[-1][0] == told[-1][1] and [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_same_seed_gives_the_same_statistics() -> None:
    model = llama()
    one, same, other = (collect(model, "self", windows=3, length=20, seed=seed) for seed in (5, 5, 6))
    assert one.units == same.units and one.text_hash == same.text_hash != other.text_hash
    assert one.source == "self" and one.tokens == 60 and one.model_hash == other.model_hash
    assert one.model_hash != collect(llama(num_hidden_layers=1)).model_hash


def test_steps_only_is_the_cheap_part() -> None:
    model = llama()
    cheap, full = collect(model, full=False), collect(model)
    assert not cheap.full and cheap.nbytes == 0 and "steps only" in repr(cheap)
    assert {n: u.sensitivity for n, u in cheap.units.items()} == {n: u.sensitivity for n, u in full.units.items()}
    assert feedback_for(cheap, "lm_head.weight", trellis=True) is None
    for statistics in (cheap, full):
        found = statistics.factors()
        sizes = {name: unit.rows * unit.cols for name, unit in statistics.units.items()}
        mean = sum(sizes[n] * torch.tensor(found[n]).log() for n in sizes) / sum(sizes.values())
        assert float(mean) == pytest.approx(0, abs=1e-5)


def test_steps_of_experts_follow_less_of_the_fisher_information() -> None:
    def unit(cost: float, expert: bool) -> UnitRecord:
        return UnitRecord(4, 8, False, f"kind of {expert}", expert, None, 10_000, cost * 4 * 8 * 100)

    units = {f"{expert} {cost}": unit(cost, expert) for expert in (False, True) for cost in (1 / 4, 4.0)}
    statistics = Statistics(units, {}, {}, {}, source="self", tokens=100, text_hash="", model_hash="")
    found = statistics.factors()
    assert found["False 0.25"] / found["False 4.0"] == pytest.approx(4)
    assert found["True 0.25"] / found["True 4.0"] == pytest.approx(16**0.375)
    # At the usual cost, which is 1 here, both have the same steps.
    assert found["False 0.25"] * found["False 4.0"] == pytest.approx(found["True 0.25"] * found["True 4.0"])
    assert [fisher_power(statistics, name) for name in ("False 4.0", "True 4.0")] == [1, 0.75]


def test_factors_do_not_depend_on_how_weights_are_scaled() -> None:
    # Twice the weights of up and half of those of down are the same function: what matters is the error by the weights.
    model = llama()
    first = collect(model).factors()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
        model.model.layers[0].mlp.down_proj.weight.div_(2)
    second = collect(model).factors()
    assert all(second[name] == pytest.approx(first[name], rel=1e-3) for name in first)


def test_gpt2_has_its_inputs_as_rows_and_a_tied_head() -> None:
    model = gpt2()
    statistics = collect(model)
    unit = statistics.units["transformer.h.0.attn.c_attn.weight"]
    assert (unit.rows, unit.cols, unit.transposed) == (96, 32, True)
    x = inputs_of(model, ["transformer.h.0.mlp.c_proj"])["transformer.h.0.mlp.c_proj"]
    known = feedback_for(statistics, "transformer.h.0.mlp.c_proj.weight", trellis=True, shape=(32, 128))
    assert known is not None and known.cols == 128
    seen = shrunk(x.T @ x / len(x), len(x))
    assert torch.allclose(known.blocks[0].moments.fill_diagonal_(0), seen.fill_diagonal_(0), atol=2e-3)
    # One tensor, by either name.
    assert "lm_head.weight" not in statistics.units and "transformer.wte.weight" in statistics.units
    found = statistics.factors()
    assert found["lm_head.weight"] == pytest.approx(found["transformer.wte.weight"])
    assert feedback_for(statistics, "lm_head.weight", trellis=True, shape=(90, 32)) is not None


def test_experts_have_statistics_of_their_own_and_rare_ones_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_collect, "RARE_TOKENS", 60)
    monkeypatch.setattr(_statistics, "RARE_TOKENS", 60)
    model = mixtral()
    # Expert 3 of layer 1 gets no token.
    gate = model.model.layers[1].mlp.gate
    chosen = gate.forward

    def never(*args: Any, **kwargs: Any) -> Any:
        logits, weights, index = chosen(*args, **kwargs)
        return logits, weights, index.masked_fill(index == 3, 0)

    gate.forward = never
    statistics = collect(model)
    names = {f"model.layers.{i}.block_sparse_moe.experts.{e}.{w}.weight" for i in (0, 1) for e in range(4)
             for w in ("w1", "w2", "w3")}  # fmt: skip
    assert names < set(statistics.units)
    tokens = statistics.report.tokens
    for layer in (0, 1):
        for w in ("w1", "w2", "w3"):
            own = [tokens[f"model.layers.{layer}.block_sparse_moe.experts.{e}.{w}.weight"] for e in range(4)]
            assert sum(own) == 400
    dead = "model.layers.1.block_sparse_moe.experts.3.w1.weight"
    assert tokens[dead] == 0 and statistics.report.fallbacks[dead] == "no token reached it"
    assert dead in str(statistics.report) and "by weights alone" in repr(statistics)
    assert feedback_for(statistics, dead, trellis=True) is None
    rare = {name for name in names if 0 < tokens[name] < 60}
    assert all("only" in statistics.report.fallbacks[name] for name in rare)
    well = names - rare - {name for name in names if tokens[name] == 0}
    assert well and all(feedback_for(statistics, name, trellis=False) is not None for name in well)
    # As coarse as the coarsest of its layer.
    found = statistics.factors()
    siblings = [name for name in well if name.startswith(dead[:15]) and name.endswith(dead[-9:])]
    assert siblings and found[dead] == pytest.approx(max(found[name] for name in siblings))
    # The names that the model's own parameters have: gate above up.
    for expert in range(4):
        stack = f"model.layers.0.mlp.experts.gate_up_proj.{expert}"
        assert statistics.names[stack] == tuple(
            f"model.layers.0.block_sparse_moe.experts.{expert}.{w}.weight" for w in ("w1", "w3")
        )
        parts = [found[name] for name in statistics.names[stack]]
        assert found[stack] == pytest.approx((parts[0] * parts[1]) ** 0.5)
        if not set(statistics.names[stack]) & set(statistics.report.fallbacks):
            known = feedback_for(statistics, stack, trellis=True, shape=(96, 32))
            assert known is not None and known.cols == 32


def test_second_moments_of_an_expert_are_of_its_tokens() -> None:
    model = mixtral()
    experts = model.model.layers[0].mlp.experts
    seen: list[Any] = []
    hook = experts.register_forward_pre_hook(lambda module, args: seen.append(args))
    with torch.no_grad():
        model(TEXT)
    hook.remove()
    hidden, index, _ = seen[0]
    whole = collect(model, TEXT.repeat(30, 1), windows=150)
    sent = {e: hidden.reshape(-1, 32)[(index == e).any(-1)] for e in range(4)}
    for expert, x in sent.items():
        name = f"model.layers.0.block_sparse_moe.experts.{expert}.w3.weight"
        assert whole.report.tokens[name] == 30 * len(x)
        site = whole.units[name].site
        if 30 * len(x) >= 1000:
            assert site is not None
            kept = moments_of(whole, site)[0].dense()
            assert torch.allclose(kept, x.T @ x / len(x), rtol=1e-2, atol=2e-3 * float(x.square().mean()))


def test_data_come_as_files_lists_tensors_and_data_sets(tmp_path: Path, model: Path) -> None:
    small = llama()
    one = collect(small, TEXT)
    flat = TEXT.reshape(-1)
    for data in (
        TEXT.tolist(),
        iter(TEXT),
        ({"input_ids": row} for row in TEXT),
        {"input_ids": TEXT, "attention_mask": torch.ones_like(TEXT)},
        {"input_ids": flat.tolist()},
        flat,
        flat.tolist(),
        iter(flat.tolist()),
    ):
        assert collect(small, data).text_hash == one.text_hash
    assert collect(small, flat.numpy(), windows=2).tokens == 80
    # Texts are cut, not joined.
    assert collect(small, [list(range(50)), [1], [5, 6, 7]]).tokens == 53
    trained = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    (tmp_path / "text.txt").write_text((model / "heldout.txt").read_text("utf-8")[:3000], "utf-8")
    found = wcodec.collect_statistics(trained, data=str(tmp_path / "text.txt"), windows=2, length=64, full=False)
    assert found.source == "text" and found.tokens == 128 and len(found.units) == 30


def test_what_cannot_be_learned_from_is_refused(tmp_path: Path) -> None:
    model = llama()
    compressed = llama()
    wcodec.compress_(compressed, progress=False)
    broken = llama()
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight.fill_(torch.inf)
    cases: dict[str, Callable[[], Any]] = {
        "must be a torch.nn.Module": lambda: collect(3),
        "no token ids to collect": lambda: collect(model, []),
        "there are no token ids": lambda: collect(model, [[1]]),
        "data must be 'mixed', 'self'": lambda: collect(model, 5),
        "length=65 is more than": lambda: collect(model, length=65),
        "windows must be whole numbers": lambda: collect(model, windows=0),
        "do not fit the model's vocabulary": lambda: collect(model, [[1, 2, 90]]),
        "memory must be a size": lambda: collect(model, memory="much"),
        "nothing to compress": lambda: collect(compressed),
        "predicts what is not finite, so that nothing": lambda: collect(broken),
        "predicts what is not finite, so that no text": lambda: collect(broken, "self"),
        "there is no such file": lambda: collect(model, tmp_path / "no.txt"),
        "data have no 'input_ids'": lambda: collect(model, {"text": TEXT}),
        "to device 'tpu'": lambda: collect(model, device="tpu"),
        r"the gradients of '[\w.]*' are not finite": lambda: collect(overflowing()),
    }
    for message, call in cases.items():
        with pytest.raises((wcodec.InputError, wcodec.FileMissingError), match=message):
            call()
    with pytest.raises(wcodec.FileMissingError):
        collect(model, "slef")
    with pytest.raises(wcodec.InputError, match=r"it has shape \[8, 8\], and the statistics are of \[90, 32\]"):
        feedback_for(collect(model), "lm_head.weight", trellis=True, shape=(8, 8))
    assert feedback_for(collect(model), "model.embed_tokens.weight", trellis=True) is None


def overflowing() -> Any:
    """A model whose predictions are finite, and whose gradients are not, as in float16."""
    model = llama()
    model.model.norm.register_full_backward_hook(
        lambda module, inputs, outputs: tuple(gradient * torch.inf for gradient in inputs)
    )
    return model


def test_the_mode_of_the_caller_does_not_matter() -> None:
    model = llama()
    expected = collect(model, "self", windows=2, length=20)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert collect(model, "self", windows=2, length=20).units == expected.units


def test_a_model_goes_back_from_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    moves: list[Any] = []

    def to(place: Any) -> Any:
        moves.append(place)
        if len(moves) == 1:
            raise MemoryError
        return model

    monkeypatch.setattr(devices, "place", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(model, "to", to)
    with pytest.raises(MemoryError):
        collect(model, device="cuda")
    assert moves == [torch.device("cuda", 0), torch.device("cpu")]


def test_files_give_back_what_was_saved(tmp_path: Path) -> None:
    for number, made in enumerate((collect(llama()), collect(mixtral()), collect(gpt2(), full=False))):
        path = tmp_path / f"{number}.safetensors"
        made.save(path)
        found = wcodec.Statistics.load(path)
        assert repr(found) == repr(made) and found.report == made.report and found.factors() == made.factors()
        assert (found.units, found.sites, found.names) == (made.units, made.sites, made.names)
        assert (found.text_hash, found.model_hash, found.tokens) == (made.text_hash, made.model_hash, made.tokens)
        for site in made.sites:
            for one, other in zip(moments_of(found, site), moments_of(made, site), strict=True):
                assert torch.equal(one.strips, other.strips) and torch.equal(one.diagonal, other.diagonal)
        for name in made.units:
            rows = costs_of_rows(made, name)
            again = costs_of_rows(found, name)
            # Neither heads nor embeddings have outputs that every text wants.
            if name in (
                "lm_head.weight",
                "model.embed_tokens.weight",
                "transformer.wte.weight",
                "transformer.wpe.weight",
            ):
                assert rows is None and again is None
                continue
            assert rows is not None and again is not None and torch.equal(rows[0], again[0]) and rows[1] == again[1]
        # And again, from the file.
        found.save(tmp_path / "again.safetensors", overwrite=True)
        assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
        with pytest.raises(wcodec.OutputExistsError):
            made.save(path)


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """A file with another header and description."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    said = json.loads(header["__metadata__"]["wcodec.statistics"])
    change(said, header)
    header["__metadata__"]["wcodec.statistics"] = json.dumps(said)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out = path.with_name("changed.safetensors")
    out.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    return out


def test_files_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    collect(llama()).save(path)
    data = path.read_bytes()
    head, site = "lm_head.weight", "lm_head"
    changes: list[Callable[[dict[str, Any], dict[str, Any]], object]] = [
        lambda said, header: said.update(tokens=0),
        lambda said, header: said.update(tokens="many"),
        lambda said, header: said.update(source=5),
        lambda said, header: said.update(units=[1, 2]),
        lambda said, header: said.pop("sites"),
        lambda said, header: said["sites"].pop(site),
        lambda said, header: said["sites"].update({site: [32, 0, 1, 1.0]}),
        lambda said, header: said["sites"].update({site: [32, 33, 1, 1.0]}),
        lambda said, header: said["sites"].update({site: [32, 1, 1, 1.0]}),
        lambda said, header: said["sites"].update({site: [2**40, 2**40, 1, 1.0]}),
        lambda said, header: said["sites"].update({site: [32, 32, 1, float("nan")]}),
        lambda said, header: said["sites"].update({site: [32, 32]}),
        lambda said, header: said["sites"].update({"another": [32, 32, 1, 1.0]}),
        lambda said, header: said["units"][head].__setitem__(0, 0),
        lambda said, header: said["units"][head].__setitem__(1, 31),
        lambda said, header: said["units"][head].__setitem__(2, 1),
        lambda said, header: said["units"][head].__setitem__(3, None),
        lambda said, header: said["units"][head].__setitem__(5, "nowhere"),
        lambda said, header: said["units"][head].__setitem__(6, -1),
        lambda said, header: said["units"][head].__setitem__(6, True),
        lambda said, header: said["units"][head].__setitem__(7, -1.0),
        lambda said, header: said["units"][head].__setitem__(7, float("inf")),
        lambda said, header: said["units"][head].append(-1.0),
        lambda said, header: said["units"][head].append("much"),
        lambda said, header: said["units"][head].extend([1.0, 1.0]),
        lambda said, header: said["units"].update({head: [*said["units"][head][:7], 1.7e308, 1.7e308]}),
        lambda said, header: said["names"].update({head: [head]}),
        lambda said, header: said["names"].update({"x": []}),
        lambda said, header: said["names"].update({"x": ["y"]}),
        lambda said, header: said["names"].update({"x": [head, "model.layers.0.mlp.down_proj.weight"]}),
        lambda said, header: header["0.0.diagonal"].update(dtype="I32"),
        lambda said, header: header["0.0.diagonal"].update(shape=[8, 4]),
        lambda said, header: header.update({"9.0.diagonal": header.pop("0.0.diagonal")}),
        lambda said, header: header["0.rows"].update(shape=[8, 4]),
        lambda said, header: header["0.rows"].update(dtype="I32"),
        lambda said, header: header.update({"99.rows": header.pop("0.rows")}),
        lambda said, header: said.update(version=2),
        lambda said, header: said.update(version=3),
    ]
    for number, change in enumerate(changes):
        with pytest.raises(wcodec.FormatError, match="contradict themselves") as raised:
            wcodec.Statistics.load(changed(path, change))
        assert raised.value.file is not None and "collect them again" in str(raised.value), number
    with pytest.raises(wcodec.UnsupportedError, match="version 5"):
        wcodec.Statistics.load(changed(path, lambda said, header: said.update(version=5)))
    out = tmp_path / "other.safetensors"
    at = 8 + int.from_bytes(data[:8], "little")
    last = len(data) - 4
    for value, begin in ((float("nan"), at), (-1.0, at), (float("inf"), last), (-1.0, last)):
        # The first of the second moments, and the last of the costs of rows.
        out.write_bytes(data[:begin] + torch.tensor(value).numpy().tobytes() + data[begin + 4 :])
        with pytest.raises(wcodec.FormatError, match="negative or not finite"):
            wcodec.Statistics.load(out)
    for broken in (b"", data[:50], data[:-4], data[8:], b"[" * 100_000, (2**60).to_bytes(8, "little") + data[8:]):
        out.write_bytes(broken)
        with pytest.raises(wcodec.FormatError):
            wcodec.Statistics.load(out)
    deep = changed(path, lambda said, header: None).read_bytes()
    size = int.from_bytes(deep[:8], "little")
    header = json.loads(deep[8 : 8 + size])
    for text in ("[" * 100_000, "5", "{}", "null", '{"version": null}'):
        header["__metadata__"]["wcodec.statistics"] = text
        raw = json.dumps(header).encode()
        out.write_bytes(len(raw).to_bytes(8, "little") + raw + deep[8 + size :])
        with pytest.raises(wcodec.FormatError, match="contradict themselves"):
            wcodec.Statistics.load(out)
    plain = Path(__file__).parents[1] / "data/doc-llama-3m/model.safetensors"
    if plain.exists():
        with pytest.raises(wcodec.FormatError, match="without statistics"):
            wcodec.Statistics.load(plain)
    with pytest.raises(wcodec.FileMissingError):
        wcodec.Statistics.load(tmp_path / "none.safetensors")
