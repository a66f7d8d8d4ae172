"""Parts of tensors as containers of their own: the same weights, and what decodes from them."""

import numpy as np
import pytest
import torch
import wcodec
from wcodec import nn
from wcodec._file.shards import Shard, even, narrow, narrowed
from wcodec.nn._weights.store import Store


def model() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"col": (128, 192), "row": (96, 512), "odd": (50, 130), "stack": (4, 32, 64), "bias": (128,)}
    return {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


KINDS = [
    {},
    {"coder": "huffman", "layout": "pair"},
    {"scale": "block"},
    {"coder": "zstd"},
    {"scheme": "lossless"},
    {"bits": 4, "scheme": "rate"},
    {"bits": 3, "scheme": "rate", "trellis": True},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda o: "-".join(map(str, o.values())) or "int8")
def test_parts_of_all_ranks_are_the_whole(options: dict[str, object]) -> None:
    whole = wcodec.Container.open(wcodec.compress_to_bytes(model(), progress=False, **options)[0])
    for ranks in (2, 4):
        for axis in (0, 1):
            # Scales per block are cut at multiples of 16 columns.
            names = [n for n in whole if len(whole[n].shape) > axis and (n != "odd" or options.get("scale") != "block")]
            parts = [
                narrow(whole, [Shard(n, axis, even(whole[n].shape[axis], r, ranks)) for n in names])
                for r in range(ranks)
            ]
            for name in names:
                found = np.concatenate([part[name].numpy() for part in parts], axis)
                assert found.tobytes() == whole[name].numpy().tobytes(), (name, axis)
                assert {part[name].scheme for part in parts} <= {whole[name].scheme, "raw"}
                if whole[name].makes_symbols and len(whole[name].shape) == 2:
                    found = np.concatenate([part[name].symbols() for part in parts], axis)
                    assert (found == whole[name].symbols()).all()


def test_bytes_of_a_rank_are_its_share() -> None:
    weight = torch.randn(1024, 2048)
    whole = wcodec.Container.open(wcodec.compress_to_bytes({"w": weight}, bits=4, scheme="rate", progress=False)[0])
    for axis, length in ((0, 1024), (1, 2048)):
        for ranks in (2, 4, 8):
            part = narrow(whole, [Shard("w", axis, even(length, ranks - 1, ranks))])
            assert part["w"].stored_bytes <= whole["w"].stored_bytes / ranks * 1.04


def test_layers_run_from_parts() -> None:
    linear = torch.nn.Linear(192, 128)
    layer = nn.CompressedLinear.from_linear(linear)
    shards = [Shard("weight", 0, even(128, 1, 2), "rows"), Shard("weight", 1, even(192, 0, 2), "columns")]
    store = Store(narrow(layer._store.container, shards))
    bias = narrowed(linear.bias.detach(), 0, even(128, 1, 2))
    rows = nn.CompressedLinear(store, "rows", 192, 64, bias)
    columns = nn.CompressedLinear(store, "columns", 96, 128)
    x = torch.randn(3, 192)
    assert torch.equal(rows.weight, layer.weight[64:]) and torch.equal(columns.weight, layer.weight[:, :96])
    torch.testing.assert_close(rows(x), layer(x)[:, 64:])
    torch.testing.assert_close(columns(x[:, :96]), x[:, :96] @ layer.weight[:, :96].t())


def test_packed_matrices_are_divided_piece_by_piece() -> None:
    whole = wcodec.Container.open(wcodec.compress_to_bytes(model(), progress=False)[0])
    ranges = even(128, 1, 2, pieces=2)
    part = narrow(whole, [Shard("col", 0, ranges), Shard("bias", 0, ranges)])
    weight, bias = whole["col"].torch(), whole["bias"].torch()
    assert torch.equal(part["col"].torch(), torch.cat([weight[32:64], weight[96:]]))
    assert torch.equal(part["bias"].torch(), torch.cat([bias[32:64], bias[96:]]))
    assert torch.equal(narrowed(bias, 0, ranges), part["bias"].torch())


def test_tied_tensors_and_metadata() -> None:
    weight = torch.randn(64, 64)
    data, _ = wcodec.compress_to_bytes({"a": weight, "b": weight}, metadata={"who": "me"}, progress=False)
    whole = wcodec.Container.open(data)
    (tied,) = [name for name in whole if whole[name].alias_of is not None]
    part = narrow(whole, [Shard(tied, 0, ((0, 32),), "part"), Shard.whole(whole, "a")], verify=True)
    assert list(part) == ["part", "a"] and part.metadata == {"who": "me"}
    assert torch.equal(part["part"].torch(), whole["a"].torch()[:32])
    assert part["a"].stored_bytes == whole["a"].stored_bytes


def test_wrong_parts() -> None:
    whole = wcodec.Container.open(wcodec.compress_to_bytes(model(), progress=False)[0])
    with pytest.raises(wcodec.TensorNotFoundError, match="did you mean 'col'"):
        narrow(whole, [Shard("cols", 0, ((0, 1),))])
    with pytest.raises(wcodec.InputError, match="no dimension 2"):
        narrow(whole, [Shard("col", 2, ((0, 1),))])
    with pytest.raises(wcodec.InputError, match="which has 128"):
        narrow(whole, [Shard("col", 0, ((0, 129),))])
    with pytest.raises(wcodec.InputError, match="nothing for rank 3 of 4"):
        even(3, 3, 4)
    with pytest.raises(wcodec.InputError, match="not 2 equal pieces"):
        even(7, 0, 2, pieces=2)
    blocks = wcodec.Container.open(wcodec.compress_to_bytes(model(), scale="block", progress=False)[0])
    with pytest.raises(wcodec.InputError, match="multiples of 16"):
        narrow(blocks, [Shard("odd", 1, ((8, 130),))])
