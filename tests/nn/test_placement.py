"""Placement of weights (on a device, streamed or decoded): the choice, and that it changes no result.

A GPU is played by the CPU.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from wcodec._core import format as _format
from wcodec._core import options as _options
from wcodec._gpu import decoder as _gpu_decoder
from wcodec._gpu import host
from wcodec.nn import CompressedEmbedding, CompressedLayer, CompressedLinear
from wcodec.nn._weights import cached as _cached
from wcodec.nn._weights import providers
from wcodec.nn._weights.placement import (
    Unit,
    checked_settings,
    choose_cached,
    choose_streamed,
    device_bytes,
    ring_bytes,
    spread,
)

from tests.gpu.test_providers import space  # noqa: F401

GPU = torch.device("cuda", 0)
MB = 1_000_000


def block(name: int | str, stored: int = 36 * MB, decoded: int = 88 * MB, **facts: Any) -> Unit:
    return Unit((f"{name}.a", f"{name}.b"), stored, stored + 512, decoded, min(decoded, 64 << 20), **facts)


def takes(resident: Sequence[Unit], streamed: Sequence[Unit]) -> int:
    """Compressed bytes, a ring, a table for each tensor."""
    ring = ring_bytes(max((unit.held for unit in streamed), default=0))
    return sum(unit.held for unit in resident) + ring + 16_384 * sum(len(u.names) for u in (*resident, *streamed))


def blocks(count: int = 22) -> list[Unit]:
    return [block("embed", 53 * MB, 131 * MB, looked_up=True), *(block(i) for i in range(count))]


def mixed(seed: int) -> list[Unit]:
    """Units of any sizes, some looked up, some experts."""
    rng = random.Random(seed)
    return [
        block(
            i, rng.randrange(1, 50 * MB), rng.randrange(50 * MB, 100 * MB), looked_up=rng.random() < 0.1,
            use=rng.choice([1.0, 1.0, 0.25]),
        )
        for i in range(rng.randrange(1, 40))
    ]  # fmt: skip


def taken(units: list[Unit], streamed: list[Unit], cached: list[Unit] = []) -> int:  # noqa: B006
    return device_bytes([u for u in units if u not in streamed and u not in cached], streamed, takes, cached)


# The choice


@pytest.mark.parametrize("seed", range(40))
def test_never_above_the_budget(seed: int) -> None:
    units, rng = mixed(seed), random.Random(seed)
    cached = choose_cached(units, rng.randrange(200 * MB), "host")
    rest = [u for u in units if u not in cached]
    everything, others = taken(rest, [], cached), rng.randrange(10 * MB)
    before = len(units) + 1
    for budget in sorted(rng.randrange(everything + others + MB) for _ in range(30)):
        try:
            streamed = choose_streamed(rest, cached, takes, budget, others)
        except wcodec.InputError:
            # Nothing smaller was enough.
            assert before == len(units) + 1
            continue
        assert others + taken(rest, streamed, cached) <= budget
        assert len(streamed) <= before and len(set(streamed)) == len(streamed)
        assert not any(u.looked_up for u in streamed)
        before = len(streamed)
    assert choose_streamed(rest, cached, takes, everything + others, others) == []


def test_equal_blocks_fill_the_budget() -> None:
    units = blocks()
    everything, all_streamed = taken(units, []), taken(units, units[1:])
    resident = 0
    for budget in range(all_streamed, everything, 7 * MB):
        streamed = choose_streamed(units, [], takes, budget)
        assert taken(units, streamed) <= budget
        # Another block would not fit.
        assert len(streamed) == 1 or taken(units, streamed[1:]) > budget
        assert 22 - len(streamed) >= resident
        resident = 22 - len(streamed)
    assert resident > 15


def test_streamed_blocks_are_spread_evenly() -> None:
    units = [block(i) for i in range(32)]
    for count in range(1, 33):
        places = [units.index(u) for u in spread(units, count)]
        gaps = [b - a for a, b in zip(places, [*places[1:], places[0] + 32], strict=True)]
        assert len(places) == count and min(gaps) >= 1 and max(gaps) - min(gaps) <= 1


def test_what_is_used_seldom_is_streamed_first() -> None:
    units = [unit for i in range(4) for unit in (block(i), *(block(f"{i}.e{j}", use=0.25) for j in range(8)))]
    budget = taken(units, []) - 300 * MB
    streamed = choose_streamed(units, [], takes, budget)
    assert streamed and all(u.use == 0.25 for u in streamed)
    least = choose_streamed(units, [], takes, taken(units, units))
    assert len(least) == len(units)


def test_a_budget_too_small_says_the_least() -> None:
    units = blocks()
    with pytest.raises(wcodec.InputError, match=r"vram_budget of 95\.37 MiB is too small .* at least (\d+) bytes") as e:
        choose_streamed(units, [], takes, 100 * MB, others=5 * MB)
    least = int(str(e.value).split("at least ")[1].split()[0])
    assert taken(units, choose_streamed(units, [], takes, least, 5 * MB)) + 5 * MB == least
    with pytest.raises(wcodec.InputError, match=str(least)):
        choose_streamed(units, [], takes, least - 1, others=5 * MB)
    with pytest.raises(wcodec.InputError, match="cache less"):
        choose_streamed(units[:-1], units[-1:], takes, 100 * MB)


def test_the_ring_has_a_bound() -> None:
    assert ring_bytes(1000) == 4000 and ring_bytes(100 * MB) == 96 << 20


@pytest.mark.parametrize("seed", range(20))
def test_the_cache_keeps_to_its_size(seed: int) -> None:
    units = mixed(seed)
    before = 0
    for cache in (0, 1, 50 * MB, 120 * MB, 900 * MB, 10_000 * MB):
        chosen = choose_cached(units, cache, "device")
        assert sum(u.decoded for u in chosen) <= cache and not any(u.looked_up for u in chosen)
        assert len(chosen) >= before
        before = len(chosen)
    assert len(chosen) == sum(not u.looked_up for u in units)


def test_the_cache_takes_what_saves_most() -> None:
    seldom, often, small = block(0, use=0.25), block(1), block(2, 360, 880)
    # A launch saved counts most where little is decoded by it.
    assert choose_cached([seldom, often, small], 88 * MB + 880, "device") == [often, small]
    assert choose_cached([seldom, often], 88 * MB, "host") == [often]
    assert choose_cached([often, block(3, 50 * MB)], 88 * MB, "host") == [block(3, 50 * MB)]


# Sizes from a user


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3GB", 3_000_000_000), ("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), (" 2 tib", 2 << 40), ("0", 0),
     ("100", 100), ("7 bytes", 7), ("0.25KiB", 256), (12, 12), ("9007199254740993B", 9007199254740993)],
)  # fmt: skip
def test_sizes(text: Any, expected: int) -> None:
    assert _options.size("cache", text) == expected


@pytest.mark.parametrize(
    "text", ["", "3G", "GB", "-1MB", "1,5GB", "3 GBB", "1e9", "9" * 5000, 3e9, True, -1, [1], "nan"]
)
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(wcodec.InputError, match="^cache must be .*'3GB' or '512MiB'"):
        _options.size("cache", text)


def test_sizes_are_written_so_that_they_can_be_read() -> None:
    rng = random.Random(4)
    for value in (0, 1, 1000, 1024, *(rng.randrange(1 << rng.randrange(1, 50)) for _ in range(500))):
        assert _options.size("cache", _format.exact_size(value)) == value


def test_settings_that_do_not_go_together() -> None:
    assert checked_settings("auto", "1GB", "0") == {
        "residency": "auto", "vram_budget": 10**9, "ram_budget": None, "cache": 0
    }  # fmt: skip
    assert checked_settings("auto", ram_budget="2KiB")["ram_budget"] == 2048
    # A budget says which residency is meant.
    assert checked_settings(vram_budget="1GB") == checked_settings("auto", "1GB")
    assert checked_settings(ram_budget="1GB")["residency"] == "auto" and checked_settings()["residency"] == "device"
    for settings, message in (
        ({"residency": "tape"}, "device, host, disk or auto"),
        ({"residency": "disk", "ram_budget": 5}, "ram_budget goes with residency 'auto', not with 'disk'"),
        ({"residency": "device", "vram_budget": "3GB"}, "goes with residency 'auto', not with 'device'"),
        ({"residency": "host", "vram_budget": 5}, "not with 'host'"),
        ({"residency": "auto", "vram_budget": 0}, "at least 1 bytes"),
        ({"cache": "much"}, "cache must be a size"),
    ):
        with pytest.raises(wcodec.InputError, match=message):
            checked_settings(**settings)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64))
        with pytest.raises(wcodec.InputError, match=message):
            wcodec.compress_(model, progress=False, **settings)
        assert type(model[0]) is torch.nn.Linear


# Models on the CPU

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 300}  # fmt: skip
IDS = torch.tensor([[3, 17, 256, 255, 5, 41]])


def build(name: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    t = pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = {
        "llama": lambda: t.LlamaConfig(**SMALL),
        "tied": lambda: t.LlamaConfig(**SMALL, tie_word_embeddings=True),
        "mixtral": lambda: t.MixtralConfig(**SMALL, num_local_experts=4, experts_implementation="eager"),
    }[name]()
    return t.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.inference_mode():
        return model(ids).logits


def layers_of(model: Any) -> list[CompressedLayer]:
    return [m for m in model.modules() if isinstance(m, CompressedLayer)]


def store_of(model: Any) -> Any:
    return layers_of(model)[0]._store


def cached_part(model: Any) -> int:
    return {p.name: p.bytes for p in wcodec.measure_vram(model, device="cpu").parts}.get("decoded-layer cache", 0)


@pytest.mark.parametrize("coder", ["rans", "huffman", "zstd", "raw"])
def test_a_cache_changes_no_bit(coder: str, model: Path) -> None:
    pytest.importorskip("transformers")
    wanted = logits(wcodec.load_model(model, coder=coder))
    for cache in ("1MB", "100MB"):
        cached = wcodec.load_model(model, coder=coder, cache=cache)
        for _ in range(2):
            assert torch.equal(logits(cached), wanted)
        held = [m for m in layers_of(cached) if m.cached]
        assert 0 < cached_part(cached) <= _options.size("cache", cache)
        assert sum(m.original_bytes for m in held) == cached_part(cached)
        assert not any(isinstance(m, CompressedEmbedding) for m in held) and "cached" in repr(held[0])
        assert (len(held) == 29) == (cache == "100MB")
    assert "cache: " in repr(wcodec.WCodecModel(cached))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "tied", "mixtral"])
def test_cached_layers_of_every_kind(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, cached = build(name, dtype), build(name, dtype)
    wcodec.compress_(plain, cache=0, progress=False)
    wcodec.compress_(cached, cache="10MB", progress=False)
    wanted = logits(plain)
    assert torch.equal(logits(cached), wanted)
    # An embedding is looked up, and so stays compressed, unless a head is tied to it, which multiplies.
    assert cached.lm_head.cached and cached.model.embed_tokens.cached == (name == "tied")
    decoded: list[str] = []
    rows = wcodec.nn._weights.store.Store.rows
    monkeypatch.setattr(
        wcodec.nn._weights.store.Store,
        "rows",
        lambda self, name, *rest: decoded.append(name) or rows(self, name, *rest),
    )
    assert torch.equal(logits(cached), wanted)
    assert set(decoded) == (set() if name == "tied" else {"model.embed_tokens.weight"})
    assert torch.equal(cached.model.layers[0].self_attn.q_proj.weight, plain.model.layers[0].self_attn.q_proj.weight)
    wcodec.decompress_(cached)
    if name == "mixtral":
        cached.set_experts_implementation("eager")
    assert torch.equal(logits(cached), wanted)


def test_experts_that_are_used_seldom_are_cached_last() -> None:
    model = build("mixtral")
    wcodec.compress_(model, cache="100KB", progress=False)
    logits(model)
    store = store_of(model)
    assert set(store.tensor_groups.routed.values()) == {0.5}
    cached = store.placement(torch.device("cpu")).cached
    assert cached and not any("experts" in name for name in cached)


def test_slices_of_a_cached_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large weight is multiplied in the same slices, whether it is cached or not."""
    monkeypatch.setattr(providers, "SLICE_BYTES", 80 * 64 * 4)
    plain, cached = build(), build()
    wcodec.compress_(plain, cache=0, progress=False)
    wcodec.compress_(cached, cache="10MB", progress=False)
    assert torch.equal(logits(cached), logits(plain))
    assert isinstance(plain.lm_head._weights.provider[0], providers.SlicedProvider)
    plan = cached.lm_head._weights.provider[0]
    assert isinstance(plan, _cached.CachedProvider) and len(plan._slices) == 4
    held = cached_part(cached)
    # In half the bytes, fewer weights are large: other providers, and still no weight is kept twice.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits(cached), logits(plain))
    assert 0 < cached_part(cached) < held
    assert torch.equal(logits(cached), logits(plain)) and cached_part(cached) == held


def test_copies_keep_settings_and_no_weights() -> None:
    model = build("tied")
    wcodec.compress_(model, residency="auto", vram_budget="1GB", cache="5MB", progress=False)
    wanted = logits(model)
    clone = pickle.loads(pickle.dumps(model))
    assert store_of(clone).settings == {
        "residency": "auto", "vram_budget": 10**9, "ram_budget": None, "cache": 5 * MB
    }  # fmt: skip
    assert (
        cached_part(clone) == 0 < cached_part(model)
        and store_of(clone)._budget.others == store_of(model)._budget.others > 0
    )
    assert len(pickle.dumps(model)) < 1.1 * len(pickle.dumps(clone))
    assert torch.equal(logits(clone), wanted) and cached_part(clone) == cached_part(model)
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin), wanted) and cached_part(twin) == cached_part(model)


def test_another_dtype_drops_what_was_cached() -> None:
    model, plain = build(), build()
    wcodec.compress_(model, cache="10MB", progress=False)
    wcodec.compress_(plain, progress=False)
    logits(model)
    wide = cached_part(model)
    for dtype, size in ((torch.bfloat16, wide // 2), (torch.float32, wide)):
        model.to(dtype)
        assert cached_part(model) == 0
        assert torch.equal(logits(model), logits(plain.to(dtype))) and cached_part(model) == size
    # Autocast uses them in another dtype: one at a time is kept.
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(logits(model), logits(plain))
        assert cached_part(model) < wide
        assert torch.equal(logits(model), logits(plain)) and cached_part(model) == wide
    # The one that is wider than was planned is used, and not kept.
    model.bfloat16(), plain.bfloat16()
    logits(model)
    layer, x = model.lm_head, torch.randn(2, 64)
    out = layer._product(x, None)
    assert torch.equal(out, plain.lm_head._product(x, None)) and cached_part(model) < wide // 2
    # A part of the model that goes elsewhere leaves nothing behind.
    model.lm_head.to(torch.float32)
    assert cached_part(model) == 0 and torch.equal(model.lm_head(x), plain.lm_head.to(torch.float32)(x))


def test_other_weights_are_not_taken_from_the_cache() -> None:
    model, other = build(), build()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    wcodec.compress_(model, residency="auto", vram_budget="1GB", cache="10MB", progress=False)
    wcodec.compress_(other, progress=False)
    before = logits(model)
    model.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(logits(model), logits(other)) and not torch.equal(logits(model), before)
    assert {m.residency for m in layers_of(model)} == {"device"} and not any(m.cached for m in layers_of(model))


# A GPU that is played by the CPU


class Batch:
    def __init__(self, decoder: Any, targets: list[Any]) -> None:
        self.decoder, self.targets, self.slots = decoder, targets, decoder.slots

    def launch(self) -> None:
        self.decoder.launched.append(tuple(t[0] for t in self.targets))
        with torch.inference_mode():
            for name, out, *rows in self.targets:
                weight = self.decoder.container[name].torch(out.dtype)
                out.copy_(weight[rows[0][0] : rows[0][1]] if rows else weight)

    def prefetch(self) -> None:
        self.decoder.fetched.append(tuple(t[0] for t in self.targets))


class Resident:
    slots, device_bytes = 0, 700

    def __init__(self, container: Any, names: list[str], device: Any) -> None:
        self.container, self.names, self.launched, self.fetched = container, names, [], []
        made.append(self)

    def prepare(self, targets: list[Any]) -> Batch:
        return Batch(self, targets)

    def decode(self, name: str, dtype: Any, out: Any = None) -> torch.Tensor:
        assert name in self.names
        weight = self.container[name].torch(dtype)
        return weight if out is None else out.copy_(weight)

    def check(self) -> None:
        pass


class Streamed(Resident):
    slots, device_bytes, host_bytes = 1, 50, 300

    def __init__(self, container: Any, names: list[str], device: Any, ring: int) -> None:
        super().__init__(container, names, device)
        self.ring = ring


made: list[Any] = []


@pytest.fixture
def gpu(space: Any, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    made.clear()
    monkeypatch.setattr(_gpu_decoder, "GpuDecoder", Resident)
    monkeypatch.setattr(host, "HostDecoder", Streamed)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(CompressedLinear, "_check_place", lambda self, x: None)
    monkeypatch.setattr(_cached, "memory", lambda device, size: torch.empty(size, dtype=torch.uint8))
    look_up = CompressedEmbedding._look_up

    def looked_up(layer: Any, ids: torch.Tensor) -> torch.Tensor:
        if layer.device != GPU:
            return look_up(layer, ids)
        return layer._store.decoder(layer.tensor, GPU).decode(layer.entry.name, layer.dtype)[ids]

    monkeypatch.setattr(CompressedEmbedding, "_look_up", looked_up)
    return space


def to_gpu(model: Any) -> Any:
    """Has the layers say that they are on a GPU; what computes stays where it is."""
    for layer in layers_of(model):
        layer._device = GPU
        layer._weights.settle(GPU, layer.dtype)
    return model


def units_of(model: Any) -> list[Unit]:
    return store_of(model)._memory_estimate(GPU).units


def needs(model: Any, streamed: bool) -> int:
    """Bytes that the model takes with everything streamed, or nothing."""
    units = units_of(model)
    return needed(model, units, [u for u in units if not u.looked_up] if streamed else [])


def needed(model: Any, units: list[Unit], streamed: list[Unit], cached: list[Unit] = []) -> int:  # noqa: B006
    """Bytes that the model takes, by what decoders say of themselves."""
    store = store_of(model)
    resident = [u for u in units if u not in streamed and u not in cached]
    return store._budget.others + device_bytes(resident, streamed, store._memory_estimate(GPU).takes(), cached)


def compressed(name: str = "llama", **options: Any) -> Any:
    model = build(name)
    wcodec.compress_(model, progress=False, **options)
    return to_gpu(model)


def test_auto_makes_one_decoder_of_each_kind(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wcodec.nn._weights.placement._LARGEST_RING", 1000)
    plain = build()
    wcodec.compress_(plain, progress=False)
    wanted = logits(plain)
    model = compressed(residency="auto", vram_budget="1GB")
    assert {m.residency for m in layers_of(model)} == {"auto", "device"}  # not settled yet, but for the embedding
    units = units_of(model)
    # One block less on the device is too little: both decoders then have the table.
    budget = needed(model, units, [units[2], units[4]])
    model = compressed(residency="auto", vram_budget=budget)
    for _ in range(2):
        assert torch.equal(logits(model), wanted)
    resident, streamed = sorted(made, key=lambda decoder: decoder.slots)
    assert len(made) == 2 and not set(resident.names) & set(streamed.names)
    assert len(resident.names) + len(streamed.names) == 4 * 7 + 2
    # Two of the four blocks, neither next to the other, with all their matrices.
    assert {name.split(".")[2] for name in streamed.names} == {"1", "3"}
    assert len(streamed.names) == 14 and streamed.ring == 1000
    assert "model.embed_tokens.weight" in resident.names and "lm_head.weight" in resident.names
    where = {n: m.residency for n, m in model.named_modules() if isinstance(m, CompressedLayer)}
    assert {n.split(".")[2] for n, r in where.items() if r == "host"} == {"1", "3"}
    assert list(where.values()).count("host") == 14 and where["lm_head"] == "device"
    # Only what is streamed is fetched ahead, and from the end back to the start.
    assert not resident.fetched and all(names[0] in streamed.names for names in streamed.fetched)
    assert {names[0].split(".")[2] for names in streamed.fetched} == {"1", "3"}
    assert "(16 device, 14 host)" in repr(wcodec.WCodecModel(model))
    parts = {(p.name, p.device): p.bytes for p in wcodec.measure_vram(model, device="cpu").parts}
    assert parts["ring for streamed layers", "cuda:0"] == 50 and parts["compressed layers", "cpu (pinned)"] == 300
    held = parts["compressed embeddings", "cuda:0"] + parts.get(("compressed layers", "cuda:0"), 0)
    assert held == 700


@pytest.mark.parametrize("fits", [True, False])
def test_auto_at_both_ends(fits: bool, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wcodec.nn._weights.placement._LARGEST_RING", 1000)
    budget = needs(compressed(), streamed=not fits)
    made.clear()
    model = compressed(residency="auto", vram_budget=budget)
    logits(model)
    kinds = [type(d) for d in made]
    assert kinds.count(Streamed) == (0 if fits else 1) and kinds.count(Resident) == 1
    if not fits:
        assert [d.names for d in made if type(d) is Resident] == [["model.embed_tokens.weight"]]
    # One byte less than the least is refused, and names it.
    if not fits:
        with pytest.raises(wcodec.InputError, match=f"too small for this model, which takes at least {budget} bytes"):
            logits(compressed(residency="auto", vram_budget=budget - 1))


def test_auto_without_a_budget_takes_what_is_free(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wcodec.nn._weights.placement._LARGEST_RING", 1000)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    # Other tests may have left memory to decode into if there is a GPU, which would count.
    monkeypatch.setattr("wcodec.nn._weights.workspace._workspaces", {})
    need = needs(compressed(), streamed=False)
    for missing, streams in ((0, False), (1, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, n=need - missing: (n - 2000 + 500, 5000))
        model = compressed(residency="auto")
        logits(model)
        assert bool(store_of(model).placement(GPU).streamed) == streams
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    with pytest.raises(wcodec.InputError, match="what may be taken of cuda:0 of .* is too small"):
        logits(compressed(residency="auto"))


@pytest.mark.parametrize("residency", ["device", "host", "auto"])
@pytest.mark.parametrize("name", ["llama", "tied", "mixtral"])
def test_what_is_cached_is_in_no_decoder(name: str, residency: str, gpu: Any) -> None:
    plain = build(name)
    wcodec.compress_(plain, progress=False)
    wanted = logits(plain)
    budget = {"vram_budget": "1GB"} if residency == "auto" else {}
    model = compressed(name, residency=residency, cache="300KB", **budget)
    store = store_of(model)
    for _ in range(2):
        assert torch.equal(logits(model), wanted)
    cached = store.placement(GPU).cached
    kept = store._all_decoders()
    assert cached and 0 < store.cached_bytes(GPU) <= 300_000
    names = [n for d in kept for n in d.names]
    assert len(names) == len(set(names)) and not set(cached) & set(names)
    assert set(names) | set(cached) == {n for n in store.container if store.entry(n).name == n}
    # The decoders of what is cached were there for a moment only.
    gone = [d for d in made if d not in kept]
    assert {n for d in gone for n in d.names} == set(cached) and not any(type(d) is Streamed for d in gone)
    assert type(kept[-1]) is (Streamed if residency == "host" else Resident)
    layer = next(m for m in layers_of(model) if isinstance(m, CompressedLinear) and m.cached)
    assert torch.equal(layer.weight, layer.entry.torch(torch.float32))
    parts = {(p.name, p.device): p.bytes for p in wcodec.measure_vram(model, device="cpu").parts}
    assert parts["decoded-layer cache", "cuda:0"] == store.cached_bytes(GPU)


def test_large_experts_are_cached(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices that are too large to be decoded together."""
    monkeypatch.setattr(providers, "SLICE_BYTES", 80 * 64 * 4)
    plain = build("mixtral")
    wcodec.compress_(plain, progress=False)
    wanted = logits(plain)
    model = compressed("mixtral", cache="10MB")
    assert torch.equal(logits(model), wanted)
    count = len(made)
    assert torch.equal(logits(model), wanted) and len(made) == count > 1


def test_the_cache_counts_in_the_budget(gpu: Any) -> None:
    model = compressed(residency="auto", vram_budget="1GB", cache="200KB")
    units = units_of(model)
    cached = choose_cached(units, 200_000, "host")
    need = needed(model, units, [], cached)
    for budget, streams in ((need, False), (need - 1, True)):
        model = compressed(residency="auto", vram_budget=budget, cache="200KB")
        try:
            logits(model)
        except wcodec.InputError as error:
            # The ring of a model so small takes more than streaming saves.
            assert streams and "cache less" in str(error)
        else:
            assert not streams and not store_of(model).placement(GPU).streamed


def test_layers_that_come_later_and_go(gpu: Any) -> None:
    model = build()
    wcodec.compress_(model, residency="auto", vram_budget="1GB", cache="200KB", progress=False)
    store = store_of(model)
    first = model.model.layers[0]
    to_gpu(first)
    first.mlp.up_proj(torch.ones(1, 64))
    assert all(".0." in name for name in store.placement(GPU).names)
    to_gpu(model)
    logits(model)
    assert len(store.placement(GPU).names) == 4 * 7 + 2 and store.placement(GPU).cached
    # With the last of them goes all that was kept.
    for layer in layers_of(model):
        layer._device = torch.device("cpu")
        layer._weights.settle(layer._device, layer.dtype)
    assert GPU not in store._devices and not store.cached_bytes(GPU)
    made.clear()
    gc.collect()
    assert not [d for d in gc.get_objects() if type(d) in (Resident, Streamed)]


def test_a_budget_too_small_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model stays as it was if the error is known at once."""
    model = build()
    wanted = logits(model)

    def refuse(store: Any) -> None:
        choose_streamed([block(0)], [], takes, store.settings["vram_budget"])

    monkeypatch.setattr("wcodec.nn._weights.store.Store.check_budget", refuse)
    with pytest.raises(wcodec.InputError, match="too small"):
        wcodec.compress_(model, residency="auto", vram_budget=1000, progress=False)
    assert not layers_of(model) and torch.equal(logits(model), wanted)
    assert all(p.requires_grad for p in model.parameters())


def test_a_budget_is_checked_before_anything_is_sent(gpu: Any) -> None:
    model = compressed(residency="auto", vram_budget=1000)
    with pytest.raises(wcodec.InputError, match="too small"):
        store_of(model).check_budget()
    model = compressed(residency="auto", vram_budget="1GB")
    store_of(model).check_budget()
    assert store_of(model).placement(GPU).names and not store_of(model).placement(GPU).streamed
    assert not made
