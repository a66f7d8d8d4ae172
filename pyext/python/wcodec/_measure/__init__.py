"""Seeing what compressed layers do: quality, speed, memory, and the key/value cache. torch is imported when used."""

from .advice import advice as advice
from .kv_cache import compare_kv_cache, generate, with_kv_cache
from .memory import measure_vram
from .quality import evaluate
from .reports import (
    BenchReport,
    BenchRow,
    EvalReport,
    Generation,
    KvCacheReport,
    KvCacheResult,
    LayerPlace,
    LayerTime,
    MemoryPart,
    MemoryReport,
    Span,
    Speed,
    TimeSplit,
)
from .speed import bench

__all__ = [
    "BenchReport",
    "BenchRow",
    "EvalReport",
    "Generation",
    "KvCacheReport",
    "KvCacheResult",
    "LayerPlace",
    "LayerTime",
    "MemoryPart",
    "MemoryReport",
    "Span",
    "Speed",
    "TimeSplit",
    "bench",
    "compare_kv_cache",
    "evaluate",
    "generate",
    "measure_vram",
    "with_kv_cache",
]
