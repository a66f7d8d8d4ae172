"""Scheme ``rate`` with factors of columns, in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec

Array = Any


def _weights(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _factors(count: int) -> Array:
    return np.exp(np.sin(np.arange(count))).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "transposed", "count", "like"),
    [
        ((32, 200), False, 200, (1, 200)),
        ((3, 16, 96), False, 288, (3, 1, 96)),
        ((96, 32), True, 96, (96, 1)),
        ((64, 4, 3, 3), False, 36, (1, 4, 3, 3)),
    ],
)
@pytest.mark.parametrize("trellis", [False, True])
def test_values_are_levels_scales_and_factors(
    shape: tuple[int, ...], transposed: bool, count: int, like: tuple[int, ...], trellis: bool
) -> None:
    weights, factors = _weights(*shape), _factors(count)
    more = {"transpose": "w"} if transposed else {}
    data, report = wcodec.compress_to_bytes(
        {"w": weights}, step=0.2, trellis=trellis, scheme="rate", columns={"w": factors}, **more
    )
    assert report.tensors[0].columns
    with wcodec.open(data) as container:
        entry = container["w"]
        assert (entry.scheme, entry.scale, entry.columns) == ("rate", "row", True)
        found = entry.column_factors()
        assert found is not None and found.shape == like and found.dtype == np.float32
        each = factors.reshape(entry.count, -1)
        mean = np.exp(np.log(each.astype(np.float64)).mean(1, keepdims=True))
        assert np.allclose(found.reshape(each.shape), each / mean, rtol=2**-8)
        values = (entry.symbols() + np.float32(0.5)) * entry.scales() * found
        assert np.array_equal(entry.numpy(), values)
        assert entry.error is not None and wcodec.verify(data, against={"w": weights}).ok
        assert np.linalg.norm(values - weights) / np.linalg.norm(weights) <= entry.error
        assert entry.to_dict()["columns"] is True


def test_files_count_factors_and_say_so(tmp_path: Path) -> None:
    weights = {"a": _weights(128, 512), "b": _weights(128, 512, 1).reshape(128, 512)}
    path = tmp_path / "a.wcodec"
    report = wcodec.compress(weights, path, bits=4, columns={"a": _factors(512)}, progress=False)
    assert report.rate is not None and abs(report.rate.bits_per_weight / 4 - 1) < 0.005
    with wcodec.open(path) as container:
        assert container.version == (1, 3)
        assert [container[n].columns for n in "ab"] == [True, False]
        assert container["b"].column_factors() is None
        assert "rate/row/column" in str(container) or "rate/row/column" in repr(container) + container._repr_html_()


def test_factors_of_every_kind_are_taken() -> None:
    torch = pytest.importorskip("torch")
    weights, factors = {"w": _weights(32, 200)}, _factors(200)
    kinds = [factors, factors.astype(np.float64), factors.tolist(), torch.tensor(factors), factors[None]]
    files = [wcodec.compress_to_bytes(weights, step=0.3, scheme="rate", columns={"w": k})[0] for k in kinds]
    assert all(file == files[0] for file in files)
    half = torch.tensor(factors, dtype=torch.bfloat16)
    other = wcodec.compress_to_bytes(weights, step=0.3, scheme="rate", columns={"w": half})[0]
    with wcodec.open(other) as container:
        assert container["w"].columns


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([1.0], "columns must map names of tensors to arrays"),
        ({"w": "x"}, "the factors of the columns of 'w' must be numbers"),
        ({"w": [1.0, 2.0]}, "2 factors for 1 matrices of 200 columns"),
        ({"w": np.zeros(200)}, "a factor of column 0 that is not above 0"),
        ({"v": np.ones(200)}, "'v', which is no tensor of the source"),
    ],
)
def test_what_are_no_factors_is_refused(columns: Any, message: str) -> None:
    with pytest.raises(wcodec.InputError, match="I311") as caught:
        wcodec.compress_to_bytes({"w": _weights(32, 200)}, bits=4, columns=columns)
    assert message in str(caught.value)


def test_a_budget_has_no_factors(tmp_path: Path) -> None:
    with pytest.raises(wcodec.InputError, match="leave columns out"):
        wcodec.compress({"w": _weights(32, 200)}, tmp_path / "a.wcodec", budget="4 bits", columns={"w": _factors(200)})
