"""torch tensors in and out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import wcodec

torch = pytest.importorskip("torch")


def test_state_dict_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.Linear(64, 10)).to(torch.bfloat16)
    path = tmp_path / "m.wcodec"
    wcodec.save_file(module.state_dict(), path)
    loaded = wcodec.load_file(path, "torch")
    module.load_state_dict(loaded, strict=True)
    assert all(t.dtype == torch.bfloat16 for t in loaded.values())
    again = tmp_path / "again.wcodec"
    wcodec.save_file(module.state_dict(), again, scheme="raw")
    assert all(torch.equal(t, loaded[n]) for n, t in wcodec.load_file(again, "torch").items())


def test_tied_parameters_become_aliases() -> None:
    embed = torch.nn.Embedding(50, 64)
    head = torch.nn.Linear(64, 50, bias=False)
    head.weight = embed.weight
    module = torch.nn.ModuleDict({"embed": embed, "head": head})
    data, report = wcodec.compress_to_bytes(module.state_dict())
    assert report.aliases == {"head.weight": "embed.weight"}
    loaded = wcodec.open(data)
    assert torch.equal(loaded["head.weight"].torch(), loaded["embed.weight"].torch())


def test_views_of_one_storage_are_not_tied_unless_equal() -> None:
    base = torch.randn(64, 128)
    tensors = {"base": base, "same": base.view(64, 128), "turned": base.T, "part": base[:32], "flat": base.view(-1)}
    data, report = wcodec.compress_to_bytes(tensors, scheme="raw", coder="zstd")
    assert report.aliases == {"same": "base"}
    container = wcodec.open(data)
    assert all(torch.equal(container[n].torch(), t) for n, t in tensors.items())


def test_every_torch_dtype() -> None:
    bits = torch.randint(0, 256, (64,), dtype=torch.uint8)
    names = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
    names += ["float8_e5m2", "float8_e4m3fn", "uint16", "uint32", "uint64"]
    tensors = {n: bits.view(getattr(torch, n)) for n in names if hasattr(torch, n)}
    tensors["bool"] = bits > 100
    container = wcodec.open(wcodec.compress_to_bytes(tensors, scheme="raw", coder="zstd")[0])
    for name, tensor in tensors.items():
        decoded = container[name].torch()
        assert decoded.dtype == tensor.dtype and decoded.shape == tensor.shape
        assert torch.equal(decoded.view(torch.uint8), tensor.view(torch.uint8)), name


def test_odd_torch_tensors() -> None:
    conjugate = torch.randn(4, 4, dtype=torch.complex64).conj()
    tensors = {
        "parameter": torch.nn.Parameter(torch.randn(3, 64)),
        "conjugate": conjugate,
        "empty": torch.zeros(0, 3, dtype=torch.bfloat16),
        "0-d": torch.tensor(4, dtype=torch.int64),
        "strided": torch.randn(64, 64)[::3, ::2],
    }
    container = wcodec.open(wcodec.compress_to_bytes(tensors, scheme="raw", coder="raw")[0])
    for name, tensor in tensors.items():
        assert torch.equal(container[name].torch(), tensor.detach())


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(2, 2).to_sparse(), "dense"),
        (torch.zeros(2, 2, device="meta"), "meta"),
        (torch.zeros(2, 2, dtype=torch.complex128), "complex128"),
    ],
)
def test_what_has_no_plain_bytes_is_refused(tensor: torch.Tensor, said: str) -> None:
    with pytest.raises(wcodec.InputError, match=said) as caught:
        wcodec.compress_to_bytes({"it": tensor})
    assert caught.value.tensor == "it"


def test_torch_and_numpy_give_the_same_file(rng: np.random.Generator) -> None:
    array = rng.standard_normal((40, 96)).astype(np.float32)
    assert wcodec.compress_to_bytes({"w": array})[0] == wcodec.compress_to_bytes({"w": torch.from_numpy(array)})[0]


def test_layers_take_torch() -> None:
    layer = torch.randint(-127, 128, (20, 70), dtype=torch.int8)
    data, _ = wcodec.Encoder().encode_layer(layer.T)
    assert np.array_equal(wcodec.Decoder().decode_layer(data)[0], layer.T.numpy())
