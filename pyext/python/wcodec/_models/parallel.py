"""Models that several ranks share by transformers' tensor parallelism: each rank keeps its parts of compressed weights.

transformers cuts parameters and moves activations. This module cuts compressed weights by the same plan, before any of
them is decoded, and has all ranks fail where one of them does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .._core.errors import InputError, UnsupportedError
from .._file.shards import Shard, narrow
from ..nn import CompressedEmbedding, CompressedExperts, CompressedLayer
from ..nn._layers.parts import Rank, shards, take
from ..nn._weights.store import Store

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def sizes_of(config: Any) -> dict[str, int]:
    """The sizes of groups of ranks, by their names in ``DistributedConfig``: those that are more than one."""
    distributed = getattr(config, "distributed_config", None)
    names = ("tp_size", "ep_size", "fsdp_size", "dp_replicate_size", "pp_size")

    def size(name: str) -> Any:
        return distributed.get(name) if isinstance(distributed, dict) else getattr(distributed, name, None)

    sizes = {name: size(name) for name in names}
    return {name: value for name, value in sizes.items() if isinstance(value, int) and value > 1}


def ranks_of(model: Any) -> Rank | None:
    """The rank that this process is among those that share each layer of a model; none where nothing is shared."""
    size = sizes_of(getattr(model, "config", None)).get("tp_size") or getattr(model, "_tp_size", None)
    if not isinstance(size, int) or size < 2 or not torch.distributed.is_initialized():
        return None
    return Rank(torch.distributed.get_rank() % size, size)


@contextmanager
def together(rank: Rank | None) -> Iterator[None]:
    """All ranks that share a model raise the error that one of them raises in the block, so that none waits for others
    that are gone. Every rank has to enter it."""
    if rank is None:
        yield
        return
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:  # also a panic of the extension, and Ctrl-C
        failed = error
    failures: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(failures, None if failed is None else str(failed))
    if failed is not None:
        raise failed
    for number, text in enumerate(failures):
        if text is not None:
            raise UnsupportedError(f"rank {number} cannot load the model: {text} (see that rank's error)", code="U210")


def check(model: Any, pre_quantized: bool) -> None:
    """Raises what compressed layers cannot be shared by, before anything is read."""
    config: Any = getattr(model, "config", None)
    sizes = sizes_of(config)
    if isinstance(size := getattr(model, "_tp_size", None), int) and size > 1:
        sizes["tp_size"] = size
    if not sizes:
        return
    others = sorted(sizes.keys() - {"tp_size"})
    if others:
        raise UnsupportedError(
            f"compressed layers are shared by tensor parallelism only, not by {', '.join(others)} (pass "
            "distributed_config=DistributedConfig(tp_size=N) alone)",
            code="U207",
        )
    styles = _styles()
    if styles is None:
        raise UnsupportedError(
            "this transformers cannot share compressed layers among ranks (install version 5.17 or later, or leave "
            "tp_plan and distributed_config out and pass device_map='cuda')",
            code="U204",
        )
    if not pre_quantized:
        raise UnsupportedError(
            "each rank would compress the whole model (run wcodec encode FOLDER -o OUT/ first, and load that folder)",
            code="U208",
        )
    plan = getattr(model, "_tp_plan", None) or {}
    check_heads(config, plan, sizes["tp_size"])
    if not hasattr(styles, "EmbeddingParallel"):
        # Its styles know torch's own embeddings only: compressed ones stay whole on each rank.
        embeddings = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)}
        undivided = {key for key in plan if key in embeddings or any(_generic(name) == key for name in embeddings)}
        model._tp_plan = {key: style for key, style in plan.items() if key not in undivided}


def check_heads(config: Any, plan: Mapping[str, str], ranks: int) -> None:
    """Raises heads of attention that so many ranks cannot share.

    :raises InputError: if there are such.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for heads, layer in (("num_attention_heads", "q_proj"), ("num_key_value_heads", "k_proj")):
        count = getattr(text, heads, None)
        cut = any(key.endswith(f".{layer}") and style == "colwise" for key, style in plan.items())
        if cut and isinstance(count, int) and count % ranks:
            raise InputError(
                f"{heads} is {count}, which {ranks} ranks cannot share (use a number of ranks that divides it)",
                code="I521",
            )


def _styles() -> Any:
    """transformers' styles, where it has those that take layers like ours."""
    try:
        from transformers.distributed import tensor_parallel
    except ImportError:
        return None
    return tensor_parallel if hasattr(tensor_parallel.TensorParallelLayer, "should_use_local_tensors") else None


def divide(model: Any, rank: Rank) -> None:
    """Gives the compressed layers of a model this rank's parts, by its plan. Nothing of them was decoded yet.

    :raises UnsupportedError: for a style that compressed layers cannot be shared by.
    :raises InputError: if nothing is left for a rank.
    """
    plan = dict(getattr(model, "_tp_plan", None) or {})
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, CompressedLayer)]
    stores = {id(layer._store): layer._store for _, layer in layers}
    for store in stores.values():
        layers_of_store = [(name, layer, styles_of(plan, name)) for name, layer in layers if layer._store is store]
        for name, layer, styles in layers_of_store:
            _check_style(layer, name, styles.get(""), rank)
        _divide(
            model, store, [(layer, shards(layer, name, styles, rank)) for name, layer, styles in layers_of_store], rank
        )


def _divide(model: Any, store: Store, layers: list[tuple[CompressedLayer, list[Shard]]], rank: Rank) -> None:
    if store.residency == "disk":
        raise UnsupportedError(
            "ranks that share a model keep their parts in memory, not on disk (load it with residency 'device' or "
            "'host')",
            code="U209",
        )
    if store.tensor_groups.scaled:
        raise UnsupportedError(
            "layers that run from codes of FP8 with scales are not shared by ranks (encode the checkpoint with another "
            "scheme than lossless or raw)",
            code="U211",
        )
    names: dict[Shard, str] = {}
    others: dict[str, list[str]] = {}
    for shard in (shard for _, parts in layers for shard in parts):
        key = _key(store, shard)
        if key not in names:
            # A table that is looked up whole and multiplied with in parts is two tensors.
            taken = others.setdefault(key.tensor, [])
            names[key] = f"{key.tensor}#{len(taken)}" if taken else key.tensor
            taken.append(names[key])
    entry = store.tensor_groups.entry
    made = narrow(store.container, [Shard(k.tensor, k.axis, k.ranges, name) for k, name in names.items()])

    def renamed(old: Iterable[str]) -> list[str]:
        stored = dict.fromkeys(entry(name).name for name in old)
        return [new for name in stored for new in others.get(name, ())]

    groups = [group for group in map(renamed, store.tensor_groups.groups) if group]
    routed = {new: use for old, use in store.tensor_groups.routed.items() for new in renamed([old])}
    new = Store(made, groups, routed=routed, **store.settings, fuses=store.fuses)
    new.serve(model)
    for layer, parts in layers:
        take(layer, new, parts, [names[_key(store, part)] for part in parts], rank)


def _key(store: Store, shard: Shard) -> Shard:
    """Equal for parts that are the same bytes."""
    stored = store.tensor_groups.entry(shard.tensor)
    is_whole = shard.shape(stored.shape) == stored.shape
    return Shard.whole(store.container, stored.name) if is_whole else Shard(stored.name, shard.axis, shard.ranges)


def styles_of(plan: Mapping[str, str], name: str) -> dict[str, str]:
    """The styles that a plan gives a layer, under an empty name, and its stacks."""
    styles = {}
    for place in ("", "gate_up_proj", "down_proj"):
        full = f"{name}.{place}" if place else name
        style = plan.get(full, plan.get(_generic(full)))
        if style is not None:
            styles[place] = style
    return styles


def _generic(name: str) -> str:
    """A name as plans write it: numbers of layers are stars."""
    return _NUMBER.sub("*", name)


def _check_style(layer: CompressedLayer, name: str, style: str | None, rank: Rank) -> None:
    """Raises what this transformers does of torch's own layers only, or of equal parts only."""
    module = _styles()
    if isinstance(layer, CompressedEmbedding) and style is not None and not hasattr(module, "EmbeddingParallel"):
        raise UnsupportedError(
            f"this transformers cannot share the compressed embedding '{name}' among ranks (leave it out of "
            "tp_plan, or install version 5.23)",
            code="U206",
        )
    if isinstance(layer, CompressedExperts) and style is not None:
        # Up to 5.22 results of experts are summed only where the experts have parameters that were cut.
        summed = module.MoeExpertsParallel.transform_output_post_forward.__code__
        if "has_sharded_parameters" in summed.co_varnames:
            raise UnsupportedError(
                f"this transformers cannot share the compressed experts '{name}' among ranks (install version 5.23, or "
                "leave them out of what is compressed)",
                code="U206",
            )
    uneven = hasattr(module.TensorParallelLayer, "_from_local_last_dim_shard")
    outputs = getattr(layer, "out_features", 0)
    if not uneven and style in ("colwise_rep", "colwise_gather_output") and outputs % rank.of:
        raise InputError(
            f"'{name}' has {outputs} outputs, which {rank.of} ranks cannot share in this transformers (use a number of "
            "ranks that divides it, or install version 5.23)",
            code="I521",
        )


def check_whole(model: torch.nn.Module, what: str) -> None:
    """Raises where layers of a model are parts of what ranks share.

    :raises InputError: if there are such.
    """
    parts = next((m.part for m in model.modules() if isinstance(m, CompressedLayer) and m.part), None)
    if parts is not None:
        raise InputError(
            f"this process has the part of rank {parts[0]} of {parts[1]} of the model, which cannot be {what} "
            "(load the model without tp_plan and distributed_config)",
            code="I517",
        )


__all__ = ["check", "check_heads", "check_whole", "divide", "ranks_of", "sizes_of", "together"]
