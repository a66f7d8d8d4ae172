"""pyext/benches/peers/matrices: what is stored, how it is packed, and the table of products."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "pyext/benches"))

from peers import command, environments, report, runner  # noqa: E402
from peers.matrices import catalogue, drive, engines, quality, rounding, table, worker  # noqa: E402

WIDTHS = [v.width for e in catalogue.ENGINES.values() for v in e.variants if v.width is not None]


def matrix(rows: int = 64, columns: int = 256) -> Any:
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)


@pytest.mark.parametrize("module", [catalogue, rounding, worker, table], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# Weights.


@pytest.mark.parametrize("width", WIDTHS, ids=str)
def test_rounding_takes_the_nearest_level(width: catalogue.Width) -> None:
    weight = matrix()
    levels, scales = rounding.rounded(weight, width)
    most = 1 << width.bits - 1
    assert scales.shape == (64, 256 // (width.group or 256)) and int(levels.min()) == -most
    assert int(levels.max()) < most
    found = rounding.weight_of(levels, scales, width)
    by = scales.float().abs().repeat_interleave(width.group or 256, 1)
    # The highest level is one short of what the other sign reaches, and scales are rounded to bf16.
    inside = levels < most - 1
    assert bool(((found - weight.float()).abs() <= 0.51 * by + most * by / 256)[inside].all())
    for other in (levels - 1, levels + 1):
        further = (rounding.weight_of(other, scales, width) - weight.float()).abs()
        allowed = (other >= -most) & (other < most)
        assert bool((further >= (found - weight.float()).abs() - 1e-6)[allowed].all())


def test_columns_that_are_no_multiple_of_the_group_and_rows_of_zeros() -> None:
    weight = matrix(4, 200)
    weight[1] = 0
    width = catalogue.Width(4, 128)
    levels, scales = rounding.rounded(weight, width)
    assert levels.shape == (4, 200) and scales.shape == (4, 2)
    found = rounding.weight_of(levels, scales, width)
    assert torch.equal(found[1], torch.zeros(200))
    assert float((found - weight.float()).norm() / weight.float().norm()) < 0.12


@pytest.mark.parametrize("bits", [4, 8])
def test_levels_are_packed_as_gptq_has_them(bits: int) -> None:
    width = catalogue.Width(bits)
    levels, _ = rounding.rounded(matrix(), width)
    words = engines.packed_levels(levels, width)
    count = 32 // bits
    assert words.shape == (256 // count, 64) and words.dtype is torch.int32
    for column, row in ((0, 0), (5, 3), (count, 7), (255, 63)):
        word = int(words[column // count, row]) & 0xFFFFFFFF
        assert word >> bits * (column % count) & (1 << bits) - 1 == int(levels[row, column]) + (1 << bits - 1)


def test_scales_are_in_the_order_of_the_kernel() -> None:
    grouped = torch.arange(128 * 2).view(128, 2)
    # Eight threads read every eighth scale each, of 64 at a time.
    wanted = [block + thread + 8 * i for block in (0, 64) for thread in range(8) for i in range(8)]
    assert [s // 2 for s in engines.ordered_scales(grouped)[0].tolist()] == wanted
    assert torch.equal(engines.ordered_scales(grouped)[1], engines.ordered_scales(grouped)[0] + 1)
    single = engines.ordered_scales(torch.arange(64)[:, None])[0].tolist()
    # Pairs of scales, eight apart, of 32 at a time.
    assert single[:16] == [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27] and single[32:34] == [32, 33]


def test_marlin_is_called_with_the_sizes_of_its_matrix() -> None:
    asked: list[Any] = []
    scales, locks = torch.zeros(2, 64), torch.zeros(4, dtype=torch.int32)
    product = engines.marlin_product(lambda *given: asked.append(given), torch.zeros(1), scales, locks, 7)
    product(torch.zeros(5, 256))
    assert asked[0][9:] == (7, 5, 64, 256, False, True, False)


def test_without_vllm_marlin_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(engines.NotThere, match="pip install --no-deps vllm=="):
        engines.marlin_operators(catalogue.Width(4))


# Measuring.


def test_a_product_that_is_not_bf16s_is_found() -> None:
    weight, x = matrix(), matrix(8)
    right = [lambda v: torch.nn.functional.linear(v, weight)]
    assert worker.apart(right[0], weight, x) == 0
    halves = lambda v: [[right[0](v[:4])], [right[0](v[4:])]]  # noqa: E731
    assert worker.apart(halves, weight, x) == 0
    swapped = lambda v: torch.nn.functional.linear(v, weight.flip(0))  # noqa: E731
    assert worker.apart(swapped, weight, x) > worker.FURTHEST
    width = catalogue.Width(3)
    coarse = rounding.weight_of(*rounding.rounded(weight, width), width).to(torch.bfloat16)
    assert 0.1 < worker.apart(lambda v: torch.nn.functional.linear(v, coarse), weight, x) < worker.FURTHEST


class Immediately:
    """In the place of a CUDA graph: the work is done, and its results can be looked at."""

    def __init__(self, run: Any) -> None:
        self.results = run()


def test_a_row_measures_each_number_of_tokens_beside_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    import products

    seen: list[dict[str, Any]] = []

    def microseconds(graphs: dict[str, Any], rounds: int) -> dict[str, list[float]]:
        seen.append({name: [worker.together(r) for r in graph.results] for name, graph in graphs.items()})
        return {name: [8.0 if name.startswith("bf16") else 2.0] * rounds for name in graphs}

    def stored(variant: catalogue.Variant, matrices: list[Any]) -> engines.Stored:
        return engines.Stored({"products": [lambda x, m=m: [x @ m.T] for m in matrices]}, 6.5)

    monkeypatch.setattr(products, "weights", lambda layer, generator: matrix(*layer[1:]) * (1 + int(layer[0])))
    monkeypatch.setattr(products, "Graph", Immediately)
    monkeypatch.setattr(products, "microseconds", microseconds)
    monkeypatch.setitem(worker.CALLS, "wcodec", stored)
    row = worker.Row("wcodec", catalogue.ENGINES["wcodec"].variants[0], [1, 8], 3, worker.Turns(None), "cpu")
    found = row.run("64x256")
    assert found["bits"] == 6.5 and found["copies"] == worker.MOST_COPIES and list(found["tokens"]) == ["1", "8"]
    one = found["tokens"]["8"]
    assert one["us"] * 4 == one["bf16_us"] == 8 / found["copies"] and one["apart"] < 0.01
    for results in seen:
        assert results.keys() == {"bf16", "bf16 between", "products", "products between"}
        # Each copy is multiplied with, and no function has another one's matrix.
        for ours, theirs in zip(results["products"], results["bf16"], strict=True):
            assert torch.allclose(ours.float(), theirs.float(), rtol=0.02, atol=0.02)
        assert not torch.equal(results["bf16"][0], results["bf16"][1])


def test_every_engine_can_be_called_and_is_pinned() -> None:
    assert set(catalogue.ENGINES) == set(engines.ENGINES)
    for engine in catalogue.ENGINES.values():
        assert all("==" in r for r in engine.peer.gpu_requirements)
        assert len({v.name for v in engine.variants}) == len(engine.variants)
    assert catalogue.ENGINES["humming"].peer.needs("13.2") == ["humming-kernels[cu13]==0.1.19"]
    assert set(quality.widths()) >= {"w8", "w6", "w4 g128", "w3", "wcodec int8", "wcodec 3.1"}


def test_weights_of_the_file_are_spread_over_their_cells() -> None:
    layer = torch.nn.Linear(64, 32, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(32 * 64).remainder(16).view(32, 64) / 16)
    before = layer.weight.detach().clone()
    quality.spread_out([layer.weight])
    moved = (layer.weight.detach() - before).abs()
    assert 0 < float(moved.mean()) and float(moved.max()) <= 0.5 / 16 + 1 / 256
    assert len(layer.weight.unique()) > 100


@pytest.mark.parametrize("key", ["w8", "w3", "wcodec int8", "wcodec 4.0"])
def test_weights_of_a_width_are_near_the_original(key: str) -> None:
    weights = {"a": matrix(64, 512).float(), "b": matrix(128, 512).float()}
    found, bits = quality.stored(weights, quality.widths()[key])
    assert found.keys() == weights.keys()
    assert {"w8": 8 + 16 / 512, "w3": 3 + 16 / 512}.get(key, bits) == bits and 3 < bits < 9
    worst = {"w8": 0.01, "w3": 0.3, "wcodec int8": 0.01, "wcodec 4.0": 0.2}[key]
    assert all(0 < float((found[n] - w).norm() / w.norm()) < worst for n, w in weights.items())


# Results.


def products(us: float, bf16: float) -> dict[str, Any]:
    return {
        "way": "products", "us": us, "spread": [us, us], "bf16_us": bf16, "bf16_spread": [bf16, bf16],
        "between_us": us + 1, "between_spread": [us, us], "bf16_between_us": bf16 + 2, "bf16_between_spread": [1, 2],
    }  # fmt: skip


def measured() -> report.Json:
    """A report with the products of two engines, and none of the third."""
    settings = {
        "device": "cuda", "shapes": "tinyllama", "layers": None, "tokens": 1, "repeats": 1, "text_tokens": 64,
        "prefill_tokens": 8, "batches": [1], "sections": [], "model": "embedded", "windows": 16,
    }  # fmt: skip
    out = report.empty(settings, {"gpu": "a GPU"}, "python pyext/benches/peers", "2026-01-01")
    found = out["matrices"]
    found["rows"] = {
        "wcodec/int8": {"8192x8192": {"bits": 6.4, "tokens": {"1": products(20, 40), "128": products(120, 60)}}},
        "humming/w4-128": {"8192x8192": {"bits": 4.125, "tokens": {"1": products(16, 44)}}},
        "humming/w8": {"8192x8192": {"failed": "RuntimeError: no nvcc"}},
    }
    found["kl"] = {"w4 g128": {"kl": 0.1234, "bits": 4.13}}
    found["skipped"] = {"marlin": "not installed here: vllm"}
    out["peers"]["matrices/marlin"] = {"title": "Marlin, products", "reason": "not installed here: vllm"}
    return out


def test_the_table_has_times_ratios_bits_and_reasons() -> None:
    text = report.table(measured())
    lines = text.splitlines()
    assert "| 8192x8192, nothing between the products | bits | KL of the width | 1 token | 128 tokens |" in lines
    assert "| bf16 | 16.00 | 0 | 42.0 | 60.0 |" in lines
    assert "| wcodec int8 | 6.40 | - | 20.0 (2.00) | 120 (0.50) |" in lines
    assert "| Humming W4, groups of 128 | 4.12 | 0.123 | 16.0 (2.75) | - |" in lines
    assert "| wcodec int8 | 6.40 | - | 21.0 (2.00) | 121 (0.51) |" in lines
    assert "| Marlin W8 | not measured, see below | | | |" in lines
    assert "Products not measured: humming/w8, 8192x8192: RuntimeError: no nvcc" in lines
    assert "Marlin, products was not measured: not installed here: vllm" in lines


def test_a_cpu_has_qualities_and_no_times() -> None:
    out = measured()
    out["matrices"]["rows"] = {}
    assert "| w4 g128 | 4.13 | 0.123 |" in report.table(out)


def test_runs_of_engines_are_merged_and_a_figure_stays() -> None:
    one, other = measured(), measured()
    other["matrices"]["rows"] = {
        "wcodec/int8": {"8192x8192": {"failed": "stopped after 75 s"}, "4096x14336": {"bits": 6.2, "tokens": {}}},
        "marlin/w8": {"8192x8192": {"bits": 8.0, "tokens": {}}},
    }
    other["matrices"]["skipped"] = {}
    found = report.merge([one, other])["matrices"]
    assert found["rows"]["wcodec/int8"]["8192x8192"]["bits"] == 6.4
    assert found["rows"]["wcodec/int8"]["4096x14336"]["bits"] == 6.2 and found["skipped"] == {}


def test_a_report_from_before_there_were_products_is_read(tmp_path: Path) -> None:
    old = measured()
    del old["matrices"]
    report.write(old, tmp_path / "old.json")
    assert report.read(tmp_path / "old.json")["matrices"] == report.matrices_empty()


# The command.


def driver(tmp_path: Path, out: report.Json, **limits: Any) -> drive.Drive:
    settings = {"matrix_shapes": ["64x64"], "matrix_tokens": [1], "matrix_repeats": 1, "text_tokens": 64}
    options = environments.Options(tmp_path, installed=True)
    given = runner.Limits(**{"row": 60, **limits})
    return drive.Drive(out, settings, given, options, "13.0", {}, lambda text: None, lambda: None)


def test_an_engine_that_is_not_installed_is_a_row_that_says_so(tmp_path: Path) -> None:
    out = measured()
    out["matrices"] = report.matrices_empty()
    driver(tmp_path, out).speeds(["humming", "marlin"], None)
    assert out["matrices"]["skipped"] == {
        "humming": "not installed here: humming-kernels", "marlin": "not installed here: vllm",
    }  # fmt: skip
    assert out["peers"]["matrices/humming"]["reason"] == "not installed here: humming-kernels"


def test_what_has_figures_is_not_measured_again(tmp_path: Path) -> None:
    out = measured()
    out["matrices"]["rows"] = {"marlin/w8": {"64x64": {"bits": 8.0, "tokens": {}}}}
    found = driver(tmp_path, out)
    assert found._todo("marlin", None) == {"w8-128": ["64x64"], "w4-128": ["64x64"]}
    assert found._todo("marlin", ["w8"]) == {}
    out["matrices"]["rows"]["marlin/w8"]["64x64"] = {"failed": runner.NOT_RUN}
    assert found._todo("marlin", ["w8"]) == {"w8": ["64x64"]}


def test_without_the_real_model_there_is_no_quality(tmp_path: Path) -> None:
    out = measured()
    out["matrices"] = report.matrices_empty()
    driver(tmp_path, out).qualities(tmp_path / "none.gguf")
    assert out["peers"]["matrices/quality"]["reason"] == "none.gguf, a real model, is not there (make demo fetches it)"


def test_qualities_of_a_cpu_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    out = measured()
    found = driver(tmp_path, out)
    found.known_qualities(path)
    assert set(out["matrices"]["kl"]) == {"w4 g128"}
    path.write_text(json.dumps({"matrices": {"kl": {"w8": {"kl": 0.001}, "w4 g128": {"kl": 9.0}}}}))
    found.known_qualities(path)
    assert out["matrices"]["kl"]["w8"] == {"kl": 0.001} and out["matrices"]["kl"]["w4 g128"]["kl"] == 0.1234


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engines", "machete"], "there is no engine 'machete' of products (there are wcodec, humming, marlin)"),
        (["--matrices", "4096"], "'4096' is no shape"),
        (["--only", "matrices", "--rows", "w5"], "there is no row 'w5' of matrices"),
        (["--matrix-tokens", "0"], "'0' is no batch and no number of tokens"),
    ],
)
def test_what_does_not_exist_is_an_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main([*arguments, "--device", "cpu", "--environments", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
