"""Which layers of a model can be compressed, and which are decoded together."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..nn import CompressedLayer
from ..nn.experts import STACKS, eager_forward
from ._report import SkippedLayer

# What configs call the number of experts that a token is routed to.
_ROUTED_TO = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts")


@dataclass(frozen=True)
class Candidate:
    """A layer that can be compressed."""

    name: str
    module: Any
    kind: str
    """``linear``, ``conv1d``, ``embedding`` or ``experts``."""
    stored: tuple[tuple[str, ...], ...] | None = None
    """Names of its tensors in a container, where they are not those of its parameters."""
    parts: tuple[int, ...] = (1, 1)
    """For experts, how many tensors are a matrix of each stack."""

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are compressed, by their names in the model."""
        keys = STACKS if self.kind == "experts" else ("weight",)
        return {joined(self.name, key): self.module._parameters[key] for key in keys}

    @property
    def bytes(self) -> int:
        """Bytes of these parameters."""
        return sum(int(p.nbytes) for p in self.parameters.values())

    @property
    def tensors(self) -> list[tuple[str, ...]]:
        """Names of the stored tensors: one, or those of each expert."""
        if self.stored is not None:
            return list(self.stored)
        if self.kind != "experts":
            return [tuple(self.parameters)]
        experts = self.module._parameters[STACKS[0]].shape[0]
        return [tuple(f"{name}.{i}" for name in self.parameters) for i in range(experts)]


def joined(prefix: str, name: str) -> str:
    """A dotted name."""
    return f"{prefix}.{name}" if prefix else name


def group_of(name: str) -> str:
    """The block that a layer belongs to: what its name has up to the last number.

    >>> group_of("model.layers.3.self_attn.q_proj"), group_of("lm_head")
    ('model.layers.3', 'lm_head')
    """
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[-1] + 1]) if numbers else name


def groups(candidates: list[Candidate]) -> list[list[str]]:
    """Names of tensors that are decoded together, in the order of the model."""
    found: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.kind == "experts":
            found.update((f"{candidate.name}#{i}", list(names)) for i, names in enumerate(candidate.tensors))
        else:
            # Tables are looked up, not decoded with a block.
            block = candidate.name if candidate.kind == "embedding" else group_of(candidate.name)
            # A layer that computes in another dtype would have all others decoded to that, too.
            dtype = next(iter(candidate.parameters.values())).dtype
            found.setdefault(f"{block}:{dtype}", []).extend(name for names in candidate.tensors for name in names)
    return list(found.values())


def routed(model: torch.nn.Module, candidates: list[Candidate]) -> dict[str, float]:
    """Names of the tensors of experts, and how often each is used for each token: 1 where the config does not say."""
    config = getattr(model, "config", None)
    chosen = [getattr(config, key, None) for key in _ROUTED_TO]
    most = next((k for k in chosen if isinstance(k, int) and k > 0), None)
    found: dict[str, float] = {}
    for candidate in candidates:
        if candidate.kind == "experts":
            share = 1.0 if most is None else min(most / len(candidate.tensors), 1.0)
            found.update((name, share) for names in candidate.tensors for name in names)
    return found


def find(
    model: torch.nn.Module, include: list[str], exclude: list[str], embeddings: bool
) -> tuple[list[Candidate], list[SkippedLayer]]:
    """The layers to compress, in the model's order, and why others are not."""
    chosen: list[Candidate] = []
    skipped: list[SkippedLayer] = []
    for name, module, kind in _layers(model):
        candidate = Candidate(name, module, kind)
        left_out = _not_chosen(candidate, include, exclude, embeddings)
        why = left_out or _why_not(candidate)
        if why is None:
            chosen.append(candidate)
        else:
            skipped.append(SkippedLayer(name, why, _bytes(module), by_choice=left_out is not None))
    return _tied_together(model, chosen, skipped)


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    for name, module in model.named_modules():
        if not name or isinstance(module, CompressedLayer):
            continue
        if isinstance(module, torch.nn.Linear):
            yield name, module, "linear"
        elif isinstance(module, torch.nn.Embedding):
            yield name, module, "embedding"
        elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
            yield name, module, "conv1d"
        elif all(module._parameters.get(stack) is not None for stack in STACKS):
            yield name, module, "experts"


def _not_chosen(candidate: Candidate, include: list[str], exclude: list[str], embeddings: bool) -> str | None:
    """Why the caller's choice leaves a layer out, if it does."""
    names = (candidate.name, *candidate.parameters)

    def matches(patterns: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(n, pattern) for n in names for pattern in patterns)

    if include and not matches(include):
        return "not among include"
    if matches(exclude):
        return "among exclude"
    if candidate.kind == "embedding" and not embeddings:
        return "an embedding (embeddings=True compresses it)"
    return None


def _why_not(candidate: Candidate) -> str | None:
    """Why a layer cannot be compressed, if it cannot."""
    module = candidate.module
    plain = {"linear": torch.nn.Linear, "embedding": torch.nn.Embedding}.get(candidate.kind)
    if plain is not None and type(module) is not plain and not is_scaled(module):
        return f"of class {type(module).__name__}, which may compute something else"
    if candidate.kind == "embedding" and module.max_norm is not None:
        return "max_norm changes the table while the model runs"
    if candidate.kind == "experts" and eager_forward(module) is None:
        return f"{type(module).__name__} does not compute expert by expert"
    for parameter in candidate.parameters.values():
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return f"its dtype is {parameter.dtype}"
        if parameter.numel() == 0:
            return "it is empty"
    if hasattr(module, "parametrizations") or module._forward_pre_hooks and hasattr(module, "weight_g"):
        return "its weight is computed from others"
    return None


def is_scaled(module: torch.nn.Module) -> bool:
    """Whether this is an embedding of transformers that multiplies its rows by a scale, as Gemma's."""
    named = type(module).__name__.endswith("TextScaledWordEmbedding") and isinstance(module, torch.nn.Embedding)
    return named and hasattr(module, "embed_scale") and hasattr(module, "scalar_embed_scale")


def _bytes(module: torch.nn.Module) -> int:
    return sum(int(p.nbytes) for p in module.parameters(recurse=False))


def _tied_together(
    model: torch.nn.Module, chosen: list[Candidate], skipped: list[SkippedLayer]
) -> tuple[list[Candidate], list[SkippedLayer]]:
    """Leaves out layers whose weight something else shares that stays uncompressed: they must stay tied."""
    sharing: dict[Any, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        sharing.setdefault(key_of(parameter), []).append(name)
    while True:
        compressed = {name for c in chosen for name in c.parameters}
        for candidate in chosen:
            others = [
                other
                for parameter in candidate.parameters.values()
                for other in sharing[key_of(parameter)]
                # A module that is in the model under two names is one candidate.
                if other not in compressed and not _same_module(model, candidate, other)
            ]
            if others:
                why = f"tied to {others[0].removesuffix('.weight')}, which is not compressed"
                skipped.append(SkippedLayer(candidate.name, why, candidate.bytes))
                chosen = [c for c in chosen if c is not candidate]
                break
        else:
            return chosen, skipped


def _same_module(model: torch.nn.Module, candidate: Candidate, parameter: str) -> bool:
    return model.get_submodule(parameter.rpartition(".")[0]) is candidate.module


def key_of(parameter: torch.Tensor) -> Any:
    """Equal for parameters that share their data."""
    if parameter.device.type == "meta":
        return id(parameter)
    return _torch.identity(parameter) or id(parameter)
