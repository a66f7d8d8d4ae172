"""Layers from codes of FP8 on a GPU: what the dequantized weights compute, wherever the codes are.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from pathlib import Path

import gpu_helpers
import pytest
import quantized_checkpoints as small
import wcodec
from gpu_helpers import graph_computes, torch

# pytest looks for fixtures in the module.
gpu = gpu_helpers.gpu


@pytest.mark.parametrize("residency", ["device", "host", "disk"])
@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 72, "intermediate_size": 99}])
def test_models_from_codes(sizes: dict[str, int], residency: str, tmp_path: Path) -> None:
    small.fp8_llama(tmp_path / "source", **sizes)
    wcodec.compress(tmp_path / "source", f"{tmp_path / 'out'}/", scheme="lossless", progress=False)
    model = wcodec.load_model(tmp_path / "out", device="cuda", residency=residency, fused=False)
    plain = wcodec.load_model(tmp_path / "out")
    wcodec.decompress_(plain)
    plain.cuda()
    for layer, other in zip(model.model.layers, plain.model.layers, strict=True):
        assert torch.equal(layer.mlp.up_proj.weight + 0, other.mlp.up_proj.weight)
    tokens = small.IDS.cuda()
    with torch.no_grad():
        want = plain(tokens).logits
        assert torch.equal(model(tokens).logits, want)
        wcodec.nn.fuse_(model)
        torch.testing.assert_close(model(tokens).logits, want, rtol=0, atol=1e-2)


def test_graphs_and_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.fp8_llama(tmp_path / "source")
    model = wcodec.load_model(tmp_path / "source", device="cuda", scheme="lossless", fused=False)
    plain = wcodec.load_model(tmp_path / "source", scheme="lossless")
    wcodec.decompress_(plain)
    plain.cuda()
    layer, other = model.model.layers[0].mlp.up_proj, plain.model.layers[0].mlp.up_proj
    graph_computes(layer, other, torch.randn(3, 64, device="cuda", dtype=torch.bfloat16))
    monkeypatch.setattr("wcodec.nn._weights.providers.SLICE_BYTES", 32 * 64 * 2)
    monkeypatch.setattr("wcodec.nn._weights.providers._TILE_ROWS", 16)
    sliced = wcodec.load_model(tmp_path / "source", device="cuda", scheme="lossless", fused=False)
    layer = sliced.model.layers[0].mlp.up_proj
    x = torch.randn(5, 64, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(layer(x), other(x))
    assert torch.equal(layer.weight + 0, other.weight)
