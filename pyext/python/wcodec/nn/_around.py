"""Launches that multiply with several weights at once, and do what is around the products in blocks like Llama's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _dtypes
from .._errors import DeviceError
from ._fused import Fused
from ._workspace import is_capturing

if TYPE_CHECKING:
    from .linear import CompressedLinear

_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_SPARE = 4
_ROWS = 16


class Norm(NamedTuple):
    """An RMSNorm as launches do it: vectors ``h * gain`` are multiplied with, and results with ``factor / rms(h)``."""

    gain: torch.Tensor
    factor: float
    epsilon: float


class Launch:
    """The products with the weights of some layers, which read the same vectors, in one launch (or as many as there are
    kernels that the weights need).

    :param gated: they are gates and values in turn, and the results are ``silu(gate) * value``.
    """

    def __init__(self, parts: Sequence[Fused], biases: Sequence[torch.Tensor | None], gated: bool = False) -> None:
        first = parts[0]
        # Their memory is what the launches add.
        self._biases = [None if bias is None else bias.detach() for bias in biases]
        factors: list[tuple[str, tuple[int, int] | None, int]] = [
            (part.name, None, 0 if bias is None else bias.data_ptr())
            for part, bias in zip(parts, self._biases, strict=True)
        ]  # fmt: skip
        native = first.decoder._native.prepare_products(factors, _dtypes.requested(str(first.dtype)), gated)
        self._multiply = native.multiply
        self._multiply_around = native.multiply_around
        self._native = native
        self._in = first.features[1]
        self._total = sum(part.features[0] for part in parts[:: 2 if gated else 1])
        self._index: int = first.decoder.device.index
        self._meeting = Meeting(self._total, first.decoder.device) if gated else None

    def all(self, x: torch.Tensor) -> torch.Tensor:
        """The products with contiguous ``x``, of one layer behind those of the other."""
        count = x.numel() // self._in
        y = x.new_empty(self._total * count)
        self._multiply(x.data_ptr(), self._in, count, y.data_ptr(), _current_stream(self._index))
        return y

    def normed(self, h: torch.Tensor, scaled: torch.Tensor, norm: Norm) -> torch.Tensor:
        """The products with ``RMSNorm(h)``, of one layer behind those of the other; or gates with values.

        :param scaled: ``h * norm.gain``.
        """
        count = h.numel() // self._in
        y = h.new_empty(self._total * count)
        stash = arrivals = 0
        stream = _current_stream(self._index)
        if self._meeting is not None:
            room = torch.empty(2 * y.numel(), dtype=torch.float32, device=h.device)
            stash, arrivals = room.data_ptr(), self._meeting.words(stream).data_ptr()
        around = (h.data_ptr(), norm.epsilon, norm.factor, 0, 0, 0, stash, arrivals)
        self._multiply_around(scaled.data_ptr(), self._in, count, y.data_ptr(), stream, around)
        return y

    def added(
        self, x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``residual`` and the product of the one layer with ``x``; and that times ``gain``, where there is one."""
        count = x.numel() // self._in
        y = torch.empty_like(residual)
        scaled = None if gain is None else torch.empty_like(residual)
        places = (0, 0) if gain is None or scaled is None else (scaled.data_ptr(), gain.data_ptr())
        around = (0, 0.0, 1.0, residual.data_ptr(), *places, 0, 0)
        self._multiply_around(x.data_ptr(), self._in, count, y.data_ptr(), _current_stream(self._index), around)
        return y, scaled


class Meeting:
    """Words in which blocks of threads find out who of two comes second. Launches that may run at the same time need
    their own: those of different streams, and those of a graph, which is replayed in any."""

    def __init__(self, results: int, device: torch.device) -> None:
        self._count = -(-results // _ROWS)
        self._device = device
        self._lock = threading.Lock()
        self._of_streams: dict[int, torch.Tensor] = {}
        # Graphs do not say when they are gone.
        self._of_graphs: list[torch.Tensor] = []
        self._spare: list[torch.Tensor] = []
        if not is_capturing():
            self._spare = list(self._zeros(_SPARE))
            # Whatever stream takes them, they are 0 by then.
            torch.cuda.current_stream(device).synchronize()

    def _zeros(self, rows: int) -> torch.Tensor:
        return torch.zeros((rows, self._count), dtype=torch.int32, device=self._device)

    def words(self, stream: int) -> torch.Tensor:
        """Those of a launch into that stream, which is the current one."""
        if not is_capturing():
            found = self._of_streams.get(stream)
            if found is not None:
                return found
            with self._lock:
                # Made in the stream, they are 0 before what comes behind them there.
                return self._of_streams.setdefault(stream, self._zeros(1)[0])
        with self._lock:
            # Without any left, they are made 0 at each replay, which is a little more work.
            taken = self._spare.pop() if self._spare else self._zeros(1)[0]
            self._of_graphs.append(taken)
            return taken


def launches(
    layers: Sequence[CompressedLinear], gated: bool = False
) -> tuple[Launch, list[tuple[CompressedLinear, Any]]] | None:
    """A launch for all of these layers, if kernels multiply with each as it is stored; and each with the plan that this
    holds for."""
    seen: list[tuple[CompressedLinear, Any]] = []
    parts: list[Fused] = []
    for layer in layers:
        plan = layer._plan or layer._prepared(layer._dtype)
        seen.append((layer, plan))
        part = plan[0].fused(plan[1])
        bias = layer._parameters["bias"]
        if part is None or (bias is not None and bias.dtype is not layer._dtype):
            return None
        parts.append(part)
    first = parts[0]
    alike = all(p.decoder is first.decoder and p.dtype is first.dtype for p in parts)
    if not alike or any(p.features[1] != first.features[1] for p in parts):
        return None
    try:
        return Launch(parts, [layer._parameters["bias"] for layer in layers], gated), seen
    except DeviceError:
        # Tiles so wide that a block of threads has no room for them and for all else.
        return None


class Ready:
    """A launch for some layers, made when it is wanted first, and again where they have changed.

    :param make: makes what is launched, of the layers; replaced by tests.
    """

    def __init__(
        self,
        layers: Sequence[CompressedLinear],
        gated: bool = False,
        make: Callable[..., tuple[Launch, list[tuple[Any, Any]]] | None] | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self._gated = gated
        self._make = make
        self._found: Launch | None = None
        self._seen: list[tuple[Any, Any]] | None = None
        self._biases: tuple[int, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there was a launch when it was wanted last."""
        return self._found is not None

    def get(self) -> Launch | None:
        """The launch for the layers as they are now; nothing if there is none."""
        seen = self._seen
        if seen is not None and self._biases == self._addresses():
            for layer, plan in seen:
                if layer._plan is not plan:
                    break
            else:
                return self._found
        return self._prepare()

    def _addresses(self) -> tuple[int, ...]:
        biases = [layer._parameters["bias"] for layer in self.layers]
        return tuple(0 if bias is None else bias.data_ptr() for bias in biases)

    def _prepare(self) -> Launch | None:
        self._biases = self._addresses()
        made = (self._make or launches)(self.layers, self._gated)
        if made is None:
            self._found, self._seen = None, [(layer, layer._plan) for layer in self.layers]
        else:
            self._found, self._seen = made
        return self._found
