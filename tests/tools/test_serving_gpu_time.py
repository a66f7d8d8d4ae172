"""pyext/benches/serving/gpu_time: steps found among made-up events of a GPU, and their place in the table."""

from __future__ import annotations

import doctest
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "pyext/benches"))

from serving import gpu_time, table  # noqa: E402

MARKER = "at::cuda::(anonymous namespace)::spin_kernel(long)"
Event = tuple[str, int, int]


def test_examples_in_docstrings() -> None:
    found = doctest.testmod(gpu_time)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("seed", range(20))
def test_covered_time_is_that_of_all_nanoseconds_taken_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    begins = [rng.randrange(200) for _ in range(rng.randrange(12))]
    intervals = [(begin, begin + rng.randrange(40)) for begin in begins]
    assert gpu_time.covered(intervals) == len({at for begin, end in intervals for at in range(begin, end)})


def events_of(steps: int, first: int = 0) -> list[Event]:
    """Steps of 1,000 ns: a kernel of attention, two of wcodec of which one begins before the other ends, a copy to the
    host on another stream."""
    out = []
    for at in range(first, first + steps * 1000, 1000):
        out += [
            (MARKER, at, at + 10),
            ("attention", at + 20, at + 120),
            ("wcodec_huffman_int8_times_bf16_many8", at + 120, at + 320),
            ("wcodec_huffman_int8_times_bf16_many8", at + 300, at + 420),
            ("Memcpy DtoH (Device -> Pinned)", at + 500, at + 900),
        ]
    return out


def test_a_step_is_what_begins_between_two_markers() -> None:
    events = events_of(3)
    random.Random(0).shuffle(events)
    steps = gpu_time.steps_of(events, [32, 1, 1])
    # The last one has no marker behind it.
    assert steps == [gpu_time.Step(count, 400, 300, 320, 3, 1000) for count in (32, 1)]


def test_a_kernel_that_begins_under_a_marker_is_of_its_step() -> None:
    """Programmatic launches do not wait for the end of what is before them."""
    events = [(MARKER, 0, 10), ("a", 5, 30), (MARKER, 40, 50), ("b", 45, 60), (MARKER, 90, 99)]
    assert [(step.busy, step.kernels) for step in gpu_time.steps_of(events, [1, 1, 1])] == [(25, 1), (15, 1)]


@pytest.mark.parametrize(("markers", "said"), [(0, "saw 0 of 3 steps"), (2, "saw 2 of 3"), (4, "saw 4 of 3")])
def test_lost_markers_are_noticed(markers: int, said: str) -> None:
    with pytest.raises(gpu_time.NoTimes, match=said):
        gpu_time.steps_of(events_of(markers), [32, 1, 1])


def test_a_summary_is_of_steps_with_so_many_tokens() -> None:
    steps = [gpu_time.Step(8, busy, busy // 2, busy, 40, 9000) for busy in (3000, 1000, 2000)]
    steps.append(gpu_time.Step(256, 10**6, 0, 0, 40, 10**6))
    found = gpu_time.summary(steps, 8)
    assert found == {
        "us": 2, "spread": [1, 3], "own_us": 1, "own_sum_us": 2, "span_us": 9, "kernels": 40, "steps": 3
    }  # fmt: skip
    with pytest.raises(gpu_time.NoTimes, match="saw 0 kernels of a step of 1 tokens"):
        gpu_time.summary(steps, 1)
    with pytest.raises(gpu_time.NoTimes, match="saw 40 kernels of a step of 8 tokens, which has 41 or more"):
        gpu_time.summary(steps, 8, 41)


class FakeEngine:
    """A worker whose GPU is made up: each step's events are those of :func:`events_of`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, other_ranks: int = 0) -> None:
        self.events: list[Event] | None = None
        self.runner = Runner()
        self.workers = [SimpleNamespace(rank=0, model_runner=self.runner)]
        # They have no runner: nothing is done there.
        self.workers += [SimpleNamespace(rank=rank + 1) for rank in range(other_ranks)]
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self._add())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.profiler, "profile", lambda activities: FakeProfile(self))
        activities = {torch.profiler.ProfilerActivity.CUDA}
        monkeypatch.setattr(torch.profiler, "supported_activities", lambda: activities)

    def _add(self) -> None:
        assert self.events is not None
        self.events += events_of(1, len(self.events) * 1000)

    def rpc(self, function: Any) -> list[Any]:
        return [function(worker) for worker in self.workers]

    def run(self, count: int, tokens: int, length: int = 32) -> None:
        for step in range(tokens):
            scheduled = SimpleNamespace(total_num_scheduled_tokens=count * (1 if step else length))
            assert self.runner.execute_model(scheduled, "tensors") == "tensors"


class Runner:
    def execute_model(self, scheduled: Any, tensors: Any) -> Any:
        return tensors


class FakeProfile:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine

    def start(self) -> None:
        self.engine.events = []

    def stop(self) -> None:
        cpu = FakeEvent("cudaGraphLaunch", 0, 99, torch.autograd.DeviceType.CPU)
        found = [cpu, *(FakeEvent(*event) for event in self.engine.events or [])]
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: found))


class FakeEvent:
    def __init__(self, name: str, begin: int, end: int, device: Any = torch.autograd.DeviceType.CUDA) -> None:
        self.name, self.device_type = lambda: name, lambda: device
        self.start_ns, self.duration_ns = lambda: begin, lambda: end - begin


Told = list[tuple[str, dict[str, Any]]]


def measured(engine: FakeEngine, least: int = 2) -> Told:
    told: Told = []
    gpu_time.measure(
        engine.rpc, engine.run, lambda: engine.run(1, 2, 2048), (1, 8), 2048, least,
        lambda kind, **values: told.append((kind, values)),
    )  # fmt: skip
    return told


@pytest.mark.parametrize("other_ranks", [0, 1])
def test_an_engine_is_measured_by_its_first_rank(monkeypatch: pytest.MonkeyPatch, other_ranks: int) -> None:
    engine = FakeEngine(monkeypatch, other_ranks=other_ranks)
    told = measured(engine)
    assert [kind for kind, _ in told] == ["gpu-step", "gpu-step", "gpu-prefill"]
    assert [values.get("sequences") for _, values in told] == [1, 8, None]
    assert [values["steps"] for _, values in told] == [gpu_time.STEPS, gpu_time.STEPS, gpu_time.PREFILLS]
    assert all(values["us"] == 0.4 and values["own_us"] == 0.3 and values["kernels"] == 3 for _, values in told)
    # The runner is as it was.
    assert not vars(engine.runner)


def test_without_a_profiler_nothing_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(monkeypatch)
    assert measured(engine, least=4) == [
        ("no-gpu-time", {"reason": "torch's profiler saw 3 kernels of a step of 1 tokens, which has 4 or more"})
    ]
    monkeypatch.setattr(FakeProfile, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no CUPTI")))
    assert measured(engine) == [("no-gpu-time", {"reason": "RuntimeError: no CUPTI"})]
    assert not vars(engine.runner)
    monkeypatch.setattr(torch.profiler, "supported_activities", set)
    assert "its build has no CUPTI" in measured(engine)[0][1]["reason"]


def lines(*, gpu: bool) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for scheme, us, own in (("bf16", 1450.0, 0.0), ("int8", 1160.0, 800.0)):
        key = {"model": "tinyllama", "scheme": scheme, "mode": "graphs", "ranks": 1, "limit": None}
        out += [
            {"kind": "engine", **key, "used_bytes": 3 * 10**9, "cache_bytes": 10**9, "long_sequences": 2},
            {"kind": "speed", **key, "sequences": 8, "tokens_per_s": 600.0},
            {"kind": "prefill", **key, "tokens": 2048, "tokens_per_s": 6000.0},
        ]
        if gpu:
            out += [
                {"kind": "gpu-step", **key, "sequences": 8, "us": us, "own_us": own},
                {"kind": "gpu-prefill", **key, "tokens": 2048, "us": us * 10, "own_us": own},
            ]
        else:
            out.append({"kind": "no-gpu-time", **key, "reason": "no CUPTI"})
    return out


ABOUT = {"card": "a card", "driver": None, "commit": "abc", "versions": {}, "date": "2026-01-01"}


def test_the_table_has_the_time_of_the_gpu_beside_tokens_per_second() -> None:
    rows = table.table(ABOUT, lines(gpu=True)).splitlines()
    assert "| vLLM, graphs | 1 | all | 600 | 6,000 |" in rows[4]
    assert "| 600 (1.00; GPU 1.25) | 6,000 (1.00; GPU 1.25) |" in rows[5]
    at = rows.index(gpu_time.NOTE)
    assert rows[at + 2].endswith("| card of | 8 sequences | prefill of 2,048 |")
    assert rows[at + 4] == "| tinyllama | bf16 | vLLM, graphs | 1 | all | 1,450 | 14,500 |"
    start = "| tinyllama | int8 | vLLM, graphs | 1 | all | "
    assert rows[at + 5] == start + "1,160 (1.25), wcodec 800 | 11,600 (1.25), wcodec 800 |"


def test_the_table_says_where_there_is_no_time_of_the_gpu() -> None:
    text = table.table(ABOUT, lines(gpu=False))
    assert "No GPU time: tinyllama int8 vLLM, graphs, 1 ranks: no CUPTI" in text
    assert gpu_time.NOTE not in text and "GPU 1" not in text and "| 600 (1.00) |" in text
