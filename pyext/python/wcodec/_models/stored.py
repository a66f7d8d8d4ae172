"""Weights of a checkpoint that is quantized already as it stores them: codes and scales, which encodings bit for bit
keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import _native
from .._core.errors import InputError
from .._file.quantized import QuantizedTensor
from .._file.sources import Declared, Described
from .checkpoint import Checkpoint, Lazy
from .find import Candidate
from .folder import WEIGHTS

# The suffix that makes the name of scales from that of their codes.
_SCALES = "_scale_inv"


def is_exact(encoding: Mapping[str, Any]) -> bool:
    """Whether weights are kept bit for bit, unless rules say something else of some."""
    return encoding.get("scheme") in ("lossless", "raw") and encoding.get("calibrate") in (None, False)


def as_stored(weights: Lazy, selected: list[Candidate]) -> Lazy | AsStored:
    """The weights of layers as codes and scales, of those layers that can run from them.

    :param selected: the layers; those whose rows are looked up have values.
    """
    looked_up = {name for c in selected if c.kind == "embedding" for names in c.tensors for name in names}
    quantized_pairs: dict[str, list[tuple[QuantizedTensor, int | None]]] = {}
    for name, part in weights.parts.items():
        if name in looked_up or not part.joined:
            continue
        codes = [weights.checkpoint.quantized.tensors.get(key) for key in part.keys]
        if (pairs := _pairs(codes, part.index)) is not None:
            quantized_pairs[name] = pairs
    return AsStored(weights, quantized_pairs) if quantized_pairs else weights


def _pairs(parts: list[QuantizedTensor | None], index: int | None) -> list[tuple[QuantizedTensor, int | None]] | None:
    """The codes that make up one matrix, if their scales do so, too."""
    pairs: list[tuple[QuantizedTensor, int | None]] = []
    for part in parts:
        if part is None or part.grid is None or len(part.shape) != (2 if index is None else 3):
            return None
        pairs.append((part, index))
    if len(pairs) == 1:
        return pairs
    grids = [part.grid for part, _ in pairs if part.grid is not None]
    forms = {(grid.cols, grid.block_rows, grid.block_cols) for grid in grids}
    # One below the other, blocks must begin where matrices do.
    aligned = all(grid.scales > 1 and grid.rows % grid.block_rows == 0 for grid in grids)
    return pairs if aligned and len(forms) == 1 else None


class AsStored(Described, Declared):
    """Tensors to compress, some of them codes with their scales beside them, read when they are needed."""

    def __init__(self, weights: Lazy, pairs: Mapping[str, list[tuple[QuantizedTensor, int | None]]]) -> None:
        self._weights, self._pairs = weights, pairs
        self._scales = {name + _SCALES: name for name in pairs}
        self.metadata = {_native.QUANTIZED_KEY: weights.checkpoint.quantized.record}

    @property
    def _checkpoint(self) -> Checkpoint:
        return self._weights.checkpoint

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._scales:
            return _joined([self._scales_of(*pair) for pair in self._pairs[self._scales[name]]])
        if name in self._pairs:
            return _joined([self._checkpoint.stored(p.codes, i) for p, i in self._pairs[name]])
        return self._weights[name]

    def _scales_of(self, pair: QuantizedTensor, index: int | None) -> torch.Tensor:
        grid = pair.grid
        assert grid is not None
        scales = self._checkpoint.stored(pair.scales, index if grid.scales else None)
        if index is None and scales.dim() == 2:
            return scales
        # In the dimensions that those of a matrix have.
        if grid.scales <= 1:
            return scales.reshape(())
        return (
            scales.reshape(-1) if grid.block_rows == 1 and grid.scale_cols == 1 else scales.reshape(-1, grid.scale_cols)
        )

    def declared(self, name: str) -> tuple[str, list[int]] | None:
        """The declared dtype and shape of a weight that has no codes here; None for one that has."""
        return None if name in self._scales or name in self._pairs else self._weights.declared(name)

    def __iter__(self) -> Iterator[str]:
        for name in self._weights:
            yield name
            if name in self._pairs:
                yield name + _SCALES

    def __len__(self) -> int:
        return len(self._weights) + len(self._pairs)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """One below the other."""
    if len(parts) == 1:
        return parts[0]
    # torch does not join all kinds of bytes.
    as_bytes = parts[0].element_size() == 1
    joined = torch.cat([part.view(torch.uint8) if as_bytes else part for part in parts])
    return joined.view(parts[0].dtype)


def check_all_taken(checkpoint: Checkpoint, weights: Lazy) -> None:
    """Refuses codes that no layer is made of: transformers would read them as if they were values. It does not find
    those whose values have another name, and they are filled in.

    :raises InputError: if there are such.
    """
    taken = weights.keys_used
    quantized = checkpoint.quantized.tensors
    left = [name for name in checkpoint if name in quantized and quantized[name].codes == name and name not in taken]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise InputError(
            f"{checkpoint.path}: '{left[0]}'{more} is quantized, and is no layer that is compressed "
            "(load the model with wcodec.load_model, which dequantizes all, or include it)",
            file=checkpoint.path,
            tensor=left[0],
            code="I504",
        )


def forget_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """A config without what the source said of its quantization and its files, which is of no weight that is saved."""
    config.pop(WEIGHTS, None)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            for key in ("quantization_config", "compression_config"):
                part.pop(key, None)
    return config


__all__ = ["AsStored", "as_stored", "check_all_taken", "forget_quantization", "is_exact"]
