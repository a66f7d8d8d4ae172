"""Layers that several ranks share: each rank's part of a weight, by the styles of transformers' tensor parallel plans.

transformers moves activations between the ranks; the layers are told only which rows or columns they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from ..._core.errors import UnsupportedError
from ..._file.shards import Shard, even
from .._weights.store import Store
from ..embedding import CompressedEmbedding
from ..experts import CompressedExperts
from ..linear import CompressedConv1D, CompressedLinear
from ..own import CompressedModule
from .layer import CompressedLayer

# The dimension of a weight [out, in] that a style cuts, and of how many pieces that was put together.
_LINEAR: dict[str, tuple[int | None, int]] = {
    **dict.fromkeys(("colwise", "colwise_rep", "colwise_gather_output"), (0, 1)),
    "packed_colwise": (0, 2),
    **dict.fromkeys(("rowwise", "rowwise_rep", "rowwise_split_input"), (1, 1)),
}
_TABLES: dict[str, tuple[int | None, int]] = {"embedding_rowwise": (0, 1), "embedding_colwise": (1, 1)}
# Styles that leave each rank the whole weight.
_WHOLE = {"replicate", "mla_kv_a_proj", "replicated_with_grad_allreduce"}
# Styles of experts: of the module, and of its stacks.
_EXPERTS = {"": "moe_tp_experts", "gate_up_proj": "packed_colwise", "down_proj": "rowwise"}


@dataclass(frozen=True)
class Rank:
    """One of several."""

    number: int
    of: int


def shards(layer: CompressedLayer, name: str, styles: Mapping[str, str], rank: Rank) -> list[Shard]:
    """A rank's parts of a layer's tensors, in the order of ``layer.tensors``.

    :param name: the layer's, for errors.
    :param styles: the plan's styles of the layer, under an empty name, and of its parameters.
    :raises UnsupportedError: for a style that compressed layers of this kind cannot be shared by.
    :raises InputError: if nothing is left for a rank.
    """
    container = layer._store.container
    if isinstance(layer, CompressedModule) and not _WHOLE.issuperset(styles.values()):
        _stop(name, ", ".join(styles.values()))
    if isinstance(layer, CompressedExperts) and styles:
        cut = []
        (rows, pieces), (columns, _) = parts_of_experts(name, styles)
        for expert in layer._names:
            gate_up, down = expert[: layer._parts[0]], expert[layer._parts[0] :]
            # Gate and up are one matrix, or one each.
            of = pieces if len(gate_up) == 1 else 1
            cut += [Shard(t, rows, even(container[t].shape[rows], rank.number, rank.of, of)) for t in gate_up]
            cut += [Shard(t, columns, even(container[t].shape[columns], rank.number, rank.of)) for t in down]
        return cut
    axis, pieces = part_of(isinstance(layer, CompressedEmbedding), name, styles.get(""))
    if axis is None:
        return [Shard.whole(container, tensor) for tensor in layer.tensors]
    if isinstance(layer, CompressedConv1D):
        axis = 1 - axis
    return [Shard(layer.tensor, axis, even(layer.entry.shape[axis], rank.number, rank.of, pieces))]


def part_of(embedding: bool, name: str, style: str | None) -> tuple[int | None, int]:
    """The dimension of a weight ``[out, in]`` that a style cuts, none where each rank has all of it, and of how many
    pieces it was put together.

    :raises UnsupportedError: for a style that compressed layers cannot be shared by.
    """
    if style is None or style in _WHOLE:
        return None, 1
    style_of_parts = _TABLES.get(style) if embedding else _LINEAR.get(style)
    if style_of_parts is None:
        _stop(name, style)
    return style_of_parts


def parts_of_experts(name: str, styles: Mapping[str, str]) -> list[tuple[int, int]]:
    """The parts, as of :func:`part_of`, of the stacks of experts: gate and up, down.

    :raises UnsupportedError: for styles that compressed experts cannot be shared by.
    """
    if dict(styles) != _EXPERTS:
        _stop(name, ", ".join(f"{key or 'the module'}: {style}" for key, style in styles.items()))
    return [(0, 2), (1, 1)]


def _stop(name: str, style: str) -> NoReturn:
    raise UnsupportedError(
        f"compressed layer '{name}' cannot be shared by ranks as the plan says, {style} (leave it out of the "
        "tp_plan, or out of what is compressed)",
        code="U206",
    )


def take(layer: CompressedLayer, store: Store, parts: list[Shard], names: list[str], rank: Rank) -> None:
    """Gives a layer its parts of a store, where they have these names."""
    entries = [layer._store.entry(part.tensor) for part in parts]
    layer.tensor = names[0]
    if any(part.shape(entry.shape) != entry.shape for part, entry in zip(parts, entries, strict=True)):
        layer._part = (rank.number, rank.of)
    if isinstance(layer, CompressedExperts):
        count = sum(layer._parts)
        layer._names = [tuple(names[i : i + count]) for i in range(0, len(names), count)]
        for place, stack in enumerate(layer._stacks):
            stack_names = layer._names[0][sum(layer._parts[:place]) : sum(layer._parts[: place + 1])]
            rows = sum(store.entry(n).shape[0] for n in stack_names)
            layer._stacks[stack] = (len(layer._names), rows, store.entry(stack_names[0]).shape[1])
        layer._attach()
        layer._expect_all(store)
    elif isinstance(layer, CompressedModule):
        layer.rename(dict(zip(layer.tensors, names, strict=True)))
    elif isinstance(layer, CompressedEmbedding):
        layer._width = store.entry(names[0]).shape[1]
        if parts[0].axis == 0:
            layer._span = parts[0].ranges[0]
    else:
        assert isinstance(layer, CompressedLinear)
        shape = store.entry(names[0]).shape
        layer._features = (shape[0], shape[1]) if isinstance(layer, CompressedConv1D) else (shape[1], shape[0])
    layer._weights.join(store, layer.tensors)


__all__ = ["Rank", "part_of", "parts_of_experts", "shards", "take"]
