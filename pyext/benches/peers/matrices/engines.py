"""The calls of each engine: matrices in bf16 on the GPU become functions that multiply with them.

A library is imported where it is called, and nowhere else.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ..adapters.base import NotThere, total_bytes
from .catalogue import Variant, Width
from .rounding import rounded

Multiply = Callable[[torch.Tensor], Any]


@dataclass
class Stored:
    """Matrices as an engine stores them."""

    ways: dict[str, list[Multiply]]
    """Functions of each matrix that take vectors, by the way they multiply: the fastest way counts."""
    bits: float
    """Bits per weight, with all that is stored."""


def wcodec(variant: Variant, matrices: list[torch.Tensor]) -> Stored:
    """Products straight from compressed weights, and decoding followed by cuBLAS: layers take what is faster."""
    import wcodec as package

    named = {str(i): matrix.cpu() for i, matrix in enumerate(matrices)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.wcodec"
        package.compress(named, path, progress=False, **variant.options)
        bits = path.stat().st_size * 8 / sum(matrix.numel() for matrix in matrices)
        decoder = package.GpuDecoder(path)
    scratch = torch.empty_like(matrices[0])

    def straight(name: str) -> Multiply:
        product = decoder.products([(name, None)])
        return lambda x: [product(x[i : i + product.most]) for i in range(0, len(x), product.most)]

    def decoded(name: str) -> Multiply:
        batch = decoder.prepare([(name, scratch)])

        def run(x: torch.Tensor) -> list[Any]:
            batch.launch()
            return [F.linear(x, scratch)]

        return run

    return Stored({"products": [straight(n) for n in named], "decoded": [decoded(n) for n in named]}, bits)


def humming(variant: Variant, matrices: list[torch.Tensor]) -> Stored:
    """Humming's layers, with its own rounding."""
    from humming.layer import HummingLayer

    width = variant.width
    assert width is not None
    config: dict[str, Any] = {"dtype": f"int{width.bits}"}
    if width.group is not None:
        config["group_size"] = width.group
    layers = []
    for matrix in matrices:
        rows, columns = matrix.shape
        layer = HummingLayer(
            shape_n=rows, shape_k=columns, weight_config=dict(config), torch_dtype=torch.bfloat16
        ).cuda()
        layer.load_from_unquantized(matrix)
        layer.transform()
        layers.append(layer)
    stored = total_bytes(layers[0].parameters())
    return Stored({"products": list(layers)}, stored * 8 / matrices[0].numel())


def marlin(variant: Variant, matrices: list[torch.Tensor]) -> Stored:
    """Marlin's kernel, as vLLM calls it for GPTQ's format without an order of columns."""
    width = variant.width
    assert width is not None
    operators, kind = marlin_operators(width)
    device = matrices[0].device
    units = torch.cuda.get_device_properties(device).multi_processor_count
    # Locks, which the kernel leaves at zero: up to four blocks of threads are on each multiprocessor.
    locks = torch.zeros(4 * units, dtype=torch.int32, device=device)
    functions, stored = [], 0
    for matrix in matrices:
        rows, columns = matrix.shape
        levels, scales = rounded(matrix, width)
        packed = operators.gptq_marlin_repack(packed_levels(levels, width), columns, rows, width.bits, False)
        ordered = ordered_scales(scales)
        stored += total_bytes([packed, ordered])
        functions.append(marlin_product(operators.marlin_gemm, packed, ordered, locks, kind))
    return Stored({"products": functions}, stored * 8 / sum(m.numel() for m in matrices))


def marlin_product(
    gemm: Callable[..., Any], packed: torch.Tensor, scales: torch.Tensor, locks: torch.Tensor, kind: int
) -> Multiply:
    """The product with one matrix: no bias, no zero points, sums in float32 and without atomic additions."""
    rows = scales.shape[1]

    def multiply(x: torch.Tensor) -> Any:
        size = (len(x), rows, x.shape[1])
        return gemm(x, None, packed, None, scales, None, None, None, locks, kind, *size, False, True, False)

    return multiply


def marlin_operators(width: Width) -> tuple[Any, int]:
    """Operators of vLLM's extension, and its number for the type of weights. vLLM itself is not imported: it needs
    packages that its kernels do not."""
    spec = importlib.util.find_spec("vllm")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [file for folder in folders for file in sorted(Path(folder).glob("_C*libtorch*.so"))]
    if not found:
        raise NotThere("vLLM's extension for GPUs is not there (pip install --no-deps vllm==0.32.0)")
    torch.ops.load_library(str(found[0]))
    types = importlib.util.spec_from_file_location("vllm_scalar_type", found[0].parent / "scalar_type.py")
    assert types is not None and types.loader is not None
    module = importlib.util.module_from_spec(types)
    types.loader.exec_module(module)
    return torch.ops._C, getattr(module.scalar_types, f"uint{width.bits}b{1 << width.bits - 1}").id


def packed_levels(levels: torch.Tensor, width: Width) -> torch.Tensor:
    """Levels as GPTQ has them: unsigned, columns first, and those of several columns in one word, the first one lowest.

    :param levels: signed, rows x columns.
    :returns: columns / (32 / bits) x rows.
    """
    count = 32 // width.bits
    unsigned = (levels + (1 << width.bits - 1)).T.reshape(-1, count, len(levels)).to(torch.int64)
    words = sum(unsigned[:, i] << width.bits * i for i in range(count))
    assert isinstance(words, torch.Tensor)
    # Only the low 32 bits are used; as a signed word they may be negative.
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).contiguous()


def ordered_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales in the order in which the kernel's threads read them: groups x rows.

    :param scales: rows x groups.
    """
    groups, rows = scales.shape[1], scales.shape[0]
    if groups > 1:
        return scales.T.reshape(-1, 8, 8).transpose(1, 2).reshape(groups, rows).contiguous()
    return scales.T.reshape(-1, 4, 4, 2).transpose(1, 2).reshape(groups, rows).contiguous()


ENGINES: dict[str, Callable[[Variant, list[torch.Tensor]], Stored]] = {
    "wcodec": wcodec,
    "humming": humming,
    "marlin": marlin,
}
