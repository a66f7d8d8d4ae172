"""KL divergence of a real chat model, SmolLM2-135M-Instruct, with weights of each width, on a CPU."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import wcodec

from ..adapters.base import linears
from ..environments import versions
from ..events import Writer
from ..models import EVERY, WINDOW
from ..real import spread_out
from ..worker import SHARED, measure
from .catalogue import ENGINES, Variant, width_key
from .rounding import rounded, stored_bits, weight_of

REPOSITORY = Path(__file__).resolve().parents[4]
TEXT = REPOSITORY / "tests/data/doc-llama-3m/heldout.txt"


def widths() -> dict[str, Variant]:
    """A variant of each width, by its key."""
    return {width_key(v): v for engine in ENGINES.values() for v in engine.variants}


def original(path: Path) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer.

    Each weight is moved within its cell of the file's own quantization, by chance: no width profits from these levels.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **place).eval()
    # The head's too, which is the embedding.
    spread_out([m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)])
    return model, AutoTokenizer.from_pretrained(path.parent, **place)


def stored(weights: dict[str, torch.Tensor], variant: Variant) -> tuple[dict[str, torch.Tensor], float]:
    """The weights as they are multiplied with, and the bits per weight that they are stored in."""
    count = sum(w.numel() for w in weights.values())
    width = variant.width
    if width is not None:
        total = sum(stored_bits(width, w.shape[1]) * w.numel() for w in weights.values())
        return {n: weight_of(*rounded(w, width), width) for n, w in weights.items()}, total / count
    data, _ = wcodec.compress_to_bytes({n: w.to(torch.bfloat16) for n, w in weights.items()}, **variant.options)
    container = wcodec.open(data)
    return {name: container[name].torch().float() for name in weights}, len(data) * 8 / count


def text_ids(tokenizer: Any, tokens: int) -> list[int]:
    """Token ids of the text that models are judged by, of many kinds."""
    mark = "<|endoftext|>"
    documents = TEXT.read_text(encoding="utf-8").split(mark)[::EVERY]
    found: list[int] = tokenizer("\n\n".join(documents), verbose=False)["input_ids"][:tokens]
    return found


def measured(model: Any, ids: list[int], variant: Variant) -> dict[str, float | None]:
    """The KL divergence of a width; embedding and head keep their weights."""
    names = list(linears(model))
    weights = {name: model.get_submodule(name).weight.detach() for name in names}
    found, bits = stored(weights, variant)
    other = copy.deepcopy(model)
    for name, weight in found.items():
        other.get_submodule(name).weight.data.copy_(weight)
    with torch.no_grad():
        report = wcodec.evaluate(other, ids, baseline=model, window=WINDOW, stride=WINDOW)
    return {"kl": report.kl_mean, "bits": bits}


def main() -> int:
    """The process that measures widths: rows are widths, and each has one section."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    tell = Writer(Path(job["events"])).tell
    tell("start", versions=versions((*SHARED, "gguf")))
    model, tokenizer = original(Path(job["settings"]["matrix_model"]))
    ids = text_ids(tokenizer, job["settings"]["matrix_text_tokens"])
    variants = widths()
    for name, todo in job["rows"].items():
        tell("row", row=name)
        measure(tell, name, todo, lambda _, name=name: measured(model, ids, variants[name]), lambda: True)
    return 0
