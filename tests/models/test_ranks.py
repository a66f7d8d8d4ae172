"""Planning how many bytes each of several ranks holds, without weights."""

from pathlib import Path

import pytest
import wcodec
from command import call, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from small_models import llama, mixtral  # noqa: E402
from wcodec._models import names  # noqa: E402

LARGE = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8}


def config_of(place: Path, **sizes: object) -> Path:
    config = transformers.LlamaConfig(
        **sizes, architectures=["LlamaForCausalLM"], dtype="bfloat16", tie_word_embeddings=False
    )
    config.save_pretrained(place)
    return place


def test_a_model_of_70_billion_weights(tmp_path: Path) -> None:
    # Two of its 80 blocks: all are alike.
    folder = config_of(tmp_path, **LARGE, num_hidden_layers=2, vocab_size=128256)
    report = wcodec.plan_ranks(folder, bits=4)
    one, *shared = report.rows
    assert [row.ranks for row in report.rows] == [1, 2, 4, 8] and not report.measured
    weights = report.parameters - 5 * 8192
    assert 3.95 < one.total * 8 / weights < 4.05
    assert one.uncompressed == report.parameters * 2
    for row in shared:
        # Nothing that is compressed is on every rank but where a version of transformers leaves the embedding whole.
        assert row.total <= one.total / row.ranks * 1.02 + row.replicated
        assert row.plain == 5 * 8192 * 2
    assert report.to_dict()["rows"][1]["share"] == shared[0].total / one.total
    assert "of one" in repr(report) and "128,256" not in repr(report)


def test_a_compressed_model_is_planned_by_its_file(tmp_path: Path) -> None:
    model = llama(num_key_value_heads=2)
    wcodec.compress_(model, progress=False)
    wcodec.save_pretrained(model, tmp_path / "folder")
    report = wcodec.plan_ranks(tmp_path / "folder", [2, 3])
    stored = sum(e.stored_bytes for e in wcodec.open(tmp_path / "folder").stored if e.scheme != "raw")
    assert report.measured and report.rows[0].replicated == stored
    assert report.rows[1].shared + report.rows[1].replicated < stored
    assert report.refused[0][0] == 3 and "num_attention_heads is 2" in report.refused[0][1]


def test_experts_are_counted_once_each(tmp_path: Path) -> None:
    model = mixtral()
    wcodec.compress_(model, progress=False)
    wcodec.save_pretrained(model, tmp_path)
    report = wcodec.plan_ranks(tmp_path, [1])
    assert report.rows[0].replicated == sum(
        entry.stored_bytes for entry in wcodec.open(tmp_path).stored if entry.scheme != "raw"
    )


def test_conversions_of_experts_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walks over all parameters: one for each matrix would take minutes where there are thousands."""
    mixtral().save_pretrained(tmp_path / "plain")
    made: list[str] = []

    class Counted(names.Conversion):
        def __init__(self, converter: object, name: str, model: object) -> None:
            made.append(name)
            super().__init__(converter, name, model)

    monkeypatch.setattr(names, "Conversion", Counted)
    wcodec.compress(tmp_path / "plain", f"{tmp_path}/out/", progress=False)
    # Gate and up, and down, of each layer.
    assert made and len(made) == len(set(made)) == 4


def test_a_model_without_a_plan(tmp_path: Path) -> None:
    transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=90).save_pretrained(tmp_path)
    with pytest.raises(wcodec.InputError, match="has no tp_plan"):
        wcodec.plan_ranks(tmp_path)
    with pytest.raises(wcodec.InputError, match="ask for 1 or more"):
        wcodec.plan_ranks(tmp_path, [0])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    folder = config_of(tmp_path, **small, num_hidden_layers=1, vocab_size=256)
    options = ("--ranks", "2,3", "--scheme", "lossless", "--exclude", "lm_head")
    status, out, _ = call(capsys, "ranks", folder, *options)
    assert status == 0 and "bytes a rank" in out and "3 ranks: num_attention_heads is 4" in out
    told = document(call(capsys, "ranks", folder, "--ranks", "4", "--json")[1], "ranks")
    assert [row["ranks"] for row in told["rows"]] == [1, 4]
