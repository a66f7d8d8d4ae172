"""A check of this installation: its abilities, and advice on how to get those that are missing."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import _native
from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.errors import DeviceError, WcodecError
from .._core.keywords import keywords
from .._core.option_table import CODERS
from .._file.container import Container
from .._file.encode import compress_in_memory
from .._gpu import decoder
from .._gpu import devices as _devices
from .._gpu import torch as _torch
from .._native import safe

if TYPE_CHECKING:
    from .._plot.reports import DoctorPlots

_CACHED = "no direct reads on the file system of this package: weights on disk go through the page cache"
# Large enough for several strips and tiles, with an odd end.
_SHAPE = (83, 1040)


@dataclass(frozen=True)
class Check:
    """Something that was tried."""

    name: str
    ok: bool
    detail: str
    """The problem and its remedy; empty where it works."""


@dataclass(frozen=True, repr=False)
class DoctorReport:
    """The result of :func:`wcodec.doctor`. True in a condition if the CPU side works; a GPU is not needed for that."""

    version: str
    python: str
    system: str
    cpu: dict[str, Any]
    """``instruction_sets``, and the one that is ``used``."""
    driver: dict[str, Any]
    """The version of ``cuda`` that NVIDIA's driver implements, or the ``problem``."""
    devices: tuple[dict[str, Any], ...]
    """Every GPU that the driver shows; ``problem`` says why one cannot be used, ``kernels`` which of ours it uses."""
    kernels: tuple[str, ...]
    """Forms of this package's kernels: machine code (``cubin``) of some GPUs, PTX that drivers compile for others."""
    torch: dict[str, Any]
    """Its ``version``, the version of ``cuda`` that it is built for, or the ``problem``."""
    nvcomp: dict[str, Any]
    """Its ``version``, ``family`` (of interfaces), ``cuda`` and ``path``, or the ``problem``."""
    disk: dict[str, Any]
    """The disk that this package is on: whether files are read without the system's page cache (``direct``), as
    residency ``disk`` would; or the ``problem``."""
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether the CPU side works."""
        return all(c.ok for c in self.checks if "GPU" not in c.name)

    @property
    def gpu(self) -> bool:
        """Whether everything works on every GPU, and there is one."""
        return bool(self.devices) and all(c.ok for c in self.checks)

    def __bool__(self) -> bool:
        return self.ok

    plot: ClassVar[Accessor[DoctorPlots]] = Accessor(
        "wcodec._plot.reports:DoctorPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.checks()``.",
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return {"ok": self.ok, "gpu": self.gpu, **asdict(self)}

    def _facts(self) -> list[tuple[str, str]]:
        facts = [
            ("wcodec", f"{self.version}, Python {self.python}, {self.system}"),
            ("CPU", f"{self.cpu['used']} (of {', '.join(self.cpu['instruction_sets'])})" if self.cpu["used"] else "-"),
            ("driver", _or_problem(self.driver, "CUDA {cuda}")),
        ]
        for d in self.devices:
            capability = ".".join(map(str, d["compute_capability"]))
            text = f"{d['name']}, compute capability {capability}, {fmt.size(d['memory'])}, kernels {d['kernels']}"
            facts.append((f"GPU {d['ordinal']}", f"NO: {d['problem']}" if d["problem"] else text))
        facts += [
            ("kernels", ", ".join(self.kernels)),
            ("torch", _or_problem(self.torch, "{version}, CUDA {cuda}")),
            ("nvCOMP", _or_problem(self.nvcomp, "{version} (family {family}, CUDA {cuda}) in {path}")),
            ("disk", _or_problem(self.disk, "direct reads" if self.disk["direct"] else _CACHED)),
        ]
        return facts

    def __str__(self) -> str:
        rows = [*self._facts(), *((c.name, "works" if c.ok else f"NO: {c.detail}") for c in self.checks)]
        width = max(len(name) for name, _ in rows)
        facts = len(rows) - len(self.checks)
        lines = [safe(f"{name.ljust(width)}  {text}") for name, text in rows]
        return "\n".join([*lines[:facts], "", *lines[facts:]])

    def __repr__(self) -> str:
        counts = f"{sum(c.ok for c in self.checks)} of {fmt.plural(len(self.checks), 'check')} work"
        return f"DoctorReport(CPU: {'ok' if self.ok else 'NOT ok'}, GPUs: {len(self.devices)}, {counts})"

    def _repr_html_(self) -> str:
        rows = [(c.name, "works" if c.ok else "NO", c.detail) for c in self.checks]
        table = fmt.html_table(("check", "result", "detail"), rows, left=3)
        return fmt.html_block("DoctorReport", self._facts(), table, fmt.plural(len(rows), "check"), problem=not self.ok)


def _or_problem(record: dict[str, Any], text: str) -> str:
    return f"NO: {record['problem']}" if record["problem"] else text.format_map(record)


@keywords()
def doctor() -> DoctorReport:
    """Looks at the processor, NVIDIA's driver, the GPUs, torch and nvCOMP, and tries what they are for.

    >>> import wcodec
    >>> report = wcodec.doctor()
    >>> report.ok, report.checks[0].name
    (True, 'encode and decode on the CPU')

    It needs neither a GPU nor torch. The command ``wcodec doctor`` prints the same.
    """
    cpu, problem = _tried(_native.instruction_sets)
    driver, driver_problem = _tried(_native.gpu_driver)
    devices, _ = _tried(lambda: json.loads(_native.gpu_devices()))
    checks = tuple(_checks(devices or [], driver_problem))
    # Once more, as a driver that refuses machine code does so in the checks.
    devices, _ = _tried(lambda: json.loads(_native.gpu_devices()))
    direct, disk_problem = _tried(lambda: _native.reads_direct(_native.__file__))
    nvcomp, nvcomp_problem = _tried(lambda: json.loads(_native.nvcomp_info(None, _devices.nvcomp_folders())))
    if nvcomp:
        nvcomp["cuda"] = ".".join(map(str, nvcomp["cuda"])) if nvcomp["cuda"] else "unknown"
    return DoctorReport(
        version=_native.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu={"instruction_sets": cpu[0] if cpu else [], "used": cpu[1] if cpu else None, "problem": problem},
        driver={"cuda": ".".join(map(str, driver)) if driver else None, "problem": driver_problem},
        devices=tuple(devices or ()),
        kernels=tuple(_native.gpu_kernels()),
        torch=_torch_facts(),
        nvcomp={**dict.fromkeys(("path", "version", "family", "cuda")), **(nvcomp or {}), "problem": nvcomp_problem},
        disk={"direct": direct, "problem": disk_problem},
        checks=checks,
    )


def _tried(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """Returns the result of a call, or the text of its error."""
    try:
        return call(), None
    except WcodecError as error:
        return None, str(error)


def _torch_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {"version": None, "cuda": None, "problem": None}
    try:
        torch = _torch.require()
        facts |= {"version": torch.__version__, "cuda": torch.version.cuda}
        _native.gpu_available()
        facts["problem"] = _devices.torch_problem(torch)
    except DeviceError:
        # Without a GPU nothing is wrong with torch.
        facts["cuda"] = facts["cuda"] or "not built in"
    except WcodecError as error:
        facts["problem"] = str(error)
    except Exception as error:
        # A broken installation fails in many ways when it is imported.
        facts["problem"] = f"it cannot be imported: {error} (install it again)"
    return facts


def _sample(coder: str) -> tuple[Container, npt.NDArray[np.float32]]:
    """A container with a tensor of that coder, and what it was made from."""
    weights = np.random.default_rng(7).standard_normal(_SHAPE).astype(np.float32) ** 3
    return compress_in_memory({"w": weights}, coder=coder), weights


def _try_cpu() -> None:
    for coder in CODERS:
        container, weights = _sample(coder)
        error = np.abs(container["w"].numpy() - weights) - container["w"].scales() * 0.5001
        if error.max() > 0:
            raise WcodecError(
                f"{coder} does not decode what it encodes (report this, with the output of the command)", code="D501"
            )


def _try_gpu(number: int, *coders: str) -> None:
    for coder in coders:
        container, _ = _sample(coder)
        results = _native.verify_on_gpu(container._open, ["w"], number, decoder.gpu_options(), None)
        for tensor in json.loads(results):
            if tensor["status"] != "ok":
                raise WcodecError(
                    f"{coder}: {tensor['detail']} (report this, with the output of the command)", code="D501"
                )


def _try_torch(number: int) -> None:
    container, _ = _sample("rans")
    torch = _torch.require()
    try:
        same = torch.equal(container["w"].torch(device=f"cuda:{number}").cpu(), container["w"].torch())
    except RuntimeError as error:
        raise error if isinstance(error, WcodecError) else DeviceError(f"torch: {error}", code="D301") from error
    if not same:
        raise WcodecError(
            "torch does not get what the CPU decodes (report this, with the output of the command)", code="D501"
        )


def _checks(devices: list[dict[str, Any]], driver_problem: str | None) -> Iterator[Check]:
    def check(name: str, call: Callable[[], None]) -> Check:
        _, problem = _tried(call)
        return Check(name, problem is None, problem or "")

    yield check("encode and decode on the CPU", _try_cpu)
    if not devices:
        yield Check("decode on a GPU", False, driver_problem or "there is no GPU")
    for device in devices:
        n = device["ordinal"]
        yield check(f"decode rans, huffman and raw on GPU {n}", partial(_try_gpu, n, "rans", "huffman", "raw"))
        yield check(f"decode zstd on GPU {n}", partial(_try_gpu, n, "zstd"))
        yield check(f"decode into torch tensors on GPU {n}", partial(_try_torch, n))
