"""Scheme ``rate`` on a GPU: what it decodes is what the CPU does, bit for bit, with and without a trellis.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from pathlib import Path

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import graph_computes, torch

# pytest looks for fixtures in the module.
gpu, coder = gpu_helpers.gpu, gpu_helpers.coder

MODEL = Path(__file__).parents[1] / "data" / "doc-llama-3m"
SHAPES = {
    "w": (150, 192),
    "large": (1040, 2048),
    "wide": (48, 5632),
    "odd": (333, 130),
    "narrow": (40, 20),
    "turned": (192, 320),
    "stack": (3, 40, 128),
    "kernel": (64, 3, 3, 3),
}


def weights(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of different sizes, with tails, and a row of zeros."""
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator) * torch.rand(
        (shape[0], *[1] * (len(shape) - 1)), generator=generator
    )
    tensor = tensor * 0.05 * (1 + 8 * (torch.rand(shape, generator=generator) < 0.002))
    tensor[1] = 0
    return tensor.to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """To compare negative zeros, too."""
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32), ids=str)
@pytest.mark.parametrize(("number", "trellis"), ((2.0, False), (3.0, True), (4.0, False), (4.0, True), (6.0, True)))
def test_tensors_are_those_of_the_cpu(
    dtype: torch.dtype, coder: str, number: float, trellis: bool, tmp_path: Path
) -> None:
    # Coders without tiles have none; nothing is skipped where there is a GPU.
    trellis = trellis and coder in ("rans", "huffman")
    source = {name: weights(shape, seed, dtype) for seed, (name, shape) in enumerate(SHAPES.items())}
    path = tmp_path / "x.wcodec"
    # Steps and not bits: the small ones of these have no so few bits.
    step = 2.05 - number - trellis
    options = wcodec._core.options.encode_options(
        bits=number, trellis=trellis, step=2.0**step, coder=coder, transpose="turned"
    )
    from wcodec import _native
    from wcodec._file import sources

    _native.encode(sources.native_source(source), str(path), options, None)
    with wcodec.open(path) as container:
        decoder = wcodec.GpuDecoder(container)
        for name, tensor in source.items():
            for wanted in (dtype, torch.bfloat16, torch.float32):
                want = container[name].torch(wanted)
                place = torch.full(tensor.shape, float("nan"), device="cuda", dtype=wanted)
                decoder.decode(name, out=place)
                assert torch.equal(bits(place.cpu()), bits(want)), (name, wanted)
        whole = container["large"].torch(dtype)
        for begin, end in ((0, 16), (16, 48), (1024, 1040)):
            out = decoder.decode("large", rows=(begin, end), dtype=dtype)
            assert torch.equal(bits(out.cpu()), bits(whole[begin:end])), (begin, end)
        decoder.check()


@pytest.mark.parametrize("residency", ("device", "host"))
@pytest.mark.parametrize("way", ({"coder": "rans"}, {"coder": "huffman"}, {"coder": "huffman", "layout": "quad"}))
@pytest.mark.parametrize("trellis", (False, True))
def test_models_compute_alike_everywhere(way: dict[str, str], residency: str, trellis: bool) -> None:
    transformers = pytest.importorskip("transformers")

    def loaded() -> torch.nn.Module:
        return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()

    options = {"bits": 4.0, "trellis": trellis, "calibrate": False, **way, "progress": False}
    model, plain = loaded(), loaded()
    wcodec.compress_(model, residency=residency, fused=False, **options)
    # The decoded weights in ordinary layers.
    wcodec.compress_(plain, **options)
    wcodec.decompress_(plain)
    model, plain = model.cuda(), plain.cuda()
    tokens = torch.arange(1, 60, device="cuda")[None]
    assert torch.equal(model(tokens).logits, plain(tokens).logits)
    text = plain.generate(tokens, max_new_tokens=16, do_sample=False)
    assert torch.equal(model.generate(tokens, max_new_tokens=16, do_sample=False), text)
    if residency == "host":
        return  # what comes from the host's memory is no part of a graph
    layer, ordinary = model.model.layers[0].mlp.up_proj, plain.model.layers[0].mlp.up_proj
    graph_computes(layer, ordinary, torch.randn(3, 192, device="cuda", dtype=torch.bfloat16))
