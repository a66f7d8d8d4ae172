"""Models whose layers share more than a weight, and tables that others read a scale of, stay so when compressed."""

import copy

import pytest
import torch
import wcodec
from small_models import mixtral
from torch import nn
from wcodec._models.names import Match
from wcodec._models.plain import Filling


class Heads(nn.Module):
    """Two heads that are one, and keep modules of their own."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.two.weight, self.two.bias = self.one.weight, self.one.bias

    def forward(self, x):
        return self.two(self.one(x))


def test_biases_of_layers_that_are_all_compressed_stay_tied():
    model = Heads()
    wcodec.compress_(model, progress=False)
    assert model.one.bias is model.two.bias
    wcodec.decompress_(model)
    assert model.one.weight is model.two.weight and model.one.bias is model.two.bias


class Listed(nn.Module):
    """A block that runs modules from plain Python values, as Mask2Former's heads do."""

    def __init__(self):
        super().__init__()
        self.add_module("0", nn.Linear(64, 64))
        self.add_module("1", nn.Linear(64, 64))
        self.layers = [self._modules["0"], nn.ReLU()]
        self.by_name = {"last": (self._modules["1"], self.layers)}
        object.__setattr__(self, "first", self._modules["0"])
        self.layers.append(self.layers)

    def forward(self, x):
        return self.by_name["last"][0](self.layers[1](self.layers[0](self.first(x))))


def test_modules_that_are_held_in_plain_values_are_exchanged_there_too():
    model, x = Listed(), torch.randn(3, 64)
    before = [model.layers[0], model.by_name["last"][0], model.first]
    wcodec.compress_(model, progress=False)
    held = [model.layers[0], model.by_name["last"][0], model.first]
    assert held == [model._modules["0"], model._modules["1"], model._modules["0"]]
    assert all(isinstance(module, wcodec.nn.CompressedLinear) for module in held)
    wanted = model(x)
    wcodec.decompress_(model)
    held = [model.layers[0], model.by_name["last"][0], model.first]
    assert held == [model._modules["0"], model._modules["1"], model._modules["0"]]
    assert not any(a is b for a, b in zip(held, before, strict=True)) and torch.equal(model(x), wanted)


def test_lists_of_blocks_may_have_nothing_in_a_place():
    model = nn.ModuleList([nn.Linear(64, 64), None, nn.Linear(64, 64)])
    wcodec.compress_(model, progress=False)
    assert [type(m) for m in model] == [wcodec.nn.CompressedLinear, type(None), wcodec.nn.CompressedLinear]


def test_experts_that_are_tied_are_tied_again_when_decompressed():
    model = nn.ModuleDict({"a": mixtral().model.layers[0].mlp.experts, "b": mixtral().model.layers[0].mlp.experts})
    for name in ("gate_up_proj", "down_proj"):
        setattr(model["b"], name, getattr(model["a"], name))
    wcodec.compress_(model, progress=False)
    wcodec.decompress_(model)
    assert model["a"].gate_up_proj is model["b"].gate_up_proj
    assert model["a"].down_proj is model["b"].down_proj
    assert model["a"].down_proj is not model["a"].gate_up_proj


class Untying(nn.Module):
    """Ties as the first versions of transformers 5 do it: nothing of which both tensors were read."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(2, 2) for _ in range(3))
        self.all_tied_weights_keys = {"two.bias": "one.bias", "three.bias": "one.bias"}

    def tie_weights(self, missing_keys):
        for target, source in self.all_tied_weights_keys.items():
            if target in missing_keys or source in missing_keys:
                target, source = (target, source) if target in missing_keys else (source, target)
                self.get_submodule(target[:-5]).bias = self.get_parameter(source)
                missing_keys.discard(target)


@pytest.mark.parametrize("absent", [set(), {"one.bias"}, {"two.bias"}, {"one.bias", "two.bias"}])
def test_what_is_tied_in_the_file_is_tied_by_every_transformers(absent):
    model = Untying()
    names = dict.fromkeys(["one.bias", "two.bias", "three.bias"], "two.bias")
    found = Match(single=names, experts={})
    missing = set(absent)
    Filling(model, found, lambda name: torch.ones(2), True, "file")
    model.tie_weights(missing_keys=missing)
    assert model.one.bias is model.two.bias is model.three.bias and missing == set()


def test_stacks_of_experts_that_are_tied_are_stored_once(tmp_path, monkeypatch):
    kind = type(mixtral())
    of_stacks = {
        f"model.layers.1.mlp.experts.{n}": f"model.layers.0.mlp.experts.{n}" for n in ("gate_up_proj", "down_proj")
    }
    monkeypatch.setattr(kind, "_tied_weights_keys", {**kind._tied_weights_keys, **of_stacks})
    config = mixtral().config
    config.tie_word_embeddings = True
    kind(config).save_pretrained(tmp_path / "plain")
    report = wcodec.compress(tmp_path / "plain", f"{tmp_path}/out/", progress=False)
    assert not [t.name for t in report.tensors if ".layers.1.mlp.experts." in t.name]
    for model in (wcodec.load_model(tmp_path / "plain", scheme="int8"), wcodec.load_model(tmp_path / "out")):
        one, two = (model.model.layers[i].mlp.experts for i in (0, 1))
        assert one.tensors == two.tensors
        wcodec.decompress_(model)
        one, two = (model.model.layers[i].mlp.experts for i in (0, 1))
        assert one.down_proj is two.down_proj and one.gate_up_proj is two.gate_up_proj


def test_the_scale_of_a_table_can_be_read():
    gemma = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    table = gemma.Gemma3TextScaledWordEmbedding(64, 32, 0, embed_scale=32**0.5)
    model = nn.Sequential(copy.deepcopy(table))
    wcodec.compress_(model, progress=False)
    assert torch.equal(model[0].embed_scale, table.embed_scale)
    assert model[0].scalar_embed_scale == table.scalar_embed_scale


def test_a_plain_table_has_no_scale():
    model = nn.Sequential(nn.Embedding(64, 32))
    wcodec.compress_(model, progress=False)
    with pytest.raises(AttributeError, match="embed_scale"):
        model[0].embed_scale  # noqa: B018


def test_classes_that_give_experts_values_leave_compressed_ones_alone():
    init = pytest.importorskip("transformers.initialization")
    model = mixtral()
    wcodec.compress_(model, progress=False)
    experts = model.model.layers[0].mlp.experts
    before = experts.down_proj[0].clone()
    init.normal_(experts.down_proj, mean=0.0, std=1.0)
    assert torch.equal(experts.down_proj[0], before)
