"""Steps of rows by what an error of each output costs."""

from __future__ import annotations

import math

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import collect, llama  # noqa: E402
from wcodec._calibrate import encode as _encode  # noqa: E402
from wcodec._calibrate import rows  # noqa: E402


def test_rows_that_cost_more_get_finer_steps() -> None:
    rms, costs = torch.tensor([1.0, 2.0, 1.0, 0.0]), torch.tensor([4.0, 1.0, 1.0, 1.0])
    steps = rows.steps(rms, costs, 1e12, 0.0)
    # A row of zeros stays one.
    assert float(steps[3]) == 0 and torch.equal(rows.steps(rms, torch.zeros(4), 1e12, 1.0), rms)
    # The geometric mean of both recipes, and the same mean over the rows as without costs.
    assert torch.allclose(steps[:3] / steps[2], torch.tensor([1 / math.sqrt(2), math.sqrt(2), 1.0]))
    assert float(steps[:3].log().sum()) == pytest.approx(math.log(2), abs=1e-5)
    # Few tokens say little.
    assert torch.allclose(rows.steps(rms, costs, 0, 0.0), rms)


def test_the_matrix_gets_what_its_rows_save() -> None:
    rms, costs = torch.ones(64), torch.logspace(-1, 1, 64)
    steps = rows.steps(rms, costs, 1e12, 1.0)
    # With the power of the quadratic loss the product of steps and the root of the cost is what it was.
    cost = float((costs * steps.square()).sum() / (costs * rms.square()).sum())
    before = float((costs * rows.steps(rms, costs, 1e12, 0.0).square()).sum() / costs.sum())
    assert before < 1 and cost == pytest.approx(1, rel=1e-5)
    # Outputs that no token wanted get steps that are coarser by a bounded factor.
    costs[:32] = 0
    spread = rows.steps(rms, costs, 1e12, 0.0)
    assert 1 < float(spread.max() / spread.min()) < 10


@pytest.mark.parametrize("cost", [3e-43, 9e36])
def test_extreme_costs_are_costs(cost: float) -> None:
    rms, costs = torch.tensor([1e18, 1.0, 1e-3]), torch.tensor([cost, 0.0, 0.0])
    steps = rows.steps(rms, costs, 1e12, 1.0)
    assert bool(torch.isfinite(steps).all()) and bool((steps > 0).all())


def test_encoding_follows_costs_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    statistics = collect(model)
    weights = {name: p.detach() for name, p in model.named_parameters() if name in statistics.units}
    with_rows = wcodec.compress_to_bytes(weights, bits=4.0, calibrate=statistics)[0]
    monkeypatch.setattr(_encode, "costs_of_rows", lambda statistics, name: None)
    without = wcodec.compress_to_bytes(weights, bits=4.0, calibrate=statistics)[0]
    assert with_rows != without
    # The bits that were asked for are met either way.
    assert abs(len(with_rows) - len(without)) < 0.02 * len(without)
