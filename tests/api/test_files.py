"""Files: compress, open, decode, verify, compare."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import wcodec
from wcodec._core.options import exactly


def test_checkpoint_round_trip(model: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "m.wcodec", tmp_path / "m.safetensors"
    report = wcodec.compress(model, out, progress=False)
    assert report.path == str(out) and report.stored_bytes == out.stat().st_size
    assert report.ratio is not None and report.ratio > 2
    assert report.bits_per_weight == 8 * report.stored_bytes / report.elements
    wcodec.decompress(out, back, progress=False)
    loaded = wcodec.load_file(out)
    with wcodec.open(out) as container:
        assert isinstance(container, Mapping) and list(container) == [t.name for t in report.tensors] == list(loaded)
        assert container.model is not None and container.model["config"]["num_hidden_layers"] == 4
        entry = container["model.layers.0.mlp.up_proj.weight"]
        assert (entry.shape, entry.dtype, entry.scheme, entry.scale, entry.coder) == (
            (512, 192), "BF16", "int8", "row", "huffman",
        )  # fmt: skip
        assert entry.original_bytes == 512 * 192 * 2
        assert entry.ratio == entry.original_bytes / entry.stored_bytes
        assert entry.stored_bytes == sum(s.length for s in entry.segments)
        assert container.ratio == report.ratio and container.bits_per_weight == report.bits_per_weight
        # The file, the entry and the loader agree.
        assert entry.numpy().tobytes() == loaded[entry.name].tobytes()
        header = int.from_bytes(back.read_bytes()[:8], "little")
        place = json.loads(back.read_bytes()[8 : 8 + header])[entry.name]["data_offsets"]
        data = back.read_bytes()[8 + header :][place[0] : place[1]]
        assert data == np.asarray(entry.numpy(), order="C").tobytes()


def test_aliases_of_functions() -> None:
    for former, name in (("encode_safetensors_to_wcodec", "compress"), ("load_wcodec_checkpoint", "load_file")):
        with pytest.warns(DeprecationWarning, match=f"wcodec.{former} is wcodec.{name} now"):
            assert getattr(wcodec, former) is getattr(wcodec, name)
        assert former not in dir(wcodec) and former not in wcodec.__all__
    assert wcodec.WCodecError is wcodec.WcodecError


def test_sharded_folder(tmp_path: Path, weights: dict[str, np.ndarray], write_safetensors) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    names = list(weights)
    shards = {"s-1.safetensors": names[:2], "s-2.safetensors": names[2:]}
    for shard, chosen in shards.items():
        write_safetensors(folder / shard, {n: weights[n] for n in chosen})
    index = {"weight_map": {n: shard for shard, chosen in shards.items() for n in chosen}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    out = tmp_path / "m.wcodec"
    wcodec.compress(folder, out, progress=False)
    assert wcodec.verify(out, against=weights, progress=False).ok
    assert set(wcodec.open(out)) == set(weights)
    (folder / "s-2.safetensors").unlink()
    with pytest.raises(wcodec.WcodecError, match=r"s-2\.safetensors.*missing"):
        wcodec.compress(folder, tmp_path / "n.wcodec", progress=False)
    assert set(os.listdir(tmp_path)) == {"model", "m.wcodec"}


@pytest.mark.parametrize("coder", ["rans", "huffman", "zstd", "raw"])
@pytest.mark.parametrize("layout", ["byte", "pair"])
def test_save_and_load(coder: str, layout: str, tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    path = tmp_path / "w.wcodec"
    report = wcodec.save_file(weights, path, {"made by": "test"}, coder=coder, layout=layout)
    assert {t.coder for t in report.tensors if t.scheme == "int8"} <= {coder, "raw"}
    assert wcodec.open(path).metadata == {"made by": "test"}
    loaded = wcodec.load_file(path)
    for name, array in weights.items():
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
    assert np.array_equal(loaded["ids"], weights["ids"])
    assert wcodec.verify(path, against=weights, progress=False)
    wcodec.save_file({"x": weights["ids"]}, path)
    assert list(wcodec.open(path)) == ["x"]


def test_scheme_raw_keeps_every_bit(weights: dict[str, np.ndarray]) -> None:
    weights["nan"] = np.array([np.nan, -0.0, np.inf], np.float32)
    for coder in ("zstd", "raw"):
        data, _ = wcodec.compress_to_bytes(weights, scheme="raw", coder=coder)
        container = wcodec.open(data)
        assert all(container[n].numpy().tobytes() == a.tobytes() for n, a in weights.items())


def test_include_exclude_skip_transpose(weights: dict[str, np.ndarray]) -> None:
    def schemes(**options: object) -> dict[str, str]:
        container = wcodec.open(wcodec.compress_to_bytes(weights, **options)[0])
        return {t.name: t.scheme for t in container.values() if t.name.endswith("weight")}

    assert schemes() == {"a.weight": "int8", "b.weight": "int8"}
    assert schemes(include="a.*") == {"a.weight": "int8", "b.weight": "raw"}
    assert schemes(exclude=["a.*"]) == {"a.weight": "raw", "b.weight": "int8"}
    assert schemes(skip="a.*") == {"b.weight": "int8"}
    turned = wcodec.open(wcodec.compress_to_bytes({"w": weights["a.weight"]}, transpose="w")[0])["w"]
    plain = wcodec.open(wcodec.compress_to_bytes({"w": weights["a.weight"].T})[0])["w"]
    assert turned.shape == (48, 320) and turned.row_axis == 1 and turned.scales().shape == (1, 320)
    assert np.array_equal(turned.symbols(), plain.symbols().T)
    assert np.array_equal(turned.numpy(), plain.numpy().T)
    assert np.array_equal(turned.numpy(), turned.symbols() * turned.scales())


def test_patterns_of_single_names() -> None:
    """A name's pattern matches it and no other, whatever it has in it."""
    for special in "*?[]{}\\!,-^/":
        names = (f"a{special}b", "ab", "axb", f"a{special}{special}b")
        tensors = {name: np.ones((8, 4), np.float32) for name in names}
        container = wcodec.open(wcodec.compress_to_bytes(tensors, transpose=exactly(names[0]))[0])
        assert [container[name].row_axis for name in names] == [1, 0, 0, 0], special


def test_scales_broadcast(rng: np.random.Generator) -> None:
    tensors = {
        "matrix": rng.standard_normal((6, 40)),
        "conv": rng.standard_normal((6, 4, 3, 3)),
        "conv1d": rng.standard_normal((6, 4, 3)),
        "experts": rng.standard_normal((3, 5, 128)),
    }
    tensors = {n: a.astype(np.float32) for n, a in tensors.items()}
    for scale in ("row", "tensor"):
        container = wcodec.open(wcodec.compress_to_bytes(tensors, scale=scale)[0])
        for entry in container.values():
            assert entry.scheme == "int8" and entry.scales().ndim == len(entry.shape)
            assert np.array_equal(entry.symbols() * entry.scales(), entry.numpy())
    blocks = wcodec.open(wcodec.compress_to_bytes(tensors, scale="block", block=16)[0])
    assert blocks["matrix"].scales().shape == (6, 3)
    assert blocks["experts"].scales().shape == (3, 5, 8)
    assert blocks["matrix"].scale == "block 16"


def test_tied_arrays_stay_tied(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    tied = {"embed": weights["a.weight"], "other": weights["a.weight"].copy(), "head": weights["a.weight"]}
    path = tmp_path / "t.wcodec"
    report = wcodec.save_file(tied, path)
    assert report.aliases == {"head": "embed"} and len(report.tensors) == 2
    container = wcodec.open(path)
    assert set(container) == set(tied) and container.aliases == {"head": "embed"}
    assert container["head"].alias_of == "embed" and container["head"].name == "head"
    assert np.array_equal(container["head"].numpy(), container["embed"].numpy())
    loaded = wcodec.load_file(path)
    assert loaded["head"] is loaded["embed"] and loaded["other"] is not loaded["embed"]
    assert wcodec.verify(path, against=tied, progress=False)


def test_mapping_that_makes_arrays_on_demand_is_not_tied() -> None:
    class OnDemand(Mapping[str, np.ndarray]):
        def __getitem__(self, name: str) -> np.ndarray:
            return np.full((32, 64), float(name), np.float32)

        def __iter__(self):
            return iter("1234")

        def __len__(self) -> int:
            return 4

    container = wcodec.open(wcodec.compress_to_bytes(OnDemand())[0])
    assert not container.aliases
    assert [float(container[n].numpy()[0, 0]) for n in "1234"] == [1, 2, 3, 4]


def test_container_is_a_source(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    first = wcodec.open(wcodec.compress_to_bytes({**weights, "tied": weights["a.weight"]}, metadata={"k": "v"})[0])
    path = tmp_path / "again.wcodec"
    wcodec.compress(first, path, coder="huffman", progress=False)
    second = wcodec.open(path)
    assert second.aliases == {"tied": "a.weight"} and second.metadata == {"k": "v"}
    assert second["a.weight"].coder == "huffman"
    assert second["ids"].numpy().tolist() == weights["ids"].tolist()


def test_container_mapping(weights: dict[str, np.ndarray]) -> None:
    container = wcodec.open(wcodec.compress_to_bytes(weights, optimize="size")[0])
    assert len(container) == len(weights) and "ids" in container and "nope" not in container and 3 not in container
    assert container.get("nope") is None
    with pytest.raises(KeyError, match="did you mean 'a.weight'") as caught:
        container["a.weigth"]
    assert isinstance(caught.value, wcodec.InputError)
    assert container.path is None and container.version == (1, 0) and "wcodec" in container.writer
    array = container["ids"].numpy()
    container.close()
    assert "closed" in repr(container) and "closed" in container._repr_html_()
    with pytest.raises(wcodec.InputError, match="closed"):
        container["ids"]
    assert array.tolist() == list(range(7)) and array.flags.writeable


def test_numpy_dtypes(weights: dict[str, np.ndarray]) -> None:
    container = wcodec.open(wcodec.compress_to_bytes(weights)[0])
    entry = container["b.weight"]
    exact = entry.symbols().astype(np.float32) * entry.scales()
    assert np.array_equal(entry.numpy(np.float32), exact) and entry.numpy("float32").dtype == np.float32
    assert np.array_equal(entry.numpy(), exact.astype(np.float16))
    assert container["b.bias"].numpy(np.float32).dtype == np.float32
    with pytest.raises(wcodec.InputError, match="I64"):
        container["ids"].numpy(np.float32)
    with pytest.raises(wcodec.InputError, match="float64"):
        entry.numpy(np.float64)
    with pytest.raises(wcodec.WcodecError, match="ids"):
        container["ids"].scales()


def test_verify_finds_differences(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "w.wcodec"
    wcodec.save_file(weights, path)
    report = wcodec.verify(path, against=weights, progress=False)
    assert report and report.ok and not report.problems and not report.damage
    largest = max(t.max_error for t in report.tensors if t.max_error is not None)
    assert 0 < largest < 1
    changed = {**weights, "a.weight": weights["a.weight"] + 1, "new": weights["ids"]}
    del changed["ids"]
    report = wcodec.verify(path, against=changed, progress=False)
    assert not report and {t.name: t.status for t in report.problems} == {
        "a.weight": "differs", "ids": "extra", "new": "missing",
    }  # fmt: skip


def test_verify_finds_damage(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "w.wcodec"
    wcodec.save_file(weights, path)
    segment = next(s for s in wcodec.open(path)["a.weight"].segments if s.role == "data")
    data = bytearray(path.read_bytes())
    data[segment.offset + segment.length // 2] ^= 0x10
    path.write_bytes(data)
    report = wcodec.verify(path, progress=False)
    assert [(t.name, t.status) for t in report.problems] == [("a.weight", "damaged")]
    container = wcodec.open(path)
    with pytest.raises(wcodec.CorruptError) as caught:
        container["a.weight"].numpy()
    assert caught.value.tensor == "a.weight" and caught.value.file == str(path)
    assert container["b.weight"].numpy().shape == (33, 100)


def test_compare(weights: dict[str, np.ndarray]) -> None:
    a, b = (wcodec.open(wcodec.compress_to_bytes(weights, coder=c)[0]) for c in ("rans", "huffman"))
    assert wcodec.compare(a, b) and wcodec.compare(a, b).same
    c = wcodec.open(wcodec.compress_to_bytes({**weights, "x": weights["b.bias"].copy()}, scale="tensor", skip="ids")[0])
    found = {t.name: t.status for t in wcodec.compare(a, c).tensors}
    assert found["a.weight"] == "differs" and found["ids"] == "only_a" and found["x"] == "only_b"
    assert not wcodec.compare(a, c)


def test_reports_display(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    tensors = {**weights, "<b>&": np.zeros((2, 2), np.float32), "tied": weights["ids"]}
    path = tmp_path / "w.wcodec"
    report = wcodec.save_file(tensors, path)
    container = wcodec.open(path)
    shown = [report, container, container["tied"], container["a.weight"], wcodec.verify(path, progress=False)]
    shown += [wcodec.compare(container, container)]
    for value in shown:
        page = value._repr_html_()
        # A container has tables; all others one line.
        assert ("\n" in repr(value)) == (value is container) and repr(value).startswith(type(value).__name__)
        # Notebooks have light and dark themes: text has no colours of our own. And names are text, not markup.
        assert "color:#" not in page and "background" not in page and "<b>&" not in page
    assert "&lt;b&gt;&amp;" in report._repr_html_()
    for value in (report, shown[4], shown[5]):
        json.dumps(value.to_dict())


def test_many_tensors_fold(tmp_path: Path) -> None:
    container = wcodec.open(wcodec.compress_to_bytes({f"t{i}": np.zeros(1, np.int8) for i in range(300)})[0])
    assert "and 100 more" in container._repr_html_()


def test_reports_pickle(weights: dict[str, np.ndarray]) -> None:
    report = wcodec.compress_to_bytes(weights)[1]
    assert pickle.loads(pickle.dumps(report)) == report


def test_instruction_sets() -> None:
    known, best = wcodec.instruction_sets()
    assert "scalar" in known and best in known


def test_decoded_files_are_safetensors(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    source = tmp_path / "m.safetensors"
    safetensors.save_file(weights, source, metadata={"format": "np"})
    wcodec.compress(source, tmp_path / "m.wcodec", progress=False)
    assert wcodec.open(tmp_path / "m.wcodec").metadata == {"format": "np"}
    wcodec.decompress(tmp_path / "m.wcodec", tmp_path / "back.safetensors", progress=False)
    loaded, expected = safetensors.load_file(tmp_path / "back.safetensors"), wcodec.load_file(tmp_path / "m.wcodec")
    assert set(loaded) == set(weights)
    assert all(np.array_equal(loaded[n], expected[n]) and loaded[n].dtype == a.dtype for n, a in weights.items())


def test_torch_loader(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    weight = np.linspace(-1, 1, 4096, dtype=np.float32).reshape(16, 256)
    wcodec.save_file({"w": weight, "tied": weight}, tmp_path / "m.wcodec")
    loaded = wcodec.load_file(tmp_path / "m.wcodec", "torch", dtype="bfloat16")
    assert str(loaded["w"].dtype) == "torch.bfloat16" and loaded["tied"] is loaded["w"]
