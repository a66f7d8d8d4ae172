"""Measuring which layers suffer most from fewer bits."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import progress as _progress
from .._core.errors import InputError
from .._core.keywords import keywords
from .._core.option_table import LEAST_BITS, MOST_BITS
from .._core.options import MIXED_TEXT, count, number, shown
from .._file.container import Container
from .._file.encode import compress_in_memory
from .._models import running
from .._models.original import is_model, original_model
from . import loading
from .sensitivity_report import LayerSensitivity, SensitivityReport

if TYPE_CHECKING:
    import torch

    from .._calibrate.statistics import Statistics
    from .score import Judge

# Tensors that are measured if nothing is said.
DEFAULT_MEASURED = 10
# Text that quality loss is measured on.
WINDOWS, WINDOW = 4, 256
# Parts of the time, about, on two cores.
_SHARES = {"collecting": 0.5, "encoding": 0.1, "writing text": 0.1, "measuring": 0.3}


@keywords()
def sensitivity(
    model: Any,
    bits: float = 3.0,
    *,
    text: str | os.PathLike[str] | Sequence[int] | torch.Tensor | None = None,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    tokens: int | None = None,
    measure: int = DEFAULT_MEASURED,
    windows: int = WINDOWS,
    trellis: bool | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: Any = None,
    threads: int | None = None,
    trust_remote_code: bool = False,
    progress: bool | running.StepCallback = False,
) -> SensitivityReport:
    """Which layers of a causal language model suffer most if they have fewer bits.

    All tensors are quantized in memory to so many bits, from weights alone, and each is looked at with all others
    exact. Its share of the quality loss follows from its Fisher information and its error; of those with the largest
    shares the quality loss is measured, too: the mean of ``KL(original || quantized)`` in nats per token.

    Example (needs transformers and a model)::

        report = wcodec.sensitivity("path/to/model", bits=3)
        report.top(5)
        report.plot()
        wcodec.compress("path/to/model", "model.wcodec", bits=3, calibrate=report.statistics)

    :param model: the folder of a model of transformers, or such a model, not compressed.
    :param bits: bits per weight, 1 to 8.
    :param text: the text that the model runs on: its path, the text itself or token ids. Text of many kinds if left
        out, and for the measurement text that it writes.
    :param statistics: statistics of a calibration, or their file, if there are some: nothing is collected then.
    :param tokens: the number of tokens to collect statistics from otherwise, as for :func:`wcodec.collect_statistics`.
    :param measure: the number of tensors whose quality loss is measured; 0 for none.
    :param windows: windows of 256 tokens that it is measured on, of the second half of the text.
    :param trellis: as for :func:`wcodec.compress`.
    :param seed: for what is drawn.
    :param tokenizer: as for :func:`wcodec.evaluate`.
    :param device: the device that a model from a folder runs on: a GPU that has room if left out (or ``"auto"``) and
        there is one.
    :param dtype: the dtype that such a model computes in: float32 on the CPU if left out, and on a GPU that of its
        config.
    :param threads: threads of encoding and decoding.
    :param trust_remote_code: as for :func:`wcodec.load_model`.
    :param progress: ``True`` for a bar, or a function that is called with (done, total).
    :raises InputError: if the model is no causal language model, or the text is too short.
    """
    begin = time.perf_counter()
    rate = number("bits", bits)
    if not LEAST_BITS <= rate <= MOST_BITS:
        raise InputError(f"{rate:g} bits per weight (ask for {LEAST_BITS:g} to {MOST_BITS:g})", code="I308")
    most = count("measure", measure, 0) or 0
    (windows,) = running.whole_numbers("windows", windows)
    if statistics is not None and not loading.is_given(statistics):
        raise InputError(
            f"statistics must be those of a calibration or their file, not {shown(statistics)} (pass a text as text=)",
            code="I625",
        )
    if statistics is not None and tokens is not None:
        raise InputError(
            "tokens say how much is collected, and statistics are there (leave one of them out)", code="I625"
        )
    original, folder = original_model(model, _place(model, device), dtype, trust_remote_code)
    on_progress = (lambda _, part: progress(round(1000 * part), 1000)) if callable(progress) else bool(progress)
    with _progress.staged(on_progress, "sensitivity", _SHARES) as stages:
        collected = _statistics(
            original, text, statistics, tokenizer, tokens, seed, trust_remote_code, stages.of("collecting")
        )
        encoding = stages.of("encoding")
        container = _quantized(
            model, original, folder, {"bits": rate, "trellis": trellis, "threads": threads},
            lambda _, done, total: encoding(done, total),
        )  # fmt: skip
        judge = _judge(original, text, tokenizer, windows, seed, stages.of("writing text")) if most else None
        rows, kl = _rows(original, container, collected, judge, most, threads, stages.of("measuring"))
    return SensitivityReport(
        model=str(model) if folder is not None else type(original).__name__,
        bits=rate,
        rows=rows,
        tensors=len(rows),
        kl=kl,
        source=collected.source,
        tokens=collected.tokens,
        measured_tokens=0 if judge is None else judge.windows * judge.window,
        seconds=time.perf_counter() - begin,
        statistics=collected,
    )


def _place(model: Any, device: Any) -> Any:
    from .._calibrate.amount import bytes_of, chosen_place

    if is_model(model):
        return "cpu"
    return chosen_place(device, bytes_of(Path(model)) if isinstance(model, str | os.PathLike) else 0)


def _statistics(
    model: Any,
    text: Any,
    given: Any,
    tokenizer: Any,
    tokens: int | None,
    seed: int,
    trust_remote_code: bool,
    progress: running.StepCallback,
) -> Statistics:
    from .._calibrate.collect import collect_statistics
    from .._calibrate.statistics import Statistics

    if given is not None:
        found = given if isinstance(given, Statistics) else Statistics.load(given)
        if not found.gradients:
            raise InputError(
                "these statistics say how large inputs are, and not how much each tensor matters (collect them with "
                "gradients, or leave them out)",
                code="I622",
            )
        return found
    data = MIXED_TEXT if text is None else running.token_ids(text, model, tokenizer)
    return collect_statistics(
        model,
        tokenizer,
        data,
        tokens=tokens,
        seed=seed,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )


def _quantized(model: Any, original: Any, folder: Path | None, options: dict[str, Any], progress: Any) -> Container:
    """All of the model in so many bits, from weights alone."""
    from .matrices import Matrices

    source = model if folder is not None else loading.tensors_of(original)
    transpose = Matrices.of_folder(original, folder).transpose
    return compress_in_memory(source, scheme="rate", transpose=transpose, progress=progress, **options)


def _judge(model: Any, text: Any, tokenizer: Any, windows: int, seed: int, progress: running.StepCallback) -> Judge:
    """The measure of quality loss: on the second half of the text, or on other text of the model's own."""
    import torch

    from .._calibrate import text as _text
    from .score import Judge

    if text is not None:
        return Judge(model, running.token_ids(text, model, tokenizer), windows, window=WINDOW)
    length = min(WINDOW, _text.length_for(model, None))
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, windows * (length - 1))

    with torch.no_grad():
        drawn = _text.sampled(model, windows, length, seed + 1, running.device_of(model), advance)
    # A judge leaves the first half of a text alone.
    ids = torch.cat(drawn)
    return Judge(model, torch.cat([ids, ids]), windows, window=length)


def _rows(
    model: Any,
    container: Container,
    statistics: Statistics,
    judge: Judge | None,
    most: int,
    threads: int | None,
    progress: running.StepCallback,
) -> tuple[tuple[LayerSensitivity, ...], float | None]:
    """A row of each tensor, and the quality loss of all together."""
    from .._calibrate.shares import estimated_kl
    from .matrices import decoded, pieces_of, replaced

    pieces = [piece for piece in pieces_of(model, container) if container[piece.name].scheme == "rate"]
    errors = {piece.name: container[piece.name].error or 0.0 for piece in pieces}
    estimated = estimated_kl(statistics, errors)
    if not estimated:
        raise InputError("the statistics are of none of the tensors (collect them from this model)", code="I622")
    # Statistics of an earlier version do not know embeddings: these are measured whatever their place.
    unknown = [name for name in errors if name not in estimated]
    ordered = sorted(estimated, key=lambda name: -estimated[name])
    measured: dict[str, tuple[float, float]] = {}
    kl = None
    if judge is not None:
        value = decoded(model, container, threads)
        wanted = [*unknown, *ordered[:most]]
        for place, name in enumerate(wanted):
            with replaced(model, [piece for piece in pieces if piece.name == name], value):
                score = judge.score()
            measured[name] = score.kl, score.standard_error
            progress(place + 1, len(wanted) + 1)
        with replaced(model, pieces, value):
            kl = judge.score().kl
        progress(1, 1)
    losses = {**{name: measured[name][0] for name in unknown if name in measured}, **estimated}
    total = sum(losses.values())
    rows = [
        LayerSensitivity(
            name=name,
            weights=container[name].elements,
            error=errors[name],
            share=losses[name] / total if name in losses and total else None,
            estimated_kl=estimated.get(name),
            kl=measured[name][0] if name in measured else None,
            kl_error=measured[name][1] if name in measured and measured[name][1] < float("inf") else None,
        )
        for name in [*unknown, *ordered]
    ]
    rows.sort(key=lambda row: (row.kl is None, -(row.kl if row.kl is not None else row.estimated_kl or 0.0)))
    return tuple(rows), kl
