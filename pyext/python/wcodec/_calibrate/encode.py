"""Scheme ``rate`` by statistics: steps that meet a number of bits, and the levels of each matrix, for the encoder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import _native
from .._core import progress as _progress
from .._core.dtypes import FLOATS
from .._core.errors import InputError, WcodecError
from .._core.metadata import CALIBRATION_KEY
from .._core.options import COLUMNS, encode_options, exactly, path_of, patterns, shown
from .._core.progress import ProgressCallback
from .._file.encode import by_weights
from .._file.sources import tensor_source, torch_tensor
from .._gpu import devices
from .._models import running
from .._models.checkpoint import Checkpoint, Lazy
from .._models.original import original_model
from . import amount, columns
from . import rows as row_steps
from .by_default import ByDefault
from .collect import is_columns, is_given, statistics_of
from .factor import Feedback
from .quantize import FARTHEST, quantize
from .replay import Replays
from .statistics import Statistics, costs_of_rows, feedback_for, fisher_power, forget_feedback, has_moments, sizes_of

if TYPE_CHECKING:
    from .._native import _Chosen, _EncodeOptions

# Rows of each matrix that bits are counted by.
_SAMPLE_ROWS = 128
# The relative distance from the target that is accepted, and the number of attempts.
_CLOSE = 1e-3
_TRIES = 6
# Weights up to which all are counted in the end, and so often: where a table weighs, a sample says too little of it.
_MOST_COUNTED = 1 << 24
_CORRECTIONS = 6
# Bits by which a file's size jumps where a matrix gets a table of its own, or a longer one.
_JUMP = 1024
# log2 of a Gaussian's RMS by the step is its bits less this, and tiles and scales take some.
_GAUSSIAN = 2.1


@dataclass(frozen=True)
class Matrix:
    """A matrix to quantize, with outputs as rows, and its steps up to the constant that all matrices share."""

    name: str
    weight: torch.Tensor
    steps: torch.Tensor
    feedback: Feedback | None
    """``None`` where hardly anything is known of its input. It has the factors of columns, if there are some."""


class Matrices:
    """The matrices of a model, with what statistics say of each, one at a time.

    :param weights: arrays or tensors as a checkpoint has them, by name; read anew each time they are needed.
    """

    def __init__(
        self, weights: Mapping[str, Any], statistics: Statistics, *, trellis: bool, step: float, device: torch.device
    ) -> None:
        self._weights, self._statistics, self._trellis, self._device = weights, statistics, trellis, device
        self._steps, self._step = statistics.factors(), step
        # By name, factors of columns, and the part of the cost of errors that is left with them.
        self._columns: dict[str, tuple[torch.Tensor | None, float]] = {}
        # Steps of rows, which do not change from one pass to the next.
        self._rows: dict[str, torch.Tensor] = {}

    def weight(self, name: str) -> torch.Tensor:
        """A matrix with outputs as rows."""
        weight = torch_tensor(name, self._weights[name]).to(self._device)
        unit = self._statistics.units.get(name)
        return weight.t() if unit is not None and unit.transposed else weight

    def __getitem__(self, name: str) -> Matrix:
        weight = self.weight(name)
        feedback = feedback_for(
            self._statistics, name, trellis=self._trellis, device=self._device, shape=tuple(weight.shape)
        )
        if feedback is not None:
            factors, _ = self._by_columns(name, weight, feedback)
            feedback = feedback if factors is None else feedback.divided(factors)
        if name not in self._rows:
            self._rows[name] = self._steps_of_rows(name, weight, by_cost=feedback is not None)
        return Matrix(name, weight, self._rows[name], feedback)

    def _steps_of_rows(self, name: str, weight: torch.Tensor, *, by_cost: bool) -> torch.Tensor:
        steps = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32) / math.sqrt(max(weight.shape[1], 1))
        costs = costs_of_rows(self._statistics, name) if by_cost else None
        if costs is not None:
            power = fisher_power(self._statistics, name)
            steps = row_steps.steps(steps, costs[0].to(steps.device), costs[1], power)
        return steps * self.step(name)

    def forget_rows(self) -> None:
        """Gives the memory of steps of rows back."""
        self._rows.clear()

    def step(self, name: str) -> float:
        """The step of a matrix over the root mean square of each row, as a multiple of a common one."""
        if name not in self._steps:
            return 1.0
        # An error matters less where factors of columns have put it where inputs are small. A head that is tied to an
        # embedding counts as a whole, since counting larger errors of what is looked up lost more.
        left = self._columns[name][1] if name in self._columns else 1.0
        return self._steps[name] * left ** (-0.5 * fisher_power(self._statistics, name))

    def columns(self, name: str) -> torch.Tensor | None:
        """Factors of the columns of a matrix whose levels the encoder chooses."""
        return self._by_columns(name, self.weight(name), None)[0]

    def _by_columns(
        self, name: str, weight: torch.Tensor, feedback: Feedback | None
    ) -> tuple[torch.Tensor | None, float]:
        if name not in self._columns:
            if feedback is not None:
                known: tuple[torch.Tensor, float] | None = feedback.costs(), math.inf
            else:
                known = sizes_of(self._statistics, name, tuple(weight.shape))
            factors, left = None, 1.0
            if known is not None:
                costs, tokens = known[0].to(weight.device), known[1]
                farthest = self._step * self._steps.get(name, 1.0) * FARTHEST[self._trellis]
                power = columns.POWER if feedback is None else columns.FEEDBACK_POWER
                factors = columns.factors_of(costs, columns.measured(weight), farthest, tokens, power)
                left = 1.0 if factors is None else columns.left(factors, costs)
            self._columns[name] = factors, left
        return self._columns[name]


class Chooser:
    """Chooses levels for an encoder, by statistics and with steps that meet the bits that are asked for.

    :param weights: tensors by their names in the file, read anew whenever they are needed.
    :param feedback: ``False`` for factors of columns and steps only: levels are then the encoder's own. If left out,
        statistics that have nothing but the sizes of inputs are enough.
    :param options: as for :func:`wcodec.compress`, with scheme ``rate``.
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        statistics: Statistics,
        options: Mapping[str, Any],
        *,
        feedback: bool | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        native = _checked(options)
        coding = native["way"]
        if feedback is None:
            # Statistics for steps only are not taken for all that there could be.
            feedback = statistics.full or statistics.gradients
        if feedback and not statistics.full:
            raise InputError(
                "error feedback needs second moments, and these statistics are for steps only (pass feedback=False, or "
                "collect them with full=True)",
                code="I621",
            )
        self._weights, self._statistics, self._feedback = weights, statistics, feedback
        # Name, dtype and shape of each tensor, and the one before it that it shares its data with.
        self._declared = tensor_source(weights)[0]
        self._weights_in_all = sum(
            math.prod(shape)
            for _, dtype, shape, tied_to in self._declared
            if tied_to is None and len(shape) in (2, 3) and dtype in FLOATS
        )
        self._bits = 4.0 if coding["bits"] is None else coding["bits"]
        self._trellis, self._tile, self._coder = coding["trellis"], native["tile"], coding["coder"]
        known = [n for n in weights if n in statistics.units or n in statistics.names]
        if not known:
            raise InputError("the statistics are of none of the tensors (collect them from this model)", code="I622")
        factors = statistics.factors()
        self._known = frozenset(known)
        # Weights that are stored with a row for each input, as in GPT-2.
        turned = [n for n in known if n in statistics.units and statistics.units[n].transposed]
        transpose = patterns("transpose", options.get("transpose") or ())
        extra = [p for p in map(exactly, turned) if p not in transpose]
        self._turned = frozenset(turned)
        self._matrices = Matrices(
            weights,
            statistics,
            trellis=self._trellis,
            step=2.0 ** self._first_power(),
            device=devices.place(device or "cpu"),
        )
        own = {n: self._matrices.columns(n) for n in known if not (feedback and has_moments(statistics, n))}
        by_columns = {**{n: c for n, c in own.items() if c is not None}, **(options.get("columns") or {})}
        steps = {**{n: self._matrices.step(n) for n in known if n in factors}, **(options.get("steps") or {})}
        self._options = {
            **options,
            **_stated(options, statistics, feedback),
            "steps": steps,
            "transpose": [*transpose, *extra],
            "columns": by_columns,
        }
        # By name, bits of each magnitude in a sample of the rows, which are as good for the whole.
        self._prices: dict[str, torch.Tensor] = {}
        self._replays = Replays()
        self._constant = 1.0

    def _first_power(self) -> float:
        """log2 of the step over a row's RMS with which about the bits are met."""
        return _GAUSSIAN - self._bits - (1 if self._trellis else 0)

    def prepared(self, advance: Callable[[int, int], object] | None = None) -> tuple[_EncodeOptions, Any]:
        """The native encoder's arguments besides the source: options with the steps that were found, and the function
        that chooses a tensor's levels. Where the encoder chooses all levels, it finds steps by itself, too."""
        if not self._feedback:
            return encode_options(**self._options), None
        self._constant = 2.0 ** self._search(advance or (lambda done, total: None))
        return self._native(self._constant), self.levels

    def close(self) -> None:
        """Gives back what is kept from one matrix to the next, on a GPU, too."""
        self._replays.clear()
        self._matrices.forget_rows()
        self._prices.clear()

    def levels(self, name: str) -> _Chosen | None:
        """The levels of a tensor; ``None`` where the encoder is to choose them."""
        matrix = self._matrix(name)
        if matrix is None:
            return None
        return self._quantized(matrix, self._constant, None)

    def _native(self, constant: float) -> _EncodeOptions:
        return encode_options(**{**self._options, "step": constant})

    def _matrix(self, name: str) -> Matrix | None:
        if not self._feedback or name not in self._known:
            return None
        matrix = self._matrices[name]
        return None if matrix.feedback is None else matrix

    def _tile_of(self, matrix: Matrix) -> int:
        if self._tile is not None:
            return self._tile
        rows, cols = matrix.weight.shape
        return _native.rate_tile(self._coder, rows, cols, self._weights_in_all)

    def _quantized(self, matrix: Matrix, constant: float, rows: torch.Tensor | None) -> _Chosen:
        """The levels of a matrix, or of some of its rows, whose prices are remembered."""
        tile = self._tile_of(matrix)
        quantized_matrix = quantize(
            matrix.weight,
            matrix.feedback,
            step=matrix.steps * constant,
            tile=tile,
            trellis=self._trellis,
            rows=rows,
            prices=self._prices.get(matrix.name),
            name=matrix.name,
            replays=self._replays,
        )
        if rows is not None:
            self._prices[matrix.name] = quantized_matrix.prices
        scales = quantized_matrix.scales.to(torch.float32)
        levels = quantized_matrix.levels
        if not self._trellis:
            # A scale of 0 is a row of zeros, whatever its levels; with a trellis these are a path still.
            levels = torch.where(scales[:, None] > 0, levels, 0)
        return (
            np.ascontiguousarray(levels.cpu().numpy()).reshape(-1),
            np.ascontiguousarray(scales.cpu().numpy()),
            self._trellis,
            tile,
            None if quantized_matrix.factors is None else quantized_matrix.factors.cpu().numpy(),
        )

    def _search(self, advance: Callable[[int, int], object]) -> float:
        """log2 of the step over a row's RMS with which the bits are met."""
        power = self._first_power()
        tried: list[tuple[float, float]] = []
        for n in range(_TRIES):
            advance(n, _TRIES)
            bits = self._count(2.0**power, _SAMPLE_ROWS)
            tried.append((power, bits))
            if abs(bits - self._bits) <= _CLOSE * self._bits:
                break
            power = _next(tried, self._bits)
        weights = sum(math.prod(shape) for _, _, shape, tied_to in self._declared if tied_to is None)
        if weights <= _MOST_COUNTED:
            tried = self._corrected(min(tried, key=lambda t: abs(t[1] - self._bits))[0])
        advance(_TRIES, _TRIES)
        best = min(tried, key=lambda t: abs(t[1] - self._bits))
        if abs(best[1] - self._bits) > 0.005 * self._bits + _JUMP / max(weights, 1):
            raise InputError(
                f"{self._bits:g} bits per weight cannot be met: the nearest is {best[1]:.3f} (ask for other bits)",
                code="I401",
            )
        return best[0]

    def _corrected(self, power: float) -> list[tuple[float, float]]:
        """Powers near this one, with the bits that all rows have."""
        tried: list[tuple[float, float]] = []
        for _ in range(1 + _CORRECTIONS):
            bits = self._count(2.0**power, None)
            tried.append((power, bits))
            if abs(bits - self._bits) <= _CLOSE * self._bits:
                break
            power = _next(tried, self._bits)
        return tried

    def _count(self, constant: float, most: int | None) -> float:
        """Bits per weight of all tensors of the scheme, as the encoder counts them.

        :param most: rows of each tensor at most; all if there are none.
        """
        samples: dict[str, Any] = {}
        rows: dict[str, torch.Tensor] = {}
        share: dict[str, float] = {}
        for name, dtype, shape, tied_to in self._declared:
            if tied_to is not None:
                # It is the same object, so that the encoder recognizes a tie and stores the tensor once.
                samples[name] = samples[tied_to]
                if tied_to in rows:
                    rows[name] = rows[tied_to]
                continue
            if len(shape) != 2 or dtype not in FLOATS or 0 in shape:
                samples[name] = self._weights[name]
                continue
            axis = 1 if name in self._turned else 0
            tensor, count = torch_tensor(name, self._weights[name]), shape[axis]
            rows[name] = torch.linspace(0, count - 1, min(count, most or count)).round().long()
            samples[name] = tensor.index_select(axis, rows[name].to(tensor.device)).contiguous()
            share[name] = count / len(rows[name])

        def levels(name: str) -> _Chosen | None:
            matrix = self._matrix(name) if name in rows else None
            return None if matrix is None else self._quantized(matrix, constant, rows[name])

        bits = _native.rate_bits(tensor_source(samples), self._native(constant), share, levels)
        if not bits:
            raise InputError("there is no tensor to quantize (change include and exclude)", code="I623")
        return bits


def _checked(options: Mapping[str, Any]) -> _EncodeOptions:
    """Options of the encoder, if calibration goes with them."""
    native = encode_options(**options)
    coding = native["way"]
    if coding["scheme"] != "rate":
        raise InputError(
            f"calibration goes with scheme='rate', not with scheme={shown(coding['scheme'])} (give bits, or leave "
            "calibrate out)",
            code="I307",
        )
    if any(rule["scheme"] == "rate" for _, rule in native["rules"]):
        raise InputError(
            "calibration finds one number of bits for all tensors, and rules have bits of their own (leave bits "
            "out of rules, or calibrate)",
            code="I307",
        )
    if native["bits_per_tensor"]:
        raise InputError("calibration shares bits among tensors (leave bits_per_tensor or calibrate out)", code="I307")
    return native


def _next(tried: list[tuple[float, float]], wanted: float) -> float:
    """The next constant to try for the bits that are wanted: on the line through the nearest point on each side of
    them, or through the nearest two points, or, with a single point, one bit for each power of 2. Bits of small models,
    whose tables weigh, do not fall steadily."""
    nearest = sorted(tried, key=lambda t: abs(t[1] - wanted))
    (x, y), slope = nearest[0], -1.0
    opposite = next((t for t in nearest if (t[1] > wanted) != (y > wanted)), None)
    other = opposite or next(iter(nearest[1:]), None)
    if other is not None and other[0] != x:
        slope = (other[1] - y) / (other[0] - x)
    slope = min(slope, -0.2) if math.isfinite(slope) else -1.0
    following = x + (wanted - y) / slope
    if other is not None and any(math.isclose(following, t[0], abs_tol=1e-6) for t in tried):
        return (x + other[0]) / 2
    return following


# Parts of the time that a calibrated encoding takes, about, on two cores; and one by columns alone.
_SHARES = {"calibrating": 0.35, "finding steps": 0.2, "encoding": 0.45}
_COLUMNS_SHARES = {"calibrating": 0.3, "finding steps": 0.05, "encoding": 0.65}


def _stated(options: Mapping[str, Any], statistics: Statistics, feedback: bool) -> dict[str, Any]:
    """The metadata of what is written: those that were given, and how it was calibrated, and on what."""
    given = options.get("metadata")
    if not isinstance(given, Mapping | None):
        # Refused where options are checked.
        return {}
    record = {
        "version": 1,
        "tokens": statistics.tokens,
        "source": statistics.source,
        "text_sha256": statistics.text_hash,
        "kind": "feedback" if feedback else "steps" if statistics.gradients else COLUMNS,
    }
    return {"metadata": {**(given or {}), CALIBRATION_KEY: json.dumps(record)}}


@contextmanager
def prepared(
    src: Any,
    calibrate: Any,
    options: Mapping[str, Any],
    *,
    feedback: bool | None = None,
    model: Any = None,
    device: torch.device | str | None = None,
    tokens: int | None = None,
    trust_remote_code: bool = False,
    default: ByDefault | None = None,
    progress: bool | ProgressCallback = False,
) -> Iterator[tuple[_EncodeOptions, Callable[[str], _Chosen | None] | None, ProgressCallback | None]]:
    """Options for the native encoder, the function that chooses levels, and one to tell how far it is, for a source and
    what it is calibrated by. Data kept from one matrix to the next, some of it on a GPU, are released at the end.

    :param model: the model that statistics are collected from where there are none yet; that of the folder if left out.
    :param device: the device on which it runs and levels are chosen: a GPU if left out and there is one.
    :param tokens: the number of tokens to collect statistics from, if there are none yet.
    :param default: set where nobody asked for it: the weights alone choose then what a model that does not run cannot.
    :param progress: the progress of all work, from the first token to the last tensor: a bar, or a callback that is
        called with the stage or the tensor at work, and how many of the source's bytes correspond to the part that is
        done.
    """
    _checked(options)
    folder = _folder_of(src)
    place = _place_of(model, device, 0 if folder is None else amount.bytes_of(folder))
    weights: Mapping[str, Any]
    try:
        weights = src if isinstance(src, Mapping) else Checkpoint(Path(path_of(src)))
    except WcodecError:
        if default is None:
            raise
        # Weights that cannot be read are refused where they are encoded, with advice that is not of calibration.
        with by_weights(options, progress) as encoding:
            yield encoding
        return

    def load() -> Any:
        if model is not None:
            return model
        if folder is None:
            raise InputError(
                "calibration runs the model, and a mapping of tensors is none (collect_statistics of the model, and "
                "pass what it returns)",
                code="I624",
            )
        return original_model(folder, place, "auto", trust_remote_code)[0]

    given = is_given(calibrate)
    parts = _COLUMNS_SHARES if is_columns(calibrate) else _SHARES
    shares = {name: share for name, share in parts.items() if not given or name != "calibrating"}
    size = _bytes_of(weights)
    on_progress: bool | Callable[[str, float], object] = progress is True
    stopped: list[BaseException] = []
    if callable(progress):
        on_progress = _told_in_bytes(progress, size, stopped)
    with _progress.staged(on_progress, "encode", shares) as stages:
        collecting: dict[str, Any] = {}
        if not given:
            collecting = {
                "tokens": tokens,
                "trust_remote_code": trust_remote_code,
                "progress": stages.of("calibrating"),
            }
        advance = stages.of("encoding")
        statistics: Statistics | None = None
        chooser: Chooser | None = None
        prepared_weights: tuple[_EncodeOptions, Any]
        try:
            try:
                if default is not None:
                    default.begin(size, place, is_loaded=model is not None)
                statistics = statistics_of(load, calibrate, **collecting)
                chooser = Chooser(weights, statistics, options, feedback=feedback, device=place)
                prepared_weights = chooser.prepared(stages.of("finding steps"))
            except Exception as error:
                # Nothing that keeps a model from running keeps it from being encoded, unless somebody asked for it.
                if default is None or stopped:
                    raise
                default.failed(error)
                prepared_weights = encode_options(**options), None
            yield *prepared_weights, (lambda tensor, done, total: advance(done, total, tensor)) if progress else None
        finally:
            if chooser is not None:
                chooser.close()
            if statistics is not None:
                forget_feedback(statistics)


def _told_in_bytes(
    callback: ProgressCallback, size: int, stopped: list[BaseException]
) -> Callable[[str, float], object]:
    """A callback that is told of bytes as a function that is told of parts.

    :param stopped: gets what the callback raises, which ends the work whatever it is.
    """

    def tell(what: str, part: float) -> None:
        try:
            callback(what, round(part * size), size)
        except BaseException as error:
            stopped.append(error)
            raise

    return tell


def _folder_of(src: Any) -> Path | None:
    """The folder of the model that tensors are of, where that can be known."""
    if isinstance(src, Lazy):
        path = src.checkpoint.path
    elif isinstance(src, Mapping):
        return None
    else:
        path = Path(path_of(src))
    return path if path.is_dir() else path.parent


def _place_of(model: Any, device: torch.device | str | None, needed: int) -> torch.device:
    """The device to compute on: as asked for, where the model is, or a GPU that has room for what is needed."""
    if model is not None and device is None:
        return running.device_of(model)
    return amount.chosen_place(device, needed)


def _bytes_of(weights: Mapping[str, Any]) -> int:
    """Bytes of all tensors, tied ones once."""
    total = 0
    for _, dtype, shape, tied_to in tensor_source(weights)[0]:
        bits = int("".join(c for c in dtype.partition("_")[0] if c.isdigit()) or 8)
        total += 0 if tied_to is not None else math.prod(shape) * bits // 8
    return total
