"""The notebooks: each is executed, and the two files of each are the same notebook."""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import re
import socket
import subprocess
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

NOTEBOOKS = REPOSITORY / "notebooks"
NAMES = sorted({path.stem for pattern in ("[0-9]*.py", "[0-9]*.ipynb") for path in NOTEBOOKS.glob(pattern)})
COUNT = 9
LEAST_ASSERTIONS = 3
# Notebooks begin with little code: their set-up is in common.py.
MOST_LINES_OF_FIRST_CELL = 10
# Limit of a cell's lines that draw; larger plots belong to the package.
MOST_LINES_OF_PLOTS = 9
PLOTS = re.compile(r"\b(ax|axes|fig|plt)\b")


def _outputs() -> Any:
    """The script which makes the outputs that are stored."""
    found = importlib.util.spec_from_file_location("notebook_outputs", NOTEBOOKS / "outputs.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


outputs = _outputs()

each_notebook = pytest.mark.parametrize("name", NAMES)


def source(name: str) -> str:
    return (NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8")


def stored(name: str) -> dict[str, Any]:
    """The .ipynb as it is in the repository, without what a library might make of it."""
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def cells(notebook: Any) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def text_of(name: str) -> str:
    """Text of a notebook's markdown cells, which the reader reads."""
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
def test_outputs_belong_to_the_code(name: str) -> None:
    notebook = stored(name)
    nbformat.validate(notebook)
    assert outputs.problems(notebook) == []
    for cell in notebook["cells"]:
        # jupytext keeps blank lines of the text there, so that the pair stays one.
        assert set(cell["metadata"]) <= {"tags", "lines_to_next_cell"}, cell["metadata"]
    assert set(notebook["metadata"]) <= {"kernelspec", "jupytext", outputs.KEY}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ran = notebook["metadata"][outputs.KEY]["run"]
    assert set(ran) == {"date", "gpu", "cores", "python", "wcodec", "torch", "transformers"}
    host = socket.gethostname()
    assert len(host) < 4 or host == "localhost" or host not in json.dumps(notebook)


def test_outputs_are_small_together() -> None:
    assert sum((NOTEBOOKS / f"{name}.ipynb").stat().st_size for name in NAMES) < outputs.MOST_BYTES_TOGETHER


@each_notebook
def test_the_first_cell_shows_a_result(name: str) -> None:
    first = next(cell for cell in stored(name)["cells"] if cell["cell_type"] == "code")
    shown = {kind for output in first["outputs"] for kind in output.get("data", {})}
    assert shown & {"image/png", "text/html"}, f"{name} begins with {shown or 'nothing to see'}"


@each_notebook
def test_the_first_cell_is_short(name: str) -> None:
    first = next(text for kind, text in cells(jupytext.read(NOTEBOOKS / f"{name}.py")) if kind == "code")
    lines = [line for line in first.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES_OF_FIRST_CELL, first


@each_notebook
def test_no_cell_is_a_screen_of_plotting_code(name: str) -> None:
    for kind, text in cells(jupytext.read(NOTEBOOKS / f"{name}.py")):
        if kind == "code":
            drawing = [line for line in text.splitlines() if PLOTS.search(line)]
            assert len(drawing) <= MOST_LINES_OF_PLOTS, text
            assert not re.search(r"#[0-9a-fA-F]{6}\b|tab:\w+", text), f"take colours from wcodec.COLORS:\n{text}"


def test_what_does_not_belong_there_is_found() -> None:
    good = stored(NAMES[0])

    def after(change: Any) -> str:
        notebook = copy.deepcopy(good)
        change(notebook, [cell for cell in notebook["cells"] if cell["cell_type"] == "code"])
        return "\n".join(outputs.problems(notebook))

    def says(text: str, stream: str = "stdout") -> Any:
        said = {"output_type": "stream", "name": stream, "text": [text]}
        return lambda notebook, code: code[1]["outputs"].append(said)

    changed = after(lambda notebook, code: code[2]["source"].append("\n1 + 1"))
    assert "code cell 3 was changed" in changed and "run make notebooks-outputs" in changed
    assert "make notebooks-outputs" in after(lambda notebook, code: notebook["cells"].remove(code[-1]))
    assert "make notebooks-outputs" in after(lambda notebook, code: notebook["metadata"].pop(outputs.KEY))
    assert "order" in after(lambda notebook, code: code[0].update(execution_count=7))
    assert "warns: careful" in after(says("careful", "stderr"))
    for path in ("/home/somebody/x", "/tmp/tmpabc/model.wcodec", "C:\\\\Users\\\\x", "lib/site-packages/torch/x.py"):
        assert "path of a machine" in after(says(f"in {path} is")), path
    assert "terminal" in after(says("\x1b[31mred")) and "terminal" in after(says("50 %\r100 %"))
    fault = {"output_type": "error", "ename": "ValueError", "evalue": "x", "traceback": []}
    assert "ended with ValueError" in after(lambda notebook, code: code[1]["outputs"].append(fault))
    assert "more than" in after(says("x" * outputs.MOST_BYTES))


def test_outputs_are_stored_without_the_machine(tmp_path: Path) -> None:
    neutral = outputs.Neutral(tmp_path)
    said = f"{tmp_path}/tmp/tmpx1/model.wcodec and {REPOSITORY}/docs, {sys.prefix}/bin, "
    said += "<x at 0x7f00aa11bb22> \x1b[1mbold\x1b[0m"
    assert neutral(said) == "…/model.wcodec and wcodec/docs, python/bin, <x at 0x…> bold"
    assert outputs.as_it_ended("a\r\nb\n 5 %\r10 %\rdone\n") == "a\nb\ndone\n"
    code = nbformat.v4.new_code_cell("print(1)")
    code.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="1\n"),
        nbformat.v4.new_output("display_data", {outputs._WIDGETS: {}, "text/plain": "x"}),
        nbformat.v4.new_output("stream", name="stdout", text="2\n"),
        nbformat.v4.new_output(
            "stream", name="stderr", text="[transformers] Ignoring clean_up_tokenization_spaces=1.\n"
        ),
    ]
    code.metadata["execution"] = {"iopub.status.busy": "2020"}
    notebook = nbformat.v4.new_notebook(cells=[code], metadata={"language_info": {"name": "python"}, "widgets": {}})
    outputs.tidy(notebook, neutral)
    assert [output.text for output in code.outputs] == ["1\n2\n"] and not code.metadata
    assert set(notebook.metadata) == {"kernelspec"}


def test_the_command_explains_itself() -> None:
    done = subprocess.run(
        [sys.executable, NOTEBOOKS / "outputs.py", "--help"], capture_output=True, text=True, check=True
    )
    assert "--out" in done.stdout and "make notebooks-outputs" in done.stdout
    done = subprocess.run([sys.executable, NOTEBOOKS / "outputs.py", "99"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "there is no notebook 99" in done.stderr


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
    """Seconds that each notebook took, shown when all tests are done."""
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


@each_notebook
def test_notebook_runs(name: str, home: Path, tmp_path: Path, seconds: dict[str, float]) -> None:
    # The file that is in the repository, not one that jupytext makes of the text.
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    begin = time.perf_counter()
    problem = outputs.executed(notebook, tmp_path, home)
    seconds[name] = time.perf_counter() - begin
    if problem is not None:
        pytest.fail(f"{name}: {problem}", pytrace=False)
    # Python may keep what it compiled of the modules that notebooks share.
    left = {path.name for path in (tmp_path / "repository/notebooks").iterdir()} - {"__pycache__"}
    assert left == {path.name for path in NOTEBOOKS.iterdir() if path.is_file() and not path.name.startswith(".")}
