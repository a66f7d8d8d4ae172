"""Plans as files: what was planned is what is encoded, of that model and by those statistics, and nothing hostile is
believed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import Cli, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from small_models import checkpoint_of, collect  # noqa: E402
from small_models import wider_llama as llama  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model."""
    return checkpoint_of(llama(), tmp_path_factory)


@pytest.fixture(scope="module")
def plan(folder: Path) -> wcodec.PlanReport:
    """One that goes by statistics."""
    found = wcodec.plan(folder, budget="4 bits", calibrate=collect(llama()))
    assert found.recipe.statistics is not None
    return found


@pytest.fixture
def saved(plan: wcodec.PlanReport, tmp_path: Path) -> Path:
    place = tmp_path / "plan.json"
    # Not in the file of another test.
    plan.recipe.statistics.path = None
    plan.save(place)
    return place


def test_what_is_saved_is_what_was_planned(plan: wcodec.PlanReport, saved: Path, folder: Path, tmp_path: Path) -> None:
    read = wcodec.PlanReport.load(saved)
    one, other = plan.to_dict(), read.to_dict()
    for record in (one, other):
        record.pop("statistics_file")
        record["recipe"].pop("statistics")
    assert one == other and str(saved.parent) in read.statistics_file.file  # type: ignore[union-attr]
    files = [tmp_path / f"{i}.wcodec" for i in range(3)]
    for file, given in zip(files, (plan, saved, read), strict=True):
        report = wcodec.compress(folder, file, plan=given, progress=False)
        assert report.plan is not None and report.plan.target == plan.target
        assert report.rate is not None and report.rate.bits_per_weight == pytest.approx(plan.bits, rel=0.01)
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()
    with wcodec.open(files[0]) as container:
        assert json.loads(container.metadata["wcodec.plan"])["recipe"] == plan.recipe.name
    report = wcodec.compress(folder, f"{tmp_path}/out/", plan=saved, progress=False)
    assert report.plan is not None and wcodec.load_model(tmp_path / "out") is not None


def test_a_plan_moves_with_its_statistics(plan: wcodec.PlanReport, saved: Path, folder: Path, tmp_path: Path) -> None:
    beside = saved.with_suffix(".statistics.safetensors")
    assert beside.is_file() and json.loads(saved.read_text())["statistics"]["file"] == beside.name
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    saved.rename(moved / saved.name)
    with pytest.raises(wcodec.InputError, match="are not there"):
        wcodec.compress(folder, tmp_path / "x.wcodec", plan=moved / saved.name, progress=False)
    # It can be said where they are, or they go to where the plan is.
    first = wcodec.compress(folder, tmp_path / "a.wcodec", plan=moved / saved.name, calibrate=beside, progress=False)
    beside.rename(moved / beside.name)
    second = wcodec.compress(folder, tmp_path / "b.wcodec", plan=moved / saved.name, progress=False)
    assert Path(first.path or "").read_bytes() == Path(second.path or "").read_bytes()


def test_other_statistics_are_refused(saved: Path, folder: Path, tmp_path: Path) -> None:
    others = collect(llama(), torch.arange(200).view(5, 40) * 11 % 90)
    for given in (others, tmp_path / "others.safetensors"):
        if isinstance(given, Path):
            others.save(given)
        with pytest.raises(wcodec.InputError, match="not the statistics that the plan was made by"):
            wcodec.compress(folder, tmp_path / "x.wcodec", plan=saved, calibrate=given, progress=False)
    with pytest.raises(wcodec.InputError, match="does not go with a plan, which was made by statistics"):
        wcodec.compress(folder, tmp_path / "x.wcodec", plan=saved, calibrate=True, progress=False)


def test_digests_tell_statistics_apart(tmp_path: Path) -> None:
    one, again, other = collect(llama()), collect(llama()), collect(llama(), seed=5)
    assert one.digest == again.digest != other.digest
    one.save(tmp_path / "s.safetensors")
    assert wcodec.Statistics.load(tmp_path / "s.safetensors").digest == one.digest
    assert one.path == str(tmp_path / "s.safetensors")


@pytest.mark.parametrize(
    "options",
    [{"bits": 4}, {"scheme": "rate"}, {"include": ["*mlp*"]}, {"coder": "huffman"}, {"budget": "4 bits"},
     {"rules": {"*": "raw"}}, {"trellis": False}, {"text": "a"}, {"calibration_tokens": 9}],
)  # fmt: skip
def test_a_plan_says_everything(plan: wcodec.PlanReport, folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(wcodec.InputError, match=f"{name}=.* does not go with a plan"):
        wcodec.compress(folder, tmp_path / "x.wcodec", plan=plan, progress=False, **options)
    assert not list(tmp_path.iterdir())


def test_another_model_is_refused(plan: wcodec.PlanReport, tmp_path: Path) -> None:
    for size, message in (
        ({"num_hidden_layers": 1}, "this model has not"),
        ({"num_hidden_layers": 3}, "the plan does not have it"),
        ({"intermediate_size": 64}, "and in the plan"),
    ):
        place = tmp_path / message
        llama(**size).save_pretrained(place)
        with pytest.raises(wcodec.InputError, match=message):
            wcodec.compress(place, tmp_path / "x.wcodec", plan=plan, progress=False)
    with pytest.raises(wcodec.InputError, match="this model has not"):
        wcodec.compress({"w": np.ones((64, 64), np.float32)}, tmp_path / "x.wcodec", plan=plan, progress=False)
    with pytest.raises(wcodec.InputError, match="plan must be"):
        wcodec.compress(tmp_path / message, tmp_path / "x.wcodec", plan=4, progress=False)  # type: ignore[arg-type]


def test_files_that_are_there_stay(plan: wcodec.PlanReport, saved: Path, tmp_path: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(wcodec.OutputExistsError):
        plan.save(saved)
    with pytest.raises(wcodec.InputError, match="end its name in .json"):
        plan.save(tmp_path / "plan.txt")
    plan.save(saved, overwrite=True)
    assert saved.read_bytes() == before


# Files of strangers


def _changed(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = to

    return change


def _without(*path: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        del body[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without("model"), _without("options"), _without("options", "recipe"), _without("statistics"),
        _without("report", "bits"), _without("report", "tensors", 0, "name"), _without("version"),
        _changed("version", to=True), _changed("version", to="1"),
        _changed("model", to={}), _changed("model", to=[]), _changed("model", "lm_head.weight", to=[-1, 4]),
        _changed("model", "lm_head.weight", to=[1.5]), _changed("model", "lm_head.weight", to=[1] * 99),
        _changed("model", "lm_head.weight", to="90x32"),
        _changed("options", "overwrite", to=True), _changed("options", "trust_remote_code", to=True),
        _changed("options", "calibrate", to="self"), _changed("options", "device", to="cuda"),
        _changed("options", "bits", to="four"), _changed("options", "coder", to="lzma"),
        _changed("options", "bits", to=float("nan")), _changed("options", "bits", to=float("inf")),
        _changed("options", "feedback", to="yes"), _changed("options", "steps", to={"lm_head.weight": "1"}),
        _changed("options", "steps", to=[1]), _changed("options", "rules", to={"*": {"threads": 9}}),
        _changed("options", "include", to=[3]), _changed("options", "metadata", to={"a": 1}),
        _changed("options", "recipe", to=None),
        _changed("statistics", to=3), _changed("statistics", to={"file": "x"}),
        _changed("statistics", to={"file": "", "sha256": ""}),
        _changed("statistics", to={"file": "a\0b", "sha256": ""}),
        _changed("report", to=None), _changed("report", "candidates", to={}), _changed("report", "candidates", 0, to=1),
        _changed("report", "tensors", 0, "weights", to=-1), _changed("report", "tensors", 0, "weights", to=2**70),
        _changed("report", "tensors", 0, "more", to=1), _changed("report", "file_bytes", to=1.5),
        _changed("report", "candidates", 0, "taken", to="yes"), _changed("report", "target", to=["a"]),
        _changed("report", "quality", to={"kl": 1}), _changed("report", "seconds", to="9"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(saved: Path, change: Callable[[Any], None]) -> None:
    body = json.loads(saved.read_text())
    change(body)
    saved.write_text(json.dumps(body))
    with pytest.raises(wcodec.FormatError, match=r"a plan that contradicts itself: .* \(plan again"):
        wcodec.PlanReport.load(saved)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "contradicts itself"), (b"{", "contradicts itself"), (b"\xff\xfe\xff", "contradicts itself"),
        (b"[" * 100_000, "contradicts itself"), (b"[]", "not a plan"), (b"{}", "not a plan"),
        (b'{"format": "wcodec.plan", "version": 1' + b"0" * 5000 + b"}", "contradicts itself"),
        (b'{"format": ["wcodec.plan"]}', "not a plan"), (b"null", "not a plan"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    place = tmp_path / "plan.json"
    place.write_bytes(text)
    with pytest.raises(wcodec.FormatError, match=message):
        wcodec.PlanReport.load(place)


def test_later_versions_and_other_files(saved: Path, tmp_path: Path) -> None:
    body = json.loads(saved.read_text())
    saved.write_text(json.dumps({**body, "version": 2, "options": "of another kind"}))
    with pytest.raises(wcodec.UnsupportedError, match="version 2"):
        wcodec.PlanReport.load(saved)
    with pytest.raises(wcodec.FileMissingError):
        wcodec.PlanReport.load(tmp_path / "none.json")
    with pytest.raises(wcodec.InputError, match="not a regular file"):
        wcodec.PlanReport.load(tmp_path)
    endless = tmp_path / "endless.json"
    with endless.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(wcodec.FormatError, match="larger than any plan"):
        wcodec.PlanReport.load(endless)


def test_what_was_measured_comes_back(folder: Path, tmp_path: Path) -> None:
    text = torch.arange(300) % 90
    measured = wcodec.plan(folder, budget="4 bits", text=text, trellis=False, windows=1)
    measured.save(tmp_path / "plan.json")
    read = wcodec.PlanReport.load(tmp_path / "plan.json")
    assert read.quality == measured.quality and read.candidates == measured.candidates
    assert read.roles == measured.roles and read.tensors == measured.tensors
    # The perplexity of a model that predicts nothing is null in JSON.
    body = json.loads((tmp_path / "plan.json").read_text())
    body["report"]["quality"]["perplexity"] = None
    (tmp_path / "plan.json").write_text(json.dumps(body))
    assert wcodec.PlanReport.load(tmp_path / "plan.json").quality.perplexity == float("inf")  # type: ignore[union-attr]


# In a terminal


def test_the_command_that_is_printed_encodes_the_plan(
    run: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = run("plan", folder, "--budget", "4 bits", "--save", "my plan.json")
    command = shlex.split(out.splitlines()[-1])
    assert status == 0 and command[:2] == ["wcodec", "encode"] and command[-2:] == ["--plan", "my plan.json"]
    status, out, err = run(*command[1:])
    assert status == 0 and "plan: " in out and err == "" and wcodec.load_model(tmp_path / "llama-planned") is not None
    status, out, _ = run("plan", folder, "--budget", "4 bits", "--exclude", "*mlp*")
    command = shlex.split(out.splitlines()[-1])
    assert "--exclude *mlp*" in " ".join(command) and run(*command[1:], "--overwrite")[0] == 0


def test_the_plan_is_kept_apart_from_others(run: Cli, folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "plan.json"
    arguments = ("plan", folder, "--budget", "4 bits", "--save", place)
    status, out, _ = run(*arguments, "--json")
    assert status == 0 and document(out, "plan")["saved"] == str(place)
    for wrong, message in (
        (arguments, "exists"),
        ((*arguments[:-1], tmp_path / "plan"), "a file of JSON"),
        ((*arguments[:-1], tmp_path / "none" / "plan.json"), "no such folder"),
        (("plan", folder, "--budget", "4 bits", "--overwrite"), "--overwrite has no effect"),
        (("encode", folder, "-o", tmp_path / "x.wcodec", "--plan", tmp_path / "none.json"), "no such file"),
        (("encode", folder, "-o", tmp_path / "x.wcodec", "--plan", place, "--bits", "3"), "does not go with a plan"),
    ):
        status, _, err = run(*wrong)
        assert status == 2 and message in err, (wrong, err)
    assert run(*arguments, "--overwrite")[0] == 0
