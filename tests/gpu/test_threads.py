"""Threads, streams and CUDA graphs that share a GPU: every result bit for bit what the model computes alone.

All models of a process decode into the same memory, in turns, and graphs read what may be gone when they are replayed.
What goes wrong there goes wrong seldom, so there is much of it here: 10,000 forward passes, and the sharp cases one by
one. Inputs are new in every run, and where results are written there are NaNs before.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpu_helpers
import pytest
import wcodec
from gpu_helpers import NO_GPU, side_by_side, torch
from wcodec.nn import CompressedEmbedding, CompressedLinear

transformers = pytest.importorskip("transformers")

# pytest looks for fixtures in the module.
gpu, compiler = gpu_helpers.gpu, gpu_helpers.compiler
DEVICE = "cuda"
FORWARDS = 10_000
BATCH, LENGTH, VOCABULARY = 2, 12, 503

# A capture begins by waiting for the whole device, which no other capture survives.
capturing = threading.Lock()


# Models


def llama(seed: int, layers: int = 2, hidden: int = 128, wide: int = 320, heads: int = 4) -> Any:
    return built(
        seed,
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=wide, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads // 2, tie_word_embeddings=False, pad_token_id=0,
        ),
    )  # fmt: skip


def mixture(seed: int, hidden: int = 128, wide: int = 96, heads: int = 4) -> Any:
    return built(
        seed,
        transformers.Qwen3MoeConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * wide, moe_intermediate_size=wide,
            num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=hidden // heads,
            num_experts=4, num_experts_per_tok=2, tie_word_embeddings=False, pad_token_id=0,
            experts_implementation="eager",
        ),
    )  # fmt: skip


def built(seed: int, config: Any) -> Any:
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # So that results differ from one input to the next.
            parameter.add_(torch.randn_like(parameter) / 12)
    return model


# Sizes that do not divide evenly; those that are left out do.
ODD: dict[str, Any] = {"hidden": 120, "wide": 333, "heads": 4}
ODD_EXPERTS: dict[str, Any] = {"hidden": 120, "wide": 77, "heads": 4}


def causal() -> Any:
    """Given, since transformers makes another one while a graph is captured, for which there are other kernels."""
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=DEVICE).tril()
    return mask.expand(BATCH, 1, LENGTH, LENGTH).contiguous()


def prompts(seed: int, count: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=generator).to(DEVICE) for _ in range(count)]


def logits(model: Any, ids: Any, mask: Any, dtype: Any = None) -> Any:
    autocast = contextlib.nullcontext() if dtype is None else torch.autocast(DEVICE, dtype=dtype)
    with torch.inference_mode(), autocast:
        return model(ids, attention_mask=mask, use_cache=False).logits


def bits(tensor: Any) -> Any:
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def differ(found: Any, wanted: Any) -> Any:
    """Whether they do, on the GPU: nobody waits for the answer here."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    return (bits(found) != bits(wanted)).any()


def poison(*tensors: Any) -> None:
    """Fills memory that torch gives out next in this stream, to tensors like these and to smaller ones, with NaNs."""
    held = [torch.full_like(tensor, float("nan")) for tensor in tensors]
    held += [torch.full((size,), float("nan"), device=DEVICE) for size in (1 << 8, 1 << 12, 1 << 15)]
    del held


class Subject:
    """A compressed model, and what it computes of some inputs when it is alone.

    :param other: a dtype that some passes are to compute in, by autocast.
    """

    def __init__(self, original: Any, seed: int, inputs: int = 12, other: Any = None, **options: Any) -> None:
        if options.get("coder") == "zstd":
            gpu_helpers.need_nvcomp()
        stored = {k: v for k, v in options.items() if k not in ("residency", "vram_budget", "cache")}
        self.name = f"{type(original).__name__}{options}"
        self.mask, self.dtypes = causal(), (None, other) if other else (None,)
        ids = prompts(seed, inputs)
        plain = copy.deepcopy(original)
        wcodec.compress_(plain, calibrate=False, progress=False, **stored)
        wcodec.decompress_(plain)
        plain.to(DEVICE)
        alone = copy.deepcopy(original).to(DEVICE)
        wcodec.compress_(alone, calibrate=False, progress=False, fused=False, **stored)
        self.inputs = []
        for dtype in self.dtypes:
            wanted = [logits(alone, one, self.mask, dtype).clone() for one in ids]
            self.inputs += zip([dtype] * inputs, ids, wanted, strict=True)
        assert not any(differ(w, logits(plain, i, self.mask)) for dtype, i, w in self.inputs if dtype is None)
        assert len({float(w.double().sum()) for _, _, w in self.inputs}) > inputs // 2
        self.alone = alone
        self.model = copy.deepcopy(original).to(DEVICE)
        wcodec.compress_(self.model, calibrate=False, progress=False, fused=False, **options)

    def run(self, rng: random.Random) -> Any:
        """Whether one pass is wrong."""
        dtype, ids, wanted = rng.choice(self.inputs)
        poison(wanted)
        return differ(logits(self.model, ids, self.mask, dtype), wanted)


def decoded_bytes(original: Any) -> int:
    """Bytes of the weights that are compressed, when decoded."""
    return sum(p.nbytes for p in original.parameters() if p.dim() > 1)


def least_budget(original: Any, **options: Any) -> int:
    """The smallest ``vram_budget`` that a model can run in."""
    with pytest.raises(wcodec.InputError, match="vram_budget") as caught:
        wcodec.compress_(
            copy.deepcopy(original).to(DEVICE),
            residency="auto",
            vram_budget=1,
            calibrate=False,
            progress=False,
            **options,
        )
    found = re.search(r"at least (\d+) bytes", str(caught.value))
    assert found
    return int(found[1])


def streamed(seed: int, coder: str, cache: int = 0, **options: Any) -> Subject:
    """A model that does not fit: some blocks come from the host."""
    original = llama(seed, layers=9, hidden=64, wide=160)
    budget = least_budget(original, coder=coder, cache=cache, **options) + 100_000
    stored = {"coder": coder, "cache": cache, **options}
    subject = Subject(original, seed, residency="auto", vram_budget=budget, **stored)
    assert {m.residency for m in subject.model.modules() if isinstance(m, CompressedLinear)} == {"device", "host"}
    return subject


# Threads


@contextlib.contextmanager
def own_stream() -> Iterator[Any]:
    """A stream for what this thread does."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        yield stream
        stream.synchronize()


def passes(subjects: Sequence[Any], count: int, seed: int) -> Callable[[], tuple[int, Counter[str]]]:
    """Work of a thread with a stream of its own: so many passes of these, at random; how many there were, and the wrong
    ones by name."""

    def run() -> tuple[int, Counter[str]]:
        rng, wrong = random.Random(seed), {}
        with own_stream():
            for _ in range(count):
                subject = rng.choice(subjects)
                bad = subject.run(rng)
                wrong[subject.name] = wrong.get(subject.name, 0) + bad.long()
            return count, Counter({name: int(n) for name, n in wrong.items() if int(n)})

    return run


def sum_up(results: Sequence[tuple[int, Counter[str]]]) -> tuple[int, Counter[str]]:
    return sum(count for count, _ in results), sum((wrong for _, wrong in results), Counter())


def assert_right(results: Sequence[tuple[int, Counter[str]]]) -> None:
    count, wrong = sum_up(results)
    assert count and not wrong, f"{wrong.total()} of {count}: {wrong}"


# Graphs


class Captured:
    """A subject's pass as a graph, and what its replays are to give."""

    def __init__(self, subject: Subject, pool: Any = None, stream: Any = None, mode: str = "global") -> None:
        self.name = f"graph of {subject.name}"
        self.inputs = [(ids, wanted) for dtype, ids, wanted in subject.inputs if dtype is None]
        # Tensors that torch has of the model are for whoever replays to keep.
        self.kept = [t.detach() for t in (*subject.model.parameters(), *subject.model.buffers(), subject.mask)]
        self.ids = self.inputs[0][0].clone()
        stream = stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                logits(subject.model, self.ids, subject.mask)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with capturing, torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode=mode):
            self.out = logits(subject.model, self.ids, subject.mask)

    def run(self, rng: random.Random) -> Any:
        """Whether one replay is wrong."""
        ids, wanted = rng.choice(self.inputs)
        with torch.inference_mode():
            self.ids.copy_(ids)
            self.out.fill_(float("nan"))
        self.graph.replay()
        return differ(self.out, wanted)


class InTurns:
    """Graphs of one pool, replayed one after the other."""

    def __init__(self, graphs: Sequence[Captured]) -> None:
        self.graphs, self.name, self._next = graphs, "graphs of one pool", 0

    def run(self, rng: random.Random) -> Any:
        """Whether the next replay is wrong."""
        self._next += 1
        return self.graphs[self._next % len(self.graphs)].run(rng)


def overwrite() -> list[Any]:
    """Memory that was free, full of NaNs."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return [torch.full((1 << bits,), float("nan"), device=DEVICE) for bits in range(8, 24) for _ in range(8)]


# Many passes


def test_ten_thousand_forwards(record_testsuite_property: Callable[[str, object], None]) -> None:
    seed = gpu_helpers.seed()
    other = llama(seed + 1)
    eager = [
        Subject(llama(seed), seed, coder="rans"),
        Subject(llama(seed, **ODD), seed, coder="huffman", scale="block"),
        Subject(other, seed, coder="raw", cache=decoded_bytes(other) // 2, other=torch.float16),
        Subject(llama(seed + 2), seed, coder="zstd", residency="host"),
        Subject(llama(seed + 3, **ODD), seed, scheme="raw", coder="rans"),
        streamed(seed, "rans"),
        Subject(mixture(seed), seed, coder="rans"),
        Subject(mixture(seed, **ODD_EXPERTS), seed, coder="huffman", scale="block", cache="100KB"),
    ]
    graphs = [Captured(Subject(llama(seed + 4), seed, coder="rans")), Captured(eager[1])]
    pool = torch.cuda.graph_pool_handle()
    gone = [Subject(llama(seed + 5, **ODD), seed, coder="zstd"), Subject(llama(seed + 6), seed, cache="200KB")]
    shared = InTurns([Captured(subject, pool) for subject in gone])
    del gone
    held = overwrite()
    torch.cuda.synchronize()
    part = FORWARDS // 10
    work = [passes(eager, part, seed + i) for i in range(7)]
    # A model for each of two streams, and all models in the others.
    work += [passes(eager[:1], part, seed + 7), passes(graphs, part, seed + 8), passes([shared], part, seed + 9)]
    began = time.monotonic()
    count, wrong = sum_up(side_by_side(work, 200))
    said = f"wrong: {wrong.total()} of {count}"
    print(f"{said} ({time.monotonic() - began:.1f} s)")
    record_testsuite_property("forwards", said)
    assert held and count == FORWARDS and not wrong, wrong


@pytest.mark.parametrize("setting", ["device", "host", "cache", "auto"])
def test_models_in_threads(setting: str) -> None:
    """Several models, with a stream for each thread; every model is in every thread."""
    seed = gpu_helpers.seed()
    made = [
        (llama(seed), {"coder": "rans"}),
        (llama(seed, **ODD), {"coder": "huffman", "scale": "block"}),
        (mixture(seed), {"coder": "zstd"}),
        (mixture(seed, **ODD_EXPERTS), {"coder": "raw"}),
    ]
    options: dict[str, Any] = {"device": {}, "host": {"residency": "host"}}.get(setting, {})
    subjects = []
    for original, stored in made:
        if setting in ("cache", "auto"):
            # Some layers stay decoded, in the dtype that was wanted last.
            options = {"cache": decoded_bytes(original) // 3, "other": torch.float16}
        subjects.append(Subject(original, seed, inputs=6, **stored, **options))
    if setting == "auto":
        subjects = [*subjects[2:], streamed(seed, "huffman"), streamed(seed, "rans", cache=40_000, scale="block")]
    assert_right(side_by_side([passes(subjects, 60, seed + i) for i in range(5)]))


def test_two_models_in_two_streams() -> None:
    """As it went wrong: experts that use decoded weights while a dense model decodes others."""
    seed = gpu_helpers.seed()
    subjects = [Subject(llama(seed, layers=4), seed), Subject(mixture(seed, hidden=256, wide=192), seed)]
    assert_right(side_by_side([passes([subject], 200, seed) for subject in subjects]))


def test_copies_in_another_dtype() -> None:
    """A cast of a model's copy makes the store of both forget its providers, at any moment of the other's passes."""
    seed = gpu_helpers.seed()
    original = llama(seed)
    subject = Subject(original, seed, cache=decoded_bytes(original) // 3)
    ids = subject.inputs[0][1]
    wanted = logits(copy.deepcopy(subject.alone).to(torch.float16), ids, subject.mask).clone()

    def copies() -> tuple[int, Counter[str]]:
        with own_stream():
            bad = 0
            for _ in range(20):
                other = copy.deepcopy(subject.model).to(torch.float16)
                bad += int(differ(logits(other, ids, subject.mask), wanted))
                wcodec.measure_vram(subject.model)
        return 20, Counter({"copies": bad} if bad else {})

    assert_right(side_by_side([copies, *(passes([subject], 150, seed + i) for i in range(3))]))


# Layers without a model


class Experts:
    """Experts that are called by themselves."""

    def __init__(self, subject: Subject, seed: int) -> None:
        layers = [model.model.layers[1].mlp.experts for model in (subject.model, subject.alone)]
        self.name, self.experts, config = "experts", layers[0], subject.model.config
        torch.manual_seed(seed)
        self.inputs = []
        for tokens in (1, 3, 8, 20):
            x = torch.randn(tokens, config.hidden_size).to(DEVICE, torch.bfloat16)
            routes = torch.stack([torch.randperm(config.num_experts)[:2] for _ in range(tokens)]).to(DEVICE)
            shares = torch.rand(tokens, 2).to(DEVICE, torch.bfloat16)
            with torch.inference_mode():
                self.inputs.append(((x, routes, shares), layers[1](x, routes, shares)))
        self.matrices = [layers[1].down_proj[i] for i in range(config.num_experts)]

    def run(self, rng: random.Random) -> Any:
        """Whether a call is wrong, or a matrix that is read."""
        place = rng.randrange(len(self.matrices))
        inputs, wanted = rng.choice(self.inputs)
        bad = differ(self.experts.down_proj[place], self.matrices[place]) if rng.random() < 0.2 else False
        poison(wanted)
        return differ(self.experts(*inputs), wanted) | bad


@pytest.mark.parametrize("coder", ["rans", "zstd"])
def test_experts_by_themselves(coder: str) -> None:
    seed = gpu_helpers.seed()
    subject = Subject(mixture(seed), seed, coder=coder)
    experts, dense = Experts(subject, seed), Subject(llama(seed), seed)
    work = [
        passes([experts], 80, seed),
        passes([experts, subject], 80, seed + 1),
        passes([experts, dense], 80, seed + 2),
    ]
    assert_right(side_by_side(work))


class Layer:
    """A layer that was made by hand; some calls come after it went to the CPU and back.

    :param moves: how often that is.
    """

    def __init__(self, layer: Any, inputs: Sequence[Any], moves: float = 0.0) -> None:
        self.name, self.layer, self._moves = type(layer).__name__, layer, moves
        with torch.inference_mode():
            self.inputs = [(x, layer(x).clone()) for x in inputs]

    def run(self, rng: random.Random) -> Any:
        """Whether a call is wrong."""
        if rng.random() < self._moves:
            self.layer.to("cpu")
            self.layer.to(DEVICE)
        x, wanted = rng.choice(self.inputs)
        poison(wanted)
        return differ(self.layer(x), wanted)


@pytest.mark.parametrize("coder", ["rans", "huffman", "zstd", "raw"])
def test_layers_by_hand(coder: str) -> None:
    """Linear layers and embeddings, each with a store of its own; those that move have a thread to themselves."""
    seed = gpu_helpers.seed()
    torch.manual_seed(seed)

    def linear(rows: int, columns: int, dtype: Any, moves: float = 0.0) -> Layer:
        layer = torch.nn.Linear(columns, rows).to(DEVICE, dtype)
        inputs = [torch.randn(n, columns, device=DEVICE).to(dtype) for n in (1, 5, 33)]
        return Layer(CompressedLinear.from_linear(layer, coder=coder), inputs, moves)

    def embedding(rows: int, columns: int, moves: float = 0.0) -> Layer:
        table = torch.nn.Embedding(rows, columns).to(DEVICE, torch.bfloat16)
        # Rows far apart, and more of them than Python counts.
        inputs = [torch.randint(0, rows, (n, 7)).to(DEVICE) for n in (1, 3, 40)]
        return Layer(CompressedEmbedding.from_embedding(table, coder=coder), inputs, moves)

    shared = [linear(320, 128, torch.bfloat16), linear(77, 333, torch.float16), linear(64, 500, torch.float32)]
    shared += [embedding(1000, 128), embedding(333, 77)]
    work = [passes(shared, 120, seed + i) for i in range(3)]
    work += [passes([linear(200, 250, torch.float16, 0.2), embedding(500, 96, 0.2)], 60, seed + 3)]
    assert_right(side_by_side(work))


def test_a_model_that_moves() -> None:
    """To the CPU and back, while others compute."""
    seed = gpu_helpers.seed()
    original = llama(seed)
    options: list[dict[str, Any]] = [{}, {"residency": "host"}, {"cache": decoded_bytes(original) // 2}]
    movers = [Subject(original, seed, **chosen) for chosen in options]
    others = [Subject(llama(seed, **ODD), seed, coder="huffman"), Subject(mixture(seed), seed)]

    def moving(subject: Subject) -> Callable[[], tuple[int, Counter[str]]]:
        def run() -> tuple[int, Counter[str]]:
            rng, bad = random.Random(seed), 0
            with own_stream():
                for _ in range(12):
                    bad += int(subject.run(rng))
                    subject.model.to("cpu")
                    subject.model.to(DEVICE)
            return 12, Counter({subject.name: bad} if bad else {})

        return run

    assert_right(side_by_side([*map(moving, movers), *(passes(others, 100, seed + i) for i in range(2))]))


# Streams


def test_a_stream_that_is_being_captured() -> None:
    """The next stream in the shared memory does not wait for this one, which would make it a part of the graph."""
    seed = gpu_helpers.seed()
    one, two = Subject(llama(seed), seed), Subject(llama(seed, **ODD), seed, coder="huffman")
    begun, done = threading.Event(), threading.Event()

    def capture() -> tuple[int, Counter[str]]:
        stream, graph, rng = torch.cuda.Stream(), torch.cuda.CUDAGraph(), random.Random(seed)
        (_, ids, wanted), ids_of_graph = one.inputs[0], one.inputs[1][1].clone()
        with torch.inference_mode():
            with torch.cuda.stream(stream):
                bad = one.run(rng).long()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                out = logits(one.model, ids_of_graph, one.mask)
                begun.set()
                done.wait(60)
            with torch.cuda.stream(stream):
                for _ in range(5):
                    ids_of_graph.copy_(ids)
                    out.fill_(float("nan"))
                    graph.replay()
                    bad = bad + differ(out, wanted) + one.run(rng)
                return 11, Counter({"capture": int(bad)} if int(bad) else {})

    def eager() -> tuple[int, Counter[str]]:
        begun.wait(60)
        try:
            return passes([two], 10, seed)()
        finally:
            done.set()

    assert_right(side_by_side([capture, eager]))


def test_memory_of_a_stream_that_is_busy() -> None:
    """Memory that the workspace takes in one stream is not written by another one while the first one works there."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    layer = CompressedLinear.from_linear(torch.nn.Linear(2048, 4096, bias=False).to(DEVICE, torch.float16))
    x = torch.randn(2, 2048, device=DEVICE).half()
    with torch.inference_mode():
        # This makes the decoder, for which the GPU waits, and nothing to decode into.
        wanted = torch.nn.functional.linear(x, layer.weight)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(one):
        used = torch.full((4096, 2048), 7.0, dtype=torch.float16, device=DEVICE)
        torch.cuda._sleep(1_000_000_000)
        read = used.clone()
        # Free for this stream at once, which has not read it yet.
        del used
        layer._store.prepare()
    with torch.cuda.stream(two), torch.inference_mode():
        found = layer(x)
    assert not one.query()
    torch.cuda.synchronize()
    assert bool((read == 7).all()) and torch.equal(found, wanted)


# Graphs


def test_graphs_beside_threads() -> None:
    """Captured in streams that are used otherwise, too, while others compute; replayed in several streams at once."""
    seed = gpu_helpers.seed()
    original = llama(seed)
    subjects = [
        Subject(original, seed),
        Subject(llama(seed, **ODD), seed, coder="huffman", scale="block"),
        Subject(llama(seed + 1), seed, coder="zstd"),
        Subject(original, seed, coder="raw", cache=decoded_bytes(original) // 2),
    ]
    others = [Subject(mixture(seed), seed), subjects[0], subjects[3]]

    def graphs(place: int) -> Callable[[], tuple[int, Counter[str]]]:
        def run() -> tuple[int, Counter[str]]:
            results = []
            with own_stream() as stream:
                for i in range(4):
                    subject = subjects[(place + i) % len(subjects)]
                    graph = Captured(subject, stream=stream if i % 2 else None, mode="thread_local")
                    results.append(passes([graph], 20, seed + i)())
            return sum_up(results)

        return run

    assert_right(side_by_side([*(graphs(i) for i in range(3)), *(passes(others, 100, seed + i) for i in range(3))]))


def _dtype(subject: Subject) -> None:
    subject.model.to(torch.float16)
    logits(subject.model, subject.inputs[0][1], subject.mask)


def _new_layer(subject: Subject) -> None:
    # Larger than all before, so that the workspace grows, and of the same store, which decides anew.
    wcodec.compress_(torch.nn.Sequential(torch.nn.Linear(2048, 4096).to(DEVICE)), progress=False)
    other = copy.deepcopy(subject.model.model.layers[0]).to(torch.float16)
    other.mlp.up_proj(torch.ones(1, 128, dtype=torch.float16, device=DEVICE))


def _cache(subject: Subject) -> None:
    logits(subject.model, subject.inputs[0][1], subject.mask, torch.float16)


def _cpu(subject: Subject) -> None:
    subject.model.to("cpu")


def _deleted(subject: Subject) -> None:
    del subject.model, subject.alone


@pytest.mark.parametrize("how", [_dtype, _new_layer, _cache, _cpu, _deleted])
def test_replays_after_decoders_are_gone(how: Callable[[Subject], None]) -> None:
    seed = gpu_helpers.seed()
    original = llama(seed)
    graphs, pool = [], torch.cuda.graph_pool_handle()
    for i, (coder, cache) in enumerate(
        (("rans", 0), ("zstd", 0), ("huffman", decoded_bytes(original) // 2), ("raw", 0))
    ):
        subject = Subject(original, seed, coder=coder, cache=cache)
        graphs.append(Captured(subject, pool if i % 2 else None))
        how(subject)
        del subject
    held = overwrite()
    shared = InTurns([graphs[1], graphs[3]])
    others = Subject(mixture(seed), seed)
    work = [passes(graphs[:1], 30, seed), passes([shared], 30, seed), passes(graphs[2:3], 30, seed)]
    assert_right(side_by_side([*work, passes([others], 30, seed)]))
    assert held


def test_memory_comes_back_after_graphs() -> None:
    seed = gpu_helpers.seed()
    subjects = [Subject(llama(seed), seed, coder=coder) for coder in ("rans", "zstd")]
    # torch keeps memory for the products of each stream.
    place, stream = torch.device(DEVICE, torch.cuda.current_device()), torch.cuda.Stream()
    least = wcodec.nn._weights.workspace.scratch_bytes(place)

    def free_after(rounds: int) -> int:
        for i in range(rounds):
            graph = Captured(subjects[i % 2], stream=stream)
            assert not graph.run(random.Random(i))
            assert wcodec.nn._weights.workspace.scratch_bytes(place) > least
            del graph
        # Memory that graphs kept goes some time after them.
        for _ in range(500):
            gc.collect()
            if wcodec.nn._weights.workspace.scratch_bytes(place) <= least:
                break
            time.sleep(0.01)
        time.sleep(0.2)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert wcodec.nn._weights.workspace.scratch_bytes(place) == least
        return torch.cuda.mem_get_info()[0]

    free = free_after(6)
    assert free - free_after(30) <= 4 << 20


# torch.compile


class Block(torch.nn.Module):
    """The linear part of a decoder block, with a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(128, 320)
        self.down = torch.nn.Linear(320, 128)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


@pytest.mark.parametrize("cache", [0, "100KB"])
def test_compiled_models(compiler: None, cache: Any) -> None:
    """Warmed up, captured and replayed by torch, in a stream and a pool of its own, while others decode; the first call
    takes memory, since the dtype was changed after all was prepared."""
    seed = gpu_helpers.seed()
    torch.manual_seed(seed)
    model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(128, 77)).to(DEVICE, torch.bfloat16)
    wcodec.compress_(model, cache=cache, progress=False, fused=False)
    model.to(torch.float32)
    alone = copy.deepcopy(model)
    wcodec.decompress_(alone)
    function = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    others = [Subject(llama(seed), seed), Subject(mixture(seed), seed, cache="100KB")]
    inputs = [torch.randn(3, 128, device=DEVICE) for _ in range(12)]
    stop = threading.Event()

    def beside() -> tuple[int, Counter[str]]:
        results = []
        while not stop.is_set():
            results.append(passes(others, 10, seed + len(results))())
        return sum_up(results)

    # torch has its graphs for the thread that imported it.
    with ThreadPoolExecutor(1) as starter, torch.inference_mode():
        threads = starter.submit(side_by_side, [beside, beside])
        try:
            for x in inputs:
                torch.compiler.cudagraph_mark_step_begin()
                found = function(x).clone()
                torch.testing.assert_close(found, alone(x), rtol=1e-4, atol=1e-4)
        finally:
            stop.set()
        assert_right(threads.result())


# Errors


class Stopped(BaseException):
    """As KeyboardInterrupt: nothing that is caught by accident."""


def stopping(*_: Any) -> None:
    raise Stopped


@pytest.mark.parametrize("where", ["between", "experts", "memory"])
def test_exceptions_leave_the_others_right(where: str) -> None:
    """Raised between layers, while experts have the workspace, or by torch in the middle of a layer."""
    seed = gpu_helpers.seed()
    dense, experts = Subject(llama(seed), seed), Subject(mixture(seed), seed, coder="huffman")
    broken = Subject(mixture(seed + 1), seed)
    layers = broken.model.model.layers
    module = {"between": layers[1].self_attn, "experts": layers[0].mlp.experts.act_fn}.get(where)
    kinds: dict[str, Any] = {"memory": RuntimeError}
    if module is not None:
        module.register_forward_hook(stopping)
    large = torch.ones(1, 128, dtype=torch.bfloat16, device=DEVICE).expand(1 << 36, 128)

    def fail() -> tuple[int, Counter[str]]:
        with own_stream():
            for _ in range(25):
                with pytest.raises(kinds.get(where, Stopped)):
                    if where == "memory":
                        layers[0].self_attn.q_proj(large)
                    else:
                        broken.run(random.Random(seed))
        return 25, Counter()

    if where == "memory" and NO_GPU is None:
        kinds["memory"] = torch.cuda.OutOfMemoryError
    work = [fail, *(passes([dense, experts], 80, seed + i) for i in range(3))]
    assert_right(side_by_side(work))
    # No lock is held by a thread that is gone.
    assert_right(side_by_side([passes([experts, dense], 5, seed)], 30))
