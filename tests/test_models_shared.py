"""Models whose layers share more than a weight, and tables that others read a scale of, stay so when compressed."""

import copy

import pytest
import torch
import wcodec
from small_models import mixtral
from torch import nn


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


def test_experts_that_are_tied_are_tied_again_when_decompressed():
    model = nn.ModuleDict({"a": mixtral().model.layers[0].mlp.experts, "b": mixtral().model.layers[0].mlp.experts})
    for name in ("gate_up_proj", "down_proj"):
        setattr(model["b"], name, getattr(model["a"], name))
    wcodec.compress_(model, progress=False)
    wcodec.decompress_(model)
    assert model["a"].gate_up_proj is model["b"].gate_up_proj
    assert model["a"].down_proj is model["b"].down_proj
    assert model["a"].down_proj is not model["a"].gate_up_proj


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
