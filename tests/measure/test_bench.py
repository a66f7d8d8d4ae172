"""Speeds, memory and plots: that they measure what they say, as far as a CPU can tell."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec._measure import BenchReport, Span, Speed, bench, compare_kv_cache, evaluate, measure_vram
from wcodec._measure import profile as profiling

from tests.measure.test_evaluate import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = list(range(40))


class Slow(torch.nn.Module):
    """A layer that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Any) -> Any:
        time.sleep(self.seconds)
        return x


@pytest.fixture(scope="module")
def measured() -> BenchReport:
    slow = tiny()
    slow.model.norm = torch.nn.Sequential(slow.model.norm, Slow(0.02))
    return bench(slow, baseline=tiny(), batch=(1, 2), prompt_tokens=8, new_tokens=6, repeats=3, profile=True)


def test_speeds(measured: BenchReport) -> None:
    assert [(row.model, row.batch) for row in measured.rows] == [
        ("model", 1), ("baseline", 1), ("model", 2), ("baseline", 2),
    ]  # fmt: skip
    for batch in (1, 2):
        row = measured.row(batch)
        # Each token takes at least the 20 ms that the layer sleeps; prompts of 8 tokens are one step.
        assert row.decode.high <= batch / 0.02 and row.prefill.high <= batch * 8 / 0.02
        assert len(row.decode.samples) == len(row.prefill.samples) == 3 and row.peak_bytes is None
        assert row.decode.low <= row.decode.median <= row.decode.high
        other = measured.row(batch, "baseline")
        assert measured.ratio(batch) == row.decode.median / other.decode.median
        assert measured.ratio(batch, "prefill") == row.prefill.median / other.prefill.median
    with pytest.raises(KeyError):
        measured.row(3)


def test_profile(measured: BenchReport) -> None:
    layers = {t.name: t for t in measured.layers if t.model == "model"}
    sleeping = layers["model.norm.1"]
    assert sleeping.kind == "Slow" and 0.02 <= sleeping.seconds and sleeping.calls == 6
    assert 0 < sleeping.share < 1 and sum(t.share for t in layers.values() if t.kind != "LlamaDecoderLayer") < 1
    blocks = [name for name, t in layers.items() if t.kind == "LlamaDecoderLayer"]
    assert blocks == ["model.layers.0", "model.layers.1"]
    assert "model.layers.0.mlp.up_proj" in layers and "lm_head" in layers and "model.layers" not in layers
    assert layers["model.layers.0"].seconds >= layers["model.layers.0.mlp.up_proj"].seconds
    slow, fast = measured.splits
    assert (slow.model, fast.model) == ("model", "baseline") and slow.wall > 0.02
    assert slow.copy == 0 and slow.decode == 0 and 0 < fast.product < fast.wall


def test_timeline(plt: Any) -> None:
    model = tiny()
    wcodec.compress_(model, cache=0)
    report = bench(model, baseline=tiny(), batch=1, prompt_tokens=4, new_tokens=2, repeats=1, profile=True)
    for what, kinds in (("model", {"decode", "product", "other"}), ("baseline", {"product", "other"})):
        spans = [span for span in report.spans if span.model == what]
        assert {span.kind for span in spans} == kinds and spans[0].begin == 0
        # One thread does one thing at a time: what it calls is not counted twice.
        for before, after in zip(spans, spans[1:], strict=False):
            assert before.begin + before.seconds <= after.begin + 1e-9
    assert {span.name for span in report.spans if span.kind == "decode"} == {"wcodec decodes"}
    decoded = [span.seconds for span in report.spans if span.kind == "decode"]
    # As many as layers, or fewer where a block is decoded at once; split() sums over tokens, which differ.
    assert len(decoded) >= 2 and report.splits[0].decode > 0 and report.splits[1].decode == 0
    ax = report.plot.timeline()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["decode weights", "matrix products", "other"]
    bars = ax.collections[0].get_paths()
    assert len(bars) == len(decoded)
    assert [t.get_text() for t in ax.texts][0] == f"{1e3 * sum(decoded):.2f} ms"
    assert "baseline" not in json.dumps(report.to_dict()["splits"][0]) and "spans" not in report.to_dict()
    with pytest.raises(wcodec.InputError, match="no token of the other"):
        report.plot.timeline(model="other")


def test_timeline_shows_short_kernels(plt: Any, measured: BenchReport) -> None:
    spans = (Span("model", "product", "long", 0.0, 0.1), Span("model", "decode", "short", 0.05, 1e-6))
    ax = dataclasses.replace(measured, spans=spans).plot.timeline()
    (short,) = ax.collections[0].get_paths()
    assert short.get_extents().width >= 100 / 400 and [t.get_text() for t in ax.texts] == ["0.00 ms", "100.00 ms"]


def test_older_torch_does_not_say_what_was_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.autograd.profiler_util import FunctionEvent

    made = FunctionEvent.__init__

    def without(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        self.__dict__.pop("is_user_annotation", None)

    monkeypatch.setattr(FunctionEvent, "__init__", without)
    report = bench(tiny(), batch=1, prompt_tokens=4, new_tokens=2, repeats=1, profile=True)
    assert report.splits[0].decode == 0 and {span.kind for span in report.spans} == {"product", "other"}


def test_profiling_fits_the_positions() -> None:
    model = tiny()
    options = {"batch": 1, "prompt_tokens": 58, "new_tokens": 4, "repeats": 1}
    assert model.config.max_position_embeddings == 64
    with pytest.raises(wcodec.InputError, match="64 positions"):
        bench(model, profile=True, **options)
    longest = 64 - profiling.positions(4)
    bench(model, profile=True, **{**options, "prompt_tokens": longest})


def test_hooks_are_gone() -> None:
    model = tiny()
    bench(model, batch=1, prompt_tokens=4, new_tokens=2, repeats=1, profile=True)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_bench_alone() -> None:
    done: list[tuple[int, int]] = []
    model = tiny()
    model.generation_config.eos_token_id = list(range(96))  # it would stop at once
    report = bench(model, batch=3, prompt_tokens=4, new_tokens=3, repeats=2, progress=lambda *s: done.append(s))
    assert report.ratio(3) is None and done == [(1, 3), (2, 3), (3, 3)]
    assert not report.layers and not report.splits
    assert "batch 3" in repr(report) and len(report.tables()) == 1


def test_bench_prints(measured: BenchReport) -> None:
    record = json.loads(json.dumps(measured.to_dict()))
    assert record["rows"][0]["decode_of_baseline"] == measured.ratio(1)
    assert record["rows"][1]["decode_of_baseline"] is None and record["layers"] and record["splits"]
    speeds, split, layers = measured.tables()
    assert speeds.splitlines()[0].startswith("batch  model") and "whole token ms" in split and "lm_head" in layers
    assert "Slow" in measured._repr_html_()
    assert str(Speed((10.0, 12.0, 11.0))) == "11.0 (10.0 to 12.0)"


def test_bench_refuses() -> None:
    model = tiny()
    options = {"batch": 1, "prompt_tokens": 4, "new_tokens": 3, "repeats": 1}
    for change, message in (
        ({"new_tokens": 1}, "at least 2"),
        ({"batch": ()}, "batch must be whole numbers"),
        ({"batch": 1.5}, "batch must be|iterable"),
        ({"repeats": 0}, "repeats must be"),
        ({"prompt_tokens": 62}, "65 tokens are more than the model's 64 positions"),
        ({"baseline": torch.nn.Linear(2, 2)}, "baseline has no generate"),
        ({"baseline": tiny().to("meta")}, "move both to one device"),
    ):
        with pytest.raises((wcodec.InputError, TypeError), match=message):
            bench(model, **{**options, **change})


def test_kinds_of_kernels() -> None:
    names = {
        "wcodec_huffman_pair_bf16": "decode",
        "void nvcomp::zstd_decode<4>": "decode",
        "Memcpy HtoD (Pinned -> Device)": "copy",
        "Memcpy DtoD (Device -> Device)": "other",
        "sm90_xmma_gemm_bf16bf16_bf16f32": "product",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16>": "product",
        "void cutlass::Kernel2<cutlass_80_tensorop>": "product",
        "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT": "product",
        "void at::native::elementwise_kernel": "other",
        "flash_fwd_splitkv_kernel": "other",
        "aten::addmm": "product",
        "aten::add": "other",
        "wcodec::linear": "decode",
    }
    assert {name: profiling.kind_of(name) for name in names} == names


def test_memory_of_the_process() -> None:
    model = tiny(tie_word_embeddings=True)
    report = measure_vram(model)
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert report.device == "cpu" and report.allocated is report.reserved is None
    assert report.used > 10 << 20 and report.peak_used >= report.used * 0.5 and report.total > report.used
    parts = {part.name: part for part in report.parts}
    assert parts["weights as they are"].bytes == weights and parts["weights as they are"].device == "cpu"
    assert report.model_bytes == sum(part.bytes for part in report.parts)
    assert measure_vram(device="cpu").parts == ()
    # However much the tests before it have left in memory.
    assert re.search(r"used: [\d.]+ [MG]iB", repr(report)) and "iB</td>" in report._repr_html_()
    assert json.loads(json.dumps(report.to_dict()))["used"] == report.used
    big = torch.ones(64 << 20, dtype=torch.uint8)
    assert measure_vram(device="cpu").used - report.used > big.numel() * 0.7
    with pytest.raises(wcodec.InputError, match="torch.nn.Module"):
        measure_vram("model")
    with pytest.raises(wcodec.InputError, match="device"):
        measure_vram(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(wcodec.DeviceError):
            measure_vram(device="cuda")


def test_where_layers_are(plt: Any) -> None:
    models = {"none": tiny(), "some": tiny()}
    for cache, model in zip((None, "50KB"), models.values(), strict=True):
        wcodec.compress_(model, cache=cache, progress=False)
        model(torch.arange(4)[None])
    ax = None
    for label, model in models.items():
        report = measure_vram(model)
        compressed = [m for m in model.modules() if isinstance(m, wcodec.nn.CompressedLayer)]
        assert [layer.bytes for layer in report.layers] == [m.stored_bytes for m in compressed]
        assert [layer.cached for layer in report.layers] == [m.cached for m in compressed]
        assert [layer.looked_up for layer in report.layers] == [m.looked_up for m in compressed]
        ax = report.plot.layers(ax, label=label)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["none", "some"]
    for row in (0, 1):
        strip = [bar for bar in ax.patches if bar.get_y() == pytest.approx(row - 0.4)]
        whole = sum(layer.bytes for layer in measure_vram(list(models.values())[row]).layers)
        assert sum(bar.get_width() for bar in strip) * (1 << 20) == pytest.approx(whole)
    shown = {text.get_text() for text in ax.get_legend().get_texts()}
    assert shown == {"rows are looked up", "decoded for each token", "stays decoded"}
    with pytest.raises(wcodec.InputError, match="no compressed layer"):
        measure_vram(tiny()).plot.layers()


def test_plots(plt: Any, measured: BenchReport) -> None:
    model = tiny()
    report = evaluate(model, IDS, baseline=tiny(1))
    cache = compare_kv_cache(model, IDS[:4], tokens=6)
    calls = {
        report.plot.kl: "nats per token",
        report.plot.perplexity: "",
        evaluate(model, IDS).plot.perplexity: "",
        evaluate(model, IDS, baseline=model).plot.kl: "nats per token",
        measured.plot.speed: "sequences",
        measured.plot.split: "ms per token",
        measured.plot.layers: "ms per call",
        measured.plot.timeline: "ms from the begin",
        measure_vram(model).plot.parts: "MiB",
        cache.plot.kl: "new token",
    }
    for style in ("default", "dark_background"):
        with plt.style.context(style):
            for call, label in calls.items():
                axes = plt.subplots()[1]
                assert call(ax=axes) is axes
                assert label in axes.get_xlabel() and (axes.get_ylabel() or axes.get_xlabel())
                fresh = call()
                assert fresh is not axes
                fresh.figure.canvas.draw()
                background = np.array(fresh.figure.get_facecolor()[:3])
                ink = np.array(plt.matplotlib.colors.to_rgb(fresh.xaxis.label.get_color()))
                assert abs(background.mean() - ink.mean()) > 0.5
                plt.close("all")
    bars = measured.plot.speed(what="prefill").patches
    assert [b.get_height() for b in bars] == [
        measured.row(b, m).prefill.median for m in ("baseline", "model") for b in (1, 2)
    ]


def test_plots_of_what_was_not_measured(plt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    report = bench(model, batch=1, prompt_tokens=4, new_tokens=2, repeats=1)
    for call, message in (
        (evaluate(model, IDS).plot.kl, "without a baseline"),
        (lambda: evaluate(model, IDS, baseline=model).plot.kl(what="blue"), "unknown what 'blue'"),
        (report.plot.split, "profile=True"),
        (report.plot.layers, "profile=True"),
        (report.plot.timeline, "profile=True"),
        (report.plot.memory, "on a GPU"),
        (lambda: report.plot.speed(what="sleep"), "no speed of 'sleep'"),
        (measure_vram(device="cpu").plot.parts, "no model"),
    ):
        with pytest.raises(wcodec.InputError, match=message):
            call()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(wcodec.UnsupportedError, match="pip install matplotlib"):
        report.plot.speed()


class Store:
    """A store behind compressed layers on a GPU, as far as a report of memory asks."""

    def __init__(
        self, residency: str, device_bytes: int, host_bytes: int, host_ring_bytes: int = 0, on_disk: int = 0
    ) -> None:
        self.residency, self.device_bytes, self.host_bytes = residency, device_bytes, host_bytes
        self.host_ring_bytes, self.on_disk = host_ring_bytes, on_disk

    def disk_bytes(self, device: Any) -> int:
        return self.on_disk

    def entry(self, name: str) -> Any:
        return type("Entry", (), {"name": name.removesuffix(".tied"), "stored_bytes": 100})()


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (Store("device", 350, 0), {"compressed embeddings": 100, "compressed layers": 250}),
        (Store("host", 130, 200), {"compressed embeddings": 100, "ring for streamed layers": 30, "pinned": 200}),
        (
            Store("disk", 130, 45, 45, 250),
            {
                "compressed embeddings": 100,
                "ring for streamed layers": 30,
                "pinned": 45,
                "compressed layers, read when needed": 250,
            },
        ),
        (Store("device", 0, 0), {}),
    ],
)
def test_parts_on_a_gpu(store: Store, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from wcodec._measure import memory

    layers = [
        type("Layer", (), {"tensors": (name,), "looked_up": name.startswith("embed")})()
        for name in ("embed", "q", "k", "k.tied")
    ]
    monkeypatch.setattr(memory, "_stores", lambda model: [(store, torch.device("cuda", 0), layers)])
    parts = list(memory._parts(torch.nn.Identity()))
    found = {"pinned" if part.device == "cpu (pinned)" else part.name: part.bytes for part in parts}
    assert found == expected
    assert {part.device for part in parts} <= {"cuda:0", "cpu (pinned)", "disk"}
