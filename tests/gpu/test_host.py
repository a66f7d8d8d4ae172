"""Prepared batches, rows, and decoding from the host's memory: on a GPU, bit for bit what the CPU decodes.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import gpu_helpers
import numpy as np
import pytest
import wcodec
from gpu_helpers import same, torch

# pytest looks for fixtures in the module.
gpu, coder = gpu_helpers.gpu, gpu_helpers.coder


def save(path: Path, rng: np.random.Generator, **options: Any) -> Path:
    """Blocks of matrices, as a model has them, and other things."""
    tensors = {"embed": rng.standard_t(6, (1000, 256)).astype(np.float32)}
    for i in range(8):
        tensors[f"{i}.q"] = rng.standard_t(6, (256, 256)).astype(np.float16)
        tensors[f"{i}.up"] = rng.standard_t(6, (688, 256)).astype(np.float16)
        tensors[f"{i}.norm"] = rng.standard_normal(256).astype(np.float16)
    tensors["stack"] = rng.standard_t(6, (5, 31, 128)).astype(np.float32)
    tensors["turned"] = rng.standard_t(6, (200, 65)).astype(np.float32)
    tensors["empty"] = np.zeros((0, 12), np.float32)
    tensors["ids"] = np.arange(1000, dtype=np.int64)
    tensors["head"] = tensors["embed"]
    wcodec.save_file(tensors, path, transpose="turned", **options)
    return path


@pytest.fixture
def path(coder: str, tmp_path: Path, rng: np.random.Generator) -> Path:
    return save(tmp_path / f"{coder}.wcodec", rng, coder=coder)


DECODERS = (wcodec.GpuDecoder, wcodec.HostDecoder)


def blocks_of(decoder: Any, container: wcodec.Container) -> list[tuple[Any, dict[str, Any]]]:
    """A batch for each block, and its outputs."""
    blocks = []
    for i in range(8):
        outs = {
            f"{i}.{part}": torch.empty(container[f"{i}.{part}"].shape, dtype=torch.bfloat16, device="cuda")
            for part in ("q", "up", "norm")
        }
        blocks.append((decoder.prepare(list(outs.items())), outs))
    return blocks


def correct(outs: dict[str, Any], container: wcodec.Container) -> bool:
    return all(same(out, container[name].torch(out.dtype)) for name, out in outs.items())


def run_ahead(decoder: Any, container: wcodec.Container, ahead: int) -> None:
    """Three tokens through all blocks, of which so many are prefetched."""
    blocks = blocks_of(decoder, container)
    sums = []
    for token in range(3):
        for i, (batch, outs) in enumerate(blocks):
            for out in outs.values():
                out.fill_(token)
            batch.launch()
            for later, _ in blocks[i + 1 : i + 1 + ahead]:
                later.prefetch()
            # Work between: decoding must not come before it, nor copies wait for it.
            sums.append(sum(out.float().sum() for out in outs.values()))
    decoder.check()
    assert all(correct(outs, container) for _, outs in blocks)
    assert all(bool(sums[i] == sums[i + 8]) for i in range(16))


def run_in_any_order(decoder: Any, container: wcodec.Container, choose: random.Random) -> None:
    """Prefetched twice, never, or for nothing; launched out of order, again, and in several streams."""
    blocks = blocks_of(decoder, container)
    large = torch.empty(1000, 256, device="cuda")
    blocks.append((decoder.prepare([("embed", large)]), {"embed": large}))
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(30):
        for batch, _ in choose.sample(blocks, choose.randrange(6)):
            batch.prefetch()
        for batch, outs in choose.sample(blocks, choose.randrange(1, 5)):
            with torch.cuda.stream(streams[choose.randrange(3)]):
                for out in outs.values():
                    out.fill_(3)
                batch.launch()
                assert correct(outs, container)
        if choose.randrange(3) == 0:
            # Decoded at once, between batches that hold slots.
            assert same(decoder.decode("5.up"), container["5.up"].torch())
    torch.cuda.synchronize()
    decoder.check()


def drop_batches(decoder: Any, container: wcodec.Container) -> None:
    """Batches that were prefetched go, and one of them is launched."""
    for _ in range(10):
        blocks = blocks_of(decoder, container)
        for batch, _ in blocks:
            batch.prefetch()
        batch, outs = blocks[6]
        del blocks
        batch.launch()
        assert correct(outs, container)


@pytest.mark.parametrize("decoder_of", DECODERS)
def test_rows(path: Path, decoder_of: Any) -> None:
    container, decoder = wcodec.open(path), decoder_of(path)
    for name, ranges in {
        "embed": [(0, 16), (16, 32), (0, 1000), (992, 1000), (480, 1000), (32, 32)],
        "3.up": [(0, 672), (672, 688)],
        "stack": [(0, 1), (2, 5), (0, 5)],
        "turned": [(0, 200)],
        "ids": [(0, 1000)],
        "empty": [(0, 0)],
    }.items():
        entry = container[name]
        for dtype in (torch.float32, torch.bfloat16, torch.int8) if entry.scheme == "int8" else (None,):
            for begin, end in ranges:
                expected = entry.torch(dtype)[begin:end]
                assert same(decoder.decode(name, dtype, rows=(begin, end)), expected), (name, dtype, begin, end)
                out = torch.full(expected.shape, 77, dtype=expected.dtype, device="cuda")
                assert decoder.decode(name, out=out, rows=(begin, end)) is out and same(out, expected)
    decoder.check()
    for name, rows in (("embed", (0, 15)), ("embed", (3, 16)), ("embed", (0, 1001)), ("turned", (0, 16))):
        with pytest.raises(wcodec.InputError) as caught:
            decoder.decode(name, rows=rows)
        assert caught.value.tensor == name


@pytest.mark.parametrize("decoder_of", DECODERS)
def test_prepared_batches(path: Path, decoder_of: Any) -> None:
    container, decoder = wcodec.open(path), decoder_of(path)
    blocks = blocks_of(decoder, container)
    for _ in range(3):
        for batch, outs in blocks:
            for out in outs.values():
                out.fill_(7)
            batch.launch()
        decoder.check()
        assert all(correct(outs, container) for _, outs in blocks)
    part = torch.zeros(512, 256, device="cuda")
    batch = decoder.prepare([("embed", part[:256], (0, 256)), ("head", part[256:], (256, 512))])
    batch.launch()
    assert same(part, container["embed"].torch()[:512])
    decoder.prepare([]).launch()
    # The batch keeps all that it needs.
    del decoder
    gc.collect()
    part.zero_()
    batch.launch()
    assert same(part, container["embed"].torch()[:512])


@pytest.mark.parametrize("ring", [0, 1 << 20, None])
@pytest.mark.parametrize("ahead", [0, 1, 2, 3, 8])
def test_prefetch(path: Path, ring: int | None, ahead: int) -> None:
    container, decoder = wcodec.open(path), wcodec.HostDecoder(path, ring=ring)
    assert decoder.host_bytes > 0 and decoder.device_bytes > 0 and "HostDecoder" in repr(decoder)
    assert all(batch.slots >= 1 for batch, _ in blocks_of(decoder, container))
    run_ahead(decoder, container, ahead)


def test_any_order(path: Path) -> None:
    run_in_any_order(wcodec.HostDecoder(path, ring=1 << 20), wcodec.open(path), random.Random(5))


def test_batches_that_are_dropped(path: Path) -> None:
    container = wcodec.open(path)
    drop_batches(wcodec.HostDecoder(path, ring=0), container)
    for _ in range(5):
        dropped = wcodec.HostDecoder(path)
        out = torch.empty(1000, 256, device="cuda")
        torch.cuda._sleep(20_000_000)
        dropped.decode("embed", out=out)
        dropped.prepare([("stack", torch.empty(5, 31, 128, device="cuda"))]).prefetch()
        del dropped
        assert same(out, container["embed"].torch())


def test_nothing_waits_on_the_host(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.HostDecoder(path)
    blocks = blocks_of(decoder, container)
    for batch, _ in blocks:
        batch.launch()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]
    torch.cuda._sleep(500_000_000)
    busy = torch.cuda.Event()
    busy.record()
    for batch, _ in blocks:
        batch.prefetch()
        batch.launch()
    assert not busy.query()
    torch.cuda.synchronize()
    assert (torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]) == before
    assert all(correct(outs, container) for _, outs in blocks)


def test_cuda_graph_of_a_batch(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    blocks = blocks_of(decoder, container)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for batch, _ in blocks:
            batch.launch()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for batch, _ in blocks:
            batch.prefetch()
            batch.launch()
    for _ in range(3):
        for _, outs in blocks:
            for out in outs.values():
                out.zero_()
        graph.replay()
        decoder.check()
        assert all(correct(outs, container) for _, outs in blocks)


def test_graphs_cannot_hold_copies(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    decoder = wcodec.HostDecoder(path)
    out = torch.zeros(1000, 256, device="cuda")
    batch = decoder.prepare([("embed", out)])
    batch.launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        other = out + 1
        with pytest.raises(wcodec.InputError, match="CUDA graph"):
            batch.launch()
    graph.replay()
    batch.launch()
    decoder.check()
    assert same(out, wcodec.open(path)["embed"].torch()) and other.is_cuda


def test_damage_that_only_the_kernels_see(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    segment = next(s for s in wcodec.open(path)["3.up"].segments if s.role == "data")
    data = bytearray(path.read_bytes())
    for i in range(segment.offset, segment.offset + segment.length, 7):
        data[i] ^= 0x5A
    path.write_bytes(data)
    with pytest.raises(wcodec.CorruptError):
        wcodec.HostDecoder(path)
    decoder = wcodec.HostDecoder(path, check=False)
    decoder.decode("3.up")
    with pytest.raises(wcodec.CorruptError) as caught:
        decoder.check()
    assert caught.value.tensor == "3.up" and caught.value.file == str(path)
    assert same(decoder.decode("2.up"), wcodec.open(path)["2.up"].torch())
    decoder.check()


def test_memory(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    small, large = wcodec.HostDecoder(path, ring=0), wcodec.GpuDecoder(path)
    stored = sum(t.stored_bytes for t in wcodec.open(path).stored)
    assert small.host_bytes >= stored and small.host_bytes < stored * 1.2
    assert large.device_bytes > stored * 0.9
    largest = max(sum(s.length for s in t.segments if s.role != "table") for t in wcodec.open(path).stored)

    def slot(ring: int) -> float:
        # Tables and the like are the same; the rest is a ring of four slots.
        decoder = wcodec.HostDecoder(path, ring=ring)
        return (decoder.device_bytes - (large.device_bytes - decoder.host_bytes)) / 4

    # Sixteen rows of each tensor fit a slot at least, and more where it may take more.
    assert 0 < slot(0) < largest / 4
    assert slot(4 * largest) == largest
