"""Computations of the plug-in of vLLM on a GPU: merged layers, tables and experts of a rank, eager, in CUDA graphs and
compiled. vLLM itself is not needed.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import torch
from wcodec._integrations.vllm import blocks, ops
from wcodec._integrations.vllm.deferred import Placeholder
from wcodec._integrations.vllm.experts import RankExperts
from wcodec._integrations.vllm.parts import Linear
from wcodec._integrations.vllm.rank import Rank
from wcodec._integrations.vllm.weights import Weights
from wcodec.nn._weights import expert_groups

F = torch.nn.functional
gpu = gpu_helpers.gpu
DTYPE = torch.bfloat16
WIDTH, EXPERTS, INNER = 256, 4, 128
# Experts that are large enough for layout `quad`.
ROUTED, ROUTED_WIDTH, ROUTED_INNER = 16, 512, 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vllm")
    torch.manual_seed(5)
    tensors = {
        "q": torch.randn(256, WIDTH) / 16,
        "k": torch.randn(64, WIDTH) / 16,
        "v": torch.randn(64, WIDTH) / 16,
        "o": torch.randn(WIDTH, 256) / 16,
        "gate": torch.randn(2 * INNER, WIDTH) / 16,
        "up": torch.randn(2 * INNER, WIDTH) / 16,
        "down": torch.randn(WIDTH, 2 * INNER) / 16,
        "table": torch.randn(1000, WIDTH),
        **{f"experts.up.{i}": torch.randn(2 * INNER, WIDTH) / 16 for i in range(EXPERTS)},
        **{f"experts.down.{i}": torch.randn(WIDTH, INNER) / 11 for i in range(EXPERTS)},
    }
    wcodec.compress({k: v.to(DTYPE) for k, v in tensors.items()}, place / "model.wcodec", progress=False)
    return place


def rank_of(folder: Path, fused: bool) -> tuple[Rank, dict[str, Any], dict[str, Any]]:
    """A rank on the GPU, the folder's tensors without data, and decoded."""
    weights = Weights(folder)
    decoded = {name: weights.container[name].torch(DTYPE).cuda() for name in weights.container}
    device = torch.device("cuda", torch.cuda.current_device())
    return Rank(weights, device, {}, fused=fused), dict(weights), decoded


def merged(folder: Path, fused: bool) -> tuple[Linear, Any]:
    """Rows of two matrices, cut in the middle, and padding; and the weight that they are."""
    rank, found, decoded = rank_of(folder, fused)
    weight = Placeholder("qk", (192, WIDTH), DTYPE)
    weight.parameter.data[:128].copy_(found["q"].narrow(0, 128, 128))
    weight.parameter.data[128:160].copy_(found["k"].narrow(0, 32, 32))
    taken: list[Linear] = []
    assert rank.linear(weight, taken.append)
    rank.make()
    parts = decoded["q"][128:], decoded["k"][32:], torch.zeros(32, WIDTH, dtype=DTYPE, device="cuda")
    return taken[0], torch.cat(parts)


def captured(run: Any) -> tuple[Any, Any]:
    """A graph of what ``run`` does, and the output of its replays."""
    with torch.no_grad():
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run()
    return graph, out


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 100])
def test_merged_layers(folder: Path, fused: bool, tokens: int) -> None:
    layer, weight = merged(folder, fused)
    x, bias = torch.randn(tokens, WIDTH, dtype=DTYPE, device="cuda"), torch.randn(192, dtype=DTYPE, device="cuda")
    found = layer.product(x, bias)
    assert torch.allclose(found.float(), F.linear(x.float(), weight.float(), bias.float()), atol=0.03, rtol=0.02)
    graph, out = captured(lambda: layer.product(x, bias))
    out.fill_(7)
    graph.replay()
    assert torch.equal(out, found)


def test_tables(folder: Path) -> None:
    rank, found, decoded = rank_of(folder, False)
    weight = Placeholder("table", (500, WIDTH), DTYPE)
    weight.parameter.data.copy_(found["table"].narrow(0, 500, 500))
    taken: list[Linear] = []
    assert rank.linear(weight, taken.append, looked_up=True)
    rank.make()
    ids = torch.tensor([0, 499, 17, 17], device="cuda")
    expected = decoded["table"][500:][ids]
    assert torch.equal(taken[0].look_up(ids), expected)
    graph, out = captured(lambda: taken[0].look_up(ids))
    out.fill_(7)
    graph.replay()
    assert torch.equal(out, expected)


def test_experts(folder: Path) -> None:
    rank, found, decoded = rank_of(folder, False)
    first, second = (
        Placeholder("w13", (EXPERTS, 2 * INNER, WIDTH), DTYPE),
        Placeholder("w2", (EXPERTS, WIDTH, INNER), DTYPE),
    )
    first.parameter.data.copy_(found["experts.up"])
    second.parameter.data.copy_(found["experts.down"])
    taken: list[RankExperts] = []

    def activation(x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    assert rank.experts(first, second, activation, None, 0.5, taken.append)
    rank.make()
    x = torch.randn(9, WIDTH, dtype=DTYPE, device="cuda")
    shares, ids = torch.rand(9, 2, device="cuda"), torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(9)]).cuda()
    expected = torch.zeros(9, WIDTH, device="cuda")
    for token in range(9):
        for share, number in zip(shares[token], ids[token].tolist(), strict=True):
            inner = activation(F.linear(x[token].float(), decoded[f"experts.up.{number}"].float()))
            expected[token] += share * F.linear(inner, decoded[f"experts.down.{number}"].float())
    close = {"atol": 0.1, "rtol": 0.05}
    assert torch.allclose(taken[0].mix(x, shares, ids).float(), expected, **close)
    graph, out = captured(lambda: taken[0].mix(x, shares, ids))
    for order in (ids, ids.flip(1)):
        # Routes of tokens may change from one replay to the next.
        ids.copy_(order.clone())
        out.fill_(7)
        graph.replay()
        assert torch.allclose(out.float(), taken[0].mix(x, shares, ids).float(), **close)


@pytest.fixture(scope="module", params=["int8", "rate", "trellis"])
def quads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts in layout ``quad``, with gates and values apart."""
    place = tmp_path_factory.mktemp("quads")
    torch.manual_seed(6)
    shapes = {
        "gate": (ROUTED_INNER, ROUTED_WIDTH),
        "up": (ROUTED_INNER, ROUTED_WIDTH),
        "down": (ROUTED_WIDTH, ROUTED_INNER),
    }
    tensors = {f"{name}.{i}": torch.randn(shape) / 16 for name, shape in shapes.items() for i in range(ROUTED)}
    options: dict[str, Any] = {"coder": "huffman", "layout": "quad", "progress": False}
    if request.param != "int8":
        options |= {"scheme": "rate", "bits": 4.0, "trellis": request.param == "trellis"}
    wcodec.compress({k: v.to(DTYPE) for k, v in tensors.items()}, place / "model.wcodec", **options)
    return place


def routed_experts(folder: Path, places: Any = None, shares_first: bool = False) -> tuple[RankExperts, Any]:
    """Experts of a rank, and a function of the exact result."""
    rank, found, decoded = rank_of(folder, True)
    here = list(range(ROUTED)) if places is None else [int((places == i).nonzero()) for i in range(ROUTED // 2)]
    first = Placeholder("w13", (len(here), 2 * ROUTED_INNER, ROUTED_WIDTH), DTYPE)
    second = Placeholder("w2", (len(here), ROUTED_WIDTH, ROUTED_INNER), DTYPE)
    for at, number in enumerate(here):
        matrix = first.parameter.data[at]
        for name, target in (("gate", matrix[:ROUTED_INNER]), ("up", matrix[ROUTED_INNER:])):
            target.copy_(found[name].unbind()[number])
        second.parameter.data[at].copy_(found["down"].unbind()[number])
    taken: list[RankExperts] = []

    def activation(x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    assert rank.experts(first, second, activation, places, 0.5, taken.append, shares_first)
    rank.make()

    def exact(x: Any, shares: Any, ids: Any) -> Any:
        out = torch.zeros(x.shape, device="cuda")
        for token, (of, numbers) in enumerate(zip(shares.float(), ids.tolist(), strict=True)):
            for share, number in zip(of, numbers, strict=True):
                if number < 0 or number not in here:
                    continue
                gate, up, down = (decoded[f"{name}.{number}"].float() for name in ("gate", "up", "down"))
                vector = x[token].float() * (share if shares_first else 1)
                out[token] += (1 if shares_first else share) * (down @ (F.silu(gate @ vector) * (up @ vector)))
        return out

    return taken[0], exact


def near(found: Any, want: Any) -> bool:
    return bool((found.float() - want).norm() <= 0.01 * want.norm())


@pytest.mark.parametrize("tokens", [1, 8, 9, 32, 40, 400])
@pytest.mark.parametrize("kind", ["all", "some", "shares first"])
def test_routed_experts(quads: Path, tokens: int, kind: str) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels of many vectors need compute capability 9.0")
    places = (
        torch.tensor([-1, 2, 0, -1, 3, 1, -1, -1, 7, -1, 5, -1, 4, -1, -1, 6], dtype=torch.int32).cuda()
        if kind == "some"
        else None
    )
    experts, exact = routed_experts(quads, places, kind == "shares first")
    routed, grouped = experts._ways()
    assert routed is not None and grouped is not None and experts._ways()[0] is routed
    x = torch.randn(tokens, ROUTED_WIDTH, dtype=DTYPE, device="cuda")

    def routes() -> Any:
        ids = torch.stack([torch.randperm(ROUTED)[:3] for _ in range(tokens)]).to(torch.int32).cuda()
        ids[torch.rand(ids.shape) < 0.1] = -1
        return ids

    with torch.inference_mode():
        shares, ids = torch.rand(tokens, 3, device="cuda"), routes()
        few = experts.mix(x, shares, ids)
        assert near(few, exact(x, shares, ids))
        # 400 tokens are too many for 16 experts, but for a graph.
        if tokens < 400:
            assert torch.equal(few, experts.mix(x, shares, ids.long()))
        graph, out = captured(lambda: experts.mix(x, shares, ids))
        for order in (ids.clone(), routes(), torch.full_like(ids, 1), torch.full_like(ids, -1)):
            # Routes change from one replay to the next; here once all lead to one expert, and once none to any.
            ids.copy_(order)
            out.fill_(7)
            graph.replay()
            assert near(out, exact(x, shares, ids))
            if tokens < 400:
                assert torch.equal(out, experts.mix(x, shares, ids))
            if (order < 0).all():
                assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("together", [False, True])
def test_experts_in_groups(quads: Path, monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    # Three experts and a little more: five groups, and a last one of one expert.
    each = 3 * ROUTED_WIDTH * ROUTED_INNER * DTYPE.itemsize
    monkeypatch.setattr(expert_groups, "GROUP_BYTES", 3 * each + 100)
    experts, exact = routed_experts(quads)
    _, grouped = experts._ways()
    assert grouped is not None and [len(numbers) for numbers, _ in grouped._groups] == [3, 3, 3, 3, 3, 1]
    grouped._together &= together
    for tokens in (500, 7, 500):
        x = torch.randn(tokens, ROUTED_WIDTH, dtype=DTYPE, device="cuda")
        ids = torch.stack([torch.randperm(ROUTED)[:3] for _ in range(tokens)]).cuda()
        shares = torch.rand(tokens, 3, device="cuda")
        with torch.inference_mode():
            want = exact(x, shares, ids)
            assert near(grouped.mix(x, shares, ids), want)
            # Between them the launches for routed experts, which read the same compressed weights.
            assert near(experts.mix(x[:4], shares[:4], ids[:4]), want[:4])
            assert near(grouped.mix(x, shares, ids.int()), want)


def test_compiled_into_graphs(folder: Path) -> None:
    layer, weight = merged(folder, False)
    marked = ops.marker(layer, DTYPE, torch.device("cuda"))

    def run(x: Any) -> Any:
        return ops.linear(x * 2, marked, None, 192) + 1

    x = torch.randn(5, WIDTH, dtype=DTYPE, device="cuda")
    with torch.inference_mode():
        found = torch.compile(run, fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            out = found(x)
        assert torch.allclose(out.float(), F.linear(x.float() * 2, weight.float()) + 1, atol=0.03, rtol=0.02)


# Decoder layers, of classes that stand for vLLM's.


class RMSNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(WIDTH, dtype=DTYPE, device="cuda") / 8, requires_grad=False)
        self.variance_epsilon = 1e-5

    def forward(self, x: Any, residual: Any = None) -> Any:
        total = x if residual is None else x + residual
        normed = F.rms_norm(total.float(), (WIDTH,), self.weight.float(), self.variance_epsilon).to(DTYPE)
        return normed if residual is None else (normed, total)


class SiluAndMul(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


class Merged(torch.nn.Module):
    """A linear layer of vLLM's kind, of several matrices of the folder."""

    def __init__(self, folder: Path, names: tuple[str, ...], bias: bool = False) -> None:
        super().__init__()
        rank, found, decoded = rank_of(folder, True)
        weight = Placeholder(names[0], (sum(decoded[n].shape[0] for n in names), decoded[names[0]].shape[1]), DTYPE)
        at = 0
        for name in names:
            end = at + decoded[name].shape[0]
            weight.parameter.data[at:end].copy_(found[name])
            at = end
        taken: list[Linear] = []
        assert rank.linear(weight, taken.append)
        rank.make()
        object.__setattr__(self, "_wcodec", taken[0])
        self.exact = torch.cat([decoded[name] for name in names]).float()
        self.weight = ops.marker(taken[0], DTYPE, torch.device("cuda"))
        values = torch.randn(at, dtype=DTYPE, device="cuda")
        self.bias = torch.nn.Parameter(values, requires_grad=False) if bias else None

    def forward(self, x: Any) -> Any:
        if torch.compiler.is_compiling():
            return ops.linear(x, self.weight, self.bias, self._wcodec.rows), None
        return self._wcodec.product(x, self.bias), None


class LlamaAttention(torch.nn.Module):
    def __init__(self, folder: Path, bias: bool) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = Merged(folder, ("q", "k", "v"), bias), Merged(folder, ("o",), bias)

    def forward(self, positions: Any, hidden_states: Any) -> Any:
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([256, 64, 64], -1)
        output, _ = self.o_proj(q * (k + v).repeat(1, 4) + positions[:, None])
        return output


class LlamaMLP(torch.nn.Module):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = Merged(folder, ("gate", "up")), Merged(folder, ("down",))
        self.act_fn = SiluAndMul()

    def forward(self, x: Any) -> Any:
        x, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(x))
        return x


class LlamaDecoderLayer(torch.nn.Module):
    def __init__(self, folder: Path, bias: bool) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(folder, bias), LlamaMLP(folder)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()

    def forward(self, positions: Any, hidden_states: Any, residual: Any) -> Any:
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class LlamaModel(torch.nn.Module):
    def __init__(self, folder: Path, bias: bool, layers: int = 3) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([LlamaDecoderLayer(folder, bias) for _ in range(layers)])
        self.norm = RMSNorm()

    def forward(self, positions: Any, hidden_states: Any) -> Any:
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        return self.norm(hidden_states, residual)[0]


for _kind in (LlamaAttention, LlamaMLP, LlamaDecoderLayer, LlamaModel):
    _kind.forward.__module__ = "vllm.model_executor.models.llama"


def exact(model: Any, positions: Any, x: Any) -> Any:
    """The model's result in float32, with its decoded weights."""

    def norm(module: Any, h: Any) -> Any:
        return F.rms_norm(h, (WIDTH,), module.weight.float(), module.variance_epsilon)

    def linear(layer: Any, h: Any) -> Any:
        return F.linear(h, layer.exact, None if layer.bias is None else layer.bias.float())

    h = x.float()
    for layer in model.layers:
        q, k, v = linear(layer.self_attn.qkv_proj, norm(layer.input_layernorm, h)).split([256, 64, 64], -1)
        h = h + linear(layer.self_attn.o_proj, q * (k + v).repeat(1, 4) + positions[:, None].float())
        gate, up = linear(layer.mlp.gate_up_proj, norm(layer.post_attention_layernorm, h)).chunk(2, -1)
        h = h + linear(layer.mlp.down_proj, F.silu(gate) * up)
    return norm(model.norm, h)


TOKENS = (1, 5, 8, 16, 17, 40, 64, 65, 300)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_decoder_layers(folder: Path, bias: bool, ranks: int) -> None:
    device = torch.device("cuda")
    model = LlamaModel(folder, bias)
    with torch.inference_mode():
        inputs = {
            n: (torch.randn(n, device=device).to(DTYPE), torch.randn(n, WIDTH, device=device).to(DTYPE)) for n in TOKENS
        }
        want = {n: exact(model, *inputs[n]) for n in TOKENS}
        plain = {n: model(*inputs[n]) for n in TOKENS}
        # With several ranks gates alone are fused.
        assert blocks.fuse(model, device, ranks=ranks) == 3
        assert [layer._wcodec_block.joins_before for layer in model.layers if ranks == 1] == [False, True, True][
            : 3 * (ranks == 1)
        ]
        for n in TOKENS:
            found = model(*inputs[n])
            # As near to the exact result as modules by themselves.
            assert error(found, want[n]) <= 1.5 * error(plain[n], want[n]) + 1e-3, (
                n,
                error(found, want[n]),
                error(plain[n], want[n]),
            )
            graph, out = captured(lambda n=n: model(*inputs[n]))
            out.fill_(7)
            graph.replay()
            assert torch.equal(out, found), n


def test_decoder_layers_that_nothing_may_follow(folder: Path) -> None:
    model = LlamaModel(folder, False)
    with torch.inference_mode():
        positions, x = torch.randn(4, device="cuda").to(DTYPE), torch.randn(4, WIDTH, device="cuda").to(DTYPE)
        assert blocks.fuse(model, torch.device("cuda"), joins=False) == 3
        hidden, residual = model.layers[0](positions, x, None)
        again = LlamaDecoderLayer(folder, False)
        for one, other in zip(again.parameters(), model.layers[0].parameters(), strict=True):
            if one.numel() == WIDTH:
                one.copy_(other)
        want, added = again(positions, x, None)
        assert error(hidden + residual, (want + added).float()) < 0.01


def error(found: Any, want: Any) -> float:
    return float((found.float() - want).norm() / want.norm())


def test_decoder_layers_compiled(folder: Path) -> None:
    model = LlamaModel(folder, True)
    with torch.inference_mode():
        positions, x = torch.randn(7, device="cuda").to(DTYPE), torch.randn(7, WIDTH, device="cuda").to(DTYPE)
        blocks.fuse(model, torch.device("cuda"))
        want = model(positions, x)
        found = torch.compile(model, fullgraph=True)(positions, x)
        # The compiler rounds what lies between in other places.
        assert error(found, want.float()) < 0.01
