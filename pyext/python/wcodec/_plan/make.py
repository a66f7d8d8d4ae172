"""Making a plan: candidates are encoded and measured, and the best of them is taken."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._core.coding import PlanOptions
from .._core.errors import InputError
from .._core.keywords import keywords
from .._core.option_table import TILED_CODERS
from .._core.options import calibration, choice, coder_for, encode_options, has_trellis, shown
from .._core.tensor_info import TensorInfo, error_of
from .._models import running
from .._models.original import is_model, original_model
from .._models.running import WindowCount
from . import loading
from .candidates import RoleLoss, role_losses
from .frontier import DEFAULT_WINDOWS
from .plan_report import PlanReport
from .recipe import WEIGHTS_ALONE, Recipe
from .records import Candidate, MeasuredQuality, PlannedTensors
from .search import Wish, measured, without_text
from .target import Target, target
from .trials import Trial, Trials, role_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from .._core.coding import Calibration, Rules
    from .score import Judge

# The approximate size of the plan itself in the file: a budget in bytes counts it.
_PLAN_BYTES = 2500


@keywords(PlanOptions)
def plan(
    src: Any,
    *,
    budget: int | str | None = None,
    quality: str | None = None,
    text: str | os.PathLike[str] | Sequence[int] | torch.Tensor | None = None,
    calibrate: Calibration | None = None,
    calibration_tokens: int | None = None,
    feedback: bool = True,
    trellis: bool | None = None,
    optimize: str = "speed",
    coder: str | None = None,
    scheme: str | None = None,
    rules: Rules | None = None,
    steps: Mapping[str, float] | None = None,
    windows: int = DEFAULT_WINDOWS,
    tokenizer: Any = None,
    device: str | torch.device = "cpu",
    dtype: Any = None,
    trust_remote_code: bool = False,
    progress: bool | running.StepCallback = False,
    **options: Unpack[PlanOptions],
) -> PlanReport:
    """Chooses how a model's tensors are encoded, so that a budget is met with the least quality loss, or a bound of
    quality loss with the fewest bytes.

    No rule tells which recipe is smallest: candidates are encoded in memory, decoded, and measured on the text. They
    are steps by the weights alone; steps by what the tensors of each role do alone; and, with statistics of a
    calibration, steps by the Fisher information. The best of them is taken, and the report says what each of them did.
    If the budget leaves room for all bits, tensors are kept without loss.

    Example (needs transformers and a model)::

        plan = wcodec.plan("path/to/model", budget="4.2 bits", text="heldout.txt")
        print(plan.frontier(), plan.table(), sep="\\n")
        wcodec.compress("path/to/model", "model.wcodec", **plan.options())

    ``wcodec.compress("path/to/model", "model.wcodec", budget="4.2 bits", text="heldout.txt")`` does it at once.

    :param src: the folder of a model of transformers, or such a model, not compressed; without a text, whatever
        :func:`wcodec.compress` takes.
    :param budget: bytes of the whole file, as a number or as text (``"600MB"``, ``"1.5GiB"``), or bits per weight of
        the tensors that are encoded (``"4.2 bits"``).
    :param quality: a bound of the mean ``KL(original || compressed)`` in nats per token, such as ``"kl<=0.02"``.
    :param text: the text to measure on, as for :func:`wcodec.frontier`. Without one a budget is met and no quality loss
        measured.
    :param calibrate: as for :func:`wcodec.compress`: statistics, a ``.safetensors`` file of them, or what they are to
        be collected on. Recipes that use them are candidates too.
    :param feedback: whether error feedback is among these: it takes minutes where others take seconds.
    :param trellis: whether levels are chosen by a trellis; what ``optimize`` says if left out.
    :param optimize: as for :func:`wcodec.compress`: ``speed`` or ``size``.
    :param coder: ``rans`` or ``huffman``; what ``optimize`` says if left out.
    :param scheme: ``rate`` if nothing may be kept without loss.
    :param rules: as for :func:`wcodec.compress`: tensors that match are encoded as they say, and count.
    :param steps: steps of your own, as for :func:`wcodec.compress`: the only candidate.
    :param windows: windows of the text at most, as for :func:`wcodec.frontier`.
    :param tokenizer: as for :func:`wcodec.evaluate`; ``device``, ``dtype`` and ``trust_remote_code`` as for
        :func:`wcodec.frontier`.
    :param progress: ``True`` for a bar, or a function that is called with (windows done, windows in all, about).
    :param options: further ones of :func:`wcodec.compress`, such as ``include``, ``exclude``, ``skip`` and ``threads``:
        see :class:`PlanOptions`.
    :raises InputError: if the target makes no sense or cannot be met, or if the model cannot be measured.
    """
    begin = time.perf_counter()
    wanted = target(budget, quality, options.pop("bits", None))
    calibrate = calibration(calibrate)
    if scheme not in (None, "rate"):
        raise InputError(
            f"scheme={shown(scheme)} has no bits to choose for a budget or a quality (leave scheme out, or use 'rate')",
            code="I307",
        )
    coder = choice("coder", coder_for(optimize, coder), TILED_CODERS)
    if trellis is None and not has_trellis(optimize, coder):
        trellis = False
    if wanted.kl is not None and text is None:
        raise InputError("a quality needs a text to measure it on (pass text='heldout.txt', or a budget)", code="I631")
    weights_alone = Recipe(
        WEIGHTS_ALONE if steps is None else "steps as given", "rate", None, trellis is not False, coder, steps
    )
    fixed: dict[str, Any] = {**options, "optimize": optimize, "rules": rules}
    # Collecting statistics and measuring both need the model itself.
    original, folder = None, None
    if text is not None or is_model(src) or calibrate is not None and not loading.is_given(calibrate):
        original, folder = original_model(src, device, dtype, trust_remote_code)
        from .matrices import Matrices

        matrices = Matrices.of_folder(original, folder)
        if matrices.transpose:
            # The names of the model's own layers say it better than shapes could.
            more = fixed.get("transpose") or ()
            fixed["transpose"] = [*([more] if isinstance(more, str) else more), *matrices.transpose]
    source = loading.tensors_of(src) if is_model(src) else src
    wish = Wish(
        target=wanted,
        recipe=weights_alone,
        scheme=scheme,
        trellis=trellis,
        statistics=loading.factors_of(calibrate, original, tokenizer, tokens=calibration_tokens, progress=progress),
        # It finds one number of bits for all tensors.
        feedback=feedback and not _has_rates(rules),
        config=getattr(original, "config", None),
    )
    if text is None:
        trials = Trials(source, fixed, device, None, None, _PLAN_BYTES)
        chosen_trial = without_text(trials, wish)
        return _report(trials, chosen_trial, wanted, [chosen_trial], [], None, begin)
    ids = running.token_ids(text, original, tokenizer)
    (windows,) = running.whole_numbers("windows", windows)
    from .score import Judge

    with running.steps(progress, "planning", "window") as tell:
        judge = Judge(original, ids, windows, WindowCount(tell, 8 * windows, guess=True))
        trials = Trials(source, fixed, device, original, judge, _PLAN_BYTES)
        chosen_trial, trials_made = measured(trials, wish)
        roles = role_losses(trials, chosen_trial)
    return _report(trials, chosen_trial, wanted, trials_made, roles, judge, begin, original)


def _has_rates(rules: Mapping[str, Any] | None) -> bool:
    """Whether there are bits of a rule's own."""
    return any(way["scheme"] == "rate" for _, way in encode_options(rules=rules)["rules"])


def _report(
    trials: Trials,
    chosen_trial: Trial,
    wanted: Target,
    trials_made: Iterable[Trial],
    roles: list[RoleLoss],
    judge: Judge | None,
    begin: float,
    model: Any = None,
) -> PlanReport:
    alone = {d.role: d.kl for d in roles}
    by_role: dict[str, list[TensorInfo]] = {}
    for tensor in chosen_trial.tensors:
        by_role.setdefault(role_of(tensor.name), []).append(tensor)
    quality = None
    if judge is not None and chosen_trial.score is not None:
        s = chosen_trial.score
        quality = MeasuredQuality(
            s.kl, s.standard_error, s.perplexity, judge.baseline.perplexity, s.top1_agreement, s.tokens, s.windows,
            judge.window, judge.text_hash, str(running.dtype_of(model)).removeprefix("torch."),
        )  # fmt: skip
    return PlanReport(
        target=str(wanted),
        recipe=chosen_trial.recipe,
        file_bytes=chosen_trial.file_bytes,
        bits=chosen_trial.bits,
        candidates=tuple(_candidate(trial, trial is chosen_trial) for trial in trials_made),
        roles=tuple(_planned(role, some, chosen_trial, alone.get(role)) for role, some in by_role.items()),
        tensors=tuple(_planned(t.name, [t], chosen_trial, None) for t in chosen_trial.tensors),
        quality=quality,
        seconds=time.perf_counter() - begin,
        _options=trials.options(chosen_trial.recipe),
        _shapes={name: tuple(chosen_trial.container[name].shape) for name in chosen_trial.container},
    )


def _candidate(trial: Trial, taken: bool) -> Candidate:
    s = trial.score
    return Candidate(
        recipe=trial.recipe.name,
        bits_asked=trial.recipe.bits,
        bits_stored=trial.bits,
        file_bytes=trial.file_bytes,
        kl=None if s is None else s.kl,
        perplexity=None if s is None else s.perplexity,
        top1_agreement=None if s is None else s.top1_agreement,
        taken=taken,
    )


def _planned(name: str, tensors: list[TensorInfo], trial: Trial, kl: float | None) -> PlannedTensors:
    weights, stored = sum(t.elements for t in tensors), sum(t.stored_bytes for t in tensors)
    steps = [(trial.recipe.steps or {}).get(t.name, 1.0) for t in tensors if t.scheme == "rate"]
    return PlannedTensors(
        name=name,
        tensors=len(tensors),
        weights=weights,
        scheme=", ".join(dict.fromkeys(t.scheme for t in tensors)),
        bits=8 * stored / weights if weights else None,
        stored_bytes=stored,
        share=stored / trial.file_bytes,
        step=math.exp(sum(map(math.log, steps)) / len(steps)) if steps else None,
        error=error_of(tensors),
        kl=kl,
    )
