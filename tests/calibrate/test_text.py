"""The texts that statistics are of where nothing is said: those that come with the package, and the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import llama  # noqa: E402
from wcodec._calibrate import amount  # noqa: E402
from wcodec._calibrate import text as _text  # noqa: E402

DATA = Path(__file__).parents[1] / "data" / "doc-llama-3m"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(DATA, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(DATA)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The texts that models write meanwhile."""
    texts: list[Any] = []
    sampled = _text.sampled

    def record(*arguments: Any) -> list[Any]:
        new = sampled(*arguments)
        texts.extend(new)
        return new

    monkeypatch.setattr(_text, "sampled", record)
    return texts


def test_shipped_texts_have_pieces_of_many_kinds() -> None:
    folder = Path(_text.__file__).parent / "texts"
    assert {path.stem for path in folder.iterdir()} == set(_text._SHIPPED)
    assert sum(_text._SHIPPED.values()) == pytest.approx(1)
    for path in folder.iterdir():
        pieces = path.read_text("utf-8").split("\n----\n")
        assert len(pieces) >= 40 and all(200 < len(piece) < 2500 for piece in pieces), path
        # A text that is there twice would count twice.
        assert len({piece[:60] for piece in pieces}) == len(pieces), path


def test_three_quarters_of_the_tokens_are_of_shipped_texts(model: Any, tokenizer: Any, written: list[Any]) -> None:
    done: list[tuple[int, int]] = []
    statistics = wcodec.collect_statistics(
        model, tokenizer, tokens=4096, full=False, progress=lambda *told: done.append(told)
    )
    assert statistics.source == "mixed" and statistics.tokens == 4096 and done[-1][0] == done[-1][1]
    assert [len(text) for text in written] == [64] * 16
    alone = wcodec.collect_statistics(model, tokenizer, "self", tokens=4096, full=False)
    assert alone.source == "self" and alone.text_hash != statistics.text_hash


def test_each_text_has_its_share(model: Any, tokenizer: Any) -> None:
    ids = _text.shipped(model, tokenizer)
    assert ids is not None and set(ids) == {"prose", "documentation", "chat", "code", "languages"}
    for windows, shares in ((20, (7, 4, 3, 4, 2)), (4, (1, 1, 1, 1, 0)), (1, (1, 0, 0, 0, 0))):
        found = _text.shares_of_shipped(ids, windows, 64, model)
        assert len(found) == windows
        for name, share in zip(ids, shares, strict=True):
            rows = {tuple(row) for row in ids[name].unfold(0, 64, 1).tolist()}
            assert sum(tuple(window.tolist()) in rows for window in found) == share, (windows, name)


def test_sizes_alone_need_no_text_of_the_models_own(model: Any, tokenizer: Any, written: list[Any]) -> None:
    statistics = wcodec.collect_statistics(model, tokenizer, full=False, gradients=False)
    assert statistics.source == "mixed" and statistics.columns and not written
    assert statistics.tokens == amount.tokens_of_sizes(sum(p.numel() for p in model.parameters()), CPU)


def test_a_model_without_a_tokenizer_of_its_own_writes_all_of_it(written: list[Any]) -> None:
    statistics = wcodec.collect_statistics(llama(), tokens=128, full=False)
    assert statistics.source == "self" and statistics.tokens == 128 == sum(map(len, written))


def test_a_tokenizer_that_is_given_must_be_the_models(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    # A vocabulary of 90 has few of the tokens of a tokenizer for 1,024.
    with pytest.raises(wcodec.InputError, match="do not fit the model's vocabulary of 90"):
        wcodec.collect_statistics(llama(), tokenizer, tokens=128, full=False)
    with pytest.raises(wcodec.InputError, match="no tokenizer was found"):
        wcodec.collect_statistics(model, tmp_path / "none", tokens=128, full=False)


@pytest.mark.parametrize(("tokens", "message"), [(0, "tokens"), (1, "at least 2"), (True, "tokens"), ("9", "tokens")])
def test_numbers_of_tokens_are_checked(model: Any, tokenizer: Any, tokens: Any, message: str) -> None:
    for options in ({}, {"gradients": False}):
        with pytest.raises(wcodec.InputError, match=message):
            wcodec.collect_statistics(model, tokenizer, tokens=tokens, full=False, **options)


def test_a_token_that_the_tokenizer_adds_begins_each_window(model: Any) -> None:
    texts = {name: torch.tensor([1, *range(10, 310)]) for name in _text._SHIPPED}
    found = _text.shares_of_shipped(texts, 8, 32, model)
    assert len(found) == 8 and all(int(window[0]) == 1 and len(window) == 32 for window in found)
    texts["code"] = texts["code"][1:]
    # The first window of each of the other four begins with it anyway.
    assert sum(int(window[0]) == 1 for window in _text.shares_of_shipped(texts, 8, 32, model)) == 4
    # Texts that are too short for all their windows have no more of those of others.
    short = {name: torch.arange(64) + 64 * n for n, name in enumerate(_text._SHIPPED)}
    assert len(_text.shares_of_shipped(short, 100, 32, model)) == 10


@pytest.mark.parametrize("windows", [1, 4, 9])
def test_windows_are_shared_too(model: Any, tokenizer: Any, written: list[Any], windows: int) -> None:
    statistics = wcodec.collect_statistics(model, tokenizer, windows=windows, length=16, full=False)
    assert statistics.tokens == 16 * windows and len(written) == windows // 4


def test_default_amounts_of_both_parts(model: Any) -> None:
    read, drawn = amount.mixed_pieces(model, None, None, None, CPU, few=False)
    assert (read.length, drawn.length) == (512, 64) and read.tokens == 3 * drawn.tokens == 3 << 13
    read, drawn = amount.mixed_pieces(model, None, None, None, CPU, few=True)
    assert read == amount.Pieces(32, 128) and drawn.tokens == 0
    # However few positions a model has, there are as many tokens.
    few = llama(max_position_embeddings=32)
    read, drawn = amount.mixed_pieces(few, None, None, None, CPU, few=False)
    assert (read.length, drawn.length) == (32, 32) and read.tokens == 3 * drawn.tokens == 3 << 13


def test_the_model_writes_what_texts_are_too_short_for(
    model: Any, tokenizer: Any, written: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {name: torch.arange(100) for name in _text._SHIPPED}
    monkeypatch.setattr(_text, "shipped", lambda *a: ids)
    statistics = wcodec.collect_statistics(model, tokenizer, tokens=2048, length=32, full=False)
    assert statistics.tokens == 2048 and sum(map(len, written)) == 2048 - 5 * 96
