"""``x.plot()`` draws the default picture of whatever has plots, and ``x.plot`` shows which others there are."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec import _plot
from wcodec._plot.accessor import Plots

KINDS = [getattr(_plot, name) for name in _plot.__all__]


def title(ax: Any) -> Any:
    return [ax.get_xlabel(), ax.get_ylabel(), len(ax.patches), len(ax.lines)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """Objects that need no model: each with the picture that its call is to be."""
    rng = np.random.default_rng(3)
    weights = {f"layers.{i}.up.weight": rng.standard_normal((64, 256)).astype(np.float32) for i in range(3)}
    weights |= {"layers.0.norm.weight": np.ones(64, np.float32), "ids": np.arange(7)}
    path = tmp_path_factory.mktemp("plots") / "m.wcodec"
    report = wcodec.compress(weights, path, bits=4, progress=False)
    container = wcodec.open(path)
    entry = container["layers.1.up.weight"]
    plain = wcodec.open(wcodec.compress_to_bytes(weights, scheme="lossless")[0])["layers.1.up.weight"]
    verified, comparison = wcodec.verify(path, progress=False), wcodec.compare(container, container)
    return {
        "report": (report, report.plot.heatmap),
        "container": (container, container.plot.heatmap),
        "entry": (entry, lambda: container.plot.symbols(entry.name)),
        "plain entry": (plain, plain.plot.values),
        "verified": (verified, verified.plot.status),
        "comparison": (comparison, comparison.plot.status),
        "doctor": (wcodec.doctor(), lambda: wcodec.doctor().plot.checks()),
        "plan": (planned := wcodec.plan(weights, budget="4 bits"), planned.plot.bits),
    }


@pytest.mark.parametrize(
    "name", ["report", "container", "entry", "plain entry", "verified", "comparison", "doctor", "plan"]
)
def test_a_call_draws_the_default(plt: Any, drawn: dict[str, Any], name: str) -> None:
    thing, default = drawn[name]
    assert title(thing.plot()) == title(default())
    axes = plt.subplots()[1]
    assert thing.plot(ax=axes) is axes


def test_models_and_what_is_measured_of_them(plt: Any, model: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    original = transformers.AutoModelForCausalLM.from_pretrained(model)
    ids = list(range(1, 40))
    statistics = wcodec.calibrate(original, data=ids, windows=1, length=16, full=False)
    replaced = wcodec.compress_(original, bits=4, progress=False)
    evaluated = wcodec.evaluate(original, ids, model)
    alone = wcodec.evaluate(original, ids)
    benched = wcodec.bench(original, batch=1, prompt_tokens=2, new_tokens=2, repeats=1)
    memory, caches = wcodec.measure_vram(original), wcodec.compare_kv_cache(original, [1, 2], 2, ["float16"])
    ranks = wcodec.ranks(model, (2,), bits=4)
    frontier = wcodec.frontier(model, torch.arange(1, 1100) % 500, bits=4, coder="huffman", windows=1)
    for thing, default in (
        (statistics, statistics.plot.factors),
        (statistics.report, statistics.report.plot.tokens),
        (replaced, replaced.plot.memory),
        (evaluated, evaluated.plot.kl),
        (alone, alone.plot.perplexity),
        (benched, benched.plot.speed),
        (memory, memory.plot.parts),
        (caches, caches.plot.kl),
        (ranks, ranks.plot.memory),
        (frontier, frontier.plot.kl),
    ):
        assert title(thing.plot()) == title(default()), type(thing).__name__
        assert repr(thing.plot).startswith(f"Plots of a {type(thing).__name__}\n  plot() ")


def test_every_object_with_plots_has_a_default() -> None:
    for kind in KINDS:
        assert issubclass(kind, Plots) and kind._kinds()
        if "_default" in vars(kind):
            assert kind._default in kind._kinds()
        for name in kind._kinds():
            assert "ax" in inspect.signature(getattr(kind, name)).parameters, (kind, name)
    owners = [getattr(wcodec, n) for n in wcodec.__all__ if isinstance(getattr(wcodec, n), type)]
    assert len([owner for owner in owners if isinstance(getattr(owner, "plot", None), property)]) == len(KINDS)


def test_another_picture_by_its_name(plt: Any, drawn: dict[str, Any]) -> None:
    report, container = drawn["report"][0], drawn["container"][0]
    assert title(report.plot("sizes")) == title(report.plot.sizes())
    assert title(report.plot(kind="heatmap", by="share")) == title(report.plot.heatmap("share"))
    assert title(report.plot(by="error")) == title(report.plot.heatmap("error"))
    name = "layers.1.up.weight"
    assert title(container.plot("scales", name=name)) == title(container.plot.scales(name))
    assert title(container[name].plot("scales")) == title(container.plot.scales(name))


def test_the_list_of_pictures(drawn: dict[str, Any]) -> None:
    shown = repr(drawn["container"][0].plot)
    assert shown.splitlines()[:3] == [
        "Plots of a Container",
        "  plot()          the default: heatmap",
        "  plot.heatmap()  Layers and roles as a heat map",
    ]
    assert "plot.scales()" in shown and ":meth:" not in shown and "``" not in shown
    assert "the default: symbols" in repr(drawn["entry"][0].plot)
    assert "the default: values" in repr(drawn["plain entry"][0].plot)
    assert all(len(line) < 120 for line in shown.splitlines())


def test_a_picture_that_there_is_not(drawn: dict[str, Any]) -> None:
    plots = drawn["report"][0].plot
    with pytest.raises(wcodec.InputError, match=r"a CompressionReport has no plot 'size' \(did you mean sizes\?"):
        plots("size")
    with pytest.raises(AttributeError, match=r"a CompressionReport has no plot 'bars' \(it has heatmap, sizes\)"):
        _ = plots.bars
    with pytest.raises(wcodec.InputError, match=r"plot.heatmap has no keyword byy \(did you mean by\?"):
        plots(byy="error")
    with pytest.raises(wcodec.InputError, match=r"plot.sizes has no keyword top"):
        plots("sizes", top=3)
    assert isinstance(copy.copy(plots), type(plots)) and not hasattr(plots, "_ipython_display_")


def test_values(plt: Any) -> None:
    values = np.array([[0.5, -1.5, np.nan, 2.0]] * 16, np.float32)
    data, _ = wcodec.compress_to_bytes({"w": values, "same": np.ones((2, 4), np.float16), "ids": np.arange(3),
                                        "none": np.zeros((0, 4), np.float32)}, scheme="raw")  # fmt: skip
    container = wcodec.open(data)
    ax = container["w"].plot.values(bins=7)
    assert sum(bar.get_height() for bar in ax.patches) == 48 and ax.get_yscale() == "log"
    (facts,) = [text.get_text() for text in ax.texts]
    assert "largest: 2\n" in facts and "16 not finite left out" in facts
    assert sum(bar.get_height() for bar in container["same"].plot().patches) == 8
    with pytest.raises(wcodec.InputError, match="values of dtype I64 are not drawn"):
        container["ids"].plot()
    with pytest.raises(wcodec.InputError, match="no values to draw"):
        container["none"].plot()
