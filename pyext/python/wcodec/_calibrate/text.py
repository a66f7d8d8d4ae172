"""The tokens that statistics are collected from: texts of many kinds, what the model itself writes, a text, or token
ids."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from .._core.errors import InputError
from .._core.options import shown
from .._models import running

# The texts that come with the package, and the share of windows of each. Pieces of different topics follow each other.
_FOLDER = Path(__file__).parent / "texts"
_SHIPPED = {"prose": 0.35, "documentation": 0.2, "chat": 0.15, "code": 0.2, "languages": 0.1}
_BETWEEN = "\n----\n"
# Tokens of a window, if nothing is said.
LENGTH = 512
# Windows that are sampled side by side: their keys and values are in memory, and their predictions.
_SIDE_BY_SIDE = 512
_MOST_CACHED_BYTES = 1 << 32
_MOST_PREDICTED_BYTES = 1 << 28


def length_for(model: Any, length: int | None) -> int:
    """Tokens of a window: as asked, or what is usual and the model can take."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) and limit > 0 else None
    if length is None:
        return LENGTH if limit is None else min(LENGTH, limit)
    (length,) = running.whole_numbers("length", length)
    if limit is not None and length > limit:
        raise InputError(
            f"length={length} is more than the model's {limit} positions (use at most {limit})", code="I324"
        )
    return length


def windows_of(data: Any, model: Any, tokenizer: Any, windows: int, length: int) -> list[torch.Tensor]:
    """Windows ``int64 [tokens]`` of a text or of token ids, at most as many as asked for, spread over all of it."""
    if isinstance(data, Mapping):
        # A tokenizer returns such a mapping.
        if "input_ids" not in data:
            raise InputError("data have no 'input_ids' (pass what a tokenizer returns, or token ids)", code="I604")
        data = data["input_ids"]
    if isinstance(data, str):
        # A name that is misspelt is no text to learn from.
        data = Path(data)
    if isinstance(data, os.PathLike):
        return _spread(running.token_ids(data, model, tokenizer), windows, length, model)
    rows = _rows(data)
    if rows is None:
        return _spread(running.token_ids(data, model, tokenizer), windows, length, model)
    cut_windows: list[torch.Tensor] = []
    for row in rows:
        ids = running.token_ids(row["input_ids"] if isinstance(row, Mapping) else row, model, tokenizer)
        running.check_ids(ids, model)
        cut_windows += [part for part in ids.split(length) if len(part) > 1]
        if len(cut_windows) >= windows:
            break
    if not cut_windows:
        raise InputError("there are no token ids to collect statistics from (pass at least 2 tokens)", code="I606")
    return cut_windows[:windows]


def shipped(model: Any, tokenizer: Any = None, trust_remote_code: bool = False) -> dict[str, torch.Tensor] | None:
    """Token ids ``int64 [tokens]`` of the texts that come with the package, by their names; ``None`` where the model's
    tokenizer is not to be found, or has other tokens than the model.

    :raises InputError: if that is so of a tokenizer that is given.
    """
    try:
        known = running.tokenizer_for(model, tokenizer, trust_remote_code)
        ids: dict[str, torch.Tensor] = {}
        for name in _SHIPPED:
            pieces = (_FOLDER / f"{name}.txt").read_text("utf-8").replace(_BETWEEN, "\n\n")
            ids[name] = running.token_ids(pieces, model, known)
            running.check_ids(ids[name], model)
    except InputError as error:
        if error.code not in ("I603", "I605") or tokenizer is not None:
            raise
        return None
    return ids


def shares_of_shipped(ids: Mapping[str, torch.Tensor], windows: int, length: int, model: Any) -> list[torch.Tensor]:
    """Windows ``int64 [tokens]`` of the texts that come with the package, of each its share, at least one of prose;
    fewer where a text is too short. A token that all texts begin with, as the tokenizer adds it, begins each window."""
    first = {int(part[0]) for part in ids.values()}
    out: list[torch.Tensor] = []
    share, before = 0.0, 0
    for name, part in _SHIPPED.items():
        share += part
        until = max(round(share * windows), 1)
        if until > before:
            out += [window.clone() for window in _spread(ids[name], until - before, length, model)]
        before = until
    if len(first) == 1:
        for window in out:
            window[0] = min(first)
    return out


def _rows(data: Any) -> Iterable[Any] | None:
    """The texts of a data set, each as token ids; none where it is one text."""
    if isinstance(data, torch.Tensor):
        return iter(data) if data.dim() == 2 else None
    if hasattr(data, "ndim"):
        return iter(data) if data.ndim == 2 else None
    if not isinstance(data, Iterable):
        raise InputError(
            f"data must be 'mixed', 'self', a file of text or token ids, not {shown(data)} (see collect_statistics)",
            code="I604",
        )
    items = iter(data)
    first = next(items, None)
    if first is None:
        return iter([])
    if isinstance(first, int) or getattr(first, "ndim", 1) == 0:
        return None if isinstance(data, (list, tuple)) else iter([[first, *items]])

    def all_of() -> Iterable[Any]:
        yield first
        yield from items

    return all_of()


def _spread(ids: torch.Tensor, windows: int, length: int, model: Any) -> list[torch.Tensor]:
    if ids.numel() < 2:
        raise InputError("there are no token ids to collect statistics from (pass at least 2 tokens)", code="I606")
    running.check_ids(ids, model)
    count = min(windows, max(1, ids.numel() // length))
    length = min(length, ids.numel())
    starts = torch.linspace(0, ids.numel() - length, count, dtype=torch.float64).long().tolist()
    return [ids[begin : begin + length] for begin in starts]


def beginning(model: Any) -> torch.Tensor:
    """The token that texts of the model begin with, ``int64 [1]``."""
    start = getattr(getattr(model, "config", None), "bos_token_id", None)
    return torch.tensor([start if isinstance(start, int) and start >= 0 else 0])


@running.plain_attention()
def sampled(
    model: Any,
    windows: int,
    length: int,
    seed: int,
    device: torch.device,
    advance: Callable[[int], object],
    watching: Callable[[bool], AbstractContextManager[None]] | None = None,
) -> list[torch.Tensor]:
    """Text that the model generates, token by token from its first one on, each sampled from its own predictions.

    :param watching: entered while the model computes, with whether that is first tokens.
    """
    config = getattr(model, "config", None)
    start = int(beginning(model))
    generator = torch.Generator(device).manual_seed(seed)
    words = getattr(config, "vocab_size", None)
    side = min(
        _SIDE_BY_SIDE,
        _MOST_CACHED_BYTES // max(1, _cache_bytes(config) * length),
        _MOST_PREDICTED_BYTES // (4 * words) if isinstance(words, int) and words > 0 else _SIDE_BY_SIDE,
    )
    side = max(1, side)
    name = running.cache_name(model)
    rows: list[torch.Tensor] = []
    while len(rows) < windows:
        count = min(side, windows - len(rows))
        ids = torch.full((count, 1), start, dtype=torch.int64, device=device)
        cache: Any = None
        while ids.shape[1] < length:
            new = ids if cache is None else ids[:, -1:]
            with nullcontext() if watching is None else watching(cache is None):
                output = model(input_ids=new, use_cache=True, **{name: cache})
            logits = getattr(output, "logits", None)
            if logits is None:
                raise InputError(
                    f"{type(model).__name__} returns no logits (pass a causal language model, ...ForCausalLM)",
                    code="I503",
                )
            cache = getattr(output, name, None)
            chances = torch.softmax(logits[:, -1].to(torch.float32), -1)
            if not bool(torch.isfinite(chances).all()):
                raise InputError(
                    "the model predicts what is not finite, so that no text can be sampled (use bfloat16 or float32)",
                    code="I607",
                )
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
            advance(count)
        rows += list(ids.cpu())
    return rows


def _cache_bytes(config: Any) -> int:
    """Bytes of keys and values of a token, about."""
    layers = getattr(config, "num_hidden_layers", None) or 1
    hidden = getattr(config, "hidden_size", None) or 1
    heads = getattr(config, "num_attention_heads", None) or 1
    shared = getattr(config, "num_key_value_heads", None) or heads
    return int(4 * layers * hidden * shared / heads)


def hash_of(windows: list[torch.Tensor]) -> str:
    """SHA-256 of the token ids of windows, with where each ends."""
    digest = hashlib.sha256()
    for ids in windows:
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids.to(torch.int64).numpy().astype("<i8").tobytes())
    return digest.hexdigest()
