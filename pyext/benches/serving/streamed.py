"""Folders of models that are too large to be anywhere in bf16: a tensor at a time goes from the GPU to the encoder.

The folder of bf16 has a config and no weights: vLLM makes random ones by itself. A compressed folder is what
`wcodec.compress` makes of a checkpoint, with weights that are made when the encoder asks for them. Random numbers are
drawn for `DISTINCT` layers, and the others have the rows of these in another order, since tensors that are equal would
be stored once. All layers are encoded, and take memory and time as any others do.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import wcodec
from tinyllama_model import fill_matrix
from wcodec._api import folder as compressed_folder
from wcodec._file.quantized import NOTHING
from wcodec._models.checkpoint import Checkpoint

from . import models

DISTINCT = 4
"""Layers with weights of their own."""
BLOCK = 1 << 26
"""Weights that are drawn at once."""
_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")
_LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")

Shapes = dict[str, tuple[int, ...]]


def shapes_of(config: Any) -> Shapes:
    """Names and shapes of a checkpoint's tensors; experts are a matrix each."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    out: Shapes = {}
    for name, parameter in model.named_parameters():
        stack = _STACK.fullmatch(name)
        if stack is None:
            out[name] = tuple(parameter.shape)
            continue
        experts, rows, width = parameter.shape
        matrices = {"down_proj": rows} if stack[2] == "down_proj" else {"gate_proj": rows // 2, "up_proj": rows // 2}
        for number in range(experts):
            out.update({f"{stack[1]}.{number}.{key}.weight": (own, width) for key, own in matrices.items()})
    return out


def source_of(name: str) -> tuple[str, int]:
    """The tensor whose rows one of this name has, and by how many these are moved.

    >>> source_of("model.layers.6.mlp.up_proj.weight"), source_of("lm_head.weight")
    (('model.layers.2.mlp.up_proj.weight', 1), ('lm_head.weight', 0))
    """
    found = _LAYER.search(name)
    if found is None:
        return name, 0
    moved, layer = divmod(int(found[0]), DISTINCT)
    return f"{name[: found.start()]}{layer}{name[found.end() :]}", moved


class Random(Checkpoint):
    """A checkpoint whose tensors are made when they are asked for, and kept: encoding to a number of bits reads them
    twice."""

    is_local = False

    def __init__(self, folder: Path, shapes: Shapes, device: str) -> None:
        self.path, self.quantized, self._dtype = folder, NOTHING, torch.bfloat16
        self._shapes, self._device = shapes, device
        self._names = {name: name for name in shapes}
        self._made: dict[str, torch.Tensor] = {}
        self._files, self.files = dict.fromkeys(shapes, self), []

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._shapes[key]

    @property
    def dtype(self) -> torch.dtype:
        """That of all tensors."""
        return self._dtype

    def is_float(self, key: str) -> bool:
        """All are."""
        return key in self._shapes

    def dtype_name(self, key: str) -> str:
        """That of all tensors."""
        return "BF16"

    def same(self, key: str, other: str) -> bool:
        """Whether two tensors are one. Those of equal layers are stored each by itself."""
        return key == other

    def stored(self, name: str, index: int | None = None) -> torch.Tensor:
        """The weights of a tensor."""
        shape = self._shapes[name]
        source, moved = source_of(name) if len(shape) == 2 else (name, 0)
        if source not in self._made:
            self._made[source] = self._drawn(shape)
        return self._made[source].roll(moved, 0) if moved else self._made[source]

    def _drawn(self, shape: tuple[int, ...]) -> torch.Tensor:
        weights = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        if len(shape) != 2:
            return weights.uniform_(0.9, 1.1)
        for rows in weights.split(max(BLOCK // shape[1], 1)):
            fill_matrix(rows, self._device)
        return weights


def make(root: Path, name: str, layers: int | None, schemes: list[str], device: str) -> list[dict[str, Any]]:
    """Makes the folders that are not there; the figures of :func:`models.make`."""
    config = models.config_of(name, layers)
    shapes = shapes_of(config)
    weights = sum(_count(shape) for shape in shapes.values())
    plain = models.folder_of(root, name, layers, "bf16")
    if not (plain / "config.json").exists():
        _save_config(config, plain)
    torch.manual_seed(1)
    source = Random(plain, shapes, device)
    out = []
    for scheme in schemes:
        folder, options = models.folder_of(root, name, layers, scheme), models.options_of(scheme)
        begin = time.perf_counter()
        if options is not None and not (folder / "config.json").exists():
            _compress(source, folder, options)
        seconds, size = time.perf_counter() - begin, 2 * weights if options is None else models.weight_bytes(folder)
        bits = 8 * size / weights
        out.append({"model": name, "scheme": scheme, "bytes": size, "bits": bits, "seconds": seconds})
    return out


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _save_config(config: Any, folder: Path) -> None:
    """A folder with a config and nothing else, complete or not there."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        kind = type(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)).__name__
    config.architectures, config.dtype = [kind], torch.bfloat16
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    config.save_pretrained(part)
    # Answers have the same length, whatever is in them.
    (part / "generation_config.json").write_text(json.dumps({"_from_model_config": False}) + "\n", encoding="utf-8")
    part.rename(folder)


def _compress(source: Random, folder: Path, options: dict[str, Any]) -> None:
    def encode(src: Any, dst: Any, **given: Any) -> Any:
        return wcodec.compress(src, dst, **given)

    given = {"calibrate": False, "progress": False, "trust_remote_code": False, **options}
    write: Callable[..., Any] = compressed_folder._compress
    write(encode, source.path, source, str(folder), False, given)


def dequantize(folder: Path, plain: Path) -> None:
    """The checkpoint that a compressed folder's weights are, in bf16."""
    from wcodec._core.foreign import read_json

    part = plain.with_name(f"{plain.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    wcodec.decompress(folder / "model.wcodec", part / "model.safetensors", progress=False)
    config = dict(read_json(folder / "config.json"))
    for key in ("quantization_config", "transformers_weights"):
        config.pop(key, None)
    (part / "config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")
    part.rename(plain)
