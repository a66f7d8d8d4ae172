"""Products from compressed weights, groups and whole blocks without being asked for: the CPU plays the GPU's launches,
as in test_blocks."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import wcodec  # noqa: E402
from wcodec.nn._fusion.fuse import fuses  # noqa: E402

from tests.nn import test_blocks  # noqa: E402

# pytest looks for fixtures in the module.
played = test_blocks.played
IDS, BLOCK = test_blocks.IDS, test_blocks.BLOCK
ALL = [*BLOCK, *BLOCK, *BLOCK[:3], "added"]


def llama() -> Any:
    """Not compressed."""
    model = test_blocks.llama()
    wcodec.decompress_(model)
    return model


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(IDS).logits


def test_on_a_cpu_nothing_changes() -> None:
    model = llama()
    wanted = logits(model)
    plain, fused = copy.deepcopy(model), copy.deepcopy(model)
    wcodec.compress_(plain, scheme="lossless", fused=False, progress=False)
    wcodec.compress_(fused, scheme="lossless", progress=False)
    assert torch.equal(logits(plain), wanted) and torch.equal(logits(fused), wanted)
    assert fuses(fused) and not fuses(plain)
    # Classes pass for those that they were.
    for a, b in zip(model.modules(), fused.modules(), strict=True):
        assert type(a).__name__ in type(b).__name__ and (isinstance(b, type(a)) or "Compressed" in type(b).__name__)


def test_compressed_models_run_in_blocks(played: list[str]) -> None:
    model = llama()
    wcodec.compress_(model, progress=False)
    logits(model)
    assert played == ALL
    played.clear()
    other = llama()
    wcodec.compress_(other, fused=False, progress=False)
    wanted = logits(other)
    assert not played
    wcodec.nn.fuse_(model, False)
    assert torch.equal(logits(model), wanted) and not played


def test_loaded_models_run_in_blocks(model: Path, tmp_path: Path, played: list[str]) -> None:
    wcodec.save_pretrained(wcodec.load_model(model), tmp_path / "c")
    auto = transformers.AutoModelForCausalLM.from_pretrained
    for load in (
        lambda: wcodec.load_model(tmp_path / "c"),
        lambda: wcodec.load_model(model),
        lambda: auto(tmp_path / "c"),
        lambda: auto(model, quantization_config=wcodec.WCodecConfig()),
    ):
        played.clear()
        logits(load())
        assert played == [*BLOCK * 3, *BLOCK[:3], "added"]
    for load in (
        lambda: wcodec.load_model(tmp_path / "c", fused=False),
        lambda: wcodec.load_model(model, fused=False),
        lambda: auto(model, quantization_config=wcodec.WCodecConfig(fused=False)),
    ):
        played.clear()
        found = load()
        logits(found)
        assert not played and not fuses(found)
    assert "fused" not in wcodec.WCodecConfig().to_dict() and not wcodec.WCodecConfig(fused=False).to_dict()["fused"]


def test_copies_run_in_blocks_too(played: list[str]) -> None:
    model = llama()
    wcodec.compress_(model, progress=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model).to(torch.float32)):
        played.clear()
        logits(other)
        assert played == ALL and fuses(other)


def test_decompressed_layers_are_let_go_of(played: list[str]) -> None:
    model = llama()
    wcodec.compress_(model, progress=False)
    logits(model)
    store = weakref.ref(model.lm_head._store)
    decoded = copy.deepcopy(model)
    wcodec.decompress_(decoded)
    played.clear()
    wanted = logits(decoded)
    assert not played and type(decoded.model.layers[0]) is type(llama().model.layers[0])
    # A part of a model is put back, and what is left runs together still.
    wcodec.decompress_(model, include="*.mlp.*")
    played.clear()
    torch.testing.assert_close(logits(model), wanted, rtol=1e-4, atol=1e-4)
    assert "normed 3" in played and "normed 2" not in played
    wcodec.decompress_(model)
    gc.collect()
    assert store() is None


def test_what_is_compressed_later_runs_with_what_is_there(played: list[str]) -> None:
    model = llama()
    wcodec.compress_(model, include="*.self_attn.*", progress=False)
    logits(model)
    assert "normed 2" not in played
    played.clear()
    wcodec.compress_(model, progress=False)
    logits(model)
    assert played.count("normed 2") == 3


def test_whoever_keeps_a_forward_may_call_it(played: list[str]) -> None:
    """As hooks of accelerate do, which put a function of their own into a module."""
    model = llama()
    wcodec.compress_(model, progress=False)
    block = model.model.layers[0]
    kept = [block.forward, block.self_attn.forward, block.mlp.forward]
    wcodec.nn.fuse_(model, False)
    for module, forward in zip((block, block.self_attn, block.mlp), kept, strict=True):
        module.forward = forward
    played.clear()
    wanted = copy.deepcopy(llama())
    assert torch.allclose(logits(model), logits(wanted), atol=0.5) and not played


class Odd(torch.nn.Module):
    """Whose class wants no others that derive from it."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("no classes of this one")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x) + self.k_proj(x)


def test_classes_that_cannot_be_changed_run_as_they_are(played: list[str]) -> None:
    model = torch.nn.Sequential(Odd())
    wcodec.compress_(model, progress=False)
    with torch.no_grad():
        model(torch.ones(2, 64))
    assert not played and type(model[0]) is Odd
