"""Golden files of all versions, changed at random and sealed again, through everything that people call.

`codec/tests/common/fuzz/file` does the same below Python, to millions of them.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wcodec
from format_writer import reseal
from hostile import STEERING, steers
from rate_mutations import disagreement, mutated_bytes, mutated_index

from tests.api.test_hostile_input import command, only_ours

DATA = Path(__file__).parents[1] / "data"
GOLDEN = sorted(p for version in ("", "-1.1", "-1.2") for p in (DATA / f"golden{version}").glob("*.wcodec"))
#: what stands in the place of a figure or a word of a plan, a measurement, or a model's config
ODD: list[Any] = [
    0,
    -1,
    1,
    10**400,
    1e308,
    -1e308,
    0.5,
    None,
    True,
    "",
    "0",
    STEERING,
    "9" * 400,
    [],
    {},
    [[]],
    {"a": 1},
]
PLAN = {
    "version": 1, "target": "3.5 bits", "recipe": "rate 3.5", "scheme": "rate", "bits": 3.5, "trellis": True,
    "candidates": [
        {"recipe": "rate 3.5", "bits_asked": 3.5, "bits_stored": 3.52, "file_bytes": 4096, "kl": 0.01,
         "perplexity": 9.5, "top1_agreement": 0.9, "taken": True},
        {"recipe": "rate 3", "bits_asked": 3.0, "bits_stored": 3.01, "file_bytes": 3072, "kl": None,
         "perplexity": None, "top1_agreement": None, "taken": False},
    ],
}  # fmt: skip
QUALITY = {
    "version": 1, "kl": 0.01, "kl_error": 0.001, "perplexity": 9.5, "original_perplexity": 9.4, "top1_agreement": 0.9,
    "tokens": 2048, "windows": 8, "window": 256, "text_sha256": "00", "dtype": "float32",
}  # fmt: skip
MODEL = {"config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1}, "files": ["tokenizer.json"]}


def places(node: Any) -> list[tuple[Any, Any]]:
    """Everything in a JSON value that can be another one: what it is in, and its key there."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, child in list(items) for place in ((node, key), *places(child))]


def stated(file: bytes, rng: random.Random) -> bytes:
    """A file with statements for people, of which some are odd."""
    begin = int.from_bytes(file[16:24], "little")
    index = json.loads(file[begin:])
    parts = json.loads(json.dumps([PLAN, QUALITY, MODEL]))
    for _ in range(rng.choice((1, 1, 2, 4))):
        node, key = rng.choice(places(parts))
        if isinstance(node, list) and node is parts:
            continue
        node[key] = copy.deepcopy(rng.choice(ODD))
    texts = [json.dumps(part) for part in parts]
    if rng.random() < 0.2:
        texts[rng.randrange(2)] = rng.choice(("[" * 3000, "{", "null", "1e999", '{"version": 1e999}', STEERING))
    index["metadata"] = {"wcodec.plan": texts[0], "wcodec.quality": texts[1]}
    index["model"] = parts[2]
    text = json.dumps(index).encode()
    return reseal(file[:24] + len(text).to_bytes(8, "little") + file[32:begin] + text)


def cases(seed: int, count: int) -> list[bytes]:
    """Mutations of golden files, of which no two of one way follow each other."""
    rng = random.Random(seed)
    ways: list[Callable[[bytes, random.Random], bytes]] = [mutated_index, mutated_bytes, stated]
    return [ways[n % 3](rng.choice(GOLDEN).read_bytes(), rng) for n in range(count)]


def shown(container: wcodec.Container) -> None:
    """Everything of a container that is read by people."""
    asked: list[Callable[[], object]] = [
        lambda: repr(container), lambda: container._repr_html_(), lambda: container.model, lambda: container.metadata,
        lambda: container.ratio,
    ]  # fmt: skip
    for name, entry in list(container.items())[:3]:
        asked += [
            lambda entry=entry: repr(entry), lambda entry=entry: entry._repr_html_(),
            lambda entry=entry: entry.scales(), lambda entry=entry: entry.symbols(),
            lambda entry=entry: entry.numpy_rows(0, 1), lambda entry=entry: entry.torch(),
            lambda name=name: container.extract([name]),
        ]  # fmt: skip
    for ask in asked:
        with only_ours():
            answer = ask()
            assert not isinstance(answer, str) or not steers(answer)


def plotted(container: wcodec.Container, plt: Any) -> None:
    """Every plot of a container, drawn."""
    plots: list[Callable[[], Any]] = [
        container.plot.ratio, lambda: container.plot.heatmap("bits"), lambda: container.plot.heatmap("ratio"),
    ]  # fmt: skip
    for name in list(container)[:2]:
        plots += [lambda name=name: container.plot.scales(name), lambda name=name: container.plot.symbols(name)]
    for plot in plots:
        with only_ours():
            plot().figure.canvas.draw()
        plt.close("all")


@pytest.mark.parametrize("seed", range(4))
def test_two_readers_agree(seed: int) -> None:
    # NumPy alone has not all dtypes
    pytest.importorskip("ml_dtypes")
    for n, file in enumerate(cases(seed, 30)):
        assert disagreement(file) is None, f"case {n} of seed {seed}"


@pytest.mark.parametrize("seed", range(4, 7))
def test_whatever_is_called(seed: int, tmp_path: Path, plt: Any) -> None:
    path = tmp_path / "x.wcodec"
    opened = 0
    for n, file in enumerate(cases(seed, 30)):
        path.write_bytes(file)
        with only_ours():
            wcodec.verify(path, progress=False)._repr_html_()
        with only_ours():
            wcodec.load_file(path)
        for arguments in ([], ["--json"], ["--filter", "*w*"], ["--summary"])[n % 4 :][:1]:
            assert command("inspect", path, *arguments) in (0, 2)
        with only_ours(), wcodec.open(path) as container:
            opened += 1
            shown(container)
            if n % 5 == 2:
                plotted(container, plt)
    assert opened >= 10
