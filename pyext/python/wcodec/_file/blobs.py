"""Single int8 layers as bytes, for programs that keep their own files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._core.errors import InputError, UnsupportedError
from .._core.keywords import keywords
from .._core.option_table import DEFAULT_LEVEL
from .._core.options import choice, coder_for, decode_options, encode_options
from .._core.reports import LayerStats
from .._gpu import decoder as _gpu_decoder
from .._gpu import devices
from .._gpu import torch as _torch
from .container import Container

if TYPE_CHECKING:
    import torch

FORMATS = ("container", "legacy")


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

    :param coder: ``rans``, ``huffman``, ``zstd`` or ``raw``; what ``optimize`` says if left out. A legacy blob is
        always ``zstd``.
    :param optimize: the purpose of the layers: ``speed`` (default) takes ``huffman``, ``size`` takes ``rans``.
    :param format: ``container``, a whole ``.wcodec`` file as bytes, or ``legacy``, a 21-byte header and a zstd frame.
    """

    @keywords(name="Encoder")
    def __init__(
        self,
        coder: str | None = None,
        *,
        format: str = "container",
        optimize: str = "speed",
        layout: str | None = None,
        level: int = DEFAULT_LEVEL,
        tile: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.format = choice("format", format, FORMATS)
        if self.format == "legacy" and coder not in (None, "zstd"):
            raise InputError(f"a legacy blob is coded with zstd, not with {coder!r} (leave coder out)", code="I643")
        self.coder = "zstd" if self.format == "legacy" else coder_for(optimize, coder)
        self._options = encode_options(
            scheme="raw", optimize=optimize, coder=self.coder, layout=layout, level=level, tile=tile, threads=threads
        )

    def encode_layer(self, symbols: Any) -> tuple[bytes, LayerStats]:
        """Encodes a 2-D int8 array or torch tensor, contiguous or not; the bytes and their figures."""
        flat, (rows, cols) = _symbols(symbols)
        begin = time.perf_counter()
        if self.format == "legacy":
            if max(rows, cols) >= 2**32:
                raise InputError(
                    f"a legacy blob holds fewer than 2^32 rows and columns, not {rows} x {cols} "
                    "(use format='container')",
                    code="I643",
                )
            data = _native.legacy_encode(flat, rows, cols, self._options["level"])
        else:
            data = _native.layer_encode(flat, rows, cols, self._options)
        return data, LayerStats(rows, cols, flat.size, len(data), self.format, time.perf_counter() - begin)

    def __repr__(self) -> str:
        return f"Encoder(coder={self.coder!r}, format={self.format!r})"


class Decoder:
    """Decodes what :class:`Encoder` makes; tells containers and legacy blobs apart by themselves.

    With ``device="cuda"`` the GPU decodes, and layers are torch tensors in its memory::

        layer, _ = wcodec.Decoder(device="cuda").decode_layer(data)

    :param threads: threads to use; all cores if left out.
    :param isa: forces an instruction set (``scalar``, ``avx2`` or ``avx512``); the best one if left out.
    :param check: whether hashes are checked.
    :param device: ``cpu``, ``cuda`` (torch's current device), ``cuda:N`` or a ``torch.device``. Legacy blobs decode on
        the CPU only.
    :param trusted: whether the bytes come from a source that means well: if not, a layer that is larger than 64 MiB and
        than 1,024 times its stored bytes is refused.
    :raises DeviceError: if a GPU is asked for and it or its driver is missing.
    """

    @keywords(name="Decoder")
    def __init__(
        self,
        *,
        threads: int | None = None,
        isa: str | None = None,
        check: bool = True,
        device: str | torch.device = "cpu",
        trusted: bool = False,
    ) -> None:
        self._options = decode_options(threads, isa, check)
        self._trusted = bool(trusted)
        number = devices.parse(device)
        if number is not None and isa is not None:
            raise InputError(
                f"isa={isa!r} is of the CPU, and does not go with device={str(device)!r} (leave it out)", code="I307"
            )
        self.device = "cpu" if number is None else str(devices.torch_device(number))

    def decode_layer(
        self, data: bytes | bytearray | memoryview, rows: int | None = None, cols: int | None = None
    ) -> tuple[Any, LayerStats]:
        """Decodes one layer; an error if it has not the ``rows`` and ``cols`` that are expected.

        The symbols are an int8 array of NumPy or, with a GPU, an int8 tensor of torch.
        """
        stored = bytes(data)
        legacy = _native.is_legacy(stored)
        begin = time.perf_counter()
        if self.device != "cpu":
            return self._decode_on_gpu(stored, legacy, (rows, cols), begin)
        if legacy:
            n, m, flat = _native.legacy_decode(stored, self._trusted)
        else:
            n, m, flat = _native.layer_decode(stored, self._trusted, self._options)
        _expect((n, m), (rows, cols))
        kind = FORMATS[legacy]
        return flat.reshape(n, m), LayerStats(n, m, flat.size, len(stored), kind, time.perf_counter() - begin)

    def _decode_on_gpu(
        self, stored: bytes, legacy: bool, expected: tuple[int | None, int | None], begin: float
    ) -> tuple[torch.Tensor, LayerStats]:
        if legacy:
            raise UnsupportedError(
                "a legacy blob decodes on the CPU only (decode it there, and encode it with Encoder())", code="U107"
            )
        with Container.open(stored, trusted=self._trusted) as container:
            entry = next(iter(container.stored), None)
            if entry is None or len(container) != 1 or entry.dtype != "I8" or len(entry.shape) != 2:
                raise InputError("this container does not hold a single layer (open it as a container)", code="I642")
            n, m = entry.shape
            _expect((n, m), expected)
            options: dict[str, Any] = {"threads": self._options["threads"], "check": self._options["verify"]}
            decoder = _gpu_decoder.GpuDecoder(container, device=self.device, **options)
        layer = decoder.decode(entry.name)
        decoder.check()
        return layer, LayerStats(n, m, n * m, len(stored), FORMATS[0], time.perf_counter() - begin)

    def __repr__(self) -> str:
        options = {**self._options, "device": self.device, "trusted": self._trusted}
        return f"Decoder({', '.join(f'{k}={v!r}' for k, v in options.items())})"


def _expect(shape: tuple[int, int], expected: tuple[int | None, int | None]) -> None:
    if any(expected_size not in (None, size) for size, expected_size in zip(shape, expected, strict=True)):
        wanted = " x ".join("any" if expected_size is None else str(expected_size) for expected_size in expected)
        raise InputError(
            f"the layer has {shape[0]} x {shape[1]} symbols, not {wanted} "
            "(leave rows and cols out to take it as it is)",
            code="I642",
        )


def _symbols(value: Any) -> tuple[npt.NDArray[np.int8], tuple[int, int]]:
    """Row-major symbols and the shape."""
    shape, dtype = tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", type(value).__name__))
    if len(shape) != 2 or dtype.removeprefix("torch.") != "int8":
        raise InputError(
            f"a layer is a 2-D int8 array, not {dtype} of shape {list(shape)} "
            "(for weights use compress, which quantizes them)",
            code="I641",
        )
    if _torch.is_tensor(value):
        return _torch.bytes_of(value, "symbols").view(np.int8), (shape[0], shape[1])
    return np.ascontiguousarray(value).reshape(-1), (shape[0], shape[1])
