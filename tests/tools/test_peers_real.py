"""pyext/benches/peers, quality on a real model: types of ggml, what is counted, rows of the file of results."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "pyext/benches"))

from peers import catalogue, command, real, report, run_file  # noqa: E402
from peers.adapters import base, ggml  # noqa: E402

COLUMNS = 512


def sizes(number: int) -> tuple[int, int]:
    """Weights and bytes of a block, as the package gguf knows them; of KT types without the scale of a row."""
    known = {153: (256, 68), 154: (256, 100), 155: (256, 128)}
    return known.get(number) or gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]


def without_functions() -> ggml.Library:
    """A library that knows sizes and names of types only."""
    out = ggml.Library.__new__(ggml.Library)
    names = {number: name for name, number in ggml.TYPES.items()}
    out._library = SimpleNamespace(
        ggml_blck_size=lambda number: sizes(number)[0], ggml_type_name=lambda number: names[number].lower().encode()
    )
    return out


def installed(peer: str, pattern: str) -> ggml.Library:
    """A library's functions, where the benchmark or somebody else has installed them."""
    folders = [*REPOSITORY.glob(f"target/peers/{peer}/lib/python*/site-packages"), *map(Path, sys.path)]
    found = [path for folder in folders for path in folder.glob(pattern)]
    if not found:
        pytest.skip(f"{pattern} is not there (make peers-cpu installs it)")
    return ggml.Library(found[0])


def of_llama_cpp() -> ggml.Library:
    return installed("gguf", "xllamacpp/*.so")


def matrix(rows: int = 8, columns: int = COLUMNS) -> Any:
    return np.random.default_rng(1).standard_normal((rows, columns), np.float32)


def test_numbers_of_types_are_those_of_files() -> None:
    for name in catalogue.GGUF_TYPES:
        assert ggml.TYPES[name] == gguf.GGMLQuantizationType[name]


def test_rows_that_are_no_whole_blocks_fall_back_as_in_llama_cpp() -> None:
    library = without_functions()
    assert {kind: library.fitting(kind, 576) for kind in (*catalogue.GGUF_TYPES, "IQ2_KT", "IQ4_KT")} == {
        "Q8_0": "Q8_0", "Q6_K": "Q8_0", "Q5_K": "Q5_1", "Q4_K": "Q5_0", "Q3_K": "Q4_0", "Q2_K": "Q4_0", "Q4_1": "Q4_1",
        "Q4_0": "Q4_0", **dict.fromkeys(("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS"), "IQ4_NL"),
        **dict.fromkeys(("IQ2_XXS", "IQ2_KT", "IQ4_KT"), "IQ4_NL"),
    }  # fmt: skip
    assert all(library.fitting(kind, 1536) == kind for kind in ggml.TYPES)
    for kind, columns in (("Q4_K", 100), ("Q8_0", 100)):
        with pytest.raises(base.NotThere, match=f"rows of 100 weights fit {kind}"):
            library.fitting(kind, columns)


def test_a_library_with_other_numbers_is_refused() -> None:
    library = without_functions()
    library._library.ggml_type_name = lambda number: b"q4_0"
    with pytest.raises(base.NotThere, match="has b'q4_0' for IQ2_KT"):
        library.fitting("IQ2_KT", 256)


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "Q4_0", "Q3_K", "IQ4_XS", "IQ3_S", "IQ2_XS"])
def test_types_take_the_bytes_and_mean_the_weights_that_the_package_gguf_says(kind: str) -> None:
    library, weights, number = of_llama_cpp(), matrix(), gguf.GGMLQuantizationType[kind]
    found = library.stored(kind, weights, np.ones(COLUMNS, np.float32))
    block, size = gguf.GGML_QUANT_SIZES[number]
    assert found.type == kind and found.data.nbytes == weights.size // block * size
    np.testing.assert_array_equal(found.decoded, gguf.dequantize(found.data, number))
    assert np.square(found.decoded - weights).mean() < 0.25


def test_types_with_a_trellis_have_a_scale_for_each_row() -> None:
    library, weights = installed("ik", "ik_llama_cpp/lib/libggml.so"), matrix()
    for kind, most in (("IQ4_KT", 0.02), ("IQ3_KT", 0.05), ("IQ2_KT", 0.2)):
        found = library.stored(kind, weights)
        block, size = sizes(ggml.TYPES[kind])
        assert found.data.nbytes == len(weights) * (COLUMNS // block * size + 4)
        assert np.square(found.decoded - weights).mean() < most
    # The type that takes their place, whose scales are floats of 16 bits.
    found = library.stored("IQ2_KT", matrix(columns=576))
    assert found.type == "IQ4_NL" and np.square(found.decoded - matrix(columns=576)).mean() < 0.02


def test_everything_stored_is_counted_and_types_that_take_the_place_of_others() -> None:
    from peers.adapters import gguf_

    class Half:
        """Every row as one byte for two weights; rows of 64 have another type."""

        def stored(self, kind: str, weights: Any, importance: Any) -> ggml.Stored:
            rows, columns = weights.shape
            data = np.zeros((rows, columns // 2), np.uint8)
            return ggml.Stored("Q4_0" if columns == 64 else kind, data, np.zeros_like(weights))

    model = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 3, bias=False), "b": torch.nn.Linear(32, 2, bias=False)})
    ready = gguf_.prepared(Half(), model, catalogue.Variant("x", "x", {"type": "Q2_K"}))
    assert ready.stored_bytes == (64 * 3 + 32 * 2) // 2 and ready.fell_back == "75 % as Q4_0"
    assert ready.decoded("a").shape == (3, 64) and not ready.decoded("b").any()


def test_importance_moves_errors_to_other_columns() -> None:
    library, weights = of_llama_cpp(), matrix(64)
    importance = np.ones(COLUMNS, np.float32)
    importance[::32] = 1000

    def errors(known: Any) -> float:
        return float(np.square(library.stored("IQ4_NL", weights, known).decoded - weights)[:, ::32].mean())

    assert errors(importance) < 0.5 * errors(None)
    with pytest.raises(base.NotThere, match="IQ2_XXS needs an importance matrix"):
        library.stored("IQ2_XXS", weights)
    with pytest.raises(ValueError, match="512 columns have importance of the shape"):
        library.stored("Q4_0", weights, importance[:-1])


def test_a_head_that_is_the_embedding_is_no_linear_layer() -> None:
    model = torch.nn.ModuleDict(
        {"in": torch.nn.Embedding(8, 4), "a": torch.nn.Linear(4, 4), "out": torch.nn.Linear(4, 8)}
    )
    model.get_input_embeddings = lambda: model["in"]
    assert list(base.linears(model)) == ["a", "out"] and base.weights_in(model) == 48
    model["out"].weight = model["in"].weight
    assert list(base.linears(model)) == ["a"] and base.weights_in(model) == 16


def test_weights_stay_in_their_cells() -> None:
    weight = torch.linspace(-1, 1, 64).view(2, 32)
    spread = weight.clone()
    real.spread_out([spread])
    cells = (weight.amax(1, keepdim=True) - weight.amin(1, keepdim=True)) / 15
    apart = (spread - weight) / cells
    assert apart.abs().max() < 0.52 and apart.abs().mean() > 0.2
    assert torch.equal(spread, spread.to(torch.bfloat16).float())


# Rows of the file.


def measured(**rows: tuple[float, float]) -> report.Json:
    """A report with bits and KL of variants of GGUF."""
    settings = {"device": "cpu", "model": "smollm2", "windows": 16, "sections": ["quality"], "batches": [1]}
    out = report.empty(settings, {}, "command", "2026-01-01")
    out["peers"]["gguf"] = {"versions": {"xllamacpp": "1.2"}}
    for variant in catalogue.PEERS["gguf"].variants:
        if variant.name in rows:
            bits, kl = rows[variant.name]
            values = {"bits": bits, "kl": kl, "same_top_token": 0.5, "fell_back": "75 % as Q5_0"}
            report.add_row(out, "gguf", variant)["sections"]["quality"] = values
    return out


@pytest.mark.parametrize("module", [real, run_file], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_a_run_of_some_rows_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, measured(**{"Q4_K": (5.25, 0.3), "Q4_K-columns": (5.25, 0.2), "Q8_0": (8.5, 0.1)}))
    run_file.write(path, measured(**{"Q4_K-columns": (5.25, 0.25), "Q2_K": (4.0, 0.9)}))
    found = json.loads(path.read_text())
    assert found["command"] == "make peers-cpu"
    assert [(row["name"], row["values"]) for row in found["rows"]] == [
        ("GGUF Q8_0", {"bits": 8.5, "kl": 0.1, "same": 50.0}),
        ("GGUF Q4_K", {"bits": 5.25, "kl": 0.3, "same": 50.0, "kl_columns": 0.25, "same_columns": 50.0}),
        ("GGUF Q2_K", {"bits": 4.0, "kl": 0.9, "same": 50.0}),
    ]
    assert (
        found["rows"][1]["of"]["fell_back"] == "75 % as Q5_0" and found["rows"][1]["of"]["version"] == "xllamacpp 1.2"
    )
    # Other windows are another run.
    other = measured(**{"Q8_0": (8.5, 0.2)})
    other["settings"]["windows"] = 4
    run_file.write(path, other)
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_only_rows_of_the_chart_are_measured_on_a_real_model(tmp_path: Path) -> None:
    def todo(model: str) -> list[str]:
        given = ["--device", "cpu", "--model", model, "--environments", str(tmp_path)]
        args = command.parser().parse_args(given)
        args.given = given
        return list(command.Run(args, ["wcodec"], "cpu", None).todo("wcodec"))

    only = {"4.0", "3.5", "3.0", "4.0-plain", "lossless", "4.0-calibrated"}
    assert set(todo("embedded")) - set(todo("smollm2")) == only
    assert {"int8", "rate-4.0", "trellis-2.5-text"} <= set(todo("smollm2"))


def test_a_row_has_one_name_for_all_that_it_may_know() -> None:
    for peer in catalogue.PEERS.values():
        rows = [(v.label, v.given) for v in peer.variants if v.curve]
        assert len(set(rows)) == len(rows)
        assert len({(v.label, v.curve) for v in peer.variants if v.curve}) == len({label for label, _ in rows})


def test_the_chart_has_a_line_for_each_method(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from peers import chart

    found = measured(**{"Q4_K": (5.25, 0.3), "Q4_K-columns": (5.25, 0.2), "Q8_0": (8.5, 0.1)})
    rows = run_file.qualities(found, "x")
    figure, ax = chart.plt.subplots()
    chart.curves(ax, rows)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["GGUF", "GGUF, importance matrix"]
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [[0.1, 0.3], [0.2]]
    chart.plt.close(figure)
    chart.draw(found, tmp_path / "x.png", rows)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
