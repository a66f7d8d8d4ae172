"""Saving models, and models in two files: nothing is left out silently, and no original is destroyed."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from command import Cli, call

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[3, 17, 256, 255, 5, 41]])


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Cli:
    return functools.partial(call, capsys)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "doc"
    wcodec.save_pretrained(wcodec.load_model(model), folder)
    return folder


@pytest.fixture(params=["now", "before"])
def part(request: pytest.FixtureRequest, saved: Path, tmp_path: Path) -> Path:
    """The container of a saved folder; and one of a time when containers did not say that they are parts."""
    folder = Path(shutil.copytree(saved, tmp_path / "saved"))
    if request.param == "before":
        with wcodec.open(folder / "model.wcodec") as container:
            data = container.extract(container)
            assert container.metadata == {"wcodec.rest": "model.safetensors"}
        (folder / "model.wcodec").write_bytes(data)
        assert wcodec.open(data).metadata == {}
    return folder / "model.wcodec"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


# One notion of a checkpoint


def write_shards(folder: Path, model: Path, split: int = 20) -> dict[str, str]:
    """The model in two shards; which tensor is in which."""
    from safetensors.torch import save_file

    tensors = tensors_of(model / "model.safetensors")
    names = sorted(tensors)
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    found = {}
    for shard, part in (("1.safetensors", names[:split]), ("2.safetensors", names[split:])):
        save_file({n: tensors[n] for n in part}, folder / shard)
        found.update(dict.fromkeys(part, shard))
    return found


def write_index(folder: Path, places: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards_are_read_as_the_encoder_reads_them(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    places = write_shards(folder, model)
    # Without an index it is not known whether these are all.
    with pytest.raises(wcodec.InputError, match="several .safetensors files and no index"):
        wcodec.load_model(folder)
    write_index(folder, places)
    assert torch.equal(logits(wcodec.load_model(folder)), logits(wcodec.load_model(model)))
    name = next(iter(places))
    for broken, error, message in (
        ({}, wcodec.FormatError, "names no tensor"),
        ([], wcodec.FormatError, "not an index of shards"),
        ({**places, name: 7}, wcodec.FormatError, "not an index of shards"),
        ({**places, name: "../1.safetensors"}, wcodec.FormatError, "is not in the folder"),
        ({**places, name: str(folder / "1.safetensors")}, wcodec.FormatError, "is not in the folder"),
        ({**places, name: "2.safetensors"}, wcodec.FormatError, "where it is not"),
        ({**places, name: "3.safetensors"}, wcodec.FileMissingError, "a shard of the checkpoint is missing"),
    ):
        write_index(folder, broken)
        for read in (wcodec.load_model, wcodec.compress_to_bytes):
            with pytest.raises(error, match=message):
                read(folder)


def test_a_tensor_in_two_shards_is_where_the_index_says(model: Path, tmp_path: Path, run: Cli) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "sharded"
    places = write_shards(folder, model)
    second = tensors_of(folder / "2.safetensors")
    name = next(n for n, shard in places.items() if shard == "1.safetensors" and n.endswith("proj.weight"))
    second[name] = torch.zeros_like(tensors_of(model / "model.safetensors")[name])
    save_file(second, folder / "2.safetensors")
    write_index(folder, places)
    assert torch.equal(logits(wcodec.load_model(folder)), logits(wcodec.load_model(model)))
    assert run("roundtrip", folder, "--coder", "raw", "--scale", "row", "-q")[:2] == (0, "")
    write_index(folder, {n: shard for n, shard in places.items() if n != name})
    with pytest.raises(wcodec.FormatError, match="it is in two shards"):
        wcodec.load_model(folder)
