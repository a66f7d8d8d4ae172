"""Untrained models of several kinds, quick enough to be calibrated in each test, and statistics of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 90, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
TEXT = torch.arange(5 * 40).view(5, 40) * 7 % 90


def llama(**other: Any) -> Any:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **other})).eval()


def wider_llama(**other: Any) -> Any:
    """With enough weights for bits to be met."""
    return llama(**{"hidden_size": 64, "intermediate_size": 128, **other})


def mixtral() -> Any:
    torch.manual_seed(2)
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config).eval()
    # Large enough weights for routing to mean something, and an expert of layer 1 that nobody is sent to.
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.mul_(30)
        model.model.norm.weight.fill_(1)
    return model


def gpt2() -> Any:
    torch.manual_seed(3)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 90}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()


def checkpoint_of(model: Any, factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of a model."""
    place = factory.mktemp("models") / "llama"
    model.save_pretrained(place)
    return place


def collect(model: Any, data: Any = TEXT, **options: Any) -> wcodec.Statistics:
    return wcodec.collect_statistics(model, data=data, **{"windows": 5, "length": 40, **options})
