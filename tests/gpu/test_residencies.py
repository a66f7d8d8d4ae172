"""Lookups, ranges of rows and products of tensors of every residency: on a GPU, bit for bit what the CPU decodes.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_helpers
import numpy as np
import pytest
import wcodec
from gpu_helpers import same, torch

# pytest looks for fixtures in the module.
gpu = gpu_helpers.gpu

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MIXED = ["embed", "1.up"]
RESIDENCIES: dict[str, Callable[..., Any]] = {
    "device": lambda path, **options: wcodec.GpuDecoder(path, **options),
    "host": lambda path, **options: wcodec.HostDecoder(path, **options),
    "host, one strip a slot": lambda path, **options: wcodec.HostDecoder(path, ring=0, **options),
    "disk": lambda path, **options: wcodec.HostDecoder(path, from_disk=True, **options),
    "disk, one strip a slot": lambda path, **options: wcodec.HostDecoder(path, from_disk=True, ring=0, **options),
    "host and disk": lambda path, **options: wcodec.HostDecoder(path, from_disk=MIXED, **options),
}


@pytest.fixture(params=["rans", "huffman"])
def path(request: pytest.FixtureRequest, tmp_path: Path, rng: np.random.Generator) -> Path:
    """Matrices as a model has them: most of one width, a table among them."""
    tensors = {"embed": rng.standard_t(6, (1000, 256)).astype(np.float32)}
    for i in range(3):
        tensors[f"{i}.q"] = rng.standard_t(6, (256, 256)).astype(np.float16)
        tensors[f"{i}.up"] = rng.standard_t(6, (688, 256)).astype(np.float16)
    tensors["odd"] = rng.standard_t(6, (333, 514)).astype(np.float32)
    tensors["turned"] = rng.standard_t(6, (200, 65)).astype(np.float32)
    tensors["head"] = tensors["embed"]
    path = tmp_path / "m.wcodec"
    wcodec.save_file(tensors, path, transpose="turned", coder=request.param, layout="pair")
    return path


@pytest.fixture(params=RESIDENCIES)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return RESIDENCIES[request.param]


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Has torch's next tensor of this size be of memory that was full of something else."""
    torch.full(shape, 77, dtype=dtype, device="cuda")


def looked_up(whole: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows of these numbers, and NaN for those of no row."""
    there = (ids >= 0) & (ids < whole.shape[0])
    rows = torch.full((*ids.shape, whole.shape[1]), float("nan"), dtype=whole.dtype)
    rows[there] = whole[ids[there]]
    return rows


def equal(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal but for which NaN it is."""
    return torch.equal(found.cpu().nan_to_num(nan=99), wanted.nan_to_num(nan=99))


def test_lookups(make: Any, path: Path, rng: np.random.Generator) -> None:
    container, decoder = wcodec.open(path), make(path)
    assert "transposed" in decoder.can_look_up("turned")
    with pytest.raises(wcodec.InputError, match="no kernel gathers rows of it"):
        decoder.lookup("turned")
    for name in ("embed", "head", "odd", "0.q"):
        assert decoder.can_look_up(name) is None
        for dtype in DTYPES:
            lookup, whole = decoder.lookup(name, dtype), container[name].torch(dtype)
            for shape in ((), (1,), (7, 11), (300,), (0, 3)):
                ids = torch.from_numpy(rng.integers(-2, whole.shape[0] + 2, shape))
                for numbers in (ids, ids.int()):
                    poisoned((*shape, whole.shape[1]), dtype)
                    assert equal(lookup(numbers.cuda()), looked_up(whole, ids)), (name, dtype, shape)
        # Rows that lie together, all of the table, and the same row again and again.
        lookup, whole = decoder.lookup(name), container[name].torch()
        for ids in (torch.arange(30, 90), torch.arange(whole.shape[0]), torch.full((50,), 17)):
            assert equal(lookup(ids.cuda()), looked_up(whole, ids))
    decoder.check()


def test_numbers_that_the_gpu_has_not_yet(make: Any, path: Path) -> None:
    """Numbers that work before in the stream writes, in several streams, and with a decoder that is gone meanwhile."""
    container, decoder = wcodec.open(path), make(path)
    whole, lookup = container["embed"].torch(), decoder.lookup("embed")
    ids, wait = torch.randint(0, 1000, (3, 64)), torch.randn(4096, 4096, device="cuda")
    found = []
    for i in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            numbers = torch.zeros(64, dtype=torch.int64, device="cuda")
            for _ in range(20):
                wait = (wait @ wait).clamp(-1, 1)
            numbers += ids[i].to("cuda", non_blocking=True)
            found.append(lookup(numbers))
    del decoder, lookup
    gc.collect()
    torch.cuda.synchronize()
    assert all(equal(rows, looked_up(whole, ids[i])) for i, rows in enumerate(found))


def test_lookups_beside_batches(make: Any, path: Path, rng: np.random.Generator) -> None:
    """A lookup between prefetching and launching takes nothing from others, or they copy again."""
    container, decoder = wcodec.open(path), make(path)
    outs = {name: torch.empty(container[name].shape, dtype=torch.bfloat16, device="cuda") for name in ("0.up", "1.up")}
    batches = [decoder.prepare([item]) for item in outs.items()]
    lookup, whole = decoder.lookup("embed"), container["embed"].torch()
    for _ in range(5):
        for batch in batches:
            batch.prefetch()
        ids = torch.from_numpy(rng.integers(0, 1000, 40))
        rows = lookup(ids.cuda())
        for out in outs.values():
            out.zero_()
        for batch in batches:
            batch.launch()
        assert equal(rows, looked_up(whole, ids))
        assert all(same(out, container[name].torch(torch.bfloat16)) for name, out in outs.items())
    decoder.check()


def test_lookups_in_graphs(make: Any, path: Path) -> None:
    """A graph looks up what is in its input then, without the host; not from the file, of which the host reads."""
    container, decoder = wcodec.open(path), make(path)
    whole, lookup = container["embed"].torch(), decoder.lookup("embed")
    ids = torch.zeros(8, dtype=torch.int64, device="cuda")
    lookup(ids)
    graph = torch.cuda.CUDAGraph()
    if decoder._native.direct() is not None:
        with torch.cuda.graph(graph):
            twice = ids * 2
            with pytest.raises(wcodec.InputError, match="cannot be looked up in a CUDA graph"):
                lookup(ids)
        graph.replay()
        assert not twice.any()
        return
    with torch.cuda.graph(graph):
        rows = lookup(ids)
    del decoder, lookup
    gc.collect()
    for first in (0, 500, 992):
        numbers = torch.arange(first, first + 8)
        ids.copy_(numbers)
        graph.replay()
        assert equal(rows, looked_up(whole, numbers))


def test_runs_of_rows(make: Any, path: Path, rng: np.random.Generator) -> None:
    container, decoder = wcodec.open(path), make(path)
    for name in ("embed", "odd", "2.up"):
        whole = container[name].torch()
        edges = [*range(0, whole.shape[0], 16), whole.shape[0]]
        pairs = [sorted(rng.integers(0, len(edges), 2)) for _ in range(40)]
        runs = [(edges[begin], edges[end]) for begin, end in pairs]
        wanted = torch.cat([whole[begin:end] for begin, end in runs])
        poisoned(tuple(wanted.shape), wanted.dtype)
        assert same(decoder.decode_rows(name, runs), wanted), name
        assert decoder.decode_rows(name, []).shape == (0, whole.shape[1])
    decoder.check()
    for wrong in ([(0, 16), (32, 16)], [(-16, 16)], [(0, 1001)], [(0, 16), (8, 16)]):
        with pytest.raises(wcodec.InputError, match="tensor 'embed'.*rows"):
            decoder.decode_rows("embed", wrong)
    with pytest.raises(wcodec.InputError, match="tensor 'turned'"):
        decoder.decode_rows("turned", [(0, 16)])


@pytest.mark.parametrize("count", [1, 5, 16])
def test_products(make: Any, path: Path, count: int) -> None:
    """Bits are those of a decoder whose tensors are all on the device, and near the exact results."""
    container, decoder, resident = wcodec.open(path), make(path), wcodec.GpuDecoder(path)
    names = ["0.q", "0.up", "1.up", "embed"]
    for dtype in (torch.float16, torch.bfloat16):
        if not decoder.multiplies(dtype):
            continue
        bias = torch.randn(256, dtype=dtype, device="cuda")
        factors = [(name, bias if name == "0.q" else None) for name in names]
        x = torch.randn(count, 256, dtype=dtype, device="cuda")
        for name in names:
            assert decoder.can_fuse(name) is None
            poisoned((count, container[name].shape[0]), dtype)
        found, wanted = (which.products(factors, dtype)(x) for which in (decoder, resident))
        for name, y, other in zip(names, found, wanted, strict=True):
            assert same(y, other.cpu()), name
            exact = x.cpu().double() @ container[name].torch(torch.float32).double().T
            exact += bias.cpu().double() if name == "0.q" else 0
            assert float((y.cpu().double() - exact).norm() / exact.norm()) < 0.01, name
    decoder.check()


def damaged(path: Path, name: str) -> None:
    """Flips bits in a tensor's coded bytes."""
    with wcodec.open(path) as container:
        coded = next(segment for segment in container[name].segments if segment.role == "data")
    data = bytearray(path.read_bytes())
    for at in range(coded.offset, coded.offset + coded.length, 97):
        data[at] ^= 0x5A
    path.write_bytes(data)


@pytest.mark.parametrize("check", [True, False])
def test_damage_in_the_file(path: Path, check: bool) -> None:
    """An error of the call where bytes are compared with hashes; otherwise of `check()`, and NaN."""
    damaged(path, "embed")
    decoder = wcodec.HostDecoder(path, from_disk=True, check=check)
    ids, x = torch.arange(0, 1000, 7, device="cuda"), torch.ones(2, 256, dtype=torch.float16, device="cuda")
    calls = {
        "lookup": lambda: decoder.lookup("embed")(ids),
        "runs": lambda: decoder.decode_rows("embed", [(0, 64), (128, 1000)]),
        "products": lambda: decoder.products([("embed", None)], "float16")(x)[0],
    }
    for what, call in calls.items():
        if check:
            with pytest.raises(wcodec.CorruptError, match="embed"):
                call()
            continue
        found = call()
        with pytest.raises(wcodec.CorruptError, match="embed"):
            decoder.check()
        assert what == "runs" or found.isnan().any(), what
    # All else is sound.
    assert same(decoder.decode("1.up"), wcodec.open(path)["1.up"].torch())
    decoder.check()
