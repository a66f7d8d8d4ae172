"""What calibration is for: a trained model's predictions change less at the same number of bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from wcodec._calibrate import Matrices  # noqa: E402
from wcodec._calibrate._rate import ROW_BITS  # noqa: E402


@pytest.fixture(scope="module")
def trained() -> Any:
    folder = Path(__file__).parent / "data" / "doc-llama-3m"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = transformers.AutoTokenizer.from_pretrained(folder)((folder / "heldout.txt").read_text("utf-8"))
    return model, torch.tensor(text["input_ids"])


@pytest.fixture(scope="module")
def statistics(trained: Any) -> wcodec.Statistics:
    model, ids = trained
    return wcodec.collect_statistics(model, data=ids[: len(ids) // 2], windows=12, length=256)


def divergence(model: Any, windows: Any, changed: dict[str, Any]) -> float:
    """KL(original || changed), nats per token."""
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in changed}
    with torch.no_grad():
        reference = torch.log_softmax(model(windows).logits, -1)
        try:
            for name, value in changed.items():
                parameters[name].copy_(value)
            found = torch.log_softmax(model(windows).logits, -1)
        finally:
            for name, value in before.items():
                parameters[name].copy_(value)
        return float((reference.exp() * (reference - found)).sum(-1).mean())


@pytest.mark.parametrize("trellis", [False, True])
def test_each_part_lowers_what_is_lost_at_three_bits(
    trained: Any, statistics: wcodec.Statistics, trellis: bool
) -> None:
    model, ids = trained
    begin = torch.linspace(len(ids) // 2, len(ids) - 256, 4).long().tolist()
    windows = torch.stack([ids[i : i + 256] for i in begin])
    # Without the head, a third of all weights: it would take a third of the time.
    names = set(statistics.units) - {"lm_head.weight"}
    weights = {name: p.detach() for name, p in model.named_parameters() if name in names}
    count = sum(w.numel() for w in weights.values())
    lost: dict[str, float] = {}
    parts = [("steps", statistics, False), ("full", statistics, True)]
    for what, known, fed in parts if trellis else [("weights", None, False), *parts]:
        work = Matrices(weights, known, trellis=trellis, with_feedback=fed)
        # Near 3 bits; what is missing or too much is worth a factor of 4 for each bit.
        constant = 2.0 ** (2.05 - 3 - trellis)
        found = {matrix.name: work.quantized(matrix, constant) for matrix in work}
        bits = sum(q.bits + ROW_BITS * len(q.scales) for q in found.values()) / count
        assert 2.7 < bits < 3.3
        lost[what] = divergence(model, windows, {n: q.values() for n, q in found.items()}) * 4 ** (bits - 3)
    assert lost["steps"] < 0.85 * lost.get("weights", torch.inf)
    # With more text, and the head: 0.75 to 0.77 of it.
    assert lost["full"] < 0.9 * lost["steps"], lost
