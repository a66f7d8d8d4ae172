"""Facts about GPUs that need none: errors, advice, the doctor, and the same calls on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec import _native, cli
from wcodec._file import load
from wcodec._gpu import decoder, devices


def without_gpu() -> str | None:
    try:
        _native.gpu_available()
    except wcodec.DeviceError as error:
        return str(error)
    return None


NO_GPU = without_gpu()
needs_none = pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")


@pytest.fixture
def container(weights: dict[str, np.ndarray]) -> Iterator[wcodec.Container]:
    with wcodec.open(wcodec.compress_to_bytes({**weights, "tied": weights["a.weight"]})[0]) as opened:
        yield opened


# Without a GPU


def test_device_error_is_also_a_runtime_error() -> None:
    assert issubclass(wcodec.DeviceError, wcodec.WcodecError) and issubclass(wcodec.DeviceError, RuntimeError)
    from wcodec._core import errors

    error = errors.from_native("device", "D101", "no GPU", None, "w", None, None, None)
    assert type(error) is wcodec.DeviceError and error.tensor == "w" and error.code == "D101"


@needs_none
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_no_gpu_is_said_everywhere(device: str, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "w.wcodec"
    wcodec.save_file(weights, path)
    entry = wcodec.open(path)["a.weight"]
    calls: list[Callable[[], Any]] = [
        lambda: wcodec.load_file(path, device=device),
        lambda: wcodec.load_file(path, "torch", device=device),
        lambda: wcodec.verify(path, device=device, progress=False),
        lambda: wcodec.GpuDecoder(path, device=device),
        lambda: wcodec.GpuDecoder(path, ["a.weight"], device),
        lambda: wcodec.Decoder(device=device),
        lambda: entry.torch(device=device),
    ]
    for call in calls:
        with pytest.raises(wcodec.DeviceError) as caught:
            call()
        # The message says what to do; nothing was decoded on the CPU instead.
        assert str(caught.value) == NO_GPU and "NVIDIA" in str(caught.value)
    assert os.listdir(tmp_path) == ["w.wcodec"]


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "mps", "xpu:0", "meta", 3, None])
def test_wrong_devices(device: Any, container: wcodec.Container, tmp_path: Path) -> None:
    for call in (
        lambda: wcodec.load_file(tmp_path / "x", device=device),
        lambda: wcodec.verify(tmp_path / "x", device=device),
        lambda: wcodec.Decoder(device=device),
        lambda: container["a.weight"].torch(device=device),
        lambda: wcodec.GpuDecoder(container, device=device),
    ):
        with pytest.raises(wcodec.InputError, match="device"):
            call()


def test_arguments_that_contradict_each_other(container: wcodec.Container, tmp_path: Path) -> None:
    with pytest.raises(wcodec.InputError, match="framework"):
        wcodec.load_file(tmp_path / "x", "numpy", device="cuda")
    with pytest.raises(wcodec.InputError, match="isa"):
        wcodec.Decoder(isa="scalar", device="cuda")
    with pytest.raises(wcodec.InputError, match="Container for the CPU"):
        wcodec.GpuDecoder(container, device="cpu")
    with pytest.raises(wcodec.TensorNotFoundError, match=r"a\.weight"):
        wcodec.GpuDecoder(container, ["a.weigth"])
    with pytest.raises(wcodec.InputError, match="list"):
        wcodec.GpuDecoder(container, "a.weight")
    with pytest.raises(wcodec.InputError, match="empty"):
        wcodec.GpuDecoder(container, [])
    with pytest.raises(wcodec.InputError, match="threads"):
        wcodec.GpuDecoder(container, threads=0)
    with pytest.raises(wcodec.InputError, match="scratch"):
        wcodec.GpuDecoder(container, scratch=-1)
    with pytest.raises(wcodec.FileMissingError):
        wcodec.GpuDecoder(tmp_path / "x.wcodec")


def test_groups_bound_memory() -> None:
    def tensors(*sizes: int) -> list[Any]:
        return [SimpleNamespace(stored_bytes=n) for n in sizes]

    def cut(*sizes: int) -> list[list[int]]:
        return [[t.stored_bytes for t in group] for group in load.groups(tensors(*sizes), 10)]

    assert cut() == []
    assert cut(4, 6, 1, 0, 11, 3) == [[4, 6], [1, 0], [11], [3]]


def test_torch_that_cannot_use_the_gpu_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(
        cuda: str | None, works: bool = False, hip: str | None = None, driver: tuple[int, int] = (12, 8)
    ) -> Any:
        monkeypatch.setattr(_native, "gpu_driver", lambda: driver)
        monkeypatch.setattr(_native, "gpu_devices", lambda: json.dumps([{"name": "NVIDIA T4"}]))
        version = SimpleNamespace(cuda=cuda, hip=hip)
        cuda_module = SimpleNamespace(is_available=lambda: works)
        return devices.torch_problem(SimpleNamespace(__version__="2.9", version=version, cuda=cuda_module))

    assert problem("12.8", works=True) is None
    assert "without CUDA" in problem(None) and "NVIDIA T4" in problem(None) and "whl/cu128" in problem(None)
    assert "built for CUDA 13.0" in problem("13.0") and "12.8" in problem("13.0")
    assert "cannot use it" in problem("12.6")
    assert "without CUDA" in problem(None, works=True, hip="6.2", driver=(13, 1))


def test_nvcomp_is_looked_for_in_pythons_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia").mkdir()
    monkeypatch.setattr(sys, "path", ["", "relative", str(tmp_path / "none"), str(tmp_path)])
    assert devices.nvcomp_folders() == decoder.gpu_options()["nvcomp_folders"] == [str(tmp_path)]
    library = tmp_path / "nvidia" / "libnvcomp" / "lib64" / "libnvcomp.so.5"
    library.parent.mkdir(parents=True)
    library.write_text("no library")
    monkeypatch.delenv("WCODEC_NVCOMP", raising=False)
    with pytest.raises(wcodec.DeviceError, match="nvCOMP"):
        # The file is found and refused; an nvCOMP of the system would be taken before.
        _native.nvcomp_info(str(library), [])
    with pytest.raises(wcodec.DeviceError, match="pip install nvidia-libnvcomp-cu1"):
        _native.nvcomp_info(str(tmp_path / "none"), [])


KERNELS = [
    *(f"cubin sm_{target}" for target in (75, 80, 86, 90, 100, 120)),
    *(f"PTX sm_{target}" for target in (75, 80, 90)),
]


def test_kernels_are_shipped() -> None:
    assert _native.gpu_kernels() == KERNELS


# The doctor


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--all"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("wcodec ") and wcodec.__version__ in lines[0]
    for word in ("CPU", "driver", "torch", "nvCOMP", "kernels", "sm_90", "encode and decode on the CPU"):
        assert word in out
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema_version"] == 2 and report["command"] == "doctor" and report["ok"] is True
    assert report["version"] == wcodec.__version__ and report["kernels"] == KERNELS
    assert report["cpu"]["used"] in report["cpu"]["instruction_sets"]
    assert report["checks"][0] == {"name": "encode and decode on the CPU", "ok": True, "detail": ""}
    if NO_GPU:
        assert not report["gpu"] and report["driver"] == {"cuda": None, "problem": NO_GPU} and report["devices"] == []
        assert report["checks"][1]["detail"] == NO_GPU and NO_GPU in out


def test_doctor_report() -> None:
    report = wcodec.doctor()
    assert report and isinstance(report, wcodec.DoctorReport) and isinstance(report.checks[0], wcodec.Check)
    assert "\n" not in repr(report) and repr(report).startswith("DoctorReport(CPU: ok")
    page = report._repr_html_()
    assert "encode and decode on the CPU" in page and "color" not in page
    json.dumps(report.to_dict())


def test_doctor_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(ordinal: int, problem: str | None) -> dict[str, Any]:
        return {"ordinal": ordinal, "name": "NVIDIA T4", "compute_capability": [7, 5], "memory": 16 << 30,
                "problem": problem, "kernels": None if problem else "cubin sm_75"}  # fmt: skip

    def verify(container: object, names: list[str], ordinal: int, options: object, progress: object) -> str:
        if ordinal == 1:
            raise wcodec.DeviceError("GPU 1 is too old (use another)")
        return json.dumps([{"name": n, "status": "ok", "detail": ""} for n in names])

    monkeypatch.setattr(_native, "gpu_driver", lambda: (12, 8))
    monkeypatch.setattr(_native, "gpu_devices", lambda: json.dumps([device(0, None), device(1, "GPU 1 is too old")]))
    monkeypatch.setattr(_native, "verify_on_gpu", verify)
    report = wcodec.doctor()
    assert report.ok and not report.gpu and report.driver == {"cuda": "12.8", "problem": None}
    text = str(report)
    assert "NVIDIA T4, compute capability 7.5, 16.00 GiB, kernels cubin sm_75" in text and "GPU 1 is too old" in text
    results = {c.name: c for c in report.checks}
    assert results["decode rans, huffman and raw on GPU 0"].ok and results["decode zstd on GPU 0"].ok
    assert results["decode zstd on GPU 1"].detail == "GPU 1 is too old (use another) [D000]"


DOCTOR = """
import sys
sys.modules["torch"] = None
import wcodec
report = wcodec.doctor()
assert report.ok and "pip install torch" in report.torch["problem"], report.torch
"""


def test_doctor_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DOCTOR]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_broken_cpu_side_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WCODEC_ISA", "mmx")
    assert cli.main(["doctor"]) == 1
    assert "mmx" in capsys.readouterr().out


# The command


@needs_none
def test_verify_on_a_gpu_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.wcodec"
    wcodec.save_file({"w": np.ones((4, 64), np.float32)}, path)
    for device in ("cuda", "cuda:1"):
        assert cli.main(["verify", str(path), "--device", device]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err == f"wcodec: error: {NO_GPU}\n"
    assert cli.main(["verify", str(path), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"
    assert cli.main(["verify", str(path), "--device", "tpu"]) == 2


def test_verify_reports_what_the_gpu_does(
    tmp_path: Path, weights: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.wcodec"
    wcodec.save_file({**weights, "tied": weights["a.weight"]}, path)
    compared: list[str] = []

    def verify(container: object, names: list[str], ordinal: int, options: dict[str, Any], progress: object) -> str:
        assert ordinal == 1 and options["verify"] is True
        compared.extend(names)
        wrong = {"a.weight": "GPU and CPU differ in 3 of 9 symbols, first at 4"}
        records = [(n, "differs" if n in wrong else "ok", wrong.get(n, "")) for n in names]
        return json.dumps([dict(zip(("name", "status", "detail"), r, strict=True)) for r in records])

    monkeypatch.setattr(_native, "gpu_devices", lambda: json.dumps([{"problem": None}] * 2))
    monkeypatch.setattr(_native, "verify_on_gpu", verify)
    report = wcodec.verify(path, {**weights, "tied": weights["a.weight"]}, device="cuda:1", progress=False)
    assert not report.ok and report.device == "cuda:1" and "cuda:1" in repr(report)
    assert sorted(compared) == sorted(weights)
    assert [(t.name, t.status) for t in report.problems] == [("a.weight", "differs")]
    assert cli.main(["verify", str(path), "--device", "cuda:1"]) == 1
    out = capsys.readouterr().out
    assert "differs: a.weight: GPU and CPU differ in 3 of 9 symbols" in out and "1 problem" in out
    # Data that the CPU finds damaged is not sent to the GPU.
    segment = next(s for s in wcodec.open(path)["a.weight"].segments if s.role == "data")
    data = bytearray(path.read_bytes())
    data[segment.offset] ^= 1
    path.write_bytes(data)
    compared.clear()
    assert wcodec.verify(path, device="cuda:1", progress=False).problems[0].status == "damaged"
    assert "a.weight" not in compared and compared
    with pytest.raises(wcodec.InputError, match="no GPU 2"):
        wcodec.verify(path, device="cuda:2", progress=False)


# Calls that take a device, on the CPU


def test_torch_on_the_cpu(container: wcodec.Container) -> None:
    torch = pytest.importorskip("torch")
    entry = container["a.weight"]
    for device in ("cpu", torch.device("cpu")):
        assert torch.equal(entry.torch(device=device), torch.from_numpy(entry.numpy()))
    symbols = entry.torch(torch.int8)
    assert symbols.dtype == torch.int8 and np.array_equal(symbols.numpy(), entry.symbols())
    assert torch.equal(entry.torch(dtype="bfloat16"), entry.torch(torch.bfloat16))
    assert container["ids"].torch(torch.int64).tolist() == list(range(7))
    for name, dtype in (("ids", torch.float32), ("ids", torch.int8), ("b.bias", torch.int8), ("a.weight", torch.int64)):
        with pytest.raises(wcodec.InputError):
            container[name].torch(dtype)


def test_decode_into_on_the_cpu(container: wcodec.Container) -> None:
    torch = pytest.importorskip("torch")
    for entry in container.values():
        own = entry.torch()
        dtypes = [own.dtype]
        if entry.scheme == "int8":
            dtypes += [torch.float32, torch.float16, torch.bfloat16, torch.int8]
        elif own.is_floating_point():
            dtypes += [torch.float32, torch.bfloat16]
        for dtype in dtypes:
            out = torch.full(entry.shape, 77, dtype=dtype)
            place = out.data_ptr()
            entry.decode_into(out)
            assert out.data_ptr() == place and torch.equal(out, entry.torch(dtype)), (entry.name, dtype)


def test_decode_into_transposed_matrices(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    weights = {"w": rng.standard_normal((48, 40)).astype(np.float32)}
    entry = wcodec.open(wcodec.compress_to_bytes(weights, transpose="w")[0])["w"]
    for dtype, expected in ((torch.int8, entry.symbols()), (torch.float32, entry.numpy())):
        out = torch.zeros(48, 40, dtype=dtype)
        entry.decode_into(out)
        assert np.array_equal(out.numpy(), expected)


def test_decode_into_parameters_and_inference_tensors(container: wcodec.Container) -> None:
    torch = pytest.importorskip("torch")
    entry = container["a.weight"]
    parameter = torch.nn.Parameter(torch.zeros(entry.shape))
    used = (parameter * parameter).sum()
    entry.decode_into(parameter)
    assert torch.equal(parameter.detach(), entry.torch())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.backward()
    with torch.inference_mode():
        frozen = torch.zeros(entry.shape)
        entry.decode_into(frozen)
        entry.decode_into(parameter)
    entry.decode_into(frozen)
    assert torch.equal(frozen, entry.torch())


def test_outputs_that_do_not_fit_are_refused(container: wcodec.Container) -> None:
    torch = pytest.importorskip("torch")
    entry = container["a.weight"]
    rows, cols = entry.shape
    for out, said in (
        (np.zeros(entry.shape, np.float32), "torch tensor"),
        (None, "torch tensor"),
        (torch.zeros(rows, cols + 1), r"shape \[48, 321\]"),
        (torch.zeros(rows * cols), "shape"),
        (torch.zeros(cols, rows).T, "contiguous"),
        (torch.zeros(rows, 2 * cols)[:, ::2], "contiguous"),
        (torch.zeros(1).expand(rows, cols), "contiguous"),
        (torch.zeros(rows, cols, dtype=torch.float64), "F64"),
        (torch.zeros(rows, cols, dtype=torch.int16), "int8"),
        (torch.zeros(rows, cols, dtype=torch.complex128), "complex128"),
        (torch.zeros(rows, cols, device="meta"), "meta"),
        (torch.zeros(rows, cols).to_sparse(), "contiguous"),
    ):
        with pytest.raises(wcodec.InputError, match=said) as caught:
            entry.decode_into(out)
        if said != "meta":
            assert caught.value.tensor == "a.weight" and caught.value.without_code().endswith(")")
    with pytest.raises(wcodec.InputError, match="I64"):
        container["ids"].decode_into(torch.zeros(7))


def test_layers_on_the_cpu_are_as_before(rng: np.random.Generator) -> None:
    layer = rng.integers(-20, 20, (20, 70)).astype(np.int8)
    decoded, _ = wcodec.Decoder(device="cpu").decode_layer(wcodec.Encoder().encode_layer(layer)[0])
    assert isinstance(decoded, np.ndarray) and np.array_equal(decoded, layer)
    assert "device='cpu'" in repr(wcodec.Decoder())


def test_load_file_on_the_cpu_is_as_before(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    path = tmp_path / "w.wcodec"
    wcodec.save_file(weights, path)
    assert all(isinstance(a, np.ndarray) for a in wcodec.load_file(path).values())
    torch = pytest.importorskip("torch")
    for options in ({"framework": "torch"}, {"framework": "torch", "device": torch.device("cpu")}):
        loaded = wcodec.load_file(path, **options)
        assert all(t.device.type == "cpu" for t in loaded.values())
