"""Perplexity of a model, and how far its predictions are from those of another one."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.errors import InputError
from .._core.keywords import keywords, renamed
from .._gpu import torch as _torch
from .._models import running
from . import loading
from .reports import EvalReport

if TYPE_CHECKING:
    import torch

# Short enough for every model: beyond the length that it was trained with, a model predicts badly without saying so.
DEFAULT_WINDOW = 512
# Elements of float32 logits that are worked on at once, of each model: 64 MiB.
_SLICE_ELEMENTS = 1 << 24


def windows(targets: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Windows over the inputs ``ids[:-1]`` as ``(begin, end, first)``: position ``p`` predicts token ``p + 1``, and
    positions ``first`` to ``end`` are the ones that count.

    Each position counts once, and all but those of the first window have at least ``window - stride + 1`` tokens to
    look back at.

    >>> list(windows(10, 4, 2))
    [(0, 4, 0), (2, 6, 4), (4, 8, 6), (6, 10, 8)]
    >>> list(windows(9, 4, 4))
    [(0, 4, 0), (4, 8, 4), (8, 9, 8)]
    """
    done = 0
    for begin in range(0, targets, stride):
        end = min(begin + window, targets)
        yield begin, end, done
        done = end
        if end == targets:
            return


@keywords()
def evaluate(
    model: Any,
    text: str | os.PathLike[str] | Sequence[int] | torch.Tensor,
    baseline: Any = None,
    tokenizer: Any = None,
    *,
    window: int | None = None,
    stride: int | None = None,
    max_tokens: int | None = None,
    device: str | torch.device | None = None,
    dtype: Any = None,
    trust_remote_code: bool = False,
    progress: bool | running.StepCallback = False,
) -> EvalReport:
    """Measures the quality of a causal language model on a text.

    Perplexity is ``exp(-1/N * sum(log p(token | tokens before it)))``, with a sliding window and a stride as in Hugging
    Face's documentation ("Perplexity of fixed-length models"), except that the mean is over tokens and not over
    windows, and that no token is lost between windows: every token but the first counts once. Against a ``baseline``,
    whose logits are computed on the same windows: the Kullback-Leibler divergence ``KL(baseline || model)`` of the
    predicted distributions in nats per token, and how often both find the same token most likely. Logits are turned
    into float32 before the softmax; sums are in float64. Memory is bounded by one window's logits.

    Example (needs transformers and a model)::

        report = wcodec.evaluate("compressed", "heldout.txt", baseline="path/to/original")
        print(report.perplexity, report.kl_mean, report.top1_agreement)
        report.plot()

    :param model: a ``...ForCausalLM`` of transformers, with compressed layers or without; or a path or the name of a
        repository, which :func:`wcodec.load_model` loads, and so compresses if it is not.
    :param text: the text; a path, or a ``str`` that names an existing file; or token ids in one dimension.
    :param baseline: the model to compare with, of the same vocabulary, which may be on another device; or a path or a
        name. An ordinary checkpoint is loaded as it is, on the model's device and in its dtype.
    :param tokenizer: a tokenizer, or where to find one; the model's own if left out. It adds its usual special tokens
        once, at the beginning of the text.
    :param window: tokens of context at most; 512 or what the model can take if left out. Not more than the model was
        trained with, which may be less than its ``max_position_embeddings``.
    :param stride: tokens between the beginnings of windows, at most ``window``; half a window if left out. Smaller
        ones give each token more context, and take more time.
    :param max_tokens: only the first so many tokens of the text.
    :param device: the device that a model from a path runs on, the CPU if left out; ``dtype`` and ``trust_remote_code``
        as for :func:`wcodec.load_model`.
    :param progress: ``True`` for a bar, or a function that is called with (tokens done, tokens in all).
    :raises InputError: if the text is too short, the vocabularies differ, or logits are not finite.
    """
    torch = _torch.require()
    model = loading.model_of(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    if baseline is not None:
        baseline = loading.baseline_of(baseline, model, trust_remote_code=trust_remote_code)
    if trust_remote_code and isinstance(text, str | os.PathLike):
        tokenizer = running.tokenizer_for(model, tokenizer, trust_remote_code)
    window, stride = _sizes(window, stride, [m for m in (model, baseline) if m is not None])
    ids = running.token_ids(text, model, tokenizer)
    if max_tokens is not None:
        ids = ids[: running.whole_numbers("max_tokens", max_tokens)[0]]
    if ids.numel() < 2:
        raise InputError(f"perplexity needs at least 2 tokens, not {ids.numel()} (pass a longer text)", code="I606")
    running.check_ids(ids, model)
    targets = ids.numel() - 1
    losses = np.empty(targets, np.float32)
    others = np.empty(targets, np.float32) if baseline is not None else None
    divergences = np.empty(targets, np.float32) if baseline is not None else None
    agreeing = 0
    started = time.perf_counter()
    place = running.device_of(model)
    models = (model,) if baseline is None else (model, baseline)
    with running.evaluating(*models), running.steps(progress, "evaluating", "token") as advance:
        for begin, end, first in windows(targets, window, stride):
            logits = _window(model, ids[begin:end], first - begin)
            reference = None if baseline is None else _window(baseline, ids[begin:end], first - begin)
            if reference is not None and reference.shape != logits.shape:
                raise InputError(
                    f"the model predicts {logits.shape[-1]} tokens and the baseline {reference.shape[-1]} "
                    "(compare models of one vocabulary)",
                    code="I605",
                )
            rows = max(1, _SLICE_ELEMENTS // logits.shape[-1])
            for low in range(first, end, rows):
                high = min(low + rows, end)
                wanted = ids[low + 1 : high + 1].to(place)
                log_probabilities = torch.log_softmax(logits[low - first : high - first].float(), -1)
                losses[low:high] = _loss(log_probabilities, wanted, low, "model")
                if reference is not None and others is not None and divergences is not None:
                    reference_log_probabilities = torch.log_softmax(
                        reference[low - first : high - first].to(place).float(), -1
                    )
                    others[low:high] = _loss(reference_log_probabilities, wanted, low, "baseline")
                    divergences[low:high] = kl_divergence(reference_log_probabilities, log_probabilities).cpu().numpy()
                    agreeing += int((reference_log_probabilities.argmax(-1) == log_probabilities.argmax(-1)).sum())
            advance(end, targets)
    return EvalReport(
        tokens=targets,
        window=window,
        stride=stride,
        perplexity=_perplexity(losses),
        loss=_mean(losses),
        baseline_perplexity=None if others is None else _perplexity(others),
        baseline_loss=None if others is None else _mean(others),
        kl_mean=None if divergences is None else _mean(divergences),
        kl_p99=None if divergences is None else float(np.quantile(divergences, 0.99)),
        kl_max=None if divergences is None else float(divergences.max()),
        top1_agreement=None if divergences is None else agreeing / targets,
        seconds=time.perf_counter() - started,
        device=str(place),
        token_loss=losses,
        token_kl=divergences,
    )


# The name of the command.
eval = renamed("eval", evaluate)


def kl_divergence(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``KL(reference || other)`` in nats along the last dimension, of logarithms of probabilities.

    A token that the reference rules out adds nothing, as in the limit; also where both rule it out.
    """
    torch = _torch.require()
    terms = reference.exp() * (reference - other)
    return torch.where(reference == -math.inf, torch.zeros_like(terms), terms).sum(-1)


def _window(model: Any, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Logits ``[positions, vocabulary]`` of the positions from ``first`` on."""
    logits = running.logits_of(model, ids[None].to(running.device_of(model)), use_cache=False)
    return logits[0, first:]


def _loss(logarithms: torch.Tensor, wanted: torch.Tensor, first: int, what: str) -> Any:
    torch = _torch.require()
    losses = -logarithms.gather(-1, wanted[:, None])[:, 0].cpu()
    finite = torch.isfinite(losses)
    if not bool(finite.all()):
        place = first + int((~finite).nonzero()[0, 0]) + 1
        raise InputError(
            f"the {what} gives token {place} of the text a probability that is not finite or is zero "
            "(compute in bfloat16 or float32 instead of float16, and verify the file)",
            code="I607",
        )
    return losses.numpy()


def _mean(values: Any) -> float:
    return float(values.mean(dtype=np.float64))


def _perplexity(losses: Any) -> float:
    mean = _mean(losses)
    # Above this exp() overflows; such a model predicts nothing.
    return math.exp(mean) if mean < 700 else math.inf


def _sizes(window: int | None, stride: int | None, models: list[Any]) -> tuple[int, int]:
    """The window and the stride, with defaults, within what the models can take."""
    limits = [getattr(getattr(m, "config", None), "max_position_embeddings", None) for m in models]
    limit = min((n for n in limits if isinstance(n, int) and n > 0), default=None)
    if window is None:
        window = DEFAULT_WINDOW if limit is None else min(DEFAULT_WINDOW, limit)
    (window,) = running.whole_numbers("window", window)
    if limit is not None and window > limit:
        raise InputError(
            f"window={window} is more than the model's {limit} positions (use at most {limit})", code="I324"
        )
    if stride is None:
        stride = max(1, window // 2)
    (stride,) = running.whole_numbers("stride", stride)
    if stride > window:
        raise InputError(
            f"stride={stride} is more than window={window}: tokens between windows would be left out "
            f"(use at most {window})",
            code="I308",
        )
    return window, stride
