"""Folders whose container has all weights: whoever does not know the format stops with an error, and whoever does
loads them; folders of earlier versions, too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import earlier_folders
import pytest
import wcodec
from fake_hub import Hub, serving
from small_models import llama
from wcodec._integrations import from_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
IDS = torch.arange(12)[None]

# transformers as it is where wcodec is not installed.
WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "wcodec":
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import transformers
kind, place, options = sys.argv[1], sys.argv[2], {"token": "secret"} if "private" in sys.argv[2] else {}
getattr(transformers, kind).from_pretrained(place, **options)
print("loaded")
"""


def logits(model: Any) -> Any:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compressed model, one layer of which is left as it was."""
    place = tmp_path_factory.mktemp("whole")
    llama().save_pretrained(place / "plain")
    wcodec.compress(place / "plain", f"{place}/m/", bits=4, exclude="*layers.1.mlp.up_proj*", progress=False)
    return place / "m"


@pytest.fixture(scope="module")
def hub(folder: Path) -> Any:
    with serving() as hub:
        hub.add("me/whole", folder)
        yield hub


def without(kind: str, place: object, hub: Hub | None = None, cache: Path | None = None) -> Any:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["TRANSFORMERS_VERBOSITY"] = "error"
    if hub is not None:
        environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": ""}
        environment["HF_HUB_OFFLINE"] = "0"
    call = [sys.executable, "-c", WITHOUT, kind, str(place)]
    return subprocess.run(call, capture_output=True, text=True, env=environment, check=False)


def test_no_file_passes_for_the_model(folder: Path, tmp_path: Path) -> None:
    wcodec.load_model(folder).save_pretrained(tmp_path / "saved")
    for place in (folder, tmp_path / "saved"):
        names = [p.name for p in place.iterdir()]
        assert not [n for n in names if n.endswith((".safetensors", ".bin", ".index.json"))]
        assert json.loads((place / "config.json").read_text())["transformers_weights"] == "model.wcodec"


@pytest.mark.parametrize("kind", ["AutoModelForCausalLM", "AutoModel", "LlamaForCausalLM"])
def test_transformers_alone_stops(kind: str, folder: Path) -> None:
    done = without(kind, folder)
    assert done.returncode != 0 and "loaded" not in done.stdout, done.stderr
    assert "model.wcodec" in done.stderr


def test_transformers_alone_stops_at_a_repository(folder: Path, hub: Hub, tmp_path: Path) -> None:
    done = without("AutoModelForCausalLM", "me/whole", hub, tmp_path)
    assert done.returncode != 0 and "loaded" not in done.stdout and "model.wcodec" in done.stderr, done.stderr
    assert "config.json" in hub.fetched("me/whole")


def test_all_ways_of_loading_agree(folder: Path) -> None:
    expected = logits(wcodec.load_model(folder))
    kinds = (transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM, transformers.AutoModel)
    for kind in kinds[:2]:
        for options in ({}, {"device_map": "cpu"}, {"device_map": "auto"}, {"use_safetensors": True},
                        {"variant": "fp16"}, {"device_map": {"": "cpu"}}, {"dtype": torch.float32}):  # fmt: skip
            found = kind.from_pretrained(folder, **options)
            assert torch.equal(logits(found), expected), options
            up = found.model.layers[1].mlp.up_proj
            assert type(up) is torch.nn.Linear and up.weight.device.type == "cpu"
    half = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert half.model.norm.weight.dtype == half.model.layers[1].mlp.up_proj.weight.dtype == torch.bfloat16
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()) and from_pretrained._LEFT not in model.__dict__
    # The layers without their head.
    base = kinds[2].from_pretrained(folder)
    assert torch.equal(base(IDS).last_hidden_state, model.model(IDS).last_hidden_state)


def test_a_subfolder(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "a/b")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, subfolder="a/b")
    assert torch.equal(logits(found), logits(wcodec.load_model(tmp_path, subfolder="a/b")))


def test_another_head_and_other_shapes_are_told(folder: Path) -> None:
    kind = transformers.AutoModelForSequenceClassification
    with pytest.warns(UserWarning, match="has no use for lm_head.weight"):
        _, told = kind.from_pretrained(folder, num_labels=3, output_loading_info=True)
    assert set(told["missing_keys"]) == {"score.weight"} and not told["mismatched_keys"]


def test_what_is_as_it_was_may_have_another_shape(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**{**llama().config.to_dict(), "num_labels": 4, "architectures": None})
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path / "plain")
    wcodec.compress(tmp_path / "plain", f"{tmp_path}/m/", exclude="score*", progress=False)
    kind = transformers.AutoModelForSequenceClassification
    assert kind.from_pretrained(tmp_path / "m").score.weight.shape[0] == 4
    with pytest.raises(RuntimeError, match="score.weight|ignore_mismatched_sizes"):
        kind.from_pretrained(tmp_path / "m", num_labels=3)
    found, told = kind.from_pretrained(
        tmp_path / "m", num_labels=3, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert found.score.weight.shape[0] == 3 and [key for key, *_ in told["mismatched_keys"]] == ["score.weight"]


def test_a_folder_of_an_earlier_version(tmp_path: Path) -> None:
    old = Path(shutil.copytree(earlier_folders.RELEASED, tmp_path / "old"))
    for model in (wcodec.load_model(old), transformers.AutoModelForCausalLM.from_pretrained(old),
                  wcodec.WCodecModel.from_pretrained(old).model):  # fmt: skip
        assert logits(model)[0, -1, :4].tolist() == pytest.approx(earlier_folders.LOGITS, abs=1e-5)
    # Saved over it, no file is left that would pass for the model.
    model.save_pretrained(old)
    assert not (old / "model.safetensors").exists() and torch.equal(logits(wcodec.load_model(old)), logits(model))
    other = Path(shutil.copytree(earlier_folders.RELEASED, tmp_path / "other"))
    wcodec.compress(decoded(other, tmp_path / "decoded"), f"{other}/", overwrite=True, progress=False)
    assert not (other / "model.safetensors").exists() and logits(wcodec.load_model(other)).isfinite().all()


def decoded(folder: Path, place: Path) -> Path:
    """A checkpoint of all tensors of a compressed folder."""
    place.mkdir()
    wcodec.decompress(folder, place / "model.safetensors", progress=False)
    record = json.loads((folder / "config.json").read_text())
    for key in ("quantization_config", "transformers_weights"):
        record.pop(key, None)
    (place / "config.json").write_text(json.dumps(record))
    return place


def test_decoding_and_comparing_take_the_folder_for_all(folder: Path, tmp_path: Path) -> None:
    plain = transformers.AutoModelForCausalLM.from_pretrained(decoded(folder, tmp_path / "d"))
    assert torch.allclose(logits(plain), logits(wcodec.load_model(folder)), atol=1e-5)
    assert wcodec.verify(folder, against=folder.parent / "plain", progress=False).ok
    assert wcodec.compare(folder, folder).same
    assert set(wcodec.load_file(folder)) == {n for n, _ in plain.named_parameters()}
    for name in (tmp_path / "x.wcodec", f"{tmp_path}/x/"):
        with pytest.raises(wcodec.InputError, match="a compressed model, whose weights are in 'model.wcodec'"):
            wcodec.compress(folder, name, progress=False)


def test_a_decompressed_model_is_saved_as_any(folder: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    expected = logits(model)
    wcodec.decompress_(model)
    model.save_pretrained(tmp_path / "plain")
    assert "transformers_weights" not in json.loads((tmp_path / "plain/config.json").read_text())
    done = without("AutoModelForCausalLM", tmp_path / "plain")
    assert done.returncode == 0, done.stderr
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert torch.allclose(logits(again), expected, atol=1e-5)


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "model.wcodec").unlink()
    with pytest.raises(wcodec.FileMissingError, match="model.wcodec"):
        transformers.AutoModelForCausalLM.from_pretrained(copy)
    copy = Path(shutil.copytree(folder, tmp_path / "other"))
    record = json.loads((copy / "config.json").read_text())
    del record["quantization_config"]
    (copy / "config.json").write_text(json.dumps(record))
    with pytest.raises(wcodec.InputError, match="does not say that they are compressed"):
        transformers.AutoModelForCausalLM.from_pretrained(copy)


def test_a_dtype_that_no_config_says_is_that_of_the_weights(tmp_path: Path) -> None:
    llama().half().save_pretrained(tmp_path / "plain")
    path = tmp_path / "plain/config.json"
    record = json.loads(path.read_text())
    del record["dtype"]
    path.write_text(json.dumps(record))
    wcodec.compress(tmp_path / "plain", f"{tmp_path}/m/", progress=False)
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").dtype == torch.float16


def test_another_transformers_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import modeling_utils

    real = modeling_utils._get_resolved_checkpoint_files.__wrapped__
    monkeypatch.setattr(modeling_utils, "_get_resolved_checkpoint_files", real)
    monkeypatch.setattr(from_pretrained, "install", lambda: None)
    with pytest.raises(wcodec.UnsupportedError, match="in a way that this wcodec does not know"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)
