"""``wcodec generate``: prompts continued, beside the original's text if that is asked for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .. import _measure
from .._core import format as fmt
from .._core.foreign import config_of
from .._core.terminal import columns, is_terminal, wrapped
from .._models import running
from .._native import safe
from . import prompts, sampling
from .models import _fuses, _load, _load_baseline, _memory, _running, _tokenizer
from .output import document, put, say, tell
from .signals import Terminated

_Pair = tuple[_measure.Generation, _measure.Generation | None]


def run(arguments: argparse.Namespace) -> int:
    """``wcodec generate``"""
    a = arguments
    texts = prompts.of(a)
    if isinstance(a.bits, tuple):
        from . import sizes

        return sizes.run(a, texts)
    if a.baseline and Path(a.baseline).is_dir():
        # A refusal comes before any text is written.
        config_of(a.baseline, trust_remote_code=a.trust_remote_code)
    model = _load(a)
    tokenizer = _tokenizer(a, model)
    baseline = _load_baseline(a, model) if a.baseline else None
    pairs: list[_Pair] = []
    for number, text in enumerate(texts):
        if number and not a.json:
            say()
        generation = _write(a, model, tokenizer, text, f"compressed: {a.model}" if a.baseline else None, a.model)
        other = None
        if baseline is not None:
            other = _write(a, baseline, tokenizer, text, f"original: {a.baseline}", a.baseline)
            if not a.json:
                say(f"--- {_difference(generation, other)}")
        pairs.append((generation, other))
    if a.json:
        put(document("generate", _record(a, model, pairs)))
        return 0
    if a.baseline and len(pairs) > 1:
        say(f"\n{_alike(pairs)} of {fmt.plural(len(pairs), 'prompt')} the same")
    if not a.quiet:
        # Beside the text, not in it: the text may go into a file.
        tell(wrapped(f"{_speed([generation for generation, _ in pairs])}; {_memory(model)}", columns(sys.stderr)))
        if (advice := advice_on_speed(model)) is not None:
            tell(wrapped(advice, columns(sys.stderr)))
    return 0


def advice_on_speed(model: Any) -> str | None:
    """A line that says what would have made a slow run faster, where the package knows of something."""
    advise = getattr(_measure, "advice", None)
    text = None if advise is None else advise(model)
    return str(text) if text else None


def _write(
    a: argparse.Namespace, model: Any, tokenizer: Any, prompt: str, title: str | None, name: str
) -> _measure.Generation:
    """Continues a prompt, and prints it: in a terminal token by token, elsewhere when it is complete. Text written
    before an interruption is kept."""
    options, given = options_of(a), prompt_of(a, tokenizer, prompt, name)
    sampling.seed(a)
    if a.json:
        with _running(name):
            return _measure.generate(model, given, tokenizer, **options)
    from .stream import Stream

    head = f"> {prompt}\n" if a.chat else prompt
    stream = Stream(tokenizer, head if title is None else f"--- {safe(title)}\n{head}", live=is_terminal(sys.stdout))
    try:
        with _running(name):
            generation = _measure.generate(model, given, tokenizer, streamer=stream, **options)
    except (KeyboardInterrupt, Terminated):
        stream.finish()
        if not a.quiet:
            tell(f"{fmt.plural(stream.tokens, 'token')} until it was interrupted")
        raise
    stream.finish(generation.text)
    return generation


def options_of(a: argparse.Namespace) -> dict[str, Any]:
    """Options of :func:`wcodec.generate`."""
    return {
        "max_new_tokens": a.max_new_tokens, "kv_cache_dtype": a.kv_cache_dtype, **sampling.options_of(a, greedy=True),
    }  # fmt: skip


def prompt_of(a: argparse.Namespace, tokenizer: Any, prompt: str, name: str) -> Any:
    """A prompt as the model takes it: the text, or with ``--chat`` the token ids of a message."""
    return prompts.ids_of(tokenizer, [{"role": "user", "content": prompt}], name) if a.chat else prompt


def same_tokens(generation: _measure.Generation, other: _measure.Generation) -> int:
    """The number of tokens that are the same, from the first on."""
    pairs = zip(generation.tokens, other.tokens, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(generation.tokens), len(other.tokens)))


def _difference(generation: _measure.Generation, other: _measure.Generation) -> str:
    if generation.tokens == other.tokens:
        return f"same: {fmt.plural(len(generation.tokens), 'token')}"
    same = same_tokens(generation, other)
    new = fmt.plural(len(generation.tokens), "new token")
    return f"different from token {same + 1:,} on: the first {same:,} of {new} are the same"


def _alike(pairs: list[_Pair]) -> int:
    return sum(other is not None and generation.tokens == other.tokens for generation, other in pairs)


def _speed(generations: list[_measure.Generation]) -> str:
    """The speed of the one text, or of all."""
    if len(generations) == 1:
        return str(generations[0].speed)
    tokens, seconds = sum(len(f.tokens) for f in generations), sum(f.seconds for f in generations)
    each = f" ({tokens / seconds:.1f} tokens/s)" if seconds else ""
    return f"{fmt.plural(len(generations), 'prompt')}, {fmt.plural(tokens, 'token')} in {seconds:.2f} s{each}"


def _record(a: argparse.Namespace, model: Any, pairs: list[_Pair]) -> dict[str, Any]:
    """A document: of one prompt flat, of prompts from a file a list."""
    device = running.device_of(model)
    body = {"model": a.model, "baseline": a.baseline, "device": str(device), "fused": _fuses(a, device),
            "kv_cache_dtype": a.kv_cache_dtype, "chat": a.chat, "temperature": a.temperature,
            "seed": a.seed}  # fmt: skip
    if a.prompts is None:
        return {**body, **_pair(*pairs[0])}
    body["generations"] = [_pair(*pair) for pair in pairs]
    if a.baseline:
        body["same"] = _alike(pairs)
    return body


def _pair(generation: _measure.Generation, other: _measure.Generation | None) -> dict[str, Any]:
    body = dict(generation.to_dict())
    if other is not None:
        same = same_tokens(generation, other)
        body["baseline_generation"] = other.to_dict()
        body["same_tokens"] = same
        body["first_difference"] = None if generation.tokens == other.tokens else same
    return body
