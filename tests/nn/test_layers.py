"""Single layers with compressed weights, on the CPU."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import wcodec
from wcodec.nn import CompressedConv1D, CompressedEmbedding, CompressedLinear, embedding
from wcodec.nn._weights import providers
from wcodec.nn._weights.store import Store

CODERS = ["rans", "huffman", "zstd", "raw"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def heavy(rows: int, cols: int, seed: int = 0) -> torch.Tensor:
    """Weights with the tails of real ones."""
    return torch.from_numpy(np.random.default_rng(seed).standard_t(4, (rows, cols)).astype(np.float32) / 20)


def linear(inputs: int = 320, outputs: int = 48, bias: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    out = torch.nn.Linear(inputs, outputs, bias)
    with torch.no_grad():
        out.weight.copy_(heavy(outputs, inputs))
    return out.to(dtype)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_computes_with_the_decoded_weight(coder: str, dtype: torch.dtype) -> None:
    original = linear(dtype=dtype)
    layer = CompressedLinear.from_linear(original, coder=coder)
    data, _ = wcodec.compress_to_bytes({"w": original.weight.detach()}, coder=coder)
    weight = wcodec.open(data)["w"].torch(dtype)
    x = torch.randn(2, 3, 320).to(dtype)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, weight, original.bias))
    assert torch.equal(layer.weight, weight) and layer.weight.dtype == dtype
    assert layer.coder == coder and layer.scheme == "int8"
    assert torch.equal(layer.to_linear()(x), layer(x))


@pytest.mark.parametrize("shape", [(320,), (1, 320), (2, 3, 320), (2, 0, 320), (1, 2, 3, 320)])
@pytest.mark.parametrize("bias", [True, False])
def test_leading_dimensions(shape: tuple[int, ...], bias: bool) -> None:
    layer = CompressedLinear.from_linear(linear(bias=bias))
    x = torch.randn(shape)
    out = layer(x)
    assert out.shape == (*shape[:-1], 48) and torch.equal(out, layer.to_linear()(x))
    assert (layer.bias is not None) == bias


def test_scheme_raw_is_exact() -> None:
    original = linear(dtype=torch.bfloat16)
    layer = CompressedLinear.from_linear(original, scheme="raw", coder="zstd")
    x = torch.randn(4, 320).bfloat16()
    assert torch.equal(layer.weight, original.weight) and torch.equal(layer(x), original(x))
    assert torch.equal(layer.float().weight, original.weight.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    layer = CompressedLinear.from_linear(linear())
    plain = layer.to_linear()
    x = torch.randn(5, 320)
    with torch.autocast("cpu", dtype=dtype), torch.inference_mode():
        out, wanted = layer(x), plain(x)
    assert out.dtype == dtype and torch.equal(out, wanted)
    assert torch.equal(layer(x), plain(x))


def test_embeddings_do_not_mind_autocast() -> None:
    """Rows from several strips, in a half precision that is not autocast's."""
    table = CompressedEmbedding.from_embedding(torch.nn.Embedding(100, 32).bfloat16())
    ids = torch.tensor([[1, 50, 99]])
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(table(ids), table.weight[ids])


def test_dtype_is_that_to_compute_in() -> None:
    layer = CompressedLinear.from_linear(linear())
    stored = layer.stored_bytes
    half = layer.half()
    assert half is layer and half.dtype == torch.float16 and half.bias.dtype == torch.float16
    assert half.weight.dtype == torch.float16 and half.stored_bytes == stored
    assert half(torch.ones(1, 320).half()).dtype == torch.float16
    # Nothing was lost on the way.
    assert torch.equal(layer.to(torch.float32).weight, CompressedLinear.from_linear(linear()).weight)
    assert layer.double is not None
    with pytest.raises(wcodec.InputError, match="float32, float16 or bfloat16"):
        layer.double()


def test_repr_says_what_is_stored() -> None:
    layer = CompressedLinear.from_linear(linear(), coder="huffman")
    assert all(word in repr(layer) for word in ("int8/row", "huffman", "stored=", "ratio=", "out_features=48"))
    assert not list(layer.parameters())[1:] and list(dict(layer.named_parameters())) == ["bias"]


@pytest.mark.parametrize("mode", ["deepcopy", "pickle", "torch.save"])
def test_copies(mode: str) -> None:
    layer = CompressedLinear.from_linear(linear())
    x = torch.randn(2, 320)
    wanted = layer(x)
    if mode == "deepcopy":
        other = copy.deepcopy(layer)
    elif mode == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    else:
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert torch.equal(other(x), wanted)
    # The copy goes its own way.
    other.half()
    assert layer.dtype == torch.float32 and torch.equal(layer(x), wanted)
    del layer
    assert torch.compile(other, backend="eager")(x.half()).dtype == torch.float16


def test_state_dict() -> None:
    layer, other = (CompressedLinear.from_linear(linear()) for _ in range(2))
    empty = CompressedLinear.from_linear(torch.nn.Linear(320, 48), coder="zstd")
    state = layer.state_dict()
    assert sorted(state) == ["bias", "wcodec"] and state["wcodec"].dtype == torch.uint8
    # Less than the weight, and a container by itself.
    assert state["wcodec"].numel() < layer.original_bytes
    assert len(wcodec.open(state["wcodec"].numpy().tobytes())) == 1
    assert not empty.load_state_dict(state, strict=True).missing_keys
    x = torch.randn(2, 320)
    assert torch.equal(empty(x), layer(x)) and empty.coder == layer.coder
    store = other._store
    other.load_state_dict(state)
    assert other._store is store
    with pytest.raises(RuntimeError, match="wcodec"):
        empty.load_state_dict({"bias": state["bias"]})
    with pytest.raises(RuntimeError, match="shape"):
        CompressedLinear.from_linear(torch.nn.Linear(64, 48)).load_state_dict(state)
    with pytest.raises(RuntimeError, match="wcodec"):
        empty.load_state_dict({**state, "wcodec": state["wcodec"][:-9]})
    nested = torch.nn.Sequential(layer)
    assert sorted(nested.state_dict()) == ["0.bias", "0.wcodec"]
    torch.nn.Sequential(empty).load_state_dict(nested.state_dict(), strict=True)


def test_wrong_input() -> None:
    layer = CompressedLinear.from_linear(linear())
    with pytest.raises(wcodec.InputError, match=r"bfloat16.*float32.*\.to\(dtype\)"):
        layer(torch.ones(2, 320).bfloat16())
    with pytest.raises(wcodec.InputError, match="319 features.*takes 320"):
        layer(torch.ones(2, 319))
    with pytest.raises(wcodec.InputError, match="on meta, and the layer on cpu"):
        layer(torch.ones(2, 320, device="meta"))
    with pytest.raises(wcodec.InputError, match="shape"):
        CompressedLinear(layer._store, "weight", 320, 47)
    with pytest.raises(wcodec.TensorNotFoundError):
        CompressedLinear(layer._store, "other", 320, 48)
    with pytest.raises(wcodec.InputError, match="residency"):
        Store(layer._store.container, residency="disk")


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("bias", [True, False])
def test_large_layers_come_in_slices(coder: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original = linear(320, 200, bias)
    whole = CompressedLinear.from_linear(original, coder=coder)
    # Few tokens and many, whose results lie together at once; and some that are of a larger tensor.
    inputs = [torch.randn(3, 2, 320), torch.randn(5, 31, 320), torch.randn(7, 20, 640)[:, 3:17, ::2]]
    wanted = [whole(x) for x in inputs]
    monkeypatch.setattr(providers, "SLICE_BYTES", 50 * 320 * 4)
    layer = CompressedLinear.from_linear(original, coder=coder)
    assert list(providers.slices(layer.entry, torch.float32)) == [(0, 48), (48, 96), (96, 144), (144, 192), (192, 200)]
    for x, y in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(layer(x), y)
        x.requires_grad_()
        torch.testing.assert_close(layer(x).detach(), y)
    assert isinstance(layer._weights.provider[0], providers.SlicedProvider)
    assert torch.equal(layer.weight, whole.weight)


def grouped() -> list[CompressedLinear]:
    """Four layers of one store, the first three a group."""
    weights = {name: heavy(64, 64, i) for i, name in enumerate("abcd")}
    store = Store(wcodec.open(wcodec.compress_to_bytes(weights)[0]), [["a", "b", "c"]])
    return [CompressedLinear(store, name, 64, 64) for name in weights]


def test_no_order_of_calls_gives_a_stale_weight() -> None:
    layers = grouped()
    plain = [layer.to_linear() for layer in layers]
    x = torch.randn(2, 64)
    for i in (0, 1, 2, 3, 3, 0, 0, 3, 2, 1, 0, 3, 1):
        assert torch.equal(layers[i](x), plain[i](x)), i


def test_a_group_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = grouped()
    decoded: list[str] = []
    rows = Store.rows
    monkeypatch.setattr(Store, "rows", lambda self, name, *rest: decoded.append(name) or rows(self, name, *rest))
    x = torch.randn(2, 64)
    for layer in (*layers[:3], *layers[:3]):
        layer(x)
    assert decoded == ["a", "b", "c"]
    layers[3](x)
    layers[1](x)
    assert decoded == ["a", "b", "c", "d", "a", "b", "c"]


def test_threads() -> None:
    layers = grouped()
    x = torch.randn(2, 64)
    wanted = [layer(x) for layer in layers]
    wrong: list[int] = []

    def run(i: int) -> None:
        wrong.extend(i for _ in range(50) if not torch.equal(layers[i](x), wanted[i]))

    threads = [threading.Thread(target=run, args=(i % 4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("rows", "most", "steps"),
    [(1000, 400, [256, 256, 256, 232]), (14336, 8192, [7168] * 2), (4096, 2340, [2048] * 2), (200, 50, [48] * 4 + [8]),
     (300, 299, [256, 44]), (7, 3, [7]), (0, 400, [])],
)  # fmt: skip
def test_slices_are_about_equal(rows: int, most: int, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        shape, cut = (rows, 10), 16

    monkeypatch.setattr(providers, "SLICE_BYTES", most * 20)
    found = list(providers.slices(Entry(), torch.bfloat16))  # type: ignore[arg-type]
    assert [end - begin for begin, end in found] == steps
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding(coder: str, dtype: torch.dtype) -> None:
    table = torch.nn.Embedding(1000, 64, padding_idx=3).to(dtype)
    layer = CompressedEmbedding.from_embedding(table, coder=coder)
    ids = torch.randint(0, 1000, (3, 7))
    assert torch.equal(layer(ids), layer.weight[ids]) and layer(ids).dtype == dtype
    assert torch.equal(layer(ids.int()), layer.to_embedding()(ids))
    assert torch.equal(layer(torch.tensor(999)), layer.weight[999])
    many = torch.randint(0, 1000, (4, 30))
    for wanted in (many, many.int(), many // 50, torch.arange(65, 165)):
        assert torch.equal(layer(wanted), layer.weight[wanted.long()])
    assert layer(ids[:0]).shape == (0, 7, 64)
    assert layer.padding_idx == 3 and layer.to_embedding().padding_idx == 3


def test_an_embedding_decodes_only_the_strips_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = CompressedEmbedding.from_embedding(torch.nn.Embedding(1000, 64))
    wanted = layer.weight.clone()
    asked: list[Any] = []
    rows = Store.rows
    monkeypatch.setattr(
        Store, "rows", lambda self, name, dtype, part: asked.append(part) or rows(self, name, dtype, part)
    )
    ids = torch.tensor([[5, 999, 17], [5, 400, 6]])
    assert torch.equal(layer(ids), wanted[ids])
    assert asked == [(0, 32), (400, 416), (992, 1000)]


def test_how_a_gpu_gets_at_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a launch that looks them up, or by strips of few rows and slices of the whole; played by the CPU."""
    layer = CompressedEmbedding.from_embedding(torch.nn.Embedding(1003, 96))
    table = layer.weight.clone()
    asked: list[Any] = []
    state = SimpleNamespace(capturing=False)

    def decode_rows(name: str, runs: list[tuple[int, int]], dtype: torch.dtype) -> torch.Tensor:
        asked.append(runs)
        return torch.cat([table[begin:end] for begin, end in runs])

    def sliced(ids: torch.Tensor) -> torch.Tensor:
        asked.append("slices")
        return table[ids.long()]

    def looked_up(ids: torch.Tensor) -> torch.Tensor:
        asked.append("lookup")
        return table[ids.long().clamp(0, 1002)]

    rows = SimpleNamespace(has_rows=True, lookup=None, decoder=SimpleNamespace(decode_rows=decode_rows))
    monkeypatch.setattr(layer._weights, "table", lambda: rows)
    monkeypatch.setattr(layer, "_kind", "cuda")
    monkeypatch.setattr(layer, "_by_slices", sliced)
    monkeypatch.setattr(embedding, "is_capturing", lambda: state.capturing)
    few, many = torch.tensor([[1002, 17], [17, 40]]), torch.randint(0, 1003, (2, 300))

    def way(ids: torch.Tensor) -> Any:
        asked.clear()
        assert torch.equal(layer(ids), table[ids.long()])
        return asked[0] if len(asked) == 1 else asked

    assert way(few) == way(few.int()) == [(16, 48), (992, 1003)]
    assert way(torch.tensor(5)) == [(0, 16)]
    together = torch.randint(0, 32, (500,))
    assert way(together) == [(0, 32)]
    # As many strips as fit a slice.
    monkeypatch.setattr(providers, "SLICE_BYTES", 32 * 96 * 4)
    assert way(together) == [(0, 32)] and way(few) == "slices"
    assert way(many) == way(many.int()) == "slices"
    state.capturing = True
    assert way(few) == way(many) == "slices"
    rows.lookup = looked_up
    assert way(few) == way(many) == "lookup"
    # Numbers are not checked there: rows that are not there are the launch's business.
    layer(torch.tensor([1003]))
    # A table that ranks share by rows has zeros for others' rows, but not for rows that nobody has.
    with monkeypatch.context() as shared:
        shared.setattr(layer, "_span", (1003, 2006))
        shared.setattr(layer, "num_embeddings", 3009)
        rows.lookup = lambda ids: table[ids.clamp(0, 1002)].masked_fill(
            ((ids < 0) | (ids > 1002)).unsqueeze(-1), float("nan")
        )
        found = layer(torch.tensor([5, 1003, 2005, 2006, 3009, -1]))
        assert torch.equal(found[[0, 3]], torch.zeros(2, 96)) and torch.equal(found[1:3], table[[0, 1002]])
        assert found[4:].isnan().all()
        rows.lookup = looked_up
    state.capturing = False
    assert way(few) == way(many) == "lookup"
    for bad in (-1, 1003):
        asked.clear()
        with pytest.raises(wcodec.InputError, match=f"row {bad} is looked up"):
            layer(torch.cat([many.flatten(), torch.tensor([bad])]))
        assert not asked


@pytest.mark.parametrize("bad", [-1, 1000])
def test_embedding_refuses_what_is_not_there(bad: int) -> None:
    layer = CompressedEmbedding.from_embedding(torch.nn.Embedding(1000, 64))
    with pytest.raises(wcodec.InputError, match=f"row {bad}"):
        layer(torch.cat([torch.arange(100), torch.tensor([bad])]))
    with pytest.raises(wcodec.InputError, match=f"row {bad}"):
        layer(torch.tensor([0, bad]))
    with pytest.raises(wcodec.InputError, match="numbers of rows"):
        layer(torch.tensor([0.5]))


def test_conv1d() -> None:
    transformers = pytest.importorskip("transformers")
    conv = transformers.pytorch_utils.Conv1D(96, 64)
    layer = CompressedConv1D.from_conv1d(conv)
    # A scale for each output: the weight is stored [in, out].
    assert layer.weight.shape == (64, 96) and layer.entry.scales().shape == (1, 96)
    x = torch.randn(2, 3, 64)
    assert torch.equal(layer(x), layer.to_conv1d()(x))
    torch.testing.assert_close(layer(x), layer.to_linear()(x))


def test_compile_takes_the_layers_whole() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(
        CompressedEmbedding.from_embedding(torch.nn.Embedding(100, 64)),
        CompressedLinear.from_linear(linear(64, 32)),
        torch.nn.ReLU(),
        CompressedLinear.from_linear(linear(32, 16, bias=False)),
    )
    ids = torch.randint(0, 100, (2, 5))
    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        assert torch.equal(compiled(ids), model(ids))
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            assert torch.equal(compiled(ids), model(ids))


@pytest.mark.parametrize("bias", [True, False])
def test_operators(bias: bool) -> None:
    layer = CompressedLinear.from_linear(linear(64, 32, bias))
    torch.library.opcheck(torch.ops.wcodec.linear.default, (torch.randn(2, 64), layer.bias, layer._handle, 32))
    table = CompressedEmbedding.from_embedding(torch.nn.Embedding(100, 64))
    arguments = (torch.tensor([[1, 99]]), table._handle, 64, torch.float32)
    torch.library.opcheck(torch.ops.wcodec.embedding.default, arguments)
    handle = layer._handle
    del layer
    with pytest.raises(wcodec.InputError, match="no compressed layer"):
        torch.ops.wcodec.linear(torch.randn(2, 64), None, handle, 32)


def test_a_weight_of_raw_floats_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "SLICE_BYTES", 50 * 320 * 4)
    original = linear(320, 200)
    layer = CompressedLinear.from_linear(original, scheme="raw", coder="zstd")
    x = torch.randn(3, 320)
    assert torch.equal(layer(x), original(x)) and isinstance(layer._weights.provider[0], providers.SlicedProvider)
    assert list(providers.slices(layer.entry, torch.float32)) == [(0, 48), (48, 96), (96, 144), (144, 192), (192, 200)]


def test_a_weight_without_rows_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "SLICE_BYTES", 50 * 320 * 4)
    original = linear(320, 200)
    layer = CompressedLinear.from_linear(original, transpose="weight")
    x = torch.randn(3, 320)
    assert torch.equal(layer(x), layer.to_linear()(x)) and isinstance(layer._weights.provider[0], providers.CpuProvider)
    table = torch.nn.Embedding(1000, 64)
    rows = CompressedEmbedding.from_embedding(table, scheme="raw", coder="zstd")
    assert torch.equal(rows(torch.tensor([1, 999])), table(torch.tensor([1, 999])))
