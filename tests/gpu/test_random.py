"""Random matrices, schemes, rates, tables, vectors and damage on a GPU: what is decoded is the CPU's bit for bit, and
so are rows that are looked up; products are as near to the exact ones as they should be, those of one vector are the
reference's bit for bit; what is damaged is found, and its rows are NaN.

WCODEC_CASES says how many; without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail
instead.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exact_products
import gpu_helpers
import numpy as np
import pytest
import torch.nn.functional as F
import wcodec
from gpu_helpers import torch

gpu = gpu_helpers.gpu

PARTS = 14
CASES = int(os.environ.get("WCODEC_CASES", "280"))
STRIP = 16


@dataclass
class Errors:
    """Errors of all cases, in squares relative to each case's results."""

    ours: float = 0.0
    torch: float = 0.0
    products: int = 0
    alone: int = 0
    damaged: int = 0


def some_matrix(rng: random.Random, generator: torch.Generator) -> torch.Tensor:
    rows = rng.choice((rng.randint(1, 40), rng.randint(1, 300), 16 * rng.randint(1, 40)))
    columns = rng.choice((rng.randint(1, 80), rng.randint(1, 600), 64 * rng.randint(1, 24), rng.randint(1500, 3000)))
    tensor = torch.randn((rows, columns), generator=generator) * 2.0 ** rng.randint(-9, 2)
    tensor *= 1 + rng.choice((0, 8, 30)) * (torch.rand((rows, columns), generator=generator) < 0.003)
    if rng.random() < 0.3:
        tensor[rng.randrange(rows)] = 0
    if rng.random() < 0.3:
        tensor *= torch.rand((rows, 1), generator=generator) + 1e-3
    return tensor.to(rng.choice((torch.bfloat16, torch.float16, torch.float32)))


def some_options(rng: random.Random, weights: int) -> dict[str, Any]:
    options: dict[str, Any] = {"coder": rng.choice(("huffman", "huffman", "rans"))}
    # So small a matrix has no few bits, everything counted.
    if rng.random() < 0.4 or weights < 8192:
        options.update(scheme="int8", scale=rng.choice(("row", "tensor")))
        if rng.random() < 0.2:
            options.update(scale="block", block=rng.choice((16, 32, 64, 128)))
    else:
        options.update(scheme="rate", bits=round(rng.uniform(1.6, 7.5), 2), trellis=rng.random() < 0.4)
    if options["coder"] == "huffman" and rng.random() < 0.7:
        options["table_bits"] = rng.randint(8, 12)
    if options["coder"] == "huffman" and rng.random() < 0.5:
        options["layout"] = "quad"
    # Narrow tiles make many of them in a strip, so that warps walk over several chunks each.
    if rng.random() < 0.5:
        options["tile"] = rng.choice((64, 64, 128, 256, 512))
    return options


def decoded(decoder: wcodec.GpuDecoder, entry: Any, dtype: torch.dtype) -> torch.Tensor:
    """Into memory that is full of NaN."""
    out = torch.full(entry.shape, float("nan"), dtype=dtype, device="cuda")
    decoder.decode("w", out=out)
    return out


def check_rows(decoder: wcodec.GpuDecoder, entry: Any, rng: random.Random) -> None:
    """Rows that are looked up, some of which are not there."""
    if decoder.can_look_up("w") is not None:
        return
    rows, dtype = entry.shape[0], rng.choice((torch.float32, torch.bfloat16, torch.float16))
    ids = torch.tensor([rng.randint(-1, rows) for _ in range(rng.choice((1, 5, 40)))], device="cuda")
    there = (ids >= 0) & (ids < rows)
    found = decoder.lookup("w", dtype)(ids if rng.random() < 0.5 else ids.int())
    assert gpu_helpers.same(found[there], entry.torch(dtype)[ids[there].cpu()]) and found[~there].isnan().all()


def check_products(
    decoder: wcodec.GpuDecoder,
    entry: Any,
    exact: torch.Tensor,
    steps: torch.Tensor,
    rng: random.Random,
    errors: Errors,
) -> Any:
    """Products with some vectors; the vectors, bias and results. ``steps`` are what goes into the sums besides the
    weights, for each row or for all."""
    dtype = rng.choice((torch.bfloat16, torch.float16))
    count = rng.choice((1, 1, 1, rng.randint(2, 8), rng.randint(9, 16)))
    # Results that f16 holds, and that are not too small for it.
    size = float(exact.norm(dim=1).max()) or 1.0
    x = (torch.randn((count, exact.shape[1]), device="cuda") / min(max(size, 1e-3), 1e3)).to(dtype)
    bias = torch.randn(exact.shape[0], device="cuda").to(dtype) if rng.random() < 0.4 else None
    products = decoder.products([("w", bias)], dtype)
    torch.full((count * exact.shape[0] + 64,), float("nan"), dtype=dtype, device="cuda")
    (y,) = products(x)
    added = 0 if bias is None else bias.double()
    want = x.double() @ exact.T + added
    # Half a unit of the result, what is below f16's normal numbers, and f32's rounding of running sums: tensor cores
    # add 8 or 16 terms at a time, and cut off.
    size = x.double().abs() @ exact.abs().T + (0 if bias is None else bias.double().abs())
    # Half a step of each element goes in and out again if levels are the symbols themselves.
    size += x.double().abs().sum(dim=1, keepdim=True) * steps.reshape(1, -1)
    unit = torch.finfo(dtype).eps
    least = torch.finfo(dtype).tiny * unit
    bound = want.abs() * unit * 0.502 + least * 0.502 + size * (exact.shape[1] // 8 + 8) * 2.0**-23
    assert ((y.double() - want).abs() <= bound).all()
    alone = exact_products.one_vector(
        entry, x[0].float().cpu().numpy(), None if bias is None else bias.float().cpu().numpy()
    )
    if alone is not None:
        assert gpu_helpers.same(products(x[:1])[0][0], torch.from_numpy(alone).to(dtype))
        errors.alone += 1
    plain = F.linear(x, exact.to(dtype), bias).double()
    if float(want.norm()) > 0 and plain.isfinite().all():
        errors.ours += float(((y.double() - want).norm() / want.norm()) ** 2)
        errors.torch += float(((plain - want).norm() / want.norm()) ** 2)
    errors.products += 1
    assert gpu_helpers.same(products(x)[0], y.cpu())
    return products, x, y


def check_damage(data: bytes, entry: Any, sound: Any, rng: random.Random, errors: Errors) -> None:
    """Some coded bytes are others: what a decoder finds is NaN in the products, in whole strips of rows and in no
    other."""
    products, x, y = sound
    segments = [s for s in entry.segments if s.role == "data" and s.length]
    if not segments:
        return
    segment = rng.choice(segments)
    broken = bytearray(data)
    begin = segment.offset + rng.randrange(segment.length)
    for place in range(begin, min(begin + rng.choice((1, 8, 64)), segment.offset + segment.length)):
        broken[place] ^= rng.randint(1, 255)
    decoder = wcodec.GpuDecoder(bytes(broken), check=False, threads=1)
    bias = products._biases[0]
    (z,) = decoder.products([("w", bias)], y.dtype)(x)
    lost = z.isnan()
    try:
        decoder.check()
    except wcodec.CorruptError as error:
        assert "'w'" in str(error)
        errors.damaged += 1
        assert lost.any()
    else:
        # Other codes that are codes, too.
        assert not lost.any()
    assert (lost == lost[:1]).all()
    for begin in range(0, lost.shape[1], STRIP):
        part = lost[0, begin : begin + STRIP]
        assert part.all() or not part.any()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_matrices(part: int, tmp_path: Path) -> None:
    seed = gpu_helpers.seed() + part
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    errors, path = Errors(), tmp_path / "w.wcodec"
    for case in range(part, CASES, PARTS):
        tensor = some_matrix(rng, generator)
        options = some_options(rng, tensor.numel())
        said = f"seed {seed}, case {case}: {list(tensor.shape)} {tensor.dtype} {options}"
        try:
            wcodec.compress({"w": tensor}, path, progress=False, overwrite=True, threads=1, **options)
        except wcodec.InputError as error:
            # A rate that so small a matrix cannot have.
            assert "bits" in str(error), said
            continue
        data = path.read_bytes()
        try:
            with wcodec.open(data) as opened:
                entry = opened["w"]
                decoder = wcodec.GpuDecoder(data, threads=1)
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    assert gpu_helpers.same(decoded(decoder, entry, dtype), entry.torch(dtype)), dtype
                check_rows(decoder, entry, rng)
                if decoder.can_fuse("w") is None:
                    exact = decoder.decode("w", torch.float32).double()
                    # Levels of scheme rate are a half more than symbols.
                    steps = entry.scales().max(axis=-1) if options["scheme"] == "int8" else np.zeros(1)
                    sound = check_products(decoder, entry, exact, torch.as_tensor(steps, device="cuda"), rng, errors)
                    decoder.check()
                    if rng.random() < 0.3:
                        check_damage(data, entry, sound, rng, errors)
                decoder.check()
        except BaseException as error:
            raise AssertionError(said) from error
    assert errors.ours <= 1.05**2 * errors.torch
    assert errors.products >= CASES // PARTS // 3
    assert errors.alone >= errors.products // 2
    if CASES >= 50 * PARTS:
        assert errors.damaged > 0
