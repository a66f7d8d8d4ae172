"""Weights that are read from disk while a model runs on a GPU: bit for bit what the CPU decodes, and what every other
residency gives.

Without a GPU these tests are skipped, with the reason; with WCODEC_REQUIRE_GPU=1 they fail instead.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_helpers
import numpy as np
import pytest
import wcodec
from command import flip
from gpu_helpers import same, torch

from tests.gpu.test_host import drop_batches, run_ahead, run_in_any_order, save

# pytest looks for fixtures in the module.
gpu, coder = gpu_helpers.gpu, gpu_helpers.coder

MIXED = ["0.q", "3.up", "5.q", "5.up", "5.norm", "stack"]


@pytest.fixture
def path(coder: str, tmp_path: Path, rng: np.random.Generator) -> Path:
    return save(tmp_path / f"{coder}.wcodec", rng, coder=coder)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("from_disk", [True, MIXED], ids=["all", "some"])
def test_rows_and_whole_tensors(path: Path, from_disk: Any, direct: bool) -> None:
    container = wcodec.open(path)
    for ring in (0, None):
        decoder = wcodec.HostDecoder(path, from_disk=from_disk, direct=direct, ring=ring)
        assert decoder.direct == (direct and wcodec._native.reads_direct(path)) and "disk" in repr(decoder)
        assert 0 < decoder.host_ring_bytes <= decoder.host_bytes
        for entry in container.stored:
            assert same(decoder.decode(entry.name), entry.torch()), entry.name
        for name, begin, end in (("embed", 480, 1000), ("3.up", 672, 688), ("stack", 2, 5), ("embed", 32, 32)):
            assert same(decoder.decode(name, rows=(begin, end)), container[name].torch()[begin:end])
        decoder.check()


@pytest.mark.parametrize("ring", [0, 1 << 20, None])
@pytest.mark.parametrize("ahead", [0, 1, 3, 8])
def test_prefetch(path: Path, ring: int | None, ahead: int) -> None:
    run_ahead(wcodec.HostDecoder(path, ring=ring, from_disk=True), wcodec.open(path), ahead)


@pytest.mark.parametrize("from_disk", [True, MIXED], ids=["all", "some"])
def test_any_order(path: Path, from_disk: Any) -> None:
    decoder = wcodec.HostDecoder(path, ring=1 << 20, from_disk=from_disk)
    run_in_any_order(decoder, wcodec.open(path), random.Random(gpu_helpers.seed()))


def test_what_is_dropped(path: Path) -> None:
    container = wcodec.open(path)
    drop_batches(wcodec.HostDecoder(path, ring=0, from_disk=True), container)
    for _ in range(5):
        dropped = wcodec.HostDecoder(path, from_disk=True)
        out = torch.empty(1000, 256, device="cuda")
        torch.cuda._sleep(20_000_000)
        dropped.decode("embed", out=out)
        dropped.prepare([("stack", torch.empty(5, 31, 128, device="cuda"))]).prefetch()
        del dropped
        gc.collect()
        assert same(out, container["embed"].torch())


def test_a_poisoned_ring(path: Path) -> None:
    """Earlier content of a slot shows nowhere: other tensors of other shapes pass through it in between."""
    choose = random.Random(gpu_helpers.seed())
    container, decoder = wcodec.open(path), wcodec.HostDecoder(path, ring=0, from_disk=True)
    entries = list(container.stored)
    for _ in range(60):
        entry = choose.choice(entries)
        out = torch.full(entry.shape, 77, dtype=entry.torch().dtype, device="cuda")
        decoder.decode(entry.name, out=out)
        assert same(out, entry.torch()), entry.name
    decoder.check()


def test_graphs_cannot_hold_reads(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    decoder = wcodec.HostDecoder(path, from_disk=True)
    out = torch.zeros(1000, 256, device="cuda")
    batch = decoder.prepare([("embed", out)])
    batch.launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        other = out + 1
        with pytest.raises(wcodec.InputError, match="CUDA graph"):
            batch.launch()
    graph.replay()
    assert other.is_cuda and same(out, wcodec.open(path)["embed"].torch())


@pytest.mark.parametrize("ring", [0, None], ids=["in parts", "whole"])
def test_a_file_that_is_damaged_while_it_is_read(tmp_path: Path, rng: np.random.Generator, ring: int | None) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    container = wcodec.open(path)
    at = next(s.offset for s in container["3.up"].segments if s.role == "data")
    expected = {entry.name: entry.torch() for entry in container.stored}
    decoder = wcodec.HostDecoder(path, from_disk=True, ring=ring)
    out = torch.zeros_like(expected["3.up"], device="cuda")
    batch = decoder.prepare([("3.up", out)])
    batch.launch()
    assert same(out, expected["3.up"])
    flip(path, at + 100)
    for _ in range(2):
        batch.prefetch()
        with pytest.raises(wcodec.CorruptError) as caught:
            batch.launch()
        assert caught.value.tensor == "3.up" and caught.value.file == str(path) and caught.value.offset is not None
        assert same(decoder.decode("2.up"), expected["2.up"])
    flip(path, at + 100)
    batch.launch()
    assert same(out, expected["3.up"])
    path.unlink()
    assert same(decoder.decode("1.up"), expected["1.up"])
    decoder.check()


def test_a_file_that_is_cut_off(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    decoder = wcodec.HostDecoder(path, from_disk=True)
    decoder.decode("7.up")
    os.truncate(path, 1000)
    with pytest.raises(wcodec.CorruptError, match="changed while it was open") as caught:
        decoder.decode("7.up")
    assert caught.value.tensor == "7.up"


def test_containers_in_memory(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    with pytest.raises(wcodec.InputError, match="in memory cannot be read from disk"):
        wcodec.HostDecoder(path.read_bytes(), from_disk=True)


def test_memory_is_the_rings(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(tmp_path / "m.wcodec", rng)
    host, disk = wcodec.HostDecoder(path, ring=0), wcodec.HostDecoder(path, ring=0, from_disk=True)
    assert disk.device_bytes == host.device_bytes
    assert disk.host_bytes == disk.host_ring_bytes < 4 * (300 << 10) + host.device_bytes and host.host_ring_bytes == 0
    container = wcodec.open(path)
    names = [entry.name for entry in container.stored]
    sizes = wcodec._native.DeviceSizes(container._open, names)
    options = wcodec._gpu.decoder.gpu_options(ring=0)
    for on_disk in ([], names[:3], names):
        decoder = wcodec.HostDecoder(path, ring=0, from_disk=on_disk) if on_disk else host
        places = [names.index(name) for name in on_disk]
        others = [i for i in range(len(names)) if i not in places]
        assert decoder.host_bytes == sizes.pinned(others, places, options)


# Models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=2000,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path / "original")
    wcodec.compress(path / "original", str(path / "small") + "/", progress=False)
    return path / "small"


IDS = [[3, 17, 256, 255, 5, 41, 900]]


def logits(model: Any) -> Any:
    with torch.inference_mode():
        return model(torch.tensor(IDS, device="cuda")).logits


def test_logits_are_those_of_every_residency(folder: Path) -> None:
    wanted = logits(wcodec.load_model(folder, device="cuda", fused=False))
    total = sum(t.stored_bytes for t in wcodec.open(folder).stored)
    for settings in (
        {"residency": "host"},
        {"residency": "disk"},
        {"residency": "disk", "cache": "5MB"},
        {"residency": "auto", "vram_budget": "1GB"},
        {"residency": "auto", "vram_budget": total, "ram_budget": "1GB"},
        {"residency": "auto", "vram_budget": total, "ram_budget": "13MB"},
    ):
        # Weights that stay decoded are multiplied by torch.
        model = wcodec.load_model(folder, device="cuda", fused=False, **settings)
        for _ in range(3):
            assert torch.equal(logits(model), wanted), settings
    assert {"device", "disk"} <= {m.residency for m in model.modules() if isinstance(m, wcodec.nn.CompressedLayer)}
    parts = {p.name: p.bytes for p in wcodec.measure_vram(model).parts}
    assert parts["ring for layers on disk"] > 0 and parts["compressed layers, read when needed"] > 0
    assert parts["ring for layers on disk"] + parts.get("compressed layers (pinned)", 0) <= 13_000_000


PROGRAM = """
import json, resource, sys, torch, transformers, wcodec
folder, device, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
limits = settings.pop("limits", None)
if limits:
    # A small model first: torch loads and compiles for generation before the limits hold.
    small = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    with torch.device(device):
        other = transformers.AutoModelForCausalLM.from_config(small, dtype=torch.bfloat16)
        other.generate(torch.ones((1, 7), dtype=torch.long), max_new_tokens=12, do_sample=False)
    # As a control group would: so much more of pinned and other memory, and of the GPU's, is there, and no more.
    with open("/proc/self/status") as file:
        data = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + limits["ram"], data + limits["ram"]))
    free = torch.cuda.mem_get_info()[0]
    taken = wcodec._native.DeviceMemory(0, free - limits["vram"])
model = wcodec.load_model(folder, device=device, **settings)
ids = torch.tensor([[3, 17, 256, 255, 5, 41, 900]], device=device)
text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
where = sorted({m.residency for m in model.modules() if hasattr(m, "residency")})
print(json.dumps({"text": text.tolist(), "where": where}))
"""


def test_a_model_larger_than_its_limits_generates_the_same_text(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(**settings: Any) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            [sys.executable, str(program), str(folder), "cuda", json.dumps(settings)], capture_output=True, text=True,
            env=environment, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    whole = run()
    # Rings of 4 x 3 MB for 12 blocks of 3 MB, on both sides.
    small = run(residency="disk")
    budgets = run(residency="auto", vram_budget="20MB", ram_budget="14MB")
    limited = run(residency="disk", limits={"vram": 900 << 20, "ram": 1500 << 20})
    assert small["text"] == budgets["text"] == limited["text"] == whole["text"]
    assert "disk" in budgets["where"] and "disk" in limited["where"]
