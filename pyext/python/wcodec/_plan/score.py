"""The distance of a model from its original: on windows of the second half of a text."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._core.errors import InputError
from .._measure.quality import kl_divergence
from .._models import running

WINDOW = 512
# Elements of float32 logits that are worked on at once: 64 MiB.
_BATCH_ELEMENTS = 1 << 24
# The original's predictions are kept in memory up to this size, and in a temporary file beyond it.
_KEPT_BYTES = 1 << 30


@dataclass(frozen=True)
class Score:
    """The quality of a model on windows of a text, against the original."""

    kl: float
    """Mean of ``KL(original || model)``, nats per token."""
    perplexity: float
    top1_agreement: float
    """Fraction of tokens at which both find the same token most likely, 0 to 1."""
    windows: int
    tokens: int
    window_kl: tuple[float, ...]
    """The divergence in each window: how much they scatter says how much the mean may."""

    @property
    def standard_error(self) -> float:
        """The standard error of the mean divergence, by the differences between windows."""
        if self.windows < 2:
            return math.inf
        return float(np.std(self.window_kl, ddof=1) / math.sqrt(self.windows))


class Judge:
    """Scores a model, whose weights change from one score to the next, against what it predicts now.

    :param ids: the whole text. Its first half is left alone: it may be what a calibration has seen.
    :param windows: so many windows, evenly spread over the second half; all that fit side by side if there are fewer.
    :param window: tokens of each; 512, or what the model takes, if left out.
    :param on_progress: called after each batch of windows, with the number of them.
    """

    def __init__(
        self,
        model: Any,
        ids: torch.Tensor,
        windows: int,
        on_progress: Callable[[int], object] = lambda count: None,
        window: int = WINDOW,
    ) -> None:
        limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        self.window = min(window, limit) if isinstance(limit, int) and limit > 1 else window
        half = len(ids) // 2
        most = (len(ids) - half) // self.window
        if most < 1:
            raise InputError(
                f"the second half of the text has {len(ids) - half} tokens, and a window {self.window} "
                "(pass a longer text)",
                code="I606",
            )
        running.check_ids(ids, model)
        self.text_hash = hashlib.sha256(ids.numpy().astype("<i8").tobytes()).hexdigest()
        """SHA-256 of the text's token ids, as 64-bit little-endian numbers."""
        starts = np.linspace(half, len(ids) - self.window, min(windows, most)).astype(int)
        self._model, self._on_progress = model, on_progress
        self._windows = torch.stack([ids[at : at + self.window] for at in starts])
        self._reference_entries: list[Any] = []
        self._file: Any = None
        self.baseline = self._score(range(len(starts)), keep=True)

    @property
    def windows(self) -> int:
        """Windows in all."""
        return len(self._windows)

    def first_windows(self, count: int) -> Sequence[int]:
        """Some windows, evenly spread, for a first look."""
        return [int(i) for i in np.linspace(0, self.windows - 1, min(count, self.windows)).round()]

    def score(self, windows: Sequence[int] | None = None) -> Score:
        """Scores the model as it is now, on all windows or on some."""
        return self._score(range(self.windows) if windows is None else windows)

    def _score(self, windows: Sequence[int], keep: bool = False) -> Score:
        losses = torch.zeros((), dtype=torch.float64)
        divergences: list[float] = []
        same = 0
        device = running.device_of(self._model)
        done = 0
        with running.evaluating(self._model):
            while done < len(windows):
                batch = list(windows[done : done + self._batch])
                ids = self._windows[batch].to(device)
                logits = running.logits_of(self._model, ids, use_cache=False)
                log_probabilities = torch.log_softmax(logits.float(), -1)
                loss = -log_probabilities[:, :-1].gather(-1, ids[:, 1:, None])
                if not bool(torch.isfinite(loss).all()):
                    raise InputError(
                        "the model predicts what is not finite, so that nothing can be measured "
                        "(use bfloat16 or float32, or more bits)",
                        code="I607",
                    )
                losses += loss.double().sum().cpu()
                if keep:
                    self._keep(log_probabilities)
                reference = (
                    torch.stack([self._reference(i) for i in batch]).to(device) if not keep else log_probabilities
                )
                divergences += kl_divergence(reference, log_probabilities).double().mean(-1).tolist()
                same += int((reference.argmax(-1) == log_probabilities.argmax(-1)).sum())
                done += len(batch)
                self._on_progress(len(batch))
        targets = len(windows) * (self.window - 1)
        mean = float(losses) / targets
        return Score(
            kl=float(np.mean(divergences)),
            # Above this exp() overflows; such a model predicts nothing.
            perplexity=math.exp(mean) if mean < 700 else math.inf,
            top1_agreement=same / (len(windows) * self.window),
            windows=len(windows),
            tokens=len(windows) * self.window,
            window_kl=tuple(divergences),
        )

    @property
    def _batch(self) -> int:
        vocabulary = getattr(getattr(self._model, "config", None), "vocab_size", None) or 1 << 15
        return max(1, min(4, _BATCH_ELEMENTS // (self.window * vocabulary)))

    def _keep(self, log_probabilities: torch.Tensor) -> None:
        """Keeps the original's predictions."""
        if self._file is None and log_probabilities[0].nbytes * self.windows > _KEPT_BYTES:
            self._file = tempfile.TemporaryFile(prefix="wcodec-")
        for window in log_probabilities.to("cpu"):
            if self._file is None:
                self._reference_entries.append(window.clone())
                continue
            at = self._file.seek(0, 2)
            window.numpy().tofile(self._file)
            self._reference_entries.append((at, tuple(window.shape)))

    def _reference(self, window: int) -> torch.Tensor:
        entry = self._reference_entries[window]
        if self._file is None:
            log_probabilities: torch.Tensor = entry
            return log_probabilities
        at, shape = entry
        return torch.from_numpy(np.memmap(self._file, np.float32, "r+", at, shape))
