"""Reports of measurements: plain records that print well, and that plot themselves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.report import Report, TableReport, plain

if TYPE_CHECKING:
    from .._plot.measure import BenchPlots, EvalPlots, KvCachePlots, MemoryPlots


@dataclass(frozen=True, repr=False, eq=False)
class EvalReport(Report):
    """The result of :func:`wcodec.evaluate`.

    ``tokens`` is the number of predicted tokens: all but the first one. Losses are mean negative log-likelihoods in
    nats per token. Figures against a baseline are ``None`` where none was given.
    """

    tokens: int
    window: int
    stride: int
    perplexity: float
    loss: float
    baseline_perplexity: float | None
    baseline_loss: float | None
    kl_mean: float | None
    """Mean of ``KL(baseline || model)``, nats per token."""
    kl_p99: float | None
    kl_max: float | None
    top1_agreement: float | None
    """Fraction of tokens at which both models find the same token most likely, 0 to 1."""
    seconds: float
    device: str
    token_loss: Any = field(repr=False)
    """Negative log-likelihood of each token, ``float32 [tokens]``."""
    token_kl: Any = field(repr=False)
    """``KL(baseline || model)`` at each token, ``float32 [tokens]``, or ``None``."""

    plot: ClassVar[Accessor[EvalPlots]] = Accessor(
        "wcodec._plot.measure:EvalPlots",
        "Plots: ``report.plot()``, with a baseline the same as ``report.plot.kl()``, and otherwise as "
        "``report.plot.perplexity()``.",
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON; without the values of each token."""
        return plain(self, skip=("token_loss", "token_kl"))

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("perplexity", fmt.figure(self.perplexity))]
        if self.baseline_perplexity is not None:
            change = 100 * (self.perplexity / self.baseline_perplexity - 1)
            agreement = 100 * (self.top1_agreement or 0)
            facts += [
                ("baseline's perplexity", f"{fmt.figure(self.baseline_perplexity)} ({change:+.3f} %)"),
                ("KL(baseline || model)", f"mean {fmt.figure(self.kl_mean)}, 99 % {fmt.figure(self.kl_p99)}, "
                                          f"largest {fmt.figure(self.kl_max)} nats/token"),
                ("same top token", f"{agreement:.2f} %"),
            ]  # fmt: skip
        facts += [
            ("tokens", f"{self.tokens:,}"),
            ("window", f"{self.window:,} tokens, stride {self.stride:,}"),
            ("device", self.device),
            ("seconds", fmt.number(self.seconds, 1)),
        ]
        return facts


@dataclass(frozen=True)
class Speed:
    """Repeated measurements of one thing, in tokens per second."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def low(self) -> float:
        """The slowest."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The fastest."""
        return max(self.samples)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return {"median": self.median, "low": self.low, "high": self.high, "samples": list(self.samples)}

    def __str__(self) -> str:
        digits = 1 if self.median < 1000 else 0
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


@dataclass(frozen=True)
class BenchRow:
    """One model at one batch size."""

    model: str
    """``model`` or ``baseline``."""
    batch: int
    prefill: Speed
    """Prompt tokens of all sequences, per second until the first new token is chosen."""
    decode: Speed
    """New tokens of all sequences, per second, the first one left out."""
    peak_bytes: int | None
    """The most that torch allocated beyond what it held before (cache, activations, scratch); ``None`` on the CPU."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return plain(self, last=("prefill", "decode"))


@dataclass(frozen=True)
class TimeSplit:
    """The device's time while tokens are decoded, by purpose, in seconds per new token, from torch's profiler.

    On a GPU these are times of kernels and copies. Copies run beside kernels, so the parts may add up to more than
    ``wall``, and what is left of it is waiting for the CPU. On the CPU they are times of torch's operators and of
    wcodec's decoding.
    """

    model: str
    batch: int
    copy: float
    """Bytes sent to the GPU."""
    decode: float
    """Decoding weights: the kernels of wcodec and of nvCOMP, those that multiply with what they decode among them."""
    product: float
    """Matrix products."""
    other: float
    wall: float
    """Time of the whole step, with the profiler's own cost."""


@dataclass(frozen=True)
class Span:
    """One kernel, copy or operator while a token is decoded. An operator is without those that it calls."""

    model: str
    kind: str
    """``copy``, ``decode``, ``product`` or ``other``, as in :class:`TimeSplit`."""
    name: str
    """The kernel's or operator's name."""
    begin: float
    """Seconds from the begin of the first one."""
    seconds: float


@dataclass(frozen=True)
class LayerTime:
    """Time of one module while tokens are decoded, by its forward hooks."""

    model: str
    batch: int
    name: str
    kind: str
    """Its class."""
    calls: int
    seconds: float
    """Median of one call."""
    share: float
    """Its part of the time of all modules that were measured, 0 to 1."""


_SPEED_HEADINGS = ("batch", "model", "prefill tokens/s", "decode tokens/s", "of baseline", "peak beyond weights")
_SPLIT_HEADINGS = ("batch", "model", "copy ms", "decode ms", "product ms", "other ms", "whole token ms")
_LAYER_HEADINGS = ("module", "class", "model", "batch", "calls", "ms per call", "share")


@dataclass(frozen=True, repr=False)
class BenchReport(Report):
    """The result of :func:`wcodec.bench`. Speeds are medians, with the slowest and the fastest repeat in brackets."""

    device: str
    device_name: str
    prompt_tokens: int
    new_tokens: int
    repeats: int
    rows: tuple[BenchRow, ...]
    splits: tuple[TimeSplit, ...] = ()
    layers: tuple[LayerTime, ...] = ()
    spans: tuple[Span, ...] = field(default=(), repr=False)
    """The timeline of one token of each model."""
    advice: str | None = None
    """The setting or the form of the file that would make the model faster, if there is one."""

    plot: ClassVar[Accessor[BenchPlots]] = Accessor(
        "wcodec._plot.measure:BenchPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.speed()``, ``.memory()``, ``.split()``, "
        "``.layers()`` and ``.timeline()``.",
    )

    def row(self, batch: int, model: str = "model") -> BenchRow:
        """The measurement of ``model`` or ``baseline`` at that batch size; a ``KeyError`` if there is none."""
        for row in self.rows:
            if (row.batch, row.model) == (batch, model):
                return row
        raise KeyError(f"{model} at batch {batch}")

    def ratio(self, batch: int, what: str = "decode") -> float | None:
        """The model's median speed over the baseline's, for ``decode`` or ``prefill``; ``None`` without a baseline."""
        try:
            value, other = (getattr(self.row(batch, m), what).median for m in ("model", "baseline"))
        except KeyError:
            return None
        return float(value / other)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON; without the spans."""
        record = plain(self, skip=("spans",), last=("rows", "splits", "layers"))
        rows = [{**row.to_dict(), "decode_of_baseline": self._of_baseline(row)} for row in self.rows]
        return {**record, "rows": rows}

    def _of_baseline(self, row: BenchRow) -> float | None:
        return self.ratio(row.batch) if row.model == "model" else None

    def _speed_rows(self) -> list[tuple[str, ...]]:
        out: list[tuple[str, ...]] = []
        for row in self.rows:
            relative = self._of_baseline(row)
            out.append((
                str(row.batch), row.model, str(row.prefill), str(row.decode),
                "-" if relative is None else f"{relative:.2f} x",
                "-" if row.peak_bytes is None else fmt.size(row.peak_bytes),
            ))  # fmt: skip
        return out

    def _split_rows(self) -> list[tuple[str, ...]]:
        return [
            (str(s.batch), s.model, *(f"{1e3 * t:.3f}" for t in (s.copy, s.decode, s.product, s.other, s.wall)))
            for s in self.splits
        ]

    def _layer_rows(self) -> list[tuple[str, ...]]:
        return [
            (t.name, t.kind, t.model, str(t.batch), str(t.calls), f"{1e3 * t.seconds:.4f}", f"{100 * t.share:.1f} %")
            for t in self.layers
        ]

    def tables(self) -> list[str]:
        """The report as aligned tables of text: speeds, and where asked for the split of time and the layers."""
        return [fmt.text_table(headings, rows, left) for headings, rows, left, _ in self._tables()]

    def _tables(self) -> list[fmt.Parts]:
        tables: list[fmt.Parts] = [
            (_SPEED_HEADINGS, self._speed_rows(), 2, ("peak beyond weights", "of baseline")),
            (_SPLIT_HEADINGS, self._split_rows(), 2, ("batch", "other ms")),
            (_LAYER_HEADINGS, self._layer_rows(), 3, ("class", "batch", "calls", "model")),
        ]
        return tables[:1] + [table for table in tables[1:] if table[1]]

    def _summary(self) -> str:
        return "speeds"

    def _facts(self) -> list[tuple[str, str]]:
        facts = [
            ("device", f"{self.device_name} ({self.device})"),
            ("tokens", f"{self.prompt_tokens:,} of prompt, {self.new_tokens:,} new"),
            ("repeats", str(self.repeats)),
        ]
        for row in self.rows:
            relative = self._of_baseline(row)
            beside = "" if relative is None else f", {relative:.2f} x baseline"
            facts.append((f"{row.model}, batch {row.batch}", f"{row.decode} tokens/s{beside}"))
        if self.advice:
            facts.append(("faster", self.advice))
        return facts


@dataclass(frozen=True)
class MemoryPart:
    """Bytes of a model that serve one purpose."""

    name: str
    bytes: int
    device: str


@dataclass(frozen=True)
class LayerPlace:
    """The place of a compressed layer."""

    name: str
    bytes: int
    """Compressed."""
    residency: str
    cached: bool
    """Whether it stays decoded."""
    looked_up: bool
    """Whether its rows are decoded one by one, as those of embeddings are."""


@dataclass(frozen=True, repr=False)
class MemoryReport(Report):
    """Memory at one moment, in bytes. A figure that a device does not tell is ``None``.

    On a GPU ``allocated`` is what torch's tensors take, ``reserved`` what its allocator holds for them, and ``used``
    what is taken on the device by everybody: other processes and the driver's context included. On the CPU ``used`` is
    the resident memory of this process.
    """

    device: str
    allocated: int | None
    reserved: int | None
    peak_allocated: int | None
    """Most allocated since ``reset_peak``, or since the process began."""
    peak_reserved: int | None
    used: int | None
    peak_used: int | None
    total: int | None
    """Memory of the device, or of the machine."""
    parts: tuple[MemoryPart, ...]
    """The model's share of it, by purpose."""
    layers: tuple[LayerPlace, ...] = ()
    """The model's compressed layers, in its order."""

    plot: ClassVar[Accessor[MemoryPlots]] = Accessor(
        "wcodec._plot.measure:MemoryPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.parts()`` and ``.layers()``.",
    )

    @property
    def model_bytes(self) -> int:
        """Bytes of the model's parts on this device."""
        return sum(part.bytes for part in self.parts if part.device == self.device)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return asdict(self)

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("device", self.device)]
        for name in ("allocated", "reserved", "peak_allocated", "peak_reserved", "used", "peak_used", "total"):
            value = getattr(self, name)
            if value is not None:
                facts.append((name.replace("_", " "), fmt.size(value)))
        for part in self.parts:
            facts.append((part.name, f"{fmt.size(part.bytes)} on {part.device}"))
        return facts


@dataclass(frozen=True, repr=False)
class Generation(Report):
    """A continued prompt."""

    prompt: str | None
    text: str | None
    """The text that was written, without the prompt; ``None`` if token ids were given without a tokenizer."""
    prompt_tokens: int
    tokens: tuple[int, ...]
    """Ids of the new tokens."""
    seconds: float
    """The time from the prompt to the last token."""
    first_token_seconds: float | None = None
    """The time from the prompt to the first token: the prompt's processing and, of a model's first prompt, all that is
    prepared once. ``None`` where that is not known, as with beams and several sequences."""
    decode_tokens_per_second: float | None = None
    """The speed of the tokens after the first one, by the median time; ``None`` where times are not known, and if there
    is a single token."""

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens per second, the prompt's processing included."""
        return len(self.tokens) / self.seconds if self.seconds else None

    @property
    def speed(self) -> str:
        """Both speeds, in words.

        >>> Generation("Once", " upon a", 1, (5, 7, 9), 1.5, 1.0, 4.0).speed
        '3 tokens, 1.50 s, 2.0 tokens/s (the first after 1.00 s, the others at 4.0 tokens/s)'
        """
        text = f"{fmt.plural(len(self.tokens), 'token')}, {self.seconds:.2f} s"
        if self.tokens_per_second is not None:
            text += f", {fmt.number(self.tokens_per_second, 1)} tokens/s"
        if self.first_token_seconds is not None and self.decode_tokens_per_second is not None:
            others = fmt.number(self.decode_tokens_per_second, 1)
            text += f" (the first after {self.first_token_seconds:.2f} s, the others at {others} tokens/s)"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return {**plain(self), "tokens_per_second": self.tokens_per_second}

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("prompt", self.prompt or f"{self.prompt_tokens} tokens"),
            ("text", self.text if self.text is not None else f"{len(self.tokens)} tokens"),
            ("speed", self.speed),
        ]


@dataclass(frozen=True)
class KvCacheResult:
    """One dtype of the key/value cache, against a float32 cache of the same model."""

    dtype: str
    token_agreement: float
    """Fraction of positions at which both free runs have the same token, 0 to 1."""
    first_difference: int | None
    """The first new token (from 0) that differs; ``None`` if none does."""
    top1_agreement: float
    """The agreement as in ``token_agreement``, but with the reference's tokens before each position."""
    kl_mean: float
    """Mean of ``KL(float32 || dtype)`` in nats per token, with the reference's tokens before each position."""
    kl_max: float
    identical: bool
    """Whether all these logits equal the reference's bit for bit."""
    cache_bytes: int
    """Size of the cache at the end."""
    token_kl: tuple[float, ...] = field(repr=False)


_KV_HEADINGS = ("cache", "same tokens", "first difference", "same top token", "KL mean", "KL largest", "logits", "size")


@dataclass(frozen=True, repr=False)
class KvCacheReport(TableReport):
    """The result of :func:`wcodec.compare_kv_cache`."""

    tokens: int
    prompt_tokens: int
    model_dtype: str
    attention: str
    results: tuple[KvCacheResult, ...]

    plot: ClassVar[Accessor[KvCachePlots]] = Accessor(
        "wcodec._plot.measure:KvCachePlots",
        "Plots: ``report.plot()``, the same as ``report.plot.kl()``.",
    )

    def _table(self) -> fmt.Parts:
        rows = [
            (
                r.dtype, f"{100 * r.token_agreement:.1f} %",
                "none" if r.first_difference is None else str(r.first_difference),
                f"{100 * r.top1_agreement:.1f} %", fmt.figure(r.kl_mean), fmt.figure(r.kl_max),
                "identical" if r.identical else "differ", fmt.size(r.cache_bytes),
            )
            for r in self.results
        ]  # fmt: skip
        return _KV_HEADINGS, rows, 1, ()

    def _summary(self) -> str:
        return fmt.plural(len(self.results), "dtype")

    def _facts(self) -> list[tuple[str, str]]:
        where = "the wider dtype" if self.attention == "widest" else "the model's dtype"
        facts = [
            ("model computes in", self.model_dtype),
            ("attention runs in", where),
            ("tokens", f"{self.prompt_tokens:,} of prompt, {self.tokens:,} new"),
        ]
        for r in self.results:
            facts.append((r.dtype, f"{100 * r.token_agreement:.1f} % of tokens, KL {fmt.figure(r.kl_mean)} nats/token"))
        return facts
