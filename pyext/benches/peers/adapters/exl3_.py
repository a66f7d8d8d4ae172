"""EXL3: exllamav3's own quantizer and decoder of whole matrices, calibrated on documentation.

The package compiles all of its kernels for inference when it is imported, which takes long and is not needed here: only
the sources of the quantizer and the decoder are compiled, and only its modules for them are imported.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import torch

from .. import real
from ..catalogue import Variant
from .base import NotThere, Ready, linears
from .exl3 import quantized

SOURCES = (
    "quant/quantize.cu", "quant/comp_units/quantize_tiles_frac_inst.cu", "quant/pack.cu", "quant/frac.cu",
    "quant/reconstruct.cu", "quant/exl3_devctx.cu",
)  # fmt: skip
# As exllamav3 compiles them.
FLAGS = ["-O3", "--use_fast_math"]


def _built(root: Path) -> None:
    """Makes torch.ops.exl3, if it is not there already."""
    if hasattr(torch.ops.exl3, "quantize_tiles"):
        return
    from torch.utils import cpp_extension

    folder = root / "exllamav3_ext"
    cpp_extension.load(
        "exl3_ops",
        [str(Path(__file__).with_name("exl3_ops.cu")), *(str(folder / source) for source in SOURCES)],
        extra_include_paths=[str(folder)],
        extra_cuda_cflags=FLAGS,
        is_python_module=False,
    )


class _Bar:
    """In the place of exllamav3's bar of progress."""

    def __init__(self, *_: Any) -> None: ...
    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: Any) -> None: ...
    def update(self, *_: Any) -> None: ...
    def new_task(self, *_: Any) -> None: ...


def _module(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module


def _quantizer() -> Any:
    """exllamav3's module of the quantizer, without the package around it."""
    spec = importlib.util.find_spec("exllamav3")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("no package exllamav3")
    root = Path(spec.origin).parent
    _built(root)
    for package in ("", ".util", ".modules", ".modules.quant"):
        _module(f"exllamav3{package}", __path__=[str(root.joinpath(*package.split(".")))])
    sys.modules["exllamav3.util"].__dict__["cuda_sync_active"] = None
    _module("exllamav3.ext", exllamav3_ext=torch.ops.exl3)
    _module("exllamav3.util.progress", ProgressBar=_Bar)
    _module("exllamav3.util.memory", free_mem=torch.cuda.empty_cache, list_gpu_tensors=None)
    _module("exllamav3.util.tensor", save_tensor_image=None)
    return importlib.import_module("exllamav3.modules.quant.exl3_lib.quantize")


LIBRARY = _quantizer()


def prepare(model: Any, variant: Variant, device: str) -> Ready:
    if not real.is_real(model):
        raise NotThere("it is calibrated on documentation, which is for the real model only")
    working = copy.deepcopy(model).float()
    prefix = next(name for name, module in working.named_modules() if module is working.get_decoder().layers)
    found = quantized(LIBRARY, working, variant.options["bits"], real.calibration_ids())
    stored = {f"{prefix}.{name}": matrix for name, matrix in found.items()}
    if missing := set(linears(model)) - set(stored):
        raise NotThere(f"layers that are in no block are not quantized here: {', '.join(sorted(missing))}")
    weights = sum(matrix.shape[0] * matrix.shape[1] for matrix in stored.values())
    without = sum(matrix.unpadded_bits for matrix in stored.values()) / weights
    return Ready(
        model,
        sum(matrix.stored_bytes for matrix in stored.values()),
        lambda name: stored[name].decoded(),
        (f"calibrated on {real.calibration_ids().numel()} tokens", f"{without:.3f} bits without padding"),
    )
