"""``wcodec inspect`` of what is not compressed: files, folders, repositories, all by their headers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Cli, document
from fake_hub import Hub, serving
from gguf_files import Tensor, blocks, gguf_bytes, numbers
from safetensors.numpy import save_file
from wcodec._file.headers import INT8_BITS


def gguf(path: Path, words: int = 4) -> Path:
    """A file with a header of so many words of a tokenizer."""
    rng = np.random.default_rng(1)
    metadata = {"general.architecture": "llama", "general.name": "tiny",
                "tokenizer.ggml.tokens": [f"a word of number {i}" for i in range(words)]}  # fmt: skip
    path.write_bytes(gguf_bytes(metadata, [
        Tensor("token_embd.weight", "Q8_0", (64, 256), blocks("Q8_0", (64, 256), rng)),
        *(Tensor(f"blk.{i}.ffn_up.weight", "Q4_K", (32, 256), blocks("Q4_K", (32, 256), rng)) for i in range(8)),
        numbers("output_norm.weight", rng.normal(size=256).astype(np.float32)),
    ]))  # fmt: skip
    return path


def test_a_gguf_file_is_shown_by_roles_and_largest(tmp_path: Path, run: Cli) -> None:
    path = gguf(tmp_path / "m.gguf")
    status, text, _ = run("inspect", path)
    lines = text.splitlines()
    assert status == 0 and "architecture: llama" in lines and "name: tiny" in lines
    role = next(line for line in lines if line.startswith("blk.*.ffn_up.weight")).split()
    assert role[1:3] == ["8", "Q4_K"] and role[-1] == "4.500"
    at = lines.index("") + 2
    largest = [line.split()[0] for line in lines[at : at + 5]]
    assert largest == ["token_embd.weight", *(f"blk.{i}.ffn_up.weight" for i in range(4))]
    assert "GGUF, 10 tensors, 82,176 weights" in text
    matrices, norm = 64 * 256 + 8 * 32 * 256, 1024
    status, text, _ = run("inspect", path, "--json")
    found = document(text, "inspect")
    assert found["kind"] == "GGUF" and found["metadata"]["general.name"] == "tiny"
    assert found["totals"]["tensors"] == 10 and found["totals"]["stored_bytes"] == path.stat().st_size
    assert found["estimates"] == {"int8_bytes": round(matrices * INT8_BITS / 8 + norm),
                                  "rate_4_bits_bytes": matrices // 2 + norm}  # fmt: skip
    first = found["tensors"][0]
    assert (first["name"], first["dtype"], first["shape"]) == ("token_embd.weight", "Q8_0", [64, 256])
    assert first["bits_per_weight"] == 8.5 and found["tensors"][1]["role"] == "blk.*.ffn_up.weight"
    status, text, _ = run("inspect", path, "--filter", "ffn", "--sort", "name", "--top", "3")
    assert status == 0 and text.count("ffn_up") == 3 and "3 tensors of 10 shown" in text
    assert "ffn_up" not in run("inspect", path, "--top", "1")[1]
    assert "token_embd.weight" in run("inspect", path, "--summary")[1]


def test_files_and_folders_of_safetensors_are_shown(tmp_path: Path, run: Cli) -> None:
    rng = np.random.default_rng(2)
    for part, names in enumerate((["a.weight", "b.weight"], ["c.weight"])):
        save_file({name: rng.normal(size=(16, 32)).astype(np.float16) for name in names},
                  tmp_path / f"model-0000{part + 1}-of-00002.safetensors")  # fmt: skip
    places = {n: f"model-0000{1 + (n[0] == 'c')}-of-00002.safetensors" for n in ("a.weight", "b.weight", "c.weight")}
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {str(places)}}}'.replace("'", '"'))
    found = document(run("inspect", tmp_path, "--json")[1], "inspect")
    assert found["kind"] == "safetensors" and {t["name"]: t["file"] for t in found["tensors"]} == places
    assert all(t["dtype"] == "F16" and t["bits_per_weight"] == 16 for t in found["tensors"])
    status, text, _ = run("inspect", tmp_path / "model-00001-of-00002.safetensors")
    assert status == 0 and "safetensors, 2 tensors, 1,024 weights" in text and "encoded it would be: int8 about" in text


def test_what_cannot_be_shown_says_why(tmp_path: Path, run: Cli) -> None:
    path = gguf(tmp_path / "m.gguf")
    status, _, error = run("inspect", path, "--filter", "nothing")
    assert status == 2 and "no tensor's name has 'nothing'" in error
    status, _, error = run("inspect", path, "--sort", "error")
    assert status == 2 and "--sort error is for .wcodec files" in error
    status, _, error = run("inspect", path, "--plot", tmp_path / "p.png")
    assert status == 2 and "no layers that are compressed" in error
    folder = tmp_path / "several"
    folder.mkdir()
    for name in ("q4.gguf", "q8.gguf"):
        shutil.copy(path, folder / name)
    status, _, error = run("inspect", folder)
    assert status == 2 and "there are 2 GGUF files" in error and "q4.gguf, q8.gguf" in error
    (folder / "q8.gguf").unlink()
    assert run("inspect", folder)[0] == 0
    path.write_bytes(path.read_bytes()[:-4000])
    status, text, _ = run("inspect", path)
    assert status == 0 and "it was cut off" in text
    path.write_bytes(path.read_bytes()[:40])
    assert run("inspect", path)[0] == 2
    status, _, error = run("inspect", tmp_path / "modle.wcodec")
    assert status == 2 and "no such" in error.lower()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    place = tmp_path_factory.mktemp("repositories")
    rng = np.random.default_rng(3)
    for name in ("plain", "one", "several"):
        (place / name).mkdir()
    save_file({"w.weight": rng.normal(size=(1024, 1024)).astype(np.float32)}, place / "plain/model.safetensors")
    # A header of more than is asked for first, and data that nobody needs.
    with gguf(place / "one/q4.gguf", 40_000).open("ab") as file:
        file.write(bytes(8 << 20))
    for name in ("q4.gguf", "q8.gguf"):
        gguf(place / "several" / name)
    with serving() as hub:
        for name in ("plain", "one", "several"):
            hub.add(f"me/{name}", place / name)
        yield hub


def inspect(hub: Hub, cache: Path, *arguments: str) -> tuple[int, str, str]:
    """The command, in a process that knows this Hub alone."""
    hub.requests.clear()
    hub.sent = 0
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1",
                   "HF_HUB_DISABLE_TELEMETRY": "1"}  # fmt: skip
    environment.pop("HF_HUB_OFFLINE", None)
    made = subprocess.run([sys.executable, "-m", "wcodec", "inspect", *arguments], env=environment, text=True,
                          capture_output=True, timeout=300, check=False)  # fmt: skip
    return made.returncode, made.stdout, made.stderr


def test_repositories_are_shown_by_ranges_of_their_files(hub: Hub, tmp_path: Path) -> None:
    status, text, error = inspect(hub, tmp_path, "me/plain", "--json")
    assert status == 0, error
    found = document(text, "inspect")
    assert found["tensors"][0]["shape"] == [1024, 1024] and found["totals"]["bits_per_weight"] > 32
    assert hub.sent < 1 << 20 and not list(tmp_path.rglob("*.safetensors"))
    status, text, error = inspect(hub, tmp_path, "me/one")
    assert status == 0, error
    assert "GGUF, 10 tensors" in text and "Q4_K" in text
    assert 1 << 20 < hub.sent < 5 << 20
    status, text, error = inspect(hub, tmp_path, "me/several/q8.gguf")
    assert status == 0 and "GGUF, 10 tensors" in text, error


def test_repositories_that_are_not_clear_say_so(hub: Hub, tmp_path: Path) -> None:
    status, _, error = inspect(hub, tmp_path, "me/several")
    assert status == 2 and "there are 2 GGUF files" in error and "me/several/FILE" in error
    status, _, error = inspect(hub, tmp_path, "me/several/q5.gguf")
    assert status == 2 and "the repository has no file 'q5.gguf'" in error
    status, _, error = inspect(hub, tmp_path, "me/nobody")
    assert status == 2 and "no repository that can be reached" in error
