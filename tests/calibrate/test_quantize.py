"""Quantization with error feedback: against slow references in plain Python, and what it must not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wcodec

torch = pytest.importorskip("torch")

from wcodec._calibrate import factor as factors  # noqa: E402
from wcodec._calibrate import kernels, moments  # noqa: E402
from wcodec._calibrate import plan as plans  # noqa: E402
from wcodec._calibrate.factor import one_thread  # noqa: E402
from wcodec._calibrate.quantize import quantize  # noqa: E402
from wcodec._calibrate.scalar import _by_steps, _columns, round_columns  # noqa: E402
from wcodec._calibrate.tables import MAGNITUDES  # noqa: E402
from wcodec._calibrate.trellis import _by_symbol, _path_at_once, _path_by_groups, best_paths  # noqa: E402

WEIGHT = 0.1


def inputs(cols: int, seed: int = 1) -> Any:
    """Second moments of inputs that are correlated, and of different strength."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * cols, cols)) @ rng.standard_normal((cols, cols)) / cols**0.5
    x += rng.standard_normal((4 * cols, cols)) * 0.7
    return torch.from_numpy(x.T @ x / len(x) * np.outer(*[rng.uniform(0.5, 2, cols)] * 2)).float()


def prices() -> Any:
    return (1.5 + 0.4 * torch.arange(MAGNITUDES)).float()


def gptq(h: Any) -> np.ndarray:
    """The upper factor of the inverse with ones on its diagonal, as GPTQ has it."""
    inverse = np.linalg.inv(h.double().numpy())
    upper = np.linalg.cholesky(inverse).T
    return upper / upper.diagonal()[:, None]


def plain_rounding(x: np.ndarray, upper: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Row by row and column by column, with the errors of targets passed on as in GPTQ."""
    out = np.zeros(x.shape, np.int64)
    for r, row in enumerate(x):
        passed = np.zeros(len(row))
        for j in range(len(row)):
            target = row[j] - passed[j]
            options = range(0, int(abs(target)) + 1)
            m = min(options, key=lambda m: ((abs(target) - m - 0.5) ** 2 + WEIGHT * table[m], -m))
            out[r, j] = -1 - m if target < 0 else m
            passed += (target - out[r, j] - 0.5) * upper[j]
    return out


def magnitude(n: int) -> int:
    return (-n - 1) >> 1 if n < 0 else n >> 1


def bit(n: int) -> int:
    return (magnitude(n) + (n < 0)) % 2


def survivors(x: np.ndarray, upper: np.ndarray, costs: np.ndarray, table: np.ndarray, tile: int) -> np.ndarray:
    """The Viterbi algorithm of FORMAT.md's filter, each state with its own path, row by row."""
    out = np.zeros(x.shape, np.int64)
    for r, row in enumerate(x):
        passed = np.zeros(len(row))
        for begin in range(0, len(row), tile):
            end = min(begin + tile, len(row))
            # By (Q(j), Q(j - 1)): the cost, the symbols, what their errors add.
            alive: dict[tuple[int, int], tuple[float, list[int], np.ndarray]] = {(0, 0): (0.0, [], passed)}
            for j in range(begin, end):
                new: dict[tuple[int, int], tuple[float, list[int], np.ndarray]] = {}
                for (q, before), (cost, path, added) in alive.items():
                    target = row[j] - added[j]
                    for n in range(int(target) - 9, int(target) + 10):
                        if n % 2 != q:
                            continue
                        state = (bit(n) ^ before, q)
                        total = cost + costs[j] * (target - n - 0.5) ** 2 + WEIGHT * table[magnitude(n)]
                        if state not in new or total < new[state][0]:
                            new[state] = (total, [*path, n], added + (target - n - 0.5) * upper[j])
                alive = new
            _, path, passed = min(alive.values(), key=lambda found: found[0])
            out[r, begin:end] = path
    return out


def obeys_the_filter(levels: np.ndarray, tile: int) -> bool:
    """Whether symbols are what FORMAT.md's filter makes of bytes."""
    for row in levels:
        for begin in range(0, len(row), tile):
            last, now = 0, 0
            for n in map(int, row[begin : begin + tile]):
                if n % 2 != now or magnitude(n) > 62:
                    return False
                last, now = now, bit(n) ^ last
    return True


@pytest.mark.parametrize("cols", [7, 150])
def test_rounding_is_that_of_a_slow_reference(cols: int) -> None:
    h = inputs(cols)
    x = np.random.default_rng(2).standard_normal((4, cols)) * 3
    known = factors.feedback([(0, h)], own_order=False)
    order = known.order.numpy()
    levels = round_columns(torch.from_numpy(x[:, order].T.copy()).float(), known.blocks, prices(), WEIGHT)
    want = plain_rounding(x[:, order], gptq(factors.damped(h)[order][:, order]), prices().numpy())
    assert np.array_equal(levels.T.numpy(), want)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize(("cols", "rows", "threads"), [(1, 1, 1), (64, 31, 1), (64, 1000, 2), (17, 4097, 3)])
def test_rounding_on_a_cpu_is_that_of_small_steps(cols: int, rows: int, threads: int, weight: float) -> None:
    random = torch.Generator().manual_seed(cols + rows)
    x = torch.randn(cols, rows, generator=random) * 4
    x[0, 0] = 1e6
    carry, feed = torch.randn(cols, rows, generator=random) / 4, torch.randn(cols, cols, generator=random) / 8
    padded = torch.cat([torch.full((2,), torch.inf), prices()]) * WEIGHT if weight else prices()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        levels, errors = _columns(x, carry.clone(), feed, padded, weight)
    finally:
        torch.set_num_threads(before)
    want, off = _by_steps(x, carry.clone(), feed, padded, weight)
    assert torch.equal(errors, x - (levels + 0.5)) and int(levels.min()) >= -127 and int(levels[0, 0]) == 126
    # Sums may differ in their last bits, and what lies between two levels with them.
    assert (levels != want).float().mean() < 1e-3 and (errors - off).abs().mean() < 1e-3


@pytest.mark.parametrize(("cols", "tile"), [(7, 512), (100, 64), (150, 48)])
def test_paths_are_those_of_a_slow_reference(cols: int, tile: int) -> None:
    h = inputs(cols)
    x = np.random.default_rng(3).standard_normal((3, cols)) * 6
    known = factors.feedback([(0, h)], own_order=True)
    assert known.order is None and float(known.weights.mean()) == pytest.approx(1)
    upper = gptq(factors.damped(h))
    lost = (
        1 / np.diag(np.linalg.inv(np.linalg.cholesky(factors.damped(h).double().numpy()[::-1, ::-1])[::-1, ::-1])) ** 2
    )
    assert np.allclose(known.weights.numpy(), lost / lost.mean(), rtol=1e-4)
    levels = best_paths(torch.from_numpy(x.T.copy()).float(), known.blocks, known.weights, tile, prices(), WEIGHT)
    want = survivors(x, upper, known.weights.double().numpy(), prices().numpy(), tile)
    assert np.array_equal(levels.T.numpy(), want)
    assert obeys_the_filter(levels.T.numpy(), tile)


@pytest.mark.parametrize(("cols", "rows", "threads"), [(1, 1, 1), (33, 5, 1), (64, 17, 2), (200, 600, 2)])
@pytest.mark.parametrize("linked", [True, False])
def test_paths_on_a_cpu_cost_what_those_of_small_steps_do(cols: int, rows: int, threads: int, linked: bool) -> None:
    generator = torch.Generator().manual_seed(cols)
    x = torch.randn(cols, rows, generator=generator) * 6
    x[:, 0] *= 100
    carry = torch.randn(cols, rows, generator=generator) * 0.3 if linked else None
    weights = torch.rand(cols, generator=generator) + 0.5
    feed = torch.triu(torch.randn(cols, cols, generator=generator) * 0.1, 1) if linked else None
    costs = _by_symbol(prices()) * 0.4
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        at_once = _path_at_once(x, carry, weights, feed, costs)
    finally:
        torch.set_num_threads(before)
    by_steps = _path_by_groups(x, carry, weights, feed, costs)
    # Sums are rounded in another order, so that paths may differ where two cost the same.
    assert float((at_once != by_steps).double().mean()) < 1e-3

    def cost(symbols: Any) -> Any:
        errors = (x - symbols - 0.5).double()
        added = errors.t() @ feed.double() if feed is not None else 0
        targets = errors + (0 if carry is None else carry.double()) + (added.t() if feed is not None else 0)
        return (targets.square() * weights[:, None] + costs[symbols.long() + 128]).sum(0)

    assert torch.allclose(cost(at_once), cost(by_steps), rtol=1e-3)


@pytest.mark.parametrize("trellis", [False, True])
def test_weights_divided_by_factors_are_those_of_other_inputs(trellis: bool) -> None:
    cols, tile = 150, 64
    h = inputs(cols)
    random = np.random.default_rng(8)
    by = torch.from_numpy(2.0 ** random.integers(-2, 3, cols)).float()
    known = factors.feedback([(0, h)], own_order=trellis)
    divided = known.divided(by)
    order = np.arange(cols) if known.order is None else known.order.numpy()
    scaled = (factors.damped(h) * by * by[:, None])[order][:, order]
    lost = factors.factor(scaled)[1]
    assert torch.allclose(divided.weights, lost / lost.mean(), rtol=1e-3)
    assert torch.allclose(divided.costs()[order], divided.weights)
    x = random.standard_normal((3, cols)) * 6
    given = torch.from_numpy(x.T.copy()).float()
    if trellis:
        levels = best_paths(given, divided.blocks, divided.weights, tile, prices(), WEIGHT)
        want = survivors(x, gptq(scaled), divided.weights.double().numpy(), prices().numpy(), tile)
    else:
        levels = round_columns(given, divided.blocks, prices(), WEIGHT)
        want = plain_rounding(x, gptq(scaled), prices().numpy())
    assert np.array_equal(levels.T.numpy(), want)
    # All together: symbols and scales are those of the quotients, in the metric of their inputs.
    weight = torch.from_numpy(random.standard_normal((9, cols))).float()
    step = torch.full((9,), 0.4)
    found = quantize(weight, divided, step=step, tile=tile, trellis=trellis)
    other = factors.Feedback(
        tuple(factors.Block(0, cols, factors.damped(h) * by * by[:, None], block.passed(0, cols))
              for block in divided.blocks),
        known.order, divided.weights,
    )  # fmt: skip
    quotients = quantize(weight / by, other, step=step, tile=tile, trellis=trellis)
    assert torch.equal(found.levels, quotients.levels) and torch.equal(found.scales, quotients.scales)
    assert torch.equal(found.values(), quotients.values() * by)


class Recorder:
    """Stands in for the kernels, and keeps what they are asked for."""

    def __init__(self) -> None:
        self.calls: list[dict[str, int]] = []

    def round(self, call: dict[str, int], stream: int) -> None:
        self.calls.append(call)

    trellis = round


def test_kernels_get_addresses_of_what_fits_only(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    for name, found in (("_quantizer", recorder), ("_ordinal", 0), ("_stream", 0)):
        monkeypatch.setattr(kernels, name, lambda *_, found=found: found)
    x, carry, costs = torch.zeros(5, 7), torch.zeros(5, 7), torch.zeros(4, 7)
    whole = torch.zeros(20, 20)
    feed, added, weights = whole[5:10, 5:10], torch.zeros(5, 4, 7), torch.ones(5)
    rounding = (x, carry, feed, torch.zeros(130))
    extending = (x, added, weights, feed, torch.zeros(260), costs)
    levels, errors = kernels.round_columns(*rounding)
    call = recorder.calls[0]
    assert (call["rows"], call["columns"], call["stride"]) == (7, 5, 20)
    assert call["feed"] == whole.data_ptr() + 4 * (5 * 20 + 5) and call["carry"] == carry.data_ptr()
    assert (call["levels"], call["errors"]) == (levels.data_ptr(), errors.data_ptr())
    assert levels.shape == errors.shape == x.shape and levels.dtype == torch.int8
    symbols, origin, sums = kernels.extend(*extending)
    assert (symbols.shape, origin.shape, sums.shape) == (added.shape, costs.shape, costs.shape)
    assert kernels.round_columns(*rounding[:3], None)[0].shape == x.shape and recorder.calls[2]["prices"] == 0
    kernels.extend(*extending[:3], None, *extending[4:])
    assert recorder.calls[3]["feed"] == 0
    for function, given in ((kernels.round_columns, rounding), (kernels.extend, extending)):
        for place, tensor in enumerate(given):
            for wrong in (tensor.double(), tensor[:-1], tensor.to("meta"), torch.stack([tensor, tensor], -1)[..., 0]):
                if place == 0 and wrong.shape != tensor.shape:
                    continue
                with pytest.raises(ValueError, match="of one matrix"):
                    function(*given[:place], wrong, *given[place + 1 :])
    assert len(recorder.calls) == 4


def test_symbols_stay_in_range_whatever_the_weights() -> None:
    x = torch.tensor([[1e6, -1e6, 300.0, -300.0, 0.0]]).repeat(40, 1)
    plain = round_columns(x, (), prices(), WEIGHT)
    assert int(plain.min()) == -127 and int(plain.max()) == 126
    fine = best_paths(x, (), torch.ones(40), 16, prices(), WEIGHT)
    assert int(fine.min()) >= -126 and int(fine.max()) <= 125
    assert obeys_the_filter(fine.T.numpy(), 16)


@pytest.mark.parametrize("trellis", [False, True])
def test_blocks_are_the_whole_where_inputs_fall_apart(trellis: bool) -> None:
    h = torch.zeros(130, 130)
    h[:90, :90], h[90:, 90:] = inputs(90, 4), inputs(40, 5)
    weight = torch.from_numpy(np.random.default_rng(6).standard_normal((9, 130))).float()
    # As damping is by the mean diagonal, which is that of each block.
    h[90:, 90:] *= h[:90, :90].diagonal().mean() / h[90:, 90:].diagonal().mean()
    found = [
        quantize(weight, factors.feedback(blocks, trellis), step=torch.full((9,), 0.4), tile=64, trellis=trellis)
        for blocks in ([(0, h)], [(0, h[:90, :90]), (90, h[90:, 90:])])
    ]
    assert torch.equal(found[0].levels, found[1].levels)
    assert torch.equal(found[0].scales, found[1].scales)


@pytest.mark.parametrize("trellis", [False, True])
def test_feedback_lowers_the_error_of_outputs(trellis: bool) -> None:
    h = inputs(200)
    weight = torch.from_numpy(np.random.default_rng(7).standard_normal((64, 200))).float()
    step = torch.full((64,), 0.25 if trellis else 0.5)

    def loss(found: Any) -> float:
        error = weight - found.values()
        return float(((error @ h) * error).sum())

    known = factors.feedback([(0, h)], trellis)
    alone, fed = (quantize(weight, f, step=step, tile=512, trellis=trellis) for f in (None, known))
    assert loss(fed) < 0.7 * loss(alone)
    assert abs(fed.bits / alone.bits - 1) < 0.05
    again = quantize(weight, known, step=step, tile=512, trellis=trellis)
    assert torch.equal(fed.levels, again.levels) and torch.equal(fed.scales, again.scales) and fed.bits == again.bits
    rows = [3, 40]
    some = quantize(weight, known, step=step, tile=512, trellis=trellis, rows=rows, prices=fed.prices)
    whole = quantize(weight, known, step=step, tile=512, trellis=trellis, prices=fed.prices)
    assert (some.levels == whole.levels[rows]).float().mean() > 0.99
    assert fed.levels.dtype == torch.int8 and fed.scales.dtype == torch.bfloat16


def test_threads_are_as_many_as_before() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        cpu = torch.device("cpu")
        with pytest.raises(ZeroDivisionError), one_thread(cpu, True):
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError
        with one_thread(cpu, False):
            assert torch.get_num_threads() == 2
        for rows in (8, 300):
            quantize(torch.randn(rows, 16), None, step=torch.full((rows,), 0.5), tile=64, trellis=True)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_rows_of_zeros_and_inputs_that_never_come() -> None:
    h = inputs(20)
    h[5], h[:, 5] = 0, 0
    weight = torch.ones(3, 20)
    weight[1] = 0
    for trellis in (False, True):
        for moment in (h, torch.zeros(20, 20)):
            known = factors.feedback([(0, moment)], trellis)
            found = quantize(weight, known, step=torch.tensor([0.3, 0, 0.3]), tile=64, trellis=trellis)
            assert float(found.scales[1]) == 0 and bool(torch.isfinite(found.values()).all())
            assert float((found.values() - weight).abs().max()) < 0.5


def test_factors_of_bad_matrices_are_damped_more() -> None:
    # Not positive definite: eigenvalues 3 and -1.
    feed, cost = factors.factor(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert bool(torch.isfinite(feed).all()) and bool((cost > 0).all())


def test_factors_lie_row_after_row(monkeypatch: pytest.MonkeyPatch) -> None:
    # A GPU's factorization has columns one after the other, and kernels read rows.
    plain = torch.linalg.cholesky_ex

    def by_columns(matrix: Any) -> tuple[Any, Any]:
        lower, info = plain(matrix)
        return lower.mT.contiguous().mT, info

    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    want = factors.factor(factors.damped(x.T @ x))
    monkeypatch.setattr(torch.linalg, "cholesky_ex", by_columns)
    found = factors.factor(factors.damped(x.T @ x))
    assert found[0].is_contiguous() and torch.equal(found[0], want[0]) and torch.equal(found[1], want[1])


def test_moments_of_few_tokens_are_shrunk_towards_their_diagonal() -> None:
    generator = torch.Generator().manual_seed(3)
    cols = 48
    mixed = torch.randn(cols, cols, generator=generator) / cols**0.5 + torch.eye(cols)
    truth = mixed.t() @ mixed

    def off(tokens: int, shrink: bool) -> float:
        x = torch.randn(tokens, cols, generator=torch.Generator().manual_seed(4)) @ mixed
        found = x.t() @ x / tokens
        made = factors.shrunk(found, tokens) if shrink else found
        assert torch.equal(made.diagonal(), found.diagonal()) and torch.equal(found, x.t() @ x / tokens)
        return float((made - truth).square().sum())

    # Nearer to the truth where tokens are few, and the moments themselves where they are many.
    assert off(24, True) < 0.8 * off(24, False)
    assert off(200_000, True) < 1.2 * off(200_000, False) + 1e-3
    known = factors.feedback([(0, truth)], True, tokens=10**9)
    assert torch.allclose(known.weights, factors.feedback([(0, truth)], True).weights, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 100, 128, 300])
def test_second_moments_are_kept_well(size: int) -> None:
    h = inputs(size)
    kept = moments.pack(h)
    assert kept.strips.numel() == moments.packed_elements(size)
    dense = kept.dense()
    assert torch.allclose(dense, dense.T) and torch.equal(dense.diagonal(), h.diagonal())
    root = h.diagonal().sqrt()
    assert float(((dense - h) / root / root[:, None]).abs().max()) < 2**-11


def test_wide_inputs_are_cut_into_blocks() -> None:
    assert moments.block_width(16384) == 16384
    assert moments.block_width(28672) == 7168
    assert moments.block_width(16385) <= 8192
    sums = moments.Sums(10, 4, torch.device("cpu"))
    x = torch.randn(7, 10)
    sums.add(x)
    assert [(begin, tuple(b.shape)) for begin, b in sums.means(7)] == [(0, (4, 4)), (4, (4, 4)), (8, (2, 2))]
    assert torch.allclose(sums.means(1)[1][1], x[:, 4:8].T @ x[:, 4:8] / 7, atol=1e-5)


def test_memory_of_statistics_is_bounded() -> None:
    # A Llama of 8 B parameters: four inputs in each of 32 layers.
    llama = [(f"{layer}.{i}", cols) for layer in range(32) for i, cols in enumerate((4096, 4096, 4096, 14336))]
    found, passes = plans.plan(llama, 16 * 10**9)
    assert all(one.width == one.cols for one in found)
    assert sum(one.kept_bytes for one in found) < 9 * 10**9
    assert len(passes) == 3 and all(sum(one.sum_bytes for one in some) <= 16 * 10**9 for some in passes)
    assert [one.name for some in passes for one in some] == [name for name, _ in llama]
    # 8 experts in each: narrower blocks.
    mixture = [(f"{layer}.{i}", cols) for layer in range(32) for i in range(8) for cols in (4096, 14336)]
    found, passes = plans.plan(mixture, 16 * 10**9)
    assert sum(one.kept_bytes for one in found) <= 16 * 10**9
    assert all(sum(one.sum_bytes for one in some) <= 16 * 10**9 for some in passes)
    # A limit that cannot be met is approached.
    assert {one.width for one in plans.plan([("a", 4096)], 1)[0]} == {256}


def test_what_does_not_fit_is_refused() -> None:
    known = factors.feedback([(0, torch.eye(4))], True)

    def made(weight: Any = None, **other: Any) -> Any:
        options = {"step": torch.ones(3), "tile": 64, "trellis": True, "name": "w", **other}
        return quantize(torch.ones(3, 4) if weight is None else weight, known, **options)

    made()
    for message, call in {
        "tensor 'w': a matrix is quantized": lambda: made(torch.ones(3)),
        "3 rows need as many steps": lambda: made(step=torch.ones(2)),
        "statistics of 4 inputs do not fit 5": lambda: made(torch.ones(3, 5)),
        "tile must be at least 1": lambda: made(tile=0),
        "values that are not finite": lambda: made(torch.full((3, 4), torch.nan)),
    }.items():
        with pytest.raises(wcodec.InputError, match=message):
            call()
    # The largest weights bound steps from below.
    assert bool(torch.isfinite(made(step=torch.full((3,), 1e-45)).values()).all())
