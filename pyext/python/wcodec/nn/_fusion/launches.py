"""Launches that multiply with several weights at once, with the prologues and epilogues of decoder layers: norms before
the products, activations and residuals after them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ... import _native
from ..._core import dtypes as _dtypes
from ..._core.errors import DeviceError
from ..._gpu.decoder import ProductBatch
from .._weights import crossover
from .._weights.fused import Fused
from .._weights.workspace import is_capturing, memory

if TYPE_CHECKING:
    from ..linear import CompressedLinear

_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_SPARE = 4
_ROWS = _native.TILE_ROWS


class Norm(NamedTuple):
    """A norm as launches do it. For an RMSNorm, matrices are multiplied with ``h * (gain + offset) * scale``, and
    results with ``1 / (scale * rms(h))``."""

    gain: torch.Tensor
    """The norm's own weight, whatever becomes of it."""
    scale: float
    """A power of two."""
    epsilon: float
    offset: float = 0.0
    kind: str = "rms"

    def scaled(self, h: torch.Tensor) -> torch.Tensor:
        """The input of the products: ``h`` times the norm's gain, rounded once."""
        if self.scale == 1 and not self.offset:
            return h * self.gain
        return (h.float() * ((self.gain.float() + self.offset) * self.scale)).to(h.dtype)


class Epilogue(NamedTuple):
    """The epilogue of a launch, where its results are not the products as they are."""

    gated: bool = False
    """They are gates, and behind them values; results are ``activation(gate) * value``."""
    packed: bool = False
    """One layer gives both: the first half of its rows are gates."""
    activation: str = "none"
    """The kernels' name of a function of gates, or of results."""
    by_vector: bool = False
    """Results of all layers lie side by side for each vector."""


NO_EPILOGUE = Epilogue()


_State = tuple["Launch | None", "list[tuple[CompressedLinear, Any]]", tuple[int, ...]]


class Launch:
    """The products with the weights of some layers, which read the same vectors, in one launch (or as many as there are
    kernels that the weights need).

    :param gated: they are gates and values in turn, or with ``packed`` one layer of both, and the results are
        ``activation(gate) * value``.
    :param activation: the kernels' name of a function of gates, or of results; ``silu`` for gates where it is absent.
    :param by_vector: results of all layers lie side by side for each vector, and not those of one layer behind those of
        the other.
    """

    def __init__(
        self,
        parts: Sequence[Fused],
        biases: Sequence[torch.Tensor | None],
        gated: bool = False,
        packed: bool = False,
        activation: str | None = None,
        by_vector: bool = False,
    ) -> None:
        first = parts[0]
        # Their memory is what the launches add.
        self._biases = [None if bias is None else bias.detach() for bias in biases]
        factors: list[tuple[str, tuple[int, int] | None, int, int]] = [
            (part.name, rows, 0 if bias is None else bias.data_ptr() + (rows or (0,))[0] * bias.element_size(), 0)
            for part, bias in zip(parts, self._biases, strict=True)
            for rows in (_halves(part.features[0]) if packed else (None,))
        ]
        native = first.decoder._native.prepare_products(factors, _dtypes.requested(str(first.dtype)), gated, by_vector)
        self._multiply = native.multiply
        self._multiply_fused = native.multiply_with_epilogue
        self._native = native
        self._prefetch_order = first.prefetch_order
        # The place among streamed weights: launches say when they were used, so that the next ones are fetched.
        self._link = self._prefetch_order.link(native)
        self._in = first.features[1]
        # Elements of the input up to which there are few enough tokens.
        self.limit = min(native.most_vectors(), crossover_of(parts)) * self._in
        self._activation = activation or ("silu" if gated else "none")
        self._total = sum(part.features[0] for part in parts) // (2 if gated else 1)
        self._index: int = first.decoder.device.index
        self._arrival_counters = ArrivalCounters(self._total, first.decoder.device) if gated else None

    def all(self, x: torch.Tensor) -> torch.Tensor:
        """The products with ``x``, of one layer behind those of the other; or gates with values."""
        x = x.contiguous()
        if self._arrival_counters is not None or self._activation != "none":
            return self._multiplied(x, x, None)
        count = x.numel() // self._in
        y = x.new_empty(self._total * count)
        stream = _current_stream(self._index)
        self._keep(stream, ())
        self._multiply(x.data_ptr(), self._in, count, y.data_ptr(), stream)
        self._used()
        return y

    def _used(self) -> None:
        if self._link is not None:
            self._prefetch_order.used(self._link)

    def _keep(self, stream: int, more: tuple[torch.Tensor, ...]) -> None:
        """A graph that is captured has addresses of these, and lives as long as it likes."""
        if is_capturing():
            _native.gpu_keep(self._index, stream, (self._biases, more))

    def normed(self, h: torch.Tensor, scaled: torch.Tensor, norm: Norm) -> torch.Tensor:
        """The products with ``RMSNorm(h)``, of one layer behind those of the other; or gates with values. For up to
        :attr:`ProductBatch.MOST_NORMED` tokens.

        :param scaled: ``norm.scaled(h)``.
        """
        return self._multiplied(h.contiguous(), scaled.contiguous(), norm)

    def _multiplied(self, h: torch.Tensor, scaled: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        count = h.numel() // self._in
        y = h.new_empty(self._total * count)
        stash = arrivals = 0
        gains = () if norm is None else (norm.gain,)
        stream = _current_stream(self._index)
        if self._arrival_counters is not None:
            stash_memory = torch.empty(2 * y.numel(), dtype=torch.float32, device=h.device)
            counters = self._arrival_counters.counters(stream)
            self._keep(stream, (counters, *gains))
            stash, arrivals = stash_memory.data_ptr(), counters.data_ptr()
        else:
            self._keep(stream, gains)
        epilogue = _native.Epilogue(
            squared=0 if norm is None else h.data_ptr(),
            epsilon=0.0 if norm is None else norm.epsilon,
            norm_factor=1.0 if norm is None else 1 / norm.scale,
            activation=self._activation,
            stash=stash,
            arrivals=arrivals,
        )
        try:
            self._multiply_fused(scaled.data_ptr(), self._in, count, y.data_ptr(), stream, epilogue)
        except BaseException:
            # Some of several launches may have counted themselves in.
            if self._arrival_counters is not None:
                self._arrival_counters.forget(stream)
            raise
        self._used()
        return y

    def added(
        self, x: torch.Tensor, residual: torch.Tensor, norm: Norm | None, multiplier: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``residual`` and the product of the one layer with ``x``, times ``multiplier``; and what ``norm`` wants of
        that, if any."""
        x, residual = x.contiguous(), residual.contiguous()
        count = x.numel() // self._in
        y = torch.empty_like(residual)
        stream = _current_stream(self._index)
        self._keep(stream, () if norm is None else (norm.gain,))
        scaled = None
        if norm is None:
            epilogue = _native.Epilogue(residual=residual.data_ptr(), residual_scale=multiplier)
        else:
            scaled = torch.empty_like(residual)
            epilogue = _native.Epilogue(
                residual=residual.data_ptr(),
                residual_scale=multiplier,
                scaled=scaled.data_ptr(),
                gain=norm.gain.data_ptr(),
                gain_scale=norm.scale,
                gain_offset=norm.offset,
            )
        self._multiply_fused(x.data_ptr(), self._in, count, y.data_ptr(), stream, epilogue)
        self._used()
        return y, scaled


def crossover_of(parts: Sequence[Fused]) -> int:
    """Up to how many tokens one launch of all of these is faster than decoding: they are as one matrix of their sizes
    together, as far as they are stored alike."""
    first = parts[0]
    if any(part.kind != first.kind for part in parts):
        return min(part.tokens for part in parts)
    weights = sum(part.features[0] * part.features[1] for part in parts)
    return crossover.tokens(first.decoder.device, first.kind, weights)


class ArrivalCounters:
    """Counters of arrived thread blocks, one for each strip of rows, 0 between launches: the second of two blocks adds
    both results. Launches that may run at the same time need counters of their own: those of different streams and
    threads, and of graphs, which are replayed in any.

    Their memory is not torch's, which would be of the pool that is in use, and of a graph (:func:`memory`).
    """

    def __init__(self, results: int, device: torch.device) -> None:
        self._count = -(-results // _ROWS)
        self._device = device
        self._lock = threading.Lock()
        self._by_stream: dict[tuple[int, int], torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []
        if not is_capturing():
            # Counters for graphs: those made during a capture are set to 0 at each replay, which is a little more work.
            self._spare = [self._zeros() for _ in range(_SPARE)]
            torch.cuda.current_stream(device).synchronize()

    def _zeros(self) -> torch.Tensor:
        with torch.inference_mode():
            return memory(self._device, 4 * self._count).view(torch.int32).zero_()

    def counters(self, stream: int) -> torch.Tensor:
        """The counters for a launch into that stream, which is the current one."""
        if is_capturing():
            with self._lock:
                return self._spare.pop() if self._spare else self._zeros()
        key = stream, threading.get_ident()
        counters = self._by_stream.get(key)
        if counters is None:
            # Made in the stream, they are 0 before what comes behind them there.
            counters = self._by_stream[key] = self._zeros()
        return counters

    def forget(self, stream: int) -> None:
        """Drops counters that may not be 0."""
        self._by_stream.pop((stream, threading.get_ident()), None)


def _halves(rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, rows // 2), (rows // 2, rows)


def make_launch(
    layers: Sequence[CompressedLinear], epilogue: Epilogue = NO_EPILOGUE
) -> tuple[Launch, list[tuple[CompressedLinear, Any]]] | None:
    """A launch for all of these layers, if kernels multiply with each as it is stored; and each with the provider that
    this holds for."""
    if any(layer._part is not None for layer in layers):
        # A rank's part is not the whole layer: other ranks hold the rest, and the bias.
        return None
    seen: list[tuple[CompressedLinear, Any]] = []
    parts: list[Fused] = []
    for layer in layers:
        provider = layer._weights.provider or layer._weights.prepared()
        seen.append((layer, provider))
        part = provider[0].fused(provider[1])
        bias = layer._parameters["bias"]
        if part is None or (bias is not None and not _fits(bias, layer)):
            return None
        parts.append(part)
    first = parts[0]
    is_same_kind = all(p.decoder is first.decoder and p.dtype is first.dtype for p in parts)
    if not is_same_kind or any(p.features[1] != first.features[1] for p in parts):
        return None
    if epilogue.packed and first.features[0] % (2 * _ROWS):
        # Kernels take whole strips of rows.
        return None
    try:
        return Launch(parts, [layer._parameters["bias"] for layer in layers], *epilogue), seen
    except DeviceError:
        # Tiles so wide that a block of threads has no room for them and for all else.
        return None


def _fits(bias: torch.Tensor, layer: CompressedLinear) -> bool:
    """Whether launches can read a bias where it lies."""
    is_same_kind = bias.dtype is layer._dtype and bias.device == layer._device
    return is_same_kind and bias.shape == layer._features[1:] and bias.is_contiguous()


class CachedLaunch:
    """A launch for some layers, made when it is wanted first, and again where they have changed."""

    def __init__(self, layers: Sequence[CompressedLinear], epilogue: Epilogue = NO_EPILOGUE) -> None:
        self.layers = tuple(layers)
        self._epilogue = epilogue
        # The launch, the layers with the providers that it is for, and the addresses of their biases: one thing, since
        # other threads look at it meanwhile.
        self._state: _State | None = None
        # Elements of the input that no launch takes.
        self._too_many = ProductBatch.MOST * self.layers[0].in_features + 1

    def has_launch(self, elements: int) -> bool:
        """Whether there was a launch for an input of so many elements when it was wanted last."""
        launch = None if self._state is None else self._state[0]
        return launch is not None and elements <= launch.limit

    def get(self) -> Launch | None:
        """The launch for the layers as they are now; nothing if there is none."""
        state = self._state
        if state is not None and _has_same_providers(state) and state[2] == self._addresses():
            return state[0]
        return self._prepare()

    def take(self, x: torch.Tensor) -> Launch | None:
        """The launch for an input, if there is one for so many tokens of that dtype there."""
        elements, first = x.numel(), self.layers[0]
        if elements >= self._too_many and self._state is not None:
            return None
        found = self.get()
        is_here = x.dtype is first._dtype and x.device == first._device
        return found if found is not None and is_here and elements <= found.limit else None

    def has_providers(self) -> bool:
        """Whether there was a launch for the layers, of dtype and on device as they are now; biases are no matter."""
        state = self._state
        return state is not None and state[0] is not None and _has_same_providers(state)

    def __getstate__(self) -> dict[str, Any]:
        # Launches are of this machine's memory.
        return {**self.__dict__, "_state": None}

    def _addresses(self) -> tuple[int, ...]:
        biases = [layer._parameters["bias"] for layer in self.layers]
        return tuple(0 if bias is None else bias.data_ptr() for bias in biases)

    def _prepare(self) -> Launch | None:
        biases = self._addresses()
        result = make_launch(self.layers, self._epilogue)
        launch, seen = (
            result if result is not None else (None, [(layer, layer._weights.provider) for layer in self.layers])
        )
        self._state = launch, seen, biases
        return launch


def _has_same_providers(state: _State) -> bool:
    """Whether each layer has the provider that the launch is for."""
    for layer, provider in state[1]:
        if layer._weights.provider is not provider:
            return False
    return True
