"""Everything that stays as it was is named with its bytes and a reason, and the rest is compressed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import wcodec
from torch import nn
from torch.nn.utils import parametrizations, prune
from wcodec.nn import CompressedLayer, CompressedLinear, CompressedSumLinear
from wcodec.nn._layers.forms import form_of


def told(model: nn.Module, report: Any) -> list[str]:
    """Names of parameters with matrices that stay, and that no name in the report leads to."""
    names = [s.name for s in report.skipped]
    return [
        name
        for name, p in model.named_parameters()
        if not nn.parameter.is_lazy(p)
        and sum(n > 1 for n in p.shape) > 1
        and not any(name == n or name.startswith(f"{n}.") for n in names)
    ]


class Bare(nn.Module):
    """Parameters of all kinds, in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Parameter(torch.randn(2, 3))
        self.vector = nn.Parameter(torch.randn(300))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Root(nn.Module):
    """A model with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(4, 64))
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + self.token.sum(0))


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: nn.MultiheadAttention(64, 4),
    "attention of other widths": lambda: nn.MultiheadAttention(64, 4, kdim=32, vdim=32),
    "lstm": lambda: nn.LSTM(64, 64, 2),
    "gru": lambda: nn.GRU(64, 64),
    "cell": lambda: nn.LSTMCell(64, 64),
    "convolution": lambda: nn.Conv2d(8, 8, 3),
    "transposed convolution": lambda: nn.ConvTranspose1d(8, 8, 3),
    "convolution with a norm": lambda: parametrizations.weight_norm(nn.Conv1d(8, 8, 3)),
    "convolution with an old norm": lambda: nn.utils.weight_norm(nn.Conv1d(8, 8, 3)),
    "bilinear": lambda: nn.Bilinear(16, 16, 16),
    "bag": lambda: nn.EmbeddingBag(100, 16),
    "bare": Bare,
    "norm of two dimensions": lambda: nn.LayerNorm((4, 16)),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_every_module_with_matrices_is_named(name: str) -> None:
    model = nn.Sequential(OTHERS[name](), nn.Linear(64, 64), nn.LayerNorm(64))
    left = sum(p.nbytes for p in model[0].parameters())
    report = wcodec.compress_(model, progress=False)
    assert [r.name for r in report.replaced] == ["1"] and told(model, report) == []
    assert {s.name: s.bytes for s in report.skipped} == {"0": left, "2": 512}
    assert not report.skipped[0].vectors and report.skipped[1].vectors
    # The bias of the layer stays, too.
    assert report.left_bytes == left + 512 + 256 == sum(p.nbytes for p in model.parameters())
    assert "skipped 0 (" in repr(report) and "1 module without a matrix (512 B)" in repr(report)
    assert "left: " in repr(report) and report.to_dict()["left_bytes"] == report.left_bytes


def test_a_parameter_of_the_model_itself_is_named() -> None:
    model = Root()
    report = wcodec.compress_(model, progress=False)
    assert told(model, report) == [] and "the model itself" in report.skipped[0].why
    assert not report.skipped[0].by_choice


def test_a_model_of_nothing_that_is_known_says_what_it_has() -> None:
    with pytest.raises(wcodec.InputError, match="nothing to compress in Sequential: 0: a Conv2d"):
        wcodec.compress_(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)), progress=False)
    with pytest.raises(wcodec.InputError, match="no linear layers"):
        wcodec.compress_(nn.Sequential(nn.LayerNorm(8)), progress=False)
    model = nn.Sequential(nn.Linear(64, 64), nn.Conv2d(8, 8, 3))
    wcodec.compress_(model, progress=False)
    with pytest.raises(wcodec.InputError, match="compressed already"):
        wcodec.compress_(model, progress=False)


def without_weight(layer: Any) -> nn.Module:
    layer.weight = None
    return layer  # type: ignore[no-any-return]


def buffered(layer: Any) -> nn.Module:
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", weight)
    return layer  # type: ignore[no-any-return]


def with_parameter(layer: nn.Module) -> nn.Module:
    layer.register_parameter("scale", nn.Parameter(torch.ones(64)))
    return layer


def with_child(layer: nn.Module) -> nn.Module:
    layer.adapter = nn.LayerNorm(64)
    return layer


def with_forward(layer: Any) -> nn.Module:
    before = layer.forward
    layer.forward = lambda x: 2 * before(x)
    return layer  # type: ignore[no-any-return]


def integers(layer: Any) -> nn.Module:
    layer.weight = nn.Parameter(torch.ones(64, 64, dtype=torch.int8), requires_grad=False)
    return layer  # type: ignore[no-any-return]


def pruned_bias(layer: nn.Module) -> nn.Module:
    prune.l1_unstructured(layer, "bias", 0.5)
    return layer


STRANGE: dict[str, tuple[Callable[[nn.Linear], nn.Module], str]] = {
    "weight norm": (parametrizations.weight_norm, "computed from others"),
    "spectral norm": (parametrizations.spectral_norm, "computed from others"),
    "orthogonal": (parametrizations.orthogonal, "computed from others"),
    "old weight norm": (nn.utils.weight_norm, "computed from others"),
    "old spectral norm": (nn.utils.spectral_norm, "computed from others"),
    "pruned": (lambda layer: prune.l1_unstructured(layer, "weight", 0.3), "computed from others"),
    "pruned bias": (pruned_bias, "bias is computed from others"),
    "lazy": (lambda layer: nn.LazyLinear(64), "not made yet"),
    "none": (without_weight, "no weight"),
    "buffer": (buffered, "a buffer"),
    "a parameter beside": (with_parameter, "scale beside its weight"),
    "a module beside": (with_child, "adapter beside its weight"),
    "another forward": (with_forward, "forward was replaced"),
    "integers": (integers, "dtype is torch.int8"),
    "empty": (lambda layer: nn.Linear(64, 0), "empty"),
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_layers_that_are_more_are_left_and_the_rest_is_compressed(name: str) -> None:
    make, why = STRANGE[name]
    torch.manual_seed(0)
    model = nn.Sequential(make(nn.Linear(64, 64)), nn.Linear(64, 64)).eval()
    x = torch.randn(2, 64)
    runs = name not in ("none", "integers", "empty", "lazy")
    wanted = model[0](x) if runs else None
    report = wcodec.compress_(model, progress=False)
    assert [r.name for r in report.replaced] == ["1"] and told(model, report) == []
    assert why in {s.name: s.why for s in report.skipped}["0"]
    if runs:
        assert torch.equal(model[0](x), wanted)
    if name == "lazy":
        assert model(x).shape == (2, 64)


class Added(nn.Linear):
    """Adds its bias to a rounded product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class Same(nn.Linear):
    """As torch's, in other words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class Renamed(nn.Linear):
    """As torch's, of another class."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.width = width


class Doubled(nn.Linear):
    """Something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Trained(nn.Linear):
    """Another thing while it is trained."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight) if self.training else super().forward(x)


class Long(nn.Linear):
    """Another thing for long inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias) if len(x) < 4 else 2 * x


class Replaces(nn.Linear):
    """Its weight is another each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight = nn.Parameter(self.weight.detach() * 1)
        return super().forward(x)


def test_which_classes_compute_the_same() -> None:
    forms = {
        kind.__name__: form_of(kind) for kind in (nn.Linear, Added, Same, Renamed, Doubled, Trained, Long, Replaces)
    }
    assert forms == {
        "Linear": "linear", "Added": "sum", "Same": "linear", "Renamed": "linear",
        "Doubled": None, "Trained": None, "Long": None, "Replaces": None,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [Added, Same, Doubled, Trained, Long], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_other_classes(kind: type[nn.Linear], bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(64, 64, bias)).to(dtype).eval()
    report = wcodec.compress_(model, progress=False)
    assert len(report.replaced) == 1 and isinstance(model[0], CompressedLayer)
    plain = copy.deepcopy(model)
    assert wcodec.decompress_(plain) == ["0"] and type(plain[0]) is kind
    for training in (False, True):
        model.train(training), plain.train(training)
        for shape in ((3, 64), (2, 5, 64), (64,), (5, 64)):
            x = torch.randn(shape, dtype=dtype)
            y = x.clone().requires_grad_()
            x.requires_grad_()
            wanted, found = plain(y), model(x)
            assert torch.equal(found, wanted)
            found.sum().backward(), wanted.sum().backward()
            assert torch.equal(x.grad, y.grad)
    again = pickle.loads(pickle.dumps(model.eval()))
    x = torch.randn(2, 64, dtype=dtype)
    assert torch.equal(again(x), model(x)) and torch.equal(copy.deepcopy(model)(x), model(x))
    # A state goes in and out as that of any layer.
    other = nn.Sequential(kind(64, 64, bias)).to(dtype).eval()
    wcodec.compress_(other, progress=False)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


def test_a_class_that_replaces_its_weight_is_left() -> None:
    model = nn.Sequential(Replaces(64, 64), nn.Linear(64, 64))
    report = wcodec.compress_(model, progress=False)
    assert [s.why for s in report.skipped] == ["its forward replaces the weight"] and len(report.replaced) == 1


def test_attributes_and_hooks_stay() -> None:
    model = nn.Sequential(Renamed(64), nn.Linear(64, 64))
    seen: list[str] = []
    handles = [layer.register_forward_hook(lambda *_: seen.append("after")) for layer in model]
    handles.append(model[1].register_forward_pre_hook(lambda *_: seen.append("before")))
    wcodec.compress_(model, progress=False)
    assert model[0].width == 64 and type(model[0]) is CompressedLinear
    model(torch.ones(2, 64))
    assert seen == ["after", "before", "after"]
    for handle in handles:
        handle.remove()
    model(torch.ones(2, 64))
    assert len(seen) == 3
    wcodec.decompress_(model)
    assert type(model[0]) is Renamed and model[0].width == 64


def test_falcon() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.FalconConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=128, bias=True
    )
    model = transformers.FalconForCausalLM(config).to(torch.bfloat16).eval()
    report = wcodec.compress_(model, progress=False)
    assert sum(type(m) is CompressedSumLinear for m in model.modules()) == 8
    assert all(s.vectors for s in report.skipped) and report.left_bytes < 0.02 * report.bytes_before
    plain = copy.deepcopy(model)
    wcodec.decompress_(plain)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, plain(ids).logits)


def test_data_parallel_is_refused_with_advice() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    wcodec.compress_(model, progress=False)
    with pytest.raises(wcodec.InputError, match=r"DataParallel.*DistributedDataParallel"):
        model[0]._replicate_for_data_parallel()
    # With nothing to copy it runs.
    assert torch.nn.DataParallel(model)(torch.ones(2, 64)).shape == (2, 64)
