"""Types of arguments that several functions have: few callers need those in the typed dictionaries.

Dictionaries, and no class to make an object of: options stay plain keywords with the names that the command has, a
config of transformers can hold them as JSON, and editors and type checkers know them by ``**options: Unpack[...]``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

    from .._calibrate.statistics import Statistics

Calibration: TypeAlias = "Statistics | bool | str | os.PathLike[str] | Sequence[int] | torch.Tensor"
"""Statistics for scheme ``rate``, or what they are collected on: ``True`` is text of many kinds, and ``False`` leaves
calibration out."""


class Rule(TypedDict, total=False):
    """The encoding of tensors that match a pattern of ``rules``. Keys that are left out are as for all others."""

    scheme: str
    """``int8``, ``rate``, ``lossless`` or ``raw``."""
    bits: float
    """Bits per weight, with scheme ``rate``."""
    trellis: bool
    """Whether levels are chosen by a trellis, with scheme ``rate``."""
    scale: str
    """Elements that share a scale, with scheme ``int8``."""
    block: int
    """Elements in a block of ``scale="block"``."""
    coder: str
    """``rans``, ``huffman``, ``zstd`` or ``raw``."""


Rules: TypeAlias = "Mapping[str, str | Rule | Mapping[str, Any]]"
"""Glob patterns of tensors, and how these are encoded: a scheme, or a :class:`Rule`."""


class StorageOptions(TypedDict, total=False):
    """The form in which symbols are stored. The defaults are good to a percent."""

    layout: str | None
    """Symbols that ``rans`` and ``huffman`` code at once: ``pair``, ``byte`` for one, or ``quad`` for four, for
    products on a GPU (``huffman`` only). By the purpose if left out, as are ``table_bits``."""
    level: int
    """Level of ``zstd``, 1 to 19."""
    tile: int | None
    """Columns of a tile, a multiple of 64; chosen by shape if left out."""
    table_bits: int | None
    """log2 of the slots of tables of symbols: 11 or 12, with coder ``huffman`` 8 to 12."""
    threads: int | None
    """Threads to encode with; all cores if left out."""


class CodingOptions(StorageOptions, total=False):
    """Keywords of :func:`compress_`, :func:`load_model` and :class:`WCodecConfig` that say how weights are quantized
    and stored, beside those in the signatures."""

    scale: str
    """Elements that share a scale with scheme ``int8``: a ``row`` (default), the whole ``tensor``, or a ``block`` of a
    row."""
    block: int | None
    """Elements in a block, a multiple of 16, with ``scale="block"``; 128 if left out."""
    bits_per_tensor: bool
    """Whether every tensor is to have ``bits`` bits, and not all of them together."""
    steps: Mapping[str, float] | None
    """Steps of tensors by name, as multiples of those of others, with scheme ``rate``."""
    calibration_tokens: int | None
    """Tokens that ``calibrate`` looks at; as :func:`collect_statistics` has it if left out."""
    feedback: bool
    """``False`` uses of the statistics of ``calibrate`` only how large inputs are and how much each tensor matters:
    seconds."""


class FileOptions(CodingOptions, total=False):
    """The further keywords of functions that encode checkpoints, :func:`compress`, :func:`compress_to_bytes` and
    :func:`save_file`: those of :class:`CodingOptions`, and these."""

    skip: str | Iterable[str]
    """Glob patterns of tensors to leave out of the file."""
    transpose: str | Iterable[str]
    """Glob patterns of 2-D tensors that are stored ``[in, out]``, so that their columns are the rows."""
    device: str | torch.device | None
    """The device that calibration computes on; a GPU that has room if left out (or ``"auto"``) and there is one,
    otherwise the CPU."""
    trust_remote_code: bool
    """Whether code that comes with the model of a folder may be run, where a model is built: for an output that is a
    folder, a ``budget``, a ``quality`` or ``calibrate``."""
    step: float | None
    """The step of quantization over the root mean square of a row, with scheme ``rate`` in place of ``bits``."""
    columns: Mapping[str, ArrayLike] | None
    """Factors of columns (inputs) of tensors by name, with scheme ``rate``: weights are divided by them before they are
    quantized, and values are multiplied by them. So columns with smaller factors get smaller errors. There is one for
    each column of a matrix, in stacks matrix by matrix. For inputs of very different size ``E[x**2] ** -0.25`` is good.
    They are divided by their geometric mean, stored in 16 bits, and counted. Matrices whose levels ``calibrate``
    chooses have no use for them."""
    frame: int | None
    """Bytes of a frame of ``zstd``; chosen by the tensor if left out."""


class CompressOptions(FileOptions, total=False):
    """The further keywords of :func:`compress`: those of :class:`FileOptions`, and those that find a repository on the
    Hugging Face Hub, as for :func:`load_model`."""

    revision: str | None
    """The branch, tag or commit."""
    subfolder: str
    """The folder in the repository that the model is in."""
    token: str | bool | None
    """The token for private repositories; that of ``hf auth login`` if left out."""
    cache_dir: str | os.PathLike[str] | None
    """The place where repositories are kept; the Hub's cache if left out."""
    local_files_only: bool
    """Whether only what was fetched before is taken."""
    force_download: bool
    """Whether files are fetched again that are there."""


REPOSITORY = ("revision", "subfolder", "token", "cache_dir", "local_files_only", "force_download")
"""Options of a repository."""


class PlanOptions(StorageOptions, total=False):
    """The further keywords of :func:`plan`: those of :class:`CodingOptions` from ``layout`` on, and these."""

    include: str | Iterable[str]
    """Glob patterns of the tensors to quantize; all if left out."""
    exclude: str | Iterable[str]
    """Glob patterns of tensors to store raw."""
    skip: str | Iterable[str]
    """Glob patterns of tensors to leave out of the file."""
    transpose: str | Iterable[str]
    """Glob patterns of 2-D tensors that are stored ``[in, out]``."""
    metadata: Mapping[str, str] | None
    """Text to add to the checkpoint's metadata."""
    bits: float | None
    """Refused: a budget or a quality chooses the bits."""


__all__ = [
    "REPOSITORY",
    "Calibration",
    "CodingOptions",
    "CompressOptions",
    "FileOptions",
    "PlanOptions",
    "Rule",
    "Rules",
    "StorageOptions",
]
