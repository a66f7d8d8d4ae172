"""The sweep over architectures: a sample of it, and that its checks find faults that are planted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.sweep import checks, command, configs, models, operands, report, worker  # noqa: E402

# Models of different kinds: dense, tied, convolutions of GPT-2, experts, state space, latent attention, encoders and
# decoders, images, sounds, and modules that stay in float32.
SAMPLE = [
    ("AutoModelForCausalLM", "qwen2"),
    ("AutoModelForCausalLM", "gpt2"),
    ("AutoModelForCausalLM", "mixtral"),
    ("AutoModelForCausalLM", "mamba"),
    ("AutoModelForCausalLM", "deepseek_v3"),
    ("AutoModelForSeq2SeqLM", "t5"),
    ("AutoModelForMaskedLM", "bert"),
    ("AutoModelForSequenceClassification", "roberta"),
    ("AutoModelForQuestionAnswering", "distilbert"),
    ("AutoModelForSpeechSeq2Seq", "whisper"),
    ("AutoModelForImageClassification", "vit"),
    ("AutoModelForImageTextToText", "llava"),
    ("AutoModel", "clip"),
]


@pytest.mark.parametrize(("auto", "architecture"), SAMPLE, ids=lambda value: value.removeprefix("AutoModelFor"))
def test_a_sample_is_whole(auto: str, architecture: str) -> None:
    record = checks.check(getattr(transformers, auto), architecture)
    assert record["transformers"] == "" and record["forward"] == "", record
    assert not report.faults(record), report.faults(record)
    assert len(record["steps"]) > 20 and record["share"] >= report.SHARE


def test_every_auto_class_has_architectures() -> None:
    assert len(configs.AUTO_CLASSES) == 13
    assert all(len(configs.architectures(auto)) > 5 for auto in configs.AUTO_CLASSES)


def test_hybrids_keep_a_layer_of_each_kind() -> None:
    config = next(configs.small_configs("qwen3_next", "AutoModelForCausalLM"))
    assert {"full_attention", "linear_attention"} <= set(config.layer_types)
    assert len(config.layer_types) == config.num_hidden_layers < 6


def test_sections_of_rotary_positions_fit_the_head() -> None:
    text = next(configs.small_configs("qwen2_vl", "AutoModelForImageTextToText")).text_config
    assert sum(text.rope_parameters["mrope_section"]) == text.hidden_size // text.num_attention_heads // 2


class Faulty(checks.Ways):
    """Ways to load that make something of a model wrong afterwards."""

    def __init__(self, harm: Any) -> None:
        super().__init__(transformers.AutoModelForCausalLM)
        self.harm = harm

    def by_load_model(self, folder: Path, **options: Any) -> Any:
        model = super().by_load_model(folder, **options)
        with torch.no_grad():
            self.harm(model)
        return model


def draw_a_norm(model: Any) -> None:
    model.model.norm.weight.normal_()


def lose_a_module(model: Any) -> None:
    model.model.norm = torch.nn.Identity()


def widen_a_norm(model: Any) -> None:
    model.model.norm.float()


def change_a_matrix(model: Any) -> None:
    import wcodec

    wcodec.decompress_(model, include="*.up_proj")
    model.model.layers[0].mlp.up_proj.weight[0, 0] += 1


def change_a_buffer(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(1.5)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (draw_a_norm, "model.norm.weight: off by"),
        (lose_a_module, "model.norm.weight: gone"),
        (widen_a_norm, "model.norm.weight: float32 in place of bfloat16"),
        (change_a_matrix, "model.layers.0.mlp.up_proj.weight: off by"),
        (change_a_buffer, "inv_freq: off by"),
    ],
)
def test_a_planted_fault_is_found(harm: Any, told: str, tmp_path: Path) -> None:
    sweep = checks.Sweep(transformers.AutoModelForCausalLM, "llama", tmp_path, Faulty(harm))
    assert sweep.prepare()
    compressed = checks.copy.deepcopy(sweep.model)
    assert sweep._compress(compressed, "int8") == []
    compressed.save_pretrained(tmp_path / "saved")
    state = models.state(checks.plain(compressed))
    sweep._load("saved", tmp_path / "saved", state, models.forward(compressed, sweep.inputs or {}))
    steps = sweep.record["steps"]
    assert steps["saved, AutoModel"] == "" and told in steps["saved, load_model"], steps


def test_a_fault_of_the_encoder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are off, a matrix that is left out without a word, and an error are told, and nothing else is."""
    sweep = checks.Sweep(transformers.AutoModelForCausalLM, "llama", tmp_path)
    assert sweep.prepare()
    real = checks.wcodec.compress_

    def off(model: Any, **options: Any) -> Any:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(1.2)
        return real(model, **options)

    def left(model: Any, **options: Any) -> Any:
        made = real(model, exclude="*.up_proj", **options)
        object.__setattr__(made, "skipped", ())
        return made

    for harm, told in (
        (off, "up_proj.weight: off by 0.2"),
        (left, "without a word: model.layers.0.mlp.up_proj.weight"),
    ):
        monkeypatch.setattr(checks.wcodec, "compress_", harm)
        found = sweep._compress(checks.copy.deepcopy(sweep.model), "int8")
        assert told in checks.listed(found), found


def test_uses_of_parameters_are_found() -> None:
    built = models.build(transformers.AutoModel, "clip")
    found = operands.uses(built.model, built.inputs or {})
    kinds = {use: [name for name in found if found[name] == use] for use in set(found.values())}
    assert "text_model.embeddings.token_embedding.weight" in kinds[operands.TABLE]
    assert "vision_model.embeddings.patch_embedding.weight" in kinds[operands.CONVOLUTION]
    assert "visual_projection.weight" in kinds[operands.PRODUCT]


def test_a_model_that_changes_its_inputs_is_given_copies() -> None:
    class Changes(torch.nn.Module):
        device = "cpu"
        config = transformers.PreTrainedConfig(dtype=torch.float32)

        def forward(self, input_ids: Any) -> Any:
            input_ids[0] += 1
            return input_ids * 1

    ids = torch.zeros(2, dtype=torch.long)
    assert checks.same(models.forward(Changes(), {"input_ids": ids}), [torch.tensor([1, 0])]) and not ids.any()


def test_differences() -> None:
    a = {"w": torch.ones(2, 2), "b": torch.tensor([1.0, float("nan")])}
    assert checks.differences(a, {name: t.clone() for name, t in a.items()}) == []
    assert checks.differences(a, {**a, "w": torch.ones(2, 2) * 1.01}, near=0.02) == []
    assert checks.differences({**a, "b": a["b"] * 1.01}, a, near=0.02) == ["b: off by 0.01"]
    assert checks.differences({}, a) == ["w: gone", "b: gone"]
    assert checks.differences(a, {}) == ["w: added", "b: added"]
    assert checks.differences({**a, "w": a["w"].half()}, a) == ["w: float16 in place of float32"]
    assert checks.differences({**a, "w": a["w"].half()}, a, dtypes=False) == []
    assert checks.differences({**a, "w": torch.empty(2, 2, device="meta")}, a) == ["w: without values"]


RECORDS = [
    {"auto": "AutoModel", "architecture": "a", "steps": {"x": ""}, "transformers": "", "forward": "", "share": 0.99},
    {"auto": "AutoModel", "architecture": "b", "steps": {"x": "a|b"}, "transformers": "", "forward": ""},
    {"auto": "AutoModelForCTC", "architecture": "d", "steps": {}, "transformers": "", "share": 0.5, "left": {"odd": 9}},
    {
        "auto": "AutoModel",
        "architecture": "c",
        "steps": {},
        "transformers": "cannot be built: ImportError: requires the",
    },
]


def test_the_table_stands_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.put(RECORDS, page)
    report.put(RECORDS, page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| `AutoModel` | 3 | 2 | 1 | 2 | 0 | 99.0% |" in text and "| `b` | x: a\\|b |" in text
    assert "It needs another library:\n\n- c (AutoModel)\n" in text and "Odd:\n\n- d (CTC, 50%)\n" in text


def test_a_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "records.jsonl"
    ran: list[Any] = []

    def run(tasks: Any, jobs: int, seconds: float, device: str) -> Any:
        ran.extend(tasks)
        for auto, name in list(tasks)[:1]:
            yield {"auto": auto, "architecture": name, "steps": {}}

    monkeypatch.setattr(command, "run", run)
    arguments = ["--auto", "AutoModelForCausalLM", "--only", "llama,gpt2", "--out", str(out)]
    assert command.main(arguments) == 0 and command.main(arguments) == 0
    assert len(ran) == 3 and len({tuple(task) for task in ran}) == 2
    assert {json.loads(line)["architecture"] for line in out.read_text().splitlines()} == {"llama", "gpt2"}
    assert command.main(["--auto", "AutoModelForNothing"]) == 2


WORKER = """
import json, sys
for line in sys.stdin:
    auto, name = json.loads(line)
    if name == "dies":
        sys.exit(3)
    print(json.dumps({"auto": auto, "architecture": name, "steps": {}}), flush=True)
"""


def test_a_process_that_dies_costs_its_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(seconds: float, device: str) -> Any:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", WORKER], stdin=pipe, stdout=pipe, text=True)

    monkeypatch.setattr(command, "_start", start)
    names = ["a", "dies", "b", "dies", "c"]
    records = list(command.run([("AutoModel", name) for name in names], jobs=1, seconds=5))
    assert [r["architecture"] for r in records] == names
    assert [bool(report.faults(r)) for r in records] == [False, True, False, True, False]
    assert "it ended with 3" in records[1]["steps"]["process"]


def test_a_model_that_takes_too_long_is_told() -> None:
    before = signal.signal(signal.SIGALRM, worker._late)
    try:
        assert "more than 0 s" in worker._record(lambda: time.sleep(5) or {}, 0.05)["steps"]["time"]
        assert "ValueError: no" in worker._record(raises, 5)["steps"]["check"]
    finally:
        signal.signal(signal.SIGALRM, before)


def raises() -> Any:
    raise ValueError("no")
