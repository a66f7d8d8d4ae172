"""Models on one and on two GPUs by accelerate's device maps and transformers' tensor parallelism: the same bits under a
map as on one GPU, and under tensor parallelism what the uncompressed model computes when it is shared alike.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead. Tests that need
two GPUs are not collected where there is one, and say so.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gpu_helpers
import parallel_ranks as ranks
import pytest
import wcodec
from gpu_helpers import torch
from wcodec.nn import CompressedLayer

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

gpu = gpu_helpers.gpu
COUNT = torch.cuda.device_count()
GPUS = [n for n in (1, 2) if n <= COUNT]
if COUNT == 1:
    warnings.warn("one GPU: tests of maps over two and of tensor parallelism are left out", stacklevel=1)
OPTIONS = {"int8": {}, "4 bits": {"scheme": "rate", "bits": 4, "coder": "huffman", "table_bits": 10}}


@pytest.fixture(scope="module", params=OPTIONS)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A compressed model of some size, and the same uncompressed."""
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=8, max_position_embeddings=256, tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(6)
    place = tmp_path_factory.mktemp("gpus")
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    wcodec.compress_(model, calibrate=False, progress=False, **OPTIONS[request.param])
    wcodec.save_pretrained(model, place / "compressed")
    wcodec.decompress_(model)
    model.save_pretrained(place / "plain")
    return place / "compressed", place / "plain"


def load(folder: Path, **options: Any) -> Any:
    """A model that computes what it does on any number of GPUs: with hooks of accelerate blocks are not done whole."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    wcodec.nn.fuse_(model, False)
    return model


def logits_of(model: Any) -> Any:
    ids = torch.tensor(ranks.IDS, device="cuda:0")
    with torch.no_grad():
        return model(ids).logits.cpu(), model.generate(ids, max_new_tokens=8, do_sample=False).cpu()


@pytest.mark.parametrize("count", GPUS)
@pytest.mark.parametrize("kind", ["auto", "balanced", "sequential"])
def test_maps_compute_the_same_bits_as_one_gpu(folders: tuple[Path, Path], kind: str, count: int) -> None:
    one = load(folders[0], device_map={"": 0})
    wanted, text = logits_of(one)
    alone = ranks.taken(one)[0]
    del one
    ranks.free()
    room = {i: "20GB" if i < count else 0 for i in range(COUNT)}
    model = load(folders[0], device_map=kind, max_memory=room)
    found, grown = logits_of(model)
    assert torch.equal(found, wanted) and torch.equal(grown, text)
    used = ranks.taken(model)
    if count == 2 and kind == "balanced":
        assert {layer.device.index for layer in model.modules() if isinstance(layer, CompressedLayer)} == {0, 1}
        # accelerate keeps blocks whole, and the embedding's and the head's GPU are not of one size.
        assert max(used) <= 0.65 * alone, (used, alone)
    else:
        assert used[0] <= alone + (8 << 20)


def test_what_is_mapped_to_the_cpu_streams_from_there(folders: tuple[Path, Path]) -> None:
    one = load(folders[0], device_map={"": 0})
    wanted, text = logits_of(one)
    del one
    ranks.free()
    entries: dict[str, Any] = {f"model.layers.{i}": "cpu" if i > 5 else 0 for i in range(12)}
    rest = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), 0)
    model = load(folders[0], device_map={**entries, **rest})
    found, grown = logits_of(model)
    assert torch.equal(found, wanted) and torch.equal(grown, text)
    where = {name: m.residency for name, m in model.named_modules() if isinstance(m, CompressedLayer)}
    assert where["model.layers.3.mlp.up_proj"] == "device" and where["model.layers.9.mlp.up_proj"] == "host"
    assert {m.device.type for m in model.modules() if isinstance(m, CompressedLayer)} == {"cuda"}


if COUNT > 1:

    def test_ranks_compute_what_the_uncompressed_model_does(folders: tuple[Path, Path]) -> None:
        one = load(folders[0], device_map={"": 0})
        logits_of(one)
        alone = ranks.taken(one)[0]
        del one
        ranks.free()
        found = ranks.run(2, ranks.on_gpus, *folders)
        for answer in found:
            wanted = torch.from_numpy(answer["wanted"])
            got = torch.from_numpy(answer["logits"])
            assert (got - wanted).abs().max() <= 0.03 * wanted.abs().max()
            assert answer["bytes"] <= 0.56 * alone + (8 << 20), (answer["bytes"], alone)
        assert found[0]["text"] == found[1]["text"]
