"""A file says what it was calibrated on, in its metadata, and ``wcodec inspect`` and the inspector say it, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import wcodec  # noqa: E402
from command import call  # noqa: E402
from wcodec._core.colors import is_flat, part_of  # noqa: E402
from wcodec._core.metadata import calibration_of, lines  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "doc-llama-3m"


def test_calibrated_files_say_on_how_many_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "statistics.safetensors"
    status, _, err = call(capsys, "calibrate", DATA, "-o", kept, "--windows", 2, "--length", 32)
    assert status == 0, err
    statistics = wcodec.Statistics.load(kept)
    out = tmp_path / "calibrated.wcodec"
    wcodec.compress(DATA, out, bits=4, calibrate=statistics, metadata={"mine": "kept"}, progress=False)
    with wcodec.open(out) as container:
        said = json.loads(container.metadata["wcodec.calibration"])
        assert container.metadata["mine"] == "kept"
        about = {"version": 1, "tokens": 64, "source": "mixed", "text_sha256": statistics.text_hash}
        assert said == {**about, "kind": "feedback"}
        assert lines(container.metadata) == [("calibrated", "on 64 tokens of many kinds of text")]
    _, shown, _ = call(capsys, "inspect", out, "--summary")
    assert "calibrated: on 64 tokens of many kinds of text" in " ".join(shown.split()), shown
    wcodec.compress(DATA, out, bits=4, calibrate=statistics, feedback=False, overwrite=True, progress=False)
    with wcodec.open(out) as container:
        assert json.loads(container.metadata["wcodec.calibration"]) == {**about, "kind": "steps"}
    plain = tmp_path / "plain.wcodec"
    wcodec.compress(DATA, plain, bits=4, calibrate=False, progress=False)
    with wcodec.open(plain) as container:
        assert calibration_of(container.metadata) is None
    with pytest.raises(wcodec.InputError, match="metadata"):
        wcodec.compress(DATA, tmp_path / "no.wcodec", bits=4, calibrate=statistics, metadata=5, progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"tokens": true}', '{"tokens": -1}', '{"tokens": 1e3}', "null"])
def test_what_is_in_no_known_form_is_not_there(text: str) -> None:
    assert calibration_of({"wcodec.calibration": text}) is None


def test_values_that_are_nearly_one_have_one_colour() -> None:
    assert is_flat(0.0712, 0.0719) and part_of(0.0719, 0.0712, 0.0719) == 0.5
    assert not is_flat(1.4, 4.84) and part_of(4.84, 1.4, 4.84) == 1.0
