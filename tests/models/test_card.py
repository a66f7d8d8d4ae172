"""README.md of compressed folders: what it says, what of the original's card is in it, and whose file it is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import wcodec
from small_models import llama
from wcodec._core import metadata
from wcodec._models import card

yaml = pytest.importorskip("yaml")
transformers = pytest.importorskip("transformers")

CARD = """---
license: apache-2.0
language:
- en
tags:
- small
library_name: something
model-index:
- name: theirs
base_model: them/parent
---

# Theirs

What they say, with | bars.
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model with a card, where the Hub's cache has it."""
    place = tmp_path / "hub/models--them--Small-Model/snapshots" / ("a" * 40)
    llama().save_pretrained(place)
    (place / "README.md").write_text(CARD)
    (place / "chat_template.jinja").write_text("{{ messages }}")
    return place


def front(folder: Path) -> tuple[dict[str, Any], str]:
    text = (folder / "README.md").read_text()
    found = re.match(r"---\n(.*?)---\n", text, re.DOTALL)
    assert found is not None
    return yaml.safe_load(found[1]), text[found.end() :]


def test_a_card_says_what_it_is_of(source: Path, tmp_path: Path) -> None:
    wcodec.compress(source, f"{tmp_path}/small-4bit/", bits=4, calibrate=False, progress=False)
    found, body = front(tmp_path / "small-4bit")
    assert found == {
        "base_model": "them/Small-Model", "base_model_relation": "quantized", "library_name": "transformers",
        "pipeline_tag": "text-generation", "license": "apache-2.0", "language": ["en"], "tags": ["small", "wcodec"],
    }  # fmt: skip
    with wcodec.open(tmp_path / "small-4bit") as container:
        coded = [e for e in container.stored if e.scheme == "rate"]
        bits = 8 * sum(e.stored_bytes for e in coded) / sum(e.shape[0] * e.shape[1] for e in coded)
        assert f"# Small-Model, compressed by wcodec, {bits:.2f} bits per weight\n" in body
        assert f"{container.original_bytes / container.stored_bytes:.2f} times smaller" in body
    assert "[them/Small-Model](https://huggingface.co/them/Small-Model)" in body and "`rate`, coder `rans`" in body
    assert "wcodec chat small-4bit\n" in body and 'AutoModelForCausalLM.from_pretrained("small-4bit"' in body
    ours, _, theirs = body.partition("\n## The original model's card\n")
    assert theirs.strip() == CARD.partition("---\n\n")[2].strip() and "calibrated" not in ours
    assert str(tmp_path) not in body


def test_a_saved_model_has_the_same_card(source: Path, tmp_path: Path) -> None:
    wcodec.save_pretrained(wcodec.load_model(source, bits=4), tmp_path / "one")
    first = front(tmp_path / "one")
    assert first[0]["base_model"] == "them/Small-Model" and first[1].count("# Theirs") == 1
    # A compressed folder is saved to another one, and in its own place.
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    loaded.save_pretrained(tmp_path / "two")
    loaded.save_pretrained(tmp_path / "one")
    again = front(tmp_path / "two")
    assert front(tmp_path / "one") == first and again[0] == first[0]
    assert again[1] == first[1].replace('"one"', '"two"').replace("chat one", "chat two")


@pytest.mark.parametrize("way", ["encode", "save"])
def test_a_card_that_somebody_wrote_stays(way: str, source: Path, tmp_path: Path) -> None:
    def write(overwrite: bool) -> None:
        if way == "encode":
            wcodec.compress(source, f"{tmp_path}/m/", bits=4, overwrite=overwrite, progress=False)
        else:
            wcodec.save_pretrained(wcodec.load_model(source, bits=4), tmp_path / "m", overwrite=overwrite)

    readme = tmp_path / "m/README.md"
    write(False)
    ours = readme.read_text()
    readme.write_text("mine")
    write(True)
    assert readme.read_text() == "mine"
    # As it was copied by an earlier version, it is the original's; and without it there is a new one.
    if way == "encode":
        readme.write_text(CARD)
        write(True)
        assert readme.read_text() == ours
    readme.unlink()
    write(True)
    assert readme.read_text() == ours
    shutil.rmtree(tmp_path / "m")
    (tmp_path / "m").mkdir()
    if way == "save":
        readme.write_text("mine")
        write(False)
        assert readme.read_text() == "mine"


def test_what_was_measured_and_calibrated_is_said(source: Path, tmp_path: Path) -> None:
    quality = {"version": 1, "kl": 0.0123, "perplexity": 9.5, "original_perplexity": 9.25, "top1_agreement": 0.96,
               "tokens": 2048, "text_sha256": "0123456789abcdef0"}  # fmt: skip
    said = {metadata.QUALITY_KEY: json.dumps(quality)}
    wcodec.compress(source, f"{tmp_path}/m/", metadata=said, progress=False)
    body = front(tmp_path / "m")[1]
    assert "| measured | KL 0.0123 nats/token, perplexity 9.2500 -> 9.5000, same top token 96.00 %, of 2,048" in body
    wcodec.compress(source, f"{tmp_path}/by-default/", bits=4, progress=False)
    assert "| calibrated | yes" in front(tmp_path / "by-default")[1]
    text = card.card(tmp_path / "m", card.original_of(None), "m", "me/m", calibrated=True)
    assert "| calibrated | yes" in text and "base_model" not in text and "# m, compressed by wcodec" in text


def test_other_kinds_have_other_code(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, vocab_size=90)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert/README.md").write_bytes(b"\xff\xfe no text")
    wcodec.compress(tmp_path / "bert", f"{tmp_path}/m/", progress=False)
    found, body = front(tmp_path / "m")
    assert found == {"library_name": "transformers", "pipeline_tag": "text-classification", "tags": ["wcodec"]}
    assert "AutoModelForSequenceClassification.from_pretrained" in body and "generate" not in body


@pytest.mark.parametrize("text", ["---\n: [\n---\nbody", "---\n- a\n---\nbody", "---\nbody", "", "---\n---\nbody"])
def test_odd_front_matter_is_no_error(text: str, source: Path, tmp_path: Path) -> None:
    (source / "README.md").write_text(text)
    wcodec.compress(source, f"{tmp_path}/m/", progress=False)
    found, body = front(tmp_path / "m")
    assert found["tags"] == ["wcodec"] and found["base_model"] == "them/Small-Model"
    assert ("body" in body) == ("body" in text)


def test_without_yaml_the_front_matter_is_still_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "_yaml", lambda: None)
    original = card.original_of(CARD, "them/x")
    assert original.front == {} and original.text.startswith("# Theirs")
    assert yaml.safe_load(card._dumped(card._front(original, None)))["base_model"] == "them/x"
