"""Saving models, and models in two files: nothing is left out silently, and no original is destroyed."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import earlier_folders
import numpy as np
import pytest
import torch
import wcodec
from command import Cli, contents
from wcodec._models import save
from wcodec.nn import CompressedLayer

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[3, 17, 256, 255, 5, 41]])


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "doc"
    wcodec.save_pretrained(wcodec.load_model(model), folder)
    return folder


@pytest.fixture(params=["said", "unsaid"])
def part(request: pytest.FixtureRequest, saved: Path, tmp_path: Path) -> Path:
    """The container of a folder of an earlier version; and one of a time when these did not say that they are parts."""
    folder = earlier_folders.split(Path(shutil.copytree(saved, tmp_path / "saved")), request.param == "said")
    with wcodec.open(folder / "model.wcodec") as container:
        assert container.metadata == ({"wcodec.rest": "model.safetensors"} if request.param == "said" else {})
    return folder / "model.wcodec"


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


# The container is a part of the model


def test_decoding_a_part_gives_all_tensors(part: Path, model: Path, tmp_path: Path, run: Cli) -> None:
    out = tmp_path / "all.safetensors"
    assert run("decode", part, "-o", out, "-q") == (0, "", "")
    found, original = tensors_of(out), tensors_of(model / "model.safetensors")
    assert found.keys() == original.keys() and len(found) == 39
    rest = tensors_of(part.parent / "model.safetensors")
    assert len(rest) == 9
    for name, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (original[name].dtype, original[name].shape)
        assert name not in rest or torch.equal(tensor, original[name])
    # Decoded weights are a model again.
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copy(model / "config.json", whole)
    shutil.copy(out, whole / "model.safetensors")
    decoded = transformers.AutoModelForCausalLM.from_pretrained(whole)
    assert torch.equal(logits(decoded), logits(wcodec.load_model(part.parent)))


def test_a_part_without_the_rest(part: Path, tmp_path: Path, run: Cli) -> None:
    rest, out = part.parent / "model.safetensors", tmp_path / "out.safetensors"
    rest.unlink()
    status, _, err = run("decode", part, "-o", out)
    assert status == 2 and str(rest) in err and "--partial" in err and not out.exists()
    with pytest.raises(wcodec.FileMissingError, match="not compressed are missing"):
        wcodec.decompress(part, out, progress=False)
    assert run("decode", part, "-o", out, "-q", "--partial")[0] == 0
    assert len(tensors_of(out)) == 30


def test_partial_takes_what_is_there(part: Path, tmp_path: Path) -> None:
    wcodec.decompress(part, tmp_path / "out.safetensors", partial=True, progress=False)
    assert len(tensors_of(tmp_path / "out.safetensors")) == 39


def test_loading_a_part_warns(part: Path, saved: Path, model: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"the other tensors are in .*model\.safetensors") as seen:
        assert len(wcodec.load_file(part)) == 30
    assert seen[0].filename == __file__
    wcodec.compress(model, tmp_path / "whole.wcodec", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(wcodec.load_file(tmp_path / "whole.wcodec")) == 39
        wcodec.load_model(part.parent)


def test_verify_compares_the_rest_too(part: Path, model: Path, run: Cli) -> None:
    assert run("verify", part, "--against", model, "-q") == (0, "", "")
    assert run("verify", part.parent, "--against", model, "-q") == (0, "", "")
    rest = part.parent / "model.safetensors"
    data = rest.read_bytes()
    rest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    status, out, _ = run("verify", part, "--against", model, "-q")
    lines = [line for line in out.splitlines() if line.startswith("differs: ")]
    assert status == 1 and len(lines) == 1
    assert f"in the rest of its model, {rest}, it is not what the source has" in lines[0]
    rest.unlink()
    status, out, _ = run("verify", part, "--against", model, "-q")
    assert status == 1 and out.count("missing: ") == 9


def test_the_rest_alone_is_no_model_to_encode(part: Path, tmp_path: Path, run: Cli) -> None:
    for source in (part.parent, part.parent / "model.safetensors"):
        for command in (["encode", source, "-o", tmp_path / "x.wcodec"], ["roundtrip", source],
                        ["verify", part, "--against", source]):  # fmt: skip
            status, _, err = run(*command)
            assert status == 2 and "whose other weights are in 'model.wcodec'" in err, err
    assert not (tmp_path / "x.wcodec").exists()


# Saving to a folder


def test_an_original_is_never_replaced(model: Path, tmp_path: Path) -> None:
    loaded = wcodec.load_model(model)
    weights = (model / "model.safetensors").read_bytes()
    shards = {"model-00001-of-00001.safetensors": weights, "model.safetensors.index.json": b"{}"}
    for i, files in enumerate(({"model.safetensors": weights}, shards, {"pytorch_model.bin": b"torch"},
                               {"pytorch_model.bin.index.json": b"{}"})):  # fmt: skip
        folder = tmp_path / str(i)
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        for config in (False, True):
            if config:
                shutil.copy(model / "config.json", folder)
            before = contents(folder)
            for overwrite in (False, True):
                with pytest.raises(wcodec.InputError, match=r"not compressed .* \(save to another folder\)"):
                    wcodec.save_pretrained(loaded, folder, overwrite=overwrite)
            assert contents(folder) == before


def test_a_save_that_fails_changes_nothing(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "there"))
    other = wcodec.load_model(saved)
    other.model.norm.weight.data.fill_(7.0)
    before = contents(folder)

    class Failing:
        def save_pretrained(self, place: Any) -> None:
            Path(place, "tokenizer.json").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wcodec.save_pretrained(other, folder, Failing(), overwrite=True)
    # The file that is written last fails: the others are not there either.
    real, names = save.output, []

    def failing(path: Path, **options: Any) -> Any:
        names.append(path.name)
        if path.name == "config.json":
            raise KeyboardInterrupt
        return real(path, **options)

    monkeypatch.setattr(save, "output", failing)
    for place in (folder, tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt):
            wcodec.save_pretrained(other, place, overwrite=True)
    assert names[0] == "model.wcodec" and names[-1] == "config.json"
    assert contents(folder) == before and contents(tmp_path / "new") == {}
    monkeypatch.undo()
    wcodec.save_pretrained(other, folder, overwrite=True)
    assert torch.equal(wcodec.load_model(folder).model.norm.weight, other.model.norm.weight)
    assert {p.name for p in folder.iterdir()} == set(before)


def test_files_beside_the_model_are_not_replaced_unasked(saved: Path, tmp_path: Path) -> None:
    model = wcodec.load_model(saved)
    (tmp_path / "tokenizer.json").write_text("mine")
    wcodec.save_pretrained(model, tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    wcodec.save_pretrained(model, tmp_path, overwrite=True)
    assert (tmp_path / "tokenizer.json").read_bytes() == (saved / "tokenizer.json").read_bytes()

    class Tokenizer:
        def save_pretrained(self, place: Any) -> None:
            Path(place, "additional").mkdir()
            Path(place, "additional", "template.jinja").write_text("theirs")

    folder = tmp_path / "new"
    (folder / "additional").mkdir(parents=True)
    (folder / "additional" / "template.jinja").write_text("mine")
    with pytest.raises(wcodec.OutputExistsError, match="template.jinja exists"):
        wcodec.save_pretrained(model, folder, Tokenizer())
    assert list(contents(folder)) == ["additional/template.jinja"]
    wcodec.save_pretrained(model, folder, Tokenizer(), overwrite=True)
    assert (folder / "additional" / "template.jinja").read_text() == "theirs"
    if os.name == "posix":
        (folder / "model.wcodec").unlink()
        (folder / "model.wcodec").symlink_to(saved / "model.wcodec")
        with pytest.raises(wcodec.InputError, match="a symbolic link, which is not replaced"):
            wcodec.save_pretrained(model, folder, overwrite=True)


def test_buffers_and_dtypes_are_saved(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=300,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.model.register_buffer("ids", torch.arange(5))
    model.model.register_buffer("mask", torch.ones(2, 3, dtype=torch.bool).T)
    model.model.register_buffer("passing", torch.zeros(3), persistent=False)
    wcodec.compress_(model, exclude="*mlp*", progress=False)
    wcodec.save_pretrained(model, tmp_path)
    with wcodec.open(tmp_path) as container:
        found = {name: container[name].torch() for name in container if container[name].scheme == "raw"}
    want = {n: p for n, p in model.state_dict().items() if not n.endswith("wcodec")}
    assert found.keys() == want.keys() and "model.passing" not in found
    for name, tensor in want.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


# transformers' own saving


def saves(model: Any, folder: Path) -> bool:
    """Whether the model's own method writes a folder that loads as the same model, compressed."""
    model.save_pretrained(folder)
    loaded = type(model).from_pretrained(folder)
    same = torch.equal(outputs(loaded), outputs(model)) and is_compressed(loaded) and is_compressed(model)
    shutil.rmtree(folder)
    return same


def outputs(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS)[0]


def is_compressed(model: Any) -> bool:
    return any(isinstance(m, CompressedLayer) for m in model.modules())


def plain(model: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model)


@pytest.mark.parametrize("way", ["compress_", "load_model", "a checkpoint", "transformers"])
def test_the_models_own_methods_save_it(way: str, saved: Path, model: Path, tmp_path: Path) -> None:
    if way == "compress_":
        loaded = plain(model)
        wcodec.compress_(loaded, progress=False)
    elif way == "transformers":
        loaded = plain(saved)
    else:
        loaded = wcodec.load_model(saved if way == "load_model" else model)
    new = tmp_path / "new"
    copies = (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded)))
    for one in (loaded, *copies):
        assert saves(one, new) and saves(one.model, new)
        # The copy's methods are of the copy.
        assert one.num_parameters() == 3_147_456 and one.model.num_parameters() == 3_147_456 - 4096 * 192
    # So does ours, and saving what is in a state dict.
    wcodec.save_pretrained(copies[1], tmp_path / "ours")
    assert torch.equal(logits(wcodec.load_model(tmp_path / "ours")), logits(loaded))
    torch.save(loaded.state_dict(), tmp_path / "state.pt")
    if way == "transformers":
        # In a process that has not imported anything of it yet.
        (tmp_path / "pickle").write_bytes(pickle.dumps(loaded))
        code = f"import pickle; print(type(pickle.load(open({str(tmp_path / 'pickle')!r}, 'rb')).lm_head).__name__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert done.stdout == "CompressedLinear\n", done.stderr
    wcodec.decompress_(loaded)
    assert "save_pretrained" not in loaded.__dict__ and "push_to_hub" not in loaded.model.__dict__
    loaded.save_pretrained(new)
    assert torch.equal(logits(plain(new)), logits(loaded)) and not is_compressed(plain(new))


def test_the_methods_go_with_the_last_compressed_layer(model: Path, tmp_path: Path) -> None:
    loaded = plain(model)
    wcodec.compress_(loaded, progress=False)
    wcodec.decompress_(loaded, include="model.*")
    # The base model is an ordinary one again, the whole is not.
    assert saves(loaded, tmp_path / "a") and not is_compressed(loaded.model)
    loaded.model.save_pretrained(tmp_path / "base")
    assert not (tmp_path / "base/model.wcodec").exists()
    wcodec.decompress_(loaded)
    loaded.save_pretrained(tmp_path / "whole")
    assert not (tmp_path / "whole/model.wcodec").exists()
    assert not any(isinstance(m, CompressedLayer) for m in loaded.modules())


def test_saving_again_replaces_a_compressed_model_and_no_other(model: Path, saved: Path, tmp_path: Path) -> None:
    loaded = plain(saved)
    for _ in range(2):
        loaded.save_pretrained(tmp_path / "new", max_shard_size="1GB")
    # Saving works into the folder that it is read from, too.
    plain(tmp_path / "new").save_pretrained(tmp_path / "new")
    assert torch.equal(logits(plain(tmp_path / "new")), logits(loaded))
    original = Path(shutil.copytree(model, tmp_path / "original"))
    before = contents(original)
    with pytest.raises(wcodec.InputError, match="saving would destroy it"):
        loaded.save_pretrained(original)
    assert contents(original) == before
    loaded.save_pretrained(tmp_path / "nobody", is_main_process=False)
    assert not (tmp_path / "nobody").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"state_dict": {}}, "state_dict"),
        ({"variant": "fp16"}, "variant"),
        ({"safe_serialization": False}, "safe_serialization=False"),
        ({"anything": 1}, "anything"),
    ],
)
def test_what_saving_does_not_take(options: dict[str, Any], named: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(wcodec.InputError, match=f"does not take {named}"):
        plain(saved).save_pretrained(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_push_to_hub_uploads_the_folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls: list[Any] = []

    class Api:
        def __init__(self, token: Any = None) -> None:
            calls.append(token)

        def create_repo(self, name: str, **options: Any) -> Any:
            calls.append((name, options))
            return types.SimpleNamespace(repo_id=f"me/{name}")

        def upload_folder(self, *, repo_id: str, folder_path: Any, **options: Any) -> str:
            calls.append((repo_id, options))
            shutil.copytree(folder_path, tmp_path / repo_id.replace("/", "-"))
            return "done"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    loaded = plain(saved)
    assert loaded.push_to_hub("small", token="t", private=True, commit_message="first") == "done"
    assert calls[:2] == ["t", ("small", {"private": True, "exist_ok": True})]
    assert calls[2] == ("me/small", {"commit_message": "first", "revision": None, "create_pr": None})
    loaded.save_pretrained(tmp_path / "other", push_to_hub=True)
    for name in ("me-small", "me-other", "other"):
        assert torch.equal(logits(plain(tmp_path / name)), logits(loaded))
    with pytest.raises(wcodec.InputError, match="does not take tags"):
        loaded.push_to_hub("small", tags=["x"])


def test_a_model_that_was_not_compressed_saves(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = plain(model)

    def too_small(self: Any) -> None:
        raise wcodec.InputError("too small")

    monkeypatch.setattr("wcodec.nn._weights.store.Store.check_budget", too_small)
    with pytest.raises(wcodec.InputError, match="too small"):
        wcodec.compress_(loaded, progress=False)
    loaded.save_pretrained(tmp_path / "new")
    assert torch.equal(logits(plain(tmp_path / "new")), logits(loaded))


def test_modules_around_a_model_save_what_is_theirs(model: Path, tmp_path: Path) -> None:
    class Adapter(torch.nn.Module):
        """As peft's models, which save adapters alone."""

        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base
            self.adapter = torch.nn.Parameter(torch.ones(3))

        def save_pretrained(self, folder: Path) -> None:
            torch.save(self.adapter, folder)

    base = wcodec.load_model(model)
    Adapter(base).save_pretrained(tmp_path / "a")
    Adapter.__module__ = "peft.peft_model"
    around = Adapter(plain(model))
    wcodec.compress_(around, progress=False)
    around.save_pretrained(tmp_path / "b")
    assert torch.equal(torch.load(tmp_path / "b"), torch.ones(3))


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
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


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


def test_a_tensor_in_two_shards_is_read_as_transformers_reads_it(model: Path, tmp_path: Path, run: Cli) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "sharded"
    places = write_shards(folder, model)
    first, second = (tensors_of(folder / f"{n}.safetensors") for n in (1, 2))
    name = next(n for n, shard in places.items() if shard == "2.safetensors" and n.endswith("proj.weight"))
    save_file({**first, name: torch.zeros_like(second[name])}, folder / "1.safetensors")
    write_index(folder, places)
    # The last shard counts, and the index says that one.
    transformers = pytest.importorskip("transformers")
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(tensors_of(model / "model.safetensors")[name], plain.state_dict()[name])
    assert torch.equal(logits(wcodec.load_model(folder)), logits(wcodec.load_model(model)))
    assert run("roundtrip", folder, "--coder", "raw", "--scale", "row", "-q")[:2] == (0, "")
    # Here it says another one, and transformers would read zeros.
    write_index(folder, {**places, name: "1.safetensors"})
    with pytest.raises(wcodec.FormatError, match=r"in '1.safetensors', as the index says, and in '2.safetensors'"):
        wcodec.load_model(folder)
    write_index(folder, {n: shard for n, shard in places.items() if n != name})
    with pytest.raises(wcodec.FormatError, match="it is in two shards, '1.safetensors' and '2.safetensors'"):
        wcodec.load_model(folder)


def test_container_entries_and_arrays_keep_the_metadata_apart(part: Path) -> None:
    data, _ = wcodec.compress_to_bytes({"w": np.ones((4, 64), np.float32)}, metadata={"a": "b"})
    assert wcodec.open(data).metadata == {"a": "b"}
    with wcodec.open(part) as container:
        one = wcodec.open(container.extract(["lm_head.weight"]))
    assert one.metadata == {}


def test_a_part_of_a_larger_module_is_not_saved_under_its_names(tmp_path: Path) -> None:
    from small_models import llama, mixtral

    wrapped = torch.nn.ModuleDict({"inner": mixtral()})
    wcodec.compress_(wrapped, progress=False)
    with pytest.raises(wcodec.InputError, match=r"'model.embed_tokens' was compressed as 'inner.model.embed_tokens'"):
        wcodec.save_pretrained(wrapped["inner"], tmp_path / "inner")
    assert not (tmp_path / "inner").exists()
    # The model without its head has names that transformers knows.
    whole = llama()
    wcodec.compress_(whole, progress=False)
    wcodec.save_pretrained(whole.model, tmp_path / "base")
    assert type(wcodec.load_model(tmp_path / "base")).__name__ == "LlamaModel"


def test_experts_have_no_single_weight() -> None:
    from small_models import mixtral

    model = mixtral()
    wcodec.compress_(model, progress=False)
    with pytest.raises(AttributeError, match=r"read gate_up_proj\[i\] and down_proj\[i\]"):
        _ = model.model.layers[0].mlp.experts.weight


class Strict(transformers.LlamaConfig):
    """Takes nothing that is not its own, as DBRX's parts do in the first versions of transformers 5."""

    model_type = "strict"

    def __init__(self, **given: Any) -> None:
        if "output_hidden_states" in given:
            raise ValueError("unknown")
        super().__init__(**given)


def strict() -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = Strict(**sizes, vocab_size=64)
    assert "output_hidden_states" in config.to_dict()
    return transformers.LlamaForCausalLM(config)


def endless() -> Any:
    sizes = {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "num_hidden_layers": 1}
    config = transformers.Mamba2Config(**sizes, vocab_size=64, n_groups=1, chunk_size=16)
    assert float("inf") in config.time_step_limit
    return transformers.Mamba2ForCausalLM(config)


@pytest.mark.parametrize("make", [strict, endless])
def test_a_config_is_read_again_as_its_file_has_it(tmp_path: Path, make: Callable[[], Any]) -> None:
    model = make()
    wcodec.compress_(model, progress=False)
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.wcodec").is_file()
