"""Weights of fixed width: rounded to the nearest level, with a scale for each row or group of columns."""

from __future__ import annotations

import torch

from .catalogue import Width


def rounded(weight: torch.Tensor, width: Width) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels from -2^(bits - 1) to 2^(bits - 1) - 1, and the scales, one for each group of columns, in bf16.

    The value that is furthest from zero is the lowest level, so that all levels are used: its scale may be negative.
    A last group is smaller where the columns are no multiple of its size.
    """
    rows, columns = weight.shape
    size = min(width.group or columns, columns)
    groups = -(-columns // size)
    padded = torch.nn.functional.pad(weight.float(), (0, groups * size - columns)).view(rows, groups, size)
    furthest = padded.gather(-1, padded.abs().argmax(-1, keepdim=True))[..., 0]
    most = 1 << width.bits - 1
    scales = (furthest / -most).to(torch.bfloat16)
    by = torch.where(scales == 0, 1, scales).float()[..., None]
    levels = (padded / by).round().clamp(-most, most - 1)
    return levels.view(rows, -1)[:, :columns].to(torch.int32), scales


def weight_of(levels: torch.Tensor, scales: torch.Tensor, width: Width) -> torch.Tensor:
    """The weights that levels and scales stand for, in float32."""
    columns = levels.shape[1]
    by = scales.float().repeat_interleave(width.group or columns, 1)[:, :columns]
    return levels * by


def stored_bits(width: Width, columns: int) -> float:
    """Bits per weight with the scales.

    >>> stored_bits(Width(4, 128), 4096), stored_bits(Width(8), 4096)
    (4.125, 8.00390625)
    """
    return width.bits + 16 * -(-columns // (width.group or columns)) / columns
