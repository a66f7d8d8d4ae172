"""Advice that would make a model with compressed layers faster, where it could be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core import format as fmt

# One sequence in vLLM on an H100: huffman and quads, without a trellis, over rans and pairs with one.
_FASTER = {"int8": 1.3, "rate": 1.4}
# The share of the multiplied weights that may be left out of account.
_FEW = 0.02


def advice(model: Any) -> str | None:
    """One sentence for somebody who found a model slow: what of its settings, or of its file, costs time; nothing where
    there is nothing to gain.

    >>> import torch, wcodec
    >>> from wcodec._measure.advice import advice
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 64))
    >>> report = wcodec.compress_(model, cache=0, progress=False)
    >>> advice(model)
    'weights are decoded for every token: cache="auto" (--cache auto) keeps them decoded, in 64.00 KiB'
    """
    layers = _layers(model)
    if not layers:
        return None
    gpu = [layer for layer in layers if layer.device.type == "cuda"]
    return _on_gpu(gpu) if gpu else _on_cpu(layers)


def _layers(model: Any) -> list[Any]:
    """Layers that multiply with compressed weights."""
    import torch

    from ..nn import CompressedLayer

    if not isinstance(model, torch.nn.Module):
        model = getattr(model, "model", None)
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [m for m in modules if isinstance(m, CompressedLayer) and not m.looked_up]


def _on_cpu(layers: Sequence[Any]) -> str | None:
    from ..nn._weights.providers import decoded_bytes

    sizes: dict[tuple[int, str], tuple[int, bool]] = {}
    for layer in layers:
        for name in layer.tensors:
            entry = layer._store.entry(name)
            is_cached = layer._store.is_cached([name], layer.device)
            sizes[id(layer._store), entry.name] = decoded_bytes(entry, layer.dtype), is_cached
    missing = sum(size for size, is_cached in sizes.values() if not is_cached)
    if missing <= _FEW * sum(size for size, _ in sizes.values()):
        return None
    settings = layers[0]._store.settings
    size = fmt.size(missing)
    if settings["residency"] == "disk":
        return f"weights are read from disk and decoded for every token: cache='{_asked(missing)}' keeps {size} decoded"
    if settings["cache"] is None and settings["ram_budget"] is None:
        return f"weights are decoded for every token, since memory is short: {size} more would keep them decoded"
    return f'weights are decoded for every token: cache="auto" (--cache auto) keeps them decoded, in {size}'


def _asked(count: int) -> str:
    return f"{-(-count // 1_000_000)}MB"


def _on_gpu(layers: Sequence[Any]) -> str | None:
    if not any(layer._store.fuses for layer in layers):
        return "weights are decoded for every token: wcodec.nn.fuse_(model), without --no-fused, multiplies as they are"
    slow: dict[str, int] = {}
    total = 0
    for layer in layers:
        for name in layer.tensors:
            entry = layer._store.entry(name)
            total += entry.stored_bytes
            if entry.scheme in _FASTER and entry.layout != "quad":
                slow[entry.scheme] = slow.get(entry.scheme, 0) + entry.stored_bytes
    if 2 * sum(slow.values()) <= total:
        return None
    scheme = max(slow, key=lambda one: slow[one])
    return (
        f'its weights have a form for size: encoded with optimize="speed" (--optimize speed) it writes about '
        f"{_FASTER[scheme]} times as many tokens/s, one sequence at a time"
    )


__all__ = ["advice"]
