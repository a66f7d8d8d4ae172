"""Rows of compressed embeddings on a GPU: those of the decoded table bit for bit, however they are got at, also in CUDA
graphs.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import gc
from typing import Any

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import torch
from wcodec.nn import CompressedEmbedding
from wcodec.nn._weights import providers

# pytest looks for fixtures in the module.
gpu = gpu_helpers.gpu
DEVICE = "cuda"


def embedding_with_tails(**options: Any) -> CompressedEmbedding:
    """One that a coder makes smaller; so small a table of the usual random weights is stored raw."""
    original = torch.nn.Embedding(1000, 96)
    with torch.no_grad():
        original.weight.pow_(3)
    return CompressedEmbedding.from_embedding(original.to(DEVICE, torch.bfloat16), **options)


@pytest.mark.parametrize("way", ["lookup", "strips and slices"])
def test_rows_of_an_embedding(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = embedding_with_tails()
    for dtype in (torch.float16, torch.bfloat16):
        table = layer.to(dtype).weight
        assert torch.equal(layer(torch.tensor([7], device=DEVICE)), table[7:8]) and table.dtype == dtype
    assert layer._weights.table().lookup is not None
    if way == "lookup":
        # Nothing else is decoded.
        monkeypatch.setattr(wcodec.GpuDecoder, "decode", None)
        monkeypatch.setattr(wcodec.GpuDecoder, "decode_rows", None)
    else:
        layer._weights.table().lookup = None
        monkeypatch.setattr(providers, "SLICE_BYTES", 400 * 96 * 2)
    scattered = torch.randint(0, 1000, (3, 200), device=DEVICE)
    some = torch.randint(0, 10, (5, 50), device=DEVICE) * 99
    for ids in (scattered, scattered.int(), some, some.flip(1), some[:, :3], some[0, 0], scattered.t()):
        assert torch.equal(layer(ids), table[ids.long()])
    for bad in (-1, 1000):
        ids = scattered.clone()
        ids[2, 3] = bad
        with pytest.raises(wcodec.InputError, match=f"row {bad}"):
            layer(ids)


@pytest.mark.parametrize("way", ["lookup", "slices", "transposed"])
def test_rows_of_an_embedding_in_a_graph(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph looks up what is in its input then, and outlives the layer; rows that are not there are NaN."""
    layer = embedding_with_tails(**({"transpose": "weight"} if way == "transposed" else {}))
    table = layer.weight
    assert (layer._weights.table().lookup is None) == (not layer._weights.table().has_rows) == (way == "transposed")
    if way == "slices":
        layer._weights.table().lookup = None
        monkeypatch.setattr(providers, "SLICE_BYTES", 400 * 96 * 2)
    ids = torch.zeros(2, 70, dtype=torch.int64, device=DEVICE)
    layer(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(ids)
    del layer
    gc.collect()
    for _ in range(5):
        ids.random_(0, 1000)
        out.fill_(77)
        graph.replay()
        assert torch.equal(out, table[ids])
    ids[1, 3], ids[0, 69] = -1, 1000
    graph.replay()
    there = (ids >= 0) & (ids < 1000)
    assert torch.equal(out[there], table[ids[there]]) and out[~there].isnan().all()
