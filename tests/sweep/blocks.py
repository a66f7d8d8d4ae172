"""Counts which decoder layers of transformers are fused, and writes the table of ``docs/fused-layers.md``:
``python -m tests.sweep.blocks --table docs/fused-layers.md``.

Models have no values: their modules are asked what would become of them if their linear layers were compressed.
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
import transformers
from wcodec.nn._fusion import blocks, groups, halves

from .configs import architectures, small_configs

AUTO = "AutoModelForCausalLM"
BEGIN, END = "<!-- made by sweep.blocks: begin -->", "<!-- made by sweep.blocks: end -->"
WHOLE, ATTENTION, MLP, GROUPS, NONE = "whole", "attention half", "MLP half", "groups only", "none"
KINDS = (WHOLE, ATTENTION, MLP, GROUPS, NONE)
_HALF = {"attention": ATTENTION, "mlp": MLP}


class Found(NamedTuple):
    """A kind of decoder layer: its class, what of it is fused, and why no more is."""

    layer: str
    fused: str
    reasons: tuple[str, ...]


class _Linear(torch.nn.Linear):
    """A linear layer that says where it is, as compressed ones do."""

    @property
    def device(self) -> torch.device:
        return self.weight.device


def layers_of(architecture: str) -> list[Found]:
    """The kinds of decoder layers of a causal language model; none where no small one can be built."""
    auto = getattr(transformers, AUTO)
    for config in small_configs(architecture, AUTO):
        try:
            with torch.device("meta"):
                model = auto.from_config(config)
        except Exception:
            continue
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.__class__ = _Linear
        lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module)]
        # The longest list of modules that hold several matrices.
        lists = [found for found in lists if all(_matrices(child) > 1 for child in found)]
        if not lists:
            return []
        longest = max(lists, key=lambda found: (len(found), sum(map(_matrices, found))))
        with (
            mock.patch.object(halves, "CompressedLinear", _Linear),
            mock.patch.object(groups, "CompressedLinear", _Linear),
        ):
            return sorted({found(child) for child in longest})
    return []


def _matrices(module: torch.nn.Module) -> int:
    return sum(parameter.dim() > 1 for parameter in module.parameters())


def found(layer: torch.nn.Module) -> Found:
    """The parts of a decoder layer that would be fused."""
    name = type(layer).__name__
    block = blocks.taken_apart(layer)
    if isinstance(block, str):
        reasons: tuple[str, ...] = ("another order of steps",)
        fused: set[str] = set()
    else:
        fused = set(block.first)
        reasons = tuple(str(half.reason) for half in block.halves.values() if half.reason is not None)
    if len(fused) == 2:
        return Found(name, WHOLE, ())
    if fused:
        return Found(name, _HALF[fused.pop()], reasons)
    grouped = any(groups.find(module) for module in layer.modules())
    return Found(name, GROUPS if grouped else NONE, reasons)


def table(layers: dict[str, list[Found]]) -> str:
    """The table in Markdown."""
    kinds = {one for found in layers.values() for one in found}
    lines = [f"Made with transformers {transformers.__version__}: {len(kinds)} kinds of decoder layers of "]
    lines[0] += f"{sum(map(bool, layers.values()))} architectures that `{AUTO}` lists."
    lines += ["", "| fused | kinds of layers |", "|---|---|"]
    by_fused = {fused: [one for one in kinds if one.fused == fused] for fused in KINDS}
    lines += [f"| {fused} | {len(ones)} |" for fused, ones in by_fused.items()]
    counts = collections.Counter(_general(reason) for one in kinds for reason in one.reasons)
    lines += ["", "| why no more is fused | kinds of layers |", "|---|---|"]
    lines += [f"| {reason} | {count} |" for reason, count in sorted(counts.items(), key=lambda c: (-c[1], c[0]))]
    for fused, ones in by_fused.items():
        names = sorted({one.layer.removesuffix("DecoderLayer") for one in ones})
        lines += ["", f"*{fused.capitalize()}*", ""] if names else []
        lines += [f"- {', '.join(names[at : at + 8])}" for at in range(0, len(names), 8)]
    return "\n".join(lines)


def _general(reason: str) -> str:
    """A reason without the names of classes, which differ from model to model."""
    for part, text in (
        ("attention ", "attention does something else with its input or its result"),
        ("norm ", "a norm of another kind"),
        ("activation ", "an activation that kernels do not have"),
        ("dropout ", "a dropout of another kind"),
    ):
        if reason.startswith(part):
            return text
    if reason.startswith("MLP "):
        mixture = any(word in reason for word in ("Moe", "MoE", "Sparse", "Experts", "Router"))
        return "a mixture of experts in the place of an MLP" if mixture else "an MLP of another kind"
    return "a layer that is not compressed" if reason.startswith("layer ") else reason


def main(arguments: list[str] | None = None) -> int:
    """Prints the table, or puts it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, help="the page that has a place for the table")
    parser.add_argument("--only", default="", help="architectures, by comma")
    parser.add_argument("--verbose", action="store_true", help="prints each kind of layer")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    only = {name for name in options.only.split(",") if name}
    layers = {name: layers_of(name) for name in architectures(AUTO) if not only or name in only}
    if options.verbose:
        for name, kinds in layers.items():
            print(name, *kinds, sep="\n  ")
    text = table(layers)
    if options.table is None:
        print(text)
        return 0
    page = options.table.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    options.table.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
