"""Subcommands that measure models, ``wcodec eval`` and ``wcodec bench``, and loading for all that run some."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import _measure
from .._core import format as fmt
from .._core.errors import InputError, WcodecError
from .._core.foreign import cause
from .._measure import loading
from .._models import running
from .._native import safe
from .beginning import announce
from .output import document, figures, prose, put, say, show_progress, tabulate


def _memory(model: Any) -> str:
    """Memory of a model's weights and, on a GPU, the most that was taken in all."""
    report = _measure.measure_vram(model)
    weights = fmt.size(weights_bytes(report))
    peak = report.peak_allocated if report.peak_allocated is not None else report.peak_used
    if report.device == "cpu":
        # The rest of the process is torch's, mostly, and no matter of the model.
        return f"memory: weights {weights}"
    return f"memory: weights {weights}" + ("" if peak is None else f", {fmt.size(peak)} at most on {report.device}")


def weights_bytes(report: _measure.MemoryReport) -> int:
    """Bytes of a model's weights as they are stored, without what is kept decoded beside them."""
    return sum(part.bytes for part in report.parts if not part.name.startswith("decoded"))


def evaluate(arguments: argparse.Namespace) -> int:
    """``wcodec eval``"""
    a = arguments
    text = Path(a.text)
    model = _load(a)
    baseline = _load_baseline(a, model) if a.baseline else None
    tokenizer = _tokenizer(a, model)
    with _running(a.model):
        report = _measure.evaluate(
            model, text, baseline, tokenizer, window=a.window, stride=a.stride, max_tokens=a.max_tokens,
            progress=show_progress(a.quiet),
        )  # fmt: skip
    if a.json:
        body = {"model": a.model, "baseline": a.baseline, "text": a.text, **report.to_dict()}
        put(document("eval", body))
    else:
        figures(report._facts())
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """``wcodec bench``"""
    a = arguments
    model = _load(a)
    baseline = _load_baseline(a, model) if a.baseline else None
    with _running(a.model):
        report = _measure.bench(
            model, baseline, batch=a.batch, prompt_tokens=a.prompt_tokens, new_tokens=a.new_tokens, repeats=a.repeats,
            profile=a.profile, progress=show_progress(a.quiet),
        )  # fmt: skip
    memory = _measure.measure_vram(model)
    if a.json:
        body = {"model": a.model, "baseline": a.baseline, "fused": _fuses(a, running.device_of(model)),
                **report.to_dict(), "memory": memory.to_dict()}  # fmt: skip
        put(document("bench", body))
        return 0
    prose(f"{report.device_name}: {a.prompt_tokens:,} tokens of prompt, {a.new_tokens:,} new, {report.repeats} repeats")
    for part in report._tables():
        say()
        tabulate(*part)
    say()
    rows = [(part.name, part.device, fmt.size(part.bytes)) for part in memory.parts]
    tabulate(("memory of the model", "device", "size"), rows, 2)
    if report.advice:
        say()
        prose(report.advice)
    return 0


@contextmanager
def _running(model: str) -> Iterator[None]:
    """Names the model in errors of torch and transformers, which come of its files."""
    try:
        yield
    except (WcodecError, OSError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{model}: the model does not run: {cause(error)} (check config.json and generation_config.json beside it)",
            file=model,
            code="I509",
        ) from None


def _quiet_loading(quiet: bool) -> None:
    """transformers shows bars of its own: they are for people who watch, too. Its log messages may quote a config."""
    transformers = running.require_transformers()
    for handler in logging.getLogger("transformers").handlers:
        handler.addFilter(_safe_record)
    if not show_progress(quiet):
        transformers.utils.logging.disable_progress_bar()


def _safe_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = safe(record.getMessage()), None
    return True


def _load(a: argparse.Namespace) -> Any:
    """The model that was asked for, with compressed layers."""
    # Before torch is imported, which takes seconds.
    announce(a.model, a.quiet)
    from .._api.models import load_model

    _quiet_loading(a.quiet)
    encoding = {"scheme": a.scheme, "bits": a.bits, "exclude": a.exclude}
    return load_model(
        a.model, device=a.device, residency=a.residency, dtype=a.dtype, vram_budget=a.vram_budget,
        ram_budget=a.ram_budget, cache=a.cache, fused=not a.no_fused,
        **{name: value for name, value in encoding.items() if value},
        trusted=a.trust, trust_remote_code=a.trust_remote_code, progress=show_progress(a.quiet),
    )  # fmt: skip


def _fuses(a: argparse.Namespace, device: Any) -> bool:
    """Whether few tokens are multiplied with compressed weights: on a GPU, unless it was refused."""
    return device.type == "cuda" and not a.no_fused


def _load_baseline(a: argparse.Namespace, model: Any) -> Any:
    """The model to compare with: an original checkpoint as it is, or one with compressed layers."""
    return loading.baseline_of(
        a.baseline, model, trust_remote_code=a.trust_remote_code, trusted=a.trust, fused=not a.no_fused
    )


def _tokenizer(a: argparse.Namespace, model: Any) -> Any:
    """The tokenizer that was named, the model's own, or the baseline's."""
    places = [a.tokenizer] if a.tokenizer else [None, getattr(a, "baseline", None)]
    for place in places[:-1]:
        try:
            return running.tokenizer_for(model, place, a.trust_remote_code)
        except InputError:
            continue
    try:
        return running.tokenizer_for(model, places[-1], a.trust_remote_code)
    except InputError:
        raise InputError(
            f"no tokenizer was found for {a.model} (name its folder with --tokenizer)", code="I603"
        ) from None
