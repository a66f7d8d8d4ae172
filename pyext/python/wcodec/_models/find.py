"""Which layers of a model can be compressed, and which are decoded together."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._gpu import torch as _torch
from ..nn import CompressedLayer
from .kinds import is_known, is_matrix, is_unmade, kind_of
from .report import SkippedLayer
from .uses import written

# Names in configs for the number of experts that a token is routed to.
_ROUTED_TO = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts")


# A matrix of a module that is of no known kind is worth the while if it is not less than one of so many parts of a
# model.
_SMALL = 200


@dataclass(frozen=True)
class Candidate:
    """A layer that can be compressed."""

    name: str
    module: Any
    kind: str
    """``linear``, ``conv1d``, ``embedding``, ``experts`` (stacks of matrices, which are compressed one by one), or
    ``own``: a module whose class computes in its own way, with matrices that are compressed each as a whole."""
    keys: tuple[str, ...] = ("weight",)
    """Names of the parameters that are compressed, in the module."""
    stored: tuple[tuple[str, ...], ...] | None = None
    """Names of its tensors in a container, where they are not those of its parameters."""
    parts: tuple[int, ...] = ()
    """The number of tensors that are a matrix of each stack, for experts; one if left out."""

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "parts", (1,) * len(self.keys))

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are compressed, by their names in the model."""
        return {joined(self.name, key): self.module._parameters[key] for key in self.keys}

    @property
    def bytes(self) -> int:
        """Bytes of these parameters."""
        return sum(_size(p) for p in self.parameters.values())

    @property
    def transposed(self) -> bool:
        """Whether its matrices are ``[in, out]``."""
        return self.kind == "conv1d" or self.kind == "experts" and bool(getattr(self.module, "is_transposed", False))

    @property
    def known(self) -> bool:
        """Whether it is known which products its forward computes: of experts, those with the stacks of most."""
        return self.kind != "own" and (self.kind != "experts" or is_known(self.module))

    @property
    def tensors(self) -> list[tuple[str, ...]]:
        """Names of the stored tensors: together, or those of each expert."""
        if self.stored is not None:
            return list(self.stored)
        if self.kind != "experts":
            return [tuple(self.parameters)]
        counts = {name: p.shape[0] for name, p in self.parameters.items()}
        return [tuple(f"{n}.{i}" for n, count in counts.items() if i < count) for i in range(max(counts.values()))]

    @property
    def by_key(self) -> dict[str, list[tuple[str, ...]]]:
        """The stored tensors of each parameter: of its matrix, or of each expert."""
        names_by_key: dict[str, list[tuple[str, ...]]] = {key: [] for key in self.keys}
        for i, names in enumerate(self.tensors):
            at = 0
            for key, count in zip(self.keys, self.parts, strict=True):
                # Some stacks may have fewer.
                if self.kind != "experts" or i < self.module._parameters[key].shape[0]:
                    names_by_key[key].append(names[at : at + count])
                    at += count
        return names_by_key

    def of_stacks(self, stacks: Sequence[Sequence[tuple[str, ...]]]) -> Candidate:
        """The experts with these tensors: for each stack, those of each expert."""
        most = max(len(stack) for stack in stacks)
        stored = tuple(tuple(n for stack in stacks if i < len(stack) for n in stack[i]) for i in range(most))
        return replace(self, stored=stored, parts=tuple(len(stack[0]) for stack in stacks))

    @property
    def transposed_tensors(self) -> list[str]:
        """Its stored tensors that are ``[in, out]``."""
        return [name for names in self.tensors for name in names] if self.transposed else []


def joined(prefix: str, name: str) -> str:
    """A dotted name."""
    return f"{prefix}.{name}" if prefix else name


def group_of(name: str) -> str:
    """The block that a layer belongs to: its name up to the last number.

    >>> group_of("model.layers.3.self_attn.q_proj"), group_of("lm_head")
    ('model.layers.3', 'lm_head')
    """
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[-1] + 1]) if numbers else name


def groups(candidates: list[Candidate]) -> list[list[str]]:
    """Names of tensors that are decoded together, in the order of the model."""
    names_by_group: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.kind == "experts":
            names_by_group.update((f"{candidate.name}#{i}", list(names)) for i, names in enumerate(candidate.tensors))
        else:
            # Tables are looked up, not decoded with a block; who computes in its own way decodes for itself.
            block = candidate.name if candidate.kind in ("embedding", "own") else group_of(candidate.name)
            # A layer that computes in another dtype would have all others decoded to that, too.
            dtype = next(iter(candidate.parameters.values())).dtype
            names_by_group.setdefault(f"{block}:{dtype}", []).extend(
                name for names in candidate.tensors for name in names
            )
    return list(names_by_group.values())


def routed(model: torch.nn.Module, candidates: list[Candidate]) -> dict[str, float]:
    """Names of the tensors of experts, and how often each is used for each token: 1 where the config does not say."""
    config = getattr(model, "config", None)
    counts = [getattr(config, key, None) for key in _ROUTED_TO]
    most = next((k for k in counts if isinstance(k, int) and k > 0), None)
    share_of: dict[str, float] = {}
    for candidate in candidates:
        if candidate.kind == "experts":
            share = 1.0 if most is None else min(most / len(candidate.tensors), 1.0)
            share_of.update((name, share) for names in candidate.tensors for name in names)
    return share_of


def find(
    model: torch.nn.Module, include: list[str], exclude: list[str], embeddings: bool
) -> tuple[list[Candidate], list[SkippedLayer]]:
    """The layers to compress, in the model's order, and why others are not: every module is named that keeps a matrix
    or more."""
    candidates: list[Candidate] = []
    skipped: list[SkippedLayer] = []
    inside = _read_by_others(model)
    kinds: set[Any] = {type(m) for m in model.modules()}
    changed = {end for kind in kinds for end in written(kind)}
    least = sum(p.numel() for p in model.parameters() if not is_unmade(p)) // _SMALL
    for name, module in model.named_modules():
        if isinstance(module, CompressedLayer) or module in inside:
            continue
        kind = kind_of(module, least)
        if kind.name is not None and name:
            candidate = Candidate(name, module, kind.name, kind.keys)
            left_out = _not_chosen(candidate, include, exclude, embeddings)
            if left_out is not None:
                skipped.append(SkippedLayer(name, left_out, _bytes(module), by_choice=True))
            elif any(f".{name}".endswith(f".{end}") for end in changed):
                skipped.append(SkippedLayer(name, "code of the model writes into its weight", _bytes(module)))
            elif isinstance(module, torch.nn.Embedding) and _is_made(model, candidate):
                skipped.append(SkippedLayer(name, "its class makes it where files have none", _bytes(module)))
            else:
                candidates.append(candidate)
        elif name and kind.why is not None:
            beside = sum(_bytes(m) for m, owner in inside.items() if owner is module)
            skipped.append(SkippedLayer(name, kind.why, _bytes(module) + beside))
        elif not name:
            skipped += _of_model(module)
    candidates, skipped = _tied_together(model, candidates, skipped)
    skipped += _beside(candidates)
    return candidates, [*skipped, *_vectors(model, {c.module for c in candidates} | set(inside), skipped)]


def _is_made(model: Any, candidate: Candidate) -> bool:
    """Whether a table is one that the model's class makes by itself, as those of positions, and not a tied one."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return all(may_be_missing(model, name) and name not in tied for name in candidate.parameters)


def may_be_missing(model: Any, name: str) -> bool:
    """Whether a model's class makes a parameter by itself where a checkpoint has none."""
    patterns = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)


def _vectors(model: torch.nn.Module, counted: set[Any], skipped: list[SkippedLayer]) -> list[SkippedLayer]:
    """The modules that have vectors and numbers only, and are counted with no other."""
    named = {s.name for s in skipped}
    why = "it has no matrix"
    vectors = []
    for name, module in model.named_modules():
        is_reported = not name or name in named or module in counted or isinstance(module, CompressedLayer)
        if not is_reported and _bytes(module):
            vectors.append(SkippedLayer(name, why, _bytes(module), vectors=True))
    return vectors


def _of_model(model: torch.nn.Module) -> list[SkippedLayer]:
    """Matrices of the model itself, which has no name."""
    why = "a parameter of the model itself"
    return [
        SkippedLayer(key, why, _size(p))
        for key, p in model._parameters.items()
        if p is not None and not is_unmade(p) and is_matrix(p)
    ]


def _read_by_others(model: torch.nn.Module) -> dict[torch.nn.Module, torch.nn.Module]:
    """Layers whose weights a module around them reads by itself, with code that knows nothing of compressed ones; and
    that module."""
    readers: dict[torch.nn.Module, torch.nn.Module] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            readers.update((child, module) for child in module.children())
        elif hasattr(module, "parametrizations"):
            readers.update((part, module) for part in module.parametrizations.modules())
    return readers


def _beside(candidates: list[Candidate]) -> list[SkippedLayer]:
    """Other matrices of layers that are compressed, which stay."""
    beside = []
    for candidate in candidates:
        keys = set(candidate.keys)
        for key, parameter in candidate.module._parameters.items():
            if parameter is not None and key not in keys and is_matrix(parameter) and not _is_bias(key):
                why = "beside others of its module that are compressed"
                beside.append(SkippedLayer(joined(candidate.name, key), why, _size(parameter)))
    return beside


def _is_bias(key: str) -> bool:
    return key.endswith("bias")


def _not_chosen(candidate: Candidate, include: list[str], exclude: list[str], embeddings: bool) -> str | None:
    """Why the caller's choice leaves a layer out, if it does."""
    names = (candidate.name, *candidate.parameters)

    def matches(patterns: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(n, pattern) for n in names for pattern in patterns)

    if include and not matches(include):
        return "not among include"
    if matches(exclude):
        return "among exclude"
    if isinstance(candidate.module, torch.nn.Embedding) and not embeddings:
        return "an embedding (embeddings=True compresses it)"
    return None


def _bytes(module: torch.nn.Module) -> int:
    return sum(_size(p) for p in module.parameters(recurse=False))


def _size(parameter: torch.Tensor) -> int:
    return 0 if is_unmade(parameter) else int(parameter.nbytes)


def _tied_together(
    model: torch.nn.Module, candidates: list[Candidate], skipped: list[SkippedLayer]
) -> tuple[list[Candidate], list[SkippedLayer]]:
    """Leaves out layers whose weight something else shares that stays uncompressed: they must stay tied."""
    sharing: dict[Any, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        sharing.setdefault(key_of(parameter), []).append(name)
    while True:
        compressed = {name for c in candidates for name in c.parameters}
        for candidate in candidates:
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
                candidates = [c for c in candidates if c is not candidate]
                break
        else:
            return candidates, skipped


def _same_module(model: torch.nn.Module, candidate: Candidate, parameter: str) -> bool:
    return model.get_submodule(parameter.rpartition(".")[0]) is candidate.module


def key_of(parameter: torch.Tensor) -> Any:
    """Equal for parameters that share their data."""
    if is_unmade(parameter) or parameter.device.type == "meta":
        return id(parameter)
    return _torch.identity(parameter) or id(parameter)
