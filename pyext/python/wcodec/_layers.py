"""Single int8 layers as bytes, for programs that keep their own files."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native, _torch
from ._errors import InputError
from ._options import DEFAULT_LEVEL, choice, decode_options, encode_options
from ._reports import LayerStats

FORMATS = ("container", "legacy")
# A legacy blob begins with the little-endian u32 0x5A535444, a container with its own magic.
_LEGACY_MAGIC = (0x5A535444).to_bytes(4, "little")


class Encoder:
    """Encodes int8 matrices, one at a time.

    >>> import numpy as np, wcodec
    >>> layer = np.arange(-60, 60, dtype=np.int8).reshape(8, 15)
    >>> data, stats = wcodec.Encoder(coder="huffman").encode_layer(layer)
    >>> stats.rows, stats.cols, stats.stored_bytes == len(data)
    (8, 15, True)
    >>> decoded, _ = wcodec.Decoder().decode_layer(data, 8, 15)
    >>> np.array_equal(decoded, layer)
    True

    :param coder: ``rans`` (default), ``huffman``, ``zstd`` or ``raw``. A legacy blob is always ``zstd``.
    :param format: ``container``, a whole ``.wcodec`` file as bytes, or ``legacy``, a 21-byte header and a zstd frame.
    """

    def __init__(
        self,
        coder: str | None = None,
        *,
        format: str = "container",
        layout: str = "pair",
        level: int = DEFAULT_LEVEL,
        tile: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.format = choice("format", format, FORMATS)
        if self.format == "legacy" and coder not in (None, "zstd"):
            raise InputError(f"a legacy blob is coded with zstd, not with {coder!r} (leave coder out)")
        self.coder = coder or ("zstd" if self.format == "legacy" else "rans")
        self._options = encode_options(
            scheme="raw", coder=self.coder, layout=layout, level=level, tile=tile, threads=threads
        )

    def encode_layer(self, symbols: Any) -> tuple[bytes, LayerStats]:
        """Encodes a 2-D int8 array or torch tensor, contiguous or not; the bytes and their figures."""
        flat, (rows, cols) = _symbols(symbols)
        begin = time.perf_counter()
        if self.format == "legacy":
            if max(rows, cols) >= 2**32:
                raise InputError(f"a legacy blob holds fewer than 2^32 rows and columns, not {rows} x {cols}")
            data = _native.legacy_encode(flat, rows, cols, self._options["level"])
        else:
            data = _native.layer_encode(flat, rows, cols, self._options)
        return data, LayerStats(rows, cols, flat.size, len(data), self.format, time.perf_counter() - begin)

    def __repr__(self) -> str:
        return f"Encoder(coder={self.coder!r}, format={self.format!r})"


class Decoder:
    """Decodes what :class:`Encoder` makes; tells containers and legacy blobs apart by themselves.

    :param threads: threads to use; all cores if left out.
    :param isa: forces an instruction set (``scalar``, ``avx2`` or ``avx512``); the best one if left out.
    :param check: whether hashes are checked.
    """

    def __init__(self, *, threads: int | None = None, isa: str | None = None, check: bool = True) -> None:
        self._options = decode_options(threads, isa, check)

    def decode_layer(
        self, data: bytes | bytearray | memoryview, rows: int | None = None, cols: int | None = None
    ) -> tuple[npt.NDArray[np.int8], LayerStats]:
        """Decodes one layer; an error if it has not the ``rows`` and ``cols`` that are expected."""
        stored = bytes(data)
        legacy = stored.startswith(_LEGACY_MAGIC)
        begin = time.perf_counter()
        if legacy:
            n, m, flat = _native.legacy_decode(stored)
        else:
            n, m, flat = _native.layer_decode(stored, self._options)
        if rows not in (None, n) or cols not in (None, m):
            raise InputError(f"the layer has {n} x {m} symbols, not {rows} x {cols}")
        kind = FORMATS[legacy]
        return flat.reshape(n, m), LayerStats(n, m, flat.size, len(stored), kind, time.perf_counter() - begin)

    def __repr__(self) -> str:
        return f"Decoder({', '.join(f'{k}={v!r}' for k, v in self._options.items())})"


def _symbols(value: Any) -> tuple[npt.NDArray[np.int8], tuple[int, int]]:
    """Row-major symbols and the shape."""
    shape, dtype = tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", type(value).__name__))
    if len(shape) != 2 or dtype.removeprefix("torch.") != "int8":
        raise InputError(f"a layer is a 2-D int8 array, not {dtype} of shape {list(shape)}")
    if _torch.is_tensor(value):
        return _torch.bytes_of(value).view(np.int8), (shape[0], shape[1])
    return np.ascontiguousarray(value).reshape(-1), (shape[0], shape[1])
