"""The package stands in floors: a module imports from its own floor and from those below, within functions too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import wcodec

PACKAGE = Path(wcodec.__file__).parent
PAGE = Path(__file__).parents[2] / "docs/architecture.md"
# From the ground up. A name is a module, or a folder with all that is in it; the longest that fits counts.
FLOORS = (
    ("_native",),
    ("_core",),
    ("_gpu",),
    ("_file",),
    ("nn/_weights",),
    ("nn/_layers", "nn/linear", "nn/embedding", "nn/experts", "nn/own"),
    ("nn/_fusion",),
    ("nn",),
    ("_models",),
    ("_measure",),
    ("_calibrate",),
    ("_plan",),
    ("_plot",),
    ("_api",),
    ("_integrations",),
    ("__init__", "_errors", "_transformers", "_vllm"),
    ("_cli", "cli", "_tui", "__main__"),
)
PLACES = {tuple(name.split("/")): floor for floor, names in enumerate(FLOORS) for name in names}
PATHS = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
# A folder is its `__init__`.
MODULES = {parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts for parts in PATHS} | {("_native",)}


def floor_of(module: tuple[str, ...]) -> int:
    """The floor of a module, which has one."""
    return PLACES[max((place for place in PLACES if module[: len(place)] == place), key=len)]


def imports_in(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import but those for annotations alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from imports_in(ast.Module(child.orelse, []))
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        else:
            yield from imports_in(child)


def targets(node: ast.Import | ast.ImportFrom, folder: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The modules of the package that an import in a module of this folder is of."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            name, begin = alias.name, ()
        else:
            name = ".".join(filter(None, (node.module, alias.name)))
            begin = ("wcodec", *folder[: len(folder) + 1 - node.level]) if node.level else ()
        package, *parts = (*begin, *name.split("."))
        if package == "wcodec":
            found = (tuple(parts[:end]) for end in range(len(parts), 0, -1))
            yield next((module for module in found if module in MODULES), ("__init__",))


def test_nothing_is_imported_from_a_floor_above() -> None:
    wrong = []
    for parts, path in PATHS.items():
        for node in imports_in(ast.parse(path.read_text(encoding="utf-8"))):
            for target in targets(node, parts[:-1]):
                module = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
                if floor_of(target) > floor_of(module):
                    wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno} imports {'/'.join(target)}")
    assert not wrong, "\n".join(wrong)


def test_the_page_has_the_same_floors() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- floors -->")[2].partition("<!-- end of floors -->")[0]
    rows = [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    assert [tuple(row) for row in rows] == [*reversed(FLOORS)]
