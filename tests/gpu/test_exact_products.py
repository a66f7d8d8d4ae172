"""The reference of one vector's products, itself: near what float64 gives, and each step what single.h says of it."""

from __future__ import annotations

import exact_products
import numpy as np
import pytest
import wcodec

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("size", (1e-30, 1e-3, 1.0, 1e4, 1e30))
def test_digits_are_what_is_left_of_an_element(size: float) -> None:
    x = (np.random.default_rng(1).standard_normal(300) * size).astype(np.float32)
    power = exact_products.power_of(np.abs(x).max())
    found = exact_products.digits(x, power)
    assert (np.abs(found) <= 128).all()
    again = (found[0] / 128 + found[1] + 256.0 * found[2] + 65536.0 * found[3]) * 2.0**-power
    # Multiples of 2^-28 of a power of two above the largest.
    assert np.abs(again - x).max() <= np.abs(x).max() * 2.0**-27
    assert np.abs(found[1] + 256 * found[2] + 65536 * found[3]).max() <= 2**21


@pytest.mark.parametrize("options", ({"scheme": "int8"}, {"scheme": "int8", "scale": "tensor"}, {"bits": 4.0}))
@pytest.mark.parametrize("layout", ("pair", "quad"))
def test_products_are_near_those_of_float64(layout: str, options: dict[str, object]) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn((160, 1400), generator=generator).to(torch.bfloat16)
    data, _ = wcodec.compress_to_bytes({"w": weight}, coder="huffman", layout=layout, tile=64, **options)
    with wcodec.open(data) as stored:
        entry = stored["w"]
        x = torch.randn(1400, generator=generator).numpy()
        bias = torch.randn(160, generator=generator).numpy()
        want = entry.torch(torch.float32).double().numpy() @ x.astype(np.float64) + bias
        found = exact_products.one_vector(entry, x, bias)
    assert found is not None and found.dtype == np.float32
    size = np.abs(want).max()
    assert np.abs(found - want).max() <= 2.0**-20 * size


def test_rows_with_several_scales_have_none() -> None:
    weight = torch.randn((48, 4096), generator=torch.Generator().manual_seed(3))
    data, _ = wcodec.compress_to_bytes({"w": weight}, scheme="int8", scale="block", block=64, coder="huffman")
    with wcodec.open(data) as stored:
        assert exact_products.one_vector(stored["w"], np.ones(4096, np.float32)) is None
