"""Plots of containers and of replaced layers: what they draw is what the files hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec._core import colors


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Blocks of layers, with tensors that are coded and tensors that are not."""
    rng = np.random.default_rng(20)
    tensors: dict[str, np.ndarray] = {"embed.weight": rng.standard_t(6, (64, 256)).astype(np.float32)}
    for i in range(20):
        tensors[f"layers.{i}.up.weight"] = rng.standard_t(4, (32, 256 + 16 * (i % 3))).astype(np.float32)
        tensors[f"layers.{i}.norm.weight"] = rng.standard_normal(64).astype(np.float32)
    tensors["wide"] = (rng.standard_t(6, (48, 256)) * np.geomspace(1e-4, 1.0, 48)[:, None]).astype(np.float32)
    tensors["same"] = np.ones((16, 64), np.float32)
    tensors["empty"] = np.zeros((0, 8), np.float32)
    path = tmp_path_factory.mktemp("plots") / "m.wcodec"
    wcodec.save_file(tensors, path)
    with wcodec.open(path) as opened:
        yield opened


def labels(ax: Any) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def widths(ax: Any) -> list[float]:
    """The bars' lengths, from the first to the last."""
    return [bar.get_width() for bar in sorted(ax.patches, key=lambda bar: bar.get_y())]


def test_a_colour_has_one_meaning(plt: Any, container: wcodec.Container) -> None:
    assert len(set(wcodec.COLORS.values())) == len(wcodec.COLORS)
    with pytest.raises(TypeError):
        wcodec.COLORS["int8"] = "red"  # type: ignore[index]
    from matplotlib.colors import to_hex

    for options, color in (({}, "int8"), ({"bits": 4}, "rate")):
        tensors = {"w": np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)}
        with wcodec.open(wcodec.compress_to_bytes(tensors, **options)[0]) as one:
            drawn = one.plot.symbols("w").patches
            assert {to_hex(bar.get_facecolor()) for bar in drawn} == {wcodec.COLORS[color]}


def test_ratio_of_every_tensor(plt: Any, container: wcodec.Container) -> None:
    stored = [entry for entry in container.stored if entry.stored_bytes]
    ax = container.plot.ratio(top=len(stored))
    assert labels(ax) == [entry.name for entry in stored]
    assert widths(ax) == [entry.ratio for entry in stored]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"rans", "raw", f"whole file: {container.ratio:.3f}", "entropy of the symbols alone"} <= set(legend)
    (bounds,) = [line for line in ax.lines if line.get_marker() == "|"]
    coded = [entry for entry in stored if entry.entropy]
    expected = [8 * entry.original_bytes / (entry.entropy * entry.elements) for entry in coded]
    np.testing.assert_allclose(bounds.get_xdata(), expected)
    assert all(bound > entry.ratio for bound, entry in zip(expected, coded, strict=True))


def test_ratio_of_blocks(plt: Any, container: wcodec.Container) -> None:
    ax = container.plot.ratio()
    found = dict(zip(labels(ax), widths(ax), strict=True))
    assert set(found) == {"embed.weight", "layers.*.up.weight  (20)", "layers.*.norm.weight  (20)", "wide", "same"}
    ups = [entry for entry in container.stored if ".up." in entry.name]
    ratio = sum(e.original_bytes for e in ups) / sum(e.stored_bytes for e in ups)
    assert found["layers.*.up.weight  (20)"] == pytest.approx(ratio)
    assert found["layers.*.norm.weight  (20)"] == pytest.approx(1, abs=0.01)
    few = container.plot.ratio(top=2)
    assert labels(few) == ["layers.*.up.weight  (20)", "23 others"]


def test_scales(plt: Any, container: wcodec.Container) -> None:
    ax = container.plot.scales("embed.weight", bins=10)
    assert sum(bar.get_height() for bar in ax.patches) == 64
    assert ax.get_ylabel() == "rows" and ax.get_xscale() == "linear" and "64 scales" in ax.get_title(loc="left")
    wide = container.plot.scales("wide")
    assert wide.get_xscale() == "log" and sum(bar.get_height() for bar in wide.patches) == 48
    same = container.plot.scales("same")
    assert sum(bar.get_height() for bar in same.patches) == 16


@pytest.mark.parametrize(("scale", "label", "count"), [("tensor", "tensors", 1), ("block", "blocks", 2 * 64)])
def test_scales_of_tensors_and_blocks(plt: Any, scale: str, label: str, count: int) -> None:
    weight = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    data, _ = wcodec.compress_to_bytes({"w": weight}, scale=scale)
    ax = wcodec.open(data).plot.scales("w")
    assert ax.get_ylabel() == label and sum(bar.get_height() for bar in ax.patches) == count


def test_scales_of_a_transposed_tensor(plt: Any) -> None:
    weight = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    data, _ = wcodec.compress_to_bytes({"w": weight}, transpose="w")
    ax = wcodec.open(data).plot.scales("w")
    assert ax.get_ylabel() == "columns" and sum(bar.get_height() for bar in ax.patches) == 256


def test_scales_that_no_logarithm_has(plt: Any) -> None:
    weight = np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32) * np.logspace(-4, 4, 16)[
        :, None
    ].astype("f4")
    weight[3] = 0
    zeros = np.zeros_like(weight)
    data, _ = wcodec.compress_to_bytes({"w": weight, "zeros": zeros}, scheme="rate", bits=8)
    some, none = (wcodec.open(data).plot.scales(name) for name in ("w", "zeros"))
    assert some.get_xscale() == "log" and sum(bar.get_height() for bar in some.patches) == 15
    assert "16 scales, 1 zero or not finite left out" in some.get_title(loc="left")
    assert none.get_xscale() == "linear" and sum(bar.get_height() for bar in none.patches) == 16


def test_symbols(plt: Any, container: wcodec.Container) -> None:
    ax = container.plot.symbols("embed.weight")
    symbols = container["embed.weight"].symbols()
    heights = {round(bar.get_x() + 0.5): bar.get_height() for bar in ax.patches}
    values, counts = np.unique(symbols, return_counts=True)
    assert {int(v): 100 * c / symbols.size for v, c in zip(values, counts, strict=True)} == pytest.approx(
        {v: h for v, h in heights.items() if h}
    )
    (text,) = [t.get_text() for t in ax.texts]
    entry = container["embed.weight"]
    assert f"entropy: {entry.entropy:.3f} bits" in text and f"stored: {entry.bits_per_weight:.3f} bits" in text
    assert "entropy: 0.000" in container.plot.symbols("same").texts[0].get_text()


def test_what_cannot_be_drawn(plt: Any, container: wcodec.Container, monkeypatch: pytest.MonkeyPatch) -> None:
    for call, message in (
        (lambda: container.plot.scales("nothing"), "no tensor 'nothing'"),
        (lambda: container.plot.scales("empty"), "no scales"),
        (lambda: container.plot.symbols("empty"), "no symbols"),
        (lambda: container.plot.scales("layers.0.norm.weight"), "layers.0.norm.weight"),
        (lambda: container.plot.symbols("layers.0.norm.weight"), "layers.0.norm.weight"),
        (lambda: container.plot.ratio(top=1), "at least 2"),
        (lambda: container.plot.scales("wide", bins=0), "at least 1"),
    ):
        with pytest.raises(wcodec.InputError, match=message):
            call()
    empty, _ = wcodec.compress_to_bytes({"e": np.zeros((0, 4), np.float32)})
    with pytest.raises(wcodec.InputError, match="no tensor with data"):
        wcodec.open(empty).plot.ratio()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(wcodec.UnsupportedError, match="pip install matplotlib"):
        container.plot.ratio()


def test_memory_of_replaced_layers(plt: Any, model: Path) -> None:
    from transformers import AutoModelForCausalLM

    report = wcodec.compress_(AutoModelForCausalLM.from_pretrained(model))
    ax = report.plot.memory()
    mib = 1 << 20
    rows: dict[int, float] = {}
    for bar in ax.patches:
        place = round(bar.get_y() + bar.get_height() / 2)
        rows[place] = rows.get(place, 0.0) + bar.get_width()
    assert rows == pytest.approx({0: report.bytes_before / mib, 1: report.bytes_after / mib})
    assert labels(ax) == ["before", "after"] and "MiB" in ax.get_xlabel()
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {
        "CompressedEmbedding",
        "CompressedLinear",
        "left as it was",
    }


def test_axes_and_styles(plt: Any, container: wcodec.Container) -> None:
    calls = (
        container.plot.ratio,
        lambda ax=None: container.plot.scales("wide", ax),
        lambda ax=None: container.plot.symbols("wide", ax),
    )
    for style in ("default", "dark_background"):
        with plt.style.context(style):
            for call in calls:
                axes = plt.subplots()[1]
                assert call(ax=axes) is axes and call() is not axes
                axes.figure.canvas.draw()
                ink = np.array(plt.matplotlib.colors.to_rgb(axes.xaxis.label.get_color()))
                assert abs(np.array(axes.figure.get_facecolor()[:3]).mean() - ink.mean()) > 0.5
                assert axes.get_xlabel()


def cells(ax: Any) -> dict[tuple[float, float], Any]:
    """The heat map's cells by their middles."""
    found = {}
    for patch in ax.patches:
        x, y, wide, high = *patch.get_xy(), patch.get_width(), patch.get_height()
        found[round(x + wide / 2, 2), round(y + high / 2, 2)] = patch
    return found


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> tuple[wcodec.CompressionReport, wcodec.Container]:
    """Layers 2 to 10 in the wrong order, experts, a vector, and tensors in no layer."""
    rng = np.random.default_rng(7)
    tensors = {"head": rng.standard_normal((64, 64)).astype(np.float32)}
    for i in (10, 2, 3):
        tensors[f"layers.{i}.up.weight"] = rng.standard_normal((32, 64)).astype(np.float32)
        tensors[f"layers.{i}.norm.weight"] = np.ones(64, np.float32)
        for e in range(3 if i > 2 else 0):
            tensors[f"layers.{i}.experts.{e}.w"] = rng.standard_normal((16, 64)).astype(np.float32)
    path = tmp_path_factory.mktemp("plots") / "rated.wcodec"
    report = wcodec.compress(tensors, path, bits=5, progress=False)
    return report, wcodec.open(path)


@pytest.mark.parametrize("by", ["bits", "ratio", "error", "share", "speed"])
def test_heat_map(by: str, plt: Any, rated: tuple[wcodec.CompressionReport, wcodec.Container]) -> None:
    from matplotlib.colors import to_hex

    _, container = rated
    ax = container.plot.heatmap(by)
    assert labels(ax) == ["experts.*.w", "up", "head"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["2", "3", "10"] and ax.get_xlabel() == "layer"
    found = cells(ax)
    # Experts from layer 3 on; what is in no layer is as wide as all of them.
    assert set(found) == {(1.0, 0.0), (2.0, 0.0), (0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 2.4)}
    assert found[1.0, 2.4].get_width() == pytest.approx(2.94)
    written = {(t.get_position()[0], round(t.get_position()[1], 2)): t.get_text() for t in ax.texts}
    assert set(written) == set(found)
    up = container["layers.3.up.weight"]
    experts = [container[f"layers.10.experts.{e}.w"] for e in range(3)]
    expected = {
        "bits": (up.bits_per_weight, 8 * sum(e.stored_bytes for e in experts) / sum(e.elements for e in experts)),
        "ratio": (up.ratio, sum(e.original_bytes for e in experts) / sum(e.stored_bytes for e in experts)),
        "error": (up.error, np.sqrt(np.mean([(e.error or 0) ** 2 for e in experts]))),
        "share": tuple(
            100 * n / container.stored_bytes for n in (up.stored_bytes, sum(e.stored_bytes for e in experts))
        ),
    }.get(by)
    if expected is not None:
        assert float(written[1.0, 1.0]) == pytest.approx(expected[0], abs=0.006, rel=0.02)
        assert float(written[2.0, 0.0]) == pytest.approx(expected[1], abs=0.006, rel=0.02)
    else:
        assert all(float(text) > 0 for text in written.values())
    (bar,) = [other for other in ax.figure.axes if other is not ax]
    shades = {to_hex(p.get_facecolor()) for p in found.values()}
    if by == "error":
        # At one number of bits all errors are nearly the same: a scale would make much of nothing.
        assert bar.get_xlabel() == f"{colors.TITLES[by]}: less than 5 % apart, so one colour"
        assert shades == {colors.between(colors.SCALES[by], 0.5)}
        return
    # The smallest and the largest have the colours of the ends of the scale above.
    assert bar.get_xlabel() == colors.TITLES[by] and {colors.SCALES[by][0], colors.SCALES[by][-1]} <= shades


def test_heat_map_of_vectors_and_errors_that_are_not_there(
    plt: Any, container: wcodec.Container, rated: tuple[wcodec.CompressionReport, wcodec.Container]
) -> None:
    assert "norm" in labels(rated[1].plot.heatmap(vectors=True))
    with pytest.raises(wcodec.InputError, match="no errors are stated"):
        container.plot.heatmap("error")
    with pytest.raises(wcodec.InputError, match="goes with by='speed' only"):
        container.plot.heatmap("bits", threads=2)
    with pytest.raises(wcodec.InputError, match="by"):
        container.plot.heatmap("colour")
    vector = wcodec.open(wcodec.compress_to_bytes({"v": np.ones(3, np.float32)})[0])
    with pytest.raises(wcodec.InputError, match="no matrix to draw"):
        vector.plot.heatmap()


def test_the_command_draws_it(plt: Any, rated: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wcodec.cli import main

    picture = tmp_path / "heatmap.png"
    assert main(["inspect", rated[1].path, "--summary", "--plot", str(picture), "--by", "error"]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main(["inspect", rated[1].path, "--plot", str(tmp_path / "x.nothing")]) == 2
    assert "end the name in .png" in capsys.readouterr().err


def test_reports_plot_themselves(
    plt: Any, rated: tuple[wcodec.CompressionReport, wcodec.Container], tmp_path: Path
) -> None:
    from matplotlib.colors import to_hex

    report, container = rated
    assert labels(report.plot.heatmap()) == labels(container.plot.heatmap())
    ax = report.plot.sizes()
    assert "layers.*.experts.*.w" in labels(ax)
    total = sum(bar.get_width() for bar in ax.patches) * 2**20
    assert total == pytest.approx(report.original_bytes + sum(t.stored_bytes for t in report.tensors))
    damaged = bytearray(Path(str(container.path)).read_bytes())
    damaged[next(s for s in container["layers.3.up.weight"].segments if s.role == "data").offset] ^= 1
    (tmp_path / "d.wcodec").write_bytes(damaged)
    ax = wcodec.verify(tmp_path / "d.wcodec", progress=False).plot.status()
    red = [place for place, patch in cells(ax).items() if to_hex(patch.get_facecolor()) == "#d0342c"]
    assert red == [(1.0, labels(ax).index("up"))]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["damaged", "ok"]
    verified = wcodec.verify(container.path, {n: e.numpy() for n, e in container.items()}, progress=False)
    assert labels(verified.plot.error())[-1] == "head"
    with pytest.raises(wcodec.InputError, match="against"):
        wcodec.verify(container.path, progress=False).plot.error()
    comparison = wcodec.compare(container, container)
    assert {to_hex(p.get_facecolor()) for p in comparison.plot.status().patches} == {"#2e9e6b"}
    assert len(comparison.plot.sizes().patches) == 2 * 4


def test_every_report_plots_itself_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from wcodec import _plan
    from wcodec._api import doctor

    reports = [
        getattr(wcodec, name) for name in wcodec.__all__ if name.endswith(("Report", "Comparison", "Statistics"))
    ]
    assert len(reports) > 9 and all(isinstance(report.plot, property) for report in reports)
    found = doctor.DoctorReport("1", "3", "x", {}, {}, (), (), {}, {}, {}, (doctor.Check("CPU", True, ""),))
    plan = object.__new__(_plan.PlanReport)
    object.__setattr__(plan, "candidates", ())
    object.__setattr__(plan, "roles", ())
    for draw in (plan.plot.bits, plan.plot.candidates):
        with pytest.raises(wcodec.InputError):
            draw()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(wcodec.UnsupportedError, match="pip install matplotlib"):
        found.plot.checks()
