"""Decoding on a GPU into torch tensors: bit for bit what the CPU decodes.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import doc_examples
import gpu_helpers
import numpy as np
import pytest
import wcodec
from gpu_helpers import NO_NVCOMP, same, torch
from wcodec import cli
from wcodec._file import load

# pytest looks for fixtures in the module.
gpu, coder = gpu_helpers.gpu, gpu_helpers.coder


def symbols_of(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.clip(np.rint(rng.standard_t(6, shape) * 22), -127, 127).astype(np.int8)


def sample(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Matrices, stacks of them, odd shapes, tied ones, and what is stored as it is."""
    weight = rng.standard_t(6, (96, 320)).astype(np.float32)
    return {
        "embed": weight,
        "odd": rng.standard_t(6, (83, 1041)).astype(np.float16),
        "wide": rng.standard_t(6, (3, 5000)).astype(np.float32),
        "turned": rng.standard_t(6, (200, 65)).astype(np.float32),
        "stack": rng.standard_t(6, (5, 31, 128)).astype(np.float32),
        "conv": rng.standard_t(6, (24, 6, 3, 3)).astype(np.float32),
        "kernels": rng.standard_t(6, (501, 3, 21)).astype(np.float32),
        "one": np.full((1, 1), -0.75, np.float32),
        "zeros": np.zeros((40, 64), np.float16),
        "empty": np.zeros((0, 12), np.float32),
        "norm": rng.standard_normal(320).astype(np.float16),
        "scalar": np.array(2.5, np.float32),
        "ids": np.arange(1000, dtype=np.int64),
        "mask": rng.integers(0, 2, 33).astype(bool),
        "bytes": symbols_of(rng, (50, 70)),
        "head": weight,
    }


def save(path: Path, rng: np.random.Generator, **options: Any) -> Path:
    wcodec.save_file(sample(rng), path, transpose="turned", exclude="norm", **options)
    return path


@pytest.fixture
def path(coder: str, tmp_path: Path, rng: np.random.Generator) -> Path:
    return save(tmp_path / f"{coder}.wcodec", rng, coder=coder)


def dtypes_of(entry: wcodec.TensorEntry) -> list[Any]:
    own = [entry.torch().dtype]
    return [torch.float32, torch.float16, torch.bfloat16, torch.int8] if entry.scheme == "int8" else own


@pytest.mark.parametrize("scale", ["row", "tensor", "block"])
@pytest.mark.parametrize("layout", ["pair", "byte"])
@pytest.mark.parametrize("dtype", [None, "float32", torch.bfloat16, torch.float16])
def test_load_file(coder: str, layout: str, scale: str, dtype: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng, coder=coder, layout=layout, scale=scale)
    loaded, expected = wcodec.load_file(path, device="cuda", dtype=dtype), wcodec.load_file(path, "torch", dtype=dtype)
    assert list(loaded) == list(expected)
    for name, tensor in expected.items():
        assert same(loaded[name], tensor), name
    assert loaded["head"] is loaded["embed"]


def test_load_file_in_groups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = wcodec.load_file(path, "torch")
    monkeypatch.setattr(load, "GROUP_BYTES", 20_000)
    seen: list[tuple[str, int, int]] = []
    loaded = wcodec.load_file(path, device=torch.device("cuda", 0), progress=lambda *a: seen.append(a))
    assert all(same(loaded[n], t) for n, t in expected.items())
    assert seen[-1][1] == seen[-1][2] and len(seen) == len(expected) - 1


def test_a_real_model(model: Path, coder: str, tmp_path: Path) -> None:
    path = tmp_path / "m.wcodec"
    wcodec.compress(model, path, coder=coder, progress=False)
    expected = wcodec.load_file(path, "torch")
    assert all(same(t, expected[n]) for n, t in wcodec.load_file(path, device="cuda:0").items())


def test_decoder(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    assert set(decoder.names) == set(container) and decoder.device == torch.device("cuda", 0)
    assert decoder.device_bytes > 0 and "cuda:0" in repr(decoder)
    for name, entry in container.items():
        for dtype in dtypes_of(entry):
            expected = entry.torch(dtype)
            for _ in range(2):
                assert same(decoder.decode(name, dtype), expected), (name, dtype)
            out = torch.full(entry.shape, 77, dtype=dtype, device="cuda")
            place = out.data_ptr()
            assert decoder.decode(name, out=out) is out and out.data_ptr() == place and same(out, expected)
    decoder.check()


def test_batches(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    for round in range(4):
        outs = {}
        for name, entry in container.items():
            kinds = dtypes_of(entry)
            outs[name] = torch.full(entry.shape, 55, dtype=kinds[round % len(kinds)], device="cuda")
        decoder.decode_batch(outs)
        decoder.check()
        assert all(same(out, container[n].torch(out.dtype)) for n, out in outs.items())


def test_lookups(path: Path, coder: str, rng: np.random.Generator) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    found = []
    for name, entry in container.items():
        why = decoder.can_look_up(name)
        if why is not None:
            with pytest.raises(wcodec.InputError, match="no kernel gathers rows of it"):
                decoder.lookup(name)
            continue
        found.append(name)
        rows = entry.shape[0]
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            lookup, whole = decoder.lookup(name, dtype), entry.torch(dtype)
            for shape in ((), (1,), (7, 11), (0, 3)):
                ids = torch.from_numpy(rng.integers(-2, rows + 2, shape))
                there = (ids >= 0) & (ids < rows)
                wanted = torch.full((*shape, entry.shape[1]), float("nan"), dtype=dtype)
                wanted[there] = whole[ids[there]]
                for numbers in (ids, ids.int(), ids.t() if ids.dim() == 2 else ids):
                    # Memory of torch, which was full of something else, is what the results get.
                    torch.full((*shape, entry.shape[1]), 77, dtype=dtype, device="cuda")
                    rows_found = lookup(numbers.cuda()).cpu()
                    turned = wanted.transpose(0, 1) if numbers.shape != ids.shape else wanted
                    assert torch.equal(rows_found.nan_to_num(nan=99), turned.nan_to_num(nan=99)), (name, dtype)
    assert ("embed" in found) == ("odd" in found) == (coder in ("rans", "huffman"))
    decoder.check()
    assert all(decoder.can_look_up(name) is not None for name in ("turned", "stack", "kernels"))
    if found:
        lookup = decoder.lookup("embed")
        assert "embed" in repr(lookup) and lookup(torch.tensor([5], device="cuda")).dtype == torch.float32
        for wrong in (torch.tensor([5]), torch.tensor([5.0], device="cuda"), torch.tensor([5], device="cuda").short()):
            with pytest.raises(wcodec.InputError, match="numbers of rows are int64 or int32 on cuda"):
                lookup(wrong)
        with pytest.raises(wcodec.InputError):
            decoder.lookup("embed", torch.int8)
    with pytest.raises(wcodec.TensorNotFoundError):
        decoder.lookup("nobody")


@pytest.mark.parametrize("kind", [wcodec.GpuDecoder, wcodec.HostDecoder])
def test_runs_of_rows(kind: Any, path: Path, rng: np.random.Generator) -> None:
    container, decoder = wcodec.open(path), kind(path)
    for name in ("embed", "odd", "stack", "conv", "bytes"):
        entry = container[name]
        whole, step = entry.torch(), entry.cut
        if not step:
            continue
        edges = [*range(0, entry.shape[0], step), entry.shape[0]]
        pairs = [sorted(rng.integers(0, len(edges), 2)) for _ in range(70)]
        runs = [(edges[begin], edges[end]) for begin, end in pairs]
        wanted = torch.cat([whole[begin:end] for begin, end in runs])
        # Memory of torch, which was full of something else, is what the results get.
        torch.full(wanted.shape, 77, dtype=wanted.dtype, device="cuda")
        assert same(decoder.decode_rows(name, runs), wanted), name
        assert decoder.decode_rows(name, []).shape == (0, *entry.shape[1:])
        decoder.check()
    assert same(
        decoder.decode_rows("embed", [(16, 32)], torch.bfloat16), container["embed"].torch(torch.bfloat16)[16:32]
    )
    for wrong in ([(0, 16), (32, 16)], [(-16, 16)], [(0, 97)], [(0, 16), (8, 16)]):
        with pytest.raises(wcodec.InputError, match="tensor 'embed'.*rows"):
            decoder.decode_rows("embed", wrong)
    with pytest.raises(wcodec.InputError, match="tensor 'turned'"):
        decoder.decode_rows("turned", [(0, 16)])
    with pytest.raises(wcodec.TensorNotFoundError):
        decoder.decode_rows("nobody", [(0, 16)])


def test_views_of_larger_tensors_keep_their_neighbours(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    for name in ("embed", "odd", "turned", "stack", "bytes", "ids"):
        entry = container[name]
        for dtype in dtypes_of(entry):
            for before in (0, 1, 3, 16):
                whole = torch.full((before + entry.elements + 33,), 99, dtype=dtype, device="cuda")
                decoder.decode(name, out=whole[before : before + entry.elements].view(entry.shape))
                assert same(whole[before : before + entry.elements].view(entry.shape), entry.torch(dtype))
                rest = torch.cat([whole[:before], whole[before + entry.elements :]])
                assert (rest == 99).all(), (name, dtype, before)
    decoder.check()


def test_entries(path: Path) -> None:
    container = wcodec.open(path)
    for entry in container.values():
        for dtype in dtypes_of(entry):
            assert same(entry.torch(dtype, device="cuda"), entry.torch(dtype))
            out = torch.full(entry.shape, 33, dtype=dtype, device="cuda")
            entry.decode_into(out)
            assert same(out, entry.torch(dtype))
    norm = torch.zeros(320, dtype=torch.bfloat16, device="cuda")
    container["norm"].decode_into(norm)
    assert same(norm, container["norm"].torch(torch.bfloat16))


@pytest.mark.parametrize("layout", ["pair", "byte"])
@pytest.mark.parametrize("shape", [(64, 512), (1, 1), (15, 64), (16, 64), (17, 65), (0, 8), (8, 0), (3, 20_000)])
def test_layers(coder: str, layout: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    symbols = symbols_of(rng, shape)
    data, _ = wcodec.Encoder(coder, layout=layout).encode_layer(symbols)
    layer, stats = wcodec.Decoder(device="cuda").decode_layer(data, *shape)
    assert same(layer, torch.from_numpy(symbols)) and stats.stored_bytes == len(data)


def test_the_current_stream_is_used(path: Path) -> None:
    decoder, expected = wcodec.GpuDecoder(path), wcodec.open(path)["odd"].torch()
    stream = torch.cuda.Stream()
    out = torch.zeros(expected.shape, dtype=expected.dtype, device="cuda")
    # Kernels are loaded by their first use, which takes time.
    decoder.decode("odd", out=out.fill_(1)).clone()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        out.fill_(7)
        # Anywhere else than behind the fill it would be overwritten.
        decoder.decode("odd", out=out)
        copy = out.clone()
        assert not stream.query()
        decoder.check()
        assert stream.query()
        assert same(wcodec.open(path)["odd"].torch(device="cuda"), expected)
    assert same(out, expected) and same(copy, expected)


def test_streams_take_turns(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    outs = []
    for i in range(60):
        name = ("odd", "stack", "embed", "wide")[i % 3]
        with torch.cuda.stream(streams[i % 4]):
            outs.append((name, decoder.decode(name)))
    torch.cuda.synchronize()
    assert all(same(out, container[name].torch()) for name, out in outs)
    decoder.check()


def test_memory_is_not_reused_too_early(path: Path) -> None:
    decoder, stream = wcodec.GpuDecoder(path), torch.cuda.Stream()
    shape = decoder.info("odd").shape
    for _ in range(20):
        out = torch.empty(shape, dtype=torch.float16, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(5_000_000)
            decoder.decode("odd", out=out)
        del out
        # Would be the same memory, if torch did not know that the other stream is not done with it.
        other = torch.zeros(shape, dtype=torch.float16, device="cuda")
        torch.cuda.synchronize()
        assert not other.any()


def test_cuda_graph(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    names = ("embed", "odd", "turned", "stack", "norm", "bytes")
    outs = {n: torch.zeros(container[n].shape, dtype=dtypes_of(container[n])[-1], device="cuda") for n in names}
    floats = torch.zeros(container["odd"].shape, dtype=torch.bfloat16, device="cuda")
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        decoder.decode_batch(outs)
        decoder.decode("odd", out=floats)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for name, out in outs.items():
            decoder.decode(name, out=out)
        decoder.decode("odd", out=floats)
        inside = decoder.decode("stack", torch.float16)
    for _ in range(3):
        for tensor in (*outs.values(), floats, inside):
            tensor.zero_()
        graph.replay()
        decoder.check()
        assert all(same(out, container[n].torch(out.dtype)) for n, out in outs.items())
        assert same(floats, container["odd"].torch(torch.bfloat16))
        assert same(inside, container["stack"].torch(torch.float16))


def test_nothing_is_allocated_while_decoding(path: Path) -> None:
    decoder = wcodec.GpuDecoder(path)
    out = torch.zeros(decoder.info("odd").shape, dtype=torch.bfloat16, device="cuda")
    decoder.decode("odd", out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]
    for _ in range(50):
        decoder.decode("odd", out=out)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.mem_get_info()[0]) == before


def test_memory_is_given_back(path: Path) -> None:
    torch.cuda.synchronize()
    wcodec.load_file(path, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        wcodec.load_file(path, device="cuda")
        decoder = wcodec.GpuDecoder(path)
        decoder.decode("odd")
        del decoder
    gc.collect()
    torch.cuda.empty_cache()
    # Some of the driver's own may stay.
    assert before - torch.cuda.mem_get_info()[0] < 32 << 20


def test_a_decoder_can_be_dropped_before_its_work_is_done(path: Path) -> None:
    expected = wcodec.open(path)["odd"].torch()
    for _ in range(5):
        decoder = wcodec.GpuDecoder(path, ["odd"])
        torch.cuda._sleep(20_000_000)
        out = decoder.decode("odd")
        del decoder
        assert same(out, expected)


def damage(path: Path, name: str, how: int) -> None:
    segment = next(s for s in wcodec.open(path)[name].segments if s.role == "data")
    data = bytearray(path.read_bytes())
    for i in range(segment.offset, segment.offset + segment.length, how):
        data[i] ^= 0x5A
    path.write_bytes(data)


def test_damaged_files(path: Path) -> None:
    good = wcodec.open(path)["embed"].torch()
    damage(path, "odd", 1000)
    calls = [
        lambda: wcodec.load_file(path, device="cuda"),
        lambda: wcodec.GpuDecoder(path),
        lambda: wcodec.open(path)["odd"].torch(device="cuda"),
        lambda: wcodec.open(path)["odd"].decode_into(torch.zeros(83, 1041, dtype=torch.float16, device="cuda")),
    ]
    for call in calls:
        with pytest.raises(wcodec.CorruptError) as caught:
            call()
        assert caught.value.tensor == "odd" and caught.value.file == str(path)
    assert same(wcodec.open(path)["embed"].torch(device="cuda"), good)
    assert same(wcodec.GpuDecoder(path, ["embed"]).decode("embed"), good)


@pytest.mark.parametrize("coder", ["rans", "huffman"], indirect=True)
@pytest.mark.parametrize("how", [1, 7, 1000])
def test_damage_that_only_the_kernels_see(path: Path, how: int) -> None:
    good = wcodec.open(path)["embed"].torch()
    damage(path, "odd", how)
    decoder = wcodec.GpuDecoder(path, check=False)
    decoder.decode("odd")
    try:
        decoder.check()
    except wcodec.CorruptError as error:
        assert error.tensor == "odd" and error.file == str(path)
    assert same(decoder.decode("embed"), good)
    # Damage is reported once.
    decoder.check()


def test_outputs_that_do_not_fit_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    decoder = wcodec.GpuDecoder(path)
    for out, said in (
        (torch.zeros(96, 320), "on cpu"),
        (torch.zeros(96, 321, device="cuda"), "shape"),
        (torch.zeros(320, 96, device="cuda").T, "contiguous"),
        (torch.zeros(96, 320, dtype=torch.float64, device="cuda"), "F64"),
    ):
        with pytest.raises(wcodec.InputError, match=said):
            decoder.decode("embed", out=out)
    with pytest.raises(wcodec.InputError, match="no GPU 99"):
        wcodec.GpuDecoder(path, device="cuda:99")
    with pytest.raises(wcodec.InputError, match="no GPU 99"):
        wcodec.verify(path, device="cuda:99", progress=False)
    decoder.check()


# Not a skip: test-gpu demands that nothing is skipped, and one GPU is enough for it.
if torch.cuda.device_count() > 1:

    def test_several_gpus(path: Path) -> None:
        expected = wcodec.load_file(path, "torch")
        assert all(same(t, expected[n]) for n, t in wcodec.load_file(path, device="cuda:1").items())
        decoder = wcodec.GpuDecoder(path, device="cuda:1")
        with pytest.raises(wcodec.InputError, match="on cuda:0"):
            decoder.decode("embed", out=torch.zeros(96, 320, device="cuda:0"))
        assert decoder.decode("embed").device.index == 1 and torch.cuda.current_device() == 0
        with torch.cuda.device(1):
            assert wcodec.open(path)["embed"].torch(device="cuda").device.index == 1


@pytest.mark.parametrize("page", doc_examples.pages_that_need_a_gpu(), ids=doc_examples.name_of)
def test_examples_of_the_documentation(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doc_examples.run(page, tmp_path, monkeypatch, gpu=True)


def test_verify(path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    report = wcodec.verify(path, device="cuda", progress=lambda name, done, total: seen.append(name))
    assert report.ok and report.device == "cuda:0" and len(report.tensors) == len(wcodec.open(path).stored)
    assert set(seen) == {t.name for t in report.tensors}
    assert cli.main(["verify", str(path), "--device", "cuda:0"]) == 0
    assert "cuda:0 and CPU give the same" in capsys.readouterr().out
    damage(path, "odd", 1000)
    assert cli.main(["verify", str(path), "--device", "cuda", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [t["name"] for t in found["tensors"] if t["status"] != "ok"] == ["odd"]


def test_verify_needs_no_torch(path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import wcodec; assert wcodec.verify(sys.argv[1], device='cuda', progress=False).ok"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_doctor() -> None:
    report = wcodec.doctor()
    failed = {c.name: c.detail for c in report.checks if not c.ok}
    if NO_NVCOMP:
        assert all("zstd" in name for name in failed)
    else:
        assert report.gpu and not failed
    assert report.torch["problem"] is None and report.devices[0]["problem"] is None


def test_nvcomp_that_is_missing_is_said(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng, coder="zstd")
    with pytest.raises(wcodec.DeviceError, match="nvCOMP"):
        wcodec.GpuDecoder(path, nvcomp=tmp_path)
    # Only those who need it notice.
    wcodec.GpuDecoder(save(tmp_path / "n.wcodec", rng), nvcomp=tmp_path)


def test_the_speed_of_each_layer(path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    with wcodec.open(path) as container:
        ax = container.plot.heatmap("speed", device="cuda")
        written = [float(text.get_text()) for text in ax.texts]
    assert len(written) == len(ax.patches) > 5 and min(written) > 0
