"""The command: what it prints, its JSON, its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import Cli, document


@pytest.fixture
def encoded(model: Path, tmp_path: Path, run: Cli) -> Path:
    path = tmp_path / "m.wcodec"
    assert run("encode", model, "-o", path, "-q") == (0, "", "")
    return path


def test_encode_reports(model: Path, tmp_path: Path, run: Cli) -> None:
    status, out, _ = run("encode", model, "-o", tmp_path / "a.wcodec")
    assert status == 0 and "ratio 2." in out and "39 tensors" in out and out.count("\n") == 1
    status, out, _ = run(
        "encode", model, "-o", tmp_path / "b.wcodec", "--json", "--scale", "block", "--block", "64",
        "--coder", "huffman", "--layout", "byte", "--tile", "192", "--threads", "1",
        "--exclude", "*embed*", "--exclude", "lm_head*", "--skip", "*norm*",
    )  # fmt: skip
    report = document(out, "encode")
    assert status == 0 and report["stored_bytes"] == (tmp_path / "b.wcodec").stat().st_size
    assert report["ratio"] == report["original_bytes"] / report["stored_bytes"]
    tensors = {t["name"]: t for t in report["tensors"]}
    assert tensors["lm_head.weight"]["scheme"] == "raw" and "model.norm.weight" not in tensors
    layer = tensors["model.layers.0.mlp.up_proj.weight"]
    (plane,) = layer["planes"]
    assert (layer["scale"], plane["coder"], plane["layout"], plane["tile"]) == ("block 64", "huffman", "byte", 192)
    assert plane["bits"] == [[0, 8]]


def test_encode_with_small_tables(model: Path, tmp_path: Path, run: Cli) -> None:
    sizes = {}
    for bits in ("9", "10", "11", "12", None):
        path, small = tmp_path / f"{bits}.wcodec", [] if bits is None else ["--table-bits", bits]
        step = ["--bits", "3.5", "--no-trellis", "--include", "*.layers.0.mlp.*"]
        assert run("encode", model, "-o", path, "--coder", "huffman", *step, *small, "-q")[0] == 0
        assert run("verify", path, "--against", model, "-q")[0] == 0
        sizes[bits] = path.read_bytes()
    # As --optimize speed has it in layout pair.
    assert len(set(sizes.values())) == 4 and sizes[None] == sizes["12"]
    status, _, err = run("encode", model, "-o", tmp_path / "x", "--optimize", "size", "--table-bits", "9")
    assert status == 2 and "tables of coder rans have 11 or 12 bits, not 9" in err and "coder huffman" in err
    status, _, err = run("encode", model, "-o", tmp_path / "x", "--coder", "huffman", "--table-bits", "13")
    assert status == 2 and "tables of coder huffman have 8 to 12 bits, not 13" in err


def test_decode(encoded: Path, tmp_path: Path, run: Cli) -> None:
    out = tmp_path / "m.safetensors"
    assert run("decode", encoded, "-o", out)[0] == 0
    status, _, err = run("decode", encoded, "-o", out)
    assert status == 2 and err.startswith("wcodec: error: ") and str(out) in err and err.count("\n") == 1
    assert run("decode", encoded, "-o", out, "--overwrite", "-q") == (0, "", "")


def test_inspect(encoded: Path, run: Cli) -> None:
    status, out, _ = run("inspect", encoded, "--all")
    lines = out.splitlines()
    begin = lines.index("") + 1
    assert status == 0 and lines[begin].split()[:3] == ["tensor", "shape", "dtype"]
    assert len({len(line) for line in lines[begin : begin + 40]}) == 1
    assert any(line.startswith("39 tensors, 3,147,456 weights") for line in lines)
    largest = run("inspect", encoded, "--sort", "stored", "--filter", "layers")[1].splitlines()
    assert (
        "mlp" in largest[largest.index("") + 2]
        and not any("lm_head" in line for line in largest)
        and "of 39 shown" in "".join(largest)
    )
    record = document(run("inspect", encoded, "--json")[1], "inspect")
    assert record["totals"]["stored_bytes"] == encoded.stat().st_size
    assert record["totals"]["bits_per_weight"] == 8 * encoded.stat().st_size / 3_147_456
    stored = sum(t["stored_bytes"] for t in record["tensors"])
    assert record["totals"]["overhead_bytes"] == encoded.stat().st_size - stored
    for tensor in record["tensors"]:
        assert tensor["stored_bytes"] == sum(s["length"] for s in tensor["segments"])
        assert tensor["ratio"] == tensor["original_bytes"] / tensor["stored_bytes"]


def test_inspect_orders(tmp_path: Path, run: Cli) -> None:
    path = tmp_path / "x.wcodec"
    wcodec.save_file({f"h.{i}.w": np.zeros(i, np.int8) for i in (10, 9, 2)}, path)

    def order(*options: str) -> list[str]:
        return [t["name"] for t in json.loads(run("inspect", path, "--json", *options)[1])["tensors"]]

    assert order() == order("--sort", "name") == ["h.2.w", "h.9.w", "h.10.w"]
    assert order("--sort", "file") == order("--sort", "original") == ["h.10.w", "h.9.w", "h.2.w"]


def test_inspect_shows_ties(tmp_path: Path, run: Cli) -> None:
    weight = np.ones((4, 64), np.float32)
    wcodec.save_file({"embed": weight, "head": weight}, tmp_path / "x.wcodec")
    out = run("inspect", tmp_path / "x.wcodec")[1]
    assert "head is tied to embed" in out and "(1 more tied)" in out


def test_verify(encoded: Path, model: Path, run: Cli) -> None:
    status, out, _ = run("verify", encoded, "--against", model)
    assert status == 0 and "ok: the file is undamaged" in out and "largest deviation" in out
    assert run("verify", encoded, "-q") == (0, "", "")
    report = document(run("verify", encoded, "--json")[1], "verify")
    assert report["ok"] and report["damage"] is None and {t["status"] for t in report["tensors"]} == {"ok"}


def test_verify_damage_of_no_tensor(run: Cli) -> None:
    status, out, _ = run("verify", Path(__file__).parents[1] / "data/corrupt/padding.wcodec")
    assert status == 1 and "padding" in out and "1 problem" in out


def test_verify_damage(encoded: Path, run: Cli) -> None:
    good = encoded.read_bytes()
    segment = next(s for s in wcodec.open(encoded)["lm_head.weight"].segments if s.role == "data")
    damaged = bytearray(good)
    damaged[segment.offset + 5] ^= 1
    encoded.write_bytes(damaged)
    status, out, _ = run("verify", encoded)
    assert status == 1 and "damaged: lm_head.weight" in out
    status, out, _ = run("verify", encoded, "--json")
    report = document(out, "verify")
    assert status == 1 and not report["ok"]
    assert [t["name"] for t in report["tensors"] if t["status"] != "ok"] == ["lm_head.weight"]
    damaged = bytearray(good)
    damaged[-10] ^= 1
    encoded.write_bytes(damaged)
    assert run("verify", encoded)[0] == 1
    status, out, _ = run("verify", encoded, "--json")
    assert status == 1 and document(out, "verify")["damage"]
    status, _, err = run("inspect", encoded)
    assert status == 2 and str(encoded) in err


def test_verify_difference(encoded: Path, tmp_path: Path, run: Cli, write_safetensors: Any) -> None:
    other = write_safetensors(tmp_path / "o.safetensors", {"x": np.zeros((2, 2), np.float32)})
    status, out, _ = run("verify", encoded, "--against", other)
    assert status == 1 and "missing: x" in out and "extra: lm_head.weight" in out


def test_compare(encoded: Path, model: Path, tmp_path: Path, run: Cli) -> None:
    same, other = tmp_path / "same.wcodec", tmp_path / "other.wcodec"
    run("encode", model, "-o", same, "-q", "--coder", "zstd")
    run("encode", model, "-o", other, "-q", "--scale", "tensor")
    status, out, _ = run("compare", encoded, same)
    assert status == 0 and out.endswith("same: 39 tensors\n") and "lm_head" not in out
    assert "lm_head" in run("compare", encoded, same, "--all")[1]
    status, out, _ = run("compare", encoded, other)
    assert status == 1 and out.endswith("different\n")
    comparison = document(run("compare", encoded, other, "--json")[1], "compare")
    assert not comparison["same"] and {t["status"] for t in comparison["tensors"]} == {"same", "differs"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["encode", "no/such", "-o", "{tmp}/x"], ["encode", "{model}", "-o", "{tmp}/no/such/x"],
        ["encode", "{model}", "-o", "{tmp}/x", "--block", "64"], ["encode", "{model}", "-o", "{tmp}/x", "--tile", "65"],
        ["encode", "{model}"], ["encode", "{model}", "-o", "{tmp}/x", "--coder", "lzma"], ["frobnicate"],
        ["decode", "no/such", "-o", "{tmp}/x"], ["inspect", "{model}/config.json"], ["verify", "no/such"],
        ["verify", "{model}/config.json"], ["compare", "no/such", "nor/such"], ["roundtrip", "no/such"],
        ["roundtrip", "{model}", "--coder", "rans,lzma"], ["encode", "{model}", "-o", "{tmp}/x", "--threads", "0"],
    ],
)  # fmt: skip
def test_errors_exit_2(arguments: list[str], model: Path, tmp_path: Path, run: Cli) -> None:
    status, out, err = run(*(a.format(model=model, tmp=tmp_path) for a in arguments))
    assert status == 2 and out == "" and "error: " in err and "Traceback" not in err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["encode", "decode", "inspect", "verify", "compare", "roundtrip"])
def test_help(command: str, run: Cli) -> None:
    status, out, _ = run(command, "--help")
    assert status == 0 and f"wcodec {command}" in out and "Example:" in out
    assert run("--version")[:2] == (0, f"wcodec {wcodec.__version__}\n")


def test_closed_pipe(encoded: Path) -> None:
    command = [sys.executable, "-m", "wcodec", "inspect", "--json", str(encoded)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_installed_command(encoded: Path) -> None:
    script = Path(sys.executable).with_name("wcodec")
    if not script.exists():
        pytest.skip("the package is on the path, but not installed")
    done = subprocess.run([script, "verify", encoded], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ok" in done.stdout
