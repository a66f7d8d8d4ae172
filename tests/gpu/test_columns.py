"""Factors of columns on a GPU: values are the CPU's, bit for bit, and products are those of vectors times the factors.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exact_products
import gpu_helpers
import pytest
import wcodec
import wcodec.nn
from gpu_helpers import torch
from wcodec._file import sources

# pytest looks for fixtures in the module.
gpu, coder = gpu_helpers.gpu, gpu_helpers.coder

SHAPES = {
    "w": (150, 192),
    "large": (1040, 2048),
    "wide": (48, 5632),
    "odd": (333, 130),
    "narrow": (40, 20),
    "turned": (192, 320),
    "stack": (3, 40, 128),
}
DTYPES = (torch.bfloat16, torch.float16)
WAYS: dict[str, dict[str, Any]] = {
    "huffman": {"coder": "huffman", "layout": "pair"},
    "quad": {"coder": "huffman", "layout": "quad"},
    "rans": {"coder": "rans"},
    "narrow": {"coder": "huffman", "layout": "pair", "tile": 64},
}


def factors(shape: tuple[int, ...], generator: torch.Generator, turned: bool = False) -> Any:
    """Some that differ by tens, as those of real models do."""
    count = shape[0] if turned else shape[-1] * (shape[0] if len(shape) == 3 else 1)
    return (torch.randn(count, generator=generator) * 1.2).exp().numpy()


def made(
    path: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, seed: int, **options: Any
) -> dict[str, torch.Tensor]:
    """Encodes random matrices of scheme `rate` with factors of columns."""
    generator = torch.Generator().manual_seed(seed)
    tensors, columns = {}, {}
    for name, shape in shapes.items():
        weights = torch.randn(shape, generator=generator) * 0.05
        weights *= 1 + 8 * (torch.rand(shape, generator=generator) < 0.002)
        weights[1] = 0
        tensors[name] = weights.to(dtype)
        columns[name] = factors(shape, generator, turned=name == "turned")
    # Steps and not bits: the small ones of these, and coders that store a byte for each symbol, have no so few bits.
    given = {"bits": 4.0, "step": 2.0**-1.95, "columns": columns, **options}
    if "turned" in shapes:
        given["transpose"] = "turned"
    native = wcodec._core.options.encode_options(**given)
    wcodec._native.encode(sources.native_source(tensors), str(path), native, None)
    return tensors


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """To compare negative zeros, too."""
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("trellis", (False, True))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32), ids=str)
def test_values_are_those_of_the_cpu(dtype: torch.dtype, coder: str, trellis: bool, tmp_path: Path) -> None:
    trellis = trellis and coder in ("rans", "huffman")
    made(tmp_path / "x.wcodec", SHAPES, dtype, gpu_helpers.seed(), coder=coder, trellis=trellis)
    decoder, stored = wcodec.GpuDecoder(tmp_path / "x.wcodec"), wcodec.open(tmp_path / "x.wcodec")
    for name in SHAPES:
        assert stored[name].column_factors() is not None
        for wanted in (torch.float32, torch.bfloat16, torch.float16):
            torch.full((1 << 22,), float("nan"), dtype=wanted, device="cuda")
            here, there = decoder.decode(name, wanted), stored[name].torch(wanted)
            assert torch.equal(bits(here.cpu()), bits(there)), (name, wanted)
    decoder.check()
    stored.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("trellis", (False, True))
def test_products_are_those_of_vectors_times_factors(way: str, trellis: bool, tmp_path: Path) -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if len(shape) == 2 and name != "turned"}
    shapes["many"] = (4096, 1024)
    made(tmp_path / "x.wcodec", shapes, torch.bfloat16, gpu_helpers.seed(), trellis=trellis, **WAYS[way])
    decoder, stored = wcodec.GpuDecoder(tmp_path / "x.wcodec"), wcodec.open(tmp_path / "x.wcodec")
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    taken = 0
    for name, shape in shapes.items():
        if decoder.can_fuse(name) is not None:
            continue
        taken += 1
        of_columns = torch.from_numpy(stored[name].column_factors()).reshape(-1).cuda()
        # Levels times scales have 16 bits: they are what values divided by their factors are, exactly.
        plain = decoder.decode(name, torch.float32).double() / of_columns.double()
        for dtype in DTYPES:
            products = decoder.products([(name, None)], dtype)
            for count in (n for n in (1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128) if n <= products.most):
                x = torch.randn((count, shape[1]), generator=generator).to("cuda", dtype)
                scaled = (x.float() * of_columns).to(dtype)
                torch.full((count * shape[0],), float("nan"), dtype=dtype, device="cuda")
                (y,) = products(x)
                exact = scaled.double() @ plain.T
                distance = float((y.double() - exact).norm() / exact.norm())
                assert distance < (2**-8 if dtype == torch.bfloat16 else 2**-10), (name, dtype, count, distance)
                (one,) = products(x[-1:])
                reference = exact_products.one_vector(stored[name], scaled[-1].float().cpu().numpy(), None)
                assert reference is not None
                assert gpu_helpers.same(one[0], torch.from_numpy(reference).to(dtype)), (name, dtype)
    decoder.check()
    stored.close()
    assert taken >= 3


def test_rows_that_are_looked_up(tmp_path: Path) -> None:
    made(tmp_path / "x.wcodec", {"table": (999, 320)}, torch.bfloat16, 5, coder="huffman")
    stored = wcodec.open(tmp_path / "x.wcodec")
    ids = torch.randint(0, 999, (70,), generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, *DTYPES):
        rows = wcodec.GpuDecoder(tmp_path / "x.wcodec").lookup("table", dtype)(ids.cuda())
        assert torch.equal(bits(rows.cpu()), bits(stored["table"].torch(dtype)[ids]))
    stored.close()


def test_slices_and_layers(tmp_path: Path) -> None:
    made(tmp_path / "x.wcodec", {"weight": (1024, 512)}, torch.bfloat16, 6)
    decoder, stored = wcodec.GpuDecoder(tmp_path / "x.wcodec"), wcodec.open(tmp_path / "x.wcodec")
    whole = stored["weight"].torch(torch.bfloat16)
    part = torch.full((480, 512), float("nan"), dtype=torch.bfloat16, device="cuda")
    decoder.prepare([("weight", part, (160, 640))]).launch()
    assert torch.equal(bits(part.cpu()), bits(whole[160:640]))
    layer = wcodec.nn.CompressedLinear.from_linear(torch.nn.Linear(512, 1024, bias=False).cuda(), bits=4.0)
    assert layer(torch.ones((2, 512), device="cuda")).shape == (2, 1024)
    stored.close()
