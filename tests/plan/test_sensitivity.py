"""Which layers suffer most from fewer bits: what is estimated is near what is measured, and printed commands work."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import wcodec
from command import Cli, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from small_models import checkpoint_of, collect, gpt2, mixtral  # noqa: E402
from small_models import wider_llama as llama  # noqa: E402
from wcodec._calibrate.shares import estimated_kl  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model."""
    return checkpoint_of(llama(), tmp_path_factory)


def held_out(model: Path) -> Any:
    """The token ids of a text that the model has not seen."""
    text = (model / "heldout.txt").read_text()
    return torch.tensor(transformers.AutoTokenizer.from_pretrained(model)(text)["input_ids"])


@pytest.fixture(scope="module")
def report(model: Path) -> wcodec.SensitivityReport:
    """The trained model of the repository."""
    ids = held_out(model)
    return wcodec.sensitivity(model, bits=3, text=ids[:4096], tokens=1024, measure=6, windows=3)


def test_what_is_estimated_is_near_what_is_measured(report: wcodec.SensitivityReport) -> None:
    both = [row for row in report if row.kl is not None and row.estimated_kl is not None]
    assert len(both) == 6
    for row in both:
        # Half and twice: errors of one layer are no small ones at 3 bits, and the text is short.
        assert 0.5 < row.kl / row.estimated_kl < 2, row  # type: ignore[operator]
    # The MLP of the first layer matters most of all layers, and its k_proj next to nothing.
    share = {row.name: row.share or 0.0 for row in report}
    assert share["model.layers.0.mlp.down_proj.weight"] > 5 * share["model.layers.0.self_attn.k_proj.weight"]


def test_the_report_says_what_it_is_of(report: wcodec.SensitivityReport, model: Path) -> None:
    assert (report.model, report.bits, report.tensors, len(report)) == (str(model), 3.0, 30, 30)
    assert report.source == "token ids" and report.tokens == 1024 and report.measured_tokens == 768
    assert sum(row.share or 0.0 for row in report) == pytest.approx(1)
    measured = [row.kl for row in report if row.kl is not None]
    assert len(measured) == 6 and measured == sorted(measured, reverse=True)
    assert [row.kl is None for row in report] == [False] * 6 + [True] * 24
    estimates = [row.estimated_kl or 0.0 for row in report.rows[6:]]
    assert estimates == sorted(estimates, reverse=True)
    embedding = next(row for row in report if row.name == "model.embed_tokens.weight")
    assert embedding.estimated_kl is not None and embedding.share is not None
    assert report.kl is not None and report.kl > max(measured)


def test_an_embedding_that_statistics_do_not_know_is_measured(report: wcodec.SensitivityReport, model: Path) -> None:
    known = report.statistics
    name = "model.embed_tokens.weight"
    units = {key: unit for key, unit in known.units.items() if key != name}
    earlier = wcodec.Statistics(units, known.sites, {}, known.names, source="text", tokens=known.tokens, text_hash="",
                                model_hash="")  # fmt: skip
    found = wcodec.sensitivity(model, bits=3, text=held_out(model)[:2048], statistics=earlier, measure=1, windows=1)
    row = next(row for row in found if row.name == name)
    assert row.estimated_kl is None and row.kl is not None and row.share is not None
    assert [row.kl is not None for row in found].count(True) == 2


def test_top_is_a_report_too(report: wcodec.SensitivityReport) -> None:
    top = report.top(3)
    assert (
        isinstance(top, wcodec.SensitivityReport) and top.rows == report[:3] == report.rows[:3] and top[0] == report[0]
    )
    assert top.tensors == 30 and len(report.top(0)) == 0 and len(report.top(99)) == 30
    name = report[0].name.removesuffix(".weight")
    assert name in repr(report) and name in top._repr_html_() and name in top.table()
    record = top.to_dict()
    assert len(record["rows"]) == 3 and record["rows"][0]["name"] == report[0].name and "statistics" not in record


def test_errors_are_those_of_the_encoder(report: wcodec.SensitivityReport, model: Path, tmp_path: Path) -> None:
    wcodec.compress(model, tmp_path / "x.wcodec", bits=3, calibrate=False, progress=False)
    with wcodec.open(tmp_path / "x.wcodec") as container:
        assert {row.name: row.error for row in report} == {
            entry.name: entry.error for entry in container.stored if entry.scheme == "rate"
        }


@pytest.mark.parametrize("make", [gpt2, mixtral, llama])
def test_models_of_every_kind(make: Any) -> None:
    model = make()
    found = wcodec.sensitivity(model, 4, tokens=128, measure=1, windows=2)
    names = {row.name for row in found}
    assert found.source == "self" and found.model == type(model).__name__ and len(names) == len(found) == found.tensors
    shares = [row.share for row in found if row.share is not None]
    assert sum(shares) == pytest.approx(1) and found.kl is not None and found.kl > 0
    if make is mixtral:
        assert any("experts" in name and row.share for row in found for name in [row.name])


def test_statistics_are_used_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = collect(llama())
    statistics.save(tmp_path / "s.safetensors")
    monkeypatch.setattr("wcodec._calibrate.collect.collect_statistics", lambda *_, **__: pytest.fail("collected again"))
    first = wcodec.sensitivity(folder, statistics=statistics, measure=0)
    second = wcodec.sensitivity(folder, statistics=tmp_path / "s.safetensors", measure=0)
    assert first.rows == second.rows and first.kl is None and first.measured_tokens == 0
    assert all(row.kl is None for row in first)
    known = estimated_kl(statistics, {row.name: row.error for row in first})
    assert {row.name: row.estimated_kl for row in first if row.estimated_kl is not None} == known
    # Twice the error does four times the damage.
    doubled = estimated_kl(statistics, {name: 2.0 for name in known})
    single = estimated_kl(statistics, {name: 1.0 for name in known})
    assert all(doubled[name] == pytest.approx(4 * single[name]) for name in known)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 9}, "ask for 1 to 8"),
        ({"bits": "three"}, "bits must be a number"),
        ({"measure": -1}, "measure must be"),
        ({"windows": 0}, "windows must be"),
        ({"statistics": 3}, "those of a calibration or their file"),
        ({"statistics": collect(llama()), "tokens": 64}, "leave one of them out"),
        ({"text": [1, 2, 3], "tokens": 2}, "pass a longer text"),
        ({"model": {"w": 1}}, "no language model"),
    ],
)
def test_what_makes_no_sense(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(wcodec.InputError, match=message):
        wcodec.sensitivity(**{"model": folder, **options})


def test_the_model_stays_as_it_was() -> None:
    model = llama()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    wcodec.sensitivity(model, 2, tokens=64, measure=3, windows=1)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_progress_goes_to_its_end_once(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    wcodec.sensitivity(folder, tokens=64, measure=2, windows=2, progress=lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done) and {t for _, t in seen} == {1000} and done[-1] == 1000 and len(set(done)) > 8


# Pictures


def test_plots(report: wcodec.SensitivityReport, plt: Any) -> None:
    ax = report.plot()
    assert "3 bits/weight" in ax.get_xlabel() and report.plot.heatmap() is not ax
    cells = [text.get_text() for text in ax.texts]
    largest = 100 * max(row.share for row in report if row.share is not None)
    assert f"{largest:.2f}" in cells or f"{largest:.1f}" in cells
    assert "share of the quality loss, %" in [a.get_xlabel() for a in ax.figure.axes] + [
        a.get_title("left") for a in ax.figure.axes
    ] + [a.xaxis.label.get_text() for a in ax.figure.axes]
    bars = report.plot.top(5)
    found = {label.get_text(): bar.get_width() for label, bar in zip(bars.get_yticklabels(), bars.patches, strict=True)}
    assert found == {row.name.removesuffix(".weight"): row.estimated_kl or 0.0 for row in report.top(5)}
    assert list(bars.lines[0].get_xdata()) == [row.kl for row in report.top(5)]
    assert "heatmap" in repr(report.plot)
    for draw in (report.top(0).plot, report.top(0).plot.top):
        with pytest.raises(wcodec.InputError, match="no layer to draw"):
            draw()


# In a terminal


def test_commands_that_are_printed_work(
    run: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    status, out, err = run("sensitivity", folder, "--bits", 3, "--tokens", 64, "--top", 4, "--save", "s.safetensors",
                           "--plot", "s.png")  # fmt: skip
    assert status == 0 and err == "" and "KL alone" in out
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"
    commands = [shlex.split(line) for line in out.splitlines() if line.startswith("  wcodec encode")]
    assert len(commands) == 2 and commands[0][-2:] == ["--calibrate", "s.safetensors"]
    assert commands[1].count("--rule") == 3 and commands[1][-1].endswith("=5")
    for command in commands:
        status, said, _ = run(*command[1:], "--overwrite")
        assert status == 0, said
        assert wcodec.load_model(tmp_path / "llama-3bit") is not None
    # The layers that were named have more bits than others.
    named = {part.removesuffix("=5") for part in commands[1] if part.endswith("=5")}
    with wcodec.open(tmp_path / "llama-3bit") as container:
        for entry in container.stored:
            if entry.scheme == "rate":
                assert (entry.bits_per_weight > 4) == (entry.name in named)
    status, out, _ = run("sensitivity", folder, "--statistics", "s.safetensors", "--measure", 0, "--json")
    body = document(out, "sensitivity")
    assert status == 0 and len(body["rows"]) == body["tensors"] and body["kl"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bits", "9"), "not a number of bits"),
        (("--text", "none.txt"), "no such file"),
        (("--plot", "x.nothing"), "no picture of this kind"),
        (("--statistics", "{folder}/config.json"), "not a file of statistics"),
        (("--save", "{folder}/model.safetensors"), "model.safetensors"),
        (("--measure", "-1"), "not a whole number"),
    ],
)
def test_what_is_refused_at_once(run: Cli, folder: Path, arguments: tuple[str, ...], message: str) -> None:
    given = [a.replace("{folder}", str(folder)) for a in arguments]
    status, out, err = run("sensitivity", folder, *given)
    assert status == 2 and message in err and out == ""


def test_help_defines_its_words(run: Cli) -> None:
    status, out, _ = run("sensitivity", "--help")
    words = " ".join(out.split())
    assert status == 0 and "KL alone: mean KL(original || quantized) in nats per token when only this layer" in words
    assert "'KL alone' is the quality loss when only those tensors are quantized" in " ".join(
        run("plan", "--help")[1].split()
    )
