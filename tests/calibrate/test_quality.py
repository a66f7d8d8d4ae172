"""Purpose of calibration: a trained model's predictions change less at the same number of bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from outlier_channels import divergence  # noqa: E402


@pytest.fixture(scope="module")
def trained() -> Any:
    folder = Path(__file__).parents[1] / "data" / "doc-llama-3m"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = transformers.AutoTokenizer.from_pretrained(folder)((folder / "heldout.txt").read_text("utf-8"))
    return model, torch.tensor(text["input_ids"])


@pytest.fixture(scope="module")
def statistics(trained: Any) -> wcodec.Statistics:
    model, ids = trained
    return wcodec.collect_statistics(model, data=ids[: len(ids) // 2], windows=12, length=256)


@pytest.mark.parametrize("trellis", [False, True])
def test_each_part_lowers_what_is_lost_at_three_bits(
    trained: Any, statistics: wcodec.Statistics, trellis: bool
) -> None:
    model, ids = trained
    begin = torch.linspace(len(ids) // 2, len(ids) - 256, 4).long().tolist()
    windows = torch.stack([ids[i : i + 256] for i in begin])
    # Half of the layers, which take half of the time.
    names = {name for name in statistics.units if name.startswith(("model.layers.0.", "model.layers.2."))}
    weights = {name: p.detach() for name, p in model.named_parameters() if name in names}
    options = {"bits": 3, "trellis": trellis, "progress": False}
    known: dict[str, dict[str, Any]] = {
        "weights": {}, "steps": {"calibrate": statistics, "feedback": False}, "full": {"calibrate": statistics},
    }  # fmt: skip
    lost: dict[str, float] = {}
    for what, part in known.items():
        data, report = wcodec.compress_to_bytes(weights, **options, **part)
        assert report.rate is not None
        bits = report.rate.bits_per_weight
        assert bits == pytest.approx(3, rel=0.01)
        with wcodec.open(data) as container:
            changed = {name: container[name].torch() for name in weights}
        # Bits above or below 3 are worth a factor of 4 each.
        lost[what] = divergence(model, windows, changed) * 4 ** (bits - 3)
    assert lost["steps"] < 0.95 * lost["weights"], lost
    # With more text, all layers and the head: 0.75 to 0.77 of it.
    assert lost["full"] < 0.93 * lost["steps"], lost
