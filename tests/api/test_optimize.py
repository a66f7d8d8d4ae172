"""``optimize``: one word for coder, layout, tables and trellis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import Cli, call
from wcodec._core.options import encode_options


def weights(rows: int = 6560, cols: int = 640, seed: int = 0) -> dict[str, np.ndarray]:
    """A matrix of more than the 4 million weights from which on quads are chosen."""
    return {"w": (np.random.default_rng(seed).standard_t(5, (rows, cols)) / 20).astype(np.float32)}


def entry_of(given: Any, **options: Any) -> Any:
    """The entry, and the index's own words about its plane and its table."""
    data, _ = wcodec.compress_to_bytes(given, **options)
    return wcodec.open(data)["w"]


def form(**options: Any) -> tuple[str, str | None, int]:
    data, _ = wcodec.compress_to_bytes(weights(), **options)
    import json
    import struct

    begin, length = struct.unpack_from("<QQ", data, 16)
    index = json.loads(data[begin : begin + length])
    entry = wcodec.open(data)["w"]
    return entry.coder, entry.layout, index["tables"][0]["bits"]


def test_what_the_words_mean() -> None:
    assert form() == form(optimize="speed") == ("huffman", "quad", 12)
    assert form(optimize="size") == ("rans", "pair", 12)
    assert [form(bits=bits)[2] for bits in (2.5, 3, 3.4, 3.5, 4, 4.9, 5, 6)] == [10, 10, 10, 12, 12, 12, 12, 12]
    assert form(bits=4)[:2] == ("huffman", "quad") and form(bits=4, optimize="size") == ("rans", "pair", 12)
    ways = [encode_options(bits=4, optimize=word)["way"]["trellis"] for word in ("speed", "size")]
    assert ways == [False, True]


def test_what_is_said_counts_more() -> None:
    assert form(coder="rans") == ("rans", "pair", 12)
    assert form(layout="pair") == ("huffman", "pair", 12) and form(table_bits=9) == ("huffman", "quad", 9)
    assert form(optimize="size", coder="huffman") == ("huffman", "pair", 12)
    assert form(optimize="size", coder="huffman", layout="quad") == ("huffman", "quad", 12)
    ways = [encode_options(trellis=yes, optimize=word)["way"] for yes, word in ((True, "speed"), (False, "size"))]
    assert [way["trellis"] for way in ways] == [True, False]
    assert encode_options(bits=3, coder="zstd", optimize="size")["way"]["trellis"] is False
    with pytest.raises(wcodec.InputError, match="layout quad with coder rans"):
        form(coder="rans", layout="quad")
    with pytest.raises(wcodec.InputError, match=r"unknown purpose 'fast' \(use speed or size\)"):
        form(optimize="fast")


@pytest.mark.parametrize("optimize", ["speed", "size"])
@pytest.mark.parametrize(
    "options", [{}, {"bits": 3}, {"bits": 6.5}, {"scheme": "lossless"}, {"scheme": "raw"}], ids=str
)
def test_no_input_fails_for_it(options: dict[str, Any], optimize: str) -> None:
    rng = np.random.default_rng(3)
    shapes = [(64, 512), (1, 4000), (300, 3), (17, 65), (4, 16, 80), (3, 5, 7, 64), (2000, 1)]
    given: dict[str, Any] = {
        f"{i}": (rng.standard_t(4, shape) / 9).astype(dtype)
        for i, (shape, dtype) in enumerate((s, t) for s in shapes for t in (np.float32, np.float16))
    }
    given |= {
        "zeros": np.zeros((32, 128), np.float32), "same": np.full((32, 128), 0.25, np.float32),
        "outlier": np.where(rng.random((64, 256)) < 1e-3, 50, rng.normal(size=(64, 256))).astype(np.float32),
        "ids": np.arange(300), "symbols": rng.integers(-5, 6, (64, 256)).astype(np.int8),
        "none": np.zeros((0, 8), np.float32), "vector": rng.normal(size=99).astype(np.float32),
    }  # fmt: skip
    if "bits" in options:
        # Few weights have more than their share of scales and tables.
        given["large"] = (rng.standard_t(5, (1024, 1024)) / 9).astype(np.float32)
    data, _ = wcodec.compress_to_bytes(given, optimize=optimize, transpose=["0", "6"], **options)
    container = wcodec.open(data)
    assert set(container) == set(given)
    for name, array in given.items():
        found = container[name].numpy()
        assert found.shape == array.shape and np.isfinite(found.astype(np.float64)).all()
        if options.get("scheme") in ("lossless", "raw") or array.dtype.kind == "i":
            assert found.tobytes() == array.tobytes(), name


@pytest.mark.parametrize("optimize", ["speed", "size"])
def test_bits_are_met_by_a_model_of_small_tensors(optimize: str, model: Path) -> None:
    """Whose tables weigh."""
    for bits in (3.0, 4.5):
        report = wcodec.compress_to_bytes(model, bits=bits, optimize=optimize)[1]
        assert report.rate is not None and report.rate.bits_per_weight == pytest.approx(bits, rel=0.002)


def test_both_hold_the_same_symbols() -> None:
    fast, small = (entry_of(weights(), optimize=word) for word in ("speed", "size"))
    assert np.array_equal(fast.symbols(), small.symbols()) and np.array_equal(fast.scales(), small.scales())
    assert small.stored_bytes < fast.stored_bytes < 1.05 * small.stored_bytes


def test_rules_fall_back_one_by_one() -> None:
    given = {name: weights(seed=i)["w"] for i, name in enumerate(("a", "b", "c"))}
    rules = {"a": {"coder": "rans"}, "b": {"bits": 3.0}}
    found = wcodec.open(wcodec.compress_to_bytes(given, rules=rules)[0])
    assert [(found[n].coder, found[n].layout) for n in given] == [
        ("rans", "pair"), ("huffman", "quad"), ("huffman", "quad")
    ]  # fmt: skip


def test_encoders_of_single_layers() -> None:
    assert wcodec.Encoder().coder == "huffman" and wcodec.Encoder(optimize="size").coder == "rans"
    assert wcodec.Encoder("zstd").coder == wcodec.Encoder(format="legacy").coder == "zstd"


def test_models_take_it(model: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # Small models are in pairs in any case.
    for word, wanted in (("speed", ("huffman", "pair")), ("size", ("rans", "pair"))):
        loaded = wcodec.load_model(model, optimize=word)
        config = wcodec.WCodecConfig(optimize=word)
        others = transformers.AutoModelForCausalLM.from_pretrained(model, quantization_config=config)
        plain = torch.nn.Sequential(torch.nn.Linear(1024, 2048))
        # Not uniform: of such weights int8 has nothing to code.
        torch.nn.init.normal_(plain[0].weight)
        wcodec.compress_(plain, optimize=word, progress=False)
        for layer in (loaded.model.layers[0].mlp.up_proj, others.model.layers[0].mlp.up_proj, plain[0]):
            assert (layer.coder, layer.entry.layout) == wanted
    assert "optimize" not in wcodec.WCodecConfig().to_dict()
    assert wcodec.WCodecConfig(optimize="size").to_dict()["optimize"] == "size"
    with pytest.raises(wcodec.InputError, match="unknown purpose"):
        wcodec.WCodecConfig(optimize="quality")


def test_plans_take_it() -> None:
    given = weights(4096, 1024)
    for word, coder, trellis in (("speed", "huffman", False), ("size", "rans", True)):
        plan = wcodec.plan(given, budget="4 bits", optimize=word)
        assert (plan.recipe.coder, plan.recipe.trellis) == (coder, trellis)
        container = wcodec.open(wcodec.compress_to_bytes(given, **plan.options())[0])
        assert container["w"].layout == ("quad" if word == "speed" else "pair")


@pytest.mark.parametrize(("word", "coder"), [("speed", "huffman"), ("size", "rans")])
def test_the_command(word: str, coder: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run: Cli = lambda *a: call(capsys, *a)  # noqa: E731
    options = ("--optimize", word, "-q")
    assert run("encode", model, "-o", tmp_path / "m.wcodec", *options)[0] == 0
    with wcodec.open(tmp_path / "m.wcodec") as container:
        assert container["model.layers.0.mlp.up_proj.weight"].coder == coder
    status, _, err = run("encode", model, "-o", tmp_path / "x.wcodec", "--optimize", "quality")
    assert status == 2 and "speed" in err and "size" in err


def test_small_models_and_narrow_rows_are_in_pairs() -> None:
    small = wcodec.open(wcodec.compress_to_bytes(weights(rows=96))[0])["w"]
    # Codes of whole bits cannot be as few as those of a small model must be.
    assert (small.coder, small.layout) == ("rans", "pair")
    given = {**weights(), "narrow": weights(300, 1000)["w"]}
    container = wcodec.open(wcodec.compress_to_bytes(given)[0])
    assert (container["w"].layout, container["narrow"].layout) == ("quad", "pair")
    # Four bits can be had of matrices that have no room for the tables of quads.
    report = wcodec.compress_to_bytes(weights(64, 64), bits=5)[1]
    assert report.rate is not None and report.rate.bits_per_weight < 5.6
