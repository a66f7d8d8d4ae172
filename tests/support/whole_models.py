"""Comparisons of a loaded model with another one: every parameter, buffer and decoded weight, and their dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wcodec
import wcodec.nn

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 128, "max_position_embeddings": 64}  # fmt: skip
IDS = torch.arange(3, 15)[None]


def llama(**other: Any) -> Any:
    return fresh(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **other))


def t5(**other: Any) -> Any:
    sizes = {"d_model": 64, "d_ff": 96, "num_layers": 1, "vocab_size": 128, "d_kv": 16, "num_heads": 4}
    config = transformers.T5Config(**{**sizes, "decoder_start_token_id": 0, **other})
    return fresh(transformers.T5ForConditionalGeneration, config)


def fresh(kind: Any, config: Any, dtype: Any = torch.bfloat16) -> Any:
    """A random model whose vectors are random, too, so that one that is made anew shows."""
    torch.manual_seed(0)
    model = kind._from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def tensors(model: Any) -> dict[str, Any]:
    """All values of a model, by the names that they have in one that is not compressed."""
    out = {}
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, wcodec.nn.CompressedExperts):
            out.update((prefix + key, p) for key, p in module.to_experts().named_parameters())
            continue
        if isinstance(module, wcodec.nn.CompressedLayer):
            out.update((prefix + key, getattr(module, key)) for key in module.keys)
        own = [*module._parameters.items(), *module._buffers.items()]
        out.update((prefix + key, t) for key, t in own if t is not None and key != "_marker")
    return out


def differences(found: Any, wanted: Any) -> list[str]:
    """Names of values of one model that are not those of another one, in its dtype, and what they are."""
    there, out = tensors(found), []
    for name, value in tensors(wanted).items():
        # Scaled tables of Gemma keep their scale as a number.
        if name.endswith("embed_scale") and name not in there:
            continue
        other = there.get(name)
        if other is None:
            out.append(f"{name} is missing")
        elif other.dtype != value.dtype:
            out.append(f"{name} is {other.dtype}, not {value.dtype}")
        elif not torch.equal(torch.as_tensor(other), torch.as_tensor(value)):
            out.append(f"{name} has other values")
    return out


def out_of(model: Any) -> Any:
    """Logits, where no gradients are recorded: with them torch may take other kernels."""
    inputs = {"input_ids": IDS}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS
    with torch.no_grad():
        return model(**inputs)[0]


def both_ways(folder: Path, auto: Any, **dtype: Any) -> dict[str, Any]:
    """The model of a compressed folder, as it is loaded."""
    return {"load_model": wcodec.load_model(folder, **dtype), "Auto": auto.from_pretrained(folder, **dtype)}
