"""The layers of a model that are to run from compressed weights, and these weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._core.errors import InputError
from .._core.options import exactly
from .._file.container import Container, TensorEntry
from .._gpu import decodable
from ..nn import CompressedLayer
from ..nn._weights.scaled import Scaled
from .checkpoint import Checkpoint, Lazy, LazyTensor
from .find import Candidate, find, groups, routed
from .names import Match, shared_names
from .reads import layer_reads
from .report import SkippedLayer
from .stored import as_stored, is_exact

Choice = tuple[list[str], list[str], bool]
"""Patterns of layers to take and to leave, and whether embeddings are taken."""


@dataclass(frozen=True)
class Selection:
    """Layers with the names that a container has for their tensors."""

    layers: list[Candidate]
    weights: Mapping[str, torch.Tensor]
    """Their tensors by these names, where they are still to be compressed."""
    skipped: list[SkippedLayer]
    """Modules that stay as they are, and why."""
    groups: list[list[str]]
    """Tensors that are decoded together."""
    routed: Mapping[str, float]
    """The tensors of experts, and how often they are used for each token."""

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        layers: list[Candidate],
        weights: Mapping[str, torch.Tensor] | None = None,
        skipped: Sequence[SkippedLayer] = (),
    ) -> Selection:
        """These layers of a model."""
        return cls(layers, {} if weights is None else weights, list(skipped), groups(layers), routed(model, layers))

    def encoded(self, encoding: Mapping[str, Any], encode: Callable[..., Container]) -> Container:
        """The weights, compressed in memory, tensor by tensor.

        :param encode: encodes a mapping of tensors with these options.
        """
        weights = self.weights
        transpose = [exactly(name) for candidate in self.layers for name in candidate.transposed_tensors]
        if isinstance(weights, Lazy) and is_exact(encoding):
            weights = as_stored(weights, self.layers)
        return encode(weights, transpose=transpose, **encoding)


def of_container(model: Any, matching: Match, container: Container) -> Selection:
    """The layers of a model whose weights a container has in a form to run from."""
    out = []
    scaled = Scaled(container)
    for candidate in find(model, [], [], True)[0]:
        named = _stored(candidate, matching)
        dtype = next(iter(candidate.parameters.values())).dtype
        # Rows of tables are looked up as they are stored.
        codes = () if candidate.kind == "embedding" else scaled
        if named is None or not all(
            n in container and _runs(container[n], dtype, codes) for one in named.tensors for n in one
        ):
            continue
        out.append(named)
    # Layers that share a weight run from it together or not at all.
    selected = {name for c in out for name in c.parameters}
    shared = shared_names(model)
    plain = {shared[n] for n in shared if n not in selected}
    return Selection.of(model, [c for c in out if not any(shared.get(n) in plain for n in c.parameters)])


def _stored(candidate: Candidate, matching: Match) -> Candidate | None:
    """The candidate with the names that a file has for its tensors, if it has them all."""
    parameters = list(candidate.parameters)
    if candidate.kind != "experts":
        keys = [matching.single[name] for name in parameters if name in matching.single]
        return replace(candidate, stored=(tuple(keys),)) if len(keys) == len(parameters) else None
    if any(name not in matching.experts for name in parameters):
        return None
    return candidate.of_stacks([matching.stack(name) for name in parameters])


def _runs(entry: TensorEntry, dtype: torch.dtype, scaled: Scaled | tuple[()]) -> bool:
    """Whether a layer can run from a stored tensor, and saves memory by that."""
    if (entry.alias_of or entry.name) in scaled:
        return True
    if len(entry.shape) < 2:
        return False
    if entry.makes_symbols:
        return True
    return entry.coder != "raw" and decodable.wanted_dtype(entry, dtype) == entry.dtype


def of_checkpoint(model: Any, matching: Match, checkpoint: Checkpoint, choice: Choice) -> Selection:
    """Layers of a model without weights that can be compressed, and their weights in a checkpoint. Layers that the
    checkpoint does not have are left out.

    :raises InputError: if there are none.
    """
    candidates, skipped = find(model, *choice)
    candidates = [c for c in candidates if all(matching.has(n) for n in c.parameters)]
    if not candidates:
        raise nothing_to_compress(str(checkpoint.path), model, skipped)
    weights: dict[str, LazyTensor] = {}
    selected: list[Candidate] = []
    shared = shared_names(model)
    for candidate in candidates:
        parts = layer_reads(candidate, matching, checkpoint)
        # A tied weight is stored once, under the first name that it has in the model.
        first = {name: _first_name(name, candidate, shared) for name in parts}
        stored = {name: first[name] if first[name] in weights else name for name in parts}
        if candidate.kind != "experts":
            candidate = replace(candidate, stored=(tuple(stored.values()),))
        elif any(name != other for name, other in stored.items()):
            candidate = replace(candidate, stored=tuple(tuple(stored[n] for n in one) for one in candidate.tensors))
        weights.update((stored[name], part) for name, part in parts.items())
        selected.append(candidate)
    return Selection.of(model, selected, Lazy(checkpoint, weights), skipped)


def _first_name(name: str, candidate: Candidate, shared: dict[str, str]) -> str:
    """The name of a layer's matrix after the first parameter that its own one is tied to."""
    if candidate.kind != "experts":
        return shared[name]
    parameter, _, expert = name.rpartition(".")
    return f"{shared[parameter]}.{expert}"


def of_model(model: torch.nn.Module, choice: Choice) -> Selection:
    """Layers of a model with weights, and these.

    :raises InputError: if there are none, or some are on the meta device.
    """
    candidates, skipped = find(model, *choice)
    if not candidates:
        raise nothing_to_compress(type(model).__name__, model, skipped)
    need_weights(candidates)
    weights: dict[str, torch.Tensor] = {}
    for candidate in candidates:
        parameters = [p.detach() for p in candidate.parameters.values()]
        for i, names in enumerate(candidate.tensors):
            stacks = [p[i] for p in parameters if i < len(p)] if candidate.kind == "experts" else parameters
            weights.update(zip(names, stacks, strict=True))
    return Selection.of(model, candidates, weights, skipped)


def need_weights(candidates: list[Candidate]) -> None:
    """Refuses layers whose weights are on the meta device.

    :raises InputError: if there are such.
    """
    for candidate in candidates:
        for name, parameter in candidate.parameters.items():
            if parameter.device.type == "meta":
                raise InputError(
                    f"tensor '{name}': it is on the meta device (load the weights first, or use wcodec.load_model)",
                    tensor=name,
                    code="I408",
                )


def nothing_to_compress(where: str, model: torch.nn.Module, skipped: list[SkippedLayer]) -> InputError:
    """The error where no layer of a model can be replaced."""
    return InputError(
        f"nothing to compress in {where}: {_reasons(model, skipped)} ({_advice(model, skipped)})", code="I501"
    )


def _is_compressed(model: torch.nn.Module, skipped: list[SkippedLayer]) -> bool:
    """Whether nothing is left of a model that could be compressed, since it is."""
    return not any(s.by_choice for s in skipped) and any(isinstance(m, CompressedLayer) for m in model.modules())


def _advice(model: torch.nn.Module, skipped: list[SkippedLayer]) -> str:
    if _is_compressed(model, skipped):
        return "decompress_ it first"
    if any(s.by_choice for s in skipped):
        return "change include, exclude or embeddings"
    return "wcodec.compress stores tensors of any kind in a file"


def _reasons(model: torch.nn.Module, skipped: list[SkippedLayer]) -> str:
    if _is_compressed(model, skipped):
        return "its layers are compressed already"
    if all(s.vectors for s in skipped):
        return "it has no linear layers, embeddings or experts"
    skipped = [s for s in skipped if not s.vectors] or skipped
    shown = "; ".join(f"{s.name}: {s.why}" for s in skipped[:5])
    return shown + (f"; and {len(skipped) - 5} more" if len(skipped) > 5 else "")
