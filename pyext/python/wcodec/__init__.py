"""Entropy-coded weights for large language models.

>>> import numpy as np, wcodec
>>> data, report = wcodec.compress_to_bytes({"w": np.eye(64, 256, dtype=np.float32)})
>>> container = wcodec.open(data)
>>> container["w"].symbols().shape, container["w"].scales().shape
((64, 256), (64, 1))

Files: :func:`compress` and :func:`decompress`, :func:`open`, :func:`save_file` and :func:`load_file`, :func:`verify`
and :func:`compare`. Single layers: :class:`Encoder` and :class:`Decoder`. On GPUs: ``load_file(path, device="cuda")``
and :class:`GpuDecoder`; :func:`doctor` says what they need. Everything that goes wrong is a :class:`WcodecError`. The
command ``wcodec`` does the same at a terminal.
"""

from ._api import (
    compare,
    compress,
    compress_to_bytes,
    decompress,
    instruction_sets,
    load_file,
    open,
    save_file,
    verify,
)
from ._container import Container, TensorEntry
from ._doctor import Check, DoctorReport, doctor
from ._errors import (
    CorruptError,
    DeviceError,
    FileError,
    FileMissingError,
    FilePermissionError,
    FormatError,
    InputError,
    OutputExistsError,
    TensorNotFoundError,
    UnsupportedError,
    WcodecError,
)
from ._gpu import GpuDecoder
from ._layers import Decoder, Encoder
from ._native import __version__
from ._reports import (
    ComparedTensor,
    Comparison,
    CompressionReport,
    LayerStats,
    Segment,
    TensorInfo,
    VerifiedTensor,
    VerifyReport,
)

encode_safetensors_to_wcodec = compress
"""Another name for :func:`compress`."""
load_wcodec_checkpoint = load_file
"""Another name for :func:`load_file`."""

__all__ = [
    "Check",
    "ComparedTensor",
    "Comparison",
    "CompressionReport",
    "Container",
    "CorruptError",
    "Decoder",
    "DeviceError",
    "DoctorReport",
    "Encoder",
    "FileError",
    "FileMissingError",
    "FilePermissionError",
    "FormatError",
    "GpuDecoder",
    "InputError",
    "LayerStats",
    "OutputExistsError",
    "Segment",
    "TensorEntry",
    "TensorInfo",
    "TensorNotFoundError",
    "UnsupportedError",
    "VerifiedTensor",
    "VerifyReport",
    "WcodecError",
    "__version__",
    "compare",
    "compress",
    "compress_to_bytes",
    "decompress",
    "doctor",
    "encode_safetensors_to_wcodec",
    "instruction_sets",
    "load_file",
    "load_wcodec_checkpoint",
    "open",
    "save_file",
    "verify",
]
