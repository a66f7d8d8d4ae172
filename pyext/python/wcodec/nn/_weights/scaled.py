"""Layers that run from codes of FP8 with scales, as the checkpoint had them: decoded, and multiplied with their scales
whenever their weight is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._file import quantized
from ..._file.container import Container, TensorEntry
from ..._file.quantized import Grid, fp8_values, scale_numbers
from ..._gpu.decodable import shape_of

if TYPE_CHECKING:
    from ..._file.quantized import QuantizedTensor


class Scaled:
    """The codes of a container that layers can run from, with their scales. It never changes.

    Names are those of stored tensors, tied ones resolved.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._of: dict[str, QuantizedTensor] = {}
        for quantized_tensor in quantized.kept_in(container).tensors.values():
            entry = container[quantized_tensor.codes]
            # Matrices by themselves: what is a stack was not stored for layers.
            if quantized_tensor.grid is not None and quantized_tensor.grid.count == 1 and len(entry.shape) == 2:
                self._of[entry.alias_of or quantized_tensor.codes] = quantized_tensor
        self._numbers: dict[tuple[str, torch.device], torch.Tensor] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def __bool__(self) -> bool:
        return bool(self._of)

    def scales_of(self, names: Iterable[str]) -> list[str]:
        """The names of the scales of those that have some."""
        return [self._of[name].scales for name in names if name in self._of]

    def bytes_of(self, name: str) -> tuple[int, int]:
        """The bytes that the scales of a tensor take in the container, and those that they took before."""
        if name not in self._of:
            return 0, 0
        entry = self._container[self._of[name].scales]
        return entry.stored_bytes, entry.original_bytes

    def rows(self, entry: TensorEntry, dtype: torch.dtype, rows: tuple[int, int] | None) -> torch.Tensor:
        """The weight, or a slice of its rows, decoded by the CPU."""
        codes = entry.torch() if rows is None else entry.torch_rows(*rows)
        return self.values(entry.name, codes, dtype, rows)

    def values(
        self,
        name: str,
        codes: torch.Tensor,
        dtype: torch.dtype,
        rows: tuple[int, int] | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Codes, of all rows or some, times their scales, where the codes are."""
        values = fp8_values(codes, self._numbers_of(name, codes.device), self.grid(name), dtype, rows, out)
        return values.view(codes.shape)

    def grid(self, name: str) -> Grid:
        """Which elements of a weight share a scale."""
        grid = self._of[name].grid
        assert grid is not None
        return grid

    def _numbers_of(self, name: str, device: torch.device) -> torch.Tensor:
        """The scales of a weight, as float32 on a device, where they stay: they are few."""
        numbers = self._numbers.get((name, device))
        if numbers is None:
            with torch.inference_mode(False), torch.no_grad():
                numbers = scale_numbers(self._container[self._of[name].scales].torch()).reshape(-1).to(device)
            self._numbers[name, device] = numbers
        return numbers

    # On a GPU

    def decoder(self, decoder: Any) -> Any:
        """A decoder whose weights are values where it has codes."""
        return ScaledDecoder(decoder, self) if any(name in self for name in decoder.names) else decoder


class ScaledDecoder:
    """A GPU's decoder that multiplies codes with their scales. Codes come to lie at the end of the memory of values,
    which are wider, so that no other is kept for them."""

    def __init__(self, decoder: Any, scaled: Scaled) -> None:
        self.unscaled, self._scaled = decoder, scaled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unscaled, name)

    def can_fuse(self, name: str) -> str | None:
        """The reason for which no kernel multiplies with a tensor as it is stored; None where one does."""
        reason: str | None = "it has scales beside it" if name in self._scaled else self.unscaled.can_fuse(name)
        return reason

    def most_vectors(self, name: str) -> int:
        """The most vectors that products with a tensor as it is stored take; 0 where no kernel multiplies with it."""
        most: int = 0 if name in self._scaled else self.unscaled.most_vectors(name)
        return most

    def can_look_up(self, name: str) -> str | None:
        """Why rows of a tensor are not looked up as they are stored."""
        reason: str | None = "it has scales beside it" if name in self._scaled else self.unscaled.can_look_up(name)
        return reason

    def decode(
        self,
        name: str,
        dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
        rows: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """The tensor, or some rows of it, in a new one or in ``out``, as that of the decoder."""
        decoded: torch.Tensor
        if name not in self._scaled:
            decoded = self.unscaled.decode(name, dtype, out, rows)
            return decoded
        if out is None:
            info = self.unscaled.info(name)
            out = torch.empty(shape_of(info, rows), dtype=dtype or torch.bfloat16, device=self.unscaled.device)
        self.prepare([(name, out) if rows is None else (name, out, rows)]).launch()
        return out

    def prepare(self, targets: Sequence[Any] | Mapping[str, torch.Tensor]) -> ScaledBatch:
        """A batch of the decoder's, with products by scales behind it; arguments as for the decoder's ``prepare``."""
        pairs = targets.items() if isinstance(targets, Mapping) else targets
        plain: list[Any] = []
        scaled: list[tuple[str, torch.Tensor, torch.Tensor, tuple[int, int] | None]] = []
        for name, out, *rows in pairs:
            if name not in self._scaled:
                plain.append((name, out, *rows))
                continue
            info = self.unscaled.info(name)
            shape = shape_of(info, rows[0] if rows else None)
            codes = _room(out, shape, info.dtype)
            plain.append((name, codes, *rows))
            scaled.append((name, codes, out, rows[0] if rows else None))
        return ScaledBatch(self.unscaled.prepare(plain), scaled, self._scaled)


class ScaledBatch:
    """The result of :meth:`ScaledDecoder.prepare`: a batch, and products with scales behind it."""

    def __init__(self, batch: Any, scaled: list[Any], of: Scaled) -> None:
        self._batch, self._tensors, self._of = batch, scaled, of
        for name, codes, _, _ in scaled:
            # The scales are made now, and not while a graph is captured.
            of._numbers_of(name, codes.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def launch(self) -> None:
        """Puts decoding and products into torch's current stream."""
        self._batch.launch()
        for name, codes, out, rows in self._tensors:
            with torch.inference_mode(out.is_inference()), torch.no_grad():
                self._of.values(name, codes, out.dtype, rows, out)


def _room(out: torch.Tensor, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Room for codes: at the end of the memory of their values, where products that are made from the first row on
    overwrite none that is still wanted; beside it where that is no place that decoders write to."""
    from ..._gpu import torch as _torch

    wanted = _torch.dtype_of(dtype)
    data = out.view(-1).view(torch.uint8)
    begin = out.numel() * (out.element_size() - 1)
    if begin % 16 == 0 and out.data_ptr() % 16 == 0:
        return data[begin:].view(wanted).view(shape)
    return torch.empty(shape, dtype=wanted, device=out.device)


__all__ = ["Scaled", "ScaledBatch", "ScaledDecoder"]
