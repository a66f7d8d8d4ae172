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


def test_half_of_the_tokens_are_of_shipped_texts(model: Any, tokenizer: Any, written: list[Any]) -> None:
    done: list[tuple[int, int]] = []
    statistics = wcodec.collect_statistics(
        model, tokenizer, tokens=4096, full=False, progress=lambda *told: done.append(told)
    )
    assert statistics.source == "mixed" and statistics.tokens == 4096 and done[-1][0] == done[-1][1]
    assert [len(text) for text in written] == [64] * 32
    alone = wcodec.collect_statistics(model, tokenizer, "self", tokens=4096, full=False)
    assert alone.source == "self" and alone.text_hash != statistics.text_hash


def test_each_text_has_its_share(model: Any, tokenizer: Any) -> None:
    ids = _text.shipped(model, tokenizer)
    assert ids is not None and set(ids) == {"prose", "code", "languages"}
    for windows, shares in ((20, (9, 7, 4)), (4, (2, 1, 1)), (1, (1, 0, 0))):
        found = _text.shares_of_shipped(ids, windows, 64, model)
        assert len(found) == windows
        for name, share in zip(ids, shares, strict=True):
            rows = {tuple(row) for row in ids[name].unfold(0, 64, 1).tolist()}
            assert sum(tuple(window.tolist()) in rows for window in found) == share, (windows, name)


def test_sizes_alone_need_no_text_of_the_models_own(model: Any, tokenizer: Any, written: list[Any]) -> None:
    statistics = wcodec.collect_statistics(model, tokenizer, full=False, gradients=False)
    assert statistics.source == "mixed" and statistics.columns and not written
    assert statistics.tokens == amount.tokens_of_sizes(sum(p.numel() for p in model.parameters()), CPU)


def test_a_model_without_a_tokenizer_of_its_own_writes_all_of_it(tokenizer: Any, written: list[Any]) -> None:
    # A vocabulary of 90 has few of the tokens of a tokenizer for 1,024.
    for given in (None, tokenizer):
        statistics = wcodec.collect_statistics(llama(), given, tokens=128, full=False)
        assert statistics.source == "self" and statistics.tokens == 128 == sum(map(len, written))
        written.clear()


@pytest.mark.parametrize("windows", [1, 2, 7])
def test_windows_are_shared_too(model: Any, tokenizer: Any, written: list[Any], windows: int) -> None:
    statistics = wcodec.collect_statistics(model, tokenizer, windows=windows, length=16, full=False)
    assert statistics.tokens == 16 * windows and len(written) == windows // 2


def test_default_amounts_of_both_halves(model: Any) -> None:
    read, drawn = amount.mixed_pieces(model, None, None, None, CPU, few=False)
    assert (read.length, drawn.length) == (512, 64) and read.tokens == drawn.tokens == 1 << 14
    read, drawn = amount.mixed_pieces(model, None, None, None, CPU, few=True)
    assert read == amount.Pieces(8, 256) and drawn.tokens == 0
