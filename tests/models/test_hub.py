"""Repositories of the Hub: what is fetched of them, with which options, and what is said where something is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wcodec
from fake_hub import COMMITS, Hub, serving
from small_models import llama
from wcodec._core import paths
from wcodec._models import hub as _hub

transformers = pytest.importorskip("transformers")
pytest.importorskip("huggingface_hub")

# Loads one repository after the other, and prints what came of each.
PROGRAM = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import transformers, wcodec
transformers.logging.disable_progress_bar()
for how, name, options in json.loads(sys.argv[1]):
    try:
        load = transformers.AutoModelForCausalLM.from_pretrained if how == "auto" else wcodec.load_model
        model = load(name, **options)
        print(json.dumps(["loaded", type(model.lm_head).__name__]), flush=True)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``plain``, a sharded checkpoint among files of other forms, and ``packed``, that compressed, among
    weights that nobody reads; in ``deep`` it is in a subfolder."""
    place = tmp_path_factory.mktemp("repositories")
    llama().save_pretrained(place / "plain", max_shard_size="20KB")
    (place / "plain/original").mkdir()
    (place / "plain/onnx").mkdir()
    for name in ("pytorch_model.bin", "original/consolidated.00.pth", "onnx/model.onnx", "q4.gguf", "README.md",
                 "modeling_own.py", "picture.png", "spm.model", "tokenizer.json", "vocab.txt"):  # fmt: skip
        (place / "plain" / name).write_text(f"this is {name}")
    wcodec.compress(place / "plain", f"{place / 'packed'}/", progress=False)
    (place / "packed/pytorch_model.bin").write_text("weights of another form")
    (place / "packed/model-00001-of-00002.safetensors").write_text("a shard of nothing")
    shutil.copytree(place / "packed", place / "deep/a/b")
    (place / "deep/config.json").write_text("{}")
    return place


@pytest.fixture(scope="module")
def hub(place: Path) -> Iterator[Hub]:
    with serving() as hub:
        hub.add("me/plain", place / "plain")
        hub.add("me/packed", place / "packed")
        hub.add("me/packed", place / "plain", "v1")
        hub.add("me/deep", place / "deep")
        hub.add("me/private", place / "packed")
        hub.tokens["me/private"] = "secret"
        adapter = place / "adapter"
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "me/plain"}')
        (adapter / "adapter_model.safetensors").write_text("small")
        hub.add("me/adapter", adapter)
        yield hub


def run(hub: Hub, cache: Path, *calls: tuple[str, str, dict[str, Any]], offline: bool = False) -> list[list[str]]:
    """Outcomes of loading, in a process that knows this Hub alone."""
    hub.requests.clear()
    environment = {**hub.environment(cache, offline=offline), "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(calls)], capture_output=True, text=True, env=environment, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == len(calls), done.stderr
    return found


LOADED = ["loaded", "CompressedLinear"]


def test_repositories_are_fetched_and_kept(hub: Hub, place: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plain, auto, other, deep, auto_deep, private, auto_private, own, auto_own, adapter, none = run(
        hub, cache,
        ("load", "me/plain", {}),
        ("auto", "me/packed", {}),
        ("load", "me/packed", {"revision": "v1"}),
        ("load", "me/deep", {"subfolder": "a/b"}),
        ("auto", "me/deep", {"subfolder": "a/b", "cache_dir": str(tmp_path / "another")}),
        ("load", "me/private", {}),
        ("auto", "me/private", {}),
        ("load", "me/private", {"token": "secret", "cache_dir": str(tmp_path / "other")}),
        ("auto", "me/private", {"token": "secret"}),
        ("load", "me/adapter", {}),
        ("load", "me/packed", {"revision": "v2"}),
    )  # fmt: skip
    assert [plain, auto, other, deep, auto_deep, own, auto_own] == [LOADED] * 7
    assert private[0] == "FileMissingError" and "me/private" in private[1] and auto_private[0] == "OSError"
    assert adapter[0] == "InputError" and "an adapter (LORA) of me/plain" in adapter[1]
    assert none[0] == "FileMissingError" and "RevisionNotFound" in none[1]
    shards = {p.name for p in (place / "plain").glob("model-*.safetensors")}
    assert len(shards) > 1
    read = {"config.json", "generation_config.json", "model.safetensors.index.json", *shards}
    assert hub.fetched("me/plain") == read | {"spm.model", "tokenizer.json", "vocab.txt"}
    assert hub.fetched("me/packed") >= {"config.json", "model.wcodec"}
    for name in ("me/packed", "me/deep", "me/private", "me/adapter"):
        weights = {n for n in hub.fetched(name) if n.endswith((".bin", ".pth", ".onnx", ".gguf", "00002.safetensors"))}
        assert not weights - shards, name
    # The container is of the same commit, and lies where the others are.
    snapshots = tmp_path / "another/models--me--deep/snapshots" / COMMITS["main"]
    assert (snapshots / "a/b/model.wcodec").is_file()
    assert "adapter_model.safetensors" not in hub.fetched("me/adapter")
    assert (tmp_path / "other/models--me--private").is_dir()

    # All of it is there now, and nobody is asked.
    found = run(
        hub, cache, ("load", "me/plain", {}), ("auto", "me/packed", {}), ("load", "me/packed", {"revision": "v1"}),
        ("load", "me/deep", {"subfolder": "a/b"}), offline=True,
    )  # fmt: skip
    assert found == [LOADED] * 4 and hub.requests == []

    # Missing files are named, with what helps.
    next((cache / "models--me--plain/snapshots").rglob("model-00002*")).unlink()
    for path in (cache / "models--me--packed/snapshots").rglob("model.wcodec"):
        path.unlink()
    shard, container, by_auto, nothing, local = run(
        hub, cache, ("load", "me/plain", {}), ("load", "me/packed", {}), ("auto", "me/packed", {}),
        ("load", "me/nothing", {}), ("load", "me/packed", {"cache_dir": str(tmp_path / "empty")}), offline=True,
    )  # fmt: skip
    assert hub.requests == []
    for error, name in ((shard, "model-00002-of-"), (container, "'model.wcodec'"), (by_auto, "'model.wcodec'")):
        assert error[0] == "FileMissingError" and name in error[1] and "HF_HUB_OFFLINE" in error[1], error
    for error in (nothing, local):
        assert error[0] == "FileMissingError" and "in the cache" in error[1], error
    again, local_again = run(
        hub, cache, ("load", "me/packed", {"local_files_only": True}), ("auto", "me/packed", {"local_files_only": True})
    )
    assert again[0] == local_again[0] == "FileMissingError" and "local_files_only" in again[1]
    assert hub.fetched("me/packed") == set()


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ({"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"}, ["model.safetensors"]),
        ({"model.safetensors.index.json", "x.safetensors"}, ["model.safetensors.index.json", "1.safetensors"]),
        ({"consolidated.safetensors"}, ["consolidated.safetensors"]),
        ({"m.fp16.safetensors", "m.fp16.safetensors.index.json"}, ["m.fp16.safetensors"]),
        ({"m.fp16.safetensors.index.json", "1.safetensors"}, ["m.fp16.safetensors.index.json", "1.safetensors"]),
        ({"a.wcodec", "model.safetensors"}, ["a.wcodec"]),
        ({"pytorch_model.bin"}, ["model.safetensors"]),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_files_of_weights(names: set[str], wanted: list[str]) -> None:
    index = {"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}}
    assert _hub.weights_of(names, lambda name: index, "me/x") == wanted


def test_files_of_weights_by_the_config() -> None:
    def read(name: str) -> dict[str, Any]:
        return config

    config: dict[str, Any] = {"quantization_config": {"quant_method": "wcodec", "file": "w.wcodec"}}
    names = {"config.json", "model.safetensors", "model.safetensors.index.json", "a.wcodec", "b.wcodec"}
    # An earlier version wrote two files.
    assert _hub.weights_of(names, read, "me/x") == ["w.wcodec", "model.safetensors"]
    config["transformers_weights"] = "w.wcodec"
    assert _hub.weights_of(names, read, "me/x") == ["w.wcodec"]
    config = {"transformers_weights": "own.safetensors"}
    assert _hub.weights_of({"config.json", "model.safetensors"}, read, "me/x") == ["own.safetensors"]
    config = {}
    for names, message in (({"a.wcodec", "b.wcodec"}, "2 .wcodec files"), ({"1.safetensors", "2.safetensors"}, "open")):
        with pytest.raises(wcodec.InputError, match=message):
            _hub.weights_of(names, read, "me/x")
    with pytest.raises(wcodec.FormatError, match="not an index of shards"):
        _hub.weights_of({"model.safetensors.index.json"}, read, "me/x")


def test_folders_of_the_cache_tell_their_repository(tmp_path: Path) -> None:
    commit = "0123456789" * 4
    folder = tmp_path / "hub/models--me--x/snapshots" / commit
    found = _hub._of_cache(folder / "a/b")
    assert found is not None
    assert found == ("me/x", _hub.Options(revision=commit, subfolder="a/b", cache_dir=str(tmp_path / "hub")))
    assert _hub._of_cache(tmp_path / "models--me--x/snapshots/v1") is None and _hub._of_cache(tmp_path) is None
    # Beside files that are not of a repository nothing is fetched.
    assert _hub.container_beside([tmp_path / "model.safetensors"], "../m.wcodec") == tmp_path / "m.wcodec"
    for bad in ("../x", "/etc"):
        with pytest.raises(wcodec.InputError, match="subfolder"):
            _hub.Options(subfolder=bad)


def test_a_subfolder_of_a_folder(place: Path) -> None:
    assert type(wcodec.load_model(place / "deep", subfolder="a/b").lm_head).__name__ == "CompressedLinear"
    with pytest.raises(wcodec.FileMissingError, match="no such folder"):
        wcodec.load_model(place / "deep", subfolder="a/c")


def test_names_in_the_cache_are_taken_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub/models--me--x/snapshots").mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    paths.check("me/x", hub=True, cache_dir=tmp_path / "hub")
    with pytest.raises(wcodec.FileMissingError, match="no repository of that name in the cache"):
        paths.check("me/y", hub=True, cache_dir=tmp_path / "hub")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    paths.check("me/y", hub=True, cache_dir=tmp_path / "hub")
    with pytest.raises(wcodec.FileMissingError):
        paths.check("me/y", hub=True, local_files_only=True, cache_dir=tmp_path / "hub")
