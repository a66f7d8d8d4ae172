"""Folders of models with random weights: shapes by name, in bf16 and compressed."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

MIXTURES: dict[str, dict[str, Any]] = {
    # Qwen 3 30B-A3B.
    "qwen3-moe": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
    },
    # Qwen 3 235B-A22B.
    "qwen3-moe-235b": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
    },
    # For trying a benchmark out where there is no GPU.
    "small-moe": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
}
"""Shapes of Qwen 3 mixtures by name; those of Llamas are `tinyllama_model.SHAPES`."""
NAMES = ("tinyllama", "llama-8b", "llama-70b", "qwen3-moe", "qwen3-moe-235b", "small", "small-ranks", "small-moe")
LAYERS = {"llama-8b": 8, "qwen3-moe": 4, "qwen3-moe-235b": 24}
"""Models that are cut, so that all of their folders are made in minutes."""
STREAMED = ("llama-70b", "qwen3-moe-235b", "small-ranks", "small-moe")
"""Models of which no bf16 file is made: see `streamed`."""
POSITIONS = 8192

SCHEMES = ("bf16", "int8", "4.0", "3.1")
"""Schemes that are measured where none are named."""


class UnknownScheme(ValueError):
    """A name that is no scheme."""


def options_of(scheme: str) -> dict[str, Any] | None:
    """The options that a folder is compressed with; nothing for bf16, which is not compressed.

    >>> options_of("int8"), options_of("4.0"), options_of("3.1-size"), options_of("bf16")
    ({'scheme': 'int8'}, {'bits': 4.0}, {'bits': 3.1, 'optimize': 'size'}, None)
    """
    if scheme == "bf16":
        return None
    name, size = scheme.removesuffix("-size"), scheme.endswith("-size")
    if name in ("int8", "lossless"):
        options: dict[str, Any] = {"scheme": name}
    elif re.fullmatch(r"\d+(\.\d+)?", name):
        options = {"bits": float(name)}
    else:
        raise UnknownScheme(
            f"there is no scheme {scheme!r} (bf16, int8, lossless, or a number of bits, each but bf16 also with -size)"
        )
    return {**options, "optimize": "size"} if size else options


def layers_of(name: str, layers: int | None) -> int | None:
    """The number of layers; nothing for as many as the model has.

    >>> layers_of("llama-8b", None), layers_of("llama-8b", 32), layers_of("tinyllama", None)
    (8, 32, None)
    """
    return LAYERS.get(name) if layers is None else layers


def folder_of(root: Path, name: str, layers: int | None, scheme: str) -> Path:
    """The folder of a model: other numbers of layers have other folders.

    >>> folder_of(Path("m"), "llama-8b", None, "4.0").as_posix()
    'm/llama-8b-8/4.0'
    """
    count = layers_of(name, layers)
    return root / (name if count is None else f"{name}-{count}") / scheme


def config_of(name: str, layers: int | None) -> Any:
    """The configuration of transformers."""
    import tinyllama_model
    from transformers import LlamaConfig, Qwen3MoeConfig

    given = MIXTURES[name] if name in MIXTURES else tinyllama_model.SHAPES[name]
    count = layers_of(name, layers)
    cut = {} if count is None else {"num_hidden_layers": count}
    kind = Qwen3MoeConfig if name in MIXTURES else LlamaConfig
    return kind(**{**given, **cut}, max_position_embeddings=POSITIONS, tie_word_embeddings=False)


def make(root: Path, name: str, layers: int | None, schemes: list[str], device: str) -> list[dict[str, Any]]:
    """Makes the folders that are not there; says how large each is.

    :returns: for each scheme its bytes on disk, and the bits per weight that they are.
    """
    if name in STREAMED:
        from . import streamed

        return streamed.make(root, name, layers, schemes, device)
    plain = folder_of(root, name, layers, "bf16")
    if not (plain / "config.json").exists():
        _save(config_of(name, layers), plain, device)
    out = []
    for scheme in schemes:
        folder, options = folder_of(root, name, layers, scheme), options_of(scheme)
        begin = time.perf_counter()
        if options is not None and not (folder / "config.json").exists():
            _compress(plain, folder, options)
        seconds = time.perf_counter() - begin
        bits = 16 * weight_bytes(folder) / weight_bytes(plain)
        out.append({"model": name, "scheme": scheme, "bytes": weight_bytes(folder), "bits": bits, "seconds": seconds})
    return out


def _save(config: Any, folder: Path, device: str) -> None:
    import tinyllama_model
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad(), torch.device(device):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).requires_grad_(False)
        tinyllama_model.fill(model, device)
    # Answers have the same length, whatever is in them.
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    part.rename(folder)


def _compress(plain: Path, folder: Path, options: dict[str, Any]) -> None:
    import wcodec

    # Random weights, whose speed is measured.
    wcodec.compress(plain, f"{folder}/", **{"calibrate": False, "progress": False, **options})


def weight_bytes(folder: Path) -> int:
    """Bytes of the files that hold weights."""
    return sum(f.stat().st_size for f in folder.iterdir() if f.suffix in (".safetensors", ".wcodec"))


def has_weights(folder: Path) -> bool:
    """Whether a folder has weights; that of a model that is too large in bf16 has none."""
    return weight_bytes(folder) > 0
