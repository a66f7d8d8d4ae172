"""Repositories of the Hub as sources of encoding: read a tensor at a time, without a copy of their weights on disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wcodec
from command import Cli
from fake_hub import Hub, serving
from small_models import llama, mixtral

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
constants = pytest.importorskip("huggingface_hub.constants")

from wcodec._models import remote  # noqa: E402


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sources")
    llama(tie_word_embeddings=False).save_pretrained(place / "llama", max_shard_size="20KB")
    mixtral().half().save_pretrained(place / "mixtral")
    for name in ("README.md", "LICENSE", "tokenizer.json", "picture.png"):
        (place / "llama" / name).write_text("{}" if name.endswith("json") else f"this is {name}")
    shutil.copytree(place / "llama", place / "deep/a")
    (place / "deep/config.json").write_text("{}")
    for name, kind in (("config.json", "quantized"),):
        shutil.copytree(place / "llama", place / kind)
        record = json.loads((place / kind / name).read_text())
        record["quantization_config"] = {"quant_method": "gptq", "bits": 4}
        (place / kind / name).write_text(json.dumps(record))
    (place / "cut").mkdir()
    (place / "cut/config.json").write_text((place / "llama/config.json").read_text())
    (place / "cut/model.safetensors").write_bytes(b"\xff" * 40)
    wcodec.compress(place / "llama", f"{place}/packed/", progress=False)
    return place


@pytest.fixture
def hub(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as hub:
        for name in ("llama", "mixtral", "deep", "quantized", "cut", "packed"):
            hub.add(f"me/{name}", place / name)
        hub.add("me/private", place / "llama")
        hub.tokens["me/private"] = "secret"
        hub.known_to(monkeypatch, "", HF_HUB_CACHE=str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
        yield hub


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "README.md"}


def alike(one: Path, two: Path, exact: bool) -> None:
    """Whether two folders have the same weights; of scheme rate, as many bits of each tensor: steps of tensors that are
    given one by one are found in another way than those of files."""
    with wcodec.open(one) as first, wcodec.open(two) as second:
        found, wanted = ({e.name: (e.shape, e.dtype, e.scheme) for e in c.stored} for c in (first, second))
        assert list(found) == list(wanted) and found == wanted
        assert first.stored_bytes == pytest.approx(second.stored_bytes, rel=0.03)
    if exact:
        assert wcodec.compare(one, two).same


def cached_weights(tmp_path: Path) -> list[str]:
    return [p.name for p in (tmp_path / "cache").rglob("*.safetensors")]


@pytest.mark.parametrize("name", ["llama", "mixtral"])
@pytest.mark.parametrize("options", [{}, {"bits": 4}, {"scheme": "lossless"}], ids=["int8", "rate", "lossless"])
def test_a_repository_is_encoded_as_its_folder(
    name: str, options: dict[str, Any], hub: Hub, place: Path, tmp_path: Path
) -> None:
    wcodec.compress(f"me/{name}", f"{tmp_path}/from-hub/", **options, progress=False)
    wcodec.compress(place / name, f"{tmp_path}/from-disk/", **options, calibrate=False, progress=False)
    hub_made, disk_made = tmp_path / "from-hub", tmp_path / "from-disk"
    alike(hub_made, disk_made, exact="bits" not in options)
    assert {n for n in contents(hub_made)} == {n for n in contents(disk_made)}
    assert cached_weights(tmp_path) == [] and hub.parts
    # Each tensor once, since it was kept in memory for the next pass.
    tensors = [part for part in hub.parts if part[1] > 0]
    assert len(set(tensors)) == len(tensors)
    card = (hub_made / "README.md").read_text()
    assert f"base_model: me/{name}" in card and ("this is README.md" in card) == (name == "llama")
    assert wcodec.load_model(hub_made)(torch.arange(9)[None]).logits.isfinite().all()


def test_what_is_not_kept_is_read_again(hub: Hub, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "host_memory", lambda: (0, 0))
    monkeypatch.setattr(remote, "_PIECE", 1000)
    monkeypatch.setattr(remote, "_HEAD", 64)
    hub.failures = 1
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    wcodec.compress("me/llama", f"{tmp_path}/m/", bits=4, progress=False)
    wcodec.compress(place / "llama", f"{tmp_path}/n/", bits=4, calibrate=False, progress=False)
    alike(tmp_path / "m", tmp_path / "n", exact=False)
    assert max(end - begin for _, begin, end in hub.parts) == 1000 and len(set(hub.parts)) < len(hub.parts)


def test_what_was_fetched_before_is_read_from_there(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wcodec.load_model("me/llama")
    assert len(cached_weights(tmp_path)) > 1
    hub.parts.clear()
    wcodec.compress("me/llama", f"{tmp_path}/a/", progress=False)
    assert hub.parts == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    wcodec.compress("me/llama", f"{tmp_path}/b/", progress=False)
    assert hub.requests == [] and wcodec.compare(tmp_path / "a", tmp_path / "b").same
    with pytest.raises(wcodec.FileMissingError, match="HF_HUB_OFFLINE|in the cache"):
        wcodec.compress("me/mixtral", f"{tmp_path}/c/", progress=False)


def test_options_of_repositories(hub: Hub, tmp_path: Path, run: Cli) -> None:
    wcodec.compress("me/deep", f"{tmp_path}/deep/", subfolder="a", progress=False)
    wcodec.compress("me/private", f"{tmp_path}/private/", token="secret", progress=False)
    assert wcodec.compare(tmp_path / "deep", tmp_path / "private").same
    status, out, err = run("encode", "me/llama", "-o", f"{tmp_path}/cli/", "--revision", "main", "--bits", "4")
    assert status == 0 and wcodec.open(tmp_path / "cli")["lm_head.weight"].scheme == "rate", err
    assert "not calibrated: a model on the Hub is not fetched to run" in err and err.count("calibrated") == 1
    other = tmp_path / "another"
    wcodec.compress("me/mixtral", f"{tmp_path}/m/", cache_dir=other, progress=False)
    assert (other / "models--me--mixtral").is_dir()


def test_what_runs_the_model_fetches_it(hub: Hub, tmp_path: Path) -> None:
    wcodec.compress("me/llama", f"{tmp_path}/m/", bits=5, calibrate=torch.arange(80), progress=False)
    assert len(cached_weights(tmp_path)) > 1 and "calibrated" in (tmp_path / "m/README.md").read_text()


def test_what_is_refused(hub: Hub, tmp_path: Path, run: Cli) -> None:
    out = f"{tmp_path}/out/"
    cases = {
        "me/nothing": (wcodec.FileMissingError, "RepositoryNotFound"),
        "me/private": (wcodec.FileMissingError, "me/private"),
        "me/quantized": (wcodec.UnsupportedError, "^me/quantized: the weights are quantized already, with GPTQ"),
        "me/packed": (wcodec.InputError, "it is a compressed model"),
        "me/cut": (wcodec.FormatError, r"me/cut/model.safetensors: not a .safetensors file"),
    }
    for name, (error, said) in cases.items():
        hub.parts.clear()
        with pytest.raises(error, match=said):
            wcodec.compress(name, out, progress=False)
        # Headers alone were read.
        assert all(begin == 0 for _, begin, _ in hub.parts)
    with pytest.raises(wcodec.FileMissingError, match="RevisionNotFound"):
        wcodec.compress("me/llama", out, revision="v7", progress=False)
    with pytest.raises(wcodec.InputError, match="is encoded to a folder"):
        wcodec.compress("me/llama", tmp_path / "x.wcodec", progress=False)
    hub.ranges = False
    with pytest.raises(wcodec.FileMissingError, match="it knows no ranges"):
        wcodec.compress("me/llama", out, progress=False)
    assert not os.path.exists(out)
    status, _, err = run("encode", "me/nothing", "-o", out)
    assert status == 2 and "me/nothing" in err


def test_a_hub_that_stops_answering(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    real = remote._Source.tensor

    def tensor(self: Any, file: str, key: str) -> Any:
        if "norm" in key:
            hub.failures = 1000
        return real(self, file, key)

    monkeypatch.setattr(remote._Source, "tensor", tensor)
    with pytest.raises(wcodec.FileMissingError, match="the Hub does not give bytes"):
        wcodec.compress("me/llama", f"{tmp_path}/m/", progress=False)
    assert not (tmp_path / "m").exists()
