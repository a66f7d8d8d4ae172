"""``wcodec roundtrip``, on real models, and that it would notice."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wcodec import _container, cli
from wcodec._cli import reference

COMBINATIONS = {(c, s) for c in ("rans", "huffman", "zstd", "raw") for s in ("row", "tensor", "block 128")}


@pytest.fixture(autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def roundtrip(source: Path, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    status = cli.main(["roundtrip", str(source), "--json", str(out), *options])
    return status, json.loads(out.read_text())


def test_trained_model(model: Path, tmp_path: Path, _temporary: Path) -> None:
    status, report = roundtrip(model, tmp_path / "r.json")
    assert status == 0 and report["ok"] and report["schema_version"] == 2 and report["command"] == "roundtrip"
    assert {(c["coder"], c["scale"]) for c in report["combinations"]} == COMBINATIONS
    for found in report["combinations"]:
        assert found["ok"] and not found["differences"]
        assert (found["tensors"], found["quantized"], found["raw"]) == (39, 30, 9)
        assert found["ratio"] == found["original_bytes"] / found["stored_bytes"]
    assert not any(_temporary.iterdir())


def test_minilm(minilm: Path, tmp_path: Path) -> None:
    status, report = roundtrip(minilm, tmp_path / "r.json")
    assert status == 0 and {(c["coder"], c["scale"]) for c in report["combinations"]} == COMBINATIONS
    by_coder = {c["coder"]: c for c in report["combinations"] if c["scale"] == "row"}
    assert by_coder["rans"]["ratio"] > by_coder["raw"]["ratio"] > 3.9


def test_tinyllama_shapes(tmp_path: Path, rng: np.random.Generator, write_safetensors: Any) -> None:
    """One layer of TinyLlama-1.1B's shapes, heavy-tailed; the whole model is for the benchmarks."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shapes = {"q": (2048, 2048), "k": (256, 2048), "gate": (5632, 2048), "down": (2048, 5632)}
    tensors = {n: (rng.standard_t(6, s) * 0.02).astype(ml_dtypes.bfloat16) for n, s in shapes.items()}
    source = write_safetensors(tmp_path / "m.safetensors", tensors)
    status, report = roundtrip(source, tmp_path / "r.json")
    assert status == 0 and {c["quantized"] for c in report["combinations"]} == {4}


def test_options(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], _temporary: Path) -> None:
    options = ["--coder", "huffman,rans", "--scale", "block", "--block", "32", "--layout", "byte", "--tile", "128"]
    options += ["--transpose", "*mlp*", "--exclude", "lm_head*", "--keep", "--threads", "1"]
    status, report = roundtrip(model, tmp_path / "r.json", *options)
    assert status == 0
    assert [(c["coder"], c["scale"], c["quantized"]) for c in report["combinations"]] == [
        ("huffman", "block 32", 29), ("rans", "block 32", 29),
    ]  # fmt: skip
    kept = [p.name for p in next(_temporary.iterdir()).iterdir()]
    assert sorted(kept) == sorted(f"{c}-block.{e}" for c in ("rans", "huffman") for e in ("wcodec", "safetensors"))
    out, err = capsys.readouterr()
    assert "kept" in err and "equal bit for bit" in out
    assert cli.main(["roundtrip", str(model), "--coder", "raw", "--scale", "row", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]


def test_sharded_folder_and_odd_tensors(tmp_path: Path, rng: np.random.Generator, write_safetensors: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shards = {
        "a.safetensors": {"w": rng.standard_normal((70, 130)).astype(np.float32), "none": np.zeros((0, 4), np.float32)},
        "b.safetensors": {
            "wide": rng.standard_normal((1, 50_000)).astype(np.float16),
            "tall": rng.standard_normal((300, 1)).astype(np.float32),
            "stack": rng.standard_normal((3, 20, 64)).astype(np.float16),
            "conv": rng.standard_normal((8, 3, 5, 5)).astype(np.float32),
            "0-d": np.array(3, np.int64),
            "zeros": np.zeros((16, 64), np.float32),
        },
    }
    for name, tensors in shards.items():
        write_safetensors(folder / name, tensors)
    weight_map = {t: name for name, tensors in shards.items() for t in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    status, report = roundtrip(folder, tmp_path / "r.json")
    assert status == 0 and {c["tensors"] for c in report["combinations"]} == {8}


def test_weights_that_are_not_finite(
    tmp_path: Path, write_safetensors: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_safetensors(tmp_path / "m.safetensors", {"w": np.full((4, 64), np.nan, np.float32)})
    assert cli.main(["roundtrip", str(source)]) == 2
    assert "NaN" in capsys.readouterr().err
    assert cli.main(["roundtrip", str(source), "--exclude", "w"]) == 0


@pytest.mark.parametrize("what", ["symbols", "scales", "values"])
def test_it_would_notice(what: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A native side that is wrong in one bit of one tensor."""
    name = "model.layers.1.mlp.up_proj.weight"

    def flipped(array: np.ndarray) -> np.ndarray:
        wrong = np.array(array)
        wrong.reshape(-1).view(np.uint8)[0] ^= 1
        return wrong

    if what == "values":
        honest = reference.Checkpoint.data

        def data(self: reference.Checkpoint, tensor: str) -> np.ndarray:
            decoded = self.tensors[tensor][0].name == "rans-row.safetensors"
            return flipped(honest(self, tensor)) if decoded and tensor == name else honest(self, tensor)

        monkeypatch.setattr(reference.Checkpoint, "data", data)
    else:
        true = getattr(_container.TensorEntry, what)
        monkeypatch.setattr(
            _container.TensorEntry, what, lambda self: flipped(true(self)) if self.name == name else true(self)
        )
    status, report = roundtrip(model, tmp_path / "r.json", "--coder", "rans", "--scale", "row")
    found = report["combinations"][0]["differences"]
    assert status == 1 and [(d["tensor"], d["what"]) for d in found] == [(name, what)]
    assert "first at 0" in found[0]["detail"]
