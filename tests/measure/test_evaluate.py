"""Perplexity and divergences against a slow computation of their own; what is refused."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec._measure import evaluate, quality
from wcodec._measure.quality import windows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def tiny(seed: int = 0, dtype: Any = torch.float32, **options: Any) -> Any:
    """A Llama with random weights that are large enough for its predictions to be far from even."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
           "initializer_range": 0.3, **options}
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


@pytest.fixture(scope="module")
def doc(model: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


@pytest.fixture
def ids() -> list[int]:
    return [int(i) for i in np.random.default_rng(3).integers(0, 97, 61)]


def slow(model: Any, baseline: Any, ids: list[int], window: int, stride: int) -> dict[str, Any]:
    """One token after another, in NumPy's float64, each with a context of its own."""
    losses, divergences, agree = [], [], []
    with torch.no_grad():
        for place in range(1, len(ids)):
            # The window that predicts this place: the first one that reaches it.
            begin = 0
            while begin + window < place:
                begin += stride
            context = torch.tensor([ids[begin:place]])
            both = [m(input_ids=context).logits[0, -1].double().numpy() for m in (model, baseline)]
            p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in both)
            losses.append(-math.log(p[ids[place]]))
            divergences.append(float((q * np.log(q / p)).sum()))
            agree.append(p.argmax() == q.argmax())
    return {
        "perplexity": math.exp(sum(losses) / len(losses)),
        "kl_mean": np.mean(divergences),
        "kl_p99": np.quantile(divergences, 0.99),
        "kl_max": max(divergences),
        "top1_agreement": np.mean(agree),
    }


@pytest.mark.parametrize(("window", "stride"), [(64, 32), (16, 8), (16, 16), (16, 1), (7, 3), (1, 1), (60, 60)])
def test_against_a_slow_computation(ids: list[int], window: int, stride: int) -> None:
    model, baseline = tiny(0), tiny(1)
    report = evaluate(model, ids, baseline, window=window, stride=stride)
    expected = slow(model, baseline, ids, window, stride)
    for name, value in expected.items():
        assert getattr(report, name) == pytest.approx(value, rel=2e-4, abs=1e-6), name
    assert (report.tokens, report.window, report.stride) == (60, window, stride)
    assert report.baseline_perplexity == pytest.approx(evaluate(baseline, ids, window=window, stride=stride).perplexity)
    assert report.token_loss.shape == report.token_kl.shape == (60,)


def test_against_the_usual_loss(ids: list[int]) -> None:
    """In one window it is the loss that transformers computes."""
    model = tiny()
    with torch.no_grad():
        loss = float(model(input_ids=torch.tensor([ids]), labels=torch.tensor([ids])).loss)
    report = evaluate(model, ids)
    assert report.loss == pytest.approx(loss, rel=1e-5) and report.perplexity == pytest.approx(math.exp(loss), rel=1e-4)
    assert report.kl_mean is report.top1_agreement is report.baseline_perplexity is report.token_kl is None


def test_slices_of_logits_change_nothing(ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, baseline = tiny(0), tiny(1)
    whole = evaluate(model, ids, baseline)
    monkeypatch.setattr(quality, "_SLICE_ELEMENTS", 5 * 97)
    parts = evaluate(model, ids, baseline)
    assert (whole.kl_max, whole.perplexity, whole.top1_agreement) == pytest.approx(
        (parts.kl_max, parts.perplexity, parts.top1_agreement), rel=1e-6
    )


@pytest.mark.parametrize("targets", [1, 2, 15, 16, 17, 100])
@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 5), (16, 1), (1, 1)])
def test_every_token_counts_once(targets: int, window: int, stride: int) -> None:
    counted: list[int] = []
    for begin, end, first in windows(targets, window, stride):
        assert begin <= first < end <= begin + window
        assert begin == 0 or first - begin >= window - stride
        counted += range(first, end)
    assert counted == list(range(targets))


def test_a_model_beside_itself(ids: list[int]) -> None:
    model = tiny()
    report = evaluate(model, ids, baseline=model)
    assert report.kl_mean == report.kl_max == report.kl_p99 == 0 and report.top1_agreement == 1
    assert report.perplexity == report.baseline_perplexity


def test_real_model(doc: Any, model: Path) -> None:
    """The figures that the model's description has, for a part of its text."""
    text = (model / "heldout.txt").read_text()[:6_000]
    rounded = copy.deepcopy(doc)
    with torch.no_grad():
        for weight in rounded.parameters():
            if weight.ndim == 2:
                scale = weight.abs().amax(1, keepdim=True) / 127
                weight.copy_((weight / scale).round() * scale)
    report = evaluate(rounded, text, baseline=doc, window=512, stride=512)
    assert report.tokens > 1_000 and 3 < report.perplexity < 30
    assert abs(report.perplexity / report.baseline_perplexity - 1) < 0.01
    assert 0.0005 < report.kl_mean < 0.004 and report.kl_mean < report.kl_p99 < report.kl_max
    assert 0.95 < report.top1_agreement < 1
    tokens = transformers.AutoTokenizer.from_pretrained(model)(text)["input_ids"][:400]
    some = evaluate(rounded, tokens, baseline=doc, window=64, stride=64)
    expected = slow(rounded, doc, tokens, 64, 64)
    for name, value in expected.items():
        assert getattr(some, name) == pytest.approx(value, rel=1e-3, abs=1e-7), name


def test_text_paths_and_tokens_are_alike(doc: Any, model: Path, tmp_path: Path) -> None:
    text = (model / "heldout.txt").read_text()[:3_000]
    file = tmp_path / "text.txt"
    file.write_text(text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokens = tokenizer(text)["input_ids"]
    same = [text, file, str(file), tokens, np.array(tokens), torch.tensor([tokens])]
    found = {evaluate(doc, given, tokenizer=tokenizer).perplexity for given in same}
    assert len(found) == 1
    assert evaluate(doc, text, tokenizer=model).perplexity in found
    assert evaluate(doc, text, max_tokens=50).tokens == 49


def test_half_precision_and_training_mode(ids: list[int]) -> None:
    model = tiny(dtype=torch.bfloat16)
    model.train()
    model.model.layers[0].eval()
    done: list[tuple[int, int]] = []
    report = evaluate(model, ids, baseline=tiny(), window=16, progress=lambda *steps: done.append(steps))
    assert 0 < report.kl_mean < 0.1 and report.top1_agreement > 0.9
    assert model.training and not model.model.layers[0].training
    assert done[-1] == (60, 60) and [d for d, _ in done] == sorted(d for d, _ in done)
    assert all(p.grad is None for p in model.parameters())


def test_tokens_that_are_ruled_out() -> None:
    """Both models rule a token out: that is no difference."""

    def rule_out(module: Any, args: Any, output: Any) -> None:
        output.logits[..., 50:] = -math.inf

    model, other = tiny(0), tiny(1)
    for m in (model, other):
        m.register_forward_hook(rule_out)
    report = evaluate(model, list(range(40)), baseline=other)
    assert math.isfinite(report.kl_max) and report.kl_mean > 0
    with pytest.raises(wcodec.InputError, match="token 50 of the text a probability that is not finite or is zero"):
        evaluate(model, list(range(60)))


class Diverging(torch.nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.vocabulary = vocabulary

    def forward(self, input_ids: Any, use_cache: bool = False) -> Any:
        return torch.full((*input_ids.shape, self.vocabulary), math.nan)


def test_refusals(ids: list[int], tmp_path: Path) -> None:
    model = tiny()
    for call, message in (
        (lambda: evaluate(model, [5]), "at least 2 tokens"),
        (lambda: evaluate(model, []), "the text has no tokens"),
        (lambda: evaluate(model, [1, 97]), "vocabulary of 97"),
        (lambda: evaluate(model, [-1, 9]), "vocabulary of 97"),
        (lambda: evaluate(model, [[1, 2], [3, 4]]), "one dimension"),
        (lambda: evaluate(model, [1.0, 2.0]), "must be integers"),
        (lambda: evaluate(model, object()), "a str, a path or token ids"),
        (lambda: evaluate(model, "some text"), "pass tokenizer="),
        (lambda: evaluate(model, ids, window=65), "64 positions"),
        (lambda: evaluate(model, ids, window=8, stride=9), "stride=9 is more than window=8"),
        (lambda: evaluate(model, ids, stride=0), "stride must be whole"),
        (lambda: evaluate(model, ids, baseline=tiny(vocab_size=101)), "one vocabulary"),
        (lambda: evaluate(Diverging(97), ids), "model gives token 1 of the text"),
        (lambda: evaluate(3, ids), "must be a torch.nn.Module, not int"),
        (lambda: evaluate(model, ids, baseline=3), "baseline must be"),
        (lambda: evaluate(torch.nn.Identity(), ids), "forward|logits|unexpected"),
    ):
        with pytest.raises((wcodec.InputError, TypeError), match=message):
            call()
    with pytest.raises(wcodec.FileMissingError):
        evaluate(model, tmp_path / "none.txt")


def test_report_prints(ids: list[int]) -> None:
    report = evaluate(tiny(0), ids, baseline=tiny(1))
    assert "perplexity" in repr(report) and "<table>" in report._repr_html_() and "nats" in report._repr_html_()
    record = report.to_dict()
    assert record["perplexity"] == report.perplexity and not {"token_kl", "token_loss"} & set(record)
