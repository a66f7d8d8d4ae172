"""Small checkpoints that are quantized as published ones are, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

BLOCK = 32
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
IDS = torch.arange(3, 15)[None]


def blocked(weight: Any, block: int, scale_dtype: Any = torch.float32) -> tuple[Any, Any]:
    """Codes of FP8 and the scales of their blocks, the last of which may be smaller."""
    rows, cols = weight.shape
    high, wide = -(-rows // block), -(-cols // block)
    padded = torch.nn.functional.pad(weight.float(), (0, wide * block - cols, 0, high * block - rows))
    scales = padded.view(high, block, wide, block).abs().amax((1, 3)).clamp_min(1e-6) / 448
    if scale_dtype in (torch.uint8, getattr(torch, "float8_e8m0fnu", None)):
        powers = scales.log2().ceil()
        scales = powers.exp2()
        stored = (powers + 127).to(torch.uint8).view(scale_dtype)
    else:
        stored = scales.to(scale_dtype)
        scales = stored.float()
    spread = scales.repeat_interleave(block, 0).repeat_interleave(block, 1)[:rows, :cols]
    return (weight.float() / spread).clamp(-448, 448).to(torch.float8_e4m3fn), stored


def by_tensor(weight: Any) -> tuple[Any, Any]:
    """Codes of FP8 and one scale."""
    scale = weight.float().abs().max() / 448
    return (weight.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def save(model: Any, folder: Path, change: Any, record: dict[str, Any], ends: str = "_scale_inv") -> dict[str, Any]:
    """Writes a model whose matrices within blocks ``change`` makes codes of; what is in its file."""
    model.to(torch.bfloat16).save_pretrained(folder)
    tensors = {}
    for name, weight in safetensors_torch.load_file(folder / "model.safetensors").items():
        if name.endswith("proj.weight"):
            codes, scales = change(weight)
            tensors |= {name: codes, name + ends: scales}
        else:
            tensors[name] = weight
    write(folder, tensors, record)
    return tensors


def write(folder: Path, tensors: dict[str, Any], record: dict[str, Any] | None) -> None:
    """Writes tensors as a folder's, and what its config says of them."""
    safetensors_torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    if record is not None:
        config["quantization_config"] = record
    (folder / "config.json").write_text(json.dumps(config))


def fp8_record(block: int = BLOCK) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [block, block]}


def fp8_llama(folder: Path, scale_dtype: Any = torch.float32, block: int = BLOCK, **sizes: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **sizes}))
    return save(model, folder, lambda w: blocked(w, block, scale_dtype), fp8_record(block))


def fp8_deepseek(folder: Path) -> dict[str, Any]:
    """Mixture of experts, latent attention: as DeepSeek's, in blocks of 32."""
    torch.manual_seed(2)
    config = transformers.DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4}, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=32,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
    )  # fmt: skip
    return save(transformers.DeepseekV3ForCausalLM(config), folder, lambda w: blocked(w, 32), fp8_record(32))


def fp8_qwen3_moe(folder: Path) -> dict[str, Any]:
    torch.manual_seed(3)
    config = transformers.Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=16
    )
    return save(transformers.Qwen3MoeForCausalLM(config), folder, lambda w: blocked(w, 32), fp8_record(32))


def mxfp4_gpt_oss(folder: Path) -> dict[str, Any]:
    torch.manual_seed(4)
    config = transformers.GptOssConfig(
        **SIZES | {"intermediate_size": 32}, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=16
    )
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tensors: dict[str, Any] = {}
    for name, weight in safetensors_torch.load_file(folder / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = weight.shape
            shape = (experts, outputs, inputs // 32)
            tensors[name + "_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
            tensors[name + "_scales"] = torch.randint(116, 122, shape, dtype=torch.uint8)
        else:
            tensors[name] = weight
    write(folder, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    return tensors


def dequantized(folder: Path) -> Any:
    """The model as transformers dequantizes it."""
    method = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    made = transformers.Mxfp4Config if method == "mxfp4" else transformers.FineGrainedFP8Config
    given = {"quantization_config": made(dequantize=True)}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **given, dtype="auto").eval()


MODELS = {
    "llama": fp8_llama,
    "deepseek": fp8_deepseek,
    "qwen3-moe": fp8_qwen3_moe,
    "gpt-oss": mxfp4_gpt_oss,
}
