"""A folder as the output of encoding, and wherever a container is wanted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from command import Cli

transformers = pytest.importorskip("transformers")
IDS = torch.arange(12)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The model of the repository, encoded to a folder."""
    place = tmp_path_factory.mktemp("folders") / "doc"
    wcodec.compress(model, f"{place}/", bits=4, progress=False)
    return place


def test_everything_takes_the_folder(folder: Path, model: Path, tmp_path: Path, run: Cli) -> None:
    assert {p.name for p in folder.iterdir()} == {
        "config.json", "generation_config.json", "model.wcodec", "tokenizer.json",
        # By their names these could be a tokenizer's, too.
        "README.md", "heldout.txt",
    }  # fmt: skip
    for command in (["inspect", folder], ["verify", folder], ["verify", folder, "--against", model],
                    ["compare", folder, folder / "model.wcodec"],
                    ["decode", folder, "-o", tmp_path / "back.safetensors"],
                    ["generate", folder, "--prompt", "The function", "--max-new-tokens", "4", "-q"]):  # fmt: skip
        status, out, err = run(*command)
        assert status == 0 and (out or err), command
    assert wcodec.open(folder).path == str(folder / "model.wcodec")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(loaded.lm_head).__name__ == "CompressedLinear"
    assert torch.equal(loaded(IDS).logits, wcodec.load_model(folder)(IDS).logits)
    # As decoded by the command: the same weights in the original's form.
    for path in model.glob("*.json"):
        shutil.copy(path, tmp_path)
    (tmp_path / "back.safetensors").rename(tmp_path / "model.safetensors")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(plain(IDS).logits, loaded(IDS).logits, atol=1e-2)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("The function")["input_ids"]
    assert tokens == transformers.AutoTokenizer.from_pretrained(model)("The function")["input_ids"]


def test_the_command_says_what_it_wrote(model: Path, tmp_path: Path, run: Cli) -> None:
    target = tmp_path / "new"
    status, out, err = run("encode", model, "-o", f"{target}/", "--exclude", "*.mlp.*", "--coder", "huffman")
    assert status == 0 and f"{target}/" in out + err
    with wcodec.open(target) as container:
        schemes = {name: container[name].scheme for name in container}
        assert {schemes[name] for name in schemes if "mlp" in name} == {"raw"} and schemes["lm_head.weight"] == "int8"
        assert "wcodec.rest" not in container.metadata and container.model is not None
    before = {p.name: p.read_bytes() for p in target.iterdir()}
    status, _, err = run("encode", model, "-o", f"{target}/")
    assert status == 2 and "exists (use --overwrite to replace it)" in err
    # Without the separator, too, for there is a model; and as a file it may not be one.
    status, _, err = run("encode", model, "-o", target)
    assert status == 2 and "exists (use --overwrite to replace it)" in err
    assert {p.name: p.read_bytes() for p in target.iterdir()} == before
    assert run("encode", model, "-o", f"{target}/", "--bits", "3", "--overwrite", "-q")[0] == 0
    assert wcodec.open(target)["lm_head.weight"].scheme == "rate"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new"]


def test_a_budget_is_met_by_the_container(model: Path, tmp_path: Path) -> None:
    report = wcodec.compress(model, f"{tmp_path}/m/", budget="4.2 bits", progress=False)
    assert report.plan is not None and report.path == str(tmp_path / "m/model.wcodec")
    # Bits are those of the encoded tensors; the index comes on top.
    assert report.plan.bits == pytest.approx(4.2, rel=0.005) and report.bits_per_weight < 4.3
    assert wcodec.load_model(tmp_path / "m")(IDS).logits.isfinite().all()


@pytest.mark.parametrize("kind", ["experts", "stacked", "conv1d", "masked"])
def test_other_architectures(kind: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "vocab_size": 300,
    }  # fmt: skip
    if kind in ("experts", "stacked"):
        config = transformers.MixtralConfig(**sizes, num_key_value_heads=2, num_local_experts=4)
        made = transformers.MixtralForCausalLM(config)
    elif kind == "conv1d":
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=300))
    else:
        made = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    made.save_pretrained(tmp_path / "original")
    if kind == "stacked":
        from safetensors.torch import save_file

        # As newer checkpoints have experts: all of a layer in one tensor.
        save_file(
            {n: p.detach().clone() for n, p in made.named_parameters()},
            tmp_path / "original/model.safetensors",
            {"format": "pt"},
        )
    wcodec.compress(tmp_path / "original", f"{tmp_path}/new/", coder="huffman", progress=False)
    loaded, expected = wcodec.load_model(tmp_path / "new"), wcodec.load_model(tmp_path / "original", coder="huffman")
    layers = [type(m).__name__ for m in loaded.modules() if type(m).__name__.startswith("Compressed")]
    assert layers == [type(m).__name__ for m in expected.modules() if type(m).__name__.startswith("Compressed")]
    assert torch.equal(loaded(IDS).logits, expected(IDS).logits)
    again = type(made).from_pretrained(tmp_path / "new")
    assert torch.equal(again.eval()(IDS).logits, loaded(IDS).logits)


def test_what_is_there_is_not_replaced(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "note.txt").write_text("mine")
    for target in (other, model):
        with pytest.raises(wcodec.InputError, match="which is not replaced"):
            wcodec.compress(model, f"{target}/", overwrite=True, progress=False)
    assert (other / "note.txt").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(wcodec.InputError, match="something else than a folder"):
        wcodec.compress(model, f"{tmp_path}/file/", progress=False)
    with pytest.raises(wcodec.FileMissingError, match="make it first"):
        wcodec.compress(model, f"{tmp_path}/no/new/", progress=False)
    with pytest.raises(wcodec.InputError, match="of the folder of a model"):
        wcodec.compress(model / "model.safetensors", f"{tmp_path}/new/", progress=False)
    (tmp_path / "empty").mkdir()
    wcodec.compress(model, f"{tmp_path}/empty/", progress=False)
    assert (tmp_path / "empty/model.wcodec").is_file()


def test_nothing_is_left_of_what_fails(model: Path, tmp_path: Path, folder: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    before = {p.name: p.read_bytes() for p in copy.iterdir()}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for target in (f"{copy}/", f"{tmp_path}/new/"):
        with pytest.raises(KeyboardInterrupt):
            wcodec.compress(model, target, overwrite=True, progress=stop)
        with pytest.raises(wcodec.InputError, match="nothing to compress"):
            wcodec.compress(model, target, overwrite=True, exclude="*", progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["copy"]
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == before


def test_folders_that_have_no_container_or_several(folder: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(wcodec.FileMissingError, match=r"no \.wcodec file in the folder"):
        wcodec.open(model)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.copy(copy / "model.wcodec", copy / "b.wcodec")
    assert wcodec.open(copy).path == str(copy / "model.wcodec")
    (copy / "model.wcodec").unlink()
    with pytest.raises(wcodec.FileMissingError, match="names this file, and it is missing"):
        wcodec.open(copy)
    record = json.loads((copy / "config.json").read_text())
    record["quantization_config"]["file"] = "../../b.wcodec"
    (copy / "config.json").write_text(json.dumps(record))
    assert wcodec.open(copy).path == str(copy / "b.wcodec")
    (copy / "config.json").unlink()
    assert wcodec.open(copy).path == str(copy / "b.wcodec")
    shutil.copy(copy / "b.wcodec", copy / "c.wcodec")
    with pytest.raises(wcodec.InputError, match=r"there are 2 \.wcodec files in the folder"):
        wcodec.open(copy)
