"""Compressing what is in a GPU's memory: the same bytes as from the CPU's, in the order of torch's streams.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import copy
import gc
from typing import Any

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import torch
from wcodec.nn import CompressedLinear

gpu = gpu_helpers.gpu
MIB = 1 << 20
# Bytes that are copied from a GPU at once.
PIECE = 32 * MIB


def made(*shape: int, dtype: Any = None, seed: int = 1) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype or torch.float32)


def encoded(tensors: dict[str, Any], **options: Any) -> bytes:
    return wcodec.compress_to_bytes(tensors, **options)[0]


def on_cpu(tensors: dict[str, Any]) -> dict[str, Any]:
    """Copies of the tensors on the CPU; names that share a tensor share its copy."""
    moved: dict[int, Any] = {}
    return {name: moved.setdefault(id(t), t.cpu()) for name, t in tensors.items()}


def test_tensors_of_every_dtype_and_layout_are_encoded_as_on_the_cpu() -> None:
    base = made(640, 320)
    tied = made(64, 128)
    integers = torch.arange(5000, device="cuda").reshape(100, 50)
    tensors = {
        "f32": base,
        "f16": base.half(),
        "bf16": base.bfloat16(),
        "f64": base.double(),
        "e4m3": base.to(torch.float8_e4m3fn),
        "e5m2": base.to(torch.float8_e5m2),
        "i8": integers.to(torch.int8),
        "u8": integers.to(torch.uint8),
        "i16": integers.to(torch.int16),
        "i64": integers,
        "bool": integers % 3 == 0,
        "complex": torch.complex(base[:9], base[9:18]),
        "conjugate": torch.complex(base[:9], base[9:18]).conj(),
        "turned": base.t(),
        "steps": base[::3, 5::2],
        "inner": base[7:100],
        "expanded": base[:1].expand(64, 320),
        "scalar": base[0, 0],
        "none": base[:0],
        "no columns": base[:, :0],
        "tied": tied,
        "tied again": tied,
    }
    data = encoded(tensors)
    assert data == encoded(on_cpu(tensors))
    with wcodec.open(data) as container:
        assert container.aliases == {"tied again": "tied"}
        for name in ("f16", "turned", "steps", "expanded"):
            # Results of int8 are compared above; here, the check is that it is the right tensor at all.
            assert torch.allclose(container[name].torch("float32"), tensors[name].cpu().float(), atol=0.05), name


@pytest.mark.parametrize("elements", [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE + 12_345])
def test_tensors_of_any_number_of_pieces(elements: int) -> None:
    tensor = torch.arange(elements, device="cuda", dtype=torch.int32).mul_(2_654_435).to(torch.uint8)
    kept = encoded({"w": tensor}, scheme="raw", coder="raw")
    assert torch.equal(wcodec.open(kept)["w"].torch(), tensor.cpu())


def test_what_a_stream_is_still_writing_is_waited_for() -> None:
    for stream in (torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            weight = torch.zeros(4096, 2048, device="cuda")
            other = made(4096, 4096)
            torch.cuda._sleep(200_000_000)
            for _ in range(8):
                other = other @ other / 64
            weight.copy_(made(4096, 2048, seed=7) + other.sum() * 0)
            turned = weight.t()
            data = encoded({"w": weight, "t": turned, "b": turned.bfloat16()})
            same = encoded(on_cpu({"w": weight, "t": turned, "b": turned.bfloat16()}))
        assert data == same


def model(dtype: Any = None) -> Any:
    torch.manual_seed(5)
    layers = [
        torch.nn.Embedding(1000, 256),
        torch.nn.Linear(256, 512),
        torch.nn.Linear(512, 256),
        torch.nn.Linear(256, 1000),
    ]
    found = torch.nn.Sequential(*layers).to(dtype or torch.bfloat16)
    found[3].weight = found[0].weight
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"coder": "huffman", "scale": "block"}, {"scheme": "raw"}, {"threads": 1}])
def test_models_are_compressed_as_on_the_cpu(dtype: Any, options: dict[str, Any]) -> None:
    original = model(dtype)
    there = copy.deepcopy(original).cuda()
    there[3].weight = there[0].weight
    reports = [wcodec.compress_(m, progress=False, fused=False, **options) for m in (original, there)]
    a, b = (m[1]._store.container for m in (original, there))
    assert a.extract(list(a)) == b.extract(list(b)) and a.aliases == b.aliases
    assert [r.stored_bytes for r in reports[0].replaced] == [r.stored_bytes for r in reports[1].replaced]
    ids = torch.arange(64)
    with torch.inference_mode():
        got, decoded = there(ids.cuda()), there
        wcodec.decompress_(decoded)
        assert torch.equal(got, decoded(ids.cuda()))


def test_conv1d_and_single_layers() -> None:
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    conv = torch.nn.Sequential(Conv1D(512, 256))
    there = copy.deepcopy(conv).cuda()
    for m in (conv, there):
        wcodec.compress_(m, progress=False)
    a, b = (m[0]._store.container for m in (conv, there))
    assert a.extract(list(a)) == b.extract(list(b))
    linear = torch.nn.Linear(256, 96)
    cpu, cuda = CompressedLinear.from_linear(linear), CompressedLinear.from_linear(copy.deepcopy(linear).cuda())
    assert [m._store.container.extract(["weight"]) for m in (cpu, cuda)][0] == cuda._store.container.extract(["weight"])


def test_no_more_memory_than_a_tensor_is_taken() -> None:
    tensors = {f"w{i}": made(4096, 2048 + i, dtype=torch.bfloat16) for i in range(8)}
    turned = {name: t.t() for name, t in tensors.items()}
    torch.cuda.synchronize()
    for given, copies in ((tensors, 0), (turned, 1)):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        encoded(given)
        largest = max(t.nbytes for t in given.values())
        assert torch.cuda.max_memory_allocated() - before <= copies * largest + 4096
        assert torch.cuda.memory_allocated() == before


def test_several_gpus() -> None:
    if torch.cuda.device_count() < 2:
        tensors = {"a": made(300, 200), "b": made(200, 300).cpu()}
    else:
        tensors = {"a": made(300, 200), "b": made(200, 300).to("cuda:1"), "c": made(20, 300).cpu(), "d": made(64, 64)}
    assert encoded(tensors) == encoded(on_cpu(tensors))


def test_errors_name_the_tensor() -> None:
    bad = made(100, 64)
    bad[17, 3] = float("nan")
    with pytest.raises(wcodec.InputError, match=r"tensor 'x': NaN at row 17, column 3"):
        encoded({"good": made(64, 64), "x": bad})
    freed = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).cuda()
    freed[1].weight.untyped_storage().resize_(0)
    with pytest.raises(wcodec.InputError, match=r"tensor '1.weight': its memory was freed"):
        wcodec.compress_(freed, progress=False)
    assert [type(m).__name__ for m in freed] == ["Linear", "Linear"]
    with pytest.raises(wcodec.InputError, match=r"tensor 'm': it is on the meta device"):
        encoded({"m": torch.empty(4, 4, device="meta")})


def test_while_a_graph_is_captured_it_is_refused() -> None:
    weight = made(256, 256)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            with pytest.raises(wcodec.WcodecError, match="cannot be part of a CUDA graph"):
                encoded({"w": weight})
            doubled = weight * 2
        finally:
            graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(doubled, weight * 2)


@pytest.mark.parametrize("after", [0, 1, 40])
def test_a_model_stays_whole_where_the_work_is_stopped(after: int) -> None:
    layers = [torch.nn.Linear(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(24)]
    found = torch.nn.Sequential(*layers)
    kept = [m.weight.detach().clone() for m in layers]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()

    def stop(tensor: str, done: int, total: int) -> None:
        if done * 100 >= after * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wcodec.compress_(found, progress=stop)
    assert list(found) == layers
    assert all(torch.equal(m.weight, k) for m, k in zip(layers, kept, strict=True))
    assert torch.cuda.memory_allocated() == before
    wcodec.compress_(found, progress=False)
    assert all(isinstance(m, CompressedLinear) for m in found)
