"""``wcodec generate --bits 4,6,...``: the smallest model with the original's answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Cli, document

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("The function returns\nA list of\n")
    return path


def test_the_search_ends_with_the_first_that_is_the_same(model: Path, prompts: Path, run: Cli) -> None:
    arguments = ("generate", model, "--prompts", prompts, "--max-new-tokens", "12", "-q")
    report = document(run(*arguments, "--bits", "1,2,lossless", "--json")[1], "generate")
    none, low, exact = report["trials"]
    assert none["size"] == 1 and "1 bits per weight cannot be reached" in none["refusal"]
    assert low["size"] == 2 and low["same"] < 2 and low["weights_bytes"] < exact["weights_bytes"] / 3
    assert any(index is not None and index < 12 for index in low["first_differences"])
    assert exact == {"size": "lossless", "weights_bytes": exact["weights_bytes"], "same": 2,
                     "first_differences": [None, None], "refusal": None}  # fmt: skip
    assert report["smallest"] == "lossless" and report["baseline"] == str(model)
    # Sizes after the first one with the original's answers are not tried.
    status, out, _ = run(*arguments, "--bits", "lossless,8")
    assert status == 0 and "2 of 2" in out and "8 bits" not in out
    assert "lossless: the smallest of these with the original's answers" in out
    assert f"wcodec encode {model} -o {model.name}-lossless/ --scheme lossless" in out


def test_none_is_the_same(model: Path, prompts: Path, run: Cli) -> None:
    arguments = ("generate", model, "--prompts", prompts, "--max-new-tokens", "12", "-q", "--bits", "1,2")
    status, out, _ = run(*arguments)
    assert status == 0 and "none of these gives the original's answers" in out and "next" not in out
    assert "cannot be reached" in out
    assert document(run(*arguments, "--json")[1], "generate")["smallest"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bits", "4,9"), "'9' is not a number of bits from 1 to 8"),
        (("--bits", "4,nf4"), "'nf4' is not a number of bits"),
        (("--bits", "4,int8", "--scheme", "int8"), "--scheme has no effect with a list of sizes"),
        (("--bits", "4,int8", "--temperature", "0.7"), "--temperature has no effect with a list of sizes"),
    ],
)
def test_mistakes(model: Path, prompts: Path, run: Cli, options: tuple[str, ...], message: str) -> None:
    status, out, err = run("generate", model, "--prompts", prompts, *options)
    assert status == 2 and not out and message in err
