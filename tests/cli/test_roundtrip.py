"""``wcodec roundtrip``, on real models, and that it would notice."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wcodec import cli
from wcodec._cli import rates, reference
from wcodec._core.reports import CompressionReport
from wcodec._file import container

COMBINATIONS = {(c, s) for c in ("rans", "huffman", "zstd", "raw") for s in ("row", "tensor", "block 128")}


@pytest.fixture(autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def layer(model: Path, tmp_path: Path) -> Path:
    """A layer of the trained model alone: enough to be wrong in, many times."""
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = safetensors.load_file(model / "model.safetensors")
    path = tmp_path / "layer.safetensors"
    safetensors.save_file({n: t for n, t in tensors.items() if n.startswith("model.layers.1.")}, path)
    return path


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


def test_rates(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], _temporary: Path) -> None:
    status, report = roundtrip(model, tmp_path / "r.json", "--bits", "3,5.25", "--transpose", "*mlp*", "--keep")
    assert status == 0 and report["ok"]
    tried = [(c["coder"], c["bits"], c["trellis"]) for c in report["combinations"]]
    ways = [("rans", False), ("huffman", False), ("zstd", False)]
    assert tried == [(coder, bits, trellis) for bits in (3.0, 5.25) for coder, trellis in ways]
    for c in report["combinations"]:
        assert (c["scheme"], c["scale"], c["rate"], c["quantized"], c["raw"]) == ("rate", None, 30, 0, 9)
        assert abs(c["rate_bits_per_weight"] / c["bits"] - 1) < 0.005 and 0.02 < c["error"] < 0.3
    assert report["combinations"][0]["error"] > report["combinations"][3]["error"]
    out = capsys.readouterr().out
    assert "3 bits: " in out and "30 rate and 9 raw tensors: values equal bit for bit" in out
    kept = {p.name for p in next(_temporary.iterdir()).iterdir()}
    assert {"rans-3-bits.wcodec", "zstd-5.25-bits.safetensors"} <= kept and len(kept) == 12


def test_rates_without_a_trellis(model: Path, tmp_path: Path) -> None:
    options = ["--scheme", "rate", "--no-trellis", "--layout", "byte", "--exclude", "*embed*"]
    status, report = roundtrip(model, tmp_path / "r.json", "--coder", "rans", *options)
    (found,) = report["combinations"]
    assert status == 0 and (found["bits"], found["trellis"], found["rate"]) == (4.0, False, 29)
    status, report = roundtrip(model, tmp_path / "r.json", "--trellis")
    assert status == 0 and [c["coder"] for c in report["combinations"]] == ["rans", "huffman"]
    # All that symbols of 8 bits have is fewer than was asked for, which is no defect.
    status, report = roundtrip(model, tmp_path / "r.json", "--bits", "8", "--no-trellis", "--coder", "rans")
    assert status == 0 and report["combinations"][0]["rate_bits_per_weight"] < 7.9


def test_rates_of_odd_tensors(tmp_path: Path, rng: np.random.Generator, write_safetensors: Any) -> None:
    rows = rng.standard_t(3, (470, 330)).astype(np.float32)
    rows[3], rows[5], rows[7, 9] = 0, 0.25, 1e4
    tensors = {
        "w": rows, "stack": rng.standard_normal((3, 20, 64)).astype(np.float16), "0": np.zeros((16, 64), np.float32),
        "conv": rng.standard_normal((8, 3, 5, 5)).astype(np.float32), "one": np.ones((1, 1), np.float32),
        "long": (rng.standard_normal((1, 30_000)) * 1e-39).astype(np.float32), "none": np.zeros((0, 4), np.float32),
        "tall": rng.standard_normal((300, 1)).astype(np.float32), "0-d": np.array(3, np.int64),
    }  # fmt: skip
    source = write_safetensors(tmp_path / "m.safetensors", tensors)
    status, report = roundtrip(source, tmp_path / "r.json", "--bits", "4.5,6")
    assert status == 0 and report["ok"], report
    assert {c["tensors"] for c in report["combinations"]} == {9}


def test_options_of_rates_that_do_not_fit(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in (
        (["--scheme", "int8", "--bits", "4"], "--bits only goes with scheme rate"),
        (["--scheme", "lossless", "--no-trellis"], "--trellis only goes with scheme rate"),
        (["--trellis", "--coder", "rans,zstd"], "a trellis with coder zstd"),
        (["--bits", "3,nine"], "'nine' is not a number of bits from 1 to 8"),
        (["--bits", "4", "--coder", "raw"], "cannot be reached"),
    ):
        try:
            assert cli.main(["roundtrip", str(model), *options]) == 2
        except SystemExit as ended:
            assert ended.code == 2
        assert words in capsys.readouterr().err, options


def test_it_would_notice_wrong_rates(model: Path, layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels, scales, errors, instruction sets, rows and bits that are wrong by little."""
    name = "model.layers.1.mlp.up_proj.weight"
    entry = container.TensorEntry

    def found(
        wrong: Callable[[pytest.MonkeyPatch], None], *options: str, source: Path = layer
    ) -> list[tuple[str, str]]:
        with monkeypatch.context() as patch:
            wrong(patch)
            status, report = roundtrip(source, tmp_path / "r.json", "--bits", "4", "--coder", "rans", *options)
        differences = report["combinations"][0]["differences"]
        assert status == 1 and differences, "nothing was noticed"
        return [(d["tensor"], d["what"]) for d in differences]

    def of(method: str, change: Callable[[np.ndarray], None]) -> Callable[[pytest.MonkeyPatch], None]:
        true = getattr(entry, method)

        def changed(self: Any, **options: Any) -> np.ndarray:
            array = np.array(true(self, **options))
            if self.name == name:
                change(array)
            return array

        return lambda patch: patch.setattr(entry, method, changed)

    def up(array: np.ndarray) -> None:
        array[7, 5] += 1

    def finer(array: np.ndarray) -> None:
        array[9] = np.nextafter(array[9], np.float32(0))

    assert found(of("symbols", up), "--no-trellis") == [(name, "values")]
    assert found(of("symbols", up), "--trellis") == [(name, "values"), (name, "trellis")]
    # One unit of float32 is no bfloat16; bfloat16 values hardly know it.
    assert (name, "scales") in found(of("scales", finer))

    def error(patch: pytest.MonkeyPatch) -> None:
        true = rates._of_error
        patch.setattr(
            rates, "_of_error", lambda e, *rest: true(replace(e, error=e.error * 0.999) if e.name == name else e, *rest)
        )

    assert found(error) == [(name, "error")]

    def native(method: str) -> Callable[[pytest.MonkeyPatch], None]:
        def patched(patch: pytest.MonkeyPatch) -> None:
            class Wrong:
                def __init__(self, true: Any) -> None:
                    self.true = true

                def __getattr__(self, attribute: str) -> Any:
                    return getattr(self.true, attribute)

            def call(self: Wrong, tensor: str, *rest: Any) -> Any:
                words, length = getattr(self.true, method)(tensor, *rest)
                words = np.array(words)
                words.view(np.uint8)[length // 2] ^= tensor == name and (
                    method == "read_rows" or rest[-1]["isa"] == "scalar"
                )
                return words, length

            setattr(Wrong, method, call)
            patch.setattr(container.Container, "_open", property(lambda self: Wrong(self._native)))

        return patched

    assert found(native("read")) == [(name, "bytes")]
    assert set(found(native("read_rows"))) == {(name, "bytes")}

    summary = CompressionReport.rate
    assert summary.fget is not None

    def bits(patch: pytest.MonkeyPatch) -> None:
        wrong = property(lambda self: replace(summary.fget(self), bits_per_weight=4.03))
        patch.setattr(CompressionReport, "rate", wrong)

    # A single layer may miss them by more.
    assert found(bits, source=model) == [("", "bits")]


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
        true = getattr(container.TensorEntry, what)
        monkeypatch.setattr(
            container.TensorEntry, what, lambda self: flipped(true(self)) if self.name == name else true(self)
        )
    status, report = roundtrip(model, tmp_path / "r.json", "--coder", "rans", "--scale", "row")
    found = report["combinations"][0]["differences"]
    assert status == 1 and [(d["tensor"], d["what"]) for d in found] == [(name, what)]
    assert "first at 0" in found[0]["detail"]
