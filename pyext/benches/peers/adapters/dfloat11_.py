"""DFloat11: exponents in Huffman codes, decoded block by block on a GPU. Without one only its encoder runs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..catalogue import Variant
from .base import NotThere, Ready, linears, tensor_bytes

# As in its own example for models of Llama's kind.
BLOCK = r"model\.layers\.\d+"
IN_BLOCK = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
BYTES_PER_THREAD, THREADS = 8, (512,)
BUFFERS = ("luts", "encoded_exponent", "sign_mantissa", "output_positions", "gaps", "split_positions")
# Weights that its encoder gets through in about a minute.
MOST_ENCODED = 50_000_000


def _encoder() -> Any:
    """Its module of encoding by itself: the package asks for a GPU when it is imported."""
    found = importlib.util.find_spec("dfloat11")
    if found is None or not found.submodule_search_locations:
        raise NotThere("dfloat11 is not installed")
    path = Path(found.submodule_search_locations[0]) / "dfloat11_utils.py"
    spec = importlib.util.spec_from_file_location("dfloat11_utils_alone", path)
    if spec is None or spec.loader is None:
        raise NotThere(f"{path.name} is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _encoded(utils: Any, weights: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that its checkpoints hold for weights that are stored together."""
    flat = [w.detach().cpu().flatten() for w in weights]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _, counter = utils.get_codec(torch.cat(flat))
        codec, _, table = utils.get_32bit_codec(counter)
        luts = utils.get_luts(table)
        encoded, other, positions, gaps, splits = utils.encode_weights(flat, codec, BYTES_PER_THREAD, THREADS[0])
    return dict(zip(BUFFERS, (luts, encoded, other, positions.view(torch.uint8), gaps, splits), strict=True))


def _size(buffers: dict[str, torch.Tensor]) -> int:
    return sum(map(tensor_bytes, buffers.values()))


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    utils = _encoder()
    layers = linears(model)
    originals = {name: layer.weight.detach().cpu().clone() for name, layer in layers.items()} if device == "cpu" else {}
    blocks = len(model.model.layers)
    in_block = sum(model.model.layers[0].get_submodule(n).weight.numel() for n in IN_BLOCK)
    whole = blocks * in_block + model.lm_head.weight.numel() <= MOST_ENCODED
    stored: dict[str, torch.Tensor] = {}
    size = 0
    for number in range(blocks):
        if whole or number == 0:
            block = model.model.layers[number]
            buffers = _encoded(utils, [block.get_submodule(n).weight for n in IN_BLOCK])
        size += _size(buffers)
        stored.update({f"model.layers.{number}.{key}": value.clone() for key, value in buffers.items()})
    notes = []
    patterns: dict[str, list[str]] = {BLOCK: list(IN_BLOCK)}
    if whole:
        buffers = _encoded(utils, [model.lm_head.weight])
        size += _size(buffers)
        stored.update({f"lm_head.{key}": value for key, value in buffers.items()})
        patterns["lm_head"] = []
    else:
        size += tensor_bytes(model.lm_head.weight)
        notes.append("all blocks hold the first one's weights, and lm_head stays in 16 bits")
    if device == "cpu":
        notes.append("only its encoder runs without a GPU")
        return Ready(model, size, originals.__getitem__, tuple(notes), runs=False)
    return Ready(_loaded(model, stored, patterns), size, _decoded(model), tuple(notes))


def _loaded(model: Any, stored: dict[str, torch.Tensor], patterns: dict[str, list[str]]) -> Any:
    """The model with its decoder's hooks, through a file as always."""
    from dfloat11.dfloat11 import load_and_replace_tensors

    config = {"threads_per_block": THREADS, "bytes_per_thread": BYTES_PER_THREAD, "pattern_dict": patterns}
    model = model.to("cpu")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        save_file(stored, str(Path(folder) / "model.safetensors"))
        load_and_replace_tensors(model, folder, config)
    return model.to("cuda")


def _decoded(model: Any) -> Any:
    """A layer's weight is there after its block has run, until the next one does."""

    def found(name: str) -> torch.Tensor:
        kept: dict[str, torch.Tensor] = {}
        hook = model.get_submodule(name).register_forward_pre_hook(lambda m, _: kept.update(weight=m.weight.clone()))
        model(torch.tensor([[1]], device="cuda"))
        hook.remove()
        return kept["weight"]

    return found
