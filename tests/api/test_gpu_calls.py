"""The Python half of decoding on a GPU, on machines without one.

The native decoder is replaced by one that writes to the addresses that it gets, as the real one does, but on the CPU.
What the real one does is in ``tests/gpu/test_torch.py``.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec import _native
from wcodec._core.options import decode_options
from wcodec._file import load
from wcodec._gpu import devices
from wcodec._gpu import torch as _torch

torch = pytest.importorskip("torch")

STREAM = 0x5EED


class Native:
    """A stand-in for the native decoder; keeps what it was asked for."""

    made: list[Native] = []
    failures: list[Exception] = []
    most = {"head": 64}

    def __init__(
        self,
        container: Any,
        names: list[str],
        ordinal: int,
        options: dict[str, Any],
        on_host: set[str],
        on_disk: set[str],
    ) -> None:
        if Native.failures:
            raise Native.failures.pop()
        for name in names:
            container.read(name, None, decode_options(check=options["verify"]))
        self.container, self.listed, self.options, self.on_host = container, names, options, on_host
        self.on_disk = on_disk
        self.calls: list[list[tuple[str, int, str, tuple[int, int] | None]]] = []
        self.checks = 0
        Native.made.append(self)

    def prepare(self, targets: list[tuple[str, int, str, tuple[int, int] | None]]) -> NativeBatch:
        return NativeBatch(self, targets)

    def decode(self, targets: list[tuple[str, int, str, tuple[int, int] | None]], stream: int) -> None:
        assert stream == STREAM
        self.calls.append(targets)
        for name, address, dtype, rows in targets:
            assert name in self.listed
            entry = next(t for t in wcodec.Container(self.container).stored if t.name == name)
            if dtype == "I8" and entry.scheme == "int8":
                data = np.ascontiguousarray(entry.symbols()).tobytes()
            else:
                assert entry.scheme == "int8" or dtype == entry.dtype
                data = entry._bytes(None if entry.scheme != "int8" else dtype, None).tobytes()
            if rows is not None:
                row = len(data) // entry.shape[0]
                data = data[rows[0] * row : rows[1] * row]
            assert address % _torch.dtype_of(dtype).itemsize == 0
            ctypes.memmove(address, data, len(data))

    def decode_rows(self, target: tuple[str, int, str], runs: list[tuple[int, int]], stream: int) -> None:
        name, address, dtype = target
        entry = next(t for t in wcodec.Container(self.container).stored if t.name == name)
        row = entry.shape[1] * _torch.dtype_of(dtype).itemsize
        for begin, end in runs:
            self.decode([(name, address, dtype, (begin, end))], stream)
            address += (end - begin) * row

    def most_vectors(self, name: str) -> int:
        return Native.most.get(name, 0)

    def prepare_products(self, items: list[tuple[str, Any, int, int]], dtype: str) -> NativeProducts:
        return NativeProducts(min(self.most_vectors(item[0]) for item in items))

    def can_look_up(self, name: str) -> str | None:
        return "stored transposed" if name == "turned" else None

    def prepare_lookup(self, name: str, dtype: str) -> NativeLookup:
        return NativeLookup(self, name, dtype)

    def check(self, stream: int) -> None:
        assert stream == STREAM
        self.checks += 1

    def device_bytes(self) -> int:
        return 4096

    def host_bytes(self) -> int:
        return 8192

    def host_ring_bytes(self) -> int:
        return 4096 if self.on_disk else 0

    def direct(self) -> bool | None:
        return self.options["direct"] if self.on_disk else None


class NativeBatch:
    """A stand-in for what the native decoder prepares."""

    def __init__(self, native: Native, targets: list[tuple[str, int, str, tuple[int, int] | None]]) -> None:
        self.native, self.targets, self.prefetched = native, targets, 0

    def launch(self, stream: int) -> None:
        self.native.decode(self.targets, stream)

    def prefetch(self) -> None:
        self.prefetched += 1

    def slots(self) -> int:
        return 1


class NativeProducts:
    """A stand-in for prepared products, whose results are the number of vectors."""

    def __init__(self, most: int) -> None:
        self.most = most

    def most_vectors(self) -> int:
        return self.most

    def multiply(self, x: int, stride: int, count: int, y: int, stream: int) -> None:
        ctypes.memmove(y, np.array([count], np.float32).tobytes(), 4)


class NativeLookup:
    """A stand-in for what looks rows up."""

    def __init__(self, native: Native, name: str, dtype: str) -> None:
        self.native, self.name, self.dtype = native, name, dtype

    def look_up(self, ids: int, count: int, wide: bool, out: int, stream: int) -> None:
        assert stream == STREAM
        numbers = np.frombuffer(ctypes.string_at(ids, count * (8 if wide else 4)), np.int64 if wide else np.int32)
        entry = next(t for t in wcodec.Container(self.native.container).stored if t.name == self.name)
        rows = entry.torch(_torch.dtype_of(self.dtype))[torch.from_numpy(numbers.copy())].contiguous()
        ctypes.memmove(out, rows.data_ptr(), rows.nbytes)


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets the CPU pass for a GPU; returns the tensors that torch was told of."""
    recorded: list[Any] = []
    Native.made, Native.failures = [], []
    monkeypatch.setattr(_native, "TensorDecoder", Native)
    monkeypatch.setattr(devices, "torch_device", lambda number: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(tensor))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return recorded


@pytest.fixture
def tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    weight = rng.standard_normal((40, 96)).astype(np.float32)
    return {
        "head": weight,
        "half": rng.standard_normal((3, 20, 64)).astype(np.float16),
        "turned": rng.standard_normal((64, 48)).astype(np.float32),
        "norm": rng.standard_normal(64).astype(np.float16),
        "double": rng.standard_normal(5),
        "ids": np.arange(9, dtype=np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.5, np.float32),
        "embed": weight,
    }


@pytest.fixture
def path(tensors: dict[str, np.ndarray], tmp_path: Path) -> Path:
    wcodec.save_file(tensors, tmp_path / "m.wcodec", transpose="turned", exclude="norm")
    return tmp_path / "m.wcodec"


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit."""
    same_kind = a.dtype == b.dtype and a.shape == b.shape
    return same_kind and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", [None, "float32", torch.bfloat16])
@pytest.mark.parametrize("limit", [1, 1 << 30])
def test_load_file(dtype: Any, limit: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "GROUP_BYTES", limit)
    expected = wcodec.load_file(path, "torch", dtype=dtype)
    seen: list[tuple[str, int, int]] = []
    loaded = wcodec.load_file(path, device="cuda", dtype=dtype, progress=lambda *a: seen.append(a))
    assert list(loaded) == list(expected) and all(same(loaded[n], t) for n, t in expected.items())
    assert loaded["embed"] is loaded["head"]
    assert len(Native.made) == (len(expected) - 1 if limit == 1 else 1)
    assert all(n.checks == 1 and len(n.calls) == 1 for n in Native.made)
    assert seen[-1][1] == seen[-1][2] and [s[0] for s in seen] == [n for n in expected if n != "embed"]


def test_decoder(path: Path, simulated: list[Any]) -> None:
    container = wcodec.open(path)
    decoder = wcodec.GpuDecoder(path)
    assert set(decoder.names) == set(container) and decoder.device_bytes == 4096
    assert repr(decoder) == "GpuDecoder(8 tensors, device: cpu, holds: 4.00 KiB)"
    for name, entry in container.items():
        assert same(decoder.decode(name), entry.torch())
        if entry.scheme == "int8":
            for dtype in (torch.float32, "float16", torch.bfloat16, torch.int8, "int8"):
                assert same(decoder.decode(name, dtype), entry.torch(dtype))
        out = torch.full(entry.shape, 7, dtype=entry.torch().dtype)
        assert decoder.decode(name, out=out) is out and same(out, entry.torch()) and simulated[-1] is out
    decoder.check()
    assert Native.made[0].checks == 1
    assert decoder.info("embed").name == "head"


def test_products_take_as_many_vectors_as_their_matrices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = wcodec.GpuDecoder(path)
    assert decoder.most_vectors("embed") == 64 and decoder.most_vectors("norm") == 0
    for most in (64, 16):
        monkeypatch.setattr(Native, "most", {"head": most})
        products = decoder.products([("head", None)], "float32")
        assert products.most == most <= wcodec.ProductBatch.MOST
        (y,) = products(torch.zeros((most, 96)))
        assert y.shape == (most, 40) and y[0, 0] == most
        with pytest.raises(wcodec.InputError, match=f"products take up to {most} vectors of 96"):
            products(torch.zeros((most + 1, 96)))
        # Each matrix has one of them, whatever their number.
        own = decoder.products([("head", None)], "float32", vectors=[63])
        (y,) = own(torch.zeros((64, 96)))
        assert y.shape == (40,) and y[0] == 1


def test_floats_that_are_stored_raw_are_converted(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    for name in ("norm", "double"):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            out = torch.zeros(container[name].shape, dtype=dtype)
            assert same(decoder.decode(name, dtype), container[name].torch(dtype))
            assert same(decoder.decode(name, out=out), container[name].torch(dtype))
    with torch.inference_mode():
        frozen = torch.zeros(64)
    assert same(decoder.decode("norm", out=frozen), container["norm"].torch(torch.float32))


def test_batch(path: Path, simulated: list[Any]) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path, ["embed", "half", "norm"])
    assert decoder.names == ["head", "half", "norm", "embed"] and Native.made[0].listed == ["head", "half", "norm"]
    targets = {
        "embed": torch.zeros(40, 96, dtype=torch.int8),
        "head": torch.zeros(40, 96, dtype=torch.bfloat16),
        "half": torch.zeros(3, 20, 64, dtype=torch.float16),
        "norm": torch.zeros(64, dtype=torch.bfloat16),
    }
    decoder.decode_batch(targets)
    assert all(same(out, container[n].torch(out.dtype)) for n, out in targets.items())
    assert len(Native.made[0].calls) == 1 and {id(t) for t in simulated} == {id(t) for t in targets.values()}
    decoder.decode_batch({})


@pytest.mark.parametrize("decoder_of", [wcodec.GpuDecoder, wcodec.HostDecoder])
def test_prepared_batches(decoder_of: Any, path: Path, simulated: list[Any]) -> None:
    container, decoder = wcodec.open(path), decoder_of(path)
    outs = {
        "embed": torch.zeros(40, 96, dtype=torch.int8),
        "half": torch.zeros(3, 20, 64, dtype=torch.bfloat16),
        "norm": torch.zeros(64, dtype=torch.float32),
    }
    some = torch.zeros(24, 96)
    batch = decoder.prepare([*outs.items(), ("head", some, (16, 40))])
    assert simulated == [] and Native.made[0].calls == []
    for _ in range(3):
        for out in (*outs.values(), some):
            out.fill_(7)
        batch.prefetch()
        batch.launch()
        assert all(same(out, container[n].torch(out.dtype)) for n, out in outs.items())
        assert same(some, container["head"].torch()[16:])
    # torch is told of a stream once: of the outputs, and of the tensor that floats stored raw come through.
    assert len(simulated) == 5 and batch._native.prefetched == 3
    assert batch.slots == 1 and "4 tensors" in repr(batch)
    decoder.prepare([]).launch()
    weight, x = torch.zeros(40, 96), torch.ones(2, 96, requires_grad=True)
    batch = decoder.prepare([("head", weight)])
    y = torch.nn.functional.linear(x, weight)
    batch.launch()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    for wrong in [("head", weight, (0, 16)), ("head", torch.zeros(3, 96)), ("ids", weight)]:
        with pytest.raises(wcodec.InputError):
            decoder.prepare([wrong])
    with pytest.raises(wcodec.TensorNotFoundError):
        decoder.prepare([("nothing", weight)])


def test_rows(path: Path) -> None:
    container, decoder = wcodec.open(path), wcodec.GpuDecoder(path)
    head, half = container["head"], container["half"]
    for rows in [(0, 16), (16, 40), (32, 40), (0, 40), (16, 16)]:
        for dtype in (None, torch.bfloat16, torch.int8):
            assert same(decoder.decode("embed", dtype, rows=rows), head.torch(dtype)[slice(*rows)])
        out = torch.zeros(rows[1] - rows[0], 96)
        assert decoder.decode("head", out=out, rows=rows) is out and same(out, head.torch()[slice(*rows)])
    # Counted over the first dimension: matrices of a stack.
    assert same(decoder.decode("half", rows=(1, 3)), half.torch()[1:])
    assert Native.made[0].calls[-1][0][3] == (1, 3)
    assert same(decoder.decode("turned", rows=(0, 64)), container["turned"].torch())
    assert Native.made[0].calls[-1][0][3] is None
    before = len(Native.made[0].calls)
    for name, rows, said in (
        ("head", (0, 41), "it has 40"),
        ("head", (-16, 16), "it has 40"),
        ("head", (32, 16), "it has 40"),
        ("scalar", (0, 1), "a scalar has none"),
        ("turned", (0, 16), "transposed"),
    ):
        with pytest.raises(wcodec.InputError, match=said):
            decoder.decode(name, rows=rows)
    with pytest.raises(wcodec.InputError, match="shape"):
        decoder.decode("head", out=torch.zeros(40, 96), rows=(0, 16))
    assert len(Native.made[0].calls) == before


def test_host_decoder(path: Path) -> None:
    decoder = wcodec.HostDecoder(path, ["head", "half"], ring=1 << 20, threads=2, check=False)
    options = Native.made[-1].options
    assert (options["ring"], options["threads"], options["verify"]) == (1 << 20, 2, False)
    assert [(native.on_host, native.on_disk) for native in Native.made] == [({"head", "half"}, set())]
    assert decoder.host_bytes == 8192 and decoder.device_bytes == 4096
    assert repr(decoder) == "HostDecoder(2 tensors, device: cpu, holds: 4.00 KiB, on the host: 8.00 KiB)"
    out = torch.zeros(40, 96)
    decoder.decode_batch({"embed": out})
    assert same(out, wcodec.open(path)["head"].torch()) and same(decoder.decode("embed"), out)
    decoder.check()
    with pytest.raises(wcodec.InputError, match="a HostDecoder decodes on a GPU"):
        wcodec.HostDecoder(path, device="cpu")
    with pytest.raises(wcodec.InputError, match="ring"):
        wcodec.HostDecoder(path, ring=-1)


def test_residencies(path: Path) -> None:
    """Each tensor has one, and the native half is told of each by its stored name."""
    everything = {"head", "half", "turned", "norm", "double", "ids", "empty", "scalar"}
    names = ["embed", "turned"]
    wcodec.GpuDecoder(path)
    wcodec.GpuDecoder(path, names)
    wcodec.HostDecoder(path)
    wcodec.HostDecoder(path, names, from_disk=True)
    wcodec.HostDecoder(path, names, from_disk=["embed"])
    wcodec.HostDecoder(path, ["turned"], from_disk=["head"])
    told = [(set(native.listed), native.on_host, native.on_disk) for native in Native.made]
    stored = {"head", "turned"}
    assert told == [
        (everything, set(), set()),
        (stored, set(), set()),
        (everything, everything, set()),
        (stored, stored, stored),
        (stored, stored, {"head"}),
        ({"turned"}, {"turned"}, set()),
    ]


@pytest.mark.parametrize("residency", ["device", "host", "disk"])
def test_rows_of_every_residency(residency: str, path: Path, rng: np.random.Generator) -> None:
    """Ranges of rows in one call of the native half, and lookups, wherever tensors are."""
    decoder: Any = wcodec.GpuDecoder(path) if residency == "device" else None
    decoder = decoder or wcodec.HostDecoder(path, from_disk=residency == "disk")
    whole = wcodec.open(path)["head"].torch()
    runs = [(16, 40), (0, 16), (16, 16), (0, 40)]
    found = decoder.decode_rows("embed", runs, torch.bfloat16)
    assert same(found, torch.cat([whole[begin:end] for begin, end in runs]).to(torch.bfloat16))
    assert decoder.decode_rows("head", []).shape == (0, 96)
    for wrong in ([(0, 41)], [(0, 16), (32, 16)]):
        with pytest.raises(wcodec.InputError, match="tensor 'head'.*rows"):
            decoder.decode_rows("embed", wrong)
    assert decoder.can_look_up("embed") is None and decoder.can_look_up("turned") == "stored transposed"
    # By its former name, which is public.
    assert decoder.no_lookup("embed") is None and decoder.no_lookup("turned") == "stored transposed"
    lookup = decoder.lookup("embed", torch.float16)
    ids = torch.from_numpy(rng.integers(0, 40, (3, 5)))
    assert same(lookup(ids), whole.half()[ids]) and same(lookup(ids.int().t()), whole.half()[ids.t()])
    with pytest.raises(wcodec.InputError, match="numbers of rows are int64 or int32"):
        lookup(ids.float())
    with pytest.raises(wcodec.TensorNotFoundError):
        decoder.lookup("nothing")


def test_nothing_is_launched_where_something_is_wrong(path: Path) -> None:
    decoder = wcodec.GpuDecoder(path, ["head", "ids", "norm"])
    good = torch.zeros(40, 96)
    for out, said in (
        (torch.zeros(40, 95), "shape"),
        (torch.zeros(96, 40).T, "contiguous"),
        (torch.zeros(40, 96, dtype=torch.int32), "I32"),
        (torch.zeros(40, 96, device="meta"), "on meta"),
        (np.zeros((40, 96), np.float32), "torch tensor"),
    ):
        with pytest.raises(wcodec.InputError, match=said):
            decoder.decode_batch({"ids": torch.zeros(9, dtype=torch.int64), "head": out})
    with pytest.raises(wcodec.InputError, match="leave dtype out"):
        decoder.decode("head", torch.float16, good)
    for name, dtype in (("ids", torch.float32), ("norm", torch.int8), ("head", torch.float64), ("head", torch.int64)):
        with pytest.raises(wcodec.InputError):
            decoder.decode(name, dtype)
    with pytest.raises(wcodec.TensorNotFoundError, match="half"):
        decoder.decode("half")
    assert Native.made[0].calls == []


def test_autograd_notices(path: Path) -> None:
    decoder = wcodec.GpuDecoder(path, ["head"])
    weight = torch.zeros(40, 96)
    x = torch.ones(2, 96, requires_grad=True)
    y = torch.nn.functional.linear(x, weight)
    decoder.decode("head", out=weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    parameter = torch.nn.Parameter(torch.zeros(40, 96))
    decoder.decode("head", out=parameter)
    assert same(parameter.detach(), wcodec.open(path)["head"].torch())


def test_entries(path: Path) -> None:
    container = wcodec.open(path)
    for entry in container.values():
        assert same(entry.torch(device="cuda"), entry.torch())
    assert same(container["head"].torch(torch.int8, device="cuda:1"), container["head"].torch(torch.int8))
    assert all(n.checks == 1 for n in Native.made)


def test_sources_of_decoders(path: Path) -> None:
    expected = wcodec.open(path)["head"].torch()
    with wcodec.open(path) as container:
        of_container = wcodec.GpuDecoder(container)
    # Closing the container does not matter any more.
    for decoder in (of_container, wcodec.GpuDecoder(str(path)), wcodec.GpuDecoder(path.read_bytes())):
        assert same(decoder.decode("head"), expected)
    wcodec.GpuDecoder(path, threads=2, check=False, scratch=0, nvcomp=path)
    options = Native.made[-1].options
    assert (options["threads"], options["verify"], options["zstd_scratch"]) == (2, False, 0)
    assert options["nvcomp"] == str(path)


def test_damage(path: Path) -> None:
    segment = next(s for s in wcodec.open(path)["half"].segments if s.role == "data")
    data = bytearray(path.read_bytes())
    data[segment.offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(wcodec.CorruptError) as caught:
        wcodec.load_file(path, device="cuda")
    assert caught.value.tensor == "half" and caught.value.file == str(path)
    assert same(wcodec.GpuDecoder(path, ["head"]).decode("head"), wcodec.open(path)["head"].torch())


def test_memory_that_torch_keeps_in_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    spare = 1
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: spare)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    Native.failures = [wcodec.DeviceError("out of memory")]
    wcodec.GpuDecoder(path)
    assert emptied == [True]
    spare = 0
    Native.failures = [wcodec.DeviceError("out of memory")]
    with pytest.raises(wcodec.DeviceError, match="memory"):
        wcodec.GpuDecoder(path)
    assert emptied == [True]


def test_layers(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = rng.integers(-30, 30, (33, 70)).astype(np.int8)
    data, _ = wcodec.Encoder("huffman").encode_layer(layer)
    decoder = wcodec.Decoder(device="cuda", check=False)
    decoder.device = "cuda:0"
    decoded, stats = decoder.decode_layer(data, 33, 70)
    assert isinstance(decoded, torch.Tensor) and np.array_equal(decoded.numpy(), layer)
    assert (stats.rows, stats.cols, stats.stored_bytes, stats.format) == (33, 70, len(data), "container")
    assert Native.made[0].options["verify"] is False and "device='cuda:0'" in repr(decoder)
    with pytest.raises(wcodec.InputError, match="33 x 70"):
        decoder.decode_layer(data, 70, 33)
    with pytest.raises(wcodec.UnsupportedError, match="CPU only"):
        decoder.decode_layer(wcodec.Encoder(format="legacy").encode_layer(layer)[0])
    for other in ({"w": np.zeros((2, 2), np.float32)}, {"a": layer, "b": layer + 1}, {"a": layer[0]}):
        with pytest.raises(wcodec.InputError, match="layer"):
            decoder.decode_layer(wcodec.compress_to_bytes(other)[0])


EPILOGUE = {
    "squared": 16,
    "epsilon": 0.5,
    "norm_factor": 2.0,
    "residual": 32,
    "scaled": 48,
    "gain": 64,
    "gain_scale": 4.0,
    "gain_offset": 1.0,
    "residual_scale": 0.25,
    "activation": "silu",
    "stash": 80,
    "arrivals": 96,
}


def test_epilogues_go_by_names() -> None:
    """Each field has a name of its own, by default it asks for nothing, and no other names are taken."""
    ones = {"norm_factor": 1.0, "gain_scale": 1.0, "residual_scale": 1.0}
    plain = {name: 0 for name in EPILOGUE} | ones | {"epsilon": 0.0, "gain_offset": 0.0, "activation": None}

    def text(fields: dict[str, Any]) -> str:
        # An activation is a variant of Rust's, if it is there.
        shown = {name: f"Some({value.title()})" if isinstance(value, str) else value for name, value in fields.items()}
        return "Epilogue { " + ", ".join(f"{name}: {value}" for name, value in shown.items()) + " }"

    assert repr(_native.Epilogue()) == text(plain)
    assert repr(_native.Epilogue(**EPILOGUE)) == text(EPILOGUE)
    for name, value in EPILOGUE.items():
        assert repr(_native.Epilogue(**{name: value})) == text(plain | {name: value})
    with pytest.raises(TypeError):
        _native.Epilogue(16)
    with pytest.raises(TypeError):
        _native.Epilogue(normed=16)
    with pytest.raises(wcodec.InputError, match="no kernel has the activation 'swish'.*gelu_tanh"):
        _native.Epilogue(activation="swish")
