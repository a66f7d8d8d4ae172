"""Rate-distortion curves: quality loss against bits, every recipe on one text, in one table."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._calibrate.encoding import compress_to_bytes
from .._core.keywords import keywords
from .._core.option_table import CODERS, TILED_CODERS
from .._core.options import choice, number
from .._file.container import Container
from .._models import running
from .._models.original import original_model
from .._models.running import WindowCount
from . import loading, reference
from .candidates import of_architecture
from .frontier_report import FrontierReport, FrontierRow
from .recipe import FEEDBACK, WEIGHTS_ALONE, Recipe

if TYPE_CHECKING:
    import torch

    from .._core.coding import Calibration
    from .matrices import Matrices
    from .score import Judge, Score

DEFAULT_BITS = (4.0, 3.5, 3.0)
DEFAULT_CODERS = TILED_CODERS
DEFAULT_WINDOWS = 24
NF4, INT4 = "NF4, blocks of 64", "INT4, groups of 64"
_HEADER_BYTES = 64
# The offset of the index's length in the header.
_INDEX_LENGTH_AT = 24


@keywords()
def frontier(
    model: Any,
    text: str | os.PathLike[str] | Sequence[int] | torch.Tensor,
    *,
    bits: float | Iterable[float] = DEFAULT_BITS,
    coder: str | Iterable[str] = DEFAULT_CODERS,
    calibrate: Calibration | None = None,
    calibration_tokens: int | None = None,
    windows: int = DEFAULT_WINDOWS,
    tokenizer: Any = None,
    device: str | torch.device = "cpu",
    dtype: Any = None,
    threads: int | None = None,
    trust_remote_code: bool = False,
    progress: bool | running.StepCallback = False,
) -> FrontierReport:
    """Measures the quality of scheme ``rate`` at some numbers of bits, beside NF4, INT4 and scheme ``int8``.

    All linear layers are quantized, experts and the head among them (a tied head once, with the embedding that it is);
    embeddings and norms stay as they are. Each recipe is encoded into a container in memory, and what that decodes to
    is put into the model. ``KL(original || quantized)`` is measured on windows of 512 tokens, evenly spread over the
    second half of the text: the first may be what a calibration has seen. Bits count everything that a file has for the
    weights: symbols, signs, scales, tables, offsets and padding; its index, which grows with the number of tensors and
    not with that of weights, stands apart.

    Example (needs transformers and a model)::

        report = wcodec.frontier("path/to/model", "heldout.txt", bits=(4, 3))
        print(report.table())
        report.plot()

    :param model: the folder of a model of transformers, or such a model, not compressed.
    :param text: as for :func:`wcodec.evaluate`: text that neither the model nor a calibration has seen.
    :param bits: bits per weight to ask for, one number or several.
    :param coder: one coder or several. Bits are met with each, so that one that codes worse has coarser steps.
    :param calibrate: as for :func:`wcodec.compress`: statistics, a file of them, or what they are to be collected on.
        Recipes that use them are measured too.
    :param calibration_tokens: as for :func:`wcodec.compress`.
    :param windows: windows of the text at most. The mean of 12 may be off by 3 %.
    :param tokenizer: as for :func:`wcodec.evaluate`.
    :param device: the device that a model from a folder runs on.
    :param dtype: the dtype that such a model computes in: float32 on the CPU if left out, and on a GPU that of its
        config.
    :param threads: threads of encoding and decoding.
    :param trust_remote_code: as for :func:`wcodec.load_model`.
    :param progress: ``True`` for a bar, or a function that is called with (windows done, windows in all).
    :raises InputError: if the model is no causal language model or has no linear layers, and if the text is too short.
    """
    rates = tuple(number("bits", b) for b in (bits if isinstance(bits, Iterable) else (bits,)))
    coders = tuple(choice("coder", c, CODERS) for c in ((coder,) if isinstance(coder, str) else coder))
    original, folder = original_model(model, device, dtype, trust_remote_code)
    ids = running.token_ids(text, original, tokenizer)
    (windows,) = running.whole_numbers("windows", windows)
    from .matrices import Matrices
    from .score import Judge

    known = loading.factors_of(calibrate, original, tokenizer, tokens=calibration_tokens, progress=progress)
    matrices = Matrices.of_folder(original, folder)
    recipes = list(_recipes(rates, coders, known))
    with running.steps(progress, "frontier", "window") as tell:
        count = WindowCount(tell, windows * (3 + len(recipes)), guess=False)
        judge = Judge(original, ids, windows, count)
        count.total = judge.windows * (3 + len(recipes))
        work = _Work(matrices, judge, threads)
        rows = [work.reference(NF4, reference.NF4_BITS, reference.nf4)]
        rows.append(work.reference(INT4, reference.INT4_BITS, reference.int4))
        rows += [work.recipe(recipe) for recipe in recipes]
    return FrontierReport(
        model=str(model) if folder is not None else type(original).__name__,
        tensors=len(matrices.pieces),
        weights=matrices.elements,
        windows=judge.windows,
        window=judge.window,
        text_hash=judge.text_hash,
        baseline_perplexity=judge.baseline.perplexity,
        dtype=str(running.dtype_of(original)).removeprefix("torch."),
        device=str(running.device_of(original)),
        rows=tuple(rows),
    )


def _recipes(rates: Sequence[float], coders: Sequence[str], statistics: loading.Factors | None) -> Iterable[Recipe]:
    """The recipes that are measured, from int8 to the fewest bits."""
    for coder in coders:
        yield Recipe("int8", scheme="int8", coder=coder)
    for bits in rates:
        for coder in coders:
            for trellis in (False, True) if coder in TILED_CODERS else (False,):
                rate: dict[str, Any] = {"scheme": "rate", "bits": bits, "trellis": trellis, "coder": coder}
                yield Recipe(WEIGHTS_ALONE, **rate)
                if statistics is not None:
                    name = loading.name_without_feedback(statistics)
                    if loading.has_columns(statistics):
                        yield Recipe(name, statistics=statistics, feedback=False, **rate)
                    else:
                        yield Recipe(name, steps=statistics.factors(), **rate)
                    if loading.has_feedback(statistics):
                        yield Recipe(FEEDBACK, statistics=statistics, **rate)


@dataclass
class _Work:
    """Measuring one model."""

    matrices: Matrices
    judge: Judge
    threads: int | None
    nf4: float | None = None

    def reference(self, name: str, bits: float, function: Callable[[Any], Any]) -> FrontierRow:
        """A quantization that others use."""
        begin = time.perf_counter()
        with self.matrices.mapped(function):
            seconds = time.perf_counter() - begin
            score = self.judge.score()
        if name == NF4:
            self.nf4 = score.kl
        return self._row(Recipe(name, coder="raw"), bits, 0.0, score, seconds, "reference")

    def recipe(self, recipe: Recipe) -> FrontierRow:
        """A recipe of this package: what its container decodes to."""
        from .matrices import decoded, replaced

        options = {**recipe.options(), "transpose": self.matrices.transpose, "threads": self.threads}
        names = [piece.name for piece in self.matrices.pieces]
        if recipe.steps is not None:
            # Statistics may be of more tensors than there are here.
            options["steps"] = {name: recipe.steps[name] for name in names if name in recipe.steps}
        elif recipe.scheme == "rate" and recipe.statistics is None:
            options["steps"] = of_architecture(getattr(self.matrices.model, "config", None), names)
        if recipe.statistics is not None:
            options["device"] = running.device_of(self.matrices.model)
        begin = time.perf_counter()
        data, _ = compress_to_bytes(self.matrices.tensors(), options)
        seconds = time.perf_counter() - begin
        (index,) = struct.unpack_from("<Q", data, _INDEX_LENGTH_AT)
        weights = self.matrices.elements
        stored = 8 * (len(data) - _HEADER_BYTES - index) / weights
        with Container.open(data, trusted=True) as container:
            value = decoded(self.matrices.model, container, self.threads)
            with replaced(self.matrices.model, self.matrices.pieces, value):
                score = self.judge.score()
        kind = "int8" if recipe.scheme == "int8" else "rate"
        return self._row(recipe, stored, 8 * index / weights, score, seconds, kind)

    def _row(self, recipe: Recipe, stored: float, index: float, score: Score, seconds: float, kind: str) -> FrontierRow:
        return FrontierRow(
            recipe=recipe.name,
            kind=kind,
            trellis=bool(recipe.trellis),
            coder=None if kind == "reference" else recipe.coder,
            bits_asked=recipe.bits,
            bits_stored=stored,
            bits_index=index,
            kl=score.kl,
            kl_error=score.standard_error,
            kl_relative=score.kl / self.nf4 if self.nf4 else None,
            perplexity=score.perplexity,
            top1_agreement=score.top1_agreement,
            encode_seconds=seconds,
        )
