"""Subcommands that run models: ``wcodec generate``, ``wcodec eval`` and ``wcodec bench``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .. import _format as fmt
from .. import _measure
from .._errors import InputError
from .._measure import _models
from .output import document, show_progress


def generate(arguments: argparse.Namespace) -> int:
    """``wcodec generate``"""
    a = arguments
    prompt = sys.stdin.read() if a.prompt == "-" else a.prompt
    model = _load(a)
    tokenizer = _tokenizer(a, model)
    options = {"max_new_tokens": a.max_new_tokens, "kv_cache_dtype": a.kv_cache_dtype}
    found = _measure.generate(model, prompt, tokenizer, **options)
    other = None
    if a.baseline:
        other = _measure.generate(_load_baseline(a, model), prompt, tokenizer, **options)
    if a.json:
        body = {"model": a.model, "baseline": a.baseline, "device": str(_models.device_of(model)),
                "kv_cache_dtype": a.kv_cache_dtype, **found.to_dict()}  # fmt: skip
        if other is not None:
            body["baseline_generation"] = other.to_dict()
            body["same_tokens"] = _same(found, other)
        print(document("generate", body))
        return 0
    if other is None:
        print(prompt + (found.text or ""))
    else:
        for name, result in ((f"compressed: {a.model}", found), (f"original: {a.baseline}", other)):
            print(f"--- {name}\n{prompt}{result.text}")
        print(f"--- the first {_same(found, other):,} of {fmt.plural(len(found.tokens), 'new token')} are the same")
    if not a.quiet:
        # Beside the text, not in it: the text may go into a file.
        speed = fmt.number(found.tokens_per_second, 1)
        print(f"{fmt.plural(len(found.tokens), 'token')}, {found.seconds:.2f} s, {speed} tokens/s", file=sys.stderr)
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """``wcodec eval``"""
    a = arguments
    text = Path(a.text)
    model = _load(a)
    baseline = _load_baseline(a, model) if a.baseline else None
    report = _measure.evaluate(
        model, text, baseline, _tokenizer(a, model), window=a.window, stride=a.stride, max_tokens=a.max_tokens,
        progress=show_progress(a.quiet),
    )  # fmt: skip
    if a.json:
        body = {"model": a.model, "baseline": a.baseline, "text": a.text, **report.to_dict()}
        print(document("eval", body))
    else:
        print(fmt.text_table(("figure", "value"), report._facts(), left=2))
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """``wcodec bench``"""
    a = arguments
    model = _load(a)
    baseline = _load_baseline(a, model) if a.baseline else None
    report = _measure.bench(
        model, baseline, batch=a.batch, prompt_tokens=a.prompt_tokens, new_tokens=a.new_tokens, repeats=a.repeats,
        profile=a.profile, progress=show_progress(a.quiet),
    )  # fmt: skip
    memory = _measure.measure_vram(model)
    if a.json:
        body = {"model": a.model, "baseline": a.baseline, **report.to_dict(), "memory": memory.to_dict()}
        print(document("bench", body))
        return 0
    print(f"{report.device_name}: {a.prompt_tokens:,} tokens of prompt, {a.new_tokens:,} new, {report.repeats} repeats")
    for table in report.tables():
        print(f"\n{table}")
    print()
    rows = [(part.name, part.device, fmt.size(part.bytes)) for part in memory.parts]
    print(fmt.text_table(("memory of the model", "device", "size"), rows, left=2))
    return 0


def _same(found: _measure.Generation, other: _measure.Generation) -> int:
    """How many tokens are the same, from the first on."""
    pairs = zip(found.tokens, other.tokens, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(found.tokens), len(other.tokens)))


def _quiet_loading(quiet: bool) -> None:
    """transformers shows bars of its own: they are for people who watch, too."""
    transformers = _models.require_transformers()
    if not show_progress(quiet):
        transformers.utils.logging.disable_progress_bar()


def _load(a: argparse.Namespace) -> Any:
    """The model that was asked for, with compressed layers."""
    from .._models import _load as loading

    _quiet_loading(a.quiet)
    return loading.load_model(
        a.model, device=a.device, residency=a.residency, dtype=a.dtype, vram_budget=a.vram_budget, cache=a.cache,
        trusted=a.trust, progress=show_progress(a.quiet),
    )  # fmt: skip


def _load_baseline(a: argparse.Namespace, model: Any) -> Any:
    """The model to compare with: an original checkpoint as it is, or one with compressed layers."""
    place = Path(a.baseline)
    device = _models.device_of(model)
    if place.is_file() or any(place.glob("*.wcodec")):
        from .._models import _load as loading

        return loading.load_model(a.baseline, device=device, dtype=_models.dtype_of(model), trusted=a.trust)
    transformers = _models.require_transformers()
    try:
        found = transformers.AutoModelForCausalLM.from_pretrained(a.baseline, dtype=_models.dtype_of(model))
    except ValueError as error:
        raise InputError(f"{a.baseline}: {error}") from None
    return found.to(device).eval()


def _tokenizer(a: argparse.Namespace, model: Any) -> Any:
    """The tokenizer that was named, the model's own, or the baseline's."""
    places = [a.tokenizer] if a.tokenizer else [None, a.baseline]
    for place in places[:-1]:
        try:
            return _models.tokenizer_for(model, place)
        except InputError:
            continue
    try:
        return _models.tokenizer_for(model, places[-1])
    except InputError:
        raise InputError(f"no tokenizer was found for {a.model} (name its folder with --tokenizer)") from None
