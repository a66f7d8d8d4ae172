"""Entropy-coded weights for large language models.

>>> import numpy as np, wcodec
>>> data, report = wcodec.compress_to_bytes({"w": np.eye(64, 256, dtype=np.float32)})
>>> container = wcodec.open(data)
>>> container["w"].symbols().shape, container["w"].scales().shape
((64, 256), (64, 1))

Files: :func:`compress` and :func:`decompress` (or :func:`encode` and :func:`decode`, as the command calls them; other
commands have functions of their names, too), :func:`open`, :func:`save_file` and :func:`load_file`, :func:`verify`
and :func:`compare`. Single layers: :class:`Encoder` and :class:`Decoder`. On GPUs: ``load_file(path, device="cuda")``
and :class:`GpuDecoder`; :func:`doctor` says what they need. Everything that goes wrong is a :class:`WcodecError` with a
code, which :func:`explain` explains. The command ``wcodec`` does the same at a terminal.

Models of torch and transformers: :func:`compress_` replaces layers by compressed ones (:mod:`wcodec.nn`),
:func:`save_pretrained` and :func:`load_model` keep them in folders, and ``AutoModelForCausalLM.from_pretrained`` reads
these too. torch is imported when one of these is used for the first time, transformers when a model needs it.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ._integrations.hook import install as _install_hook
from ._native import __version__

if _TYPE_CHECKING:
    from . import nn
    from ._api.doctor import Check, DoctorReport, doctor
    from ._api.files import (
        compare,
        compress,
        compress_to_bytes,
        decode,
        decompress,
        encode,
        instruction_sets,
        load_file,
        open,
        save_file,
        verify,
    )
    from ._api.files import compress as encode_safetensors_to_wcodec  # noqa: F401
    from ._api.files import load_file as load_wcodec_checkpoint  # noqa: F401
    from ._api.model import WCodecModel
    from ._api.models import compress_, load_model
    from ._api.push import push
    from ._calibrate.collect import calibrate, collect_statistics
    from ._calibrate.statistics import Statistics, StatisticsReport
    from ._core.codes import ErrorCode, explain
    from ._core.coding import CodingOptions, CompressOptions, FileOptions, PlanOptions, Rule
    from ._core.colors import COLORS
    from ._core.errors import (
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
        WCodecError,
        WcodecError,
    )
    from ._core.reports import (
        ComparedTensor,
        Comparison,
        CompressionReport,
        LayerStats,
        RateSummary,
        VerifiedTensor,
        VerifyReport,
    )
    from ._core.tensor_info import PlaneInfo, Segment, TensorInfo
    from ._file.blobs import Decoder, Encoder
    from ._file.container import Container, TensorEntry
    from ._gpu.decoder import DecodeBatch, GpuDecoder, ProductBatch, RowLookup
    from ._gpu.host import HostDecoder
    from ._integrations.transformers import WCodecConfig, register
    from ._measure import (
        BenchReport,
        EvalReport,
        Generation,
        KvCacheReport,
        MemoryReport,
        bench,
        compare_kv_cache,
        evaluate,
        generate,
        measure_vram,
        with_kv_cache,
    )
    from ._measure.quality import eval  # noqa: F401
    from ._models.ranks import RankBytes, RanksReport, plan_ranks, ranks
    from ._models.replace import decompress_
    from ._models.report import ReplaceReport
    from ._models.save import save_pretrained
    from ._plan import (
        FrontierReport,
        FrontierRow,
        LayerSensitivity,
        PlanReport,
        Recipe,
        SensitivityReport,
        frontier,
        plan,
        sensitivity,
    )

# The module of each name, which is imported when the name is first used. Commands start at once, without NumPy unless
# they need it, and torch is imported only for work that needs it.
_MODULES = {
    "._api.files": (
        "compare",
        "compress",
        "compress_to_bytes",
        "decode",
        "decompress",
        "encode",
        "instruction_sets",
        "load_file",
        "open",
        "save_file",
        "verify",
    ),
    "._calibrate.collect": ("calibrate", "collect_statistics"),
    "._calibrate.statistics": ("Statistics", "StatisticsReport"),
    "._core.codes": ("ErrorCode", "explain"),
    "._core.coding": ("CodingOptions", "CompressOptions", "FileOptions", "PlanOptions", "Rule"),
    "._core.colors": ("COLORS",),
    "._file.container": ("Container", "TensorEntry"),
    "._api.doctor": ("Check", "DoctorReport", "doctor"),
    "._core.errors": (
        "CorruptError",
        "DeviceError",
        "FileError",
        "FileMissingError",
        "FilePermissionError",
        "FormatError",
        "InputError",
        "OutputExistsError",
        "TensorNotFoundError",
        "UnsupportedError",
        "WCodecError",
        "WcodecError",
    ),
    "._gpu.decoder": ("DecodeBatch", "GpuDecoder", "ProductBatch", "RowLookup"),
    "._gpu.host": ("HostDecoder",),
    "._file.blobs": ("Decoder", "Encoder"),
    "._measure": (
        "BenchReport",
        "EvalReport",
        "Generation",
        "KvCacheReport",
        "MemoryReport",
        "bench",
        "compare_kv_cache",
        "evaluate",
        "generate",
        "measure_vram",
        "with_kv_cache",
    ),
    "._measure.quality": ("eval",),
    "._api.model": ("WCodecModel",),
    "._api.models": ("compress_", "load_model"),
    "._models.replace": ("decompress_",),
    "._models.ranks": ("RankBytes", "RanksReport", "plan_ranks", "ranks"),
    "._api.push": ("push",),
    "._models.report": ("ReplaceReport",),
    "._models.save": ("save_pretrained",),
    "._plan": (
        "FrontierReport",
        "FrontierRow",
        "LayerSensitivity",
        "PlanReport",
        "Recipe",
        "SensitivityReport",
        "frontier",
        "plan",
        "sensitivity",
    ),
    "._core.reports": (
        "ComparedTensor",
        "Comparison",
        "CompressionReport",
        "LayerStats",
        "RateSummary",
        "VerifiedTensor",
        "VerifyReport",
    ),
    "._core.tensor_info": ("PlaneInfo", "Segment", "TensorInfo"),
    "._integrations.transformers": ("WCodecConfig", "register"),
}
_FOUND = {name: (module, name) for module, names in _MODULES.items() for name in names}
# Names of earlier versions, which the next one has no more.
_FORMER = {"encode_safetensors_to_wcodec": "compress", "load_wcodec_checkpoint": "load_file"}


def __getattr__(name: str) -> _Any:
    if name in _FORMER:
        import warnings

        new = _FORMER[name]
        text = f"wcodec.{name} is wcodec.{new} now, and the next version has the old name no more"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(_import_module(__name__), new)
    try:
        if name == "nn":
            value = _import_module(".nn", __name__)
        elif name in _FOUND:
            module, attribute = _FOUND[name]
            value = getattr(_import_module(module, __name__), attribute)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ._core.errors import UnsupportedError

        raise UnsupportedError(f"wcodec.{name} needs torch (pip install torch)", code="U201") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_UNLISTED})


_install_hook()

# Left out of ``from wcodec import *``, which would hide Python's own.
_UNLISTED = ("eval",)

__all__ = [
    "COLORS",
    "BenchReport",
    "Check",
    "CodingOptions",
    "ComparedTensor",
    "Comparison",
    "CompressOptions",
    "CompressionReport",
    "Container",
    "CorruptError",
    "DecodeBatch",
    "Decoder",
    "DeviceError",
    "DoctorReport",
    "Encoder",
    "ErrorCode",
    "EvalReport",
    "FileError",
    "FileMissingError",
    "FileOptions",
    "FilePermissionError",
    "FormatError",
    "FrontierReport",
    "FrontierRow",
    "Generation",
    "GpuDecoder",
    "HostDecoder",
    "InputError",
    "KvCacheReport",
    "LayerSensitivity",
    "LayerStats",
    "MemoryReport",
    "OutputExistsError",
    "PlanOptions",
    "PlanReport",
    "PlaneInfo",
    "ProductBatch",
    "RankBytes",
    "RanksReport",
    "RateSummary",
    "Recipe",
    "ReplaceReport",
    "RowLookup",
    "Rule",
    "Segment",
    "SensitivityReport",
    "Statistics",
    "StatisticsReport",
    "TensorEntry",
    "TensorInfo",
    "TensorNotFoundError",
    "UnsupportedError",
    "VerifiedTensor",
    "VerifyReport",
    "WCodecConfig",
    "WCodecError",
    "WCodecModel",
    "WcodecError",
    "__version__",
    "bench",
    "calibrate",
    "collect_statistics",
    "compare",
    "compare_kv_cache",
    "compress",
    "compress_",
    "compress_to_bytes",
    "decode",
    "decompress",
    "decompress_",
    "doctor",
    "encode",
    "evaluate",
    "explain",
    "frontier",
    "generate",
    "instruction_sets",
    "load_file",
    "load_model",
    "measure_vram",
    "nn",
    "open",
    "plan",
    "plan_ranks",
    "push",
    "ranks",
    "register",
    "save_file",
    "save_pretrained",
    "sensitivity",
    "verify",
    "with_kv_cache",
]
