"""Encoding by statistics, from every kind of source: the bits that are asked for, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wcodec
from command import call, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from small_models import llama  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small model."""
    place = tmp_path_factory.mktemp("models") / "llama"
    llama().save_pretrained(place)
    return place


# Models that statistics are collected from


def test_a_config_that_fetches_code_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", lambda *a, **k: asked.append(a))
    monkeypatch.setattr("huggingface_hub.HfApi.repo_exists", lambda *a, **k: asked.append(a))
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "evil/kernel"}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for source in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(wcodec.InputError, match="asks for code from elsewhere"):
            wcodec.compress(source, tmp_path / "x.wcodec", bits=6, calibrate="self", progress=False)
    assert not asked and not (tmp_path / "x.wcodec").exists()


def test_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    out = tmp_path / "s.safetensors"
    options = ("--windows", 2, "--length", 16, "--json")
    status, text, _ = call(capsys, "calibrate", folder, "-o", out, *options)
    found = document(text, "calibrate")
    assert status == 0 and found["tokens"] == 32 and found["tensors"] == 15 and found["full"]
    assert wcodec.Statistics.load(out).tokens == 32
    # What is misspelt is not looked for where the command runs.
    monkeypatch.chdir(folder)
    for arguments, message in (
        (("nowhere", "-o", tmp_path / "n.safetensors"), "nowhere: there is no config.json"),
        ((folder, "-o", out), "exists"),
        ((folder, "-o", tmp_path / "n.safetensors", "--device", "tpu"), "'tpu'"),
    ):
        status, _, err = call(capsys, "calibrate", *arguments, *options)
        assert status == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "n.safetensors").exists()
