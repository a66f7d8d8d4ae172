"""Display of containers and reports: in terminals, in notebooks, and when they are indexed."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import numpy as np
import pytest
import wcodec
from wcodec._core import terminal


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> wcodec.Container:
    rng = np.random.default_rng(3)
    tensors = {"embed.weight": rng.standard_normal((40, 64)).astype(np.float32)}
    for i in (10, 9, 2):
        for role in ("mlp.up", "attn.q"):
            tensors[f"layers.{i}.{role}.weight"] = rng.standard_t(3, (32, 64)).astype(np.float32)
        tensors[f"layers.{i}.norm.weight"] = np.ones(64, np.float32)
    path = tmp_path_factory.mktemp("display") / "m.wcodec"
    wcodec.save_file(tensors, path)
    return wcodec.open(path)


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_text_fits_and_is_sorted(columns: int, container: wcodec.Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = repr(container).splitlines()
    assert lines[0].startswith("Container(") and "tensors" in lines[2]
    assert all(terminal.width(line) <= columns for line in lines[1:])
    text = repr(container)
    if columns > 40:
        assert re.search(r"^layers\.\*\.mlp\.up\.weight +3 ", text, re.MULTILINE)
    # The first and the last tensors, 2 before 10.
    begin = next(i for i, line in enumerate(lines) if line.startswith("tensor "))
    shown = [line.split()[0] for line in lines[begin + 1 :]]
    assert shown[:2] == ["embed.weight", "layers.2.attn.q.weight"] and shown[-1] == "layers.10.norm.weight"
    assert "... 2 more" in text


def test_keys_show_themselves(container: wcodec.Container) -> None:
    keys = container.keys()
    assert list(keys) == list(container) and "embed.weight" in keys and len(keys) == 10
    assert repr(keys).splitlines()[:2] == ["names of 10 tensors:", "  embed.weight"]
    assert keys & {"embed.weight", "x"} == {"embed.weight"}
    assert container._ipython_key_completions_() == list(container)
    many = wcodec.open(wcodec.compress_to_bytes({f"t{i}": np.zeros(1, np.int8) for i in range(300)})[0])
    assert "... 260 more" in repr(many.keys()) and len(repr(many.keys()).splitlines()) == 42


class _Page(html.parser.HTMLParser):
    """Content of a page, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells = 0
        self.titles: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["title"]:
            self.titles.append(data)


def test_html_has_the_heat_map_first(container: wcodec.Container) -> None:
    text = container._repr_html_()
    page = _Page(text)
    assert page.tags.index("svg") < page.tags.index("table") < page.tags.index("details")
    # A cell for each matrix, whose figures are those of the file.
    assert len(page.titles) == 7
    entry = container["layers.2.mlp.up.weight"]
    assert f"{entry.name}: {entry.bits_per_weight:.3f} bits/weight" in " ".join(page.titles)
    rows = re.findall(r"<td[^>]*>(layers\.\d+[^<]*|embed[^<]*)</td>", text)
    assert (
        rows.index("layers.2.attn.q.weight")
        < rows.index("layers.9.attn.q.weight")
        < rows.index("layers.10.attn.q.weight")
    )
    # Text has the notebook's colour.
    assert "currentColor" in text and "background" not in text


def test_problems_are_open_and_red(container: wcodec.Container, tmp_path: Path) -> None:
    fine = wcodec.verify(container.path, progress=False)
    assert "<details open" not in fine._repr_html_() and "#d0342c" not in fine._repr_html_()
    damaged = bytearray(Path(str(container.path)).read_bytes())
    damaged[next(s for s in container["embed.weight"].segments if s.role == "data").offset] ^= 1
    (tmp_path / "d.wcodec").write_bytes(damaged)
    report = wcodec.verify(tmp_path / "d.wcodec", progress=False)
    assert '<details open><summary><strong style="color:#d0342c">1 problem</strong>' in report._repr_html_()
    other = wcodec.open(wcodec.compress_to_bytes({"embed.weight": np.ones((40, 64), np.float32)})[0])
    page = wcodec.compare(container, other)._repr_html_()
    assert "<details open>" in page and page.index("differs") < page.index("only_a")


@pytest.mark.parametrize("name", ["embed.weight", "layers.2.norm.weight"])
@pytest.mark.parametrize(
    "key",
    [slice(0, 2), 5, -1, slice(None, None, -1), slice(30, 2, -3), slice(5, 5), slice(-3, None), Ellipsis, np.int64(3),
     slice(0, 40, 7)],
)  # fmt: skip
def test_entries_are_indexed_as_arrays(container: wcodec.Container, name: str, key: object) -> None:
    whole = container[name].numpy()
    found = container[name][key]
    assert np.array_equal(found, whole[key]) and np.shape(found) == np.shape(whole[key])


def test_only_the_rows_asked_for_are_decoded(container: wcodec.Container, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = container["embed.weight"]
    whole, asked = entry.numpy(), []
    rows = wcodec.TensorEntry._bytes_of_rows
    monkeypatch.setattr(
        wcodec.TensorEntry, "_bytes_of_rows", lambda s, b, e, *r: (asked.append((b, e)), rows(s, b, e, *r))[1]
    )
    monkeypatch.setattr(wcodec.TensorEntry, "_bytes", lambda *a: pytest.fail("all of it"))
    assert np.array_equal(entry[3:5, 0], whole[3:5, 0]) and np.array_equal(entry[-1, :4], whole[-1, :4])
    assert asked == [(3, 5), (39, 40)]
    with pytest.raises(IndexError, match=r"row 40 of tensor 'embed.weight', which has 40"):
        entry[40]
