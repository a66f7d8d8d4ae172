"""Tensors on their way into the encoder, and what becomes of them in memory: no copies that are not needed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec import _native
from wcodec._core import options as _options
from wcodec._file import encode, sources

torch = pytest.importorskip("torch")
MIB = 1 << 20


def stored(container: wcodec.Container) -> bytes:
    """All tensors of a container, as bytes."""
    return container.extract(list(container))


def test_what_is_open_at_once_is_what_bytes_and_files_hold(weights: dict[str, np.ndarray], tmp_path: Any) -> None:
    for options in ({}, {"coder": "zstd"}, {"scheme": "raw"}, {"exclude": "a.*", "metadata": {"k": "v"}}):
        container = encode.compress_in_memory(weights, **options)
        data, report = wcodec.compress_to_bytes(weights, **options)
        wcodec.compress(weights, tmp_path / "x.wcodec", overwrite=True, progress=False, **options)
        assert data == (tmp_path / "x.wcodec").read_bytes() and report.stored_bytes == len(data)
        assert container.path is None and stored(container) == stored(wcodec.open(data))
        assert container.metadata == wcodec.open(data).metadata and container._open.file_len() == len(data)
        assert wcodec.verify(data, against=container).ok


def test_a_gpu_that_only_torch_can_use_is_read_by_torch(weights: dict[str, np.ndarray]) -> None:
    declared, read, metadata, files = sources.tensor_source(weights)
    asked: list[tuple[int, bool]] = []

    def pretends(index: int, device: bool) -> Any:
        asked.append((index, device))
        # No machine has so many GPUs.
        return (4095, 4096, 64, 0, weights) if device else read(index, False)

    data, _ = _native.encode_to_bytes((declared, pretends, metadata, files), _options.encode_options(), None)
    assert data == wcodec.compress_to_bytes(weights)[0]
    assert asked == [(i, device) for i in range(len(weights)) for device in (True, False)]


@pytest.mark.parametrize("found", [None, 5, "text", (1, 2), np.zeros(4, np.float32), np.zeros((2, 2), np.uint8)])
def test_what_is_no_bytes_ends_the_work(found: Any) -> None:
    declared = [("a", "U8", [4], None)]
    source = (declared, lambda index, device: found, {}, [])
    with pytest.raises(TypeError):
        _native.encode_to_container(source, _options.encode_options(), None)  # type: ignore[arg-type]


def test_arrays_of_any_layout_are_copied_whole() -> None:
    # Larger than what one thread copies at once.
    large = np.random.default_rng(4).integers(-9, 9, (1031, 3079), dtype=np.int16)
    tensor = torch.from_numpy(large)
    given = {"plain": large, "turned": large.T, "step": large[::2, ::3], "torch": tensor.t(), "some": tensor[5:, 7:]}
    want = {name: np.ascontiguousarray(np.asarray(value)) for name, value in given.items()}
    container = encode.compress_in_memory(given)
    assert container.aliases == {"torch": "turned"} or not container.aliases
    for name, array in want.items():
        assert np.array_equal(container[name].numpy(), array), name


def test_memory_that_was_freed_is_an_error_and_the_model_stays_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.Linear(64, 128))
    kept = model[0].weight.detach().clone()
    model[1].weight.untyped_storage().resize_(0)
    with pytest.raises(wcodec.InputError, match="tensor '1.weight': its memory was freed"):
        wcodec.compress_(model, progress=False)
    assert [type(m).__name__ for m in model] == ["Linear", "Linear"] and torch.equal(model[0].weight, kept)
    part = torch.zeros(64, 64)
    part.untyped_storage().resize_(64 * 63 * 4)
    with pytest.raises(wcodec.InputError, match="its memory was freed"):
        wcodec.compress_to_bytes({"w": part})
    assert list(wcodec.open(wcodec.compress_to_bytes({"w": part[:63], "none": part[:0]})[0])) == ["w", "none"]
    symbols = torch.zeros(16, 64, dtype=torch.int8)
    symbols.untyped_storage().resize_(0)
    with pytest.raises(wcodec.InputError, match="its memory was freed"):
        wcodec.Encoder().encode_layer(symbols)


def test_a_model_stays_whole_where_the_work_is_stopped() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
    ids, data = [id(m) for m in model], [m.weight.data_ptr() for m in model]

    def stop(tensor: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wcodec.compress_(model, progress=stop)
    assert [id(m) for m in model] == ids and [m.weight.data_ptr() for m in model] == data
    assert all(m.weight.requires_grad for m in model)


PEAK = """
import json, sys
import numpy as np, torch, wcodec
def peak():
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmHWM:"))
options = {"coder": "raw", "scheme": "raw", "threads": 1}
make = lambda i: torch.from_numpy(np.random.default_rng(i).integers(0, 2**32, (1 << 18, 4), np.uint32).view(np.float32))
layers = [torch.nn.Linear(4, 1 << 18, bias=False) for _ in range(int(sys.argv[1]))]
for i, layer in enumerate(layers):
    layer.weight = torch.nn.Parameter(make(i).nan_to_num(), requires_grad=False)
model = torch.nn.Sequential(*layers)
wcodec.compress_(torch.nn.Sequential(torch.nn.Linear(64, 64)), progress=False)
before = peak()
if sys.argv[2] == "model":
    wcodec.compress_(model, progress=False, **options)
else:
    wcodec.compress_to_bytes(dict(model.named_parameters()), **options)
print(json.dumps(peak() - before))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("what, copies", [("model", 1), ("bytes", 2)])
def test_what_is_encoded_in_memory_is_there_no_more_often_than_needed(what: str, copies: int) -> None:
    count = 64
    command = [sys.executable, "-c", PEAK, str(count), what]
    taken = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    # Encoding in progress takes twice 32 MiB for a thread, beside the largest tensor.
    assert taken < copies * count * 4 * MIB + 150 * MIB, f"{taken / MIB:.0f} MiB"
