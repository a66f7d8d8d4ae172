"""Files with very many tensors: what is answered without looking at each, and that nothing else has changed by that.

The figures that a command prints for a hundred thousand tensors are made natively. Here they are compared with those
that Python makes of the same facts, one by one; how long it takes is not tested.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import call, document
from hostile import raw
from wcodec import _native
from wcodec._core import format as _format
from wcodec._core import reports, tensor_info
from wcodec._core.reports import COMPARISON_HEADINGS, comparison_row
from wcodec._core.tensor_info import TABLE_HEADINGS, TABLE_LEFT, table_row
from wcodec.cli import main

MANY = 1200


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More tensors than a notebook shows, of several kinds, with names whose order is a matter of counting."""
    path = tmp_path_factory.mktemp("many") / "x.wcodec"
    rng = np.random.default_rng(3)
    tensors: dict[str, np.ndarray] = {"embed": rng.standard_t(6, (256, 64)).astype(np.float32)}
    for i in rng.permutation(MANY):
        shape = [(8, 16), (4, 4), (3,), (), (0, 5)][i % 5]
        tensors[f"layers.{i // 9}.experts.{i % 9}.w"] = np.zeros(shape, [np.float32, np.float16, np.int64][i % 3])
    tensors["head"] = tensors["embed"]
    wcodec.compress(tensors, path, progress=False)
    return path


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of the facts of single tensors that were fetched, and of the rows of tables that were made."""
    counts: Counter[str] = Counter()

    class Counted:
        def __init__(self, facts: _native.Facts) -> None:
            self.facts = facts

        def record(self, place: int) -> dict[str, Any]:
            counts["record"] += 1
            return self.facts.record(place)

        def planes(self, place: int) -> Any:
            return self.facts.planes(place)

        def segments(self, place: int) -> Any:
            counts["segments"] += 1
            return self.facts.segments(place)

    at = wcodec.TensorInfo._at.__func__  # type: ignore[attr-defined]

    def counted(cls: type, facts: _native.Facts, place: int, **known: Any) -> Any:
        return at(cls, Counted(facts), place, **known)

    monkeypatch.setattr(wcodec.TensorInfo, "_at", classmethod(counted))
    for module, name in ((tensor_info, "table_row"), (reports, "comparison_row")):
        row = getattr(module, name)
        monkeypatch.setattr(module, name, lambda t, row=row: (counts.update(row=1), row(t))[1])
    return counts


def test_only_what_is_shown_is_looked_at(many: Path, records: Counter[str]) -> None:
    with wcodec.open(many) as container:
        assert len(container) == MANY + 2 and "head" in container and "nope" not in container and 3 not in container
        assert container.ratio and container.elements and container.bits_per_weight and container.original_bytes
        assert list(container) and container.aliases == {"head": "embed"}
        stored = container.stored
        assert len(stored) == MANY + 1 and stored[0].name == "embed"
        assert records.total() == 0
        assert repr(container)
        # Those that it shows.
        assert records == {"record": 8, "row": 8}
        records.clear()
        html = container._repr_html_()
        assert html.count("<tr>") < _format.HTML_ROWS + 20 and "and 1,001 more" in html
        assert records["row"] == records["record"] == _format.HTML_ROWS and records["segments"] == 0
        records.clear()
        with pytest.raises(wcodec.TensorNotFoundError, match=r"did you mean 'layers\.3\.experts\.4\.w'\?"):
            container["layer.3.experts.4.w"]
        assert records.total() == 0
        assert container["head"].shape == (256, 64) and records == {"record": 1}
        comparison = wcodec.compare(container, container)
        records.clear()
        assert comparison.same and len(comparison.tensors) == MANY + 2 and records.total() == 0
        assert comparison._repr_html_() and records["row"] == _format.HTML_ROWS


def test_commands_look_at_no_tensor_in_python(
    many: Path, records: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["inspect", many], ["inspect", many, "--json", "--filter", ".7.w"], ["compare", many, many]):
        status, out, _ = call(capsys, *arguments)
        assert status == 0 and out
    assert records.total() == 0


def test_sums_are_those_of_the_tensors(many: Path) -> None:
    with wcodec.open(many) as container:
        stored = container.stored
        assert container.original_bytes == sum(t.original_bytes for t in stored)
        assert container.elements == sum(t.elements for t in stored) > 0
        assert container.ratio == container.original_bytes / many.stat().st_size


def natural(name: str) -> list[tuple[tuple[int, int, str], ...]]:
    """The order, path by path, as a key that Python's own comparison takes."""
    import re

    parts = (re.findall(r"[0-9]+|[^0-9]", part) for part in name.split("."))
    return [tuple((ord("0"), int(c), c) if c.isdigit() else (ord(c[0]), 0, c) for c in part) for part in parts]


KEYS: dict[str, Any] = {
    "name": lambda t: natural(t.name),
    "shape": lambda t: -t.elements,
    "coder": lambda t: t.coder,
    "original": lambda t: -t.original_bytes,
    "stored": lambda t: -t.stored_bytes,
    # A tensor that stores nothing counts as unchanged in size.
    "ratio": lambda t: 1.0 if t.ratio is None else t.ratio,
    "bits": lambda t: -(t.bits_per_weight or 0),
    "file": lambda t: 0,
}


@pytest.mark.parametrize("sort", KEYS)
def test_the_table_and_the_document_are_those_that_python_makes(
    sort: str, many: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with wcodec.open(many) as container:
        expected = sorted(container.stored, key=KEYS[sort])
        out = call(capsys, "inspect", many, "--sort", sort)[1].splitlines()
        out = out[out.index("") + 1 :]
        table = _format.text_table(TABLE_HEADINGS, map(table_row, expected), TABLE_LEFT)
        assert out[: MANY + 2] == table.splitlines()
        assert out[MANY + 2] == "head is tied to embed"
        found = document(call(capsys, "inspect", many, "--sort", sort, "--json")[1], "inspect")["tensors"]
        assert [list(t.items()) for t in found] == [list(t.to_dict().items()) for t in expected]


def test_documents_are_the_same_on_any_stream(many: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for pattern in ("", "layers.1.", "nothing"):
        arguments = ["inspect", str(many), "--json", "--filter", pattern]
        # One that has bytes beneath, and one that has only text.
        assert subprocess.run([sys.executable, "-m", "wcodec", *arguments], check=False).returncode == 0
        binary = capfdbinary.readouterr().out.decode()
        with contextlib.redirect_stdout(io.StringIO()) as text:
            assert main(arguments) == 0
        assert text.getvalue() == binary
        assert document(binary, "inspect")["tensors"] or pattern == "nothing"


def test_a_comparison_is_the_one_that_python_makes(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.wcodec"
    with wcodec.open(many) as container:
        chosen = {name: entry.numpy() for name, entry in container.items() if not name.startswith("layers.1")}
    chosen["embed"] = chosen["embed"] * 2
    wcodec.compress({**chosen, "more": np.ones(3)}, other, coder="zstd", progress=False)
    comparison = wcodec.compare(many, other)
    assert {t.status for t in comparison.tensors} == {"same", "differs", "only_a", "only_b"}
    status, out, _ = call(capsys, "compare", many, other, "--all")
    table = _format.text_table(COMPARISON_HEADINGS, map(comparison_row, comparison.tensors), left=2)
    details = [f"{t.name}: {t.detail}" for t in comparison.tensors if t.detail]
    lines = out.splitlines()
    assert status == 1 and lines[lines.index("") + 1 :] == [*table.splitlines(), *details, lines[-2], "different"]
    assert lines[-2].startswith("stored: ")
    found = document(call(capsys, "compare", many, other, "--json")[1], "compare")
    assert found["same"] is False and found["tensors"] == json.loads(json.dumps(comparison.to_dict()["tensors"]))


def test_what_is_fetched_late_is_as_if_it_were_there(many: Path) -> None:
    with wcodec.open(many) as container:
        entry, alias = container["embed"], container["head"]
        late, later = container.stored[0], container.stored[1]
    # Facts do not need the file.
    assert later.segments and later.dtype and later.ratio is not None or later.stored_bytes == 0
    assert (alias.name, alias.alias_of, late.alias_of) == ("head", "embed", None)
    info = dataclasses.replace(_plain(entry), name="embed")
    assert _plain(late) == info and hash(_plain(late)) == hash(info)
    comparison = wcodec.compare(many, many)
    first = comparison.tensors[0].a
    assert first is not None and first == info
    for twin in (copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(comparison)).tensors[0].a):
        assert twin == info and twin.to_dict() == info.to_dict()
    assert dataclasses.asdict(comparison.tensors[1].a)["segments"] == tuple(
        dataclasses.asdict(s)
        for s in comparison.tensors[1].a.segments  # type: ignore[union-attr]
    )
    with pytest.raises(AttributeError, match="no attribute 'wight'"):
        late.wight  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(wcodec.TensorInfo(**dataclasses.asdict(info)), "wight")


def _plain(entry: wcodec.TensorInfo) -> wcodec.TensorInfo:
    return wcodec.TensorInfo(**{f.name: getattr(entry, f.name) for f in dataclasses.fields(wcodec.TensorInfo)})


def test_suggestions_are_the_same_everywhere(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wcodec import _tui

    with wcodec.open(many) as container:
        for missing, near in (
            ("embde", "embed"), ("headd", "head"), ("layers.7.experts.3", "layers.7.experts.3.w"),
            ("layers.900.experts.3.w", "layers.90.experts.3.w"), ("experts.8.w", None), ("nothing like it", None),
        ):  # fmt: skip
            near = near or container._open.near(missing)
            with pytest.raises(wcodec.TensorNotFoundError) as caught:
                container[missing]
            assert caught.value.tensor == missing
            with pytest.raises(wcodec.InputError) as native:
                container._open.extract([missing])
            assert _tui.main([str(many), "--tensor", missing]) == 2
            told = [str(caught.value), str(native.value)]
            if near is None:
                assert all("did you mean" not in text for text in told)
            else:
                assert all(f"did you mean {near!r}?" in text for text in told)


def test_odd_names_are_sorted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from format_writer import write_container

    digits = "9" * 5000
    names = [f"h.{digits}.w", "h.10.w", "h.9.w", f"h.{digits[:-1]}8.w", "h.²", "h.٣", "h.09.w", "h", "h-1", "h.w"]
    write_container(tmp_path / "x.wcodec", [raw(name) for name in names])
    found = document(call(capsys, "inspect", tmp_path / "x.wcodec", "--json")[1], "inspect")["tensors"]
    order = [t["name"] for t in found]
    assert order[:4] == ["h", "h.9.w", "h.09.w", "h.10.w"]
    assert order[4:6] == [f"h.{digits[:-1]}8.w", f"h.{digits}.w"] and order[-1] == "h-1"
    out = call(capsys, "inspect", tmp_path / "x.wcodec", "--filter", r"h\.[0-9]+")[1]
    assert "5 tensors of 10 shown" in out
    lines = call(capsys, "inspect", tmp_path / "x.wcodec")[1].splitlines()
    plain = [line.split()[0] for line in lines[lines.index("") + 2 :][:10]]
    assert plain == order
