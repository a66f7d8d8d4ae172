"""Decoded weights that stay on a CPU by themselves, as far as there is memory."""

from __future__ import annotations

import copy
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import wcodec  # noqa: E402
from wcodec._measure.advice import advice  # noqa: E402
from wcodec.nn._weights import budget  # noqa: E402
from wcodec.nn._weights.placement import checked_settings  # noqa: E402

MB = 1_000_000


def model(**options: Any) -> Any:
    torch.manual_seed(4)
    layers = [nn.Linear(256, 256) for _ in range(4)]
    found = nn.Sequential(*layers)
    for layer in layers:
        # Not uniform: of such weights int8 has nothing to code.
        nn.init.normal_(layer.weight, std=0.05)
    wcodec.compress_(found, progress=False, **options)
    return found


def kept(found: Any) -> int:
    return int(found[0]._store.cached_bytes(torch.device("cpu")))


def memory(monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    monkeypatch.setattr(budget, "host_memory", lambda: (free, free))


X = torch.linspace(-1, 1, 256).expand(2, -1)
WHOLE = 4 * 256 * 256 * 4


def test_weights_stay_decoded_and_give_the_same_bits() -> None:
    plain, found = model(cache=0), model()
    for _ in range(2):
        assert torch.equal(found(X), plain(X))
    assert kept(found) == WHOLE and kept(plain) == 0
    assert all(layer.cached for layer in found) and not any(layer.cached for layer in plain)
    assert {p.name: p.bytes for p in wcodec.measure_vram(found).parts}["decoded-layer cache"] == WHOLE
    assert torch.equal(model(cache="auto")(X), plain(X))


def test_a_fifth_of_what_is_free_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = model(cache=0)
    for free, layers in ((WHOLE * 10, 4), (WHOLE * 5 // 4, 4), (WHOLE, 3), (WHOLE // 2, 1), (1000, 0), (None, 0)):
        memory(monkeypatch, free)
        found = model()
        # As long as nothing is taken of it, all that there was room for is kept.
        assert torch.equal(found(X), plain(X)), free
        assert sum(layer.cached for layer in found) == layers and kept(found) == layers * WHOLE // 4


def test_where_memory_becomes_short_no_more_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, WHOLE * 10)
    plain, found = model(cache=0), model()
    found[0](X)
    assert kept(found) == WHOLE // 4
    memory(monkeypatch, WHOLE)
    for _ in range(3):
        assert torch.equal(found(X), plain(X))
    assert kept(found) <= WHOLE // 4 and sum(layer.cached for layer in found) <= 1


def test_who_wants_little_memory_has_nothing_kept(tmp_path: Path) -> None:
    for settings in ({"cache": 0}, {"cache": "0"}, {"residency": "auto", "ram_budget": "1GB"}):
        found = model(**settings)
        found(X)
        assert kept(found) == 0, settings
    assert model(residency="auto")[0]._store.caches(torch.device("cpu"))
    assert not model()[0]._store.caches(torch.device("cuda"))
    assert checked_settings(cache="auto")["cache"] is None and checked_settings(cache=0)["cache"] == 0
    with pytest.raises(wcodec.InputError, match="cache must be a size"):
        checked_settings(cache="all")


def test_disk_keeps_nothing_unless_told(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    wcodec.compress(model, f"{tmp_path / 'small'}/", progress=False)
    ids = torch.arange(1, 9)[None]
    for cache, some in ((None, False), ("1MB", True)):
        found = wcodec.load_model(tmp_path / "small", residency="disk", cache=cache)
        found(ids)
        layers = [m for m in found.modules() if isinstance(m, wcodec.nn.CompressedLinear)]
        assert any(layer.cached for layer in layers) == some


def test_a_tied_head_is_kept_and_its_rows_are_looked_up_there(model: Path) -> None:
    pytest.importorskip("transformers")
    plain, found = (wcodec.load_model(model, cache=cache) for cache in (0, None))
    ids = torch.tensor([[5, 4095, 0, 7]])
    for _ in range(2):
        assert torch.equal(found(ids).logits, plain(ids).logits)
    assert found.lm_head.cached and found.model.embed_tokens.cached == (
        found.lm_head._store.entry(found.lm_head.tensor).name == found.model.embed_tokens.entry.name
    )
    with pytest.raises(wcodec.InputError, match="row 4096 is looked up"):
        found.model.embed_tokens(torch.tensor([4096]))


def test_it_goes_with_the_model() -> None:
    found = model()
    found(X)
    weight = weakref.ref(found[0]._weights.provider[0].weights()[0])
    store = weakref.ref(found[0]._store)
    assert weight() is not None
    del found
    # At once, and not when circles are looked for: many models may be measured one after the other.
    assert store() is None and weight() is None


def test_copies_keep_the_setting_and_no_weights() -> None:
    found = model()
    wanted = found(X)
    clone = pickle.loads(pickle.dumps(found))
    assert clone[0]._store.settings["cache"] is None and kept(clone) == 0
    assert torch.equal(clone(X), wanted) and kept(clone) == WHOLE
    assert torch.equal(copy.deepcopy(found)(X), wanted)


def test_settings_are_saved(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name, given in (("none", None), ("zero", 0), ("some", "3MB")):
        wcodec.save_pretrained(wcodec.load_model(model, cache=given), tmp_path / name)
        loaded = wcodec.load_model(tmp_path / name)
        assert loaded.lm_head._store.settings["cache"] == {None: None, 0: 0, "3MB": 3 * MB}[given]
    loaded = wcodec.load_model(tmp_path / "some", cache="auto")
    assert loaded.lm_head._store.settings["cache"] in (None, 3 * MB)


def test_one_line_says_what_would_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = model(cache=0), model()
    slow(X), fast(X)
    assert advice(fast) is None and advice(nn.Linear(3, 3)) is None
    said = advice(slow)
    assert said is not None and "--cache auto" in said and "1.00 MiB" in said
    memory(monkeypatch, 1000)
    short = model()
    short(X)
    said = advice(short)
    assert said is not None and "memory is short" in said


@pytest.mark.parametrize("high", [None, 4000])
def test_the_high_mark_of_a_control_group_counts(high: int | None, tmp_path: Path) -> None:
    group = tmp_path / "root" / "a"
    group.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/a\n")
    (group / "memory.max").write_text("9000\n")
    (group / "memory.high").write_text("max\n" if high is None else f"{high}\n")
    (group / "memory.current").write_text("3000\n")
    assert budget._group_memory(tmp_path / "root", tmp_path / "cgroup") == (high or 9000, 3000)
