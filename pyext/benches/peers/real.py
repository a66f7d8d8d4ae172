"""Quality on a real chat model, SmolLM2-135M-Instruct: the text and its windows, the original's predictions, and what
methods are calibrated with.

What all rows share is made once, in a folder: the model with weights spread over the cells of its file's own
quantization, predictions of the original, and sizes of inputs.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import wcodec
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
from wcodec._calibrate.statistics import sizes_of

from .adapters.base import NotThere, linears

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCE = REPOSITORY / ".demo/smollm2.gguf"
FOLDER = REPOSITORY / "target/peers/smollm2"
TEXT = REPOSITORY / "tests/data/heldout/architecture-2026-11.txt"
"""Never changed, whatever happens to pages and code."""
CALIBRATION = REPOSITORY / "tests/data/doc-llama-3m/heldout.txt"
"""Documentation too, of Python packages: the kind of text that importance matrices, GPTQ and EXL3 get."""
PIECES, WINDOW = 16, 512
SEED = 20261125
# Weights of a group share a scale in the file that the model comes from, in which they have 16 levels.
GROUP, LEVELS = 32, 16


def spread_out(weights: list[torch.Tensor]) -> None:
    """Moves each weight within its cell of the file's own quantization, by chance, and rounds it to bf16: no method
    profits from these levels."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for weight in weights:
            groups = weight.view(-1, GROUP)
            cells = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / (LEVELS - 1)
            moved = groups + cells * (torch.rand(groups.shape, generator=generator) - 0.5)
            weight.copy_(moved.view_as(weight).to(torch.bfloat16))


def _made(path: Path, make: Any) -> Path:
    """A file or folder that is made if it is not there, all or nothing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent))
        try:
            make(temporary / path.name)
            os.replace(temporary / path.name, path)
        finally:
            shutil.rmtree(temporary)
    return path


def _convert(out: Path) -> None:
    place = {"gguf_file": SOURCE.name}
    model = AutoModelForCausalLM.from_pretrained(SOURCE.parent, dtype=torch.float32, **place)
    spread_out([p for p in model.parameters() if p.dim() == 2])
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(SOURCE.parent, **place).save_pretrained(out)


@cache
def folder() -> Path:
    """The model's folder."""
    logging.disable_progress_bar()
    if not SOURCE.exists():
        raise FileNotFoundError(f"{SOURCE.name}, a real model, is not there (make demo fetches it)")
    with SOURCE.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:8]
    return _made(FOLDER / f"model-{digest}", _convert)


def load(dtype: torch.dtype, device: str) -> Any:
    """The model."""
    return AutoModelForCausalLM.from_pretrained(folder(), dtype=dtype).to(device).eval().requires_grad_(False)


def spread_windows(ids: torch.Tensor, windows: int, length: int = WINDOW) -> torch.Tensor:
    """So many windows over the whole text, or as many as it has without one beginning before another's end.

    >>> spread_windows(torch.arange(10), 3, 3).tolist()
    [[0, 1, 2], [3, 4, 5], [7, 8, 9]]
    >>> len(spread_windows(torch.arange(10), 9, 3))
    3
    """
    windows = min(windows, len(ids) // length)
    last = len(ids) - length
    return torch.stack([ids[s : s + length] for s in (i * last // max(windows - 1, 1) for i in range(windows))])


def _ids(path: Path) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder())
    found: torch.Tensor = tokenizer(path.read_text(encoding="utf-8"), return_tensors="pt", verbose=False).input_ids[0]
    return found


@cache
def calibration_ids() -> torch.Tensor:
    """The text that others are calibrated with."""
    return spread_windows(_ids(CALIBRATION), PIECES)


@cache
def _importance() -> dict[str, npt.NDArray[np.float32]]:
    def make(out: Path) -> None:
        model = load(torch.float32, "cpu")
        data = [[int(t) for t in window] for window in calibration_ids()]
        wcodec.collect_statistics(model, data=data, windows=PIECES, length=WINDOW, full=False, gradients=False).save(
            out
        )

    found = wcodec.Statistics.load(_made(FOLDER / f"importance-{PIECES}x{WINDOW}.safetensors", make))
    out = {}
    for name in linears(load(torch.bfloat16, "cpu")):
        sizes = sizes_of(found, f"{name}.weight")
        if sizes is None:
            raise ValueError(f"no sizes of the inputs of {name} were measured")
        out[name] = sizes[0].float().numpy()
    return out


def is_real(model: Any) -> bool:
    """Whether it is this model, and not the small one of the repository."""
    return Path(model.config.name_or_path).parent == FOLDER


def importance(model: Any) -> dict[str, npt.NDArray[np.float32]]:
    """Mean squares of the inputs of each linear layer, by column.

    :raises NotThere: for another model, whose text would be the one that it is judged by.
    """
    if not is_real(model):
        raise NotThere("importance matrices are measured of the real model only")
    return _importance()


_known: dict[tuple[str, str], Any] = {}


def own_statistics(model: Any, given: str) -> Any:
    """Statistics that wcodec takes by default, of texts of many kinds: sizes of inputs (``columns``), or everything.

    Rows of a process share them.
    """
    key = model.config.name_or_path, given
    if key not in _known:
        less = {"full": False, "gradients": False} if given == "columns" else {}
        _known[key] = wcodec.collect_statistics(copy.deepcopy(model).float(), **less)
    return _known[key]


class Quality:
    """Measures weights against the original's, on the same text and windows, in float32."""

    def __init__(self, windows: int, device: str) -> None:
        self.device = device
        self.windows = spread_windows(_ids(TEXT), windows)
        self.model = load(torch.float32, device)
        text = hashlib.sha256(self.windows.numpy().tobytes()).hexdigest()[:8]
        name = f"{folder().name}-{text}-torch{torch.__version__}-{device.partition(':')[0]}.npy"
        self.tokens = self.windows.numel()
        self._reference = np.load(_made(FOLDER / name, self._predict), mmap_mode="r")

    def _logs(self, window: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(window[None].to(self.device)).logits[0].float().log_softmax(-1)

    def _predict(self, out: Path) -> None:
        np.save(out, np.stack([self._logs(window).half().cpu().numpy() for window in self.windows]))

    def of_weights(self, weights: dict[str, torch.Tensor]) -> dict[str, float]:
        """KL divergence in nats per token, its standard error over tokens, and how often both would write the same."""
        for name, weight in weights.items():
            layer = self.model.get_submodule(name)
            if weight.shape != layer.weight.shape:
                raise ValueError(f"{name} decodes to {tuple(weight.shape)}, not {tuple(layer.weight.shape)}")
            layer.weight.data.copy_(weight)
        kl, same = [], []
        for window, known in zip(self.windows, self._reference, strict=True):
            # Copied: torch warns of memory that cannot be written.
            original, found = torch.from_numpy(known.copy()).to(self.device).float(), self._logs(window)
            kl.append((original.exp() * (original - found)).sum(-1))
            same.append(original.argmax(-1) == found.argmax(-1))
        each = torch.cat(kl).double()
        return {
            "kl": float(each.mean()),
            "kl_error": float(each.std() / len(each) ** 0.5),
            "same_top_token": float(torch.cat(same).float().mean()),
        }


@cache
def quality(windows: int, device: str) -> Quality:
    """One for all rows of a process."""
    return Quality(windows, device)
