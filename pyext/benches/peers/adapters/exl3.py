"""The part of exllamav3's converter around its quantizer: blocks in turn, moments of inputs, padding, bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as functions
from torch import nn

from .base import total_bytes

SIDE = 128
"""exllamav3 pads both sides of a matrix with zeros to multiples of it."""


def padded(width: int) -> int:
    """
    >>> padded(576), padded(1536)
    (640, 1536)
    """
    return -(-width // SIDE) * SIDE


@dataclass
class Moments:
    """Second moments of an input, and the layers that share it."""

    names: list[str] = field(default_factory=list)
    sums: torch.Tensor | None = None
    rows: int = 0

    def add(self, x: torch.Tensor) -> None:
        x = x.detach().flatten(0, -2).float()
        x = functions.pad(x, (0, padded(x.shape[-1]) - x.shape[-1]))
        self.sums = x.T @ x if self.sums is None else self.sums + x.T @ x
        self.rows += len(x)

    def for_exllamav3(self) -> dict[str, Any]:
        """As its converter hands them over."""
        return {"H": self.sums, "count": self.rows, "finalized": False, "first_key": self.names[0]}


Layers = dict[str, nn.Linear]
Call = Callable[[], torch.Tensor]


def seen(layers: Layers, call: Call) -> tuple[list[Moments], dict[str, torch.Tensor]]:
    """Moments of the inputs of layers in a call, one for all that share an input, and what the layers returned."""
    inputs: dict[int, tuple[torch.Tensor, Moments]] = {}
    outputs: dict[str, torch.Tensor] = {}

    def look(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            # Kept, so that no other tensor has its id.
            x, moments = inputs.setdefault(id(args[0]), (args[0], Moments()))
            if not moments.names:
                moments.add(x)
            moments.names.append(name)
            outputs[name] = output

        return hook

    handles = [layer.register_forward_hook(look(name)) for name, layer in layers.items()]
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return [moments for _, moments in inputs.values()], outputs


def sensitivity(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Effect of errors in channels of gate and up on what a gated block returns, as exllamav3 measures it.

    By this it chooses whether the two have scales of their outputs.
    """
    gate, up = gate.detach().flatten(0, -2).double(), up.detach().flatten(0, -2).double()
    sigmoid = gate.sigmoid()
    slope = sigmoid * (1 + gate * (1 - sigmoid)) * up
    energy = down.double().square().sum(0)
    return (slope.square().mean(0) * energy).float(), ((gate * sigmoid).square().mean(0) * energy).float()


def _by_part(outputs: dict[str, torch.Tensor], layers: Layers) -> dict[str, torch.Tensor]:
    """The sensitivity of gate and up of each gated block."""
    out = {}
    for name in outputs:
        block, _, part = name.rpartition(".")
        if part == "gate_proj":
            up, down = f"{block}.up_proj", f"{block}.down_proj"
            out[name], out[up] = sensitivity(outputs[name], outputs[up], layers[down].weight)
    return out


@dataclass
class Stored:
    """A matrix as EXL3 stores it."""

    tensors: dict[str, torch.Tensor]
    bits: float
    shape: tuple[int, int]

    @property
    def stored_bytes(self) -> int:
        return total_bytes(self.tensors.values())

    @property
    def unpadded_bits(self) -> float:
        """The share of it that is not padding."""
        rows, columns = self.shape
        return rows * columns * self.bits + 16 * (rows + columns)

    def decoded(self) -> torch.Tensor:
        suh, svh = self.tensors["suh"], self.tensors["svh"]
        out = torch.empty(len(suh), len(svh), dtype=torch.float16, device=suh.device)
        torch.ops.exl3.reconstruct_had_slice(out, self.tensors["trellis"], suh, svh, self.bits, False, True, 0)
        rows, columns = self.shape
        return out[:columns, :rows].T.float()


def _rate(bits: float) -> float:
    """exllamav3 has other kernels for halves, and chooses by the type."""
    return int(bits) if float(bits).is_integer() else bits


def _quantized(
    library: Any, layers: Layers, moments: Moments, bits: float, seed: int, outputs: dict[str, torch.Tensor]
) -> dict[str, Stored]:
    """Layers that share an input, as its converter does it: together where there are several."""
    weights, arguments = [], []
    for name in moments.names:
        weight = layers[name].weight.detach().float()
        rows, columns = weight.shape
        weights.append(functions.pad(weight, (0, padded(columns) - columns, 0, padded(rows) - rows)).T.contiguous())
        wanted = {
            "seed": seed, "K": _rate(bits), "devices": [weight.device], "device_ratios": None,
            "apply_out_scales": None, "mul1": True,
        }  # fmt: skip
        arguments.append({**wanted, **({"out_sensitivity": outputs[name]} if name in outputs else {})})
    known = moments.for_exllamav3()
    if len(weights) == 1:
        found = [library.quantize_exl3(weights[0], known, arguments[0], False)[2]]
    else:
        found = [tensors for _, tensors in library.quantize_exl3_batch(weights, [known] * len(weights), arguments)]
    return {
        name: Stored(tensors, bits, tuple(layers[name].weight.shape))
        for name, tensors in zip(moments.names, found, strict=True)
    }


class _Begun(Exception):
    """The first block was called."""


def _first(model: Any, blocks: nn.ModuleList, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """The states and the arguments that the first block is called with."""
    caught: list[Any] = []

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caught.extend((args[0] if args else kwargs.pop("hidden_states"), kwargs))
        raise _Begun

    handle = blocks[0].register_forward_pre_hook(hook, with_kwargs=True)
    try:
        model(input_ids=ids, use_cache=False)
    except _Begun:
        pass
    finally:
        handle.remove()
    return caught[0], caught[1]


def quantized(library: Any, model: Any, bits: float, ids: torch.Tensor) -> dict[str, Stored]:
    """All linear layers of the blocks of a model, whose weights become what is stored.

    A block is calibrated with what the quantized ones before it return.
    """
    blocks = model.get_decoder().layers
    out: dict[str, Stored] = {}
    states, kwargs = _first(model, blocks, ids.to(model.device))

    def call(block: nn.Module) -> torch.Tensor:
        found = block(states, **kwargs)
        return found[0] if isinstance(found, tuple) else found

    for index, block in enumerate(blocks):
        layers = {name: layer for name, layer in block.named_modules() if isinstance(layer, nn.Linear)}
        groups, outputs = seen(layers, lambda block=block: call(block))
        matters = _by_part(outputs, layers)
        for moments in groups:
            for name, stored in _quantized(library, layers, moments, bits, index, matters).items():
                layers[name].weight.data.copy_(stored.decoded())
                out[f"{index}.{name}"] = stored
        states = call(block)
    return out
