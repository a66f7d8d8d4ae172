"""Tensor parallelism: each rank has its part of compressed weights, and all of them together compute what the
uncompressed model does under the same plan."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import parallel_ranks as ranks
import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from small_models import llama  # noqa: E402

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers.distributed.tensor_parallel") is None,
    reason="this transformers has no tensor parallelism that takes layers of others",
)
# Versions whose styles know experts by their parameters only.
SHARES_EXPERTS = transformers.__version__ >= "5.23"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}


def mixtral() -> Any:
    torch.manual_seed(2)
    small = {"num_hidden_layers": 1, "vocab_size": 90, "max_position_embeddings": 64, "pad_token_id": 0}
    config = transformers.MixtralConfig(**SIZES, **small, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config).eval()


def phi3() -> Any:
    torch.manual_seed(4)
    small = {"num_hidden_layers": 1, "vocab_size": 96, "max_position_embeddings": 64, "pad_token_id": 0}
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, **small)).eval()


def biased() -> Any:
    model = llama(**SIZES, attention_bias=True, tie_word_embeddings=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model


EIGHT = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8}


def uneven(**other: Any) -> Any:
    """100 rows and 90 words, which neither ranks nor tiles divide evenly."""
    return llama(**EIGHT, intermediate_size=100, **other)


def uneven_mixture() -> Any:
    """Experts of 60 rows: torch multiplies with parts whose rows begin at every fourth."""
    torch.manual_seed(5)
    small = {"vocab_size": 90, "max_position_embeddings": 64, "pad_token_id": 0}
    config = transformers.MixtralConfig(**EIGHT, **small, intermediate_size=60, num_local_experts=4)
    return transformers.MixtralForCausalLM(config).eval()


MODELS = {
    "int8": (lambda: llama(**SIZES, vocab_size=90 if SHARES_EXPERTS else 96), {}),
    "biased, tied, 5 bits": (biased, {"scheme": "rate", "bits": 5, "coder": "huffman", "tile": 64}),
    "experts": (mixtral, {"scale": "block", "block": 32}),
    "merged, lossless": (phi3, {"scheme": "lossless"}),
}
UNEVEN = {
    4: {"int8": (uneven, {})},
    8: {"tied, 4 bits": (lambda: uneven(tie_word_embeddings=True), {"bits": 4}), "experts": (uneven_mixture, {})},
}
"""Models that so many ranks do not divide evenly."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Folders of compressed models, and of the same ones uncompressed."""
    return made_in(tmp_path_factory.mktemp("parallel"), MODELS)


def made_in(place: Path, models: dict[str, tuple[Any, dict[str, Any]]]) -> list[tuple[Path, Path]]:
    """Folders of compressed models, and of the same ones uncompressed."""
    made = []
    for number, (model_of, options) in enumerate(models.values()):
        compressed, plain = place / f"{number}" / "compressed", place / f"{number}" / "plain"
        model = model_of()
        wcodec.compress_(model, progress=False, **options)
        wcodec.save_pretrained(model, compressed)
        wcodec.decompress_(model)
        model.save_pretrained(plain)
        made.append((compressed, plain))
    return made


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_compute_what_the_uncompressed_model_does(folders: list[tuple[Path, Path]], size: int) -> None:
    some = (folders if size == 2 else folders[:1]) if SHARES_EXPERTS else folders[: 2 if size == 2 else 1]
    # Tables and what is padded weigh more in models as small as these, and so do embeddings that stay whole.
    compared(some, size, 0.12 if SHARES_EXPERTS else 0.2)


@pytest.mark.skipif(not SHARES_EXPERTS, reason="this transformers divides evenly only, and no experts")
@pytest.mark.parametrize("size", UNEVEN)
def test_ranks_that_divide_unevenly(tmp_path: Path, size: int) -> None:
    compared(made_in(tmp_path, UNEVEN[size]), size, 0.2)


def compared(some: list[tuple[Path, Path]], size: int, more: float) -> None:
    """Shares models among ranks, and checks what each has and computes.

    :param more: the part of the model's bytes that a rank may have beyond its share.
    """
    found = ranks.run(size, ranks.compare, some)
    for number, (compressed, plain) in enumerate(some):
        whole = transformers.AutoModelForCausalLM.from_pretrained(plain)
        with torch.no_grad():
            alone = whole(torch.tensor(ranks.IDS)).logits.numpy()
        stored = sum(entry.stored_bytes for entry in wcodec.open(compressed).stored)
        for rank, answers in enumerate(found):
            mine = answers[number]
            wrong = {name: shape for name, (_, shape, same) in mine["parts"].items() if not same}
            assert not wrong, (number, rank, wrong)
            assert any(part == (rank, size) for part, _, _ in mine["parts"].values())
            scale = float(np.abs(alone).max())
            np.testing.assert_allclose(mine["logits"], mine["wanted"], atol=2e-6 * scale, rtol=0)
            np.testing.assert_allclose(mine["logits"], alone, atol=1e-5 * scale, rtol=0)
            assert mine["text"] == mine["wanted_text"]
            assert mine["stored"] <= (1 / size + more) * stored, (number, rank, mine["stored"], stored)
            assert f"rank {rank} of {size}" in mine["repr"]
            assert f"part of rank {rank} of {size} of the model, which cannot be saved" in mine["saving"]


def test_what_is_wrong_is_said_by_all_ranks(folders: list[tuple[Path, Path]], tmp_path: Path) -> None:
    compressed, plain = folders[0]
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in compressed.iterdir():
        data = path.read_bytes()
        (damaged / path.name).write_bytes(data[:-100] if path.suffix == ".wcodec" else data)
    model = llama(hidden_size=48, num_attention_heads=3, num_key_value_heads=3)
    wcodec.compress_(model, progress=False)
    wcodec.save_pretrained(model, tmp_path / "three")
    first, second = ranks.run(2, ranks.refusals, compressed, plain, damaged, tmp_path / "three", folders[2][0])
    assert second["one rank"].startswith(("FormatError", "CorruptError"))
    assert first["one rank"].startswith("UnsupportedError: rank 1 cannot load the model: ")
    for answers in (first, second):
        assert "each rank would compress the whole model" in answers["on the fly"]
        if not SHARES_EXPERTS:
            assert "cannot share the compressed experts 'model.layers.0.mlp.experts'" in answers["experts"]
        assert "'model.layers.0.mlp.up_proj' cannot be shared by ranks as the plan says" in answers["style"]
        assert answers["heads"].startswith("InputError: num_attention_heads is 3, which 2 ranks cannot share")
        assert answers["after all"] == ""
