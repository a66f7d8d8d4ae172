"""Up to how many tokens products are taken: the table that a benchmark makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from wcodec.nn._weights import crossover
from wcodec.nn._weights.crossover import Kind

MOST = wcodec.ProductBatch.MOST


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = tmp_path / "crossover.json"
    path.write_text(json.dumps({"about": "", "capabilities": {}}))
    monkeypatch.setattr(crossover, "_TABLE", path)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    crossover._measured_tokens.cache_clear()
    crossover._read.cache_clear()
    yield path
    crossover._measured_tokens.cache_clear()
    crossover._read.cache_clear()


def measured(scheme: str, rows: int, columns: int, tokens: int) -> dict[str, Any]:
    return {"scheme": scheme, "coder": "rans", "rows": rows, "columns": columns, "tokens": tokens}


def test_what_was_measured_counts_by_size(table: Path) -> None:
    report = {
        "device": "a GPU",
        "capability": "9.0",
        "measured": [
            measured("int8", 1000, 1000, 2 * MOST),
            measured("int8", 4000, 4000, 8),
            # The least of several rates counts.
            measured("rate", 1000, 1000, 16),
            measured("rate", 1000, 1000, 1),
        ],
    }
    crossover.write(report)
    device = torch.device("cpu")
    # One launch takes no more.
    assert crossover.tokens(device, Kind("int8", "rans", "pair"), 1) == MOST
    # The border is their geometric middle, 4 million.
    assert crossover.tokens(device, Kind("int8", "rans", "pair"), 3_900_000) == MOST
    assert crossover.tokens(device, Kind("int8", "rans", "pair"), 4_100_000) == 8
    assert crossover.tokens(device, Kind("int8", "rans", "pair"), 10**10) == 8
    assert crossover.tokens(device, Kind("rate", "rans", "pair"), 5) == 1
    # Nothing is known of other coders.
    assert crossover.tokens(device, Kind("int8", "huffman", "pair"), 4_100_000) == 64
    # Nor of this layout.
    assert crossover.tokens(device, Kind("rate", "huffman", "quad"), 5) == 64
    # A trellis has rows of its own, if there are some, and else those of its kind; what was not measured stays.
    assert crossover.tokens(device, Kind("rate", "rans", "pair", "trellis"), 5) == 1
    trellis = {**measured("rate", 1000, 1000, 8), "options": {"trellis": True}}
    crossover.write({**report, "device": "another", "measured": [trellis]})
    assert json.loads(table.read_text())["capabilities"]["9.0"]["device"] == "a GPU; rate rans trellis: another"
    crossover._measured_tokens.cache_clear()
    crossover._read.cache_clear()
    assert crossover.tokens(device, Kind("rate", "rans", "pair", "trellis"), 5) == 8
    assert crossover.tokens(device, Kind("rate", "rans", "pair"), 5) == 1
    assert crossover.tokens(device, Kind("int8", "rans", "pair"), 4_100_000) == 8
    # Another GPU's rows stay.
    crossover.write({**report, "capability": "8.0"})
    assert set(json.loads(table.read_text())["capabilities"]) == {"8.0", "9.0"}


@pytest.mark.parametrize(("layout", "most"), [("pair", 8), ("quad", 32)])
def test_a_stored_tensor_has_the_row_of_its_layout(table: Path, tmp_path: Path, layout: str, most: int) -> None:
    rows = {"int8 huffman": {"4096": 8}, "int8 huffman quad": {"4096": 32}}
    table.write_text(json.dumps({"capabilities": {"9.0": {"tokens": rows}}}))
    file = tmp_path / "a.wcodec"
    wcodec.compress(
        {"a": torch.randn(64, 1024) ** 3}, file, scheme="int8", coder="huffman", layout=layout, progress=False
    )
    kind = Kind.of(wcodec.open(file)["a"])
    assert crossover.tokens(torch.device("cpu"), kind, 4096) == most


def test_the_table_of_the_package_is_sound() -> None:
    table = json.loads(crossover._TABLE.read_text())
    assert table["capabilities"]
    for one in table["capabilities"].values():
        for kind, rows in one["tokens"].items():
            scheme, coder, *layout = kind.split()
            assert scheme in ("int8", "rate") and coder in ("huffman", "rans")
            assert layout in ([], ["quad"]) or (scheme == "rate" and layout in (["trellis"], ["quad", "trellis"]))
            assert rows and all(int(size) > 0 and 0 <= tokens <= MOST for size, tokens in rows.items())
