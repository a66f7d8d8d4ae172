"""GPTQModel: error feedback in groups, calibrated on documentation, or on what the model writes by itself."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer

from .. import real
from ..catalogue import Variant
from .base import NotThere, Ready, linears, total_bytes

# Its pool of threads wants two even where there is one core. It reads this when it is imported.
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")

from gptqmodel import BACKEND, GPTQModel, QuantizeConfig  # noqa: E402

TEXTS, LENGTH = 32, 256
MOST_WEIGHTS = 150_000_000
"""Larger models take longer than a benchmark has."""


def _texts(model: Any, device: str) -> list[dict[str, torch.Tensor]]:
    """Documentation for the real model; for the other, whose text would be the one that it is judged by, sampled by the
    model, the same in each run."""
    if real.is_real(model):
        return [
            {"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in real.calibration_ids()
        ]
    torch.manual_seed(1)
    begin = torch.zeros(TEXTS, 1, dtype=torch.long, device=device)
    ids = model.generate(
        begin,
        attention_mask=torch.ones_like(begin),
        max_new_tokens=LENGTH - 1,
        min_new_tokens=LENGTH - 1,
        do_sample=True,
    ).cpu()
    return [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in ids]


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    names = list(linears(model))
    if sum(layer.weight.numel() for layer in linears(model).values()) > MOST_WEIGHTS:
        raise NotThere(f"calibrating more than {MOST_WEIGHTS:,} weights takes longer than this benchmark has")
    texts = _texts(model, device)
    alike = {"bits": variant.options["bits"], "group_size": variant.options["group"]}
    # Without being told it would give lm_head 8 bits in groups of 32.
    head = {"lm_head": True, "dynamic": {"lm_head": alike}} if "lm_head" in names else {}
    config = QuantizeConfig(**alike, **head)
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        source, out = str(Path(folder) / "source"), str(Path(folder) / "quantized")
        model.save_pretrained(source)
        # It loads one with each model, also where it needs none.
        AutoTokenizer.from_pretrained(model.config.name_or_path).save_pretrained(source)
        quantized = GPTQModel.load(source, config)
        quantized.quantize(texts, batch_size=1)
        quantized.save(out)
        loaded = GPTQModel.load(out, device=device, backend=BACKEND.TORCH).model.eval()
    layers = {name: loaded.get_submodule(name) for name in names}
    stored = sum(total_bytes(layer.state_dict().values()) for layer in layers.values())
    left = [name for name, layer in layers.items() if type(layer) is nn.Linear]

    def decoded(name: str) -> torch.Tensor:
        layer = layers[name]
        return layer.weight if name in left else layer.dequantize_weight().T

    notes = [f"calibrated on {len(texts)} texts of {texts[0]['input_ids'].numel()} tokens"]
    notes += [f"{', '.join(left)} in 16 bits"] if left else []
    return Ready(loaded, stored, decoded, tuple(notes))
