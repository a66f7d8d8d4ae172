"""Stacks of matrices and other large parameters of modules of any class: computed with as the decoded ones are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import wcodec
from torch import nn
from wcodec.nn import CompressedModule
from wcodec.nn._weights.store import Store

E, IN, OUT = 4, 64, 48


class Stacks(nn.Module):
    """A module with two stacks and a vector for each expert, and a way to compute with them."""

    def __init__(self, way: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(E, OUT, IN) / 8)
        self.up_bias = nn.Parameter(torch.randn(E, OUT))
        self.down = nn.Parameter(torch.randn(E, IN, OUT) / 8)
        self.register_buffer("factor", torch.full((1,), 0.5))
        self.act = nn.ReLU()
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(self, x)

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x) * self.factor

    @property
    def width(self) -> int:
        return int(self.up.shape[1])


def one_by_one(m: Any, x: torch.Tensor) -> torch.Tensor:
    return sum(F.linear(m.helper(F.linear(x, m.up[i], m.up_bias[i])), m.down[i]) for i in range(E))  # type: ignore[return-value]


def by_tensors(m: Any, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for index in torch.tensor([[3], [1]]):
        out = out + m.helper(x @ m.up[index[0]].T) @ m.down[index[0]].t()
    return out


def as_batches(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = torch.bmm(x.expand(E, -1, -1), m.up.transpose(1, 2)) + m.up_bias[:, None]
    return torch.matmul(m.helper(h), m.down.mT).sum(0)


def by_einsum(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = torch.einsum("ti,eoi->eto", x, m.up)
    return torch.einsum("eto,eio->ti", m.helper(h), m.down)


def chosen(m: Any, x: torch.Tensor) -> torch.Tensor:
    ids = torch.arange(len(x)) % E
    h = torch.einsum("ti,toi->to", x, m.up[ids])
    return torch.einsum("to,tio->ti", m.helper(h), m.down.index_select(0, ids))


def in_a_loop(m: Any, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for up, down in zip(m.up, m.down.unbind(0), strict=True):
        out += F.linear(m.helper(F.linear(x, up)), down)
    return out


def transposed(m: Any, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for up, down in zip(m.up.transpose(1, 2).contiguous(), m.down.permute(0, 2, 1), strict=True):
        out = out + m.helper(x @ up) @ down
    return out


def flattened(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = F.linear(x, m.up.view(-1, IN)).view(len(x), E, m.width)
    return (m.helper(h).unsqueeze(2) @ m.down.mT[None]).squeeze(2).sum(1)


def last(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(m.helper(F.linear(x, m.up[-1])), m.down[-1]).to(m.up.dtype) + m.up.new_zeros(())


def on_the_data(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = torch.addmm(m.up_bias[0], x, m.up.data[0].T)
    return m.helper(h) @ m.down.detach()[0].clone().T


WAYS = [
    one_by_one, by_tensors, as_batches, by_einsum, chosen, in_a_loop, transposed, flattened, last, on_the_data
]  # fmt: skip


class Model(nn.Module):
    """Something around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.experts = inner
        self.norm = nn.LayerNorm(IN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(self.norm(x))


def compressed(way: Callable[..., Any], dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Any, Any]:
    """A model, the same uncompressed with the decoded weights, and the report."""
    torch.manual_seed(0)
    model = Model(Stacks(way)).to(dtype).eval()
    report = wcodec.compress_(model, progress=False, **options)
    plain = copy.deepcopy(model)
    assert wcodec.decompress_(plain) == ["experts"] and type(plain.experts) is Stacks
    return model, plain, report


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_ways_to_compute(way: Callable[..., Any], dtype: torch.dtype) -> None:
    model, plain, report = compressed(way, dtype)
    assert [r.name for r in report.replaced] == ["experts"] and all(s.vectors for s in report.skipped)
    assert isinstance(model.experts, CompressedModule) and isinstance(model.experts, Stacks)
    assert set(dict(model.named_parameters())) == {"experts.up_bias", "norm.weight", "norm.bias"}
    x = torch.randn(5, IN, dtype=dtype)
    with torch.no_grad():
        wanted = plain(x)
        assert torch.equal(model(x), wanted)
    with torch.inference_mode():
        assert torch.equal(model(x), wanted)
    # With gradients, to the input and to what is left.
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    model.experts.up_bias.requires_grad_(), plain.experts.up_bias.requires_grad_()
    found, wanted = model(a), plain(b)
    assert torch.equal(found, wanted)
    found.square().sum().backward(), wanted.square().sum().backward()
    assert torch.equal(a.grad, b.grad)
    gradients = model.experts.up_bias.grad, plain.experts.up_bias.grad
    assert gradients[0] is None and gradients[1] is None or torch.equal(*gradients)


@pytest.mark.parametrize("way", [one_by_one, as_batches, in_a_loop], ids=lambda way: way.__name__)
def test_autocast_and_the_compiler(way: Callable[..., Any]) -> None:
    model, plain, _ = compressed(way)
    x = torch.randn(5, IN)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(x), plain(x))
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="eager")(x), plain(x))
    torch._dynamo.reset()


def test_only_what_is_used_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    rows = Store.rows
    monkeypatch.setattr(Store, "rows", lambda self, name, *args: names.append(name) or rows(self, name, *args))
    model, _, _ = compressed(by_tensors)
    names.clear()
    with torch.no_grad():
        model(torch.randn(2, IN))
    assert set(names) == {f"experts.{stack}.{i}" for stack in ("up", "down") for i in (1, 3)}
    names.clear()
    experts = model.experts
    assert experts.up.shape == (E, OUT, IN) and experts.up[2].dtype is torch.float32 and len(experts.down) == E
    assert experts.down[0].device.type == "cpu" and not names
    with pytest.raises(IndexError):
        experts.up[E]


def test_autograd_keeps_no_decoded_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain, _ = compressed(as_batches)
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    x = torch.randn(5, IN, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        plain(x)
    whole = [t for t in kept if t.untyped_storage().nbytes() == E * OUT * IN * 4]
    assert whole
    saved: list[Any] = []
    from wcodec.nn import own

    original = own._pack_saved
    monkeypatch.setattr(own, "_pack_saved", lambda tensor: saved.append(original(tensor)) or saved[-1])
    model(x).sum().backward()
    tensors = [s for s in saved if isinstance(s, torch.Tensor)]
    assert not any(t.untyped_storage().nbytes() == E * OUT * IN * 4 for t in tensors)
    assert sum(isinstance(s, tuple) for s in saved) == len(whole)


def test_copies_states_and_dtypes() -> None:
    model, plain, _ = compressed(one_by_one)
    x = torch.randn(3, IN)
    with torch.no_grad():
        wanted = model(x)
        assert torch.equal(copy.deepcopy(model)(x), wanted)
        model.experts.way = plain.experts.way = as_batches
        assert torch.equal(model(x), plain(x))
        model.experts.way = one_by_one
        torch.manual_seed(1)
        other = Model(Stacks(one_by_one)).eval()
        wcodec.compress_(other, progress=False)
        assert not torch.equal(other(x), wanted)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(x), wanted) and torch.equal(other.experts.up_bias, model.experts.up_bias)
        half = pickle.loads(pickle.dumps(model)).to(torch.bfloat16)
        assert half.experts.up.dtype is torch.bfloat16 and half(x.bfloat16()).dtype is torch.bfloat16
        assert torch.equal(half.experts.up.float(), model.experts.up.bfloat16().float())
    text = repr(model)
    assert "Stacks(up=4x48x64, down=4x64x48)" in text and "stored=" in text


def test_a_matrix_that_is_written_to_or_replaced() -> None:
    model, _, _ = compressed(one_by_one)
    with pytest.raises(wcodec.InputError, match="cannot be written to"):
        model.experts.up.mul_(2)
    with pytest.raises(wcodec.InputError, match="cannot be written to"):
        model.experts.up[0].zero_()
    with pytest.raises(wcodec.InputError, match="cannot be replaced"):
        model.experts.up = nn.Parameter(torch.zeros(E, OUT, IN))
    model.experts.way = as_batches


class Ragged(nn.Module):
    """Fewer matrices in one stack than in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(6, 32, IN))
        self.down = nn.Parameter(torch.randn(4, IN, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(F.linear(F.linear(x, self.gate[i]), self.down[i % 4]) for i in range(6))  # type: ignore[return-value]


class Viewed(nn.Module):
    """All experts in one matrix, one below the other."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4 * 32, IN))
        self.v = nn.Parameter(torch.randn(3, 8, 4, IN // 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.linear(x, self.w.view(-1, 32, IN)[1]) @ self.w.reshape((4, 32, IN))[torch.tensor(3)]
        h = h + torch.einsum("td,knmd->tk", h[:, : IN // 4], self.v).sum()
        return h + (x @ self.w.t()).sum() + self.w.view(2, 64, IN).sum() + self.w.view(32, 4, IN)[1].sum()


@pytest.mark.parametrize("kind", [Ragged, Viewed])
def test_other_shapes(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = Model(kind()).eval()
    report = wcodec.compress_(model, progress=False)
    assert len(report.replaced) == 1 and all(s.vectors for s in report.skipped)
    plain = copy.deepcopy(model)
    wcodec.decompress_(plain)
    a, b = (torch.randn(5, IN, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    found, wanted = model(a), plain(b)
    assert torch.equal(found, wanted)
    found.sum().backward(), wanted.sum().backward()
    assert torch.equal(a.grad, b.grad)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(a), wanted)


def test_a_view_decodes_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    rows = Store.rows
    model = Model(Viewed())
    wcodec.compress_(model, progress=False)
    monkeypatch.setattr(Store, "rows", lambda self, n, d, part: asked.append(part) or rows(self, n, d, part))
    model.experts.w.view(-1, 32, IN)[2].sum()
    assert asked == [(64, 96)]


class Table(nn.Embedding):
    """Rows times a factor, at an offset."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(ids + 2)


def test_tables_of_other_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Table(1000, 64), nn.Linear(64, 64)).eval()
    report = wcodec.compress_(model, progress=False)
    assert {r.kind for r in report.replaced} == {"CompressedTable", "CompressedLinear"}
    plain = copy.deepcopy(model)
    wcodec.decompress_(plain)
    ids = torch.tensor([[3, 900], [3, 4]])
    with torch.no_grad():
        assert torch.equal(model(ids), plain(ids))
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(ids), plain(ids))
    torch._dynamo.reset()
    asked: list[Any] = []
    rows = Store.rows
    monkeypatch.setattr(Store, "rows", lambda self, n, d, part: asked.append(part) or rows(self, n, d, part))
    model[0](ids)
    assert asked == [(0, 16), (896, 912)]
    assert wcodec.compress_(nn.Sequential(Table(1000, 64), nn.Linear(64, 64)), embeddings=False, progress=False).skipped


@pytest.mark.parametrize("residency", ["device", "host", "auto"])
def test_settings(residency: str) -> None:
    model, plain, _ = compressed(one_by_one, residency=residency, cache="1MB")
    x = torch.randn(3, IN)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
        assert model.experts.cached and torch.equal(model(x), plain(x))


# Mixtures of transformers


def small() -> dict[str, Any]:
    return {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64, "pad_token_id": 0,
        "eos_token_id": 1, "bos_token_id": 2,
    }  # fmt: skip


def gpt_oss(t: Any) -> Any:
    return t.GptOssForCausalLM, t.GptOssConfig(**small(), head_dim=16, num_local_experts=4, num_experts_per_tok=2)


def llama4(t: Any) -> Any:
    config = {"intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 16}
    return t.Llama4ForCausalLM, t.Llama4TextConfig(**small(), **config)


def jetmoe(t: Any) -> Any:
    return t.JetMoeForCausalLM, t.JetMoeConfig(**small(), kv_channels=16, num_local_experts=4)


def dbrx(t: Any) -> Any:
    ffn = {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2}
    attention = {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}
    config = t.DbrxConfig(
        d_model=64, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=128, ffn_config=ffn, attn_config=attention
    )
    return t.DbrxForCausalLM, config


def xlnet(t: Any) -> Any:
    return t.XLNetLMHeadModel, t.XLNetConfig(vocab_size=128, d_model=64, n_layer=2, n_head=4, d_inner=96)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [gpt_oss, llama4, jetmoe, dbrx, xlnet], ids=lambda make: make.__name__)
def test_mixtures(make: Callable[[Any], Any], dtype: torch.dtype, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.20")
    if make is xlnet and dtype is not torch.float32:
        # transformers' own code computes in float32 only.
        return
    torch.manual_seed(0)
    kind, config = make(transformers)
    model = kind._from_config(config, dtype=dtype).eval()
    for name, p in model.named_parameters():
        # Biases that are there have values.
        if name.endswith("bias"):
            torch.nn.init.normal_(p)
    biases = {n: p.clone() for n, p in model.named_parameters() if n.endswith("_bias")}
    report = wcodec.compress_(model, progress=False)
    matrices = sum(s.bytes for s in report.skipped if not s.vectors)
    assert any(isinstance(m, CompressedModule) for m in model.modules()) and matrices < 0.03 * report.bytes_before
    plain = copy.deepcopy(model)
    wcodec.decompress_(plain)
    if hasattr(plain, "set_experts_implementation"):
        plain.set_experts_implementation("eager")
    ids = torch.arange(3, 15)[None]

    def logits(m: Any) -> torch.Tensor:
        with torch.no_grad():
            return m(input_ids=ids).logits  # type: ignore[no-any-return]

    wanted = logits(plain)
    assert torch.equal(logits(model), wanted)
    model.save_pretrained(tmp_path / "saved")
    for loaded in (
        wcodec.load_model(tmp_path / "saved"),
        type(plain).from_pretrained(tmp_path / "saved", dtype=dtype),
    ):
        assert torch.equal(logits(loaded), wanted)
        assert any(isinstance(m, CompressedModule) for m in loaded.modules())
        assert all(torch.equal(loaded.get_parameter(n), p) for n, p in biases.items())
    plain.save_pretrained(tmp_path / "plain")
    again = wcodec.load_model(tmp_path / "plain", scheme="raw")
    assert any(isinstance(m, CompressedModule) for m in again.modules()) and torch.equal(logits(again), wanted)
