"""Uploading folders: to a Hub on this machine, and what is not uploaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import earlier_folders
import pytest
import wcodec
from command import Cli, document
from fake_hub import Hub, serving
from small_models import llama

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("push")
    llama().save_pretrained(place / "plain")
    (place / "plain/tokenizer.json").write_text("{}")
    wcodec.compress(place / "plain", f"{place}/small/", progress=False)
    (place / "small/.hidden").write_text("not for others")
    (place / "small/inner").mkdir()
    (place / "small/inner/note.txt").write_text("mine")
    return place / "small"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as hub:
        hub.uploads = tmp_path / "uploads"
        hub.known_to(monkeypatch, "good")
        yield hub


def test_a_folder_is_uploaded_in_one_commit(folder: Path, hub: Hub, tmp_path: Path) -> None:
    before = (folder / "README.md").read_bytes()
    url = wcodec.push(folder, "me/small-model", private=True, message="first", progress=False)
    assert url == f"{hub.url}/me/small-model" and hub.commits == [("me/small-model", "main", "first", "good")]
    made = tmp_path / "uploads/me/small-model"
    names = {p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file()}
    assert names == {"README.md", "config.json", "generation_config.json", "model.wcodec", "tokenizer.json",
                     "inner/note.txt"}  # fmt: skip
    for name in names - {"README.md"}:
        assert (made / name).read_bytes() == (folder / name).read_bytes()
    card = (made / "README.md").read_text()
    assert 'from_pretrained("me/small-model"' in card and "wcodec generate me/small-model " in card
    assert (folder / "README.md").read_bytes() == before and hub.created == [("me", "small-model", True)]
    # And from there it is a model again.
    loaded = wcodec.load_model("me/small-model", cache_dir=tmp_path / "cache")
    ids = torch.arange(9)[None]
    assert torch.equal(loaded(ids).logits, wcodec.load_model(folder)(ids).logits)


def test_the_command(folder: Path, hub: Hub, tmp_path: Path, run: Cli) -> None:
    (copy := Path(shutil.copytree(folder, tmp_path / "copy")))
    (copy / "README.md").write_text("mine")
    status, out, err = run("push", copy, "me/x", "--revision", "try", "--token", "other", "--json")
    assert status == 0 and document(out, "push")["url"] == f"{hub.url}/me/x", err
    assert hub.commits == [("me/x", "try", "Upload copy, compressed by wcodec", "other")]
    # A card that somebody wrote is uploaded as it is.
    assert (tmp_path / "uploads/me/x/README.md").read_text() == "mine"
    status, out, err = run("push", copy, "me/x")
    assert status == 0 and f"uploaded to {hub.url}/me/x" in out + err


def test_what_is_not_uploaded(folder: Path, hub: Hub, tmp_path: Path, run: Cli) -> None:
    def changed(name: str) -> Path:
        return Path(shutil.copytree(folder, tmp_path / name))

    plain, damaged, beside, none = folder.parent / "plain", changed("damaged"), changed("beside"), changed("none")
    data = bytearray((damaged / "model.wcodec").read_bytes())
    data[len(data) // 3] ^= 1
    (damaged / "model.wcodec").write_bytes(data)
    shutil.copy(plain / "model.safetensors", beside / "other.safetensors")
    (none / "model.wcodec").unlink()
    for place, error, said in (
        (plain, wcodec.InputError, "no compressed model"),
        (damaged, wcodec.CorruptError, "damaged at '.*', and not uploaded"),
        (beside, wcodec.InputError, "'other.safetensors' has weights"),
        (earlier_folders.RELEASED, wcodec.InputError, "of an earlier version"),
        (none, wcodec.FileMissingError, "names this file, and it is missing"),
        (tmp_path / "nowhere", wcodec.FileMissingError, "no such folder"),
    ):
        with pytest.raises(error, match=said):
            wcodec.push(place, "me/x", progress=False)
    for name in ("", "a/b/c", "../x", "me/", "me x"):
        with pytest.raises(wcodec.InputError, match="no name of a repository"):
            wcodec.push(folder, name, progress=False)
    assert hub.requests == []
    hub.refuses = True
    with pytest.raises(wcodec.FileError, match="the Hub does not take it"):
        wcodec.push(folder, "me/x", progress=False)
    status, _, err = run("push", folder, "me/x", "-q")
    assert status == 2 and "the Hub does not take it" in err and hub.commits == []


def test_an_adapter_goes_along(folder: Path, hub: Hub, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "adapter_model.safetensors").write_bytes(b"small")
    (copy / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    wcodec.push(copy, "me/x", progress=False)
    assert (tmp_path / "uploads/me/x/adapter_model.safetensors").read_bytes() == b"small"
