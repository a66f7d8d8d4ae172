"""Weights that stay on disk: on the CPU what is read, when, and in how much memory; and what a GPU would be asked for,
which the CPU plays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import wcodec
from command import flip
from wcodec import cli
from wcodec._gpu import host as _host
from wcodec.nn._weights import budget as _budget
from wcodec.nn._weights import providers
from wcodec.nn._weights.placement import choose_on_disk, ring_bytes, spread

from tests.nn.test_placement import (
    GPU,
    MB,
    Resident,
    Streamed,
    block,
    build,
    gpu,  # noqa: F401
    layers_of,
    logits,
    made,
    space,  # noqa: F401
    store_of,
    to_gpu,
)

PARTS = ("compressed layers, read when needed", "ring for layers on disk")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of compressed models, by the kind of the model."""
    found: dict[tuple[str, str], Path] = {}

    def folder(name: str = "llama", coder: str = "rans") -> Path:
        if (name, coder) not in found:
            model = build(name)
            wcodec.compress_(model, coder=coder, progress=False)
            found[name, coder] = tmp_path_factory.mktemp(name) / coder
            wcodec.save_pretrained(model, found[name, coder])
        return found[name, coder]

    return folder


@pytest.fixture
def folder(folders: Any, tmp_path: Path) -> Path:
    """One of its own, which may be damaged."""
    whole = folders()
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def facts(model: Any) -> tuple[int, int, bool, int, int, int]:
    """Facts of reading ahead: ring, most that was held, whether directly, bytes that it is for, reads in time,
    others."""
    found = store_of(model).container._open.ahead_facts()
    assert found is not None
    return found


def parts(model: Any) -> dict[tuple[str, str], int]:
    return {(p.name, p.device): p.bytes for p in wcodec.measure_vram(model, device="cpu").parts}


# The CPU


@pytest.mark.parametrize("coder", ["rans", "huffman", "zstd", "raw"])
@pytest.mark.parametrize("direct", [True, False])
def test_logits_are_the_same_and_all_reads_are_foreseen(
    coder: str, direct: bool, folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("wcodec.nn._weights.device_state.pays_directly", lambda *_: direct)
    path = folders(coder=coder)
    wanted = logits(wcodec.load_model(path))
    model = wcodec.load_model(path, residency="disk")
    assert {m.residency for m in layers_of(model)} == {"device", "disk"}
    for _ in range(3):
        assert torch.equal(logits(model), wanted)
    ring, most, is_direct, covers, ahead, late = facts(model)
    assert 0 < most <= ring and is_direct == (direct and wcodec._native.reads_direct(path / "model.wcodec"))
    assert late == 0 and ahead >= 3 * 29 * 2
    stored = sum(m.stored_bytes for m in layers_of(model) if m.residency == "disk")
    assert covers <= stored and parts(model)[PARTS[0], "disk"] == stored and parts(model)[PARTS[1], "cpu"] == ring
    assert "29 disk" in repr(wcodec.WCodecModel(model))
    wcodec.decompress_(model)
    assert torch.equal(logits(model), wanted)


@pytest.mark.parametrize("name", ["tied", "mixtral"])
def test_models_of_other_kinds(name: str, folders: Any) -> None:
    path = folders(name)
    wanted = logits(wcodec.load_model(path))
    model = wcodec.load_model(path, residency="disk")
    ids = torch.tensor([[5, 5, 5]])
    for _ in range(3):
        assert torch.equal(logits(model), wanted)
        # Experts that tokens are routed to are read as soon as that is known.
        *_, ahead, late = facts(model)
        assert late == 0
    other = logits(model, ids)
    assert torch.equal(other, logits(wcodec.load_model(path), ids)) and facts(model)[-1] == 0
    if name == "mixtral":
        # One token is routed to two of four experts in each of four layers: no others are read for it.
        assert facts(model)[-2] - ahead < ahead / 3
    assert bool(store_of(model).tensor_groups.routed) == (name == "mixtral")


def test_slices_dtypes_and_gradients(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "SLICE_BYTES", 80 * 64 * 4)
    plain, model = wcodec.load_model(folders()), wcodec.load_model(folders(), residency="disk")
    for _ in range(2):
        assert torch.equal(logits(model), logits(plain))
    assert isinstance(model.lm_head._weights.provider[0], providers.SlicedProvider)
    # Bytes compared with hashes before their first slice is decoded are not foreseen: once.
    *_, late = facts(model)
    assert torch.equal(logits(model), logits(plain)) and facts(model)[-1] == late
    prefetched = len(store_of(model)._devices[torch.device("cpu")].prefetch_queue._in_order)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits(model), logits(plain))
    x = torch.randn(2, 64, requires_grad=True)
    model.lm_head(x).sum().backward()
    y = x.detach().clone().requires_grad_()
    plain.lm_head(y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert len(store_of(model)._devices[torch.device("cpu")].prefetch_queue._in_order) >= prefetched
    model.bfloat16(), plain.bfloat16()
    assert torch.equal(logits(model), logits(plain))
    cached = wcodec.load_model(folders(), residency="disk", cache="100KB")
    assert torch.equal(logits(cached), logits(wcodec.load_model(folders())))
    placed = store_of(cached).placement(torch.device("cpu"))
    assert placed.cached and placed.disk and placed.disk.isdisjoint(placed.cached)


def test_out_of_order_twice_and_by_several_threads_and_models(folders: Any) -> None:
    model, other = (wcodec.load_model(folders(), residency="disk") for _ in range(2))
    plain = wcodec.load_model(folders())
    wanted, x = logits(plain), torch.randn(3, 64)
    for i in (3, 0, 0, 2, 1, 3):
        assert torch.equal(model.model.layers[i].mlp.gate_proj(x), plain.model.layers[i].mlp.gate_proj(x))
        assert torch.equal(model.lm_head.weight, plain.lm_head.weight)
    failed: list[Any] = []

    def run(which: Any) -> None:
        for _ in range(3):
            if not torch.equal(logits(which), wanted):
                failed.append(which)

    threads = [threading.Thread(target=run, args=(which,)) for which in (model, other, model)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert not failed and not any(thread.is_alive() for thread in threads)
    for which in (model, other):
        assert facts(which)[1] <= facts(which)[0]
    # A part that goes elsewhere changes nothing for the others; a model that goes has nothing read any more.
    container = store_of(other).container
    other.to("meta")
    assert container._open.ahead_facts() is None
    assert torch.equal(logits(model), wanted)


def test_files_that_change_while_a_model_runs(folder: Path) -> None:
    path = folder / "model.wcodec"
    model = wcodec.load_model(folder, residency="disk")
    wanted = logits(model)
    entry = model.model.layers[2].mlp.up_proj.entry
    at = next(s.offset for s in entry.segments if s.role == "data")
    flip(path, at + 5)
    with pytest.raises(wcodec.CorruptError, match="hash of a segment") as caught:
        [logits(model) for _ in range(3)]
    assert (caught.value.tensor, caught.value.file, caught.value.offset) == (entry.name, str(path), at)
    flip(path, at + 5)
    assert torch.equal(logits(model), wanted)
    # Removed, and replaced: what was opened is read on.
    data = path.read_bytes()
    path.unlink()
    assert torch.equal(logits(model), wanted)
    path.write_bytes(bytes(len(data)))
    assert torch.equal(logits(model), wanted)
    path.write_bytes(data)
    model = wcodec.load_model(folder, residency="disk")
    assert torch.equal(logits(model), wanted)
    os.truncate(path, at)
    with pytest.raises(wcodec.CorruptError, match="changed while it was open") as caught:
        [logits(model) for _ in range(2)]
    assert caught.value.tensor and caught.value.file == str(path)


PROGRAM = """
import json, os, resource, sys
import torch, wcodec
from wcodec.nn import CompressedLinear
from wcodec.nn._weights.store import Store

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))

torch.set_num_threads(1)
container = wcodec.open(sys.argv[1])
names = [t.name for t in container.stored]
groups = [tuple(names[i : i + 2]) for i in range(0, len(names), 2)]
store = Store(container, groups, residency="disk")
layers = [CompressedLinear(store, name, 1024, 1024, None, dtype="bfloat16") for name in names]
x = torch.ones(1, 1024, dtype=torch.bfloat16)
with torch.inference_mode():
    layers[0](x), layers[2](x)
    # No more than this, whatever it is for: buffers, heaps of threads.
    limit = status("VmData") + 100_000_000
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    before = status("VmRSS")
    total = sum(float(layer(x).float().sum()) for _ in range(2) for layer in layers)
facts = container._open.ahead_facts()
grown = status("VmHWM") - before
# A process that is forked has none of the threads that read.
child = os.fork()
with torch.inference_mode():
    again = sum(float(layer(x).float().sum()) for layer in layers)
if not child:
    os._exit(again * 2 != total)
assert os.waitpid(child, 0)[1] == 0 and again * 2 == total
print(json.dumps({"total": total, "grown": grown, "facts": facts}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and /proc are Linux's")
def test_memory_has_a_bound(tmp_path: Path, rng: np.random.Generator) -> None:
    """A file of 50 MB is read twice by a process that takes less than that, and may not take much more."""
    path, program = tmp_path / "m.wcodec", tmp_path / "program.py"
    weight = rng.standard_normal((1024, 1024)).astype(np.float16)
    wcodec.save_file({f"{i:03}": np.roll(weight, i) for i in range(48)}, path, coder="raw", progress=False)
    program.write_text(PROGRAM)
    assert path.stat().st_size > 50 * MB
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(program), str(path)], capture_output=True, text=True, env=environment, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with torch.inference_mode():
        x = torch.ones(1, 1024, dtype=torch.bfloat16)
        weights = (entry.torch(torch.bfloat16) for entry in wcodec.open(path).stored)
        total = 2 * sum(float(torch.nn.functional.linear(x, w).float().sum()) for w in weights)
    assert found["total"] == total
    ring, most, _, covers, ahead, late = found["facts"]
    assert most <= ring <= 10 * MB and covers > 50 * MB and late == 0 and ahead > 4 * 48
    # The ring, two decoded layers, a compressed one, and what threads have for themselves.
    assert found["grown"] < 40 * MB, found


# Budgets


def host_takes(there: Any, disk: Any) -> int:
    return sum(u.held for u in there) + ring_bytes(max((u.held for u in disk), default=0))


def test_the_fewest_blocks_are_on_disk() -> None:
    units = [block(i, 36 * MB) for i in range(22)]
    everything = host_takes(units, [])
    assert choose_on_disk(units, host_takes, everything) == []
    for budget in range(ring_bytes(40 * MB), everything, 90 * MB):
        chosen = choose_on_disk(units, host_takes, budget)
        assert host_takes([u for u in units if u not in chosen], chosen) <= budget
        assert chosen == spread(units, len(chosen))
    with pytest.raises(wcodec.InputError, match=r"ram_budget of 4\.77 MiB is too small .* at least 100663296 bytes"):
        choose_on_disk(units, host_takes, 5 * MB)
    seldom = [block(f"e{i}", 36 * MB, use=0.25) for i in range(8)]
    assert set(choose_on_disk([*units[:8], *seldom], host_takes, 450 * MB)) <= set(seldom)


def test_auto_on_the_cpu_reads_from_disk_what_memory_has_no_room_for(
    folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wcodec.nn._weights.placement._LARGEST_RING", 60_000)
    plain = wcodec.load_model(folders())
    wanted = logits(plain)
    model = wcodec.load_model(folders(), residency="auto", ram_budget="10MB")
    assert torch.equal(logits(model), wanted)
    assert {m.residency for m in layers_of(model)} == {"device", "host"}
    assert store_of(model).container._open.ahead_facts() is None
    movable = sum(m.stored_bytes for m in layers_of(plain) if not m.looked_up)
    model = wcodec.load_model(folders(), residency="auto", ram_budget=movable - 1000)
    for _ in range(2):
        assert torch.equal(logits(model), wanted)
    where = {n: m.residency for n, m in model.named_modules() if m in layers_of(model)}
    assert {"host", "disk"} <= set(where.values()) and facts(model)[-1] == 0
    sizes = parts(model)
    assert sizes["compressed layers", "cpu"] + sizes[PARTS[1], "cpu"] <= movable
    assert sizes["compressed layers", "cpu"] + sizes[PARTS[0], "disk"] == movable
    with pytest.raises(wcodec.InputError, match="ram_budget of 1000 B is too small"):
        logits(wcodec.load_model(folders(), residency="auto", ram_budget=1000))
    # Without a number, what is free counts.
    monkeypatch.setattr(_budget, "host_memory", lambda: (movable - 1000, 0))
    model = wcodec.load_model(folders(), residency="auto")
    assert torch.equal(logits(model), wanted)
    assert "disk" in {m.residency for m in layers_of(model)}
    monkeypatch.setattr(_budget, "host_memory", lambda: (None, None))
    model = wcodec.load_model(folders(), residency="auto")
    assert torch.equal(logits(model), wanted) and {m.residency for m in layers_of(model)} == {"device", "host"}


def test_settings_are_saved_and_read(folders: Any, tmp_path: Path) -> None:
    model = wcodec.load_model(folders(), residency="auto", ram_budget="3MiB", vram_budget="1GB")
    wcodec.save_pretrained(model, tmp_path / "a")
    saved = json.loads((tmp_path / "a" / "config.json").read_text())["quantization_config"]
    assert (saved["ram_budget"], saved["vram_budget"]) == ("3MiB", "1GB")
    assert store_of(wcodec.load_model(tmp_path / "a")).settings["ram_budget"] == 3 << 20
    assert store_of(wcodec.load_model(tmp_path / "a", residency="disk")).settings["ram_budget"] is None
    wcodec.save_pretrained(wcodec.load_model(folders(), residency="disk"), tmp_path / "b")
    model = wcodec.load_model(tmp_path / "b")
    assert store_of(model).residency == "disk" and torch.equal(logits(model), logits(wcodec.load_model(folders())))
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert store_of(model).residency == "disk" and torch.equal(logits(model), logits(wcodec.load_model(folders())))
    assert facts(model)[-1] == 0


def test_what_is_compressed_in_memory_is_not_on_disk(tmp_path: Path) -> None:
    message = "residency 'disk' reads a compressed file"
    with pytest.raises(wcodec.InputError, match=message):
        wcodec.compress_(build(), residency="disk", progress=False)
    build().save_pretrained(tmp_path / "m")
    with pytest.raises(wcodec.InputError, match=message):
        wcodec.load_model(tmp_path / "m", residency="disk", progress=False)
    transformers = pytest.importorskip("transformers")
    with pytest.raises(wcodec.InputError, match=message):
        transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "m", quantization_config=wcodec.WCodecConfig(residency="disk")
        )
    with pytest.raises(wcodec.InputError, match=r"WCodecConfig has no keyword residence \(did you mean residency\?\)"):
        wcodec.WCodecConfig(residence="disk")


def test_copies_of_layers_on_disk(folders: Any) -> None:
    import copy
    import pickle

    model = wcodec.load_model(folders(), residency="disk")
    wanted = logits(model)
    assert torch.equal(logits(copy.deepcopy(model)), wanted)
    clone = pickle.loads(pickle.dumps(model))
    assert torch.equal(logits(clone), wanted) and store_of(clone).residency == "host"
    other = build()
    wcodec.compress_(other, scale="tensor", progress=False)
    model.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(logits(model), logits(other))


def test_the_command(folders: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["encode", str(model), "-o", str(tmp_path / "c") + "/", "--quiet"]) == 0
    texts = []
    for residency in ([], ["--residency", "disk"], ["--residency", "auto", "--ram-budget", "3MB"]):
        capsys.readouterr()
        given = ["generate", str(tmp_path / "c"), "--prompt", "The function", "--max-new-tokens", "4", *residency]
        assert cli.main([*given, "--quiet"]) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1 and texts[0].strip()


def test_limits_of_control_groups(tmp_path: Path) -> None:
    group = tmp_path / "root" / "a" / "b"
    group.mkdir(parents=True)
    process = tmp_path / "cgroup"
    process.write_text("0::/a/b\n")
    assert _budget._group_memory(tmp_path / "root", process) == (None, 0)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5000\n")
    assert _budget._group_memory(tmp_path / "root", process) == (None, 0)
    (group.parent / "memory.max").write_text("9000\n")
    (group.parent / "memory.current").write_text("6000\n")
    (group.parent / "memory.stat").write_text("anon 1\ninactive_file 1500\n")
    assert _budget._group_memory(tmp_path / "root", process) == (9000, 4500)
    # As a container sees it, whose group is called otherwise outside.
    process.write_text("12:cpu:/x\n3:memory:/docker/1\n")
    top = tmp_path / "root" / "memory"
    top.mkdir()
    (top / "memory.limit_in_bytes").write_text("7000")
    (top / "memory.usage_in_bytes").write_text("100")
    assert _budget._group_memory(tmp_path / "root", process) == (7000, 100)
    assert _budget._group_memory(tmp_path / "root", tmp_path / "nothing") == (None, 0)
    free, total = _budget.host_memory()
    assert free is None or total is None or 0 <= free <= total


# A GPU that is played by the CPU


class OfDisk(Streamed):
    host_ring_bytes = 120

    def __init__(
        self, container: Any, names: list[str], device: Any, ring: int, from_disk: Any = (), direct: bool | None = None
    ) -> None:
        super().__init__(container, names, device, ring)
        self.on_disk, self.direct = list(from_disk), direct


@pytest.fixture
def disk_gpu(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # noqa: F811
    monkeypatch.setattr(_host, "HostDecoder", OfDisk)
    monkeypatch.setattr("wcodec.nn._weights.placement._LARGEST_RING", 60_000)
    yield gpu


def test_a_gpu_is_fed_from_disk(folders: Any, disk_gpu: Any) -> None:
    wanted = logits(wcodec.load_model(folders()))
    model = to_gpu(wcodec.load_model(folders(), residency="disk"))
    for _ in range(2):
        assert torch.equal(logits(model), wanted)
    resident, streamed = sorted(made, key=lambda decoder: decoder.slots)
    assert (type(resident), type(streamed)) == (Resident, OfDisk) and len(made) == 2
    assert sorted(streamed.on_disk) == sorted(streamed.names) and len(streamed.names) == 29
    # The file is small beside what is free, so that it goes through the page cache.
    assert streamed.direct is False and streamed.ring == 60_000
    assert resident.names == ["model.embed_tokens.weight"]
    # Read ahead as far as there are others: the head follows the last block, the first block the head.
    assert ("lm_head.weight",) in streamed.fetched
    assert store_of(model)._devices[GPU].prefetch_order.depth == 4
    sizes = parts(model)
    assert sizes[PARTS[1], "cpu (pinned)"] == 120 and sizes["compressed layers", "cpu (pinned)"] == 180
    assert sizes[PARTS[0], "disk"] == sum(store_of(model).entry(n).stored_bytes for n in streamed.names)
    assert {m.residency for m in layers_of(model)} == {"device", "disk"}


def test_auto_fills_the_gpu_then_memory_then_takes_from_disk(folders: Any, disk_gpu: Any) -> None:
    wanted = logits(wcodec.load_model(folders()))
    asked: dict[str, int] = {"vram_budget": 1 << 30, "ram_budget": 1 << 30}
    model = to_gpu(wcodec.load_model(folders(), residency="auto", **asked))
    estimate = store_of(model)._memory_estimate(GPU)
    units = estimate.units
    blocks = [u for u in units if not u.looked_up]
    taken = store_of(model)._budget.others + wcodec.nn._weights.placement.device_bytes(
        [u for u in units if u not in blocks[:3]], blocks[:3], estimate.takes()
    )
    host = estimate.takes_of_host()
    for vram, ram, places in (
        (1 << 30, 1 << 30, {"device"}),
        (taken, 1 << 30, {"device", "host"}),
        (taken, None, {"device", "host"}),
    ):
        budgets = {"vram_budget": vram, **({} if ram is None else {"ram_budget": ram})}
        made.clear()
        model = to_gpu(wcodec.load_model(folders(), residency="auto", **budgets))
        assert torch.equal(logits(model), wanted)
        assert {m.residency for m in layers_of(model)} == places
    streamed = [u for u in units if any(n in store_of(model).placement(GPU).streamed for n in u.names)]
    assert len(streamed) > 1
    ram = host(streamed[1:], streamed[:1])
    if ram < host(streamed, []):
        made.clear()
        model = to_gpu(wcodec.load_model(folders(), residency="auto", vram_budget=taken, ram_budget=ram))
        assert torch.equal(logits(model), wanted)
        assert {m.residency for m in layers_of(model)} == {"device", "host", "disk"}
        last = next(d for d in made if d.slots)
        assert set(last.on_disk) == store_of(model).placement(GPU).disk < set(last.names)
    with pytest.raises(wcodec.InputError, match="ram_budget of 1.00 KiB is too small"):
        logits(to_gpu(wcodec.load_model(folders(), residency="auto", vram_budget=taken, ram_budget=1024)))


def test_what_is_in_memory_anyway_is_not_taken_from_disk(disk_gpu: Any) -> None:
    model = build()
    # On the CPU nothing is pinned.
    wcodec.compress_(model, residency="auto", vram_budget="1GB", ram_budget=1, progress=False)
    wanted = logits(model)
    # On a GPU neither, as long as nothing is streamed.
    assert torch.equal(logits(to_gpu(model)), wanted)
    estimate = store_of(model)._memory_estimate(GPU)
    blocks = [u for u in estimate.units if not u.looked_up]
    rest = [u for u in estimate.units if u.looked_up]
    budget = store_of(model)._budget.others + wcodec.nn._weights.placement.device_bytes(rest, blocks, estimate.takes())
    for ram in (None, 10 * MB, 1):
        model = build()
        wcodec.compress_(model, residency="auto", ram_budget=ram, progress=False)
        store_of(model)._budget._asked = budget
        to_gpu(model)
        if ram == 1:
            with pytest.raises(wcodec.InputError, match="ram_budget of 1 B is too small .* load the model from a file"):
                logits(model)
        else:
            assert torch.equal(logits(model), wanted)
            assert "host" in {m.residency for m in layers_of(model)}
