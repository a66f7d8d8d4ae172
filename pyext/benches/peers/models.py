"""The models: the one in the repository, and one of another's shapes with random weights, for speed. ``real`` has the
one for quality."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinyllama_model
import torch
import wcodec
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from . import catalogue

REPOSITORY = Path(__file__).resolve().parents[3]
EMBEDDED = REPOSITORY / "tests/data/doc-llama-3m"
# Every so many documents of the text, so that many kinds of text are in it (as in notebook 5).
EVERY = 9
WINDOW = 512

SHAPES = (catalogue.EMBEDDED, *tinyllama_model.SHAPES)
"""Models that speeds are measured on: the repository's own, or one with made-up weights."""


def embedded(dtype: torch.dtype, device: str) -> Any:
    """The model in the repository."""
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=dtype).to(device).eval().requires_grad_(False)


def of_shapes(shapes: str, layers: int | None, device: str) -> Any:
    """The model for speeds, in bf16."""
    if shapes == catalogue.EMBEDDED:
        return embedded(torch.bfloat16, device)
    return tinyllama_model.build(shapes, layers, device)


def text(tokens: int) -> list[int]:
    """Token ids that the model was not trained on."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    mark = "<|endoftext|>"
    documents = (EMBEDDED / "heldout.txt").read_text(encoding="utf-8").split(mark)[::EVERY]
    found: list[int] = tokenizer(mark.join(documents), verbose=False)["input_ids"][:tokens]
    return found


@dataclass
class Quality:
    """Measures models against the original, on the same text and windows."""

    ids: list[int]
    device: str

    def __post_init__(self) -> None:
        self.original = embedded(torch.bfloat16, self.device)
        self.exact = embedded(torch.float32, self.device)
        self.tokens = len(self.ids)

    def of(self, model: Any, baseline: Any) -> wcodec.EvalReport:
        return wcodec.evaluate(model, self.ids, baseline=baseline, window=WINDOW, stride=WINDOW)

    def as_run(self, model: Any) -> dict[str, float | None]:
        """The quality in bf16 with the peer's own kernels, against the original in bf16."""
        report = self.of(model, self.original)
        return {
            "kl_run": report.kl_mean,
            "perplexity_run": report.perplexity,
            "baseline_perplexity_run": report.baseline_perplexity,
        }

    def of_weights(self, weights: dict[str, torch.Tensor]) -> dict[str, float | None]:
        """The quality of the decoded weights alone: both models compute in float32."""
        other = embedded(torch.float32, self.device)
        for name, weight in weights.items():
            layer = other.get_submodule(name)
            if weight.shape != layer.weight.shape:
                raise ValueError(f"{name} decodes to {tuple(weight.shape)}, not {tuple(layer.weight.shape)}")
            layer.weight.data.copy_(weight.to(torch.bfloat16))
        report = self.of(other, self.exact)
        error = float(report.token_kl.std() / len(report.token_kl) ** 0.5)
        return {
            "kl": report.kl_mean,
            "kl_error": error,
            "perplexity": report.perplexity,
            "baseline_perplexity": report.baseline_perplexity,
            "same_top_token": report.top1_agreement,
        }
