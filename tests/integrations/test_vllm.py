"""The plug-in of vLLM, as far as it can be tested without vLLM: what an engine's loaders do with a rank's weights.

With vLLM itself: vllm_engine.py (``make test-vllm``).
"""

from __future__ import annotations

import operator
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wcodec
from wcodec._core.errors import InputError, UnsupportedError
from wcodec._integrations.vllm import register
from wcodec._integrations.vllm.versions import refused

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from wcodec._integrations.vllm import blocks, ops  # noqa: E402
from wcodec._integrations.vllm.deferred import Deferred, Placeholder, Region, virtual  # noqa: E402
from wcodec._integrations.vllm.experts import RankExperts  # noqa: E402
from wcodec._integrations.vllm.parts import Linear  # noqa: E402
from wcodec._integrations.vllm.rank import Rank  # noqa: E402
from wcodec._integrations.vllm.weights import Weights  # noqa: E402

F = torch.nn.functional
CPU = torch.device("cpu")
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_vllm_finds_it() -> None:
    [section] = re.findall(r'\[project\.entry-points\."vllm\.general_plugins"\]\n(.*)\n', PROJECT.read_text())
    assert section == 'wcodec = "wcodec._vllm:register"'


def test_without_vllm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UnsupportedError, match=r"vLLM is not installed, .*pip install 'vllm>=0.32,<0.34'"):
        register()


def test_importing_it_needs_no_torch() -> None:
    code = "import sys, wcodec._vllm; assert not {'torch', 'vllm', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.340.1", "1.0", "unknown", ""])
def test_other_versions_are_refused(version: str) -> None:
    problem = refused(version)
    assert isinstance(problem, UnsupportedError)
    assert str(problem).startswith(f"vLLM {version}: compressed models run with vLLM 0.32 to 0.33 (pip install")


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0", "0.33.2+cu130", "0.32.1.dev3"])
def test_known_versions_are_taken(version: str) -> None:
    assert refused(version) is None


# A folder, and what loaders do


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices of several kinds: of tiles, of no multiple of anything, transposed, experts in a stack; a norm."""
    place = tmp_path_factory.mktemp("vllm")
    torch.manual_seed(4)
    tensors = {
        "q": torch.randn(64, 96),
        "k": torch.randn(32, 96),
        "wide": torch.randn(96, 64) / 8,
        "odd": torch.randn(50, 96),
        "conv": torch.randn(96, 48),
        **{f"experts.gate_up.{i}": torch.randn(64, 96) / 10 for i in range(3)},
        **{f"experts.down.{i}": torch.randn(96, 32) / 6 for i in range(3)},
    }
    wcodec.compress(tensors, place / "model.wcodec", progress=False, transpose=["conv"])
    from safetensors.torch import save_file

    save_file({"norm": torch.arange(5.0), "left": torch.ones(8, 96)}, place / "model.safetensors")
    return place


@pytest.fixture
def weights(folder: Path) -> Weights:
    return Weights(folder)


def decoded(weights: Weights, name: str) -> Any:
    return weights.container[name].torch()


def made(weights: Weights, weight: Placeholder, **options: Any) -> Linear:
    """The layer of a weight."""
    found: list[Linear] = []
    rank = Rank(weights, CPU, {})
    assert rank.linear(weight, found.append, **options)
    rank.make()
    return found[0]


def test_tensors_of_a_folder(weights: Weights) -> None:
    found = dict(weights)
    assert list(found) == ["conv", "experts.down", "experts.gate_up", "k", "left", "norm", "odd", "q", "wide"]
    assert found["norm"].tolist() == [0, 1, 2, 3, 4] and not isinstance(found["norm"], Deferred)
    assert found["experts.gate_up"].shape == (3, 64, 96) and found["q"].is_meta


def test_a_merged_layer_of_a_rank(weights: Weights) -> None:
    """Rows of q and of k by halves, and all of another that is replicated."""
    found = dict(weights)
    weight = Placeholder("qk", (32 + 16 + 50, 96), torch.float32)
    for rank_rows, name, at, size in ((1, "q", 0, 32), (1, "k", 32, 16), (0, "odd", 48, 50)):
        part = found[name].narrow(0, rank_rows * size, size)
        weight.parameter.data.narrow(0, at, size).copy_(part)
    layer = made(weights, weight)
    q, k, odd = (decoded(weights, name) for name in ("q", "k", "odd"))
    x, bias = torch.randn(3, 96), torch.randn(98)
    expected = torch.cat(
        [F.linear(x, q[32:], bias[:32]), F.linear(x, k[16:], bias[32:48]), F.linear(x, odd, bias[48:])], -1
    )
    assert torch.equal(layer.product(x, bias), expected)
    # Parts of other ranks were not kept.
    [store] = {piece.layer._store for piece in layer.pieces}
    assert [tuple(entry.shape) for entry in store.container.stored] == [(32, 96), (16, 96), (50, 96)]
    assert store.container.path is None


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_columns_of_a_rank(weights: Weights, rank: int) -> None:
    weight = Placeholder("o", (64, 32), torch.float32)
    weight.parameter.data.copy_(dict(weights)["q"].narrow(1, rank * 32, 32))
    x = torch.randn(2, 32)
    expected = F.linear(x, decoded(weights, "q")[:, rank * 32 : rank * 32 + 32].contiguous())
    assert torch.allclose(made(weights, weight).product(x, None), expected, atol=1e-5)


def test_what_is_whole_is_read_from_the_file(weights: Weights) -> None:
    weight = Placeholder("merged", (80, 96), torch.float32)
    source = dict(weights)["odd"]
    # In two steps, as fused matrices are loaded, and with rows that nothing is copied into.
    for begin, end in ((0, 20), (20, 50)):
        weight.parameter.data[begin:end].copy_(source[begin:end])
    weight.parameter[50:].data.fill_(0)
    layer = made(weights, weight)
    [piece] = layer.pieces
    assert (piece.begin, piece.end) == (0, 50) and piece.layer._store.container.path == str(weights.file)
    x, bias = torch.randn(2, 96), torch.randn(80)
    assert torch.equal(layer.product(x, bias)[:, 50:], bias[50:].expand(2, 30))
    assert torch.equal(layer.product(x, None)[:, :50], F.linear(x, decoded(weights, "odd")))


def test_a_transposed_matrix(weights: Weights) -> None:
    whole, half = Placeholder("c", (48, 96), torch.float32), Placeholder("c", (24, 96), torch.float32)
    source = dict(weights)["conv"].t()
    whole.parameter.data.copy_(source)
    half.parameter.data.copy_(source.narrow(0, 24, 24))
    x = torch.randn(2, 96)
    assert torch.allclose(made(weights, whole).product(x, None), x @ decoded(weights, "conv"), atol=1e-5)
    assert torch.allclose(made(weights, half).product(x, None), x @ decoded(weights, "conv")[:, 24:], atol=1e-5)


def test_rows_that_are_looked_up(weights: Weights) -> None:
    weight = Placeholder("embed", (64, 96), torch.float32)
    weight.parameter[:25].data.copy_(dict(weights)["odd"].narrow(0, 25, 25))
    layer = made(weights, weight, looked_up=True)
    ids = torch.tensor([[3, 24], [0, 3]])
    assert torch.equal(layer.look_up(ids), decoded(weights, "odd")[25:][ids])


def test_a_lookup_on_a_gpu_does_not_wait_for_it(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has looked at the tokens. Those without data, as here, nobody can look at."""
    weight = Placeholder("q", (64, 96), torch.float32)
    weight.parameter.data.copy_(dict(weights)["q"])
    layer = made(weights, weight, looked_up=True)
    table: Any = layer._table
    monkeypatch.setattr(table, "_kind", "cuda")
    kernel = SimpleNamespace(lookup=lambda ids: torch.empty((*ids.shape, 96), device=ids.device))
    monkeypatch.setattr(table._weights, "table", lambda: kernel)
    assert layer.look_up(torch.empty(5, dtype=torch.int64, device="meta")).shape == (5, 96)


def test_what_is_not_compressed_stays_so(weights: Weights) -> None:
    found = dict(weights)
    mixed = Placeholder("mixed", (72, 96), torch.bfloat16)
    mixed.parameter.data[:64].copy_(found["q"])
    mixed.parameter.data[64:].copy_(found["left"])
    never = Placeholder("never", (8, 96), torch.float32)
    rank = Rank(weights, CPU, {})
    assert not rank.linear(mixed, pytest.fail) and not rank.linear(never, pytest.fail)
    assert rank.make() is None
    expected = torch.cat([decoded(weights, "q"), torch.ones(8, 96)]).bfloat16()
    assert torch.equal(rank.plain(mixed), expected) and rank.plain(mixed) is rank.plain(mixed)
    assert not rank.plain(never).any()


def test_loaders_that_want_data_get_them(weights: Weights) -> None:
    source, whole = dict(weights)["q"], decoded(weights, "q")
    plain = torch.empty(64, 96)
    plain.copy_(source)
    assert torch.equal(plain, whole)
    assert torch.equal(source[4:6].float() * 2, whole[4:6] * 2)
    assert torch.equal(torch.cat([source[:1], torch.ones(1, 96)]), torch.cat([whole[:1], torch.ones(1, 96)]))
    assert torch.equal(source[:, ::3].to(torch.float64), whole[:, ::3].double())
    stack = dict(weights)["experts.down"]
    assert torch.equal(stack.sum(1), torch.stack([decoded(weights, f"experts.down.{i}") for i in range(3)]).sum(1))


def test_what_a_loader_must_not_do(weights: Weights) -> None:
    weight = Placeholder("model.o", (64, 96), torch.float32)
    source = dict(weights)["q"]
    with pytest.raises(InputError, match=r"'model.o': \[32, 96\] is copied into \[64, 96\] \(the config of a folder"):
        weight.parameter.data.copy_(source[:32])
    with pytest.raises(InputError, match="'model.o': its data are asked for before there are any"):
        torch.cat([weight.parameter, source])
    with pytest.raises(InputError, match="'model.o': the engine cuts it into a part of shape .* no rectangle"):
        weight.parameter.data[::2].copy_(source[:32])
    with pytest.raises(InputError, match="'q': a tensor of a file is written to"):
        source.copy_(torch.zeros(64, 96))
    data = weight.parameter.data
    for wrong in (
        lambda: data.add_(1),
        lambda: data.fill_(3),
        lambda: data.__setitem__(0, 1.0),
        lambda: source.mul_(2),
        lambda: operator.imul(source, 2),
        lambda: torch.add(source, 1, out=source),
    ):
        with pytest.raises(InputError, match="the model's loader changes it in place"):
            wrong()
    assert not weight.copies
    # Zeros are what is there, and parts may be assigned.
    data.zero_()
    data[:32] = source[:32]
    data[32:, ...] = torch.ones(32, 96)
    assert [copy.where.rows for copy in weight.copies] == [(0, 32), (32, 64)]
    assert virtual(source) is not None and virtual(torch.ones(1)) is None
    assert Region((0, 2), (3, 4), transposed=True).shape == (1, 2)


def test_rows_that_a_folder_does_not_have(weights: Weights) -> None:
    source = dict(weights)["q"]
    weight = Placeholder("model.qkv", (128, 96), torch.float32)
    with pytest.raises(InputError, match="'model.qkv': the folder has nothing for 128 of its 128 rows"):
        weight.check(padded=True)
    weight.parameter.data[:64].copy_(source)
    weight.parameter.data[64:, :48].copy_(source[:, :48])
    with pytest.raises(InputError, match="'model.qkv': the folder has nothing for 64 of its 128 rows"):
        weight.check()
    weight.check(padded=True)
    weight.parameter.data[64:, 48:].copy_(source[:, 48:])
    weight.check()
    # A rank may have no word of a vocabulary.
    none = Placeholder("model.embed", (64, 96), torch.float32)
    none.parameter.data[:0].copy_(source[:0])
    none.check(padded=True)


# Experts


@pytest.mark.parametrize("places", [None, [-1, 0, 1]])
def test_experts_of_a_rank(weights: Weights, places: list[int] | None) -> None:
    """Two halves of each expert, or two of three experts."""
    found = dict(weights)
    mine = [0, 1, 2] if places is None else [1, 2]
    inner = 16 if places is None else 32
    first = Placeholder("w13", (len(mine), 2 * inner, 96), torch.float32)
    second = Placeholder("w2", (len(mine), 96, inner), torch.float32)
    for at, number in enumerate(mine):
        gate, up = found["experts.gate_up"].chunk(2, dim=1)
        for place, part in enumerate((gate, up)):
            target = first.parameter.data[at].narrow(0, place * inner, inner)
            target.copy_(part.unbind()[number].narrow(0, 32 - inner, inner))
        second.parameter.data[at].copy_(found["experts.down"][number].narrow(1, 32 - inner, inner))
    rank, taken = Rank(weights, CPU, {}), []

    def activation(x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    tensor = None if places is None else torch.tensor(places)
    assert rank.experts(first, second, activation, tensor, 0.5, taken.append)
    rank.make()
    [experts] = taken
    assert isinstance(experts, RankExperts)
    x, shares = torch.randn(5, 96), torch.rand(5, 2)
    ids = torch.tensor([[0, 1], [2, 1], [1, 0], [0, 2], [2, 0]])
    expected = torch.zeros(5, 96)
    for token in range(5):
        for share, number in zip(shares[token], ids[token].tolist(), strict=True):
            if number not in mine:
                continue
            matrix = decoded(weights, f"experts.gate_up.{number}")
            parts = torch.cat([matrix[32 - inner : 32], matrix[64 - inner :]])
            down = decoded(weights, f"experts.down.{number}")[:, 32 - inner :]
            expected[token] += share * F.linear(activation(F.linear(x[token], parts)), down)
    assert torch.allclose(experts.mix(x, shares, ids), expected, atol=1e-4)
    # As while a graph is captured, when nobody knows where tokens go.
    here = ids if tensor is None else tensor[ids]
    assert torch.allclose(experts._all(x, shares, here), expected, atol=1e-4)


def test_experts_that_are_not_all_compressed(weights: Weights) -> None:
    first = Placeholder("w13", (2, 64, 96), torch.float32)
    second = Placeholder("w2", (2, 96, 32), torch.float32)
    first.parameter.data[0].copy_(dict(weights)["experts.gate_up"][0])
    assert not Rank(weights, CPU, {}).experts(first, second, F.relu, None, 1, pytest.fail)


# Operators


def test_operators_are_compiled_without_breaks(weights: Weights) -> None:
    weight = Placeholder("q", (64, 96), torch.float32)
    weight.parameter.data.copy_(dict(weights)["q"])
    layer = made(weights, weight, looked_up=True)
    marked = ops.marker(layer, torch.float32, CPU)

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def run(x: Any, ids: Any, marked: Any) -> Any:
        return ops.linear(x + 1, marked, None, 64) * 2, ops.embedding(ids, marked, 96)

    for count in (2, 5):
        x, ids = torch.randn(count, 96), torch.arange(count)
        product, rows = run(x, ids, marked)
        assert torch.equal(product, layer.product(x + 1, None) * 2) and torch.equal(rows, layer.look_up(ids))
    with pytest.raises(InputError, match="a compressed layer's weight was moved by the engine"):
        ops.linear(torch.randn(2, 96), torch.zeros(1), None, 64)


class RMSNorm(torch.nn.Module):
    """Stands for vLLM's."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(features) / 8, requires_grad=False)
        self.variance_epsilon = 1e-5

    def forward(self, x: Any) -> Any:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


def merged_layer(weights: Weights, *names: str, rows: int = 64) -> Any:
    """Some of the folder's matrices, one below the other, as a linear layer of vLLM's kind."""
    weight = Placeholder("merged", (rows * len(names), dict(weights)[names[0]].shape[1]), torch.float32)
    for at, name in enumerate(names):
        weight.parameter.data[at * rows : (at + 1) * rows].copy_(dict(weights)[name])
    layer = torch.nn.Module()
    object.__setattr__(layer, "_wcodec", made(weights, weight))
    layer.weight, layer.bias = ops.marker(layer._wcodec, torch.float32, CPU), None
    return layer


def test_results_of_operators_share_no_memory(weights: Weights) -> None:
    """Compilers take it for granted of operators, and nobody looks when they run."""
    table = Placeholder("q", (64, 96), torch.float32)
    table.parameter.data.copy_(dict(weights)["q"])
    looked_up = made(weights, table, looked_up=True)
    marked = ops.marker(looked_up, torch.float32, CPU)
    first, last = merged_layer(weights, "q"), merged_layer(weights, "wide", rows=96)
    half = blocks.Half(RMSNorm(96), first, last)
    half.after = half
    for count in (1, 3, 80):
        x, y, residual = torch.randn(count, 96), torch.randn(count, 64), torch.randn(count, 96)
        bias = torch.randn(64)
        calls = [
            (ops.linear, (x, marked, bias, 64)),
            (ops.embedding, (torch.arange(count) % 64, marked, 96)),
            (ops.normed, (x, None, first.weight, half.features)),
            (ops.normed, (x, torch.randn(count, 96), first.weight, half.features)),
            (ops.added, (y, residual, last.weight)),
        ]
        for operator_, args in calls:
            given = [tensor.clone() if isinstance(tensor, torch.Tensor) else tensor for tensor in args]
            results = operator_(*args)
            seen = [*args, *(results if isinstance(results, tuple) else (results,))]
            places = [tensor.untyped_storage().data_ptr() for tensor in seen if isinstance(tensor, torch.Tensor)]
            assert len(set(places)) == len(places), operator_
            assert all(torch.equal(t, u) for t, u in zip(args, given, strict=True) if isinstance(t, torch.Tensor))
            # Compilers go by the shapes and strides that are promised.
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fake = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in args]
                promised = operator_(*fake)
            for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, promised)), strict=True):
                assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        total, _ = ops.added(y, residual, last.weight)
        assert torch.allclose(total, residual + y @ decoded(weights, "wide").T, atol=1e-4)
        expected = half._norm(x) @ decoded(weights, "q").T
        assert torch.allclose(ops.normed(x, None, first.weight, half.features), expected, atol=1e-4)


# Decoder layers, of classes that stand for vLLM's; their functions say that they are vLLM's.


def of_vllm(place: str, name: str) -> Any:
    def claim(forward: Any) -> Any:
        forward.__module__, forward.__qualname__ = f"vllm.model_executor.models.{place}", f"{name}.forward"
        return forward

    return claim


class AddingNorm(RMSNorm):
    def forward(self, x: Any, residual: Any = None) -> Any:
        return super().forward(x) if residual is None else (super().forward(x + residual), x + residual)


AddingNorm.__name__ = "RMSNorm"


class Called(torch.nn.Module):
    """A linear layer of vLLM's kind."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_wcodec", layer._wcodec)
        self.weight, self.bias = layer.weight, None

    def forward(self, x: Any) -> Any:
        return self._wcodec.product(x, None), None


class SiluAndMul(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


class Attention(torch.nn.Module):
    def __init__(self, qkv: Any, o: Any) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = Called(qkv), Called(o)

    @of_vllm("mistral", "MistralAttention")
    def forward(self, positions: Any, hidden_states: Any) -> Any:
        qkv, _ = self.qkv_proj(hidden_states)
        return self.o_proj(qkv * positions[:, None])[0]


class ScaledAttention(Attention):
    @of_vllm("gemma3", "Gemma3Attention")
    def forward(self, positions: Any, hidden_states: Any, scale: float) -> Any:
        return super().forward(positions=positions, hidden_states=hidden_states) * scale


class Mlp(torch.nn.Module):
    def __init__(self, gates: Any, down: Any) -> None:
        super().__init__()
        self.gate_up_proj, self.act_fn, self.down_proj = Called(gates), SiluAndMul(), Called(down)

    @of_vllm("mistral", "MistralMLP")
    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]


class MistralLayer(torch.nn.Module):
    ada_rms_norm_t_cond = None

    def __init__(self, attention: Any, mlp: Any, norms: int = 2) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, mlp
        self.input_layernorm, self.post_attention_layernorm = AddingNorm(96), AddingNorm(96)
        if norms == 4:
            self.pre_feedforward_layernorm, self.post_feedforward_layernorm = AddingNorm(96), AddingNorm(96)

    @of_vllm("mistral", "MistralDecoderLayer")
    def forward(self, positions: Any, hidden_states: Any, residual: Any, t_cond: Any = None) -> Any:
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class GemmaLayer(MistralLayer):
    @of_vllm("gemma3", "Gemma3DecoderLayer")
    def forward(self, positions: Any, hidden_states: Any, residual: Any, **kwargs: Any) -> Any:
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states, **kwargs)
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, residual = self.pre_feedforward_layernorm(hidden_states, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden_states)), residual


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize(("kind", "attention", "norms", "others"), [
    (MistralLayer, Attention, 2, {"t_cond": None}), (GemmaLayer, ScaledAttention, 4, {"scale": 0.5}),
])  # fmt: skip
def test_layers_taken_apart_pass_on_what_attention_takes(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, kind: Any, attention: Any, norms: int, others: Any, joins: bool
) -> None:
    monkeypatch.setattr(blocks, "KINDS", {"cpu"})
    torch.manual_seed(2)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = [(merged_layer(weights, "q"), merged_layer(weights, "wide", rows=96)) for _ in range(2)]
            gates = [(merged_layer(weights, "q", "q"), merged_layer(weights, "wide", rows=96)) for _ in range(2)]
            pairs = zip(parts, gates, strict=True)
            self.layers = torch.nn.ModuleList([kind(attention(*one), Mlp(*other), norms) for one, other in pairs])

        @of_vllm("mistral", "MistralModel")
        def forward(self, positions: Any, hidden: Any) -> Any:
            residual = None
            for layer in self.layers:
                hidden, residual = layer(positions, hidden, residual, **others)
            return hidden + residual

    model = Model()
    for count in (1, 5, 80):
        positions, x = torch.rand(count), torch.randn(count, 96)
        model.layers[0].__class__ = model.layers[1].__class__ = kind
        expected = model(positions, x)
        assert blocks.fuse(model, CPU, joins=joins) == 2
        assert model.layers[1]._wcodec_block.joins_before is joins
        assert torch.allclose(model(positions, x), expected, atol=1e-4, rtol=1e-4)


class SharedExpert(Mlp):
    def __init__(self, gates: Any, down: Any, gate: Any) -> None:
        super().__init__(gates, down)
        self.expert_gate = gate

    @of_vllm("qwen3_moe", "Qwen3MoeMLP")
    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out if self.expert_gate is None else torch.sigmoid(self.expert_gate(x)) * out


def test_a_gate_of_a_shared_expert_is_not_lost(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KINDS", {"cpu"})
    gates, down = merged_layer(weights, "q", "q"), merged_layer(weights, "wide", rows=96)
    x = torch.randn(3, 96)
    for gate, fused in ((torch.nn.Linear(96, 1), 0), (None, 1)):
        model = torch.nn.Sequential(SharedExpert(gates, down, gate))
        expected = model(x)
        assert blocks.fuse(model, CPU) == fused
        assert torch.allclose(model(x), expected, atol=1e-5)


def test_a_folder_without_its_container(tmp_path: Path) -> None:
    with pytest.raises(wcodec.FileMissingError, match="its config says that the weights are compressed"):
        Weights(tmp_path)


def test_a_stack_that_misses_an_expert(tmp_path: Path) -> None:
    tensors = {f"experts.{i}": torch.ones(16, 64) * i for i in (0, 2)}
    wcodec.compress(tensors, tmp_path / "model.wcodec", progress=False)
    with pytest.raises(InputError, match="'experts' misses expert 1"):
        Weights(tmp_path)
