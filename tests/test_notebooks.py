"""The notebooks: each is executed, and the two files of each are the same notebook."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import doc_examples
import jupytext
import nbformat
import pytest
import wcodec
from doc_examples import REPOSITORY
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

NOTEBOOKS = REPOSITORY / "notebooks"
NAMES = sorted({path.stem for pattern in ("*.py", "*.ipynb") for path in NOTEBOOKS.glob(pattern)})
COUNT = 9
LEAST_ASSERTIONS = 3
SECONDS_PER_CELL = 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

each_notebook = pytest.mark.parametrize("name", NAMES)


def source(name: str) -> str:
    return (NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8")


def stored(name: str) -> dict[str, Any]:
    """The .ipynb as it is in the repository, without what a library might make of it."""
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def cells(notebook: Any) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def text_of(name: str) -> str:
    """What the reader reads: the markdown cells."""
    return "\n\n".join(text for kind, text in cells(jupytext.read(NOTEBOOKS / f"{name}.py")) if kind == "markdown")


def test_there_are_nine_and_the_page_lists_them() -> None:
    assert [name[:3] for name in NAMES] == [f"{i:02}_" for i in range(1, COUNT + 1)]
    page = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"\]\((\d\d_\w+)\.ipynb\)", page))) == NAMES


@each_notebook
def test_both_files_are_the_same_notebook(name: str) -> None:
    pair = [NOTEBOOKS / f"{name}.{ending}" for ending in ("py", "ipynb")]
    assert all(path.is_file() for path in pair), f"{name} lacks one of its files: make it with jupytext (README)"
    text, notebook = map(jupytext.read, pair)
    assert cells(text) == cells(notebook), f"run: jupytext --update --to ipynb notebooks/{name}.py"


@each_notebook
def test_nothing_of_a_run_is_stored(name: str) -> None:
    notebook = stored(name)
    nbformat.validate(notebook)
    for cell in notebook["cells"]:
        # jupytext keeps blank lines of the text there, so that the pair stays one.
        assert set(cell["metadata"]) <= {"tags", "lines_to_next_cell"}, cell["metadata"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, cell["source"]
    assert set(notebook["metadata"]) <= {"kernelspec", "jupytext"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


@each_notebook
def test_text_is_code_that_proves_what_it_says(name: str) -> None:
    code = source(name)
    compile(code, f"{name}.py", "exec")
    found = sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code)))
    assert found >= LEAST_ASSERTIONS, f"{name} has {found} assertions"


@each_notebook
def test_every_name_of_the_package_exists_and_is_public(name: str) -> None:
    # Code, comments and text alike; `model.wcodec` and paths are not meant.
    for path in set(re.findall(r"(?<![\w./-])wcodec((?:\.[A-Za-z_]\w*)+)", source(name))):
        at: Any = wcodec
        first, *rest = path[1:].split(".")
        assert first in wcodec.__all__, f"wcodec.{first} is not public"
        for part in (first, *rest):
            if not hasattr(at, part):
                # A field without a default is no attribute of its class.
                assert part in getattr(at, "__dataclass_fields__", {}), f"wcodec{path} does not exist"
                break
            at = getattr(at, part)


@each_notebook
def test_links_lead_somewhere(name: str) -> None:
    found = doc_examples.parsed(text_of(name))
    assert not list(doc_examples.broken_links(found, NOTEBOOKS / f"{name}.ipynb"))


@pytest.fixture(scope="module")
def seconds(request: pytest.FixtureRequest) -> Iterator[dict[str, float]]:
    """How long each notebook took, shown when all tests are done."""
    found: dict[str, float] = {}

    class Summary:
        def pytest_terminal_summary(self, terminalreporter: Any) -> None:
            terminalreporter.section("notebooks")
            for name, taken in found.items():
                terminalreporter.write_line(f"{taken:6.1f} s  {name}")

    request.config.pluginmanager.register(Summary())
    yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of their own: no settings of the user, and what libraries leave there (fonts) is made once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def kernel(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncKernelManager:
    """A kernel of this very interpreter, whatever kernels are installed, that leaves no file outside ``tmp_path``."""
    doc_examples.forget_settings(monkeypatch)
    for variable in [v for v in os.environ if v.startswith(("JUPYTER_", "IPYTHON", "MPL"))]:
        monkeypatch.delenv(variable)
    # No download, whatever the machine has: the notebook then makes a model of that size itself.
    monkeypatch.setenv("WCODEC_TINYLLAMA", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "tmp").mkdir()
    folders = {
        "HOME": home,
        "XDG_CACHE_HOME": home / "cache",
        "XDG_CONFIG_HOME": home / "config",
        "IPYTHONDIR": home / "ipython",
        "JUPYTER_CONFIG_DIR": home / "jupyter",
        "JUPYTER_DATA_DIR": home / "jupyter-data",
        "JUPYTER_RUNTIME_DIR": home / "jupyter-runtime",
        "MPLCONFIGDIR": home / "matplotlib",
        "TMPDIR": tmp_path / "tmp",
    }
    for variable, folder in folders.items():
        monkeypatch.setenv(variable, str(folder))
    # Otherwise the kernel warns that a debugger would miss breakpoints.
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    specification = tmp_path / "kernels" / "python3" / "kernel.json"
    specification.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    specification.write_text(json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}))
    specifications = KernelSpecManager(kernel_dirs=[str(tmp_path / "kernels")], ensure_native_kernel=False)
    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specifications)


@each_notebook
def test_notebook_runs(name: str, kernel: AsyncKernelManager, tmp_path: Path, seconds: dict[str, float]) -> None:
    folder = tmp_path / "repository" / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    # What is beside the notebooks in the repository, for those who read it.
    for beside in REPOSITORY.iterdir():
        if beside.name in ("tests", "codec", "docs", "README.md"):
            (folder.parent / beside.name).symlink_to(beside)
    before = sorted(folder.rglob("*"))
    # The file that is in the repository, not one that jupytext makes of the text.
    notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, km=kernel, timeout=SECONDS_PER_CELL, resources=resources)
    begin = time.perf_counter()
    problem = executed(client)
    seconds[name] = time.perf_counter() - begin
    if problem is not None:
        pytest.fail(f"{name}: {problem}", pytrace=False)
    assert sorted(folder.rglob("*")) == before


def executed(client: NotebookClient) -> str | None:
    """Runs all cells; what went wrong, with the cell and its traceback, without colours."""
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return COLOURS.sub("", str(error))
    return None
