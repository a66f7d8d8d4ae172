"""Products straight from compressed weights: near the exact ones, and the same bits however they are launched.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import exact_products
import gpu_helpers
import pytest
import torch.nn.functional as F
import wcodec
import wcodec.nn
from gpu_helpers import torch

# pytest looks for fixtures in the module.
gpu, compiler = gpu_helpers.gpu, gpu_helpers.compiler

SHAPES = ((16, 64), (40, 20), (150, 192), (333, 130), (1040, 2048), (48, 5632), (2064, 512))
SCHEMES: dict[str, dict[str, Any]] = {
    "rows": {"scheme": "int8", "scale": "row"},
    "tensor": {"scheme": "int8", "scale": "tensor"},
    "blocks": {"scheme": "int8", "scale": "block", "block": 64},
    "scalar": {"scheme": "rate", "bits": 3.5, "trellis": False},
    "fine": {"scheme": "rate", "bits": 6.5, "trellis": False},
    "trellis": {"scheme": "rate", "bits": 4.0, "trellis": True},
}
DTYPES = (torch.bfloat16, torch.float16)
WAYS: dict[str, dict[str, Any]] = {
    "huffman": {"coder": "huffman"},
    "quad": {"coder": "huffman", "layout": "quad"},
    "rans": {"coder": "rans"},
    # So many tiles a strip that warps walk over several chunks each.
    "narrow": {"coder": "huffman", "layout": "pair", "tile": 64},
    "narrow quad": {"coder": "huffman", "layout": "quad", "tile": 64},
}


def fits(scheme: str, way: str) -> bool:
    """Whether such tensors are stored in tiles: chunks of quads in narrow tiles, with scales of blocks, would take more
    than what is not coded."""
    return (scheme, way) != ("blocks", "narrow quad")


def most_vectors(scheme: str, way: str) -> int:
    """The most vectors of a call: more are for kernels of newer GPUs, with one scale in a row at most."""
    many = "quad" in way and scheme != "blocks" and torch.cuda.get_device_capability() >= (9, 0)
    return 128 if many else 16


def fewer(count: int) -> int:
    """The least number of vectors for which the kernels are those of ``count``, for matrices that are not large."""
    return next(least for least in (65, 33, 17, 2, 1) if least <= count)


def weights(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Rows of different sizes, with tails, and a row of zeros."""
    tensor = torch.randn(shape, generator=generator) * torch.rand((shape[0], 1), generator=generator) * 0.1
    tensor *= 1 + 8 * (torch.rand(shape, generator=generator) < 0.002)
    tensor[1] = 0
    return tensor.to(torch.bfloat16)


def container(tmp_path: Path, tensors: dict[str, torch.Tensor], **options: Any) -> Path:
    path = tmp_path / "x.wcodec"
    wcodec.compress(tensors, path, progress=False, overwrite=True, **options)
    return path


def error(y: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, in L2."""
    return float((y.double() - exact).norm() / exact.norm())


def poisoned(count: int, dtype: torch.dtype) -> None:
    """Has torch's next small tensors be of memory that is full of NaN."""
    for size in (count, 64, 512, 4096, 65536):
        torch.full((size,), float("nan"), dtype=dtype, device="cuda")


@pytest.mark.parametrize(("scheme", "way"), [(s, w) for s in SCHEMES for w in WAYS if fits(s, w)])
def test_products_are_near_the_exact_ones(scheme: str, way: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    tensors = {f"w{i}": weights(shape, generator) for i, shape in enumerate(SHAPES)}
    options = WAYS[way] | SCHEMES[scheme]
    if options["scheme"] == "rate":
        # Small tensors have no so few bits: what they take is no matter here.
        options["rules"] = {"w0": "int8", "w1": "int8"}
    path = container(tmp_path, tensors, **options)
    decoder, stored = wcodec.GpuDecoder(path), wcodec.open(path)
    taken = 0
    for name, tensor in tensors.items():
        if decoder.can_fuse(name) is not None:
            continue
        taken += 1
        exact_weight = decoder.decode(name, torch.float32).double()
        for dtype in DTYPES:
            bias = torch.randn(tensor.shape[0], generator=generator).to("cuda", dtype) * 0.1
            most = most_vectors(scheme, way)
            assert decoder.most_vectors(name) == most
            for count in (n for n in (1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128) if n <= most):
                with_bias = count % 2 == 0
                x = torch.randn((count, tensor.shape[1]), generator=generator).to("cuda", dtype)
                products = decoder.products([(name, bias if with_bias else None)], dtype)
                assert products.most == most
                poisoned(count * tensor.shape[0], dtype)
                (y,) = products(x)
                exact = x.double() @ exact_weight.T + (bias.double() if with_bias else 0)
                torch_error = error(F.linear(x, exact_weight.to(dtype), bias if with_bias else None), exact)
                assert y.shape == exact.shape and y.dtype == dtype
                assert error(y, exact) <= 1.05 * torch_error, (name, dtype, count)
                # Fewer vectors give the same bits; one alone is multiplied in whole numbers.
                least = fewer(count)
                few = products(x[-least:])[0]
                assert torch.equal(few.view(torch.int16), y[-least:].view(torch.int16)), (name, count)
                alone = F.linear(x[-1:], exact_weight.to(dtype), bias if with_bias else None)
                (one,) = products(x[-1:])
                assert error(one, exact[-1:]) <= 1.05 * error(alone, exact[-1:]), (name, dtype)
                added = bias.float().cpu().numpy() if with_bias else None
                reference = exact_products.one_vector(stored[name], x[-1].float().cpu().numpy(), added)
                assert reference is None or gpu_helpers.same(one[0], torch.from_numpy(reference).to(dtype)), (
                    name,
                    dtype,
                )
    decoder.check()
    stored.close()
    assert taken >= 3


@pytest.mark.parametrize("trellis", (False, True))
@pytest.mark.parametrize("way", WAYS)
def test_factors_of_columns_are_multiplied_into_vectors(way: str, trellis: bool, tmp_path: Path) -> None:
    """Results are those of the matrix without factors and of vectors times factors: of one vector to the bit."""
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    tensors = {f"w{i}": weights(shape, generator) for i, shape in enumerate(SHAPES)}
    columns = {name: 2 ** (4 * torch.rand(t.shape[1], generator=generator) - 2).numpy() for name, t in tensors.items()}
    rate = {"scheme": "rate", "bits": 4.0, "trellis": trellis, "rules": {"w0": "int8", "w1": "int8"}}
    path = container(tmp_path, tensors, columns=columns, **WAYS[way], **rate)
    decoder, stored = wcodec.GpuDecoder(path), wcodec.open(path)
    taken = 0
    for name in list(tensors)[2:]:
        assert stored[name].column_factors() is not None
        factors = torch.from_numpy(stored[name].column_factors()).cuda()
        for dtype in (*DTYPES, torch.float32):
            assert gpu_helpers.same(decoder.decode(name, dtype), stored[name].torch(dtype))
        if decoder.can_fuse(name) is not None:
            continue
        taken += 1
        # Without factors; what the division rounds is far below what products do.
        weight = decoder.decode(name, torch.float32).double() / factors.double()
        for dtype in DTYPES:
            products, most = (
                decoder.products([(name, None)], dtype),
                most_vectors("trellis" if trellis else "scalar", way),
            )
            assert products.most == most
            for count in (n for n in (1, 2, 8, 9, 16, 17, 33, 64, 100) if n <= most):
                x = torch.randn((count, weight.shape[1]), generator=generator).to("cuda", dtype)
                scaled = (x.float() * factors).to(dtype)
                exact = scaled.double() @ weight.T
                (y,) = products(x)
                assert error(y, exact) <= 1.05 * error(F.linear(scaled, weight.to(dtype)), exact), (name, dtype, count)
                least = fewer(count)
                few = products(x[-least:])[0]
                assert torch.equal(few.view(torch.int16), y[-least:].view(torch.int16)), (name, count)
                reference = exact_products.one_vector(stored[name], scaled[-1].float().cpu().numpy())
                assert gpu_helpers.same(products(x[-1:])[0][0], torch.from_numpy(reference).to(dtype)), (name, dtype)
    decoder.check()
    stored.close()
    assert taken >= 3


@pytest.mark.parametrize("scheme", ("rows", "scalar"))
def test_large_matrices(scheme: str, tmp_path: Path) -> None:
    """Those whose products with few vectors are done by kernels of many, where there are some, and some just below."""
    generator = torch.Generator().manual_seed(gpu_helpers.seed())
    shapes = {"8": (4096, 2048), "below 8": (4080, 2048), "16": (1536, 2048), "below 16": (1520, 2048)}
    tensors = {name: weights(shape, generator) for name, shape in shapes.items()}
    decoder = wcodec.GpuDecoder(container(tmp_path, tensors, **WAYS["quad"], **SCHEMES[scheme]))
    together = decoder.products([(name, None) for name in shapes])
    for count in (n for n in (2, 8, 9, 16, 40) if n <= together.most):
        x = torch.randn((count, 2048), generator=generator).to("cuda", torch.bfloat16)
        for name, y in zip(shapes, together(x), strict=True):
            exact_weight = decoder.decode(name, torch.float32).double()
            exact = x.double() @ exact_weight.T
            plain = F.linear(x, exact_weight.bfloat16())
            assert error(y, exact) <= 1.05 * error(plain, exact), (name, count)
            (alone,) = decoder.products([(name, None)])(x)
            assert torch.equal(alone, y), (name, count)
    decoder.check()


@pytest.mark.parametrize("size", (1e4, 1e-6, 1e30))
def test_large_and_small_activations(size: float, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    # Results are numbers that f16 holds.
    tensor = weights((128, 512), generator) * (1e-2 if size > 1 else 1e4)
    decoder = wcodec.GpuDecoder(container(tmp_path, {"w": tensor}, scheme="rate", bits=4.0, coder="huffman"))
    for dtype in DTYPES:
        if size > 1e5 and dtype == torch.float16:
            continue
        for count in (1, 3):
            x = (torch.rand((count, 512), generator=generator, dtype=torch.float64) * size).to("cuda", dtype)
            (y,) = decoder.products([("w", None)], dtype)(x)
            exact = x.double() @ decoder.decode("w", torch.float32).double().T
            assert error(y, exact) < (2**-8 if dtype == torch.bfloat16 else 2**-10)


@pytest.mark.parametrize("way", WAYS)
def test_bits_depend_on_nothing_else(way: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    shapes = {"q": (512, 1024), "k": (128, 1024), "v": (128, 1024), "head": (4000, 1024)}
    tensors = {name: weights(shape, generator) for name, shape in shapes.items()}
    path = container(tmp_path, tensors, scheme="rate", bits=4.0, **WAYS[way])
    decoder = wcodec.GpuDecoder(path)
    # The head passes the ring in pieces.
    host = wcodec.HostDecoder(path, ring=1 << 20)
    for count in (n for n in (1, 5, 16, 40) if n <= most_vectors("scalar", way)):
        x = torch.randn((count, 1024), generator=generator).to("cuda", torch.bfloat16)
        together = decoder.products([(name, None) for name in shapes])(x)
        for (name, shape), want in zip(shapes.items(), together, strict=True):
            assert want.shape == (count, shape[0])
            alone = decoder.products([(name, None)])
            assert torch.equal(alone(x)[0], want), name
            streamed = host.products([(name, None)])
            streamed.prefetch()
            assert torch.equal(streamed(x)[0], want), name
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                (captured,) = alone(x)
            captured.fill_(float("nan"))
            graph.replay()
            assert torch.equal(captured, want), name
        assert all(
            torch.equal(a, b) for a, b in zip(host.products([(n, None) for n in shapes])(x), together, strict=True)
        )
    decoder.check()
    host.check()


def test_damaged_chunks_give_nan(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    path = container(tmp_path, {"w": weights((512, 2048), generator)}, scheme="rate", bits=4.0, coder="huffman")
    with wcodec.open(path) as opened:
        (data,) = [s for s in opened["w"].segments if s.role == "data"]
    x = torch.ones((2, 2048), dtype=torch.bfloat16, device="cuda")
    sound = wcodec.GpuDecoder(path).products([("w", None)])(x)[0]
    found = 0
    for place in range(data.offset, data.offset + data.length, data.length // 7):
        stored = bytearray(path.read_bytes())
        stored[place : place + 8] = bytes(255 - b for b in stored[place : place + 8])
        broken = tmp_path / "broken.wcodec"
        broken.write_bytes(stored)
        decoder = wcodec.GpuDecoder(broken, check=False)
        (y,) = decoder.products([("w", None)])(x)
        nan = y.isnan()
        if not nan.any():
            continue
        found += 1
        with pytest.raises(wcodec.CorruptError, match="tensor 'w'"):
            decoder.check()
        # Whole strips of 16 rows, of all vectors.
        assert (nan.view(2, -1, 16).float().mean(-1) % 1 == 0).all() and (nan[0] == nan[1]).all()
        assert (y == sound).any()
    assert found >= 3


def test_what_is_refused(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(6)
    tensors = {"w": weights((64, 128), generator), "wide": weights((64, 256), generator)}
    path = container(tmp_path, tensors, scheme="int8", coder="huffman")
    decoder = wcodec.GpuDecoder(path)
    products = decoder.products([("w", None)])
    for x in (
        torch.zeros((products.most + 1, 128), dtype=torch.bfloat16, device="cuda"),
        torch.zeros((1, 128), dtype=torch.float16, device="cuda"),
        torch.zeros((1, 127), dtype=torch.bfloat16, device="cuda"),
        torch.zeros((1, 128), dtype=torch.bfloat16),
    ):
        with pytest.raises(wcodec.InputError, match=f"products take up to {products.most} vectors of 128"):
            products(x)
    with pytest.raises(wcodec.InputError, match="matrices of one width"):
        decoder.products([("w", None), ("wide", None)])
    with pytest.raises(wcodec.InputError, match="contiguous elements of BF16"):
        decoder.products([("w", torch.zeros(63, dtype=torch.bfloat16, device="cuda"))])
    with pytest.raises(wcodec.InputError, match="F32"):
        decoder.products([("w", None)], torch.float32)
    assert "1 tensor" in repr(products) and products.slots == 0


def test_why_not(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(7)
    tensor = {"w": weights((512, 512), generator)}
    for options, why in (
        ({"scheme": "lossless"}, "scheme lossless"),
        ({"scheme": "int8", "transpose": "w"}, "stored transposed"),
        ({"scheme": "int8", "layout": "byte"}, "layout byte"),
        ({"scheme": "int8", "scale": "block", "block": 32}, "a scale for each 32 columns"),
    ):
        decoder = wcodec.GpuDecoder(container(tmp_path, tensor, coder="huffman", **options))
        assert decoder.can_fuse("w") == decoder.unfused("w") == why, json.dumps(options)
        assert decoder.most_vectors("w") == 0
        with pytest.raises(wcodec.InputError, match=why):
            decoder.products([("w", None)])


class Block(torch.nn.Module):
    """Layers that read one input thrice, as attention does, and one that reads their result."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj = torch.nn.Linear(512, 2048, bias), torch.nn.Linear(512, 512, bias)
        self.v_proj, self.o_proj = torch.nn.Linear(512, 512, bias), torch.nn.Linear(2048, 512, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(torch.tanh(q) * (k + v).repeat(*[1] * (x.dim() - 1), 4))


def model(bias: bool, **options: Any) -> torch.nn.Module:
    torch.manual_seed(8)
    layers = torch.nn.Sequential(Block(bias), torch.nn.GELU(), Block(bias))
    with torch.no_grad():
        for p in layers.parameters():
            # Not uniform: of such weights int8 has nothing to code.
            p.copy_(torch.randn(p.shape) * 0.03 * (1 + 8 * (torch.rand(p.shape) < 0.002)))
    layers = layers.to("cuda", torch.bfloat16)
    return wcodec.compress_(layers, coder="huffman", fused=False, **options) and layers


def replayed(layers: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Result of a CUDA graph of a pass when it is replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layers(x)
    out.fill_(7)
    graph.replay()
    return out


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("scheme", ("int8", "rate"))
def test_models_multiply_with_what_is_compressed(scheme: str, bias: bool) -> None:
    layers = model(bias, **({"scheme": "int8"} if scheme == "int8" else {"bits": 5.0}))
    x = torch.randn((2, 3, 512), device="cuda", dtype=torch.bfloat16)
    many = torch.randn((wcodec.ProductBatch.MOST + 1, 512), device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        decoded, decoded_many = layers(x), layers(many)
        assert wcodec.nn.fuse_(layers) == 8
        fused = layers(x)
        assert error(fused, decoded.double()) < 0.02 and not torch.equal(fused, decoded)
        assert torch.equal(layers(x), fused)
        first = layers[0]
        assert torch.equal(first.k_proj(x[1]), first.k_proj(x)[1])
        # Too many tokens are decoded for, as before.
        assert torch.equal(layers(many), decoded_many)
        assert torch.equal(replayed(layers, x), fused)
        strided = torch.randn((512, 4), device="cuda", dtype=torch.bfloat16).t()
        assert torch.equal(layers(strided), layers(strided.contiguous()))
        with pytest.raises(wcodec.InputError, match="features"):
            first.q_proj(x[..., :511])
        # Another dtype has providers of its own, and biases elsewhere; on the way, some of them lose bits.
        half = layers.to(torch.float16)(x.to(torch.float16))
        assert error(half, decoded.double()) < 0.02
        layers.to(torch.bfloat16)
        assert error(layers(x), fused.double()) < 1e-3
        wcodec.nn.fuse_(layers, False)
        assert error(layers(x), decoded.double()) < 1e-3
        if not bias:
            assert torch.equal(layers(x), decoded)


def test_few_tokens_need_no_memory_for_decoded_weights() -> None:
    scratch = wcodec.nn._weights.workspace.scratch_bytes
    place = torch.device("cuda", torch.cuda.current_device())
    # Graphs and models of tests before, which have memory of their own.
    gc.collect()
    layers = model(True, bits=5.0)
    x = torch.randn((3, 512), device="cuda", dtype=torch.bfloat16)
    many = torch.randn((wcodec.ProductBatch.MOST + 1, 512), device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        want = layers(many)
        taken = scratch(place)
        wcodec.nn.fuse_(layers)
        without = scratch(place)
        assert 0 <= without < taken
        assert torch.equal(replayed(layers, x), layers(x)) and scratch(place) == without
        # More tokens take it, nobody takes it from those that have it, and a graph can be the first that decodes.
        assert torch.equal(layers(many), want) and scratch(place) > without
        other = model(True, bits=5.0)
        wcodec.nn.fuse_(other)
        assert scratch(place) > without
        assert torch.equal(replayed(other, many), want)


def test_compiled_models_multiply_with_what_is_compressed(compiler: None) -> None:
    layers = model(True, scheme="int8")
    wcodec.nn.fuse_(layers)
    x = torch.randn((1, 512), device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        want = layers(x)
        compiled = torch.compile(layers, mode="reduce-overhead")
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert error(compiled(x), want.double()) < 0.02


def test_what_is_streamed_is_multiplied_with() -> None:
    layers, streamed = model(True), model(True, residency="host")
    x = torch.randn((3, 512), device="cuda", dtype=torch.bfloat16)
    many = torch.randn((80, 512), device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        decoded = layers(x)
        wcodec.nn.fuse_(layers)
        wcodec.nn.fuse_(streamed)
        want, want_many = layers(x), layers(many)
        assert not torch.equal(want, decoded)
        for _ in range(3):
            assert torch.equal(streamed(x), want)
            assert torch.equal(streamed(many), want_many)

        # In two streams, threads and passes that interleave.
        def run() -> list[Any]:
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
                results = [streamed(x) for _ in range(20)]
                torch.cuda.current_stream().synchronize()
            return results

        found = gpu_helpers.side_by_side([run, run])
        assert all(len(results) == 20 for results in found)
        assert all(torch.equal(y, want) for results in found for y in results)
        # Passes that wait on the host cannot be captured.
        with pytest.raises(wcodec.WcodecError, match="captured|CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            streamed(x)
