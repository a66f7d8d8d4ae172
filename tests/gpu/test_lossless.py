"""Scheme ``lossless`` on a GPU: tensors and models bit for bit those of the source.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from pathlib import Path

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import graph_computes, torch

from tests.api.test_lossless import DTYPES, MODEL, bits, weights

# pytest looks for fixtures in the module.
gpu, coder = gpu_helpers.gpu, gpu_helpers.coder


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_are_the_source(dtype: torch.dtype, coder: str, tmp_path: Path) -> None:
    source = {
        "w": weights(dtype, (150, 192), 1),
        "large": weights(dtype, (1040, 2048), 2),
        "odd": weights(dtype, (333, 130), 3),
        "turned": weights(dtype, (192, 320), 4),
        "stack": weights(dtype, (3, 40, 128), 5),
        "norm": weights(dtype, (192,), 6),
    }
    if dtype == torch.float32:
        source["narrow"] = weights(torch.bfloat16, (256, 192), 7).float()
    path = tmp_path / "x.wcodec"
    wcodec.compress(source, path, scheme="lossless", coder=coder, transpose="turned")
    with wcodec.open(path) as container:
        for name, tensor in source.items():
            out = container[name].torch(device="cuda")
            assert out.dtype == tensor.dtype and torch.equal(bits(out.cpu()), bits(tensor)), name
        decoder = wcodec.GpuDecoder(container)
        for begin, end in ((0, 16), (16, 48), (1024, 1040)):
            out = decoder.decode("large", rows=(begin, end))
            assert torch.equal(bits(out.cpu()), bits(source["large"][begin:end])), (begin, end)
        # Earlier content of the memory is of no account.
        for name, tensor in source.items():
            place = torch.full(tensor.shape, 7.0, device="cuda").to(tensor.dtype)
            decoder.decode(name, out=place)
            assert torch.equal(bits(place.cpu()), bits(tensor)), name
        decoder.check()


@pytest.mark.parametrize("residency", ("device", "host"))
@pytest.mark.parametrize("coder", ("rans", "huffman"))
def test_models_compute_what_the_original_does(coder: str, residency: str) -> None:
    transformers = pytest.importorskip("transformers")
    original = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).cuda()
    tokens = torch.arange(1, 60, device="cuda")[None]
    want = original(tokens).logits
    text = original.generate(tokens, max_new_tokens=16, do_sample=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).cuda()
    wcodec.compress_(model, scheme="lossless", coder=coder, residency=residency, progress=False)
    assert torch.equal(model(tokens).logits, want)
    assert torch.equal(model.generate(tokens, max_new_tokens=16, do_sample=False), text)
    if residency == "host":
        return  # what comes from the host's memory is no part of a graph
    layer, plain = model.model.layers[0].mlp.up_proj, original.model.layers[0].mlp.up_proj
    graph_computes(layer, plain, torch.randn(3, 192, device="cuda", dtype=torch.bfloat16))
