"""Models with compressed layers on a GPU: bit for bit what the decoded weights compute, also in CUDA graphs and when
compiled; memory that does not grow; what is said when something is wrong.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_helpers
import numpy as np
import pytest
import wcodec
from command import call, document
from gpu_helpers import NO_GPU, torch
from wcodec._models import running
from wcodec._models.running import cache_name
from wcodec.nn import CompressedEmbedding, CompressedLinear

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

# pytest looks for fixtures in the module.
gpu, coder, compiler = gpu_helpers.gpu, gpu_helpers.coder, gpu_helpers.compiler
DEVICE = "cuda"
RESIDENCIES = ("device", "host")
TOKENS = 64


def small(seed: int = 3, layers: int = 3, hidden: int = 256, vocabulary: int = 2000, dtype: Any = None) -> Any:
    """A Llama with random weights that have the tails of real ones."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or torch.bfloat16).eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                values = rng.standard_t(4, tuple(parameter.shape)).astype(np.float32) / 30
                parameter.copy_(torch.from_numpy(values))
    return model.to(DEVICE)


def compressed(original: Any, **options: Any) -> Any:
    """The model with compressed layers; the original stays as it is."""
    model = copy.deepcopy(original)
    wcodec.compress_(model, calibrate=False, progress=False, fused=False, **options)
    return model


def decoded(original: Any) -> Any:
    """The model with plain layers that hold what the CPU decodes."""
    model = compressed(copy.deepcopy(original).to("cpu"))
    wcodec.decompress_(model)
    return model.to(DEVICE)


def prompt(seed: int = 0, batch: int = 2, length: int = 24) -> Any:
    return torch.randint(1, 1000, (batch, length), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def logits(model: Any, ids: Any = None, mask: Any = None) -> Any:
    with torch.inference_mode():
        return model(prompt() if ids is None else ids, attention_mask=mask, use_cache=False).logits.clone()


def text(model: Any, tokens: int = TOKENS, batch: int = 2) -> Any:
    """Tokens of greedy generation."""
    ids = prompt(1, batch, 8)
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **length)


def linears(model: Any) -> list[CompressedLinear]:
    return [m for m in model.modules() if isinstance(m, CompressedLinear)]


@dataclass(frozen=True)
class Case:
    """A model, the same with decoded weights, and what that computes."""

    original: Any
    plain: Any
    logits: Any
    text: Any

    @classmethod
    def of(cls, original: Any) -> Case:
        plain = decoded(original)
        return cls(original, plain, logits(plain), text(plain))


@pytest.fixture(scope="module", params=["random", "real"])
def case(request: pytest.FixtureRequest, model: Path) -> Case:
    if NO_GPU:
        pytest.fail(NO_GPU)
    if request.param == "random":
        return Case.of(small())
    return Case.of(transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(DEVICE).eval())


@pytest.fixture(scope="module")
def deep() -> Case:
    """A model of many equal blocks, so that some can stay on the device and some not."""
    if NO_GPU:
        pytest.fail(NO_GPU)
    return Case.of(small(layers=16, vocabulary=1000))


# Results


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_models(case: Case, coder: str, residency: str) -> None:
    """All coders have the same symbols, so all are equal to one model, and to each other."""
    model = compressed(case.original, coder=coder, residency=residency)
    assert {layer.residency for layer in linears(model)} == {residency} and model.lm_head.coder == coder
    for _ in range(2):
        assert torch.equal(logits(model), case.logits)
    assert torch.equal(text(model), case.text)
    wcodec.decompress_(model)
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], p) for name, p in case.plain.named_parameters())
    assert torch.equal(logits(model), case.logits)


@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dtypes(dtype: str, residency: str) -> None:
    original = small(dtype=getattr(torch, dtype))
    plain, model = decoded(original), compressed(original, residency=residency)
    assert torch.equal(logits(model), logits(plain)) and logits(model).dtype == getattr(torch, dtype)
    # A copy that computes in another dtype changes nothing here.
    other = logits(copy.deepcopy(model).to(torch.bfloat16))
    assert torch.isfinite(other).all() and other.dtype == torch.bfloat16
    assert torch.equal(logits(model), logits(plain))


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_loading(case: Case, residency: str, tmp_path: Path) -> None:
    wcodec.save_pretrained(compressed(case.original), tmp_path / "ours")
    case.original.save_pretrained(tmp_path / "plain")
    for folder in ("ours", "plain"):
        model = wcodec.load_model(tmp_path / folder, device=DEVICE, residency=residency, fused=False)
        assert {layer.residency for layer in linears(model)} == {residency}
        assert torch.equal(logits(model), case.logits) and torch.equal(text(model), case.text)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", device_map=DEVICE)
    wcodec.nn.fuse_(theirs, False)
    assert isinstance(theirs.lm_head, CompressedLinear) and theirs.lm_head.device.type == DEVICE
    assert torch.equal(logits(theirs), case.logits) and torch.equal(text(theirs), case.text)


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_moving(case: Case, residency: str) -> None:
    model = compressed(copy.deepcopy(case.original).to("cpu"), residency=residency)
    for _ in range(2):
        assert torch.equal(logits(model.to(DEVICE)), case.logits) and model.lm_head._store.device_bytes > 0
        assert torch.equal(logits(copy.deepcopy(model)), case.logits)
        model.to("cpu")
        assert model.lm_head._store.device_bytes == 0 and model.lm_head._store.host_bytes == 0


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_streams(case: Case, residency: str) -> None:
    """All streams decode into the same memory, and none sees what another one left there."""
    model = compressed(case.original, residency=residency)
    streams = [torch.cuda.Stream() for _ in range(3)]
    ids, seen = prompt(), []
    torch.cuda.synchronize()
    with torch.inference_mode():
        for i in range(9):
            with torch.cuda.stream(streams[i % 3]):
                seen.append(model(ids, use_cache=False).logits)
    torch.cuda.synchronize()
    assert all(torch.equal(found, case.logits) for found in seen)


# CUDA graphs


def capture(run: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph of what ``run`` does, warmed up as torch's documentation says, and the output of its replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


class Captured:
    """A model's forward pass as a graph, for prompts of one shape."""

    def __init__(self, model: Any, mask: Any = None) -> None:
        self._ids = prompt()
        with torch.inference_mode():
            self._graph, self._out = capture(lambda: model(self._ids, attention_mask=mask, use_cache=False).logits)

    def __call__(self, ids: Any) -> Any:
        self._ids.copy_(ids)
        self._graph.replay()
        return self._out.clone()


def causal() -> Any:
    """The mask of prompts, given: left to itself, transformers makes one while a graph is captured, and otherwise none,
    for which there are other kernels, with other rounding."""
    length = prompt().shape[1]
    return torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril().expand(2, 1, length, length).contiguous()


def test_cuda_graph(case: Case, coder: str) -> None:
    model, mask = compressed(case.original, coder=coder), causal()
    inputs = [prompt(seed) for seed in (1, 2, 3)]
    wanted = [logits(case.plain, ids, mask) for ids in inputs]
    run = Captured(model, mask)
    for _ in range(2):
        for ids, expected in zip(inputs, wanted, strict=True):
            assert torch.equal(run(ids), expected)
            # Between replays, which write where this decodes, too.
            assert torch.equal(logits(model, ids, mask), expected)


def test_cuda_graph_beside_that_of_the_decoded_weights(case: Case) -> None:
    # A graph lives no longer than the model that it was captured from.
    model = compressed(case.original)
    ours, theirs = Captured(model), Captured(case.plain)
    for seed in (1, 2, 3):
        ids = prompt(seed)
        assert torch.equal(ours(ids), theirs(ids))


def test_graphs_of_two_models() -> None:
    mask, one = causal(), compressed(small())
    first = Captured(one, mask)
    # Larger, so that the memory to decode into grows while a graph holds the old one.
    two = compressed(small(4, layers=2, hidden=512), coder="huffman")
    second = Captured(two, mask)
    inputs = [prompt(seed) for seed in (1, 2, 3)]
    for ids in inputs:
        assert torch.equal(first(ids), logits(one, ids, mask)) and torch.equal(second(ids), logits(two, ids, mask))
        assert torch.equal(logits(two, ids, mask), second(ids)) and torch.equal(logits(one, ids, mask), first(ids))
        assert not torch.equal(first(ids), second(ids))
    wanted = second(inputs[0])
    del first, one
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.equal(second(inputs[0]), wanted) and torch.equal(logits(two, inputs[0], mask), wanted)


def steps(model: Any, captured: bool) -> list[Any]:
    """Logits of greedy decode steps with a static cache, after a prompt."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    ids, token = prompt(5, 1, 8), prompt(5, 1, 1)

    def read() -> None:
        cache.reset()
        token.copy_(model(ids, use_cache=True, **{cache_name(model): cache}).logits[:, -1:].argmax(-1))

    def step() -> Any:
        out = model(token, use_cache=True, **{cache_name(model): cache}).logits
        token.copy_(out[:, -1:].argmax(-1))
        return out

    with torch.inference_mode():
        read()
        if not captured:
            return [step().clone() for _ in range(16)]
        graph, out = capture(step)
        # Warming up wrote tokens.
        read()
        seen = []
        for _ in range(16):
            graph.replay()
            seen.append(out.clone())
        return seen


@pytest.mark.parametrize("coder", ["rans", "huffman"], indirect=True)
def test_graph_of_a_decode_step(case: Case, coder: str) -> None:
    model = compressed(case.original, coder=coder)
    wanted = steps(case.plain, captured=False)
    for captured in (False, True, False):
        found = steps(model, captured)
        assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True)), captured


def test_graphs_cannot_hold_what_is_streamed(case: Case) -> None:
    model = compressed(case.original, residency="host")
    assert torch.equal(logits(model), case.logits)
    ids, graph = prompt(), torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        other = ids + 1
        with pytest.raises(wcodec.InputError, match="CUDA graph"):
            model(ids, use_cache=False)
    graph.replay()
    assert torch.equal(other, ids + 1)
    for _ in range(2):
        assert torch.equal(logits(model), case.logits)
    assert torch.equal(text(model), case.text)


# torch.compile


def replayed(function: Any, *inputs: Any) -> Any:
    """The output of a function that torch compiled to graphs of its own, kept beyond the next call."""
    torch.compiler.cudagraph_mark_step_begin()
    with torch.inference_mode():
        out = function(*inputs)
        return (out if torch.is_tensor(out) else out.logits).clone()


def assert_close(found: Any, wanted: Any) -> None:
    """Equal but for the rounding of bfloat16, which a compiler may leave out between operations."""
    assert found.dtype == wanted.dtype and torch.isfinite(found).all()
    largest = float(wanted.float().abs().max())
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0, atol=0.03 * largest)


@pytest.mark.parametrize("coder", ["rans", "huffman"], indirect=True)
def test_compiled_layers_are_equal(compiler: None, coder: str) -> None:
    torch.manual_seed(7)
    layers = torch.nn.Sequential(
        torch.nn.Linear(256, 640), torch.nn.Linear(640, 256, bias=False), torch.nn.Linear(256, 128)
    )
    layers.to(DEVICE, torch.bfloat16)
    wcodec.compress_(layers, coder=coder, progress=False, fused=False)
    function = torch.compile(layers, mode="reduce-overhead", fullgraph=True)
    for _ in range(6):
        x = torch.randn(3, 256, device=DEVICE).bfloat16()
        found = replayed(function, x)
        with torch.inference_mode():
            assert torch.equal(found, layers(x))


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(256, 640, bias=False)
        self.up = torch.nn.Linear(256, 640, bias=False)
        self.down = torch.nn.Linear(640, 256, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def test_compiled_block(compiler: None) -> None:
    torch.manual_seed(7)
    block = Mlp().to(DEVICE, torch.bfloat16)
    wcodec.compress_(block, progress=False, fused=False)
    function = torch.compile(block, mode="reduce-overhead", fullgraph=True)
    for _ in range(6):
        x = torch.randn(3, 256, device=DEVICE).bfloat16()
        found = replayed(function, x)
        with torch.inference_mode():
            assert_close(found, block(x))


def test_compiled_model(compiler: None, case: Case) -> None:
    model = compressed(case.original)
    function = torch.compile(lambda ids: model(ids, use_cache=False), mode="reduce-overhead")
    for seed in range(6):
        ids = prompt(seed)
        assert_close(replayed(function, ids), logits(model, ids))
    assert torch.equal(logits(model), case.logits)


@pytest.mark.parametrize("bias", [True, False])
def test_operators(bias: bool) -> None:
    plain = torch.nn.Linear(64, 32, bias).to(DEVICE, torch.bfloat16)
    layer = CompressedLinear.from_linear(plain)
    x = torch.randn(2, 64, device=DEVICE).bfloat16()
    torch.library.opcheck(torch.ops.wcodec.linear.default, (x, layer.bias, layer._handle, 32))
    table = CompressedEmbedding.from_embedding(torch.nn.Embedding(100, 64).to(DEVICE))
    arguments = (torch.tensor([[1, 99]], device=DEVICE), table._handle, 64, torch.float32)
    torch.library.opcheck(torch.ops.wcodec.embedding.default, arguments)


# Memory


def memory() -> tuple[int, int]:
    """Bytes that torch gave out, and those that the driver has left."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_memory_does_not_grow(residency: str) -> None:
    """As much after 1,000 tokens as after 50."""
    model = compressed(small(), residency=residency)
    text(model, 50, 1)
    memory()
    torch.cuda.reset_peak_memory_stats()
    text(model, 50, 1)
    allocated, free = memory()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(19):
        text(model, 50, 1)
        now, left = memory()
        # The driver's pages are of 2 MiB.
        assert now == allocated and abs(left - free) <= 2 << 20
    assert torch.cuda.max_memory_allocated() == peak


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_parts_of_memory(residency: str) -> None:
    gc.collect()
    model = compressed(small(), residency=residency)
    report = wcodec.measure_vram(model)
    parts = {(part.name, part.device): part.bytes for part in report.parts}
    gpu = report.device
    assert gpu == "cuda:0" and all(size > 0 for size in parts.values())
    stored = sum(layer.stored_bytes for layer in linears(model))
    table = model.model.embed_tokens.stored_bytes
    assert table <= parts["compressed embeddings", gpu] < table * 1.2 + (1 << 20)
    place = gpu if residency == "device" else "cpu (pinned)"
    assert stored * 0.9 < parts["compressed layers", place] < stored * 1.2 + (1 << 20)
    assert (("ring for streamed layers", gpu) in parts) == (residency == "host")
    assert parts["weights as they are", gpu] == sum(p.nbytes for p in model.parameters())
    largest = 640 * 256 * 2
    assert parts["decoded weights (shared scratch)", gpu] >= largest
    assert report.model_bytes == sum(size for (_, where), size in parts.items() if where == gpu)
    assert report.allocated <= report.reserved <= report.used <= report.total
    if residency == "device":
        original = sum(layer.original_bytes for layer in linears(model)) + model.model.embed_tokens.original_bytes
        assert report.model_bytes < original


# Errors


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_input_on_another_device(used: bool) -> None:
    layer = CompressedLinear.from_linear(torch.nn.Linear(256, 64).to(DEVICE))
    table = CompressedEmbedding.from_embedding(torch.nn.Embedding(100, 64).to(DEVICE))
    x, ids = torch.ones(2, 256), torch.tensor([[1, 99]])
    if used:
        layer(x.to(DEVICE))
        table(ids.to(DEVICE))
    for module, value in ((layer, x), (table, ids)):
        with pytest.raises(wcodec.InputError, match=r"on cpu, and the layer on cuda.*\(move one"):
            module(value)
        wanted = module(value.to(DEVICE))
        module.to("cpu")
        if used:
            module(value)
        with pytest.raises(wcodec.InputError, match=r"on cuda.*, and the layer on cpu.*\(move one"):
            module(value.to(DEVICE))
        torch.testing.assert_close(module(value), wanted.cpu())


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_wrong_input(case: Case, residency: str) -> None:
    model = compressed(case.original, residency=residency)
    layer, table = model.model.layers[0].mlp.up_proj, model.model.embed_tokens
    x = torch.ones(2, layer.in_features, dtype=torch.bfloat16, device=DEVICE)
    row = torch.tensor([[model.config.vocab_size]], device=DEVICE)
    for run, said in (
        (lambda: model(prompt().cpu()), r"on cpu, and the layer on cuda"),
        (lambda: layer(x.float()), r"float32.*bfloat16.*\.to\(dtype\)"),
        (lambda: layer(x[:, 1:].contiguous()), f"{layer.in_features - 1} features"),
        (lambda: layer.requires_grad_(), "cannot be trained"),
        (lambda: table(row), f"row {model.config.vocab_size}"),
        (lambda: table(row.float()), "numbers of rows"),
        (lambda: copy.deepcopy(layer).double(), "float32, float16 or bfloat16"),
    ):
        with pytest.raises(wcodec.InputError, match=said):
            run()
    assert torch.equal(logits(model), case.logits)


def edit(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_weights_of_another_model(residency: str, tmp_path: Path) -> None:
    wcodec.save_pretrained(compressed(small()), tmp_path)
    for change, said in (
        ({"num_hidden_layers": 4}, r"missing: model\.layers\.3\.\S+, "),
        ({"num_hidden_layers": 2}, r"extra: model\.layers\.2\.\S+, "),
        ({"num_hidden_layers": 3, "intermediate_size": 512}, r"\S+ is \[640, 256\], not \[512, 256\]"),
    ):
        edit(tmp_path, **change)
        before = memory()[0]
        with pytest.raises(wcodec.InputError, match=said):
            wcodec.load_model(tmp_path, device=DEVICE, residency=residency)
        assert memory()[0] == before
    with pytest.raises(wcodec.InputError, match="not that of this model"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map=DEVICE)


# In a process of its own, where the memory is taken from nobody else.
_NO_MEMORY = """
import gc, sys, torch, wcodec
folder, residency = sys.argv[1:]
ids = torch.arange(1, 25, device="cuda")[None]

def logits():
    model = wcodec.load_model(folder, device="cuda", residency=residency)
    with torch.inference_mode():
        return model(ids).logits.clone()

wanted = logits()
gc.collect()
torch.cuda.empty_cache()
# For the few weights that are not compressed: torch keeps this memory when it is free again.
spare = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
taken, size = [], 1 << 30
while size >= 1 << 20:
    try:
        taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        size //= 2
del spare
for _ in range(2):
    try:
        logits()
    except wcodec.DeviceError as error:
        message = str(error)
    else:
        sys.exit("it did not fail")
del taken
gc.collect()
torch.cuda.empty_cache()
assert torch.equal(logits(), wanted)
print(message)
"""


def script(code: str, *arguments: object, **environment: str) -> str:
    """Output of a new Python process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_too_little_memory(residency: str, tmp_path: Path) -> None:
    wcodec.save_pretrained(compressed(small(hidden=512, vocabulary=8000)), tmp_path)
    message = script(_NO_MEMORY, tmp_path, residency).strip().splitlines()[-1]
    # The message says what is wrong, in parentheses what to do, and its code.
    assert "memory" in message and re.search(r"\) \[D\d{3}\]$", message)


_NO_NVCOMP = """
import sys, torch, wcodec
zstd, rans = sys.argv[1:]
ids = torch.arange(1, 25, device="cuda")[None]
with torch.inference_mode():
    assert wcodec.load_model(rans, device="cuda")(ids).logits.isfinite().all()
for residency in ("device", "host"):
    try:
        wcodec.load_model(zstd, device="cuda", residency=residency)
    except wcodec.DeviceError as error:
        print(error)
    else:
        sys.exit("it did not fail")
"""


def test_zstd_without_nvcomp(tmp_path: Path) -> None:
    original = small()
    for name in ("zstd", "rans"):
        wcodec.save_pretrained(compressed(copy.deepcopy(original).to("cpu"), coder=name), tmp_path / name)
    out = script(_NO_NVCOMP, tmp_path / "zstd", tmp_path / "rans", WCODEC_NVCOMP=str(tmp_path / "nothing"))
    lines = out.strip().splitlines()
    assert len(lines) == 2 and all("nvCOMP" in line and re.search(r"\) \[D\d{3}\]$", line) for line in lines)


# Measuring


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_bench(case: Case, residency: str) -> None:
    model = compressed(case.original, residency=residency)
    report = wcodec.bench(
        model, baseline=case.plain, batch=(1, 8), prompt_tokens=16, new_tokens=10, repeats=2, profile=True
    )
    assert report.device == "cuda:0" and [(r.model, r.batch) for r in report.rows] == [
        ("model", 1), ("baseline", 1), ("model", 8), ("baseline", 8),
    ]  # fmt: skip
    for row in report.rows:
        assert 0 < row.decode.low <= row.decode.median <= row.decode.high and row.prefill.median > 0
        assert row.peak_bytes is not None and row.peak_bytes > 0
    assert report.ratio(1) is not None and report.ratio(8) is not None
    ours, theirs = report.splits
    assert 0 < ours.decode < ours.wall and 0 < ours.product < ours.wall and theirs.decode == 0 < theirs.product
    assert residency == "device" or ours.copy > 0
    # Parts of one stream's time.
    assert ours.decode + ours.product + ours.other < ours.wall
    times = {t.name: t for t in report.layers if t.model == "model"}
    assert times["lm_head"].kind == "CompressedLinear" and all(t.seconds > 0 for t in times.values())
    assert torch.equal(logits(model), case.logits)


@pytest.mark.parametrize("residency", [*RESIDENCIES, "auto"])
def test_commands(residency: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wcodec.save_pretrained(wcodec.load_model(model), tmp_path)
    sizes = ("--vram-budget", "1GB", "--cache", "2MB") if residency == "auto" else ()
    fused = ("--device", "cuda", "--residency", residency, *sizes, "--json", "-q")
    place = (*fused, "--no-fused")
    options = ("--batch", "1,2", "--prompt-tokens", "4", "--new-tokens", "4", "--repeats", "1", "--profile")
    capsys.readouterr()
    status, out, err = call(capsys, "bench", tmp_path, "--baseline", model, *place, *options)
    assert status == 0, err
    report = document(out, "bench")
    split = next(s for s in report["splits"] if s["model"] == "model")
    assert split["decode"] > 0 and split["product"] > 0 and (residency != "host" or split["copy"] > 0)
    assert [row["batch"] for row in report["rows"]] == [1, 1, 2, 2] and report["device"] == "cuda:0"
    assert any(part["device"] == "cuda:0" for part in report["memory"]["parts"])
    options = ("--prompt", "The function returns", "--max-new-tokens", "20")
    status, out, err = call(capsys, "generate", tmp_path, *place, *options)
    assert status == 0, err
    found = document(out, "generate")["tokens"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ids = tokenizer("The function returns", return_tensors="pt")["input_ids"].to(DEVICE)
    plain = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(DEVICE)
    with running.plain_attention():
        wanted = decoded(plain).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
                                         pad_token_id=0)[0, ids.shape[1] :]  # fmt: skip
    assert found == wanted.tolist()
    # By default few tokens are multiplied with compressed weights, as here.
    record = document(call(capsys, "generate", tmp_path, *fused, *options)[1], "generate")
    settings = {"vram_budget": "1GB", "cache": "2MB"} if residency == "auto" else {}
    loaded = wcodec.load_model(tmp_path, device=DEVICE, residency=residency, **settings)
    assert all(layer._store.fuses for layer in linears(loaded))
    wanted = wcodec.generate(loaded, "The function returns", tokenizer, max_new_tokens=20)
    assert record["fused"] and record["tokens"] == list(wanted.tokens)
    status, out, err = call(capsys, "bench", tmp_path, *fused, "--batch", "1", "--new-tokens", "4", "--repeats", "1")
    assert status == 0, err
    (tmp_path / "text.txt").write_text((model / "heldout.txt").read_text()[:2_000])
    status, out, err = call(capsys, "eval", tmp_path, "--text", tmp_path / "text.txt", "--baseline", model, *fused)
    assert status == 0, err
    assert 0 < document(out, "eval")["kl_mean"] < 0.01


# Residency auto, and the cache of decoded layers


def needs(original: Any) -> tuple[int, int]:
    """The GPU's memory that a model takes with all on the device, and stored bytes of its linear layers."""
    model = compressed(original)
    gc.collect()
    return wcodec.measure_vram(model).model_bytes, sum(layer.stored_bytes for layer in linears(model))


@pytest.mark.parametrize("part", [0.1, 0.3])
@pytest.mark.parametrize("coder", ["rans", "huffman"], indirect=True)
def test_auto(deep: Case, part: float, coder: str, tmp_path: Path) -> None:
    whole, stored = needs(deep.original)
    budget = whole - int(part * stored)
    model = compressed(deep.original, coder=coder, residency="auto", vram_budget=budget)
    assert {layer.residency for layer in linears(model)} == {"device", "host"}
    assert model.model.embed_tokens.residency == "device"
    gc.collect()
    assert wcodec.measure_vram(model).model_bytes <= budget
    for _ in range(2):
        assert torch.equal(logits(model), deep.logits)
    assert torch.equal(text(model), deep.text)
    wcodec.save_pretrained(model, tmp_path)
    del model
    loaded = wcodec.load_model(tmp_path, device=DEVICE, residency="auto", vram_budget=budget, fused=False)
    assert {layer.residency for layer in linears(loaded)} == {"device", "host"}
    assert torch.equal(logits(loaded), deep.logits)


@pytest.mark.parametrize("budget", [None, "100GB", 1 << 36])
def test_auto_where_all_fits(deep: Case, budget: Any) -> None:
    model = compressed(deep.original, residency="auto", vram_budget=budget)
    assert {layer.residency for layer in linears(model)} == {"device"}
    assert torch.equal(logits(model), deep.logits)


def test_auto_where_nothing_fits(deep: Case) -> None:
    with pytest.raises(wcodec.InputError, match="budget"):
        compressed(deep.original, residency="auto", vram_budget="1MB")


@pytest.mark.parametrize("residency", [*RESIDENCIES, "auto"])
@pytest.mark.parametrize("size", [3 << 20, "12MB", "1GB"])
def test_cache(deep: Case, residency: str, size: Any) -> None:
    whole, stored = needs(deep.original)
    most = size if isinstance(size, int) else {"12MB": 12_000_000, "1GB": 1_000_000_000}[size]
    kept = min(most, sum(p.nbytes for p in deep.plain.parameters()))
    options = {"vram_budget": whole - stored // 5 + kept} if residency == "auto" else {}
    model = compressed(deep.original, residency=residency, cache=size, **options)
    for _ in range(2):
        assert torch.equal(logits(model), deep.logits)
    assert torch.equal(text(model), deep.text)
    parts = {part.name: part.bytes for part in wcodec.measure_vram(model).parts if part.device.startswith(DEVICE)}
    assert 0 < parts["decoded-layer cache"] <= most
    # Elsewhere and back: nothing is kept that belongs to the GPU.
    model.to("cpu")
    assert model.lm_head._store.device_bytes == 0
    assert torch.equal(logits(model.to(DEVICE)), deep.logits)


def test_cache_in_a_graph(deep: Case) -> None:
    model, mask = compressed(deep.original, cache="12MB"), causal()
    run = Captured(model, mask)
    for seed in (1, 2, 3):
        ids = prompt(seed)
        wanted = logits(deep.plain, ids, mask)
        assert torch.equal(run(ids), wanted) and torch.equal(logits(model, ids, mask), wanted)


def test_copies_of_a_model_with_a_cache(deep: Case) -> None:
    model = compressed(deep.original, cache="12MB")
    other = copy.deepcopy(model).to(torch.float16)
    wanted = logits(compressed(deep.original).to(torch.float16))
    for _ in range(2):
        assert torch.equal(logits(model), deep.logits) and torch.equal(logits(other), wanted)
