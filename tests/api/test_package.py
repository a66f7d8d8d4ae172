"""The package itself: stubs, types, documentation, and what it needs to be imported."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.metadata
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import wcodec

PACKAGE = Path(wcodec.__file__).parent
CONFIG = Path(__file__).parents[2] / "pyproject.toml"
MODULES = sorted(m.name for m in pkgutil.walk_packages([str(PACKAGE)], "wcodec.") if not m.name.endswith("__main__"))
# Modules that only vLLM imports. It has an environment of its own.
WITH_VLLM = {f"wcodec._integrations.vllm.{name}" for name in ("config", "loader", "methods")}


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("name", ["wcodec", *MODULES])
def test_documentation_runs(name: str) -> None:
    if name in WITH_VLLM:
        pytest.importorskip("vllm", reason="needs vLLM, with which make test-vllm runs it")
    module = importlib.import_module(name)
    assert module.__doc__
    if name != "wcodec._native":
        result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
        assert result.failed == 0


def test_everything_public_is_documented() -> None:
    for name in wcodec.__all__:
        value = getattr(wcodec, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__ and not value.__doc__.startswith(f"{name}("), name
        if inspect.isclass(value):
            for key, member in vars(value).items():
                if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{key}"


def test_what_is_not_used_is_not_imported(tmp_path: Path) -> None:
    heavy = {"numpy", "torch", "transformers", "pandas", "matplotlib"}
    code = f"import sys, wcodec; dir(wcodec); print({heavy!r} & set(sys.modules))"
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.stdout.strip() == "set()", done.stderr
    path = tmp_path / "x.wcodec"
    wcodec.save_file({"w": np.ones((4, 64), np.float32)}, path)
    code = f"import sys, wcodec.cli; wcodec.cli.main(['inspect', {str(path)!r}]); print({heavy!r} & set(sys.modules))"
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_no_modules_import_each_other() -> None:
    """Imports at module level form no circles. Those within functions, and for types alone, may."""
    imported = {name: imports_of(name) for name in ["wcodec", *MODULES]}
    # Modules that import no remaining module are removed, again and again. Circles stay, and modules that import them.
    while free := {name for name, others in imported.items() if not others & imported.keys()}:
        imported = {name: others for name, others in imported.items() if name not in free}
    assert not imported, imported


def imports_of(name: str) -> set[str]:
    """The modules of the package that a module imports when it is imported itself."""
    folder = PACKAGE.joinpath(*name.split(".")[1:])
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not path.exists():
        return set()
    here = name.split(".") if folder.is_dir() else name.split(".")[:-1]
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            inner = {f"{module}.{alias.name}" for alias in node.names}
            # A name that is no module is a name of the package.
            found.update(inner & set(MODULES) or {module})
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found & {"wcodec", *MODULES} - {name}


def test_version_is_one() -> None:
    assert wcodec.__version__ == importlib.metadata.version("wcodec")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", wcodec.__version__)


def test_stubs_match_the_native_module(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    done = run(
        sys.executable, "-m", "mypy.stubtest", "wcodec._native", "--mypy-config-file", str(CONFIG),
        cwd=tmp_path, MYPY_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_package_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_native.pyi").exists()
    done = run(
        sys.executable, "-m", "mypy", "--config-file", str(CONFIG), str(PACKAGE),
        cwd=tmp_path, MYPY_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
import numpy as np, wcodec
w = np.linspace(-1, 1, 64 * 128, dtype=np.float32).reshape(64, 128)
data, report = wcodec.compress_to_bytes({{"w": w, "h": w.astype(np.float16)}})
container = wcodec.open(data)
assert abs(container["w"].numpy() - w).max() < 0.01
wcodec.save_file({{"w": w}}, sys.argv[1], progress=True)
assert list(wcodec.load_file(sys.argv[1])) == ["w"]
try:
    wcodec.load_file(sys.argv[1], "torch")
except wcodec.UnsupportedError as error:
    assert "pip install torch" in str(error)
else:
    raise AssertionError
model = wcodec.open(wcodec.compress_to_bytes(sys.argv[2])[0])
norm, weight = (model[n].numpy() for n in ("model.norm.weight", "lm_head.weight"))
assert norm.dtype == weight.dtype == np.float32
assert not (weight.view(np.uint32) & 0xFFFF).any()
"""


def test_numpy_alone_suffices(tmp_path: Path, model: Path) -> None:
    script = WITHOUT.format(hidden=["torch", "ml_dtypes", "tqdm", "tqdm.auto", "safetensors"])
    done = run(sys.executable, "-c", script, str(tmp_path / "x.wcodec"), str(model), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_import_is_light(tmp_path: Path) -> None:
    script = "import sys, wcodec; print(sorted({'torch', 'tqdm', 'ml_dtypes', 'argparse'} & set(sys.modules)))"
    done = run(sys.executable, "-c", script, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_forced_instruction_set(tmp_path: Path) -> None:
    script = "import wcodec; print(wcodec.instruction_sets()[1])"
    assert run(sys.executable, "-c", script, cwd=tmp_path, WCODEC_ISA="scalar").stdout.strip() == "scalar"
    wrong = run(sys.executable, "-c", script, cwd=tmp_path, WCODEC_ISA="mmx")
    assert wrong.returncode != 0 and "WcodecError" in wrong.stderr or "mmx" in wrong.stderr
